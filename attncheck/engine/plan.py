"""The plan: which requests each forward pass must answer, for all selected tests together. Free of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attncheck.core.definitions import PassKey, Plan
from attncheck.core.errors import AttncheckError

if TYPE_CHECKING:
    from attncheck.spec.model import Case


@dataclass(frozen=True)
class Defaults:
    """What the command line says where a spec leaves it open; never overrides a spec."""

    device: str | None = None
    dtype: str | None = None

    def fill(self, pass_key: PassKey) -> PassKey:
        """The pass as it runs: a stored measurement's key holds the device and dtype that were used."""
        subject = pass_key.subject
        changes = {}
        if subject.device is None and self.device is not None:
            changes["device"] = self.device
        if subject.dtype is None and self.dtype is not None:
            changes["dtype"] = self.dtype
        return PassKey(subject.changed(**changes), pass_key.input) if changes else pass_key


def plan(cases: Iterable[Case]) -> Plan:
    """The union of what the cases need, one list of requests per pass, in the order of the cases; a repetition by seed is a pass.

    An exempt case needs nothing. A case whose requirements cannot even be listed is left out here: judging it raises the
    same error, at the test that it belongs to.
    """
    from attncheck.expectations import requirements

    made = Plan()
    for case in cases:
        if case.exemption is None:
            with contextlib.suppress(AttncheckError):
                for pass_key, request in requirements(case):
                    made.add(pass_key, request)
    return made
