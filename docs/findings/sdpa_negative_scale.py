"""Torch's scaled_dot_product_attention gives NaN for a causal call whose scale is 0 or negative.

torch 2.13.0, CPU, the flash kernel: the math backend gives numbers. The kernel masks after it has scaled, and a masked score of minus
infinity times a scale that is not positive is NaN or plus infinity. Found by scores-signed_scale, where `signed_scale` is claimed.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def main() -> dict[float, int]:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 4, 8, generator=g) for _ in range(3))
    return {scale: int(scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).isnan().sum()) for scale in (0.5, 0.0, -0.5)}


if __name__ == "__main__":
    for scale, count in main().items():
        print(f"scale {scale}: {count} of 32 numbers are NaN")
