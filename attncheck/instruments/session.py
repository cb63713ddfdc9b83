"""One pass: every attention call is reduced to what was asked for, while it is alive, and dropped.

All requests of a pass share the tiles, the packed probe and the kernel check. A request that fails keeps its error and costs the
others nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from attncheck.core.errors import AttncheckError, MeasurementError, NotObservable
from attncheck.core.observable import Value
from attncheck.instruments.context import CallContext
from attncheck.instruments.probes import Probe, Prober, ProbeRequest
from attncheck.instruments.rows import Tile, tiles
from attncheck.instruments.visibility import Visibilities

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.definitions import Request
    from attncheck.core.evidence import AttentionCall
    from attncheck.core.registry import Entry

DISAGREEMENT = {torch.float64: 2e-3, torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Past this difference on +-1 columns the rows are not what ran: rounding reaches 1e-5 in float32 and 2e-2 in bfloat16."""

ROW_EXTRAS = {"attention.future_mass": "future", "attention.outside_window_mass": "outside_window"}


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


class Session:
    """The callback of one observed forward."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        *,
        valid: Tensor | None = None,
        tokens: Tensor | None = None,
        check_kernel: bool = True,
        kernel_rows: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.by_reads: dict[str, list[Wanted]] = {}
        for want in wanted:
            self.by_reads.setdefault(want.reads, []).append(want)
        self.valid, self.tokens, self.dtype = valid, tokens, dtype
        self.kernel_rows = kernel_rows
        """Read the rows off the kernel itself (identity values): for operators whose mathematics is not known."""
        self.faults: dict[str, AttncheckError] = {}
        self.layers: list[LayerResult] = []
        self.visibilities = Visibilities()
        self.prober = Prober(self._probe_request())
        self.check_kernel = check_kernel

    def _probe_request(self) -> ProbeRequest:
        probes = {want.request.name: want for want in self.by_reads.get("probe", ())}
        futures = [want for want in self.by_reads.get("probe", ()) if want.request.name == "attention.future_mass"]
        windows = {want.arguments["window"] for want in self.by_reads.get("probe", ()) if "window" in want.arguments}
        if len(windows) > 1:
            for want in self.by_reads["probe"]:
                if want.arguments.get("window") not in (None, min(windows)):
                    self.faults[want.request.key] = MeasurementError(f"one window a pass; this one also asks for {sorted(windows)}")
        return ProbeRequest(
            future=("all" if any(want.arguments.get("cuts") == "all" for want in futures) else "staggered") if futures else None,
            outside_window=min(windows) if windows else None,
            padding="attention.padding_mass" in probes and self.valid is not None and not bool(self.valid.all()),
        )

    def on_call(self, call: AttentionCall) -> None:
        """Measure one call; hand this to capture."""
        context = CallContext(call, self.visibilities, valid=self.valid, tokens=self.tokens)
        result = LayerResult(call.layer, call.stack, call.path, call.implementation, empty_rows=context.empty_rows)
        self.layers.append(result)
        if self.kernel_rows:
            from attncheck.instruments.context import identity_weights

            context.kernel_weights = identity_weights(call).to(self.dtype)
        probing = call.replay is not None and (self.check_kernel or bool(self.by_reads.get("probe")))
        if probing:
            self.prober.prepare(context)
        walked = self._walk(context, result)
        probe = self._probe(context, result, walked) if probing else None
        self._judge_rows(context, result)
        for want in self.by_reads.get("probe", ()):
            if probe is None:
                self._fault(want, NotObservable(f"{call.path}: the kernel cannot be asked: {call.replay_refused or 'unknown kernel'}"))
                continue
            per_row = self._try(want, want.entry.function, probe, **want.arguments)
            if per_row is not None:
                result.values[want.request.key] = fold(per_row, context.counts, want)
        for want in self.by_reads.get("call", ()):
            value = self._try(want, want.entry.function, context, **want.arguments)
            if value is not None:
                result.values[want.request.key] = value
        self._symbols(context, result, walked)

    def _walk(self, context: CallContext, result: LayerResult) -> dict[str, Tensor]:
        """All tiles once. Returns what the session itself needs per row: row sums, check columns, future and window masses."""
        call = context.call
        rows, columns = list(self.by_reads.get("rows", ())), list(self.by_reads.get("columns", ()))
        extras = [
            (ROW_EXTRAS[w.request.name], w.arguments.get("window")) for w in self.by_reads.get("probe", ()) if w.request.name in ROW_EXTRAS
        ]
        if not (rows or columns or self.check_kernel or self.by_reads.get("probe")):
            return {}
        shape = (context.batch, call.heads, context.queries)
        device = call.query.device
        kept: dict[str, Tensor] = {"row_sum": torch.zeros(shape, dtype=self.dtype, device=device)}
        if context.checks is not None:
            kept["check"] = torch.zeros(*shape, context.checks.shape[-1], dtype=self.dtype, device=device)
        for name, _ in extras:
            kept[name] = torch.zeros(shape, dtype=self.dtype, device=device)
        per_row = {want.request.key: torch.zeros(shape, dtype=self.dtype, device=device) for want in rows}
        per_key = {want.request.key: torch.zeros(*shape[:2], context.keys, dtype=torch.float64, device=device) for want in columns}
        into = {want.request.key: torch.zeros(shape[:2], dtype=torch.float64, device=device) for want in columns}
        for tile in tiles(context, self.dtype):
            place = (tile.batch, tile.head, tile.rows)
            for want in rows:
                if want.request.key not in self.faults:
                    numbers = self._try(want, want.entry.function, tile, **want.arguments)
                    if numbers is not None:
                        per_row[want.request.key][place] = numbers
            for want in columns:
                if want.request.key not in self.faults:
                    numbers = self._try(want, want.entry.function, tile, **want.arguments)
                    if numbers is not None:
                        sums, count = numbers if isinstance(numbers, tuple) else (numbers, tile.counts.sum())
                        per_key[want.request.key][tile.batch, tile.head] += sums
                        into[want.request.key][tile.batch, tile.head] += count
            kept["row_sum"][place] = tile.row_sum
            if context.checks is not None:
                kept["check"][place] = tile.check
            for name, window in extras:
                if name == "future" and context.only_past:
                    continue
                kept[name][place] = tile.beyond(None, 0) if name == "future" else tile.beyond(1 - int(window or 1), None)
        for want in rows:
            if want.request.key not in self.faults:
                result.values[want.request.key] = fold(per_row[want.request.key], context.counts, want)
        for want in columns:
            if want.request.key not in self.faults:
                result.values[want.request.key] = self._columns(per_key[want.request.key], into[want.request.key], context, want)
        return kept

    def _columns(self, sums: Tensor, rows: Tensor, context: CallContext, want: Wanted) -> Value:
        """Sums over rows made means; NaN on padding keys, or as the observable's own `finish` says."""
        means = torch.where(context.key_counts[:, None, :], sums / rows[..., None].clamp(min=1), torch.nan)
        finish = want.entry.about.get("finish")
        if finish is not None:
            finished = self._try(want, finish, means, context, **want.arguments)
            means = means if finished is None else finished
        return Value(means.cpu().numpy(), ("sample", "head", "key"))

    def _probe(self, context: CallContext, result: LayerResult, walked: Mapping[str, Tensor]) -> Probe | None:
        try:
            probe = self.prober.ask(context)
        except AttncheckError as error:
            for want in self.by_reads.get("probe", ()):
                self._fault(want, error)
            return None
        if "check" in walked and not self.kernel_rows:
            probe.error = (walked["check"].float() - probe.checked).abs().amax(-1)
            counted = torch.where(context.counts[:, None, :], probe.error, 0.0)
            result.kernel_error = counted.nan_to_num(nan=float("inf")).amax(-1)
        probe.from_rows = {name: walked[name] for name in ("future", "outside_window") if name in walked}
        return probe

    def _judge_rows(self, context: CallContext, result: LayerResult) -> None:
        """Rows that are not what the kernel applied measure nothing: their requests err, `kernel.error` tells."""
        if result.kernel_error is None:
            return
        limit = DISAGREEMENT.get(context.call.value.dtype, 0.1)
        worst = float(result.kernel_error.max())
        if worst <= limit:
            return
        sample, head = divmod(int(result.kernel_error.argmax()), result.kernel_error.shape[1])
        error = MeasurementError(
            f"the kernel does not apply the attention that its query, key and mask define: at layer {result.layer}, head {head}"
            + (f", sample {sample}" if context.batch > 1 else "")
            + f" ({result.path}, {result.implementation}) the two differ by {worst:.3g} on values of +-1 (rounding stays below {limit:g});"
            " exact rows would describe another attention than the one that ran. See `kernel.error`"
        )
        for reads in ("rows", "columns"):
            for want in self.by_reads.get(reads, ()):
                self._fault(want, error)

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
            "d": Value(call.query.shape[-1]),
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
            self._fault(want, MeasurementError(f"{want.request} raised {type(error).__name__}: {error}"))
        return None

    def _fault(self, want: Wanted, error: AttncheckError) -> None:
        self.faults.setdefault(want.request.key, error)
        for layer in self.layers:
            layer.values.pop(want.request.key, None)


