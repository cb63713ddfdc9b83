"""A small vocabulary for the language's tests: what the drafts name, without the parts that measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from attncheck.core.errors import SpecError
from attncheck.core.fields import AxesArgument, BoundArgument, NameOrPathArgument, Part, PathArgument, RequestArgument, Share, Span
from attncheck.core.registry import Entry
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.loader import load
from attncheck.spec.model import Spec

SYMBOLS = {
    "N": "queries",
    "M": "keys",
    "d": "key width",
    "d_v": "value width",
    "H": "heads",
    "H_kv": "key heads",
    "L": "layers",
    "uniform_norm": "the floor",
    "ceiling_norm": "the ceiling",
}


class MassKept(BoundArgument):
    top: Share


class ShareWithin(BoundArgument):
    decades: float


def norm(*, matrix: Literal["q", "k", "v", "o"], part: Literal["all", "shared", "residual"] = "all") -> None:
    """Frobenius norm of a projection."""


def alpha(*, matrix: Literal["q", "k", "v", "o"], fit: Part = "all", minus_null: bool = False) -> None:
    """Slope of the log spectrum."""


def part_cosine(*, matrix: Literal["q", "k", "v", "o"]) -> None:
    """Cosine between both parts of a projection."""


def observed_scores(*, queries: Span = "0..", keys: Span = "0..", normalise: bool = False) -> None:
    """Mean attention that a key receives."""


def expected_scores(*, statistics: Span, future: Span, keys: Span = "0..") -> None:
    """Attention that a Gaussian model of the queries expects."""


def plain() -> None:
    """A quantity without arguments."""


def tracks(
    *,
    observable: RequestArgument,
    scale: Literal["linear", "log-log"] = "linear",
    pearson: BoundArgument | None = None,
    slope: BoundArgument | None = None,
    mass_kept: MassKept | None = None,
    share_within: ShareWithin | None = None,
) -> None:
    """The observable follows a second one."""


def agrees_with(*, other: AxesArgument) -> None:
    """Two runs of the same subject agree."""


def baseline(*, rtol: float | None = None) -> None:
    """The stored values."""


def laws(*, only: list[str] | None = None) -> None:
    """The laws that follow from the subject's claims."""


def pretrained(*, name: NameOrPathArgument, revision: str | None = None) -> None:
    """A model with trained weights."""


def config(*, model_type: str, **fields: Any) -> None:
    """A model built from a configuration."""


def train(
    *,
    recipe: str,
    layers: int = 2,
    tokens: int | None = None,
    epochs: int | None = None,
    record: str = "log",
    width: int | None = None,
    heads: int = 4,
    steps: int | None = None,
    optimiser: str = "adamw",
    attention: str | dict[str, Any] = "softmax",
) -> None:
    """A small model trained here."""


def operator(*, name: str, arguments: dict[str, Any] | None = None) -> None:
    """An attention operator alone."""


def corpus(*, name: Literal["python-manual", "shakespeare"], tokenizer: str = "subject") -> None:
    """A fixed excerpt."""


def text(*, text: str | list[str]) -> None:
    """Literal text."""


def file(*, path: PathArgument) -> None:
    """A file's text."""


def images(*, name: str, split: str = "train") -> None:
    """Images."""


def qkv(*, distribution: str, queries: int, heads: int, head_dim: int, seed: int = 0) -> None:
    """Queries, keys and values."""


def entries(*functions: Callable[..., Any], about: Mapping[str, dict[str, Any]] | None = None) -> dict[str, Entry]:
    return {function.__name__: Entry(function.__name__, function, (about or {}).get(function.__name__, {})) for function in functions}


def observed(name: str, function: Callable[..., Any], reads: str, *dims: str, **about: Any) -> tuple[str, Entry]:
    return name, Entry(name, function, {"reads": reads, "dims": dims, **about})


FULL = ("sample", "layer", "head")
PER = {"extra_parameters": {"per": (Literal["head", "query"], "head")}}


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    return Vocabulary(
        observables=dict(
            [
                observed("attention.frobenius_norm", plain, "rows", *FULL),
                observed("attention.entropy", plain, "rows", *FULL, **PER),
                observed("attention.observed_scores", observed_scores, "columns", *FULL, "key"),
                observed("attention.expected_scores", expected_scores, "call", *FULL, "key"),
                observed("keys.frobenius_norm", plain, "call", *FULL),
                observed("weights.norm", norm, "weights", "layer", "head"),
                observed("weights.alpha", alpha, "weights", "layer"),
                observed("weights.part_cosine", part_cosine, "weights", "layer", "head"),
                observed("heads.effective_rank", plain, "weights", "layer"),
                observed("training.loss", plain, "log"),
            ]
        ),
        expectations=entries(tracks, agrees_with, baseline, laws, about={"laws": {"observes": False}, "tracks": {"consumes": ("key",)}}),
        subject_kinds=entries(
            pretrained,
            config,
            train,
            operator,
            about={"pretrained": {"steps": False}, "operator": {"steps": False}, "config": {"steps": False}},
        ),
        input_kinds=entries(corpus, text, file, images, qkv),
        symbols=SYMBOLS,
    )


Load = Callable[[str], Spec]


@pytest.fixture
def loaded(tmp_path: Path, vocabulary: Vocabulary) -> Load:
    """Text -> Spec."""

    def make(text: str) -> Spec:
        path = tmp_path / "x.attn.yaml"
        path.write_text(text, encoding="utf-8")
        return load(path, vocabulary, root=tmp_path)

    return make


@pytest.fixture
def refused(loaded: Load) -> Callable[[str], list[str]]:
    """Text that must be refused -> its problems as text."""

    def make(text: str) -> list[str]:
        with pytest.raises(SpecError) as caught:
            loaded(text)
        return [str(problem) for problem in caught.value.problems]

    return make
