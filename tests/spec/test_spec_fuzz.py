"""Whatever stands in a file, the loader answers with a Spec or a SpecError, and in good time."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncheck.core.errors import Place, SpecError
from attncheck.core.vocabulary import Vocabulary
from attncheck.spec.loader import load_bytes
from attncheck.spec.schema import json_schema

HANGS = 60.0
"""Seconds of processor time that only something unbounded takes; how fast it is, benchmarks/ measures."""

FIGURES = sorted((Path(__file__).parent / "figures").glob("*.yaml"))
TEXTS = [path.read_text(encoding="utf-8") for path in FIGURES]
_WRITTEN = """null|[]|{}|[1, 2]|{a: 1}|-1|0.5|1e999|.nan|true|''|all|x: y|*a|&a b|!t v|<<|- |: |for: any|like: x|9**9**9|'a\\0'
{subject: mha}|{observable: attention.entropy}|80% of heads|first half|0..|é|#|must-fail"""
PIECES = ["", "\n", "\t", *_WRITTEN.replace("\n", "|").split("|")]


def answers(vocabulary: Vocabulary, data: bytes) -> None:
    try:
        load_bytes(data, Path("f.attn.yaml"), vocabulary)
    except SpecError as error:
        places = [problem.place for problem in error.problems]
    else:
        places = [Place("f.attn.yaml", 1)]
    assert places
    assert all(place.line >= 1 and place.column >= 1 for place in places)


@settings(deadline=1000)
@given(text=st.text(max_size=300))
def test_any_text(vocabulary: Vocabulary, text: str) -> None:
    answers(vocabulary, text.encode("utf-8", "surrogatepass"))


@settings(deadline=1000)
@given(data=st.binary(max_size=200))
def test_any_bytes(vocabulary: Vocabulary, data: bytes) -> None:
    answers(vocabulary, data)


@settings(deadline=1000)
@given(seed=st.integers(0, 2**32), base=st.sampled_from(TEXTS), count=st.integers(1, 6))
def test_figures_with_pieces_replaced(vocabulary: Vocabulary, seed: int, base: str, count: int) -> None:
    """Cuts at the joints of YAML, so that most results are still YAML and reach the later passes."""
    chance = random.Random(seed)
    text = base
    for _ in range(count):
        joints = [index for index, character in enumerate(text) if character in " {}[],:\n"]
        start = chance.choice(joints)
        end = next((joint for joint in joints if joint > start), len(text))
        text = text[: start + 1] + chance.choice(PIECES) + text[end if chance.random() < 0.8 else start + 1 :]
    answers(vocabulary, text.encode())


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=True),
    st.sampled_from([piece for piece in PIECES if piece.isprintable()]),
)


@settings(deadline=2000, max_examples=40)
@given(data=st.data())
def test_known_keys_with_any_values(vocabulary: Vocabulary, data: st.DataObject) -> None:
    """Every key of the language holding something of any shape."""
    import json

    schema = json_schema(vocabulary)
    words = sorted(schema["definitions"]["property"]["properties"])
    kinds = sorted(schema["definitions"]["subject"]["properties"])
    feeds = sorted(schema["definitions"]["input"]["properties"])
    names = st.sampled_from(
        [*vocabulary.observables, *words, "subject", "observable", "because", "layer", "head", "key", "matrix", "a", "b"]
    )
    values = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=6)
    section = st.one_of(values, st.none())

    def definitions(keys: list[str]) -> st.SearchStrategy[object]:
        return (
            st.dictionaries(st.sampled_from(["a", "b", "c"]), st.dictionaries(st.sampled_from(keys), section, max_size=5), max_size=3)
            | section
        )

    content = {
        "attncheck": 1,
        "subjects": data.draw(definitions(kinds)),
        "inputs": data.draw(definitions(feeds)),
        "defaults": data.draw(st.dictionaries(st.sampled_from([*words, "dtype"]), section, max_size=3)),
        "expect": data.draw(definitions(words)),
    }
    answers(vocabulary, json.dumps(content).replace("NaN", ".nan").replace("Infinity", ".inf").encode())


def test_thousands_of_mistakes_are_told_in_good_time(vocabulary: Vocabulary) -> None:
    keys = "".join(f"      attentoin{n}: 1\n" for n in range(8000))
    for head in ("", "subjects:\n  a:\n", "subjects: {a: {pretrained: x}}\nexpect:\n  p:\n", "subjects:\n  a:\n    train:\n"):
        started = time.process_time()
        with pytest.raises(SpecError) as caught:
            load_bytes(("attncheck: 1\n" * bool(head) + head + keys).encode(), Path("f.attn.yaml"), vocabulary)
        assert len(caught.value.problems) >= 8000
        assert time.process_time() - started < HANGS
