"""Rows of token ids -> the feed of a model: special tokens, excerpts for the batch, padding, masks, positions, labels, checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from attncheck.core.errors import MeasurementError
from attncheck.core.evidence import Encoder, Feed
from attncheck.inputs.building import Building
from attncheck.inputs.hashing import content_hash

Tokenizer = Literal["subject", "bytes"]
DEFAULT_LENGTH = 512
"""Tokens taken of a long text where the input names no length (fewer where the model holds fewer)."""


def require_tokens(building: Building) -> Encoder:
    """The encoder of a subject that reads token ids. Raises MeasurementError where it reads none."""
    encoder = building.encoder
    if encoder is None:
        raise building.error(f"{building.definition.kind} makes token ids, and the subject is an operator; feed it qkv: ...")
    takes = building.forward_parameters
    if takes and "input_ids" not in takes and ("pixel_values" in takes or encoder.image_size is not None):
        raise building.error(f"{building.definition.kind} makes token ids, and the subject reads images; feed it images: ...")
    if takes & {"input_features", "input_values"} and "input_ids" not in takes:
        raise building.error(f"{building.definition.kind} makes token ids, and the subject reads sound")
    return encoder


def encoded(building: Building, text: str, tokenizer: Tokenizer) -> tuple[list[int], tuple[int, ...], tuple[int, ...]]:
    """Ids of a text without special tokens, and the special tokens that go before and after. Raises MeasurementError."""
    encoder = require_tokens(building)
    if not text.strip():
        raise building.error("the text is empty")
    if tokenizer == "bytes":
        size = encoder.vocabulary_size
        if size is not None and size < 256:
            raise building.error(f"tokenizer: bytes needs a vocabulary of 256, and the subject's has {size}")
        return list(text.encode()), (), ()
    prefix, suffix = tuple(building.extra("prefix", ())), tuple(building.extra("suffix", ()))
    plain = building.extra("encode_plain", None)
    try:
        ids = list(plain(text)) if plain is not None else list(encoder.encode(text))
    except MeasurementError as error:
        raise building.error(str(error)) from None
    if plain is None and (prefix or suffix):
        ids = ids[len(prefix) : len(ids) - len(suffix)]
    if not ids:
        raise building.error(f"the subject's tokenizer makes no tokens of {text[:40]!r}")
    return ids, prefix, suffix


def stream_feed(building: Building, text: str, tokenizer: Tokenizer) -> Feed:
    """Excerpts of one long text: row b starts where row b - 1 ended, or overlaps it evenly where the text is too short for that."""
    ids, prefix, suffix = encoded(building, text, tokenizer)
    around = len(prefix) + len(suffix)
    side, pads = building.pads()
    total = building.definition.length
    if total is None:
        limit = building.encoder.max_positions if building.encoder else None
        total = min(DEFAULT_LENGTH, limit or DEFAULT_LENGTH, len(ids) // building.batch + around + pads[-1])
    return rows_feed(building, excerpts(building, ids, total, prefix, suffix), total=total, side=side, tokenizer=tokenizer)


def excerpts(building: Building, ids: Sequence[int], total: int, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> list[list[int]]:
    """Row b: prefix, total - pads_b - special ids from its own start, suffix. Raises MeasurementError where the text is too short."""
    around = len(prefix) + len(suffix)
    _, pads = building.pads()
    check_positions(building, total)
    needed = [total - pad - around for pad in pads]
    if min(needed) < 1:
        raise building.error(f"length {total} has no room for a token beside {around} special token(s) and {max(pads)} pad(s)")
    spare, gaps = len(ids) - max(needed), building.batch - 1
    if spare < gaps:
        also = f" and {gaps} more to start the {building.batch} rows at different places" if gaps else ""
        raise building.error(f"the text is too short: it has {len(ids)} tokens, and length {total} needs {max(needed)}{also}")
    stride = min(max(needed), spare // gaps) if gaps else 0
    return [[*prefix, *ids[row * stride : row * stride + count], *suffix] for row, count in enumerate(needed)]


def records_feed(building: Building, records: Sequence[str], tokenizer: Tokenizer) -> Feed:
    """Texts that stand for themselves, one a row. With a length, row b is the b-th record that is long enough, cut to it."""
    side, pads = building.pads()
    total = building.definition.length
    if total is None:
        if building.batch > len(records):
            raise building.error(f"batch {building.batch}, but there are {len(records)} texts")
        rows = []
        for text in records[: building.batch]:
            ids, prefix, suffix = encoded(building, text, tokenizer)
            rows.append([*prefix, *ids, *suffix])
        return rows_feed(
            building, rows, total=max(len(row) + pad for row, pad in zip(rows, pads, strict=True)), side=side, tokenizer=tokenizer
        )
    check_positions(building, total)
    rows, lengths = [], []
    for text in records:
        ids, prefix, suffix = encoded(building, text, tokenizer)
        needed = total - pads[len(rows)] - len(prefix) - len(suffix)
        lengths.append(len(ids))
        if needed < 1:
            raise building.error(f"length {total} has no room for a token beside special tokens and {pads[-1]} pad(s)")
        if len(ids) >= needed:
            rows.append([*prefix, *ids[:needed], *suffix])
        if len(rows) == building.batch:
            return rows_feed(building, rows, total=total, side=side, tokenizer=tokenizer)
    raise building.error(
        f"{len(rows)} of {building.batch} rows of length {total} found: "
        f"the {len(records)} texts have {min(lengths)} to {max(lengths)} tokens"
    )


def rows_feed(building: Building, rows: Sequence[Sequence[int]], *, total: int, side: str, tokenizer: Tokenizer = "subject") -> Feed:
    """The feed of rows of ids, each padded to `total` on `side`; `tokenizer` is the one that made them, and reads them back."""
    import numpy as np

    encoder, takes = require_tokens(building), building.forward_parameters
    check_positions(building, total)
    check_vocabulary(building, rows)
    pad = encoder.pad_token
    pad = pad if pad is not None and pad >= 0 and (encoder.vocabulary_size is None or pad < encoder.vocabulary_size) else 0
    ids = np.full((len(rows), total), pad, dtype=np.int64)
    mask = np.zeros((len(rows), total), dtype=np.int64)
    for number, row in enumerate(rows):
        where = slice(total - len(row), None) if side == "left" else slice(0, len(row))
        ids[number, where], mask[number, where] = row, 1
    padded = bool((mask == 0).any())
    main = _main_argument(building)
    arrays: dict[str, Any] = {main: ids}
    if padded:
        if takes and "attention_mask" not in takes:
            raise building.error("the rows need padding, and the subject's forward takes no attention_mask")
        arrays["attention_mask"] = mask
        if side == "left" and building.extra("causal", False) and "position_ids" in takes:
            arrays["position_ids"] = np.maximum(mask.cumsum(1) - 1, 0)
    start = building.extra("decoder_start", None)
    if start is not None and "decoder_input_ids" in takes:
        arrays["decoder_input_ids"] = np.concatenate([np.full((len(rows), 1), start, dtype=np.int64), ids[:, :-1]], 1)
    arguments: dict[str, Any] = {name: building.tensor(array) for name, array in arrays.items()}
    if "use_cache" in takes:
        arguments["use_cache"] = False  # a single forward: a cache would only hold memory
    return Feed(
        arguments=arguments,
        valid=building.tensor(mask.astype(bool)) if padded else None,
        labels=_labels(_bytes_shown if tokenizer == "bytes" else encoder.decode, ids, mask),
        content_hash=content_hash(arrays),
    )


def check_positions(building: Building, total: int) -> None:
    """Raise MeasurementError where the model holds fewer positions than the input has."""
    limit = building.encoder.max_positions if building.encoder else None
    if limit is not None and total > limit:
        raise building.error(f"length {total} is more than the {limit} positions of the subject")


def check_vocabulary(building: Building, rows: Sequence[Sequence[int]]) -> None:
    """Raise MeasurementError naming the first id that the vocabulary does not have."""
    size = building.encoder.vocabulary_size if building.encoder else None
    for number, row in enumerate(rows):
        if not row:
            raise building.error(f"row {number} has no tokens")
        for position, token in enumerate(row):
            if token < 0 or (size is not None and token >= size):
                upper = f"0 to {size - 1}" if size is not None else "from 0 on"
                raise building.error(f"token id {token} at row {number}, position {position}; the vocabulary has {upper}")


def _main_argument(building: Building) -> str:
    takes = building.forward_parameters
    if not takes or "input_ids" in takes:
        return "input_ids"
    return str(building.extra("first_parameter", None) or "input_ids")


def _labels(decode: Callable[[Sequence[int]], list[str]], ids: Any, mask: Any) -> list[list[str]]:
    return [
        [text if seen else "<pad>" for text, seen in zip(decode([int(i) for i in row]), kept, strict=True)]
        for row, kept in zip(ids, mask, strict=True)
    ]


def _bytes_shown(ids: Sequence[int]) -> list[str]:
    return [chr(token) if 32 <= token < 127 else f"<0x{token:02x}>" for token in ids]
