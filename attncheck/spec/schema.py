"""JSON Schema (draft-07, which the YAML language server reads) of a spec, from the vocabulary: for completion and hints in an editor.

The loader is the judge; the schema knows names, arguments and shapes, but not what depends on a file's own names or on dims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from attncheck.core.fields import BOUND_WORDS
from attncheck.core.measurement import DIMS, STACKS
from attncheck.core.registry import Entry
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec import inputs, properties, subjects
from attncheck.spec.arguments import first_argument
from attncheck.spec.model import AXES
from attncheck.spec.pipeline import WITH_A_NUMBER
from attncheck.spec.quantifiers import MOST_LINKS, pattern
from attncheck.spec.reader import MARK, NAME
from attncheck.spec.tolerances import KINDS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_BOUND: Schema = {"type": ["number", "string"]}
_WORDS = {
    "like": "The subject that this one inherits: every other key replaces, the kind's options are merged.",
    "attn_implementation": "The attention kernel: eager, sdpa, flash_attention_2, ... A list is a matrix of tests.",
    "dtype": "float32, bfloat16, float16, float64. A list is a matrix of tests.",
    "device": "cpu, cuda, cuda:0, mps. A list is a matrix of tests.",
    "weights": "trained, or random: the same architecture, freshly initialised from seed.",
    "seeds": "Repetitions: a dim of the measurement, not an axis of tests.",
    "optional": "Where true, a skip never fails, even under --attn-strict.",
    "attention_layers": "How many attention layers to expect, where no configuration says it.",
    "claims": "What the author says of the operator or model; the laws follow from it.",
    "padding": "Row b of a batch of B gets about amount * (b + 1) / B pads, the last row all of them.",
    "where": "A choice by dim: 0, -1, 4..511, 512.., 'last quarter'; a list of mappings is a union.",
    "reduce": "Reductions by dim, in the order written.",
    "ratio_to": "The measured value over that of another side; says what differs, all else is equal.",
    "difference_to": "The measured value minus that of another side; says what differs, all else is equal.",
    "for": "How many places must satisfy the demand: all, any, no, all but 2, 2 of 3, 80% of, with a unit, nested by ' in '.",
    "must_fail_on": "The negative control: one more test that passes when the property fails on that subject.",
    "unless": "Where the property is not expected to hold, and because of what.",
    "level": "fail, or warn: the test passes with an AttentionWarning.",
}


def json_schema(vocabulary: Vocabulary) -> Schema:
    """The schema as JSON-like data."""
    return _Schema(vocabulary).whole()


class _Schema:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.definitions: dict[str, Schema] = {}

    def whole(self) -> Schema:
        self.definitions["observable"] = self.observable()
        self.definitions["subject"] = self.subject()
        self.definitions["input"] = self.input()
        self.definitions["property"] = self.property()
        section = {name: _named({"$ref": f"#/definitions/{name}"}) for name in ("subject", "input", "property")}
        shared = self.about()
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "attncheck spec",
            "description": "What must stay true of the attention of models.",
            "type": "object",
            "properties": {
                "attncheck": {"const": 1, "description": "The version of the language."},
                "about": {**_TEXT, "description": "One sentence."},
                "source": {**_TEXT, "description": "Where the claims come from."},
                "subjects": {**section["subject"], "description": "What is measured."},
                "inputs": {**section["input"], "description": "What the subjects are fed."},
                "defaults": {
                    **_closed({**{word: shared[word] for word in properties.DEFAULTS}, **_axes(several=True)}),
                    "minProperties": 1,
                    "description": "What holds where a property or subject says nothing.",
                },
                "expect": {**section["property"], "description": "What must hold."},
            },
            "required": ["attncheck", "subjects", "expect"],
            "additionalProperties": False,
            "definitions": dict(sorted(self.definitions.items())),
        }

    def arguments(self, entry: Entry) -> Schema:
        """The schema of an entry's mapping of arguments."""
        made = entry.arguments.model_json_schema(ref_template=f"#/definitions/{entry.name}.{{model}}")
        for name, definition in made.pop("$defs", {}).items():
            self.definitions[f"{entry.name}.{name}"] = _adapted(definition)
        adapted: Schema = _adapted(made)
        return adapted

    def observable(self) -> Schema:
        bare = [name for name, entry in self.vocabulary.observables.items() if not self.arguments(entry).get("required")]
        named = {
            name: {**self.arguments(entry), "type": ["object", "null"], "description": entry.summary}
            for name, entry in self.vocabulary.observables.items()
        }
        return {
            "description": "An observable: a name, or one name with its arguments.",
            "anyOf": [{"enum": bare}, {**_closed(named), "minProperties": 1, "maxProperties": 1}],
        }

    def kinds(self, kinds: Mapping[str, Entry], common: Mapping[str, Schema], *, like: bool) -> Schema:
        """A definition: one kind key, options in its mapping or beside it, common keys. Options may be missing: `like` brings them."""
        keys: dict[str, Schema] = {}
        beside: dict[str, list[Schema]] = {}
        for name, entry in kinds.items():
            mapping = self.arguments(entry)
            mapping.pop("required", None)
            keys[name] = {"description": entry.summary, "anyOf": [*self.shorthand(entry, mapping), mapping]}
            for option, schema in mapping.get("properties", {}).items():
                beside.setdefault(option, []).append(schema)
        options = {name: schemas[0] if len(schemas) == 1 else {"anyOf": _distinct(schemas)} for name, schemas in beside.items()}
        ways = [{"required": [name]} for name in kinds]
        made = _closed({**options, **keys, **common})
        return {**made, **({"anyOf": [{"required": ["like"]}, *ways]} if like else {"oneOf": ways})}

    def shorthand(self, entry: Entry, mapping: Schema) -> list[Schema]:
        """The forms that stand for the first argument alone."""
        first = first_argument(entry)
        if first is None:
            return [{"type": ["null", "boolean"]}]
        forms: list[Schema] = [mapping["properties"][first]]
        if "arguments" in entry.arguments.model_fields:
            one = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"type": ["object", "null"]}}
            known = entry.about["known"]() if "known" in entry.about else {}
            forms.append({**one, **({"properties": _adapted(known)} if known else {})})
        return forms

    def subject(self) -> Schema:
        common: dict[str, Schema] = {
            "like": _TEXT,
            **_axes(several=True),
            "weights": {"enum": ["trained", "random"]},
            "seed": {"type": "integer", "minimum": 0},
            "seeds": _one_or_more({"type": "integer", "minimum": 0}),
            "marks": _one_or_more({"type": "string", "pattern": f"^{MARK.pattern}$"}),
            "inputs": _one_or_more(_TEXT),
            "optional": {"type": "boolean"},
            "attention_layers": {"type": "integer", "minimum": 1},
            "claims": {"type": "object"},
        }
        return self.kinds(self.vocabulary.subject_kinds, _described(common, subjects.KEYS), like=True)

    def input(self) -> Schema:
        positive: Schema = {"type": "integer", "minimum": 1}
        padding = {**_closed({"side": {"enum": ["left", "right"]}, "amount": positive}), "required": ["side", "amount"]}
        common = {"batch": positive, "length": positive, "padding": padding}
        return self.kinds(self.vocabulary.input_kinds, _described(common, inputs.KEYS), like=False)

    def about(self) -> dict[str, Schema]:
        """The keys of a property that are no step of its pipeline."""
        numbers = {name: {"type": "number", "minimum": 0} for names in KINDS.values() for name in names}
        kinds = {
            kind: {"anyOf": [{"type": "number", "minimum": 0}, _closed({name: numbers[name] for name in names})]}
            for kind, names in KINDS.items()
            if names
        }
        other = {"subject": _TEXT, "input": _TEXT, **_axes(several=False), "because": _TEXT}
        exemption = {**_closed(other), "required": ["because"], "minProperties": 2}
        tolerance = {"anyOf": [{"enum": list(KINDS)}, _closed({"rtol": numbers["rtol"], "atol": numbers["atol"], **kinds})]}
        return {
            "must_fail_on": _one_or_more(_TEXT),
            "subjects": _one_or_more(_TEXT),
            "inputs": _one_or_more(_TEXT),
            "why": _TEXT,
            "source": _TEXT,
            "level": {"enum": list(properties.LEVELS)},
            "marks": _one_or_more({"type": "string", "pattern": f"^{MARK.pattern}$"}),
            "tolerance": tolerance,
            "unless": _one_or_more(exemption),
        }

    def property(self) -> Schema:
        observable: Schema = {"$ref": "#/definitions/observable"}
        selectors: dict[str, Schema] = {dim: {"type": ["integer", "string"]} for dim in DIMS} | {"stack": {"enum": list(STACKS)}}
        beyond = [{**_closed({word: {"type": "number"}}), "minProperties": 1} for word in WITH_A_NUMBER]
        how = {"anyOf": [{"enum": list(self.vocabulary.reductions)}, *beyond]}
        relation = {**_closed({"subject": _TEXT, "observable": observable, **_axes(several=False)}), "minProperties": 1}
        steps: dict[str, Schema] = {
            "observe": observable,
            "where": _one_or_more({**_closed(selectors), "minProperties": 1}),
            "reduce": {**_closed(dict.fromkeys(DIMS, how)), "minProperties": 1},
            "ratio_to": relation,
            "difference_to": relation,
            "for": {"type": "string", "pattern": pattern(MOST_LINKS)},
        }
        symbols = "; ".join(f"{name}: {meaning}" for name, meaning in self.vocabulary.symbols.items())
        bounds = {word: {**_BOUND, "description": f"A number, 90%, or an expression. {symbols}"} for word in BOUND_WORDS}
        bounds["between"] = {
            "type": "array",
            "items": _BOUND,
            "minItems": 2,
            "maxItems": 2,
            "description": "[smallest, largest], both allowed",
        }
        demands = {**bounds, **{name: self.demand(entry) for name, entry in self.vocabulary.expectations.items()}}
        made = _closed({**_described(steps, steps), **demands, **_described(self.about(), properties.ABOUT)})
        blind = [name for name, entry in self.vocabulary.expectations.items() if not entry.about.get("observes", True)]
        observed: Schema = {"anyOf": [{"required": [word]} for word in ("observe", *blind)]}
        unequal: Schema = {"not": {"required": ["ratio_to", "difference_to"]}}
        return {**made, "oneOf": [{"required": [word]} for word in demands], "allOf": [observed, unequal]}

    def demand(self, entry: Entry) -> Schema:
        mapping = self.arguments(entry)
        forms = [mapping, *self.shorthand(entry, mapping)]
        if not mapping.get("required"):
            forms.append({"type": ["null", "boolean"]})
        return {"description": entry.summary, "anyOf": _distinct(forms)}


