"""The rotary embedding that each attention call really got, taken from the function of the model's code that applied it.

A table of cosines says little: layouts are half-split, interleaved or permuted, some layers of a model do not rotate although it has a
table, latent attention rotates the tail of a head. So the functions that apply rotations (apply_rotary_pos_emb and its kin) are watched:
what went in, what came out. Where the queries of a call are what came out, the same function with the same tables rotates anything else.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from attncheck.core.errors import NotObservable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attncheck.core.evidence import AttentionCall

_APPLIES = re.compile(r"(apply|rotate)_\w*(rotary|rope|queries_or_keys)|^_?(apply|rotate)_(rotary|rope)")


@dataclass
class _Record:
    """One call of a function that applies rotations."""

    function: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: list[Tensor]


@dataclass
class RotaryMap:
    """The rotation of one call's queries: maps [batch, heads, N, d] at the call's query slots to the same shape."""

    record: _Record
    argument: int
    """Position of the queries among the function's positional arguments."""
    output: int
    start: int
    """First rotated dim of a head."""
    heads_second: bool
    """The function was given [batch, heads, N, dims]; else [batch, N, heads, dims]."""
    memo: dict[str, Any] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        width = self.record.outputs[self.output].shape[-1]
        part = x[..., self.start : self.start + width]
        turned = self.turned(part if self.heads_second else part.transpose(1, 2))
        turned = turned if self.heads_second else turned.transpose(1, 2)
        return torch.cat([x[..., : self.start], turned.to(x.dtype), x[..., self.start + width :]], -1)

    def turned(self, part: Tensor) -> Tensor:
        """The function's output for other queries, both in its own layout."""
        args = list(self.record.args)
        args[self.argument] = part
        return _tensors(self.record.function(*args, **self.record.kwargs))[self.output]

    @property
    def given(self) -> Tensor:
        """The queries that the function was given."""
        part: Tensor = self.record.args[self.argument]
        return part

    def same(self, other: RotaryMap) -> bool:
        """Whether two maps share function and tables (the very objects), whatever was rotated, and turn these queries alike."""
        mine, theirs = self.record, other.record
        rotated = {out.shape for out in mine.outputs}

        def equal(a: Any, b: Any) -> bool:
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
                return a is b or (a.shape == b.shape and a.shape in rotated)
            return a is b or (type(a) is type(b) and not isinstance(a, torch.Tensor) and a == b)

        return (
            mine.function is theirs.function
            and (self.argument, self.output, self.start, self.heads_second)
            == (other.argument, other.output, other.start, other.heads_second)
            and len(mine.args) == len(theirs.args)
            and mine.kwargs.keys() == theirs.kwargs.keys()
            and all(map(equal, mine.args, theirs.args))
            and all(equal(mine.kwargs[name], theirs.kwargs[name]) for name in mine.kwargs)
            and torch.equal(other.turned(self.given), mine.outputs[self.output])
        )


class RotationWatch:
    """What the watched functions did, told apart by the attention calls that came after."""

    def __init__(self) -> None:
        self.blind = False
        """The model has a rotary embedding, and no function that may apply it was found."""
        self.records: deque[_Record] = deque(maxlen=8)
        self.fresh = 0
        """Records since the last attention call."""
        self.last: RotaryMap | None = None

    def note(self, record: _Record) -> None:
        if self.fresh == 0:
            self.records.clear()
        self.records.append(record)
        self.fresh += 1

    def of(self, call: AttentionCall) -> Callable[[], RotaryMap | None]:
        """To be called when an attention call is seen; the answer is worked out when somebody asks for it."""
        fresh, self.fresh = self.fresh, 0
        return partial(self._find, call.query, call.path, list(self.records), fresh)

    def _find(self, query: Tensor, path: str, records: list[_Record], fresh: int) -> RotaryMap | None:
        """The rotation of queries [batch, heads, N, d], None for none. Raises NotObservable where it is not known."""
        for record in reversed(records):
            found = _match(record, query)
            if found is not None:
                if self.last is not None and found.same(self.last):
                    found = self.last
                self.last = found
                return found
        if fresh:
            name = getattr(records[-1].function, "__name__", "the rotary function")
            raise NotObservable(f"{path}: its queries are not what {name} gave: they were changed after their rotation")
        if self.blind:
            raise NotObservable(f"{path}: the model has a rotary embedding, but no function of a name that says so applies it")
        return None


