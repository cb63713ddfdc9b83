"""`pretrained: NAME`: a directory, a hub name, or `package:NAME` for weights that an ordinary Python package ships."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attncheck.core.errors import MeasurementError
from attncheck.core.evidence import LoadedSubject
from attncheck.core.registry import Complaint
from attncheck.subjects.kinds import subject_kind
from attncheck.subjects.loading import Loading
from attncheck.subjects.tasks import Task


def unknown_package(arguments: Mapping[str, Any]) -> Iterator[Complaint]:
    """A package or a variant of it that there is none of, and what does not go with a package."""
    from attncheck.subjects.packaged import known_packages

    name, variant = arguments["name"], arguments["variant"]
    if not name.startswith("package:"):
        return
    packages, given = known_packages(), name.removeprefix("package:")
    if given not in packages:
        yield Complaint("name", f"unknown package:{given}", tuple(packages), given)
    elif variant is not None and variant not in packages[given].variants:
        yield Complaint("variant", f"{name} has no variant {variant!r}", tuple(packages[given].variants), variant)


@subject_kind("pretrained", steps=False, check=unknown_package)
def pretrained(
    loading: Loading,
    *,
    name: str,
    revision: str | None = None,
    variant: str | None = None,
    task: Task | None = None,
    trust_remote_code: bool = False,
) -> LoadedSubject:
    """A model with trained weights, by directory, hub name or package.

    `name` is a directory with a config.json (relative to the project root), a hub name such as openai-community/gpt2, or
    package:NAME for a model that a package ships (`attncheck list packages` shows which). `revision` pins a hub name to a branch,
    tag or commit.
    `variant` chooses among the models of one package (glassllm: en, pt). `task` chooses the head (causal-lm, base, ...); the
    default is the class that the checkpoint names. Code from a checkpoint runs only if both this subject's `trust_remote_code`
    and the command line's say so. With `weights: random` the same architecture is initialised from the seed and the trained weights are
    not read.
    """
    if name.startswith("package:"):
        from attncheck.subjects.packaged import load_packaged

        for option, given in (("revision", revision), ("task", task), ("trust_remote_code", trust_remote_code or None)):
            if given is not None:
                raise MeasurementError(f"{loading.definition.name}: {option} does not go with {name}; allowed: variant")
        return load_packaged(loading, name.removeprefix("package:"), variant)
    if variant is not None:
        raise MeasurementError(f"{loading.definition.name}: variant {variant!r} goes with package:NAME only, not with {name!r}")
    if trust_remote_code and not loading.trust_remote_code:
        raise MeasurementError(
            f"{loading.definition.name}: the spec asks to run code from {name!r}; "
            "the command line must allow it too (--attn-trust-remote-code)"
        )
    from attncheck.subjects.checkpoints import load_checkpoint

    return load_checkpoint(loading, name, revision=revision, task=task, trust_remote_code=trust_remote_code)
