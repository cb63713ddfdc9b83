"""Where a hub's model lies on this machine, downloading it when there is a network; decided in seconds when there is none."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

from attncheck.core.errors import MeasurementError, Unavailable

PATIENCE = 3.0
"""Seconds that the hub gets to answer at all."""
_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
_SMALL = ["*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "tokenizer*"]


def snapshot(subject: str, name: str, revision: str | None, *, weights: bool, code: bool) -> Path:
    """The folder of a hub's model in the user's cache, complete with its weights where they are wanted.

    What is in the cache is used as it is, without asking the hub for anything newer. Raises Unavailable with the download command
    where the model is not in the cache and the hub cannot be reached, does not have it, or does not let this user have it.
    """
    from huggingface_hub import constants

    if not _NAME.fullmatch(name):
        raise MeasurementError(f"{subject}: {name!r} is neither a directory, nor package:NAME, nor a hub name (owner/model)")
    found = cached(name, revision)
    if found is not None and (not weights or complete(found)):
        return found
    remedy = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    what = f"{subject}: {name}" + (f" at revision {revision}" if revision else "")
    if constants.HF_HUB_OFFLINE:
        raise Unavailable(f"{what} is not in the cache, and HF_HUB_OFFLINE is set", f"unset it, then: {remedy}")
    if not reachable(constants.ENDPOINT):
        raise Unavailable(f"{what} is not in the cache, and {constants.ENDPOINT} does not answer", f"with a network: {remedy}")
    return _download(what, name, revision, remedy, weights=weights, code=code)


def cached(name: str, revision: str | None) -> Path | None:
    """The folder in the cache that holds the model's configuration; None where there is none."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def complete(folder: Path) -> bool:
    """Whether a checkpoint's weights are all there: one file, or every shard that its index names."""
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            shards = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
            if all((folder / shard).is_file() for shard in shards):
                return True
    return any((folder / name).is_file() for name in ("model.safetensors", "pytorch_model.bin"))


def reachable(endpoint: str) -> bool:
    """Whether anything answers there within PATIENCE, through the system's proxies; asked in a thread, since a name look-up can hang."""
    answered: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=PATIENCE):
                answered.append(True)
        except urllib.error.HTTPError:
            answered.append(True)
        except (OSError, ValueError):
            pass

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE)
    return bool(answered)


def _download(what: str, name: str, revision: str | None, remedy: str, *, weights: bool, code: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    wanted = [*_SMALL, *(["*.py"] if code else [])]
    try:
        if weights:
            files = HfApi().list_repo_files(name, revision=revision)
            wanted.append("*.safetensors" if any(file.endswith(".safetensors") for file in files) else "pytorch_model*.bin")
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except GatedRepoError as error:
        raise Unavailable(f"{what} is gated", f"accept its terms on the hub, then: hf auth login && {remedy}") from error
    except RevisionNotFoundError as error:
        raise MeasurementError(f"{what}: the hub has no such revision") from error
    except RepositoryNotFoundError as error:
        raise Unavailable(f"{what} is not on the hub, or not visible to this user", "check the name, or hf auth login") from error
    except (HfHubHTTPError, OSError) as error:
        raise Unavailable(f"{what} could not be downloaded ({' '.join(str(error).split())[:200]})", remedy) from error
