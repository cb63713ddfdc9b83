"""What a configuration says that scores are multiplied with.

1/√d of the query's width, or `query_pre_attn_scalar`^(-1/2) (Gemma 2), or `attention_multiplier` (Granite); GPT-2 can do without, or
divide by the layer's number. Latent attention under yarn multiplies by (0.1 · mscale_all_dim · ln(factor) + 1)² (DeepSeek-V2,
arXiv:2405.04434).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from attncheck.core.evidence import AttentionCall
    from attncheck.laws.models.trial import ModelTrial


def expected(config: Any, width: int, layer: int) -> float:
    """The factor for heads of `width` in the layer of that number, which counts from 0."""
    scale: float = width**-0.5
    if getattr(config, "query_pre_attn_scalar", None):
        scale = float(config.query_pre_attn_scalar) ** -0.5
    if getattr(config, "attention_multiplier", None):
        scale = float(config.attention_multiplier)
    if getattr(config, "scale_attn_weights", True) is False:
        scale = 1.0
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        scale /= layer + 1
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, Mapping) and rope.get("rope_type") == "yarn" and hasattr(config, "kv_lora_rank"):
        scale *= magnitude(float(rope.get("factor") or 1.0), float(rope.get("mscale_all_dim") or 0.0)) ** 2
    return scale


def magnitude(factor: float, mscale: float) -> float:
    """What yarn makes of a factor: 0.1 · mscale · ln(factor) + 1."""
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def check(trial: ModelTrial) -> None:
    """Compare the factor of every attention call of one forward; raise at the first that is another."""
    from attncheck.capture.observe import observe
    from attncheck.core.errors import AttncheckError

    calls: list[AttentionCall] = []
    try:
        with trial.under():
            observe(trial.subject.model, trial.inputs, calls.append)
    except AttncheckError as problem:
        raise NotApplicable(f"its attention could not be seen: {str(problem).splitlines()[0][:200]}") from problem
    for call in calls:
        if not call.query.shape[-1]:
            raise NotApplicable(f"of {call.path} only the softmax was seen")
        wanted = expected(trial.subject.text, call.query.shape[-1], call.layer)
        if abs(call.scale - wanted) > 1e-5 * abs(wanted):
            raise LawViolation(
                f"{call.path} multiplies scores with {call.scale:.6g}, the configuration says {wanted:.6g}",
                "print({name: m.scaling for name, m in model.named_modules() if hasattr(m, 'scaling')})",
            )
    if not calls:
        raise NotApplicable("no attention call was seen")
