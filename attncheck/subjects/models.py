"""The steps that loaders share: fresh weights, weights from a mapping, from a directory, and the last checks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import AttncheckError, MeasurementError, Unavailable
from attncheck.core.evidence import Encoder, LoadedSubject
from attncheck.subjects import attention

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attncheck.subjects.loading import Loading


def fresh(loading: Loading, model_class: Any, config: Any, **options: Any) -> Any:
    """The architecture newly initialised from the definition's seed. The global generators are left as they were.

    Always on the CPU and in float32, so that the seed means the same weights on every device and in every dtype.
    """
    import torch

    with seeded(loading.definition.seed), building(loading, model_class) as asked:
        build = getattr(model_class, "_from_config", None) or model_class.from_config
        return build(config, dtype=torch.float32, **asked, **options)


@contextmanager
def building(loading: Loading, model_class: Any) -> Iterator[dict[str, str]]:
    """The attention arguments to build with; quiet; whatever the library raises becomes a MeasurementError with its words."""
    attention.require(loading.attn_implementation, model_class, loading.device)
    try:
        with quiet():
            yield {} if loading.attn_implementation is None else {"attn_implementation": loading.attn_implementation}
    except AttncheckError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        if "/" in (loading.attn_implementation or "") and isinstance(error, (ImportError, OSError)):
            raise Unavailable(f"the kernel {loading.attn_implementation} cannot be fetched ({words})", "pip install kernels") from error
        raise MeasurementError(
            f"{loading.definition.name}: {model_class.__name__} could not be built: {type(error).__name__}: {words}"
        ) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator, Python's and NumPy's for the block, and put all three back after it."""
    import random

    import numpy as np
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def from_state(loading: Loading, model_class: Any, config: Any, state: Mapping[str, Tensor]) -> Any:
    """A model of `config` with the named tensors; the library maps renamed keys. Raises MeasurementError where any is missing."""
    return _from_pretrained(loading, model_class, None, config=config, state_dict={k: v.contiguous() for k, v in state.items()})


def from_directory(loading: Loading, model_class: Any, directory: str | Path, **options: Any) -> Any:
    """A model from a directory or a hub name. Raises MeasurementError where weights are missing, which would be left at random."""
    return _from_pretrained(loading, model_class, str(directory), **options)


def _from_pretrained(loading: Loading, model_class: Any, source: str | None, **options: Any) -> Any:
    with building(loading, model_class) as asked:
        model, info = model_class.from_pretrained(source, dtype=loading.torch_dtype, output_loading_info=True, **asked, **options)
    missing = sorted(name for name in info.get("missing_keys", ()) if "pooler." not in name)
    wrong = sorted(str(name) for name in info.get("mismatched_keys", ()))
    for names, what in ((missing, "are not in the checkpoint and would be random"), (wrong, "have another shape in the checkpoint")):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            kind = type(model).__name__
            raise MeasurementError(
                f"{loading.definition.name}: parameters of {kind} {what}: {', '.join(names[:3])}{more}; choose another `task`"
            )
    return model


def finish(
    loading: Loading, model: nn.Module, encoder: Encoder | None, notes: list[str] | None = None, *, check_attention: bool = True
) -> LoadedSubject:
    """Eval mode, no gradients, on the device and in the dtype; then refuse weights that are not finite and a silent fallback of the
    attention implementation."""
    import torch

    empty = next((path for path, tensor in model.named_parameters() if tensor.device.type == "meta"), None)
    if empty is not None:
        raise MeasurementError(f"{loading.definition.name}: parameter {empty} has no values (it lies on the meta device)")
    finite(loading.definition.name, model)
    if check_attention:
        attention.check(model, loading.attn_implementation)
    model.eval().requires_grad_(False)
    model.to(device=torch.device(loading.device))
    if any(p.is_floating_point() and p.dtype != loading.torch_dtype for p in model.parameters()):
        model.to(dtype=loading.torch_dtype)
    return LoadedSubject(
        loading.definition, model=model, encoder=encoder, device=loading.device, dtype=loading.dtype, notes=list(notes or [])
    )


def finite(name: str, model: nn.Module) -> None:
    """Raise MeasurementError naming the first parameter with NaN or infinity, or buffer with NaN (a buffer may hold a mask's -inf)."""
    import torch

    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for path, tensor in tensors:
            if not tensor.is_floating_point() or tensor.device.type == "meta":
                continue
            bad = ~torch.isfinite(tensor) if kind == "parameter" else torch.isnan(tensor)
            count = int(bad.sum())
            if count:
                raise MeasurementError(f"{name}: {kind} {path} holds {count} of {tensor.numel()} values that are not finite")


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's loading reports and progress bars: what matters in them is checked and raised here."""
    from transformers.utils import logging as theirs

    level, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity(logging.ERROR)
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        theirs.set_verbosity(level)
        if bars:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]
