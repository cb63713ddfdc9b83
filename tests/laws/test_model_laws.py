"""verify_model: no false alarms, known faults reported, a script that reproduces, claims that are checked."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import transformers
import zoo

import attncheck
from attncheck.core.claims import ClaimError
from attncheck.core.errors import AttncheckError
from attncheck.core.model_claims import ModelClaims
from attncheck.laws.models.registry import model_laws
from attncheck.laws.models.rotary import frequencies

DECODER = {
    "causal": True,
    "padding": ["left", "right"],
    "batch": True,
    "cache": ["dynamic", "static"],
    "implementations": ["eager", "sdpa"],
    "positional": "relative",
    "rotary": True,
    "deterministic": ["forward", "backward"],
    "dropout": "none",
    "returns": ["eager_attentions", "hidden_states"],
    "scale": True,
}
ENCODER = {"causal": False, "cache": None, "positional": "absolute", "rotary": None}
DIFFERENT = {
    "gpt2": {"positional": "absolute", "rotary": None},
    "gpt_neo": {"scale": None, "positional": "absolute", "rotary": None, "implementations": None, "cache": ["dynamic"]},
    "bloom": {"rotary": None, "cache": ["dynamic"], "implementations": None},
    "mpt": {"rotary": None, "implementations": None},
    "gpt_oss": {"implementations": None},
    "gemma2": {"implementations": None, "window": [5, None]},
    "mistral": {"window": 6},
    "bert": ENCODER,
    "albert": ENCODER,
    "deberta-v2": {**ENCODER, "positional": None, "implementations": None, "padding": ["right"]},
    "bart": {"padding": ["right"], "cache": ["dynamic"], "positional": "absolute", "rotary": None},
    "modernbert": {"causal": False, "cache": None, "window": [None, 17]},
    "t5": {"scale": None, "cache": ["dynamic"], "rotary": None},
}
"""What these architectures do not promise, or promise beyond the others."""
FAULTY = ("falcon",)
"""See docs/findings."""
FAST = ("llama", "gemma2", "bert", "t5", "bloom")


def claims(name):
    return {**DECODER, **DIFFERENT.get(name, {})}


@pytest.mark.parametrize("name", FAST)
def test_a_right_model_breaks_no_law(name):
    report = attncheck.verify_model(zoo.build(name), claims(name), examples=0)
    assert report.passed, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("name", [name for name in zoo.MAKERS if name not in FAULTY])
def test_a_right_model_breaks_no_law_in_other_seeds(name, seed):
    report = attncheck.verify_model(zoo.build(name, seed=seed), claims(name), seed=seed)
    assert report.passed, str(report)


def test_verify_of_a_pretrained_model_is_verify_model():
    report = attncheck.verify(zoo.build("llama"), DECODER, laws=["model-batch"])
    assert report.ran == ["model-batch-order", "model-batch-alone", "model-batch-neighbours"]
    with pytest.raises(ClaimError, match="unknown claim 'gqa'"):
        attncheck.verify(zoo.build("llama"), {"gqa": True})


def test_falcon_is_not_causal_where_attentions_are_asked_for():
    report = attncheck.verify_model(zoo.build("falcon"), DECODER, laws=["model-extras-attentions", "model-causal-future"], examples=0)
    assert [law for law, _, _ in report.violations] == ["model-causal-future", "model-extras-attentions"]
    assert all(example.implementation == "sdpa" for _, _, example in report.violations)


def test_packing_without_a_word_of_a_cache_is_reported():
    report = attncheck.verify_model(zoo.build("llama"), {**DECODER, "packing": True}, laws=["model-packing"], examples=0)
    assert [law for law, _, _ in report.violations] == ["model-packing-default", "model-packing-ones"]


def test_the_script_of_a_failure_reproduces_it(capsys):
    model = zoo.build("llama")
    report = attncheck.verify_model(model, {**DECODER, "packing": True}, laws=["model-packing-default"], examples=0)
    ((_, message, example),) = report.violations
    script = re.search(r"  reproduce:\n((?:    .*\n?)+)", message)[1]
    code = [line[4:] for line in script.splitlines() if not line.startswith("    model = ...")]
    with torch.no_grad():
        exec("\n".join(code), {"model": model})
    assert float(re.search(r"tensor\(([\d.]+)", capsys.readouterr().out)[1]) > 1e-2
    assert example.batch == 1


def test_the_model_is_left_as_it_was():
    model = zoo.build("llama").requires_grad_(False)
    before, config = copy.deepcopy(model.state_dict()), model.config.to_dict()
    attncheck.verify_model(model, DECODER, laws=["model-gradients", "model-implementations", "model-history"], examples=0)
    assert model.config.to_dict() == config
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_same_seed_gives_the_same_report():
    first, again = (
        str(attncheck.verify_model(zoo.build("llama"), {**DECODER, "packing": True}, seed=5, laws=["model-packing"])) for _ in range(2)
    )
    assert first == again


def test_what_is_not_claimed_is_named_and_a_battery_of_nothing_is_loud():
    report = attncheck.verify_model(
        zoo.build("llama"), ModelClaims(batch=True), laws=["model-batch", "model-causal", "model-cache"], examples=0
    )
    assert "not claimed, so not tested: causal, window, padding" in str(report)
    assert not report
    assert "HARDLY ANYTHING WAS TESTED" in str(report)


class NoSeventeen(transformers.LlamaForCausalLM):
    def forward(self, input_ids=None, **rest):
        if input_ids is not None and input_ids.shape[1] == 17:
            raise RuntimeError("no seventeen tokens")
        return super().forward(input_ids=input_ids, **rest)


def test_what_raises_is_told_by_one_law():
    model = zoo.build("llama")
    model.__class__ = NoSeventeen
    report = attncheck.verify_model(model, DECODER, laws=["model-history", "model-batch"], examples=0)
    assert [message.count("no seventeen tokens") for _, message, _ in report.violations] == [1]


class PadsSeeEachOther(torch.nn.Module):
    """Padded tokens attend to padded ones, real tokens to real ones: a choice that no real token notices."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.project = torch.nn.Embedding(64, 24), torch.nn.Linear(24, 72)
        self.out = torch.nn.Linear(24, 24)

    def get_input_embeddings(self):
        return self.embed

    def forward(self, input_ids, attention_mask=None):
        hidden = self.embed(input_ids)
        q, k, v = (part.unflatten(-1, (6, 4)).transpose(1, 2) for part in self.project(hidden).chunk(3, -1))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        seen = mask[:, None, :, None] == mask[:, None, None, :]
        made = torch.nn.functional.scaled_dot_product_attention(q * 6, k, v, attn_mask=seen)
        return hidden + self.out(made.transpose(1, 2).flatten(2))