def _closed(known: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "properties": dict(known), "additionalProperties": False}


def _named(value: Schema) -> Schema:
    return {"type": "object", "propertyNames": {"pattern": f"^{NAME.pattern}$"}, "additionalProperties": value, "minProperties": 1}


def _one_or_more(item: Schema) -> Schema:
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


def _axes(*, several: bool) -> dict[str, Schema]:
    return {axis: {**(_one_or_more(_TEXT) if several else _TEXT), "description": _WORDS[axis]} for axis in AXES}


def _described(schemas: Mapping[str, Schema], names: Collection[str]) -> dict[str, Schema]:
    """The schemas by name with a word on each; they must be exactly those that the loader knows."""
    if set(schemas) != set(names):
        raise ValueError(f"the schema has {sorted(schemas)} where the loader has {sorted(names)}")
    return {name: {**schema, **({"description": _WORDS[name]} if name in _WORDS else {})} for name, schema in schemas.items()}


def _distinct(schemas: Iterable[Schema]) -> list[Schema]:
    found: list[Schema] = []
    for schema in schemas:
        if schema not in found:
            found.append(schema)
    return found


def _adapted(schema: Any) -> Any:
    """pydantic's schema for draft-07: no titles, no null where an argument may be left out, nothing beside a $ref."""
    if isinstance(schema, list):
        return [_adapted(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-attncheck") == "observable":
        return {"$ref": "#/definitions/observable"}
    made = {
        key: {name: _adapted(child) for name, child in value.items()} if key == "properties" else _adapted(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }
    if "prefixItems" in made:
        made["items"] = made.pop("prefixItems")
    if "anyOf" in made:
        ways = [way for way in made["anyOf"] if way != {"type": "null"}]
        made = {**made, "anyOf": ways} if len(ways) != 1 else {**{k: v for k, v in made.items() if k != "anyOf"}, **ways[0]}
    if "$ref" in made and len(made) > 1:
        made = {**{key: value for key, value in made.items() if key != "$ref"}, "allOf": [{"$ref": made["$ref"]}]}
    if "description" in made and isinstance(made["description"], str):
        made["description"] = made["description"].split("\n\n")[0].replace("\n", " ")
    return made
