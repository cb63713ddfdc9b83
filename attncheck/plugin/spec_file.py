"""A spec file as a pytest module: one synthesised, parametrised function per property, at the property's line of the YAML."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attncheck.core.errors import SpecError
from attncheck.plugin.state import STATE

if TYPE_CHECKING:
    from attncheck.spec.model import Case


RESERVED = "pytestmark"


class SpecFile(pytest.Module):
    """A spec as a module of synthesised tests."""

    _made: types.ModuleType | None = None

    def _getobj(self) -> types.ModuleType:
        # pytest may ask for the object more than once, and compares it.
        if self._made is None:
            self._made = self._synthesised()
        return self._made

    def _synthesised(self) -> types.ModuleType:
        try:
            spec = self.config.stash[STATE].spec(self.path)
        except SpecError as error:
            raise self.CollectError(str(error)) from None
        if RESERVED in spec.properties:
            place = spec.properties[RESERVED].place
            raise self.CollectError(f"{place}: a property cannot be called {RESERVED!r}: pytest reads that name as the marks of a file")
        cases: dict[str, list[Case]] = {name: [] for name in spec.properties}
        for case in spec.cases:
            cases[case.property.name].append(case)
        _register_marks(self.config, {mark: None for case in spec.cases for mark in case.marks})
        module = types.ModuleType(self.path.name)
        if self.config.stash[STATE].selftest:
            cases = {name: [self.config.stash[STATE].representative(own)] for name, own in cases.items()}
        for name, own in cases.items():
            vars(module)[name] = _function(name, self.path, spec.properties[name].place.line, own, module)
        return module

    def istestfunction(self, obj: object, name: str) -> bool:
        return isinstance(obj, types.FunctionType)

    def istestclass(self, obj: object, name: str) -> bool:
        return False


def _function(name: str, path: Path, line: int, cases: list[Case], module: types.ModuleType) -> Callable[..., object]:
    made = located(lambda attn_case, attn_outcome: attn_outcome(), path, line, name)
    made.__module__ = module.__name__
    params = [pytest.param(case, id=case.id, marks=[getattr(pytest.mark, mark) for mark in case.marks]) for case in cases]
    marked: Callable[..., object] = pytest.mark.parametrize("attn_case", params)(made)
    return marked


def located(function: Callable[..., object], path: Path, line: int, name: str) -> Callable[..., Any]:
    """The function with code that claims to lie at a line of a spec, so that every location that pytest derives points there.

    It must be written on one line and close over nothing: the line table is relative to the first line.
    """
    code = function.__code__.replace(co_filename=str(path), co_firstlineno=line, co_name=name, co_qualname=name)
    return types.FunctionType(code, {"__builtins__": {}}, name)


def _register_marks(config: pytest.Config, marks: Mapping[str, None]) -> None:
    known = {line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")}
    for mark in marks:
        if mark not in known:
            config.addinivalue_line("markers", f"{mark}: given by an attention spec")
