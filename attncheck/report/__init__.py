"""What a person reads: failure texts and pictures. Takes cases and verdicts, measures nothing."""

from __future__ import annotations

from attncheck.report.paths import picture_path
from attncheck.report.texts import error_text, failure_text, must_fail_text, skip_text, warning_text

__all__ = ["error_text", "failure_text", "must_fail_text", "picture_path", "skip_text", "warning_text"]
