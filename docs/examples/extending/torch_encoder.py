"""A kind of subject: torch's own encoder, by its sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.core.evidence import LoadedSubject
from attncheck.subjects.kinds import subject_kind

if TYPE_CHECKING:
    from attncheck.subjects.loading import Loading


@subject_kind("torch_encoder", steps=False)
def torch_encoder(loading: Loading, *, layers: int, width: int = 64, heads: int = 4, vocabulary: int = 256) -> LoadedSubject:
    """nn.TransformerEncoder behind an embedding, freshly initialised from the subject's seed.

    Raises MeasurementError where the heads do not divide the width.
    """
    from torch import nn

    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.models import finish, seeded

    if width % heads:
        raise MeasurementError(f"{loading.definition.name}: {heads} heads do not divide the width {width}")
    with seeded(loading.definition.seed):
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True)
        model = nn.Sequential(nn.Embedding(vocabulary, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False))
    return finish(loading, model, encoder_for(model, vocabulary_size=vocabulary))
