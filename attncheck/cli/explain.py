"""`attncheck explain`: what a name means, from the docstring and signature under which it was registered."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attncheck.cli._examples import of_demand, of_law, of_observable
from attncheck.core.fields import BOUND_WORDS

if TYPE_CHECKING:
    from attncheck.core.registry import Entry
    from attncheck.core.vocabulary import Vocabulary


MOST_HINTS = 5


def command(
    name: Annotated[str, typer.Argument(help="An observable, demand, kind, variant, recipe, law, or symbol of a bound.")],
) -> None:
    """Tell what a name means: formula, arguments, dims, unit, source."""
    from attncheck.engine.vocabulary import vocabulary

    typer.echo(explanation(vocabulary(), name))


def explanation(known: Vocabulary, name: str) -> str:
    """The text for a name. Raises AttncheckError on an unknown one, with the nearest."""
    from attncheck.core.errors import AttncheckError, nearest

    found: list[str] = []
    for noun, entries in (
        ("observable", known.observables),
        ("demand", known.expectations),
        ("kind of subject", known.subject_kinds),
        ("kind of input", known.input_kinds),
        ("attention variant", known.variants),
        ("recipe", known.recipes),
    ):
        if name in entries:
            entry = entries[name]
            example = of_observable(entry) if noun == "observable" else of_demand(entry) if noun == "demand" else ""
            found.append(_entry(noun, entry) + (f"\n\n{example}" if example else ""))
    if name in known.symbols:
        found.append(f"{name}: symbol of a bound\n\n{known.symbols[name]}")
    if not found and "-" in name:
        found += _law(name)
    if found:
        return "\n\n".join(found)
    names = [
        *known.observables,
        *known.expectations,
        *known.subject_kinds,
        *known.input_kinds,
        *known.variants,
        *known.recipes,
        *known.symbols,
    ]
    endings = sorted(other for other in names if name in (other.rpartition(".")[2], *other.rpartition(".")[2].split("_")))
    hint = " or ".join(map(repr, endings[:MOST_HINTS])) or repr(nearest(name, names) or "")
    raise AttncheckError(f"unknown name {name!r}" + (f"; did you mean {hint}?" if hint != repr("") else "; `attncheck list` shows all"))


def _law(name: str) -> list[str]:
    """A law of operators or of models; their modules are asked last, since they need torch."""
    from attncheck.core.claims import OperatorClaims
    from attncheck.laws.registry import laws

    if name.startswith("model-"):
        return _model_law(name)
    (*found,) = [entry for entry in laws() if entry.id == name]
    told = []
    for entry in found:
        first = entry.needs(OperatorClaims())
        when = f"tried where claimed: without any claims, {first}" if first else "tried on every operator"
        told.append(f"{entry.id}: law of operators, family {entry.family}\n\n{inspect.getdoc(entry.check)}\n\n{when}\n\n{of_law(entry.id)}")
    return told


def _model_law(name: str) -> list[str]:
    """A law of models."""
    from attncheck.core.model_claims import ModelClaims
    from attncheck.laws.models.registry import model_laws

    told = []
    for entry in (entry for entry in model_laws() if entry.id == name):
        first = entry.needs(ModelClaims())
        when = f"tried where claimed: without any claims, {first}" if first else "tried on every model"
        told.append(f"{entry.id}: law of models, family {entry.family}\n\n{inspect.getdoc(entry.check)}\n\n{when}\n\n{of_law(entry.id)}")
    return told


def _entry(noun: str, entry: Entry) -> str:
    parts = [f"{entry.name}: {noun}", entry.doc or "(not documented)"]
    about = entry.about
    facts = [
        ("dims", ", ".join(about.get("dims", ()))),
        ("unit", about.get("unit", "")),
        ("reads", about.get("reads", "")),
        ("source", about.get("source", "")),
        ("same as", about.get("is", "") if about.get("is") != entry.name else ""),
    ]
    stated = [f"  {label:7} {value}" for label, value in facts if value]
    if stated:
        parts.append("\n".join(stated))
    arguments = [f"  {line}" for line in argument_lines(entry)]
    parts.append("arguments:\n" + "\n".join(arguments) if arguments else "no arguments")
    return "\n\n".join(parts)


def argument_lines(entry: Entry) -> list[str]:
    """Each argument with its type, and its default or that it is required."""
    schema = entry.arguments.model_json_schema()
    required = schema.get("required", [])
    made = []
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else f"default {_shown(field.get('default'))}"
        made.append(f"{name}: {_type(field, schema.get('$defs', {}))} ({default})")
    return made


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _type(field: dict[str, Any], nested: dict[str, Any]) -> str:
    if field.get("x-attncheck"):
        return "an observable"
    if "enum" in field:
        return " | ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if "anyOf" in field:
        return " | ".join(dict.fromkeys(_type(way, nested) for way in field["anyOf"] if way.get("type") != "null"))
    if "$ref" in field:
        inner = nested[str(field["$ref"]).rpartition("/")[2]].get("properties", {})
        more = [name for name in inner if name not in BOUND_WORDS]
        if not set(BOUND_WORDS) & set(inner):
            return f"a mapping of {', '.join(more)}"
        return "a bound" + (f" with {', '.join(more)}" if more else "")
    kind = field.get("type", "any value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
