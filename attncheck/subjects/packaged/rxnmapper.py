"""rxnmapper: an ALBERT on reaction SMILES, twelve layers that share one set of weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.subjects.packaged.package import Package, packaged

if TYPE_CHECKING:
    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading

_FOLDER = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_TOKEN = re.compile(r"\[[^\[\]]*\]|%\d\d|>>|Br|Cl|.")
"""Bracket atoms, two-digit ring bonds, the reaction arrow and two-letter elements are one token; every other character is one."""


@packaged(
    "rxnmapper",
    distribution="rxnmapper",
    version="0.4.3",
    about="encoder, ALBERT with shared layers: 12 layers, 8 heads, width 256, 0.77 M parameters; reads reaction SMILES",
    licence="MIT",
)
def rxnmapper(loading: Loading, package: Package, variant: str) -> LoadedSubject:
    """AlbertModel from the package's own directory (its masked-LM head is left out)."""
    from transformers import AlbertModel, AutoConfig

    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.models import finish, fresh, from_directory

    directory = package.where(_FOLDER)
    if loading.random:
        model = fresh(loading, AlbertModel, AutoConfig.from_pretrained(str(directory)))
    else:
        model = from_directory(loading, AlbertModel, directory, weights_only=True)
    smiles = Smiles(package)
    ids = smiles.ids
    return finish(
        loading,
        model,
        encoder_for(
            model,
            encode_plain=smiles.encode,
            token_text=lambda token: smiles.names[token],
            prefix=(ids["[CLS]"],),
            suffix=(ids["[SEP]"],),
            bos_token=ids["[CLS]"],
            pad_token=ids["[PAD]"],
            special_tokens=frozenset(token for token, name in enumerate(smiles.names) if re.fullmatch(r"\[(unused\d+|[A-Z]{3,4})\]", name)),
        ),
    )


class Smiles:
    """SMILES to ids by the package's vocabulary; the id of a token is its line number."""

    def __init__(self, package: Package) -> None:
        self.names = package.where(f"{_FOLDER}/vocab.txt").read_text(encoding="utf-8").splitlines()
        self.ids = {name: token for token, name in enumerate(self.names)}

    def encode(self, text: str) -> list[int]:
        """White space is left out. A well-formed atom that the vocabulary lacks is [UNK]; a character of no SMILES is an error."""
        found = []
        for token in _TOKEN.findall("".join(text.split())):
            if token not in self.ids and not token.startswith(("[", "%")):
                raise MeasurementError(f"{token!r} is no token of rxnmapper, which reads reaction SMILES (corpus: reactions)")
            found.append(self.ids.get(token, self.ids["[UNK]"]))
        return found
