"""Routes 2 and 3: torch's own attention operators, and softmax results that are multiplied with values. Also the census of a forward.

A TorchDispatchMode sees what really runs, inside nn.MultiheadAttention too, and changes no bit (NUMERICS, finding 2). Fused operators
hand over query, key, value, mask and scale. A softmax result of three or more dims counts as attention once a matrix product takes it
and a value: from then on it is a call whose weights are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.capture.fused_layers import encoder_layer_call, native_mha_call
from attncheck.capture.state import Observation, stack_of
from attncheck.core.evidence import AttentionCall

if TYPE_CHECKING:
    from torch import Tensor

FUSED = {
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
}
COMPOSITE = {"aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math", "aten::multi_head_attention_forward"}
SOFTMAX = {"aten::_softmax", "aten::_safe_softmax", "aten::softmax"}
PRODUCTS = {"aten::bmm", "aten::matmul", "aten::mm", "aten::baddbmm"}
PASS_ON = {"aten::_to_copy", "aten::clone", "aten::native_dropout", "aten::contiguous", "aten::copy_", "aten::nan_to_num"}
"""Operators whose result still holds the weights."""


class _Pending:
    """A softmax result that nothing has multiplied with values yet."""

    def __init__(self, weights: Tensor, scores: Tensor, where: str) -> None:
        self.weights, self.scores, self.where = weights, scores, where
        self.shape = tuple(weights.shape)


class OperatorMode(TorchDispatchMode):
    """Watches one forward."""

    supports_higher_order_operators = True

    def __init__(self, observation: Observation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observation = observation
        self.pending: dict[int, _Pending] = {}
        self.active = False

    def __enter__(self) -> OperatorMode:
        self.active = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self.active = False
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # torch has taken the mode off its stack for the time of this call: whoever pauses modes must not take it off again.
        was, self.active = self.active, False
        try:
            return self._watch(func, args, kwargs or {})
        finally:
            self.active = was

    def _watch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.observation.inside or torch._C._current_graph_task_id() != -1:
            return func(*args, **kwargs)
        if not hasattr(func, "_schema"):
            if "flex_attention" in str(func):
                self.observation.unseen.append(f"{self.observation.where}: flex_attention called outside of transformers' interface")
            return func(*args, **kwargs)
        name = func._schema.name
        if name in COMPOSITE:
            with self:
                done = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if done is NotImplemented else done
        result = func(*args, **kwargs)
        if name in FUSED:
            self._fused(func, args, kwargs, result)
        elif name == "aten::_transformer_encoder_layer_fwd":
            self._layer(encoder_layer_call(func, args, kwargs, result))
        elif name == "aten::_native_multi_head_attention":
            self._layer(native_mha_call(func, args, kwargs, result))
        elif name in SOFTMAX:
            self._softmax(args[0], args[1], result)
        elif self.pending:
            if name in PASS_ON:
                self._pass_on(args, result)
            elif name in PRODUCTS:
                self._product(name, args, result)
        return result

    def _place(self) -> tuple[int, str, str]:
        path = self.observation.where
        stack = stack_of(path)
        layer, path = self.observation.number(path, stack)
        return layer, stack, path

    def _layer(self, call: AttentionCall | str) -> None:
        if isinstance(call, str):
            self.observation.unseen.append(f"{self.observation.where}: {call}")
            return
        call.layer, call.stack, call.path = self._place()
        self.observation.seen(call, "operator")

    def _fused(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = given["query"].detach(), given["key"].detach(), given["value"].detach()
        mask = given.get("attn_mask", given.get("attn_bias"))
        causal = bool(given.get("is_causal", False))
        scale = given.get("scale")
        output = (result[0] if isinstance(result, tuple | list) else result).detach()
        if query.dim() != 4 or given.get("dropout_p", 0.0):
            self.observation.unseen.append(f"{self.observation.where}: {func} with dropout or a shape of {query.dim()} dims")
            return

        def replay(other: Tensor) -> Tensor:
            again = {**given, "query": query, "key": key, "value": other}
            if "compute_log_sumexp" in again:
                again["compute_log_sumexp"] = True
            return func(**again)[0]  # type: ignore[no-any-return]

        layer, stack, path = self._place()
        call = AttentionCall(
            layer=layer,
            stack=stack,
            path=path,
            implementation=func._schema.name.removeprefix("aten::_scaled_dot_product_"),
            query=query,
            key=key,
            value=value,
            output=output,
            scale=float(scale) if scale is not None else query.shape[-1] ** -0.5,
            mask=mask.detach() if isinstance(mask, torch.Tensor) else None,
            is_causal=causal,
            replay=replay,
        )
        self.observation.seen(call, "operator")

    def _softmax(self, scores: Tensor, dim: int, result: Any) -> None:
        if not isinstance(result, torch.Tensor) or result.dim() < 3 or dim % result.dim() != result.dim() - 1:
            return
        self.pending[_storage(result)] = _Pending(result.detach(), scores.detach(), self.observation.where)

    def _pass_on(self, args: Any, result: Any) -> None:
        first = result[0] if isinstance(result, tuple | list) else result
        for argument in args[:2]:
            if isinstance(argument, torch.Tensor) and _storage(argument) in self.pending and isinstance(first, torch.Tensor):
                kept = self.pending[_storage(argument)]
                if first.numel() == kept.weights.numel() and _storage(first) != _storage(argument):
                    self.pending[_storage(first)] = kept
                    kept.weights = first.detach().reshape(kept.shape)
                return

    def _product(self, name: str, args: Any, result: Tensor) -> None:
        left, right = (args[1], args[2]) if name == "aten::baddbmm" else (args[0], args[1])
        kept = self.pending.get(_storage(left))
        if kept is None or left.numel() != kept.weights.numel() or left.shape[-1] != kept.shape[-1]:
            return
        for address in [address for address, other in self.pending.items() if other is kept]:
            del self.pending[address]
        self._weights_call(kept, right.detach(), result.detach())

    def _weights_call(self, kept: _Pending, value: Tensor, output: Tensor) -> None:
        rows, keys, width = kept.shape[-2], kept.shape[-1], value.shape[-1]
        flat = 1
        for size in kept.shape[:-2]:
            flat *= size
        # A leading dim that is batch x heads is cut by the batch of the input; a 4-D softmax says its heads itself.
        batch = kept.shape[0] if len(kept.shape) == 4 else (self.observation.batch if flat % max(self.observation.batch, 1) == 0 else 1)
        shape = (batch, flat // batch)
        try:
            weights = kept.weights.reshape(*shape, rows, keys)
            values = value.reshape(*shape, keys, width)
            outputs = output.reshape(*shape, rows, width)
            scores = kept.scores.reshape(*shape, rows, keys)
        except RuntimeError:
            self.observation.unseen.append(f"{kept.where}: softmax {kept.shape} applied to values of shape {tuple(value.shape)}")
            return
        layer, stack, path = self._place()
        nothing = weights.new_empty(*shape, rows, 0)
        call = AttentionCall(
            layer=layer,
            stack=stack,
            path=path,
            implementation="softmax",
            query=nothing,
            key=weights.new_empty(*shape, keys, 0),
            value=values,
            output=outputs,
            scale=1.0,
            mask=scores > torch.finfo(scores.dtype).min / 2,
            scores=scores,
            weights=weights,
            replay=lambda other: weights.to(other.dtype) @ other,
        )
        self.observation.seen(call, "softmax")

    def leftovers(self) -> list[str]:
        """Softmax results that look like attention and that no product with values took."""
        unique = {id(kept): kept for kept in self.pending.values()}
        return [f"{kept.where}: a softmax of shape {list(kept.shape)} that was not seen applied to values"
                for kept in unique.values() if len(kept.shape) >= 4]  # fmt: skip


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
