"""From a verdict, or from what kept us from one, to pytest's outcomes: failed, error, skipped, a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from attncheck.core.baseline import NotComparable, write
from attncheck.core.errors import AttentionWarning, AttncheckError, DoesNotApply, MeasurementError, Unavailable, printable
from attncheck.engine.results import record
from attncheck.plugin.spec_file import located
from attncheck.plugin.state import RECORD
from attncheck.report import error_text, failure_text, must_fail_text, skip_text, warning_text

if TYPE_CHECKING:
    from attncheck.core.verdict import Verdict
    from attncheck.plugin.state import State
    from attncheck.spec.model import Case


def settle(state: State, item: pytest.Item, case: Case) -> Callable[[], object]:
    """Measure what the case needs and judge it; returns what the test function has to do. What cannot be measured is a set-up error."""
    __tracebackhide__ = True
    item.stash[RECORD] = record(case, None)
    if case.exemption is not None and not state.selftest:
        return partial(_skip, printable(skip_text(case)))
    try:
        verdict, done = _judged(state, case)
    except Unavailable as error:
        return partial(_missing, state, case, error)
    except DoesNotApply as reason:
        return partial(_skip, printable(str(reason)))
    except AttncheckError as error:
        fail = partial(pytest.fail, printable(_error_text(state, case, error, item.nodeid)), pytrace=False)
    else:
        picture = state.picture(case, verdict)
        item.stash[RECORD] = told = record(case, verdict, picture=picture, passes=state.run.keys(case))
        if done:
            told["baseline"] = done
        item.user_properties.extend((f"attn.{name}", value) for name, value in told["numbers"].items())
        return partial(_tell, case, verdict, item.nodeid, state.asked, picture)
    # Raised from a frame at the property's line, so that an error's location is the spec and not this file.
    raising: Callable[..., NoReturn] = located(lambda fail: fail(), item.path, case.property.place.line, case.property.name)
    raising(fail)


def _judged(state: State, case: Case) -> tuple[Verdict, str]:
    """The verdict, and with `--snapshot-update` what became of the baseline: recorded, updated, unchanged.

    What was written is read again and judged, so that an update that did not take is no pass.
    """
    if state.selftest:
        from attncheck.engine.selftest import selftest

        return selftest(state.run, state.family(case)), ""
    try:
        verdict = state.run.judge(case)
        proposal = verdict.proposal
    except NotComparable as error:
        if state.updates != "all":
            raise
        proposal = error.proposal
    if proposal is None or not state.updates:
        return verdict, ""
    if proposal.state == "unchanged" or (state.updates == "new" and proposal.state != "missing"):
        return verdict, "unchanged" if proposal.state == "unchanged" else ""
    try:
        done = write(state.config.rootpath, proposal)
    except OSError as error:
        raise MeasurementError(f"the baseline {proposal.identity.path} cannot be written: {error.strerror or error}") from error
    return state.run.judge(case), done


def _error_text(state: State, case: Case, error: AttncheckError, nodeid: str) -> str:
    """The full text, a foreign traceback with it, the first time; a pass that failed costs each further property two lines."""
    detail = "\n".join(getattr(error, "__notes__", ()))
    first = state.explained.setdefault(f"{error}\n{detail}", nodeid)
    if first != nodeid:
        place = case.property.place
        return f"{str(error).splitlines()[0]}\n{place.path}:{place.line}: {case.property.name}[{case.id}]\n\n  in full at {first}"
    text = error_text(case, error, nodeid=nodeid, options=state.asked)
    return text if detail in text else f"{text.rstrip()}\n\n{detail}"


def _skip(reason: str) -> NoReturn:
    __tracebackhide__ = True
    pytest.skip(reason)


def _missing(state: State, case: Case, error: Unavailable) -> NoReturn:
    __tracebackhide__ = True
    if state.setting("strict") and not case.subject.optional:
        pytest.fail(
            f"not available: {error}\n  --attn-strict is set, and subject {case.subject.definition.name} is not optional", pytrace=False
        )
    pytest.skip(printable(skip_text(case, error)))


def _tell(case: Case, verdict: Verdict, nodeid: str, options: str, picture: Path | None) -> None:
    __tracebackhide__ = True
    if verdict.passed:
        return
    if case.property.level == "warn":
        message = AttentionWarning(printable(warning_text(case, verdict)))
        try:
            warnings.warn_explicit(message, None, case.property.place.path, case.property.place.line)
            return
        except AttentionWarning:
            pass  # -W error makes it fail, with the text of a failure
    text = (must_fail_text if case.must_fail else failure_text)(case, verdict, nodeid=nodeid, options=options, picture_path=picture)
    # The first line is the verdict's own in every case: the summary, the JSON file and attncheck.check() say the same.
    pytest.fail(printable("\n".join([verdict.headline, *text.splitlines()[1:]])), pytrace=False)
