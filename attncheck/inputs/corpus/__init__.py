"""`corpus: NAME`: excerpts shipped with the package, checked against their hash each time they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from attncheck.core.errors import MeasurementError, nearest
from attncheck.core.evidence import Feed
from attncheck.core.registry import Complaint
from attncheck.inputs.building import Building
from attncheck.inputs.kinds import input_kind
from attncheck.inputs.sequences import Tokenizer, records_feed, stream_feed


@dataclass(frozen=True)
class Excerpt:
    """One shipped file. `NOTICE.txt` beside it says where it comes from and under which licence."""

    file: str
    sha256: str
    about: str
    records: bool = False
    """Each line stands for itself: a row of a batch is a line, not a window of the whole."""


CORPORA: dict[str, Excerpt] = {
    "python-manual": Excerpt(
        "python-manual.txt", "88661fb6be456b3844331a79559ba7f327968da63052011c4a6497ad0a4171ad", "64 KB of the Python language reference"
    ),
    "reactions": Excerpt(
        "reactions.txt", "2eaa116251192aeed6daefc31dcaa81a18dded9389a7aa0c2de824114720e5fa", "40 textbook reactions as SMILES", records=True
    ),
    "genera": Excerpt(
        "genera.txt", "9cf268b607e2444c238bc334350ecb3d91b0ada73747927cd99da26da48e3fc0", "8 communities of microbes by genus", records=True
    ),
}

PHOTOS: dict[str, Excerpt] = {
    "flower": Excerpt("flower.jpg", "ea698a4cd5f69d21064a38a2160c07a74d8a4e386b879d7cfbf6c924b4e59abb", "a flower, 427 x 427 pixels"),
}


def unknown_corpus(arguments: Mapping[str, Any]) -> Iterator[Complaint]:
    name = arguments["name"]
    if name not in CORPORA:
        yield Complaint("name", f"unknown corpus {name!r}", tuple(CORPORA), name)


@input_kind("corpus", check=unknown_corpus)
def corpus(building: Building, *, name: str, tokenizer: Tokenizer = "subject") -> Feed:
    """A fixed text that is shipped with attncheck, so that every machine feeds the same.

    python-manual: 64 KB of the Python reference manual; row b of a batch starts where row b - 1 ended. reactions: reaction SMILES,
    genera: microbial communities, the most abundant genus first; here row b is the b-th line, with `length` the b-th that is long enough.
    Without `length` the manual gives 512 tokens, or as many as the subject holds, and a line its whole.
    """
    if name not in CORPORA:
        hint = nearest(name, CORPORA)
        raise building.error(
            f"unknown corpus {name!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {', '.join(CORPORA)}"
        )
    text = read(CORPORA[name]).decode()
    if CORPORA[name].records:
        return records_feed(building, text.splitlines(), tokenizer)
    return stream_feed(building, text, tokenizer)


def lines(name: str) -> list[str]:
    """The lines of a corpus by name."""
    return read(CORPORA[name]).decode().splitlines()


def photo(name: str) -> bytes:
    """A shipped photograph, as the JPEG file it is."""
    return read(PHOTOS[name])


@cache
def read(excerpt: Excerpt) -> bytes:
    """The excerpt's bytes. Raises MeasurementError where they are not those that were shipped."""
    content = resources.files(__name__).joinpath(excerpt.file).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != excerpt.sha256:
        raise MeasurementError(
            f"{excerpt.file} of the shipped corpus was altered: its SHA-256 starts {found[:16]}, not {excerpt.sha256[:16]}; "
            "reinstall attncheck"
        )
    return content
