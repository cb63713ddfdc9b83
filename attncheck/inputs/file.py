"""`file:` a text file of the project."""

from __future__ import annotations

from pathlib import Path

from attncheck.core.evidence import Feed
from attncheck.inputs.building import Building
from attncheck.inputs.kinds import input_kind
from attncheck.inputs.sequences import Tokenizer, stream_feed


@input_kind("file", files=lambda arguments, root: [root / arguments["path"]])
def file(building: Building, *, path: str, tokenizer: Tokenizer = "subject") -> Feed:
    """Excerpts of a UTF-8 text file; a relative path starts at the project root.

    Row b of a batch starts where row b - 1 ended. Without `length` the first 512 tokens, or as many as the subject holds.
    """
    return stream_feed(building, read(building, path), tokenizer)


def found(building: Building, path: str) -> Path:
    """The file behind a path. Raises MeasurementError where a relative one leaves the project root or there is no file."""
    place = Path(path)
    full = place if place.is_absolute() else building.root / place
    if not place.is_absolute() and not full.resolve().is_relative_to(building.root.resolve()):
        raise building.error(f"{path} leaves the project root {building.root}; allowed: a path inside it, or an absolute one")
    if full.is_dir():
        raise building.error(f"{path} is a folder; allowed: a file")
    if not full.is_file():
        raise building.error(f"there is no file {path} (looked in {full.parent})")
    return full


def read(building: Building, path: str) -> str:
    """The file's text, line ends as \\n. Raises MeasurementError where it is not UTF-8."""
    try:
        return found(building, path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise building.error(f"{path} is not UTF-8 text: byte {error.start} is 0x{error.object[error.start]:02x}") from None