def test_pads_that_see_each_other_are_no_fault():
    claims = {"causal": False, "padding": ["left", "right"], "batch": True, "positional": "none", "deterministic": ["forward"]}
    report = attncheck.verify_model(PadsSeeEachOther().eval(), claims, examples=2)
    assert report.passed, str(report)
    assert "model-padding-none" in report.ran


def test_an_exception_is_told_with_its_reason():
    given = {**DECODER, "packing": True, "exceptions": {"model-packing-default": "a cache is asked for by default"}}
    report = attncheck.verify_model(zoo.build("llama"), given, laws=["model-packing-default"], examples=0)
    assert report.skipped == [("model-packing-default", "claims.exceptions: a cache is asked for by default")]
    with pytest.raises(AttncheckError, match="did you mean 'model-packing-default'"):
        attncheck.verify_model(zoo.build("llama"), {**given, "exceptions": {"model-packing-defalt": "why"}})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"casual": True}, "did you mean 'causal'"),
        ({"causal": "yes"}, "causal: 'yes'; allowed: True, False"),
        ({"padding": ["lefft"]}, "did you mean 'left'"),
        ({"implementations": ["eager"]}, "alone agrees with nothing"),
        ({"positional": "rope"}, "positional: 'rope'"),
        ({"window": 0}, "window: 0"),
        ({"causal": False, "cache": ["dynamic"]}, "later tokens would change what is kept"),
        ({"rotary": True, "positional": "none"}, "rotary with positional: none"),
        ({"exceptions": {"model-causal-future": ""}}, "the reason, in words"),
    ],
)
def test_claims_are_checked(given, said):
    with pytest.raises(ClaimError, match=re.escape(said)):
        ModelClaims.of(given)


def test_claims_go_through_json():
    given = ModelClaims.of({**DECODER, "window": [5, None], "exceptions": {"model-causal-future": "why"}})
    assert ModelClaims.of(given.as_json()) == given


def test_every_law_has_an_id_of_its_own_and_a_sentence():
    entries = model_laws()
    assert len({entry.id for entry in entries}) == len(entries) > 50
    assert all(entry.sentence.endswith(".") for entry in entries)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 5e5},
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64},
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
        },
    ],
    ids=lambda rope: rope["rope_type"] + ("-mscale" if "mscale" in rope else ""),
)
def test_the_rotary_table_is_transformers_own(rope):
    config = transformers.LlamaConfig(**{**zoo.LLAMA, "head_dim": 32}, rope_parameters=rope)
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    wanted, factor = frequencies(rope, 32, 256)
    torch.testing.assert_close(module.inv_freq.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=0)
    assert module.attention_scaling == pytest.approx(factor)


def test_a_contract_of_a_model_has_a_test_for_each_law():
    from attncheck.testing import contract

    made = contract(zoo.build("llama"), claims=DECODER, examples=0)
    assert made.battery.laws == [entry.id for entry in model_laws()]
    assert made.outcome("model-batch-order").violation is None
