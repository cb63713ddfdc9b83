"""Types of arguments that the language knows how to write: ranges of positions, parts of a list, bounds, other observables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from attncheck.core.bounds import Bound, Expression, parse_expression
from attncheck.core.definitions import AXES, Request, allowed_on_axis
from attncheck.core.errors import nearest

BOUND_WORDS = ("at_least", "at_most", "between", "equals")

_SPAN = re.compile(r"(\d{1,18})\.\.(\d{1,18})?$|(\d{1,18})$")
_PART = re.compile(r"(first|middle|last) (half|third|quarter|fifth|tenth|\d{1,9}(?:\.\d{1,9})?%|\d{1,9})$|(all)$")
_NAMED = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4, "fifth": 1 / 5, "tenth": 1 / 10}


def parse_span(text: str) -> tuple[int, int | None]:
    """'4..511' -> (4, 511), both inclusive; '512..' -> (512, None); '7' -> (7, 7). Raises ValueError."""
    match = _SPAN.match(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a range; allowed: '4..511', '512..' or one number")
    if match[3] is not None:
        return int(match[3]), int(match[3])
    start, stop = int(match[1]), int(match[2]) if match[2] is not None else None
    if stop is not None and stop < start:
        raise ValueError(f"{text!r} ends before it starts")
    return start, stop


def parse_part(text: str) -> tuple[str, float, bool]:
    """'first half' -> (first, 0.5, False); 'first 20' -> (first, 20, True: a count); 'all' -> (first, 1.0, False). Raises ValueError."""
    match = _PART.match(str(text).strip())
    if not match:
        raise ValueError(f"{text!r} is not a part; allowed: 'first half', 'last quarter', 'first 10%', 'first 20', 'all'")
    if match[3]:
        return "first", 1.0, False
    amount = match[2]
    if amount in _NAMED:
        return match[1], _NAMED[amount], False
    if amount.endswith("%"):
        share = float(amount[:-1]) / 100
        if not 0 < share <= 1:
            raise ValueError(f"{text!r}: a share lies in (0%, 100%]")
        return match[1], share, False
    if int(float(amount)) < 1:
        raise ValueError(f"{text!r}: at least 1")
    return match[1], float(int(float(amount))), True


def _span(value: Any) -> str:
    text = str(value)
    parse_span(text)
    return text


def _part(value: Any) -> str:
    text = str(value)
    parse_part(text)
    return text


_SPAN_SCHEMA = {"type": ["string", "integer"], "pattern": _SPAN.pattern}
Span = Annotated[str, BeforeValidator(_span), WithJsonSchema(_SPAN_SCHEMA)]
"""A range of positions, both ends inclusive: '4..511', '512..' or one number."""

Spans = Annotated[
    list[Span],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_SPAN_SCHEMA, {"type": "array", "items": _SPAN_SCHEMA, "minItems": 1}]}),
]
"""One range of positions, or a list of them."""

Part = Annotated[str, AfterValidator(_part), WithJsonSchema({"type": "string", "pattern": _PART.pattern})]
"""A part of an ordered list: 'first half', 'last quarter', 'first 10%', 'first 20', 'all'."""


def parse_share(value: Any) -> float:
    """'50%' or 0.5 -> 0.5, in (0, 1]. Raises ValueError."""
    text = str(value).strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = float("nan")
    if isinstance(value, bool) or not 0 < share <= 1:
        raise ValueError(f"{value!r} is not a share; allowed: '50%' or 0.5, above 0 and up to 1")
    return share


def _expression(value: Any, info: ValidationInfo) -> Expression:
    return parse_expression(value, (info.context or {}).get("symbols"))


def _request(value: Any, info: ValidationInfo) -> Request:
    """A Request as it is; a name, or one name with its arguments, checked by `context["request"]` where the language gave one."""
    if isinstance(value, Request):
        return value
    check = (info.context or {}).get("request")
    if check is not None:
        found = check(value)
        if not isinstance(found, Request):
            raise TypeError(f"the language's check of an observable returned {found!r}, not a Request")
        return found
    return parse_request(value)


def parse_request(value: Any) -> Request:
    """'attention.entropy' or {'weights.alpha': {'matrix': 'q'}} -> Request; the name and arguments are not checked. Raises ValueError."""
    if isinstance(value, str) and value:
        return Request(value)
    if isinstance(value, Mapping) and len(value) == 1:
        ((name, arguments),) = value.items()
        if isinstance(name, str) and isinstance(arguments, Mapping | None):
            return Request.of(name, arguments)
    raise ValueError(
        f"{value!r} is not an observable; allowed: a name, or one name with its arguments, as in {{weights.alpha: {{matrix: q}}}}"
    )


def _axes(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"{value!r} does not say what differs; allowed: a mapping with any of {', '.join(AXES)}")
    for name, setting in value.items():
        if name not in AXES:
            hint = nearest(str(name), AXES)
            raise ValueError(f"{name!r} is no axis; allowed: {', '.join(AXES)}" + (f"; did you mean {hint!r}?" if hint else ""))
        if not isinstance(setting, str) or not setting:
            raise ValueError(f"{name}: {setting!r} is not one value; allowed: a text such as 'eager', 'float32', 'cpu'")
        allowed = allowed_on_axis(name, setting)
        if allowed:
            hint = nearest(setting, allowed)
            raise ValueError(f"{name}: {setting!r}; allowed: {', '.join(allowed)}" + (f"; did you mean {hint!r}?" if hint else ""))
    return dict(value)


PATH, NAME_OR_PATH = "path", "name or path"

PathArgument = Annotated[str, PATH]
"""An option of a subject or input kind: a file or folder to read. The language makes it absolute, relative to the spec's folder."""

