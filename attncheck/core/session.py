"""What pytest's command line says to tests of users' own modules, which see no spec: set by the plugin, at their defaults elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Session:
    root: Path | None = None
    """pytest's root directory; pictures go below it."""
    thorough: bool = False
    pictures: bool = True


SESSION = Session()
