"""Shared by all tests: nothing may reach for a network, and nothing is taken from an earlier run."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["ATTNCHECK_CACHE_LIMIT"] = "0"

pytest_plugins = "pytester"
