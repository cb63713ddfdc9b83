"""What is measured. `load` turns a definition into a model in eval mode, or an operator, with all that an input must know of it."""

from __future__ import annotations

from attncheck.subjects import config, operator, pretrained, python, series  # noqa: F401  (registers the kinds)
from attncheck.subjects.kinds import SUBJECT_KINDS, subject_kind
from attncheck.subjects.loading import Loading, load, load_any

__all__ = ["SUBJECT_KINDS", "Loading", "load", "load_any", "subject_kind"]