NameOrPathArgument = Annotated[str, NAME_OR_PATH]
"""As PathArgument where the text begins with ./, ../, ~/ or /; any other text is a name and stays."""

Share = Annotated[float, BeforeValidator(parse_share), WithJsonSchema({"type": ["number", "string"], "pattern": r"^\d+(\.\d+)?%?$"})]
"""A share: '50%' or 0.5, in (0, 1]; the value is the float."""

ExpressionArgument = Annotated[Expression, PlainValidator(_expression), WithJsonSchema({"type": ["number", "string"]})]
"""One side of a bound: a number, '90%', or an expression over the measurement's symbols."""

_REQUEST_SCHEMA = {"type": ["string", "object"], "x-attncheck": "observable"}
RequestArgument = Annotated[Request, PlainValidator(_request), WithJsonSchema(_REQUEST_SCHEMA)]
"""An observable in the usual form; the value is a `core.definitions.Request` with its arguments checked and defaults filled in."""

SubjectArgument = Annotated[str, "subject"]
"""The name of another subject of the file; the case's `counterparts` hold it."""

AxesArgument = Annotated[
    Mapping[str, str],
    PlainValidator(_axes),
    WithJsonSchema(
        {"type": "object", "properties": {a: {"type": "string"} for a in AXES}, "additionalProperties": False, "minProperties": 1}
    ),
]
"""What differs on the other side of a comparison: {attn_implementation: eager}, {dtype: float32}, {device: cpu}.

A demand that has one such argument may also be given the axes directly: `agrees_with: {attn_implementation: eager}`."""


class BoundArgument(BaseModel):
    """A bound: exactly one of at_least, at_most, between, equals. `.bound` is what it comes to.

    An argument with further keys beside the bound is a subclass that adds fields:

        class MassKept(BoundArgument):
            top: Share
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    at_least: ExpressionArgument | None = None
    at_most: ExpressionArgument | None = None
    between: tuple[ExpressionArgument, ExpressionArgument] | None = None
    equals: ExpressionArgument | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [word for word in BOUND_WORDS if getattr(self, word) is not None]
        if len(given) != 1:
            raise ValueError(f"a bound takes exactly one of {', '.join(BOUND_WORDS)}; found {', '.join(given) or 'none'}")
        if self.between is not None:
            check_order(*self.between)
        return self

    @property
    def bound(self) -> Bound:
        low, high = self.between or (self.at_least, self.at_most)
        return Bound(low, high, self.equals)


def check_order(low: Expression, high: Expression) -> None:
    """Raises ValueError where both sides of `between` are numbers in the wrong order."""
    if not low.names and not high.names and low.evaluate({}) > high.evaluate({}):
        raise ValueError(f"between: [{low}, {high}] is empty; the smaller side comes first")
