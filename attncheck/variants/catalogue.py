"""The variants that attncheck ships, in the order in which they are listed."""

from __future__ import annotations

from importlib import import_module

SHIPPED = (
    "softmax",
    "mqa",
    "gqa",
    "mla",
    "lrkv",
    "sliding_window",
    "sinks",
    "softcap",
    "qk_norm",
    "polynomial",
    "sigmoid",
    "linear",
)
"""Modules of attncheck.variants, each of which registers the variant of its name."""

for _name in SHIPPED:
    import_module(f"attncheck.variants.{_name}")
