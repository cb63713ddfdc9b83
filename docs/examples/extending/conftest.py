"""Importing a module registers what it defines; specs below this folder may then say it."""

from __future__ import annotations

import falls  # noqa: F401
import tail_mass  # noqa: F401
import torch_encoder  # noqa: F401
