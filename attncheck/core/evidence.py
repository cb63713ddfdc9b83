"""What the parts below the observables hand upwards: attention calls, weights by layer, a loaded subject, its feed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attncheck.core.definitions import SubjectDefinition


@dataclass
class AttentionCall:
    """One attention call of a running model, alive only inside the capture's callback.

    Shapes: query [batch, heads, N, d], key [batch, kv_heads, M, d], value and output [.., d_v] with the query's head count for output.
    Order of the score's parts: scale, cap, bias, mask, sink (NUMERICS, finding 7).
    """

    layer: int
    """Ordinal among the calls of the same stack, or the module's own layer_idx where every call has a distinct one."""
    stack: str
    """self, encoder, decoder, cross or vision."""
    path: str
    """Module path, with #n for the n-th call of one module."""
    implementation: str
    """Name of the kernel that ran: eager, sdpa, flex_attention, ..."""
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    """What the kernel returned, as [batch, heads, N, d_v]."""
    scale: float
    mask: Tensor | None = None
    """As the kernel reads it: bool (True = may attend) or additive, broadcastable to [batch, heads, N, M]."""
    is_causal: bool = False
    """The kernel itself is causal (top-left aligned), on top of no mask."""
    softcap: float | None = None
    sinks: Tensor | None = None
    """[heads], or [batch, heads, N] where every query has its own: logits of the sink that takes mass but has no value."""
    bias: Tensor | None = None
    """Additive position bias, broadcastable to [batch, heads, N, M]."""
    window: int | None = None
    """Declared sliding window (keys visible, itself included); informative only, the mask already holds it."""
    rotary: tuple[Tensor, Tensor] | None = None
    """(cos, sin) of the forward's rotary embedding, [batch or 1, N, rotary_dims], in the layout that the model uses."""
    rotary_interleaved: bool = False
    rotation: Callable[[], Callable[[Tensor], Tensor] | None] | None = None
    """Finds the model's own rotary embedding at this call's query slots, for anything of the shape of `query`: a function, or None where
    the queries were not rotated; raises NotObservable where that cannot be told. None: nobody watched."""
    query_positions: Tensor | None = None
    """[N] absolute positions of the query slots."""
    key_positions: Tensor | None = None
    """[M] absolute positions of the key slots."""
    scores: Tensor | None = None
    """Route 3 only: the softmax operator's input, scaled and masked, [batch, heads, N, M]."""
    weights: Tensor | None = None
    """Route 3 only: the applied weights, [batch, heads, N, M]."""
    replay: Callable[[Tensor], Tensor] | None = None
    """The real kernel with another value tensor of the shape of `value`; returns [batch, heads, N, d_v]. None: see `replay_refused`."""
    replay_refused: str = ""
    output_projection: Tensor | None = None
    rows_from_kernel: bool = False
    """Its mathematics is its own: rows are read off the kernel, not computed from query and key."""
    dropout: float = 0.0
    """Probability with which the kernel dropped weights in this call. Rows are those before it, `rerun` draws the same again."""

    def rerun(self, value: Tensor) -> Tensor:
        """The real kernel on the same query, key and mask with other values. Raises NotObservable with the reason where it cannot."""
        from attncheck.core.errors import NotObservable

        if self.replay is None:
            raise NotObservable(f"{self.path}: the kernel cannot be run again with other values: {self.replay_refused or 'unknown kernel'}")
        return self.replay(value)

    @property
    def heads(self) -> int:
        return int(self.query.shape[1])

    @property
    def kv_heads(self) -> int:
        return int(self.key.shape[1])


@dataclass
class LayerWeights:
    """The projections of one attention layer, fused layouts already sliced, one row of `out x in` per head.

    query [H, d_head, d_model], key and value [H_kv, d_head, d_model], output [d_model, H, d_head]; None where the layer has none.
    """

    layer: int
    stack: str
    path: str
    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    output: Tensor | None
    heads: int
    kv_heads: int
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a matrix (q, k, v, o) is None."""
    parts: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """Matrix -> part -> tensor of the matrix's shape; the parts add up to it (k -> shared, residual for a low-rank variant)."""
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    """What one request computed and another may use again, e.g. singular values."""

    def matrix(self, which: str) -> Tensor | None:
        return {"q": self.query, "k": self.key, "v": self.value, "o": self.output}[which]


@dataclass
class Feed:
    """What goes into one forward. Padding never counts as a query or a key."""

    arguments: dict[str, Any]
    """Keyword arguments of model.forward, or query, key, value of an operator."""
    valid: Tensor | None = None
    """bool [batch, N], False on padding; None where nothing is padded."""
    labels: Sequence[Sequence[str]] = ()
    """Readable tokens, [batch][N], for failure texts."""
    content_hash: str = ""


class Encoder(Protocol):
    """What an input needs to know of a subject in order to be built for it."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> list[str]: ...

    vocabulary_size: int | None
    bos_token: int | None
    pad_token: int | None
    max_positions: int | None
    image_size: int | None
    """Side in pixels of a square input; None where the subject takes no images."""
    channels: int


@dataclass
class LoadedSubject:
    """A subject ready to run: a model in eval mode, or an operator."""

    definition: SubjectDefinition
    model: nn.Module | None = None
    operator: Callable[..., Any] | None = None
    encoder: Encoder | None = None
    device: str = "cpu"
    dtype: str = "float32"
    notes: list[str] = field(default_factory=list)
    claims: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class SubjectSeries:
    """A subject at several training steps, of which one is in memory at a time."""

    definition: SubjectDefinition
    steps: Sequence[int]
    """Ascending, each once."""
    open: Callable[[int], LoadedSubject]
    """The subject at one of the steps, loaded anew."""
    name_of: Callable[[int], str] = str
    """Where a step lies, for people: its folder or revision."""
    log: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """What the training noted: 'test.loss' -> step -> number, for the steps that have one."""
    log_missing: str = "it keeps no log of its training"
    """Why `log` lacks what is asked for."""
    notes: list[str] = field(default_factory=list)