@contextmanager
def watching_rotations(model: nn.Module) -> Iterator[RotationWatch]:
    """Watch the functions that apply rotary embeddings in the modules and classes that define `model`; put everything back after."""
    watch = RotationWatch()
    with ExitStack() as stack:
        wrapped: dict[int, Any] = {}
        for holder, name, function in list(_functions(model)):
            replacement = wrapped.setdefault(id(function), _watched(function, watch))
            static = isinstance(holder, type) and isinstance(_names(holder).get(name), staticmethod)
            stack.callback(_put, holder, name, _names(holder)[name])
            _put(holder, name, staticmethod(replacement) if static else replacement)
        for module in model.modules():
            for name, value in list(vars(module).items()):
                if id(value) in wrapped:
                    stack.callback(setattr, module, name, value)
                    setattr(module, name, wrapped[id(value)])
        watch.blind = not wrapped and _has_rotary(model)
        try:
            yield watch
        finally:
            watch.records.clear()


def _functions(model: nn.Module) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(globals of a module or class, name, function) of everything named like a function that applies rotations.

    The globals are those that the classes' own methods read: sys.modules may hold another copy of their module by now.
    """
    classes = {
        kind
        for module in model.modules()
        for kind in type(module).__mro__
        if kind.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    read = [vars(m) for kind in classes if (m := sys.modules.get(kind.__module__)) is not None]
    read += [
        method.__globals__
        for kind in classes
        for value in list(vars(kind).values())
        if isinstance(method := inspect.unwrap(getattr(value, "__func__", value)), FunctionType)
    ]
    holders: list[Any] = [*{id(names): names for names in read}.values(), *classes]
    for holder in holders:
        for name, value in list(_names(holder).items()):
            function = value.__func__ if isinstance(value, staticmethod) else value
            if _APPLIES.search(name) and callable(function) and not isinstance(function, type):
                yield holder, name, function


def _names(holder: Any) -> Mapping[str, Any]:
    return holder if isinstance(holder, dict) else vars(holder)


def _put(holder: Any, name: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _watched(function: Callable[..., Any], watch: RotationWatch) -> Callable[..., Any]:
    @wraps(function)
    def watching(*args: Any, **kwargs: Any) -> Any:
        output = function(*args, **kwargs)
        outputs = _tensors(output)
        if outputs:
            watch.note(_Record(function, list(args), kwargs, outputs))
        return output

    return watching


def _tensors(output: Any) -> list[Tensor]:
    return [out for out in (output if isinstance(output, tuple | list) else (output,)) if isinstance(out, torch.Tensor)]


def _match(record: _Record, query: Tensor) -> RotaryMap | None:
    """The map whose output the queries are, up to a positive factor per vector (a norm without gain after the rotation)."""
    for number, out in enumerate(record.outputs):
        if out.dim() != 4 or out.shape[-1] > query.shape[-1]:
            continue
        for heads_second in (True, False):
            seen = out if heads_second else out.transpose(1, 2)
            if seen.shape[:3] != query.shape[:3]:
                continue
            for start in dict.fromkeys((0, query.shape[-1] - out.shape[-1])):
                if _parallel(query[..., start : start + out.shape[-1]], seen, exact=out.shape[-1] < query.shape[-1]):
                    made = _argument(record, number, start, heads_second)
                    if made is not None:
                        return made
    return None


def _parallel(a: Tensor, b: Tensor, *, exact: bool) -> bool:
    b = b.to(a.dtype)
    if torch.equal(a, b):
        return True
    if exact:
        return False
    a, b = a.float(), b.float()
    a, b = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    close: bool = torch.allclose(a, b, atol=1e-5 if b.dtype == torch.float32 else 1e-2)
    return close


def _argument(record: _Record, number: int, start: int, heads_second: bool) -> RotaryMap | None:
    """Which argument became that output: the one of its shape with which the function gives it again, and zeros for zeros."""
    shape = record.outputs[number].shape
    fitting = [i for i, arg in enumerate(record.args) if isinstance(arg, torch.Tensor) and arg.shape == shape]
    for argument in fitting:
        made = RotaryMap(record, argument, number, start, heads_second)
        if torch.equal(made.turned(made.given), record.outputs[number]) and not bool(made.turned(torch.zeros_like(made.given)).any()):
            return made
    return None


def _has_rotary(model: nn.Module) -> bool:
    """Whether a module or a configuration of the model speaks of rotary embeddings."""
    if any(re.search(r"rotary|rope", type(module).__name__, re.I) for module in model.modules()):
        return True
    config = getattr(model, "config", None)
    return any(getattr(config, name, None) for name in ("rope_parameters", "rope_theta", "rotary_dim", "rotary_pct"))
