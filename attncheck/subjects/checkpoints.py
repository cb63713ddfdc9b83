"""A checkpoint in transformers' format, from a directory or a hub, as the class that it names or that the task asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import MeasurementError, Unavailable
from attncheck.core.evidence import LoadedSubject

if TYPE_CHECKING:
    from attncheck.subjects.loading import Loading

UNSAFE = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")


def load_checkpoint(loading: Loading, name: str, *, revision: str | None, task: str | None, trust_remote_code: bool) -> LoadedSubject:
    """The model of a directory or hub name, with its tokenizer and image normalisation where the checkpoint has them."""
    from attncheck.subjects.encoders import encoder_for
    from attncheck.subjects.hub import snapshot
    from attncheck.subjects.models import finish, fresh, from_directory

    folder = local_folder(loading, name)
    if folder is None:
        folder = snapshot(loading.definition.name, name, revision, weights=not loading.random, code=trust_remote_code)
    elif revision is not None:
        raise MeasurementError(f"{loading.definition.name}: revision {revision!r} goes with a hub name, and {name} is a directory")
    config = read_config(loading, folder, trust_remote_code)
    kind = class_of(config, task, trust_remote_code)
    trusted = {"trust_remote_code": True} if trust_remote_code else {}
    if loading.random:
        model = fresh(loading, kind, config, **trusted)
    else:
        check_weights(loading.definition.name, folder)
        model = from_directory(loading, kind, folder, weights_only=True, **trusted)
    return finish(loading, model, encoder_for(model, **readers(folder, trusted)))


def local_folder(loading: Loading, name: str) -> Path | None:
    """The directory behind `name`; None where it must be a hub name. Raises Unavailable for a path that leads nowhere."""
    place = Path(name).expanduser()
    full = place if place.is_absolute() else loading.root / place
    if full.is_dir():
        if not (full / "config.json").is_file():
            raise MeasurementError(f"{loading.definition.name}: {name} has no config.json; allowed: a directory in transformers' format")
        return full
    if full.is_file():
        raise MeasurementError(f"{loading.definition.name}: {name} is a file; allowed: the directory with its config.json")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise Unavailable(f"{loading.definition.name}: there is no directory {full}", "put the checkpoint there, or correct the path")
    return None


def read_config(loading: Loading, folder: Path, trust_remote_code: bool) -> Any:
    """The checkpoint's configuration. Raises MeasurementError where it needs code of its own that was not allowed."""
    from transformers import AutoConfig

    from attncheck.subjects.models import quiet

    subject = loading.definition.name
    stated = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    known_here = _knows(stated.get("model_type"))
    if "auto_map" in stated and not known_here and not trust_remote_code:
        raise MeasurementError(
            f"{subject}: {folder.name} needs code of its own (auto_map), which is not run; "
            "read it, then set trust_remote_code: true in the spec and --attn-trust-remote-code on the command line"
        )
    try:
        with quiet():
            return AutoConfig.from_pretrained(str(folder), trust_remote_code=trust_remote_code)
    except (ValueError, KeyError) as error:
        raise MeasurementError(f"{subject}: transformers cannot read {folder / 'config.json'}: {' '.join(str(error).split())}") from error


def class_of(config: Any, task: str | None, trust_remote_code: bool) -> Any:
    """The model class; for a checkpoint with code of its own the automatic class that its auto_map names."""
    import transformers

    from attncheck.subjects.tasks import AUTO_CLASSES, model_class

    own = getattr(config, "auto_map", None) or {}
    if trust_remote_code and own:
        wanted = [AUTO_CLASSES[task]] if task else ["AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModel"]
        for name in wanted:
            if name in own:
                return getattr(transformers, name)
    return model_class(config, task)


def check_weights(subject: str, folder: Path) -> None:
    """Refuse a checkpoint that could only be read by unpickling code. safetensors, and .bin through weights_only, are read."""
    names = sorted(path.name for path in folder.iterdir())
    if any(name.endswith(".safetensors") or (name.startswith("pytorch_model") and name.endswith(".bin")) for name in names):
        return
    unsafe = [name for name in names if name.endswith((*UNSAFE, ".bin"))]
    if unsafe:
        raise MeasurementError(
            f"{subject}: {folder} holds its weights as {', '.join(unsafe[:3])}, which is not read (it may run code, "
            "or is another library's); allowed: *.safetensors, pytorch_model*.bin"
        )
    raise MeasurementError(f"{subject}: {folder} holds no weights; allowed: *.safetensors, pytorch_model*.bin, or weights: random")


def readers(folder: Path, trusted: dict[str, Any]) -> dict[str, Any]:
    """Encoder facts of the tokenizer and of the image preprocessing that lie beside the weights."""
    from transformers import AutoTokenizer

    from attncheck.subjects.encoders import from_tokenizer
    from attncheck.subjects.models import quiet

    facts: dict[str, Any] = {}
    preprocessing = folder / "preprocessor_config.json"
    if preprocessing.is_file():
        stated = json.loads(preprocessing.read_text(encoding="utf-8"))
        facts |= {name: tuple(stated[name]) for name in ("image_mean", "image_std") if isinstance(stated.get(name), list)}
    if not any(folder.glob(pattern) for pattern in ("tokenizer*", "vocab.*", "spiece.model", "*.tiktoken")):
        return facts | {"why_no_text": "the checkpoint has none"}
    if not any(path.is_file() for pattern in ("tokenizer*", "vocab.*", "spiece.model") for path in folder.glob(pattern)):
        return facts | {"why_no_text": "the checkpoint has none"}
    try:
        with quiet():
            return facts | from_tokenizer(AutoTokenizer.from_pretrained(str(folder), **trusted))
    except Exception as error:  # a tokenizer that cannot be read matters only to an input that needs it
        return facts | {"why_no_text": " ".join(str(error).split())}


def _knows(model_type: object) -> bool:
    from transformers import CONFIG_MAPPING

    return isinstance(model_type, str) and model_type in CONFIG_MAPPING
