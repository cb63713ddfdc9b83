"""Types of variants' arguments, and of arguments that name a variant."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, PlainValidator, WithJsonSchema
from pydantic_core import CoreSchema

from attncheck.core.bounds import parse_expression
from attncheck.variants.registry import VARIANTS, Definition, examined

FACTOR_SYMBOLS = ("N", "d")
"""N: tokens of the sequence, those that a module was told or else the keys of the call; d: width of a query of one head."""

Count = Annotated[int, Field(ge=1, strict=True)]
Rank = Annotated[int, Field(ge=0, strict=True)]
Positive = Annotated[float, Field(gt=0)]


def _expression(value: Any) -> Any:
    parse_expression(value, FACTOR_SYMBOLS)
    return value


def _factor(value: Any) -> Any:
    return value if value == "learned" else _expression(value)


ScaleExpression = Annotated[str | float, BeforeValidator(_expression), WithJsonSchema({"type": ["number", "string"]})]
"""A number or an expression of N and d, such as '-log(N)'."""

Factor = Annotated[str | float, BeforeValidator(_factor), WithJsonSchema({"type": ["number", "string"]})]
"""A number, an expression of N and d such as '1/sqrt(N)', or 'learned'."""


def value_of(expression: str | float, *, tokens: int, width: int) -> float:
    """What a checked expression comes to."""
    return float(parse_expression(expression, FACTOR_SYMBOLS).evaluate({"N": float(tokens), "d": float(width)}))


def at_width(expression: str | float, tokens: int | None, width: int) -> str | float:
    """The expression's value where the number of tokens is known, else the expression itself."""
    return expression if tokens is None else value_of(expression, tokens=tokens, width=width)


def _variant(value: Any) -> Any:
    found = examined(value)
    if isinstance(found, Definition):
        return found.plain
    raise ValueError("; ".join(found))


def argument_schemas() -> dict[str, Any]:
    """The JSON Schema of each variant's mapping of arguments, of what is registered by now."""
    return {
        name: {**entry.arguments.model_json_schema(), "type": ["object", "null"], "description": entry.summary}
        for name, entry in VARIANTS.items()
    }


class _VariantSchema:
    """The JSON Schema of a definition, made of what is registered by the time that it is asked for."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        bare = [name for name, entry in VARIANTS.items() if not any(default is ... for _, default in entry.parameters.values())]
        mapping = {
            "type": "object", "properties": argument_schemas(), "additionalProperties": False, "minProperties": 1, "maxProperties": 1
        }  # fmt: skip
        return {"anyOf": [{"enum": bare}, mapping]}


VariantArgument = Annotated[Any, PlainValidator(_variant), _VariantSchema()]
"""An argument that names an attention variant: 'mha', or {'lrkv': {'rank': 10}}. The value is the definition with all its arguments."""