def fold(per_row: Tensor, counts: Tensor, want: Wanted) -> Value:
    """[B, H, N] to one number a head over the queries that count, or kept per query with NaN where none counts."""
    counted = counts[:, None, :].expand_as(per_row)
    how = want.entry.about["over_queries"]
    number = per_row.double()
    if want.per_query:
        kept = number.sqrt() if how == "root_sum" else number
        return Value(torch.where(counted, kept, torch.nan).cpu().numpy(), ("sample", "head", "query"))
    total = counted.sum(-1)
    if how in ("max", "min"):
        sign = 1.0 if how == "max" else -1.0
        folded = torch.where(counted, number * sign, -torch.inf).amax(-1) * sign
        # amax drops no NaN, but a NaN row must not hide behind -inf either.
        folded = torch.where(torch.where(counted, number, 0.0).isnan().any(-1), torch.nan, folded)
    elif how == "mean_where_known":
        known = counted & ~number.isnan()
        folded = torch.where(known, number, 0.0).sum(-1) / known.sum(-1)
    else:
        summed = torch.where(counted, number, 0.0).sum(-1)
        folded = summed / total if how == "mean" else summed.sqrt() if how == "root_sum" else summed
    folded = torch.where(total > 0, folded, torch.nan)
    return Value(folded.cpu().numpy(), ("sample", "head"))


__all__ = ["LayerResult", "Session", "Tile", "Wanted", "fold"]
