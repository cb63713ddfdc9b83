"""microformer-mgm: a GPT-2 whose tokens are microbial genera, in the order of falling abundance."""

from __future__ import annotations

import csv
import difflib
import re
from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.subjects.packaged.package import Package, packaged

if TYPE_CHECKING:
    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading

SPECIAL = ("<pad>", "<mask>", "<bos>", "<eos>")


@packaged(
    "microformer-mgm",
    distribution="microformer-mgm",
    version="0.5.8",
    about="decoder, GPT-2: 8 layers, 8 heads, width 256, 8.9 M parameters; its tokens are genera of microbes",
    licence="MIT",
)
def microformer_mgm(loading: Loading, package: Package, variant: str) -> LoadedSubject:
    """GPT2LMHeadModel from the package's own directory; the vocabulary is read from its table, not from its pickle."""
    from transformers import AutoConfig, GPT2LMHeadModel

    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.models import finish, fresh, from_directory

    directory = package.where("mgm/resources/general_model")
    if loading.random:
        model = fresh(loading, GPT2LMHeadModel, AutoConfig.from_pretrained(str(directory)))
    else:
        model = from_directory(loading, GPT2LMHeadModel, directory, weights_only=True)
    genera = Genera(package)
    return finish(
        loading,
        model,
        encoder_for(
            model,
            encode_plain=genera.encode,
            token_text=lambda token: genera.names[token],
            prefix=(SPECIAL.index("<bos>"),),
            special_tokens=frozenset(range(len(SPECIAL))),
        ),
    )


class Genera:
    """Names of genera, separated by commas or white space, to ids and back: the four special tokens, then the rows of phylogeny.csv."""

    def __init__(self, package: Package) -> None:
        with package.where("mgm/resources/phylogeny.csv").open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            next(rows)
            self.names = [*SPECIAL, *(row[0].removeprefix("g__") for row in rows)]
        self.ids = {name: token for token, name in enumerate(self.names)}

    def encode(self, text: str) -> list[int]:
        """Raises MeasurementError for a genus that the vocabulary does not have, with the nearest."""
        found = []
        for word in re.split(r"[\s,;]+", text.strip()):
            name = word.removeprefix("g__")
            if not name:
                continue
            if name not in self.ids:
                near = difflib.get_close_matches(name, self.names, n=1)
                raise MeasurementError(
                    f"{name!r} is no genus of microformer-mgm's vocabulary of {len(self.names)}"
                    + (f"; did you mean {near[0]!r}?" if near else "; feed it genera (corpus: genera), or ids (tokens: ...)")
                )
            found.append(self.ids[name])
        return found
