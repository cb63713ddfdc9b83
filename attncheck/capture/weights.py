"""The projections of every attention layer of a model, in the order in which the model uses them. No forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncheck.capture.layouts import Projections, projections
from attncheck.capture.state import stack_of
from attncheck.core.errors import NotObservable
from attncheck.core.evidence import LayerWeights

if TYPE_CHECKING:
    from torch import nn


def attention_weights(model: nn.Module) -> list[LayerWeights]:
    """Query, key, value and output projections of every attention layer, head by head.

    Layers are numbered in order within their stack. A module that is used several times (ALBERT) stands once per use, with `#n` in its
    path from the second on. Numbers, stacks and paths are those of a capture of the forward.

    Raises NotObservable, naming the module and its parameters, for an attention module whose layout is not known, for quantised or
    unmerged adapter weights, and for a model in which no attention is found.
    """
    found: list[tuple[str, Any, Projections]] = []
    refused: dict[str, NotObservable] = {}
    parents = {f"{path}.{name}" if path else name: module for path, module in model.named_modules() for name, _ in module.named_children()}
    for path, module in model.named_modules():
        if any(path.startswith(f"{outer}.") or outer == "" for outer, kept, _ in found if hasattr(kept, "projection_weights")):
            continue
        try:
            made = projections(module, parents.get(path))
        except NotObservable as error:
            refused[path] = error
            continue
        if made is not None:
            found.append((path, module, made))
    for path, reason in refused.items():
        # A wrapper whose own matrices are something else (a gate, an output) around attention that was recognised is no layer itself.
        if not any(inner.startswith(f"{path}.") if path else inner for inner, _, _ in found):
            raise NotObservable(f"{path or type(model).__name__}: {reason}") from reason
    for path, module, _ in found:
        inside = [inner for inner, _, _ in found if inner != path and inner.startswith(f"{path}." if path else "")]
        if inside:
            raise NotObservable(
                f"{path or type(model).__name__}: {type(module).__qualname__} has query, key and value projections in front of "
                f"{inside[0]}, which has its own; their product is not any one matrix"
            )
    if not found:
        raise NotObservable(f"no attention layer was recognised in {type(model).__qualname__}")
    return _numbered(_unrolled(model, found))


def _unrolled(model: nn.Module, found: list[tuple[str, Any, Projections]]) -> list[tuple[str, Any, Projections]]:
    """Modules that a forward uses several times, once per use. ALBERT is the family that shares layers by its configuration."""
    groups: dict[str, list[tuple[str, Any, Projections]]] = {}
    for entry in found:
        head, mark, _ = entry[0].rpartition(".albert_layers.")
        if not mark:
            return found
        groups.setdefault(head, []).append(entry)
    config: Any = getattr(model, "config", None)
    uses = int(config.num_hidden_layers)
    order = list(groups.values())
    made: list[tuple[str, Any, Projections]] = []
    seen: dict[str, int] = {}
    for use in range(uses):
        for path, module, projected in order[int(use / (uses / len(order)))]:
            times = seen.get(path, 0)
            seen[path] = times + 1
            made.append((f"{path}#{times}" if times else path, module, projected))
    return made


def _numbered(found: list[tuple[str, Any, Projections]]) -> list[LayerWeights]:
    stacks: dict[str, list[tuple[str, Projections]]] = {}
    for path, module, projected in found:
        stacks.setdefault(stack_of(path, module), []).append((path, projected))
    return [
        LayerWeights(
            layer, stack, path, made.query, made.key, made.value, made.output, made.heads, made.kv_heads,
            missing=made.missing, parts=made.parts,
        )
        for stack, members in stacks.items()
        for layer, (path, made) in enumerate(members)
    ]  # fmt: skip
