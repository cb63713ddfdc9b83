"""What the plugin knows of one pytest session: its options, loaded specs, selected cases and the run that measures them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attncheck.core.verdict import Picture, Verdict
    from attncheck.engine.run import Run
    from attncheck.spec.model import Case, Spec

SUFFIX = ".attn.yaml"


@dataclass
class State:
    """What the plugin knows of one pytest session."""

    config: pytest.Config
    run_name: str = ""
    """Of the folder that all workers share; sorts by time."""
    met: set[str] = field(default_factory=set)
    """Spec files that were met and not collected."""
    cases: list[Case] = field(default_factory=list)
    specs: dict[Path, Spec] = field(default_factory=dict)
    groups: dict[Path, dict[str, str]] = field(default_factory=dict)
    families: dict[str, list[Case]] = field(default_factory=dict)
    """Under the self-test: all cases of a property, by its name and place."""
    explained: dict[str, str] = field(default_factory=dict)
    """Errors that were reported at length -> the test that has them."""
    pictures: dict[tuple[Path, str], dict[str, Picture]] = field(default_factory=dict)
    """Pictures of the cases judged so far, by property: a later one that fails is drawn with them in grey."""
    vocabulary: Any = None
    opened: Run | None = None

    def setting(self, name: str) -> Any:
        """The command line's value, else the ini file's."""
        given = self.config.getoption(f"attn_{name}")
        return self.config.getini(f"attn_{name}") if given is None else given

    @property
    def asked(self) -> str:
        """Options of the command line that decide what is measured, as written after a command; those of an ini file need no word."""
        given = {name: self.config.getoption(f"attn_{name}") for name in ("device", "dtype")}
        words = [f" --attn-{name} {value}" for name, value in given.items() if value]
        flags = [
            f" --attn-{name.replace('_', '-')}"
            for name in ("thorough", "selftest", "trust_remote_code")
            if self.config.getoption(f"attn_{name}")
        ]
        return "".join([*words, *flags])

    @property
    def updates(self) -> str:
        """'all', 'new' or '': what syrupy's own options say of snapshots; there are none where syrupy is not loaded."""
        if self.config.getoption("update_snapshots", False):
            return "all"
        return "new" if self.config.getoption("update_new_snapshots_only", False) else ""

    @property
    def selftest(self) -> bool:
        return bool(self.config.getoption("attn_selftest"))

    def representative(self, cases: list[Case]) -> Case:
        """The one test of a property under the self-test, which stands for all its cases."""
        from dataclasses import replace

        from attncheck.engine.selftest import SELFTEST

        first = next((case for case in cases if not case.must_fail), cases[0])
        self.families[str(first.property.place)] = cases
        return replace(first, id=SELFTEST, part="", marks=first.property.marks)

    def family(self, case: Case) -> list[Case]:
        return self.families[str(case.property.place)]

    @property
    def collects(self) -> bool:
        return bool(self.config.getoption("attn_spec") or self.config.getini("attn_collect"))

    @property
    def runs(self) -> Path:
        return self.config.rootpath / ".attncheck" / "runs"

    @property
    def is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    def group(self, nodeid: str) -> str:
        """What a test measures first, as the key of its pass; of other tests the node id."""
        path = self.config.rootpath / nodeid.split("::")[0]
        if path.name.endswith(SUFFIX) and path not in self.groups:
            from attncheck.core.definitions import PassKey

            cases = self.spec(path).cases
            self.groups[path] = {
                f"{case.property.name}[{'selftest' if self.selftest else case.id}]": PassKey(case.variant, case.input).key
                for case in reversed(cases)
            }
        return self.groups.get(path, {}).get(nodeid.split("::", 1)[-1], nodeid)

    def spec(self, path: Path) -> Spec:
        """A loaded spec, once per file and process."""
        from attncheck.engine.vocabulary import vocabulary
        from attncheck.spec.loader import load

        if path not in self.specs:
            self.vocabulary = self.vocabulary or vocabulary()
            self.specs[path] = load(path, self.vocabulary, root=self.config.rootpath)
        return self.specs[path]

    @property
    def run(self) -> Run:
        """The run of this session: the plan of all selected cases over the run folder that workers share."""
        if self.opened is None:
            from attncheck.engine.plan import plan
            from attncheck.engine.run import Run, RunOptions
            from attncheck.engine.store import run_folder

            options = RunOptions(
                root=self.config.rootpath,
                device=self.setting("device"),
                dtype=self.setting("dtype"),
                trust_remote_code=self.config.getoption("attn_trust_remote_code"),
                progress=_progress(self.config),
                cache=not self.setting("no_cache"),
                thorough=bool(self.setting("thorough")),
            )
            self.opened = Run(run_folder(self.config.rootpath, self.run_name), plan(self._needed()), options)
        return self.opened

    def _needed(self) -> list[Case]:
        """The cases that will be judged."""
        if not self.selftest:
            return self.cases
        from attncheck.engine.selftest import needed

        return [one for case in self.cases for one in needed(self.family(case))]

    def has_namesakes(self, case: Case) -> bool:
        """Whether specs of this name lie in several folders of this session; every worker knows all of them."""
        own = Path(case.property.place.path).name
        return len({other.property.place.path for other in self.cases if Path(other.property.place.path).name == own}) > 1

    def picture(self, case: Case, verdict: Verdict) -> Path | None:
        """Draw the verdict's picture where --attn-plots asks for it; its path from the root directory."""
        which = self.setting("plots")
        context: dict[str, Picture] = {}
        if verdict.picture is not None:
            others = self.pictures.setdefault((Path(case.property.place.path), case.property.name), {})
            context = {name: picture for name, picture in others.items() if name != case.id}
            others[case.id] = verdict.picture
        if verdict.picture is None or which == "none" or (which == "failed" and verdict.passed):
            return None
        try:
            from attncheck.report import picture_path
            from attncheck.report.pictures import draw, with_context

            root = self.config.rootpath.resolve()
            with warnings.catch_warnings(action="ignore"):
                return draw(
                    with_context(verdict.picture, context), picture_path(root, case, namesakes=self.has_namesakes(case))
                ).relative_to(root)
        except Exception as error:  # a picture explains a verdict; lacking one must not change it
            verdict.notes.append(f"the picture could not be drawn: {type(error).__name__}: {error}")
            return None


STATE = pytest.StashKey[State]()
DIST_ASKED = pytest.StashKey[bool]()
RECORD = pytest.StashKey[dict[str, Any]]()


def _progress(config: pytest.Config) -> Callable[[str], None] | None:
    """Writes a line past the capturing, to a terminal that somebody watches."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is None or not terminal.isatty or hasattr(config, "workerinput") or config.get_verbosity() < 0:
        return None
    capture = config.pluginmanager.getplugin("capturemanager")

    def write(message: str) -> None:
        with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
            terminal.ensure_newline()
            terminal.write_line(f"  {message}", light=True)

    return write
