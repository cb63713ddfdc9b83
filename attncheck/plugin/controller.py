"""The hooks of the process that reports, alone or above xdist's workers: summary line, JSON, the run folder's name, scheduling."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attncheck.plugin.state import DIST_ASKED, SUFFIX, State

if TYPE_CHECKING:
    from attncheck.spec.model import Spec


class Controller:
    """The hooks of the process that reports: alone or above xdist's workers."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.results: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.unwritten = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = getattr(report, "attn", None)
        if told is not None:
            self.results.append({"test": report.nodeid, **told})
        elif report.failed and f"{SUFFIX}::" in report.nodeid:  # the worker died: xdist made this report
            headline = (report.longreprtext.splitlines() or [""])[0]
            self.results.append({"test": report.nodeid, "outcome": "failed", "headline": headline})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid.endswith(SUFFIX):
            self.refused.append({"file": report.nodeid, "message": report.longreprtext})

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        target = self.state.setting("json")
        if target:
            from attncheck.engine.results import write

            given = self.state.config.getoption("attn_json") is not None
            base = self.state.config.invocation_params.dir if given else self.state.config.rootpath
            folder = self.state.runs / self.state.run_name
            try:
                write(base / target, self.results, folder, refused=self.refused, device=self.state.setting("device"))
            except OSError as error:  # the tests ran: their report must not be lost with the file
                self.unwritten = f"--attn-json {target} could not be written: {error.strerror}"
                session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR
        page = os.environ.get("GITHUB_STEP_SUMMARY")
        if page and (self.results or self.refused):
            from attncheck.engine.results import versions
            from attncheck.report.github import summary

            with contextlib.suppress(OSError), open(page, "a", encoding="utf-8") as file:
                file.write(summary(self.results, self.refused, versions()))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if self.unwritten:
            terminalreporter.write_line(self.unwritten, red=True)
        for line, markup in self._baselines():
            terminalreporter.write_line(line, **markup)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            from attncheck.report.github import workflow_commands

            for command in workflow_commands(self.results, self.refused):
                terminalreporter.write_line(command)
        kept, answered = self._kept()
        if kept:
            terminalreporter.write_line(f"{kept} of {answered} quantities are kept from earlier runs; --attn-no-cache measures anew")
        count = len(self.state.met)
        asked_for_paths = self.state.config.args_source is pytest.Config.ArgsSource.ARGS and not all(
            "::" in arg for arg in self.state.config.args
        )
        if count and (asked_for_paths or exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED):
            terminalreporter.write_line(f"{count} spec file{'s were' if count > 1 else ' was'} met; add --attn-spec", yellow=True)

    def _kept(self) -> tuple[int, int]:
        """How many answers of this run came from the cache, and all."""
        records = [json.loads(path.read_text(encoding="utf-8")) for path in (self.state.runs / self.state.run_name).glob("*.json")]
        return sum(record["cached"] for record in records), sum(len(record["answered"]) for record in records)

    def _baselines(self) -> Iterator[tuple[str, dict[str, bool]]]:
        """After an update: what was written, and which baselines of the specs that ran belong to no test any more."""
        done = [told["baseline"] for told in self.results if told.get("baseline")]
        if not done:
            return
        counts = [f"{done.count(what)} {what}" for what in ("recorded", "updated", "unchanged")]
        yield f"baselines: {', '.join(counts)}", {"green": True}
        from attncheck.engine.orphans import orphans

        specs = {str(told["test"]).split("::")[0] for told in self.results}
        found = [one for one in orphans(self.state.config.rootpath, self._loaded) if one.spec in specs]
        if found:
            yield (
                f"{len(found)} of no test any more: {', '.join(map(str, (one.path for one in found)))}; see attncheck baselines",
                {"yellow": True},
            )

    def _loaded(self, path: Path) -> Spec:
        return self.state.spec(path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["attn_run"] = self.state.run_name

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.state.met.update(getattr(node, "workeroutput", {}).get("attn_met", ()))

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Tests of one pass go to one worker, which measures it once and keeps it in memory; other tests go one by one."""
        if config.stash[DIST_ASKED] or not any(_specs_ahead(self.state)):
            return None
        from xdist.scheduler import LoadScopeScheduling

        group = self.state.group

        class PassScheduling(LoadScopeScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                return group(nodeid)

        return PassScheduling(config, log)


def _specs_ahead(state: State) -> Iterator[Path]:
    """Spec files under the session's arguments, as far as they will be collected."""
    for arg in state.config.args:
        path = state.config.invocation_params.dir / arg.split("::")[0]
        if path.name.endswith(SUFFIX):
            yield path
        elif state.collects:
            for folder, names, files in os.walk(path):
                names[:] = sorted(name for name in names if not name.startswith(".") and name not in ("node_modules", "venv", "build"))
                yield from (Path(folder) / name for name in files if name.endswith(SUFFIX))
