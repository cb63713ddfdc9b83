"""LRKV: what it is at its ends, what its cache takes, and the exact forms under rotation and QK-norm."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from attncheck import variants
from attncheck.variants.layer import rotated_by

WIDTH, HEADS, DIM, RANK, TOKENS = 48, 4, 12, 5, 13


def made(definition: Any, **more: Any) -> Any:
    torch.manual_seed(0)
    layer = variants.module(definition, **{"width": WIDTH, "heads": HEADS, "causal": True, "rotary": True, "qk_norm": True, **more})
    with torch.no_grad():
        for name in ("k_up", "v_up"):
            if hasattr(layer, name) and getattr(layer, name).requires_grad:
                getattr(layer, name).mul_(10)  # a residual as large as the shared part, as after training
    return layer


def hidden(batch: int = 2, **more: Any) -> Tensor:
    return torch.randn(batch, TOKENS, WIDTH, generator=torch.Generator().manual_seed(5), **more)


def copied(source: Any, target: Any, **names: str) -> None:
    with torch.no_grad():
        for name in ("q_proj", "o_proj"):
            getattr(target, name).weight.copy_(getattr(source, name).weight)
        for mine, theirs in names.items():
            getattr(target, theirs).weight.copy_(getattr(source, mine).weight)


@pytest.mark.parametrize("definition", [{"lrkv": {"rank": 0}}, {"lrkv": {"rank": RANK, "residual": "zero"}}])
def test_without_a_residual_it_is_multi_query_attention(definition: Any) -> None:
    layer, mqa = made(definition), made("mqa")
    copied(layer, mqa, k_shared="k_proj", v_shared="v_proj")
    with torch.no_grad():
        torch.testing.assert_close(layer(hidden()), mqa(hidden()), atol=1e-6, rtol=1e-5)


def test_full_rank_can_equal_mha() -> None:
    """B_h = I and U_h = W_h - W_shared."""
    mha, layer = made("mha"), made({"lrkv": {"rank": DIM}})
    copied(mha, layer)
    with torch.no_grad():
        for letter in ("k", "v"):
            whole = getattr(mha, f"{letter}_proj").weight.view(HEADS, DIM, WIDTH)
            shared = getattr(layer, f"{letter}_shared").weight
            getattr(layer, f"{letter}_down").weight.copy_((whole - shared).reshape(HEADS * DIM, WIDTH))
            getattr(layer, f"{letter}_up").copy_(torch.eye(DIM).repeat(HEADS, 1))
        torch.testing.assert_close(layer(hidden()), mha(hidden()), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rotary", "qk_norm"), list(itertools.product([False, True], repeat=2)))
def test_a_cache_takes_the_papers_bytes(rotary: bool, qk_norm: bool, dtype: torch.dtype) -> None:
    """2 L (d + H r) numbers for L tokens; the exact form needs no more, rotated, normalised or not. The scalar of QK-norm is recomputed."""
    layer = made({"lrkv": {"rank": RANK}}, rotary=rotary, qk_norm=qk_norm).to(dtype)
    x = hidden().to(dtype)
    cache = layer.cache()
    with torch.no_grad():
        for step in range(TOKENS):
            layer(x[:, step : step + 1], cache=cache)
            assert cache.allocated_bytes == 2 * 2 * (step + 1) * (DIM + HEADS * RANK) * dtype.itemsize
    mha = made("mha", rotary=rotary, qk_norm=qk_norm)
    other = mha.cache()
    with torch.no_grad():
        mha(hidden(), cache=other)
    assert other.allocated_bytes == 2 * 2 * TOKENS * HEADS * DIM * 4
    share = cache.allocated_bytes / dtype.itemsize / (other.allocated_bytes / 4)
    assert share == pytest.approx(1 / HEADS + RANK / DIM)


@pytest.mark.parametrize(("rotary", "qk_norm"), list(itertools.product([False, True], repeat=2)))
def test_the_operator_on_what_a_cache_keeps_is_the_module(rotary: bool, qk_norm: bool) -> None:
    """Eq. 6 and 7 of the paper, exact: the query turned back for each key, the norm of a key from its parts."""
    layer = made({"lrkv": {"rank": RANK}}, rotary=rotary, qk_norm=qk_norm).double()
    x, places = hidden(dtype=torch.float64), torch.arange(TOKENS)
    with torch.no_grad():
        whole = layer(x)
        cache = layer.cache()
        layer(x, cache=cache)
        kept = cache.state
        query = layer.finished(layer.split(layer.q_proj(x), HEADS), places)
        bases = {f"{name}_basis": getattr(layer, f"{name[0]}_up").view(HEADS, DIM, RANK) for name in ("key", "value")}
        for rows in (places, places[-1:]):
            read = variants.operator({"lrkv": {"rank": RANK}})(
                query[:, :, rows], kept["key"], kept["value"], attn_mask=places[None] <= rows[:, None], key_latent=kept["key_latent"],
                value_latent=kept["value_latent"], **bases, qk_norm=qk_norm, key_positions=places if rotary else None,
            )  # fmt: skip
            output = layer.o_proj(read.transpose(1, 2).reshape(2, len(rows), WIDTH))
            torch.testing.assert_close(output, whole[:, rows], atol=1e-12, rtol=1e-10)


def test_the_papers_identity_under_rotation_is_false() -> None:
    """RoPE(K_shared) + RoPE(R) Bᵀ is not RoPE(K_shared + R Bᵀ): a rotation of `rank` numbers is another one."""
    generator = torch.Generator().manual_seed(0)
    rank, places = 6, torch.arange(64)
    shared, latent, basis = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((64, DIM), (64, rank), (DIM, rank))
    )
    right = rotated_by(shared + latent @ basis.T, places)
    papers = rotated_by(shared, places) + rotated_by(latent, places) @ basis.T
    assert 0.5 < float((papers - right).norm() / right.norm()) < 1.5
    # What does commute: the shared part, and everything where nothing is turned.
    torch.testing.assert_close(rotated_by(shared, places) + rotated_by(latent @ basis.T, places), right)


def test_where_it_starts() -> None:
    torch.manual_seed(0)
    layer = variants.module({"lrkv": {"rank": 16}}, width=384, heads=6, causal=True)
    parts = layer.projection_weights()
    for name in ("key", "value"):
        torch.testing.assert_close(parts[name], parts[f"{name}.shared"] + parts[f"{name}.residual"])
        ratio = parts[f"{name}.residual"].norm(dim=(1, 2)) / parts[f"{name}.shared"].norm(dim=(1, 2))
        assert ratio.tolist() == pytest.approx([0.1] * 6, rel=0.2)
    assert {tuple(p.shape) for p in layer.parameters()} == {(384, 384), (64, 384), (96, 384), (384, 16)}


def test_the_same_seed_gives_a_zeroed_twin_the_same_shared_projections() -> None:
    learned, zero = made({"lrkv": {"rank": RANK}}), made({"lrkv": {"rank": RANK, "residual": "zero"}})
    for name in ("q_proj", "o_proj", "k_shared", "v_shared", "k_down", "v_down"):
        assert torch.equal(getattr(learned, name).weight, getattr(zero, name).weight)
    assert not zero.k_up.requires_grad
    assert not zero.k_up.any()
    assert float(learned.k_up.detach().abs().max()) > 0
