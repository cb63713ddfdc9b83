"""What a person reads: failure texts and pictures. Takes cases and verdicts, measures nothing."""

from __future__ import annotations

from attncheck.report.paths import picture_path
from attncheck.report.texts import broken_text, error_text, failure_text, must_fail_text, skip_text, warning_text

__all__ = ["broken_text", "error_text", "failure_text", "must_fail_text", "picture_path", "skip_text", "warning_text"]
