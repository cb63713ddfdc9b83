"""`config:` any architecture; its mistakes are named with the nearest right word."""

from __future__ import annotations

import pytest
import torch

from attncheck.core.errors import MeasurementError
from attncheck.subjects import load

BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 64,
}
T5 = {"model_type": "t5", "d_model": 32, "d_kv": 8, "num_heads": 4, "num_layers": 1, "d_ff": 32, "vocab_size": 64}
VIT = {"model_type": "vit", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 32, "image_size": 32}


def test_fields_reach_the_model(define, tiny):
    loaded = load(define("config", tiny))
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    assert loaded.model.config.num_key_value_heads == 2
    assert (loaded.encoder.vocabulary_size, loaded.encoder.max_positions, loaded.encoder.causal) == (300, 64, True)
    assert loaded.model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 300)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (BERT, "BertModel"),
        ({**BERT, "task": "masked-lm"}, "BertForMaskedLM"),
        ({**BERT, "is_decoder": True}, "BertLMHeadModel"),
        (T5, "T5ForConditionalGeneration"),
        ({**T5, "task": "base"}, "T5Model"),
        (VIT, "ViTModel"),
        ({**VIT, "task": "image-classification"}, "ViTForImageClassification"),
    ],
)
def test_the_task_chooses_the_class(define, options, name):
    assert type(load(define("config", options)).model).__name__ == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "lama"}, "unknown model_type 'lama'; did you mean 'llama'?"),
        ({"model_type": "llama", "hiden_size": 8}, "unknown field of LlamaConfig 'hiden_size'; did you mean 'hidden_size'?"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4}, "LlamaConfig refuses these values: .*not a multiple"),
        ({"model_type": "llama", "task": "seq2seq-lm"}, "model type 'llama' has no task 'seq2seq-lm'; allowed: base, causal-lm"),
        ({"model_type": "llama", "task": "causal"}, "allowed: model_type, task"),
        ({}, "model_type: Field required"),
    ],
)
def test_mistakes_are_named(define, options, message):
    with pytest.raises(MeasurementError, match=message):
        load(define("config", options))


def test_what_the_encoder_knows_of_positions(define):
    roberta = {**BERT, "model_type": "roberta", "max_position_embeddings": 34, "pad_token_id": 1}
    loaded = load(define("config", roberta))
    assert loaded.encoder.max_positions == 32, "its position table starts behind the pad token's number"
    longest = torch.full((1, 32), 5)
    assert torch.isfinite(loaded.model(longest)[0]).all()
    with pytest.raises((IndexError, RuntimeError)):
        loaded.model(torch.full((1, 33), 5))
    assert load(define("config", T5)).encoder.max_positions is None
    assert load(define("config", T5)).encoder.decoder_start == 0


def test_what_the_encoder_knows_of_images(define):
    encoder = load(define("config", VIT)).encoder
    assert (encoder.image_size, encoder.patch_size, encoder.image_prefix, encoder.vocabulary_size) == (32, 16, ("[CLS]",), None)
