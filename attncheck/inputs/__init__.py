"""What a subject is fed. `build` turns a definition into the arguments of one forward, with what is padding and readable labels."""

from __future__ import annotations

from attncheck.inputs import corpus, file, images, qkv, text, tokens  # noqa: F401  (registers the kinds)
from attncheck.inputs.building import Building, build
from attncheck.inputs.kinds import INPUT_KINDS, input_kind

__all__ = ["INPUT_KINDS", "Building", "build", "input_kind"]
