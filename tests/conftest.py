"""Shared by all tests: nothing may reach for a network."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest_plugins = "pytester"
