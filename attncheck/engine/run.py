"""A run: measures each pass on first need, hands measurements to the expectations, and turns must-fail cases around."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.definitions import PassKey, Plan, Request
from attncheck.core.errors import MeasurementError
from attncheck.engine.cache import Cache
from attncheck.engine.faults import Fault
from attncheck.engine.plan import Defaults
from attncheck.engine.refine import decided
from attncheck.engine.store import Outcome, Record, Store

if TYPE_CHECKING:
    import xarray as xr

    from attncheck.core.definitions import SubjectDefinition
    from attncheck.core.evidence import LoadedSubject, SubjectSeries
    from attncheck.core.verdict import Verdict
    from attncheck.engine.measure import MeasureOptions
    from attncheck.spec.model import Case

HELD = 8
"""Passes whose measurements stay in memory; per-query scores of one pass can take hundreds of megabytes."""


@dataclass(frozen=True)
class RunOptions:
    """What the command line says about measuring."""

    root: Path
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False
    progress: Callable[[str], None] | None = None
    thorough: bool = False
    """Search longer where a demand searches: laws."""
    cache: bool = False
    """Take from the cache what nothing that determines it has changed, and keep there what is measured."""


class Run:
    """All measurements of one run, in one folder.

    `plan` says what a pass must answer besides the request that comes first; requests outside the plan are measured when asked for.
    """

    def __init__(self, folder: Path, plan: Plan | None = None, options: RunOptions | None = None) -> None:
        self.store = Store(folder)
        self.options = options or RunOptions(Path.cwd())
        self.cache = Cache.opened() if self.options.cache else None
        self._given = plan or Plan()
        self._records: dict[str, Record] = {}
        self._held: OrderedDict[str, dict[str, xr.Dataset]] = OrderedDict()

    @cached_property
    def defaults(self) -> Defaults:
        # A device that is left open is chosen where the subject is loaded: that is what `auto` asks for.
        return Defaults(None if self.options.device == "auto" else self.options.device, self.options.dtype)

    @cached_property
    def planned(self) -> dict[str, list[Request]]:
        """Requests by the content key of a pass, open devices and dtypes filled in; two names of one definition share their pass."""
        found: dict[str, list[Request]] = {}
        for pass_key, requests in self._given.requests.items():
            wanted = found.setdefault(self.defaults.fill(pass_key).key, [])
            wanted += [request for request in requests if request not in wanted]
        return found

    def fetch(self, pass_key: PassKey, request: Request) -> xr.Dataset:
        """The measurement of one request. Raises what measuring raised, anew for each that asks."""
        pass_key = self.defaults.fill(pass_key)
        record = self._records.get(pass_key.key)
        if record is None or record.missing([request]):
            record = self._records[pass_key.key] = self.store.ensure(pass_key, self._wanted(pass_key, request), self._measure)
        fault = record.failure or record.faults.get(request.key)
        if fault is not None:
            raise fault.error()
        return self._values(pass_key, record)[request.key]

    def judge(self, case: Case) -> Verdict:
        """The verdict of a case; of a must-fail case the inverse. An exempt case is not to be judged: the caller skips it."""
        from attncheck.expectations import judge

        read: list[PassKey] = []

        def fetch(pass_key: PassKey, request: Request) -> xr.Dataset:
            read.append(pass_key)
            return self.fetch(pass_key, request)

        def once(case: Case) -> Verdict:
            return judge(case, fetch, self.options.root, load=self._load, thorough=self.options.thorough)

        verdict = decided(case, once)
        if verdict.passed and verdict.checked == 0:
            raise MeasurementError(f"{verdict.claim or case.property.name}: nothing was checked, and nothing passes vacuously")
        if case.must_fail:
            verdict = inverted(case, verdict)
        verdict.case = case_name(case)
        verdict.notes = list(dict.fromkeys([*verdict.notes, *(note for one in read for note in self._notes(one))]))
        return verdict

    def keys(self, case: Case) -> list[str]:
        """The stored passes that a case reads, its own and its counterpart's, by content key."""
        from attncheck.expectations import requirements

        return list(dict.fromkeys(self.defaults.fill(pass_key).key for pass_key, _ in requirements(case)))

    def close(self) -> None:
        self.store.close()
        if self.cache is not None:
            self.cache.close()

    def _wanted(self, pass_key: PassKey, request: Request) -> list[Request]:
        planned = self.planned.get(pass_key.key, [])
        return planned if request in planned else [*planned, request]

    def _notes(self, pass_key: PassKey) -> list[str]:
        record = self._records.get(self.defaults.fill(pass_key).key)
        return record.notes if record else []

    def _measure(self, pass_key: PassKey, requests: list[Request]) -> Outcome:
        """What the cache has, and the rest measured."""
        if self.cache is None or pass_key.subject.perturbed:
            return self._measured(pass_key, requests)
        added = {"device": self.options.device, "dtype": self.options.dtype, "trust_remote_code": self.options.trust_remote_code}
        keys = self.cache.keys(pass_key, requests, self.options.root, added)
        found = {request.key: kept for request in requests if request.key in keys and (kept := self.cache.get(keys[request.key]))}
        values, notes = {key: data for key, (data, _) in found.items()}, [note for _, said in found.values() for note in said]
        missing = [request for request in requests if request.key not in found]
        if not missing:
            return Outcome(values, {}, list(dict.fromkeys(notes)), cached=len(found))
        measured = self._measured(pass_key, missing)
        for key, data in measured.values.items():
            if key in keys:
                self.cache.put(keys[key], data, measured.notes)
        return Outcome({**values, **measured.values}, measured.faults, list(dict.fromkeys([*notes, *measured.notes])), cached=len(found))

    def _load(self, definition: SubjectDefinition) -> LoadedSubject | SubjectSeries:
        from attncheck.core.evidence import SubjectSeries
        from attncheck.engine.measure import loaded

        definition = self.defaults.fill(PassKey(definition)).subject
        found = loaded(definition.changed(perturbed=""), self._measuring)
        if not definition.perturbed:
            return found
        from attncheck.laws.perturbed import perturbed

        return perturbed(found.open(found.steps[-1]) if isinstance(found, SubjectSeries) else found, definition.perturbed)

    @property
    def _measuring(self) -> MeasureOptions:
        from attncheck.engine.measure import MeasureOptions

        options = self.options
        return MeasureOptions(
            root=options.root,
            trust_remote_code=options.trust_remote_code,
            device=self.defaults.device,
            dtype=options.dtype,
            progress=options.progress,
        )

    def _measured(self, pass_key: PassKey, requests: list[Request]) -> Outcome:
        from attncheck.engine.measure import measure

        options = self.options
        if options.progress is not None:
            options.progress(f"measuring {pass_key}: {len(requests)} quantit{'y' if len(requests) == 1 else 'ies'}")
        measured = measure(pass_key, requests, options=self._measuring)
        return Outcome(measured.values, {key: Fault.of(fault) for key, fault in measured.faults.items()}, measured.notes)

    def _values(self, pass_key: PassKey, record: Record) -> dict[str, xr.Dataset]:
        key = pass_key.key
        held = self._held.get(key)
        if held is None or any(answered not in held for answered in record.answered):
            held = self.store.values(pass_key)
            self._held[key] = held
        self._held.move_to_end(key)
        while len(self._held) > HELD:
            self._held.popitem(last=False)
        return held


def inverted(case: Case, verdict: Verdict) -> Verdict:
    """The verdict of the negative control: it passes when the property fails on that subject."""
    name = case.variant.name
    if not verdict.passed:
        return replace(verdict, passed=True, headline=f"fails on {name}, as it must: {verdict.headline}")
    headline = f"the property holds on {name} too, so it says nothing: {verdict.headline}"
    return replace(verdict, passed=False, headline=headline, summary=verdict.summary or verdict.headline)


def case_name(case: Case) -> str:
    """'specs/x.attn.yaml::property[subject/input]', which pytest takes as an argument."""
    return f"{case.property.place.path}::{case.property.name}[{case.id}]"
