"""attncheck: regression tests for the behaviour of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attncheck.core.errors import AttentionWarning as AttentionWarning
    from attncheck.core.errors import AttncheckError as AttncheckError
    from attncheck.core.errors import BoundBroken as BoundBroken
    from attncheck.core.errors import MeasurementError as MeasurementError
    from attncheck.core.errors import NotObservable as NotObservable
    from attncheck.core.errors import SpecError as SpecError
    from attncheck.core.errors import Unavailable as Unavailable
    from attncheck.core.model_claims import ModelClaims as ModelClaims
    from attncheck.engine.check import check as check
    from attncheck.engine.observe import observe as observe
    from attncheck.laws.engine import verify as verify
    from attncheck.laws.models.engine import verify_model as verify_model
    from attncheck.recording.read import check_recording as check_recording
    from attncheck.recording.read import read_recording as read_recording
    from attncheck.recording.recorder import record as record

__version__ = "0.1.0"

_PUBLIC = {
    "AttentionWarning": "attncheck.core.errors",
    "AttncheckError": "attncheck.core.errors",
    "BoundBroken": "attncheck.core.errors",
    "MeasurementError": "attncheck.core.errors",
    "ModelClaims": "attncheck.core.model_claims",
    "NotObservable": "attncheck.core.errors",
    "SpecError": "attncheck.core.errors",
    "Unavailable": "attncheck.core.errors",
    "check": "attncheck.engine.check",
    "check_recording": "attncheck.recording.read",
    "observe": "attncheck.engine.observe",
    "read_recording": "attncheck.recording.read",
    "record": "attncheck.recording.recorder",
    "verify": "attncheck.laws.engine",
    "verify_model": "attncheck.laws.models.engine",
}
"""Public name -> module. Imported on first use: pytest loads this package in every project where it is installed."""


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
