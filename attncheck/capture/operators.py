"""Routes 2 and 3: torch's own attention operators, and softmax results that are multiplied with values. Also the census of a forward.

A TorchDispatchMode sees what really runs, inside nn.MultiheadAttention too, and changes no bit (NUMERICS, finding 2). Fused operators
hand over query, key, value, mask and scale. A softmax result of three or more dims counts as attention once a matrix product takes it
and a value: from then on it is a call whose weights are known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attncheck.capture.fused_layers import encoder_layer_call, native_mha_call
from attncheck.capture.masks import hidden_in
from attncheck.capture.state import Observation, ordinary, recomputing, stack_of
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
EXP = {"aten::exp", "aten::exp_", "aten::exp2", "aten::exp2_"}
PRODUCTS = {"aten::bmm", "aten::matmul", "aten::mm", "aten::baddbmm"}
PASS_ON = {"aten::_to_copy", "aten::clone", "aten::native_dropout", "aten::contiguous", "aten::nan_to_num"}
"""Operators whose result still holds the weights of their first argument."""
CHANGE = {"aten::mul", "aten::mul_", "aten::div", "aten::div_", "aten::masked_fill", "aten::masked_fill_", "aten::where"}
"""Operators that may change the weights element by element."""


def like_attention(shape: tuple[int, ...], batch: int) -> bool:
    """Whether weights of this shape may be attention's: [batch x heads, N, M] or [batch, N, N]; a router's [batch, N, experts] is none."""
    return len(shape) > 3 or (len(shape) == 3 and (shape[0] != batch or shape[1] == shape[2]))


class _Pending:
    """A softmax result that nothing has multiplied with values yet."""

    def __init__(self, weights: Tensor, scores: Tensor, where: str, batch: int) -> None:
        self.weights, self.where = weights, where
        self.scores: Tensor | None = scores
        """What the softmax was taken of; None once something else than dropout has changed the weights."""
        self.shape = tuple(weights.shape)
        self.dropout = 0.0
        self.by_storage = {_storage(weights): weights}
        """Copies and changed ones, by the address of their storage."""
        self.alive = [weights]
        """Kept so that no other tensor gets their addresses."""
        self.like_attention = like_attention(self.shape, batch)


def _is_attention(func: Any, args: Any) -> bool:
    """Whether an operator that no call is made of is attention by itself, or a softmax of the shape of its weights."""
    name = func._schema.name if hasattr(func, "_schema") else str(func)
    return (
        name in (*FUSED, "aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")
        or "flex_attention" in name
        or (name in SOFTMAX and args[0].dim() >= 3)
    )


class _Exponential:
    """A result of exp. Divided by its own sum and multiplied with values it is a softmax written out by hand."""

    def __init__(self, result: Tensor, where: str) -> None:
        self.where = where
        self.shape, self.numel = tuple(result.shape), result.numel()
        self.alive = [result]
        """Kept so that no other tensor gets their addresses."""
        self.summed = self.normalised = False


class OperatorMode(TorchDispatchMode):
    """Watches one forward."""

    supports_higher_order_operators = True

    def __init__(self, observation: Observation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observation = observation
        self.pending: dict[int, _Pending] = {}
        """By the addresses of the storages that hold the weights."""
        self.exponentials: dict[int, _Exponential] = {}
        """The two latest, by the addresses of what became of them."""
        self.noise: tuple[int, float] | None = None
        """Address of dropout's latest noise, and the probability of a drop."""
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
        if self.observation.inside or recomputing():
            return func(*args, **kwargs)
        if self.observation.strangers:
            if _is_attention(func, args):
                self.observation.ran_outside(self.observation.strangers[0])
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
        elif name in EXP and result.dim() >= 3:
            latest = next(reversed(self.exponentials.values()), None)
            self.exponentials = {address: made for address, made in self.exponentials.items() if made is latest}
            self._stands(result, _Exponential(result, self.observation.where))
        elif name == "aten::bernoulli_":
            self.noise = (_storage(result), 1 - float(args[1]) if len(args) > 1 else 0.0)
        elif self.pending or self.exponentials:
            self._follow(name, args, result)
        return result

    def _follow(self, name: str, args: Any, result: Any) -> None:
        """What becomes of softmax results and of exponentials."""
        if name in PRODUCTS:
            self._product(name, args, result)
        elif name in CHANGE:
            self._changed(name, args, result)
        elif name in PASS_ON:
            self._pass_on(args[0], result[0] if isinstance(result, tuple | list) else result)
            if name == "aten::native_dropout" and args[2]:
                self._dropped(result[0], float(args[1]))
        elif name == "aten::topk" and _storage(args[0]) in self.pending and args[0].dim() <= 3:
            self._forget(self.pending[_storage(args[0])])
        elif name == "aten::sum" and _storage(args[0]) in self.exponentials:
            made = self.exponentials[_storage(args[0])]
            made.summed = True
            self._stands(result, made)

    def _stands(self, result: Tensor, made: _Exponential) -> None:
        made.alive.append(result)
        self.exponentials[_storage(result)] = made

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
        query, key, value = ordinary(given["query"]), ordinary(given["key"]), ordinary(given["value"])
        mask = given.get("attn_mask", given.get("attn_bias"))
        causal = bool(given.get("is_causal", False))
        scale = given.get("scale")
        output = (result[0] if isinstance(result, tuple | list) else result).detach()
        dropout = float(given.get("dropout_p", 0.0))
        if query.dim() != 4:
            self.observation.unseen.append(f"{self.observation.where}: {func} on queries of {query.dim()} dims")
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
            replay=None if dropout else replay,
            replay_refused="a fused kernel draws another dropout mask each time" if dropout else "",
            dropout=dropout,
        )
        self.observation.seen(call, "operator")

    def _softmax(self, scores: Tensor, dim: int, result: Any) -> None:
        if not isinstance(result, torch.Tensor) or result.dim() < 3:
            return
        axis = dim % result.dim()
        if axis == result.dim() - 2 and result.dim() > 3:
            self.observation.unseen.append(f"{self.observation.where}: a softmax of shape {list(result.shape)} over its last dim but one")
        if axis == result.dim() - 1:
            self.pending[_storage(result)] = _Pending(result.detach(), scores.detach(), self.observation.where, self.observation.batch)

    def _pass_on(self, before: Any, after: Any) -> None:
        """`after` holds the weights of `before`, perhaps in another dtype."""
        if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or _storage(before) == _storage(after):
            return
        if _storage(before) in self.exponentials:
            self._stands(after, self.exponentials[_storage(before)])
        kept = self.pending.get(_storage(before))
        if kept is not None and after.numel() == kept.weights.numel():
            self._holds(after, kept)

    def _changed(self, name: str, args: Any, result: Tensor) -> None:
        """Something element by element: dropout's noise, a head mask, hidden keys set to 0, the normalisation of an exponential."""
        tensors = [arg for arg in args[:3] if isinstance(arg, torch.Tensor)]
        made = self.exponentials.get(_storage(tensors[0])) if tensors else None
        if made is not None and made.summed and name.startswith("aten::div") and len(tensors) > 1:
            if self.exponentials.get(_storage(tensors[1])) is made:
                made.normalised = True
            self._stands(result, made)
        for number, tensor in enumerate(tensors):
            kept = self.pending.get(_storage(tensor))
            if kept is None or result.numel() != kept.weights.numel():
                continue
            before = kept.weights
            self._holds(result, kept)
            others = [other for place, other in enumerate(tensors) if place != number]
            if others and self.noise is not None and _storage(others[0]) == self.noise[0]:
                self._dropped(result, self.noise[1])
            elif not torch.equal(before, kept.weights):
                kept.scores = None
            return

    def _holds(self, tensor: Tensor, kept: _Pending) -> None:
        kept.alive.append(tensor.detach())
        kept.weights = kept.by_storage[_storage(tensor)] = tensor.detach().reshape(kept.shape)
        self.pending[_storage(tensor)] = kept

    def _dropped(self, result: Tensor, probability: float) -> None:
        kept = self.pending.get(_storage(result))
        if kept is not None:
            kept.dropout = probability

    def _forget(self, kept: _Pending) -> None:
        for address in [address for address, other in self.pending.items() if other is kept]:
            del self.pending[address]

    def _exponential_applied(self, left: Tensor) -> None:
        """Weights that come straight from exp: a softmax by log-sum-exp, or one that is divided by its sum after the product."""
        made = self.exponentials.get(_storage(left))
        if made is None or left.numel() != made.numel or left.shape[-1] != made.shape[-1]:
            return
        if made.normalised:
            self.observation.unseen.append(f"{made.where}: a softmax written out (exp divided by its sum), applied to values")
        elif like_attention(made.shape, self.observation.batch) and made.where not in self.observation.other_mixers:
            self.observation.doubtful.append(f"{made.where}: an exp of shape {list(made.shape)}, applied to values as a softmax's would be")
        else:
            return
        self.exponentials = {address: other for address, other in self.exponentials.items() if other is not made}

    def _product(self, name: str, args: Any, result: Tensor) -> None:
        left, right = (args[1], args[2]) if name == "aten::baddbmm" else (args[0], args[1])
        self._exponential_applied(left)
        kept = self.pending.get(_storage(left))
        if kept is None or left.numel() != kept.weights.numel() or left.shape[-1] != kept.shape[-1]:
            return
        self._forget(kept)
        # Of copies in several dtypes the one that is applied: torch's own sdpa makes another, in half precision, to return.
        kept.weights = kept.by_storage[_storage(left)]
        self._weights_call(kept, right.detach(), result.detach())

    def _weights_call(self, kept: _Pending, value: Tensor, output: Tensor) -> None:
        rows, keys, width = kept.shape[-2], kept.shape[-1], value.shape[-1]
        flat = math.prod(kept.shape[:-2])
        # A leading dim that is batch x heads is cut by the batch of the input; a 4-D softmax says its heads itself.
        batch = kept.shape[0] if len(kept.shape) == 4 else (self.observation.batch if flat % max(self.observation.batch, 1) == 0 else 1)
        shape = (batch, flat // batch)
        told = f"{kept.where}: a softmax of shape {list(kept.shape)} applied to values of shape {list(value.shape)}"
        try:
            weights = kept.weights.reshape(*shape, rows, keys)
            values = value.reshape(*shape, keys, width)
            outputs = output.reshape(*shape, rows, width)
            scores = None if kept.scores is None else kept.scores.reshape(*shape, rows, keys)
        except RuntimeError:
            self.observation.unseen.append(told)
            return
        with self.observation.quietly():
            again = weights.to(values.dtype) @ values
            size = float(outputs.abs().amax()) if outputs.numel() else 0.0
            apart = float((again - outputs).abs().amax()) if outputs.numel() else 0.0
        if apart > max(16 * torch.finfo(outputs.dtype).eps, 1e-5) * max(size, 1e-6):
            self.observation.unseen.append(f"{told}, whose product is not what the model made of them (apart by {apart:.2g} of {size:.2g})")
            return
        layer, stack, path = self._place()
        call = AttentionCall(
            layer=layer,
            stack=stack,
            path=path,
            implementation="softmax",
            query=weights.new_empty(*shape, rows, 0),
            key=weights.new_empty(*shape, keys, 0),
            value=values,
            output=outputs,
            scale=1.0,
            mask=None if scores is None else ~hidden_in(scores),
            scores=scores,
            weights=weights,
            replay=lambda other: weights.to(other.dtype) @ other,
            dropout=kept.dropout,
        )
        self.observation.seen(call, "softmax")

    def leftovers(self) -> list[str]:
        """Softmax results that look like attention and that no product with values took."""
        unique = {id(kept): kept for kept in self.pending.values()}
        return [
            f"{kept.where}: a softmax of shape {list(kept.shape)} that was not seen applied to values by a matrix product"
            for kept in unique.values()
            if kept.like_attention
        ]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
