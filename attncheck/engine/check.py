"""attncheck.check(): a spec judged without pytest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attncheck.core.errors import AttncheckError, DoesNotApply, Unavailable
from attncheck.core.verdict import Verdict

if TYPE_CHECKING:
    from attncheck.engine.run import Run
    from attncheck.spec.model import Case


def check(
    path: str | Path,
    *,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    root: str | Path | None = None,
) -> list[Verdict]:
    """Judge every case of a spec file; one verdict per case, in the order of the file.

    A case that cannot be measured, or whose model is not here, has a verdict too: `passed` is False, `decided` is
    "not measured" or "not available", and `observed` holds the reason. Cases exempt by `unless` and laws that do not apply have none.

    `device` and `dtype` fill in what the spec leaves open. `root` is what relative paths start from and where `.attncheck/` lies
    (default: the working directory). Raises SpecError for a malformed file.
    """
    from attncheck.engine.plan import plan
    from attncheck.engine.run import Run, RunOptions
    from attncheck.engine.store import new_run
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.spec.loader import load

    base = Path(root) if root is not None else Path.cwd()
    spec = load(Path(path), vocabulary(), root=base)
    cases = [case for case in spec.cases if case.exemption is None]
    run = Run(new_run(base), plan(cases), RunOptions(base, device, dtype, trust_remote_code))
    try:
        return [verdict for case in cases if (verdict := _verdict(run, case)) is not None]
    finally:
        run.close()


def _verdict(run: Run, case: Case) -> Verdict | None:
    from attncheck.engine.run import case_name

    try:
        return run.judge(case)
    except DoesNotApply:
        return None
    except AttncheckError as error:
        decided = "not available" if isinstance(error, Unavailable) else "not measured"
        lines = [*str(error).splitlines(), *getattr(error, "__notes__", ())]
        return Verdict(False, lines[0], case.property.name, observed=lines, decided=decided, case=case_name(case))
