"""Bounds: a number or a short arithmetic expression over a measurement's symbols, such as `sqrt(N)` or `0.9 * uniform_norm`.

The text is parsed as a Python expression, of which a whitelist remains (numbers, symbols, + - * / **, functions of one argument),
and is computed in float: `9**9**9` is infinite at once, where integers would never end.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attncheck.core.errors import nearest

LONGEST = 200
DEEPEST = 20
FUNCTIONS = ("sqrt", "log", "exp", "abs", "log10")
ALLOWED = "numbers, symbols, + - * / ** ( ) and " + ", ".join(f"{name}()" for name in FUNCTIONS)

_PERCENT = re.compile(r"[+-]?\d+(?:\.\d+)?\s*%")
_STRANGE = re.compile(r"[^A-Za-z0-9_ .+\-*/()]")
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


class BoundError(ValueError):
    """Text that is no bound. `column` counts from 1 within the text."""

    def __init__(self, message: str, column: int = 1) -> None:
        self.column = column
        super().__init__(message)


@dataclass(frozen=True)
class Expression:
    """A parsed bound; equal when the text is."""

    text: str
    names: frozenset[str]
    """The symbols that it names."""
    _tree: ast.expr = field(compare=False, repr=False)

    def evaluate(self, symbols: Mapping[str, Any]) -> Any:
        """The value with `symbols` put in: floats, numpy arrays or xarray DataArrays, computed in float64.

        A float where every symbol is a number. Overflow gives inf and an undefined operation nan, without a warning.
        Raises KeyError on a missing symbol.
        """
        if not self.names:
            return _evaluate(self._tree, {})
        return _evaluate(self._tree, {name: _as_float(symbols[name]) for name in self.names})

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Bound:
    """Any of the three sides; `between: [a, b]` gives at_least and at_most."""

    at_least: Expression | None = None
    at_most: Expression | None = None
    equals: Expression | None = None

    @property
    def names(self) -> frozenset[str]:
        return frozenset().union(*(e.names for e in (self.at_least, self.at_most, self.equals) if e is not None))


def parse_expression(value: Any, symbols: Iterable[str] | None = None) -> Expression:
    """A number, a percentage ('90%') or an expression -> Expression. Raises BoundError (a ValueError with the column).

    `symbols` are the names it may use; None leaves that check to the caller. A bound without symbols must come to a finite number.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BoundError(f"{value!r} is not a bound; allowed: {ALLOWED}")
    text = (value if isinstance(value, str) else repr(value)).strip()
    if len(text) > LONGEST:
        raise BoundError(f"a bound of {len(text)} characters; allowed: {LONGEST}")
    if _PERCENT.fullmatch(text):
        tree: ast.expr = ast.Constant(float(text[:-1]) / 100)
        return Expression(text, frozenset(), tree)
    if isinstance(value, float) and not math.isfinite(value):
        raise BoundError(f"{text} is not a finite number")
    tree = _tree(text)
    names = _check(tree, None if symbols is None else tuple(symbols), text, DEEPEST)
    return Expression(text, names, tree)


def _tree(text: str) -> ast.expr:
    if not text:
        raise BoundError(f"an empty bound; allowed: {ALLOWED}")
    strange = _STRANGE.search(text)
    if strange:
        hint = "; a percentage stands alone, as in '90%'" if strange[0] == "%" else ""
        raise BoundError(f"{strange[0]!r} in {text!r} is not allowed in a bound{hint}; allowed: {ALLOWED}", strange.start() + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        column = getattr(error, "offset", None) or 1
        raise BoundError(f"{text!r} is not an arithmetic expression; allowed: {ALLOWED}", min(column, len(text))) from None


def _check(node: ast.expr, symbols: tuple[str, ...] | None, text: str, depth: int) -> frozenset[str]:
    """The names in an expression that is allowed. A part without names must come to a finite number."""
    column = node.col_offset + 1
    if depth == 0:
        raise BoundError(f"{text!r} is nested more than {DEEPEST} deep", column)
    names: frozenset[str] = frozenset()
    match node:
        case ast.Name(id=name):
            if symbols is not None and name not in symbols:
                hint = nearest(name, symbols)
                also = f"; did you mean {hint!r}?" if hint else ""
                raise BoundError(f"{name!r} is no symbol that a bound may use; allowed: {', '.join(symbols) or 'none'}{also}", column)
            return frozenset({name})
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            pass
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            names = _check(left, symbols, text, depth - 1) | _check(right, symbols, text, depth - 1)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            names = _check(operand, symbols, text, depth - 1)
        case ast.Call(func=ast.Name(id=function), args=[argument], keywords=[]) if function in FUNCTIONS:
            names = _check(argument, symbols, text, depth - 1)
        case ast.Call():
            raise BoundError(f"the call of {ast.unparse(node.func)!r} in {text!r} is not allowed in a bound; allowed: {ALLOWED}", column)
        case _:
            kind = {"Attribute": "attribute access", "Constant": "a value that is no number"}.get(type(node).__name__, type(node).__name__)
            raise BoundError(f"{kind} in {text!r} is not allowed in a bound; allowed: {ALLOWED}", column)
    if not names and not math.isfinite(number := _constant(node)):
        raise BoundError(f"{ast.unparse(node)!r} comes to {number}, not to a finite number", column)
    return names


def _constant(node: ast.expr) -> float:
    try:
        return float(_evaluate(node, {}))
    except OverflowError:
        return math.inf


def _as_float(value: Any) -> Any:
    if isinstance(value, int | float):
        return float(value)
    if getattr(value, "ndim", None) == 0 and not hasattr(value, "coords"):
        return float(value)
    return value * 1.0


def _evaluate(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return symbols[name]
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(_BINARY[type(op)], _evaluate(left, symbols), _evaluate(right, symbols))
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, symbols)
            return -value if isinstance(op, ast.USub) else value
        case ast.Call(func=ast.Name(id=function), args=[argument]):
            return _function(function, _evaluate(argument, symbols))
    raise BoundError(f"{ast.dump(node)} was never checked")


def _binary(operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if not (type(left) is float and type(right) is float):
        import numpy as np

        with np.errstate(all="ignore"):
            return operation(left, right)
    try:
        result = operation(left, right)
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        if operation is operator.pow:
            return math.inf
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1.0, right)
    return math.nan if isinstance(result, complex) else result


def _function(name: str, value: Any) -> Any:
    if type(value) is not float:
        import numpy as np

        with np.errstate(all="ignore"):
            return getattr(np, name)(value)
    try:
        return abs(value) if name == "abs" else float(getattr(math, name)(value))
    except OverflowError:
        return math.inf
    except ValueError:
        return -math.inf if name.startswith("log") and value == 0 else math.nan
