"""`text:` one or several literal texts."""

from __future__ import annotations

from attncheck.core.evidence import Feed
from attncheck.inputs.building import Building
from attncheck.inputs.kinds import input_kind
from attncheck.inputs.sequences import Tokenizer, encoded, records_feed, rows_feed, stream_feed


@input_kind("text", files=lambda arguments, root: [])
def text(building: Building, *, text: str | list[str], tokenizer: Tokenizer = "subject") -> Feed:
    """Literal text, with the special tokens that the subject was trained with.

    One text is one row, or with `batch` and `length` that many excerpts of it. Of a list each text is a row, padded to the longest
    (right, unless `padding` says left). `tokenizer: bytes` makes UTF-8 bytes the ids, for subjects without a tokenizer. `length` counts
    special tokens and pads; a text that is longer is cut, one that is shorter is an error.
    """
    if isinstance(text, list):
        if not text:
            raise building.error("the list of texts is empty")
        if building.definition.batch not in (None, len(text)):
            raise building.error(f"batch {building.definition.batch}, but {len(text)} texts are given")
        return records_feed(_of(building, len(text)), text, tokenizer)
    if building.definition.length is not None:
        return stream_feed(building, text, tokenizer)
    if building.batch > 1:
        raise building.error(f"batch {building.batch} of one text needs a length, or a list of {building.batch} texts")
    ids, prefix, suffix = encoded(building, text, tokenizer)
    side, pads = building.pads()
    row = [*prefix, *ids, *suffix]
    return rows_feed(building, [row], total=len(row) + pads[0], side=side, tokenizer=tokenizer)


def _of(building: Building, batch: int) -> Building:
    from dataclasses import replace

    return replace(building, definition=replace(building.definition, batch=batch))
