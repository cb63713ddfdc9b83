"""Rotary angles from a configuration, in float64, and the tables that a model makes of them.

An angle is position · θ^(-2i/d) with d rotated channels, i = 0 … d/2 - 1, and is stretched as `rope_type` says:
linear divides by `factor`; llama3 (Llama 3.1 report, section 3.4) and yarn (Peng et al. 2023, arXiv:2309.00071, equations 17 to 23)
divide slow channels only; yarn multiplies the table by 0.1·ln(factor) + 1, or
by the ratio of that with `mscale` to that with `mscale_all_dim`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attncheck.laws.models.scaling import magnitude
from attncheck.laws.registry import LawViolation, NotApplicable

if TYPE_CHECKING:
    from attncheck.laws.models.trial import ModelTrial

POSITIONS = (0, 1, 2, 3, 17, 100, 511, 1000, 2047, 4095, 16_383, 65_535)


def frequencies(rope: Mapping[str, Any], width: int, longest: int) -> tuple[list[float], float]:
    """Angles per position [width / 2] and the factor of the table. Raises NotApplicable for a kind that is not written down here."""
    kind = rope.get("rope_type", "default")
    base = float(rope["rope_theta"])
    plain = [base ** (-2 * i / width) for i in range((width + 1) // 2)]
    factor = float(rope.get("factor") or 1.0)
    if kind in ("default", "dynamic"):
        # dynamic changes its base beyond the longest input only, where this is not asked
        return plain, 1.0
    if kind == "linear":
        return [f / factor for f in plain], 1.0
    if kind == "llama3":
        old = float(rope["original_max_position_embeddings"])
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        found = []
        for f in plain:
            turns = old * f / (2 * math.pi)
            mix = min(max((turns - low) / (high - low), 0.0), 1.0)
            found.append(mix * f + (1 - mix) * f / factor)
        return found, 1.0
    if kind == "yarn":
        if rope.get("truncate") is False:
            raise NotApplicable("yarn without truncation is not written down")
        old = float(rope.get("original_max_position_embeddings") or longest)

        def channel(turns: float) -> float:
            return width * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(base))

        low = max(math.floor(channel(float(rope.get("beta_fast") or 32))), 0)
        high = min(math.ceil(channel(float(rope.get("beta_slow") or 1))), width - 1)
        span = max(high - low, 0.001)
        found = []
        for i, f in enumerate(plain):
            slow = min(max((i - low) / span, 0.0), 1.0)
            found.append(f * (1 - slow) + f / factor * slow)
        given, mscales = rope.get("attention_factor"), (rope.get("mscale"), rope.get("mscale_all_dim"))
        if given is not None:
            return found, float(given)
        if all(mscales):
            return found, magnitude(factor, float(mscales[0] or 0)) / magnitude(factor, float(mscales[1] or 0))
        return found, magnitude(factor, 1.0)
    raise NotApplicable(f"rope_type {kind!r} is not written down")


def _parts(rope: Mapping[str, Any]) -> dict[str | None, Mapping[str, Any]]:
    """By layer type where the configuration has several, else under None."""
    nested: dict[str | None, Mapping[str, Any]] = {name: part for name, part in rope.items() if isinstance(part, Mapping)}
    return nested or {None: rope}


def check(trial: ModelTrial) -> None:
    """Compare the cos and sin of every rotary module of the model with the table; raise at the worst position."""
    import inspect

    import torch

    subject = trial.subject
    modules = [
        (path, m)
        for path, m in subject.model.named_modules()
        if any(name.endswith("inv_freq") for name in dict(m.named_buffers(recurse=False)))
    ]
    rope = getattr(subject.text, "rope_parameters", None)
    if not modules or not isinstance(rope, Mapping):
        raise NotApplicable("no module with inv_freq was found, or the configuration has no rope_parameters")
    longest = int(getattr(subject.text, "max_position_embeddings", 2048))
    for path, module in modules:
        takes = inspect.signature(module.forward).parameters
        if "position_ids" not in takes:
            raise NotApplicable(f"{path} takes no position_ids")
        for kind, part in _parts(rope).items():
            if kind is not None and "layer_type" not in takes:
                raise NotApplicable(f"{path} takes no layer_type")
            width = _width(subject.text, part)
            if width < 2:
                raise NotApplicable(f"{width} rotated channel is not a pair")
            wanted, factor = frequencies(part, width, longest)
            places = torch.tensor([p for p in POSITIONS if p < longest])
            extra = {} if kind is None else {"layer_type": kind}
            with torch.no_grad():
                made = module(torch.zeros(1, 1, width), position_ids=places[None], **extra)
            if not isinstance(made, tuple) or len(made) != 2:
                raise NotApplicable(f"{path} does not return cos and sin")
            angles = places.double()[:, None] * torch.tensor(wanted, dtype=torch.float64)
            _compare(path, made, angles, factor, places, kind)


def _width(config: Any, rope: Mapping[str, Any]) -> int:
    head = (
        getattr(config, "qk_rope_head_dim", None) or getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    share = rope.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    return int(head * (1.0 if share is None or getattr(config, "qk_rope_head_dim", None) else share))


def _compare(path: str, made: tuple[Any, Any], angles: Any, factor: float, places: Any, kind: str | None) -> None:
    import torch

    # a float32 angle is rounded once as a product and once as a frequency
    limit = 4 * torch.finfo(torch.float32).eps * (2 + angles.abs()) * factor
    for name, table, function in (("cos", made[0], torch.cos), ("sin", made[1], torch.sin)):
        table = table.double().reshape(len(places), -1)
        right = function(angles) * factor
        forms = (right, torch.cat((right, right), -1), right.repeat_interleave(2, -1))
        limits = (limit, torch.cat((limit, limit), -1), limit.repeat_interleave(2, -1))
        fitting = [(form, most) for form, most in zip(forms, limits, strict=True) if form.shape == table.shape]
        if not fitting:
            raise LawViolation(f"{path} makes a table of {table.shape[-1]} channels, the configuration says {2 * angles.shape[-1]}")
        excess = [((table - form).abs() / most) for form, most in fitting]
        best = min(excess, key=lambda e: float(e.max()))
        if float(best.max()) > 1:
            place, channel = divmod(int(best.argmax()), best.shape[-1])
            form = next(form for (form, _), e in zip(fitting, excess, strict=True) if e is best)
            raise LawViolation(
                f"{path}{f', {kind}' if kind else ''}: {name} of position {int(places[place])}, channel {channel} is "
                f"{float(table[place, channel]):.6g}, not {float(form[place, channel]):.6g} as the configuration says",
                f"print(model.get_submodule({path!r})(torch.zeros(1, 1, 2), position_ids=torch.tensor([[{int(places[place])}]])))",
            )
