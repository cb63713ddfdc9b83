"""What was asked for is what runs, or the subject is refused."""

from __future__ import annotations

import pytest

from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.subjects import load
from attncheck.subjects.attention import check, effective

XLNET = {"model_type": "xlnet", "d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 32, "vocab_size": 64}
BERT_DECODER = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 64,
    "is_decoder": True,
    "add_cross_attention": True,
}


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flex_attention"])
def test_it_runs_as_asked(define, tiny, implementation):
    loaded = load(define("config", tiny, attn_implementation=implementation))
    assert set(effective(loaded.model).values()) == {implementation}


def test_the_default_is_sdpa_where_there_is_sdpa(define, tiny):
    assert set(effective(load(define("config", tiny)).model).values()) == {"sdpa"}
    assert set(effective(load(define("config", XLNET)).model).values()) == {"eager"}


def test_an_unsupported_one_is_an_error(define):
    with pytest.raises(MeasurementError, match="XLNetLMHeadModel does not support attn_implementation 'sdpa'; allowed: eager"):
        load(define("config", XLNET, attn_implementation="sdpa"))


def test_an_unknown_one_is_an_error(define, tiny):
    with pytest.raises(MeasurementError, match="unknown attn_implementation 'sdp'; did you mean 'sdpa'"):
        load(define("config", tiny, attn_implementation="sdp"))


def test_one_that_is_not_installed_is_unavailable(define, tiny):
    with pytest.raises(Unavailable, match="flash_attention_2' is not installed; pip install flash-attn"):
        load(define("config", tiny, attn_implementation="flash_attention_2"))


def test_a_part_that_falls_back_is_found(define):
    """transformers builds this pair with an eager encoder inside a model whose own configuration says sdpa."""
    mixed = load(define("config", {"model_type": "encoder-decoder", "encoder": XLNET, "decoder": BERT_DECODER})).model
    assert mixed.config._attn_implementation == "sdpa"
    with pytest.raises(MeasurementError, match=r"'sdpa' was asked for, but encoder runs eager, config\.encoder runs eager"):
        check(mixed, "sdpa")
    check(mixed, None)


def test_a_registered_one_is_taken(define, tiny):
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    AttentionInterface.register("ours", sdpa_attention_forward)
    try:
        loaded = load(define("config", tiny, attn_implementation="ours"))
        assert set(effective(loaded.model).values()) == {"ours"}
    finally:
        del ALL_ATTENTION_FUNCTIONS._global_mapping["ours"]
