"""Makes a new attention kernel known to transformers under the name `blocked`."""

from __future__ import annotations

from blocked import attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

AttentionInterface.register("blocked", attention)
AttentionMaskInterface.register("blocked", eager_mask)
