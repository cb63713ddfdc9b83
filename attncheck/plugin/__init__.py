"""pytest's hooks and nothing else. Imports pytest and the standard library alone; attncheck itself is imported at the first spec.

A spec file becomes a `pytest.Module` with one synthesised, parametrised function per property, so that marks, `-k`, `--lf`, junit and
xdist work as for Python tests. Measuring and judging happen in the set-up; the function's body only tells the outcome.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from attncheck.core.session import SESSION
from attncheck.plugin.controller import Controller
from attncheck.plugin.state import DIST_ASKED, RECORD, STATE, SUFFIX, State

if TYPE_CHECKING:
    from attncheck.spec.model import Case

PLOTS = ("failed", "all", "none")
DTYPES = ("float64", "float32", "float16", "bfloat16")
DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?|mps")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    group = parser.getgroup("attncheck", "attention specs (*.attn.yaml)")
    group.addoption("--attn-spec", action="store_true", help="collect attention specs; without paths, those of the ini option attn_specs")
    group.addoption("--attn-device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps, where a spec names no device")
    group.addoption("--attn-dtype", metavar="DTYPE", help=f"{', '.join(DTYPES)}, where a spec names no dtype")
    group.addoption("--attn-strict", action="store_true", default=None, help="fail, not skip, where a model, device or package is missing")
    group.addoption("--attn-plots", metavar="WHICH", help="failed (default), all or none: which verdicts get their picture drawn")
    group.addoption("--attn-json", metavar="FILE", help="write every verdict with its numbers, the measurements and the environment")
    group.addoption("--attn-no-cache", action="store_true", default=None, help="measure anew what an earlier run has measured")
    group.addoption("--attn-thorough", action="store_true", default=None, help="search ten times as long where laws are tried")
    group.addoption("--attn-selftest", action="store_true", default=False, help="instead: perturb the subjects; can each property fail?")
    group.addoption("--attn-trust-remote-code", action="store_true", help="allow specs to load models that bring their own code")
    group.addoption("--attn-update-in-ci", action="store_true", default=None, help="let --snapshot-update write baselines where CI is set")
    if pluginmanager.is_blocked("syrupy"):
        # The option is syrupy's; baselines update by it all the same where `-p no:syrupy` took that plugin away.
        group.addoption(
            "--snapshot-update", action="store_true", default=False, dest="update_snapshots", help="record and update baselines of specs"
        )
    parser.addini("attn_specs", "where specs lie, relative to this file (default: specs)", type="paths", default=None)
    parser.addini("attn_collect", "collect the specs that are met even without --attn-spec", type="bool", default=False)
    parser.addini("attn_device", "see --attn-device", default=None)
    parser.addini("attn_dtype", "see --attn-dtype", default=None)
    parser.addini("attn_strict", "see --attn-strict", type="bool", default=False)
    parser.addini("attn_plots", "see --attn-plots", default="failed")
    parser.addini("attn_update_in_ci", "see --attn-update-in-ci", type="bool", default=False)
    parser.addini("attn_thorough", "see --attn-thorough", type="bool", default=False)
    parser.addini("attn_no_cache", "see --attn-no-cache", type="bool", default=False)
    parser.addini("attn_json", "see --attn-json, relative to this file", default=None)


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main(config: pytest.Config) -> Generator[None, Any, Any]:
    # A wrapper, since xdist's own hook turns `-n` into `--dist load` and so hides whether anybody asked for it.
    config.stash[DIST_ASKED] = config.getoption("dist", "no") != "no" or bool(config.getoption("distload", False))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.stash[STATE] = state = State(config)
    state.run_name = getattr(config, "workerinput", {}).get("attn_run") or _run_name()
    if not state.is_worker:
        config.pluginmanager.register(Controller(state), "attncheck-controller")
    _check("--attn-plots", state.setting("plots"), state.setting("plots") in PLOTS, ", ".join(PLOTS))
    dtype, device = state.setting("dtype"), state.setting("device")
    _check("--attn-dtype", dtype, not dtype or dtype in DTYPES, ", ".join(DTYPES))
    _check("--attn-device", device, not device or DEVICES.fullmatch(device), "auto, cpu, cuda, cuda:N, mps")
    _check_update(config, state)
    SESSION.root, SESSION.thorough, SESSION.pictures = config.rootpath, bool(state.setting("thorough")), state.setting("plots") != "none"
    if not config.getoption("attn_spec"):
        return
    if state.is_worker:
        # Workers whose threads outnumber the cores wait for each other: measured up to eight times slower. Read when torch is imported.
        share = max(1, (os.cpu_count() or 1) // int(config.workerinput["workercount"]))  # type: ignore[attr-defined]
        os.environ.setdefault("OMP_NUM_THREADS", str(share))
    # With it a malformed spec keeps no other file from running, and the exit status is 1 with and without xdist.
    config.option.continue_on_collection_errors = True
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return
    asked = "--attn-spec" in config.invocation_params.args  # and not only in addopts or PYTEST_ADDOPTS
    paths = _spec_paths(config, must_exist=asked)
    if asked:
        config.args = [str(path) for path in paths]
    else:
        here = [config.invocation_params.dir / arg for arg in config.args]
        config.args += [str(path) for path in paths if not any(path.is_relative_to(other) for other in here)]
    config.args_source = pytest.Config.ArgsSource.ARGS


def _run_name() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{os.urandom(4).hex()}"


def _check(option: str, found: Any, fits: Any, allowed: str) -> None:
    if not fits:
        raise pytest.UsageError(f"{option}: {found!r} is not known; allowed: {allowed}")


def _check_update(config: pytest.Config, state: State) -> None:
    """A gate that records what it measures lets everything pass: in CI updating needs to be asked for."""
    meets = state.collects or any(SUFFIX in arg for arg in config.args)
    if state.updates and meets and os.environ.get("CI", "").lower() not in ("", "0", "false") and not state.setting("update_in_ci"):
        raise pytest.UsageError(
            "--snapshot-update: CI is set, and baselines that are recorded by the run that they gate let everything pass; "
            "record them elsewhere and commit them, or add --attn-update-in-ci"
        )


def _spec_paths(config: pytest.Config, must_exist: bool) -> list[Path]:
    configured = config.getini("attn_specs")
    paths = [Path(path) for path in configured] if configured else [config.rootpath / "specs"]
    absent = [path for path in paths if not path.exists()]
    if absent and (must_exist or configured):
        hint = "the ini option attn_specs" if configured else "the default of the ini option attn_specs"
        raise pytest.UsageError(f"--attn-spec: {absent[0]} does not exist ({hint}); give a path, or set attn_specs")
    return [path for path in paths if path.exists()]


def pytest_report_header(config: pytest.Config) -> str | None:
    state = config.stash[STATE]
    if not (state.collects or any(SUFFIX in arg for arg in config.args)):
        return None
    from attncheck.engine.results import versions

    shown = ", ".join(f"{name} {version}" for name, version in versions().items())
    return f"attncheck: {shown}, device {state.setting('device') or 'auto'}"


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not file_path.name.endswith(SUFFIX):
        return None
    from attncheck.plugin.spec_file import SpecFile

    state = parent.config.stash[STATE]
    if not (state.collects or parent.session.isinitpath(file_path)):
        state.met.add(str(file_path))
        return None
    made: pytest.Collector = SpecFile.from_parent(parent, path=file_path)
    return made


def pytest_collection_finish(session: pytest.Session) -> None:
    state = session.config.stash[STATE]
    own = (item for item in session.items if item.path.name.endswith(SUFFIX) and isinstance(item, pytest.Function))
    state.cases = [cast(Any, item.callspec.params["attn_case"]) for item in own]


@pytest.fixture
def attn_outcome(request: pytest.FixtureRequest, attn_case: Case) -> Callable[[], object]:
    """Measuring and judging, in the set-up; the synthesised test function calls what this returns."""
    __tracebackhide__ = True
    from attncheck.plugin.outcome import settle

    return settle(request.config.stash[STATE], request.node, attn_case)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report: Any = yield
    told = item.stash.get(RECORD, None)
    if told is not None and (report.when == "call" or (report.when == "setup" and not report.passed)):
        # A plain attribute of builtins: it reaches an xdist controller with the report.
        report.attn = {**told, "outcome": "error" if report.when == "setup" and report.failed else report.outcome}
        if told.get("headline") is None and not report.passed:
            report.attn["headline"] = _reason(report)
        if told.get("picture"):
            from attncheck.plugin.html import attach

            attach(item.config, report, told["picture"])
    return report


def _reason(report: Any) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str((report.longreprtext.splitlines() or [""])[0])


def pytest_sessionfinish(session: pytest.Session) -> None:
    state = session.config.stash[STATE]
    if state.is_worker:
        session.config.workeroutput["attn_met"] = sorted(state.met)  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    state = config.stash.get(STATE, None)
    if state is not None and state.opened is not None:
        state.opened.close()
