"""The picture of a property in pytest-html's report: inside the file with --self-contained-html, as an asset of it without."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest


def attach(config: pytest.Config, report: Any, picture: str | None) -> None:
    """Add the picture to what pytest-html shows beside the text. Nothing where that plugin writes no report."""
    if not picture or not getattr(config.option, "htmlpath", None):
        return
    try:
        content = base64.b64encode(Path(config.rootpath, picture).read_bytes()).decode("ascii")
    except OSError:
        return  # drawn and gone: the text names it all the same
    # As pytest_html.extras.png makes it; builtins, so that a worker's report carries it to the controller.
    shown = {"name": Path(picture).name, "format_type": "image", "content": content, "mime_type": "image/png", "extension": "png"}
    report.extras = [*getattr(report, "extras", []), shown]
