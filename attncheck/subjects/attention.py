"""Which attention implementation a transformers model really runs: what was asked for, or an error that says what it has."""

from __future__ import annotations

from typing import Any

from attncheck.core.errors import MeasurementError, Unavailable, nearest

_FLAGS = {"sdpa": "_supports_sdpa", "flex_attention": "_supports_flex_attn", "flash_attention_2": "_supports_flash_attn"}
_INSTALL = {
    "flash_attention_2": "pip install flash-attn --no-build-isolation",
    "flash_attention_3": "build the hopper folder of flash-attn",
    "flash_attention_4": "pip install flash-attn-4",
}


def supported(model_class: Any) -> list[str]:
    """The names that a model class declares support for."""
    return ["eager", *(name for name, flag in _FLAGS.items() if getattr(model_class, flag, False) is True)]


def require(implementation: str | None, model_class: Any, device: str) -> None:
    """Refuse an implementation before anything is built.

    Raises MeasurementError for a name that is registered nowhere or that the class does not support, Unavailable for a flash kernel
    whose package or device is not here.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if implementation is None or implementation == "eager":
        return
    known = ["eager", *ALL_ATTENTION_FUNCTIONS.valid_keys()]
    if implementation not in known and "/" not in implementation:
        hint = nearest(implementation, known)
        raise MeasurementError(
            f"unknown attn_implementation {implementation!r}"
            + (f"; did you mean {hint!r}?" if hint else "")
            + f"; allowed: {', '.join(known)}"
        )
    flash = implementation.startswith("flash_attention")
    flag = _FLAGS.get("flash_attention_2" if flash else implementation)
    if flag is not None and getattr(model_class, flag, None) is False:
        raise MeasurementError(
            f"{model_class.__name__} does not support attn_implementation {implementation!r}; allowed: {', '.join(supported(model_class))}"
        )
    if flash and not flash_installed(implementation):
        raise Unavailable(f"attn_implementation {implementation!r} is not installed", _INSTALL.get(implementation, "install its package"))
    if flash and device == "cpu":
        raise Unavailable(f"attn_implementation {implementation!r} needs a GPU, and the device is cpu", "--attn-device cuda")


def flash_installed(implementation: str) -> bool:
    from transformers import utils

    version = implementation.rpartition("_")[2]
    check = getattr(utils, f"is_flash_attn_{version}_available", None)
    return bool(check()) if check is not None else False


def effective(model: Any) -> dict[str, str]:
    """The implementation of every transformers model in `model` by its path ('' is the model itself), and of its sub-configurations."""
    found: dict[str, str] = {}
    for path, module in model.named_modules():
        name = getattr(getattr(module, "config", None), "_attn_implementation", None)
        if isinstance(name, str) and hasattr(type(module), "_supports_sdpa"):
            found[path] = name
    config = getattr(model, "config", None)
    for key in getattr(config, "sub_configs", None) or {}:
        name = getattr(getattr(config, key, None), "_attn_implementation", None)
        if isinstance(name, str):
            found[f"config.{key}"] = name
    return found


def check(model: Any, asked: str | None) -> None:
    """Refuse a model in which any part runs another implementation than the one asked for.

    transformers falls back to eager part by part where a sub-model lacks the implementation, and to another flash kernel where it
    prefers one; a claim about sdpa must not be judged on eager. Raises MeasurementError with the parts and what each runs.
    """
    if asked is None or not hasattr(type(model), "_supports_sdpa"):
        return
    found = effective(model)
    other = {path or type(model).__name__: name for path, name in found.items() if name != asked}
    if other:
        shown = ", ".join(f"{path} runs {name}" for path, name in list(other.items())[:4])
        more = f" and {len(other) - 4} more" if len(other) > 4 else ""
        allowed = ", ".join(supported(type(model)))
        raise MeasurementError(
            f"attn_implementation {asked!r} was asked for, but {shown}{more}; {type(model).__name__} declares: {allowed}"
        )
