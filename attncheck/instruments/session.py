"""One pass: every attention call is reduced to what was asked for, while it is alive, and dropped.

All requests of a pass share the tiles, the packed probe and the kernel check. A request that fails keeps its error and costs the
others nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from attncheck.core.errors import AttncheckError, MeasurementError, NotObservable, raised
from attncheck.core.observable import Value
from attncheck.instruments import agreement, answers
from attncheck.instruments.context import DENSE_LIMIT, CallContext, identity_weights
from attncheck.instruments.folding import fold
from attncheck.instruments.perturbations import perturbed
from attncheck.instruments.probes import Probe, Prober, ProbeRequest, beyond
from attncheck.instruments.rows import tiles
from attncheck.instruments.visibility import Visibilities

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.definitions import Request
    from attncheck.core.evidence import AttentionCall
    from attncheck.core.registry import Entry
    from attncheck.instruments.perturbations import Perturbation
    from attncheck.instruments.rows import Tile


@dataclass
class Wanted:
    """One request with the code that answers it."""

    request: Request
    entry: Entry

    def __post_init__(self) -> None:
        given = self.request.arguments
        self.per_query = given.pop("per", None) == "query" and self.entry.about["over_queries"] is not None
        self.arguments = given

    @property
    def reads(self) -> str:
        return str(self.entry.about["reads"])


@dataclass(frozen=True)
class Fed:
    """One sequence that the model reads."""

    valid: Tensor | None = None
    """bool [B, N]: False on padding; None where nothing is padded."""
    tokens: Tensor | None = None
    """[B, N] ids."""

    @property
    def padded(self) -> bool:
        return self.valid is not None and not bool(self.valid.all())


@dataclass
class LayerResult:
    """What one call gave, by request key, and the symbols of that call."""

    layer: int
    stack: str
    path: str
    implementation: str
    values: dict[str, Value] = field(default_factory=dict)
    symbols: dict[str, Value] = field(default_factory=dict)
    empty_rows: int = 0
    kernel_error: Tensor | None = None
    """[B, H], over the queries that count."""


MOST_LOOKED_AT = 1024
"""Keys up to which a kernel in half precision, which rounding may have made suspicious, is asked for all thresholds."""


class Session:
    """The callback of one observed forward."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        valid: Tensor | None = None,
        tokens: Tensor | None = None,
        decoder: Fed | None = None,
        check_kernel: bool = True,
        kernel_rows: bool = False,
        perturbation: Perturbation | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.by_reads: dict[str, list[Wanted]] = {}
        for want in wanted:
            self.by_reads.setdefault(want.reads, []).append(want)
        self.fed, self.decoder, self.dtype = Fed(valid, tokens), decoder, dtype
        self.kernel_rows = kernel_rows
        """Read the rows off the kernel itself (identity values): for operators whose mathematics is not known."""
        self.perturbation = perturbation
        self.faults: dict[str, AttncheckError] = {}
        self.layers: list[LayerResult] = []
        self.visibilities = Visibilities()
        self.prober = Prober(self._probe_request())
        self.check_kernel = check_kernel
        self.dropped: list[str] = []
        """Calls under dropout."""

    def _probe_request(self) -> ProbeRequest:
        """The columns of all probe observables together."""
        packed = ProbeRequest()
        for want in self.by_reads.get("probe", ()):
            packs = want.entry.about["packs"]
            if packs is not None:
                self._try(want, packed.add, **packs(**want.arguments))
        packed.padding = self.fed.padded
        return packed

    def _context(self, call: AttentionCall) -> CallContext:
        """The call with the sequences that it reads: an encoder's own, a decoder's own, or both across them."""
        queries = keys = self.fed
        if self.decoder is not None and call.stack in ("decoder", "cross"):
            queries, keys = self.decoder, self.decoder if call.stack == "decoder" else self.fed
        elif call.stack == "vision" and self.fed.tokens is not None:
            queries = keys = Fed()
        tokens = queries.tokens if queries is keys else None
        return CallContext(call, self.visibilities, valid=queries.valid, valid_keys=keys.valid, tokens=tokens)

    def notes(self, want: Wanted) -> list[str]:
        """What a reader of a verdict on this should know, once the pass is over."""
        found = []
        if self.dropped and want.reads in ("rows", "columns"):
            more = f" and {len(self.dropped) - 1} more" if self.dropped[1:] else ""
            found.append(f"dropout ran in {self.dropped[0]}{more}: these are the weights before it")
        for what in ("future", "outside_window"):
            apart, neighbours = self.prober.coverage(what)
            if want.request.name == f"attention.{what}_mass" and apart < neighbours:
                found.append(
                    f"attention.{what}_mass: the thresholds told {apart} of {neighbours} neighbouring positions apart; with `cuts: all` "
                    "every head is asked for all of them"
                )
        return found

    def on_call(self, call: AttentionCall) -> None:
        """Measure one call; hand this to capture."""
        context = self._context(call)
        if self.perturbation is not None:
            call = perturbed(self.perturbation, context, kernel_rows=self.kernel_rows)
            context = self._context(call)
        result = LayerResult(call.layer, call.stack, call.path, call.implementation, empty_rows=context.empty_rows)
        self.layers.append(result)
        if call.dropout:
            self.dropped.append(call.path)
        if (self.kernel_rows or call.rows_from_kernel) and context.keys <= DENSE_LIMIT:
            context.kernel_weights = identity_weights(call).to(self.dtype)
        elif call.rows_from_kernel:
            self._no_rows(call, context.keys)
        probing = call.replay is not None and (self.check_kernel or bool(self.by_reads.get("probe")))
        if probing:
            self.prober.prepare(context)
        # Under dropout the kernel applies other weights than the rows, on purpose.
        if (self.check_kernel or probing) and not call.dropout:
            context.combined = agreement.combine(call, context.keys)
        walked = self._walk(context, result)
        probe = self._probe(context, result, walked) if probing else None
        self._compare(context, result, walked, probe)
        for want in self.by_reads.get("probe", ()):
            if probe is None:
                self._fault(want, NotObservable(f"{call.path}: the kernel cannot be asked: {call.replay_refused or 'unknown kernel'}"))
                continue
            found = self._try(want, self._of_probe, want, probe)
            if found is not None:
                result.values[want.request.key] = found if isinstance(found, Value) else fold(found, context.counts, want)
        for want in self.by_reads.get("call", ()):
            value = self._try(want, self._of_call, want, context)
            if value is not None:
                result.values[want.request.key] = value
        self._symbols(context, result, walked)

    def _walk(self, context: CallContext, result: LayerResult) -> dict[str, Tensor]:
        """All tiles once. Returns what the session itself needs per row: row sums, check columns, future and window masses."""
        call = context.call
        rows, columns = list(self.by_reads.get("rows", ())), list(self.by_reads.get("columns", ()))
        # The farthest and nearest key, relative to the query, beyond which a kernel should read nothing.
        extras: dict[str, tuple[int | None, int | None]] = {}
        if self.prober.request.future:
            extras["future"] = (None, 0)
        for window in self.prober.request.windows:
            extras[beyond(window)] = (1 - window, None)
        if not (rows or columns or self.check_kernel or self.by_reads.get("probe")):
            return {}
        shape = (context.batch, call.heads, context.queries)
        device = call.query.device
        kept: dict[str, Tensor] = {"row_sum": torch.zeros(shape, dtype=self.dtype, device=device)}
        if context.checks is not None:
            kept["check"] = torch.zeros(*shape, context.checks.shape[-1], dtype=self.dtype, device=device)
        if context.combined is not None:
            kept["combined"] = torch.zeros(*shape, context.combined.shape[-1], dtype=self.dtype, device=device)
        for name in extras:
            kept[name] = torch.zeros(shape, dtype=self.dtype, device=device)
        per_row = {want.request.key: torch.zeros(shape, dtype=self.dtype, device=device) for want in rows}
        per_key = {want.request.key: torch.zeros(*shape[:2], context.keys, dtype=torch.float64, device=device) for want in columns}
        into = {want.request.key: torch.zeros(shape[:2], dtype=torch.float64, device=device) for want in columns}
        for tile in tiles(context, self.dtype):
            place = (tile.batch, tile.head, tile.rows)
            for want in rows:
                if want.request.key not in self.faults:
                    numbers = self._try(want, self._of_rows, want, tile)
                    if numbers is not None:
                        per_row[want.request.key][place] = numbers
            for want in columns:
                if want.request.key not in self.faults:
                    numbers = self._try(want, self._of_columns, want, tile)
                    if numbers is not None:
                        sums, count = numbers
                        per_key[want.request.key][tile.batch, tile.head] += sums
                        into[want.request.key][tile.batch, tile.head] += tile.counts.sum() if count is None else count
            kept["row_sum"][place] = tile.row_sum
            if context.checks is not None:
                kept["check"][place] = tile.check
            if context.combined is not None:
                kept["combined"][place] = tile.combined
            for name, limits in extras.items():
                if not context.unplaced and (name != "future" or not context.only_past):
                    kept[name][place] = tile.beyond(*limits)
        for want in rows:
            if want.request.key not in self.faults:
                result.values[want.request.key] = fold(per_row[want.request.key], context.counts, want, kept["row_sum"])
        for want in columns:
            if want.request.key not in self.faults:
                result.values[want.request.key] = self._columns(per_key[want.request.key], into[want.request.key], context, want)
        return kept

    def _of_rows(self, want: Wanted, tile: Tile) -> Tensor:
        found = want.entry.function(tile, **want.arguments)
        return answers.tensor(want.entry, found, tuple(tile.counts.shape), "[rows], a number for each row of the tile")

    def _of_columns(self, want: Wanted, tile: Tile) -> tuple[Tensor, Any]:
        return answers.per_key(want.entry, want.entry.function(tile, **want.arguments), tile.keys_total)

    def _of_probe(self, want: Wanted, probe: Probe) -> Tensor | Value:
        found = want.entry.function(probe, **want.arguments)
        if isinstance(found, Value):
            return answers.value(want.entry, found)
        return answers.tensor(want.entry, found, tuple(probe.row_sum.shape), "[batch, heads, queries]")

    def _of_call(self, want: Wanted, context: CallContext) -> Value:
        return answers.value(want.entry, want.entry.function(context, **want.arguments))

    def _columns(self, sums: Tensor, rows: Tensor, context: CallContext, want: Wanted) -> Value:
        """Sums over rows made means. No place on padding keys, nor where the observable's own `finish` left a key out with NaN."""
        means = sums / rows[..., None].clamp(min=1)
        broken = (means.isnan() & context.key_counts[:, None, :]).any(-1, keepdim=True)
        present = context.key_counts[:, None, :].expand_as(means)
        means = torch.where(present, means, torch.nan)
        finish = want.entry.about.get("finish")
        if finish is not None:
            finished = self._try(want, finish, means, context, **want.arguments)
            means = means if finished is None else finished
            present = present & ~means.isnan()
        # What `finish` may have taken for keys left out is a fault where the weights themselves were not numbers.
        means, present = torch.where(broken, torch.nan, means), present | broken
        return Value(means.cpu().numpy(), ("sample", "head", "key"), present=present.cpu().numpy())

    def _probe(self, context: CallContext, result: LayerResult, walked: Mapping[str, Tensor]) -> Probe | None:
        try:
            probe = self.prober.ask(context)
        except AttncheckError as error:
            for want in self.by_reads.get("probe", ()):
                self._fault(want, error)
            return None
        probe.from_rows = {name: walked[name] for name in ("future", *map(beyond, self.prober.request.windows)) if name in walked}
        return probe

    def _compare(self, context: CallContext, result: LayerResult, walked: Mapping[str, Tensor], probe: Probe | None) -> None:
        """Hold kernel and exact rows against each other: on the columns that the kernel was given, and on the call's own values."""
        if context.call.dropout or not walked:
            return
        asked, own = self._apart(context, walked, probe)
        if context.kernel_weights is not None:
            self._blame(context, agreement.nonlinearity(context, asked, own))
        else:
            result.kernel_error = torch.maximum(asked, own).nan_to_num(nan=float("inf")).amax(-1)
            self._blame(context, agreement.disagreement(context, asked, own, result.layer))
        if probe is None:
            return
        probe.error = torch.maximum(asked, own)
        if context.kernel_weights is None:
            # Some kernels give 0 for a row of NaN scores: what the rows could not confirm must not pass for a number.
            probe.void(probe.error.isnan())
        elif any(want.request.name == "kernel.error" for want in self.by_reads.get("probe", ())):
            probe.error = torch.maximum(*self._apart(context, self._by_formula(context), probe))
        self._refine(context, probe, result)
        if probe.combined is not None:
            signed = self.kernel_rows or context.call.rows_from_kernel
            self._uneven(context, agreement.uneven(context, probe.combined, asked.isnan(), result.layer, signed=signed))

    def _apart(self, context: CallContext, walked: Mapping[str, Tensor], probe: Probe | None) -> tuple[Tensor, Tensor]:
        """[B, H, N] each, 0 in rows that do not count: kernel against rows on the +-1 columns, and on the call's own values."""
        call = context.call
        asked = own = torch.zeros(call.query.shape[:3], device=call.query.device)
        counted = context.counts[:, None, :]
        if probe is not None and "check" in walked:
            gap = (walked["check"].float() - probe.checked).abs()
            # No number from the kernel where the rows have one is as wrong as can be; no number from the rows is no check.
            gap = torch.where(gap.isnan() & walked["check"].isfinite(), torch.inf, gap)
            asked = torch.where(counted, gap.amax(-1), asked)
        if "combined" in walked:
            own = torch.where(counted, agreement.own_error(call, walked["combined"]), own)
        return asked, own

    def _refine(self, context: CallContext, probe: Probe, result: LayerResult) -> None:
        """A call whose kernel is off is asked for every threshold: a leak in one head alone may lie between its staggered ones."""
        if result.kernel_error is None or not agreement.suspicious(context.call, result.kernel_error):
            return
        if context.call.value.dtype in (torch.bfloat16, torch.float16) and context.keys > MOST_LOOKED_AT:
            return
        if "staggered" in probe.future:
            probe.future["staggered"] = torch.maximum(probe.future["staggered"], self.prober.every_threshold(context))
        for (window, cuts), shown in list(probe.outside_window.items()):
            if cuts == "staggered":
                probe.outside_window[window, cuts] = torch.maximum(shown, self.prober.every_threshold(context, window))

    def _by_formula(self, context: CallContext) -> dict[str, Tensor]:
        """What the rows say by softmax of the declared arguments, for a kernel whose rows were read off itself."""
        formula = replace(context, kernel_weights=None, fault=None)
        shape = context.call.query.shape[:3]
        made = {
            name: torch.zeros(*shape, part.shape[-1], dtype=self.dtype, device=context.call.query.device)
            for name, part in (("check", context.checks), ("combined", context.combined))
            if part is not None
        }
        for tile in tiles(formula, self.dtype):
            for name, kept in made.items():
                kept[tile.batch, tile.head, tile.rows] = getattr(tile, name)
        return made

    def _uneven(self, context: CallContext, error: MeasurementError | None) -> None:
        """What a kernel says of a few columns is no answer where it treats others differently; `kernel.error` tells."""
        if error is None:
            return
        self._blame(context, context.fault or error)
        for want in self.by_reads.get("probe", ()):
            if want.request.name != "kernel.error":
                self._fault(want, error)

    def _blame(self, context: CallContext, error: AttncheckError | None) -> None:
        """Rows that are not what the kernel applied measure nothing: what reads them errs, and `kernel.error` tells."""
        if error is None:
            return
        context.fault = error
        for reads in ("rows", "columns"):
            for want in self.by_reads.get(reads, ()):
                self._fault(want, error)

    def _no_rows(self, call: AttentionCall, keys: int) -> None:
        """A long input to a kernel whose weights only itself knows."""
        for reads in ("rows", "columns"):
            for want in self.by_reads.get(reads, ()):
                self._fault(
                    want,
                    MeasurementError(
                        f"{call.path}: the weights of {call.implementation} are read off itself, which is done for up to {DENSE_LIMIT} "
                        f"keys; the input has {keys}"
                    ),
                )

    def _symbols(self, context: CallContext, result: LayerResult, walked: Mapping[str, Tensor]) -> None:
        call = context.call
        counts = context.counts
        visible = context.visible.clamp(min=1).double()
        sums = (
            walked["row_sum"].double()
            if "row_sum" in walked
            else torch.ones(context.batch, call.heads, context.queries, dtype=torch.float64)
        )
        squares = torch.where(counts[:, None, :], sums.to(visible.device) ** 2 / visible, 0.0).sum(-1)
        result.symbols = {
            "N": Value(counts.sum(-1).cpu().numpy(), ("sample",)),
            "M": Value(context.key_counts.sum(-1).cpu().numpy(), ("sample",)),
            **({"d": Value(call.query.shape[-1])} if call.query.shape[-1] else {}),
            "d_v": Value(call.value.shape[-1]),
            "H": Value(call.heads),
            "H_kv": Value(call.kv_heads),
            "uniform_norm": Value(squares.sqrt().cpu().numpy(), ("sample", "head")),
            "ceiling_norm": Value(counts.sum(-1).double().sqrt().cpu().numpy(), ("sample",)),
        }

    def _try(self, want: Wanted, function: Any, *arguments: Any, **named: Any) -> Any:
        if want.request.key in self.faults:
            return None
        try:
            return function(*arguments, **named)
        except AttncheckError as error:
            self._fault(want, error)
        except Exception as error:
            self._fault(want, MeasurementError(f"{want.request} raised {raised(error)}"))
        return None

    def _fault(self, want: Wanted, error: AttncheckError) -> None:
        self.faults.setdefault(want.request.key, error)
        for layer in self.layers:
            layer.values.pop(want.request.key, None)


__all__ = ["Fed", "LayerResult", "Session", "Wanted"]
