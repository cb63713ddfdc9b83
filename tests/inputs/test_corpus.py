"""The shipped texts and the photograph are what they were, and fit the subjects that they are for."""

from __future__ import annotations

import pytest

from attncheck.core.errors import MeasurementError
from attncheck.inputs import corpus
from attncheck.inputs.corpus import CORPORA, PHOTOS, Excerpt, lines, photo


def test_every_excerpt_has_its_hash():
    for excerpt in (*CORPORA.values(), *PHOTOS.values()):
        assert corpus.read(excerpt)


def test_an_altered_excerpt_is_refused():
    with pytest.raises(MeasurementError, match=r"genera\.txt of the shipped corpus was altered"):
        corpus.read(Excerpt("genera.txt", "0" * 64, ""))


def test_sizes():
    assert 60_000 < len(corpus.read(CORPORA["python-manual"])) <= 65_536
    assert len(photo("flower")) < 60_000
    assert len(lines("reactions")) == 40


def test_the_notice_names_every_file():
    from importlib import resources

    notice = resources.files(corpus).joinpath("NOTICE.txt").read_text()
    for excerpt in (*CORPORA.values(), *PHOTOS.values()):
        assert f"\n{excerpt.file}\n" in notice


def test_every_reaction_is_known_to_the_model_of_reactions(load):
    encoder = load("rxnmapper").encoder
    for reaction in lines("reactions"):
        tokens = encoder.decode(encoder.encode(reaction))
        assert "[UNK]" not in tokens
        assert "".join(tokens[1:-1]) == reaction
        assert tokens.count(">>") == 1


def test_every_genus_is_known_to_the_model_of_genera(load):
    encoder = load("microformer-mgm").encoder
    for community in lines("genera"):
        names = community.split(", ")
        assert encoder.decode(encoder.encode(community)) == ["<bos>", *names]
        assert len(set(names)) == len(names)


def test_lines_are_rows(feed):
    fed = feed("rxnmapper", "corpus", {"name": "reactions"}, batch=3)
    for row, reaction in zip(fed.labels, lines("reactions"), strict=False):
        assert "".join(token for token in row if token not in ("[CLS]", "[SEP]", "<pad>")) == reaction
    assert fed.valid is not None


def test_a_length_takes_the_lines_that_have_it(feed):
    fed = feed("microformer-mgm", "corpus", {"name": "genera"}, length=64, batch=2)
    assert fed.valid is None
    assert [row[1] for row in fed.labels] == ["Bacteroides", "Bradyrhizobium"]
    with pytest.raises(MeasurementError, match="1 of 2 rows of length 200 found: the 8 texts have 28 to 313 tokens"):
        feed("microformer-mgm", "corpus", {"name": "genera"}, length=200, batch=2)
    with pytest.raises(MeasurementError, match="batch 9, but there are 8 texts"):
        feed("microformer-mgm", "corpus", {"name": "genera"}, batch=9)
