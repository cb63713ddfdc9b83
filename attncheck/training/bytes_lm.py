"""A byte-level causal language model on the shipped Python manual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.training.recipes import RATES, Optimiser, Recipe, recipe
from attncheck.variants.fields import Count, Positive

if TYPE_CHECKING:
    from torch import Tensor

HELD_OUT = 0.1
"""Share of the text, its end, that is not trained on."""
WINDOWS = 16
"""Windows of each part on which loss and accuracy are noted."""


@recipe("bytes-lm")
def bytes_lm(
    *,
    layers: Count = 3,
    width: Count = 96,
    heads: Count = 4,
    tokens: Count = 128,
    batch: Count = 16,
    optimiser: Optimiser = "muon",
    rate: Positive | None = None,
    weight_decay: float = 0.0,
    qk_norm: bool = True,
) -> Recipe:
    """A causal language model on bytes of the shipped Python manual, 64 KB.

    Pre-norm transformer with rotary positions and, by default, QK-norm: embedding of 256 bytes, `layers` times attention and an MLP of
    4 `width` with GELU, an untied head. Each step takes `batch` windows of `tokens` bytes at random places of the first nine tenths of the
    text; loss and accuracy of the next byte are noted on 16 even windows of the last tenth (test) and of the rest (train). `optimiser`
    muon is torch.optim.Muon for the matrices of the layers at `rate` (0.02) and AdamW at 0.003 for all else; adamw is AdamW for all.
    """

    def build(attention: object) -> object:
        from attncheck.training.network import Language

        return Language(attention, layers=layers, width=width, heads=heads, tokens=tokens, qk_norm=qk_norm)

    def drawn(seed: int, step: int) -> tuple[Tensor, Tensor]:
        import numpy as np

        text = _text("train")
        state = np.random.RandomState(np.array([seed, step], dtype=np.uint32))
        return _windows(text, state.randint(0, len(text) - tokens, batch).tolist(), tokens)

    def held(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        text = _text(split)
        stride = (len(text) - tokens - 1) // (WINDOWS - 1)
        return _windows(text, [number * stride for number in range(WINDOWS)], tokens)

    longest = len(_text("test")) - WINDOWS
    too_long = ("tokens", f"tokens: {tokens} is more than the {longest} bytes of the text that is held out")
    return Recipe(
        width=width, heads=heads, tokens=tokens, causal=True, rotary=True, qk_norm=qk_norm, optimiser=optimiser,
        rate=RATES[optimiser] if rate is None else rate, weight_decay=weight_decay,
        build=build, batch=drawn, held=held,  # type: ignore[arg-type]
        facts={"vocabulary_size": 256, "encode_plain": lambda text: list(text.encode()), "token_text": _shown, "causal": True},
        problems=[too_long] if tokens > longest else [],
    )  # fmt: skip


def _text(split: str) -> bytes:
    from attncheck.inputs.corpus import CORPORA, read

    text = read(CORPORA["python-manual"])
    cut = round(len(text) * (1 - HELD_OUT))
    return text[:cut] if split == "train" else text[cut:]


def _windows(text: bytes, starts: list[int], tokens: int) -> tuple[Tensor, Tensor]:
    import torch

    rows = torch.tensor([list(text[start : start + tokens + 1]) for start in starts])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _shown(token: int) -> str:
    return chr(token) if 32 <= token < 127 else f"<0x{token:02x}>"
