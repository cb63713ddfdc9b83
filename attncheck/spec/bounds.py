"""Bounds of the language; the parser lives in core, since arguments of expectations are bounds too."""

from __future__ import annotations

from attncheck.core.bounds import ALLOWED, FUNCTIONS, Bound, BoundError, Expression, parse_expression

__all__ = ["ALLOWED", "FUNCTIONS", "Bound", "BoundError", "Expression", "parse_expression"]
