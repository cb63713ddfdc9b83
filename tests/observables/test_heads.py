"""Head diversity against the d_model x d_model products written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.core.evidence import LayerWeights
from attncheck.observables import heads


def layer(query: torch.Tensor, key: torch.Tensor | None) -> LayerWeights:
    return LayerWeights(0, "self", "layers.0.attn", query, key, None, None, len(query), len(key) if key is not None else 0)


def random(heads_: int, kv: int, size: int = 4, width: int = 30, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads_, size, width, generator=generator), torch.randn(kv, size, width, generator=generator)


def naive_products(query: torch.Tensor, key: torch.Tensor) -> np.ndarray:
    """A_h as d_model x d_model matrices, flattened, [H, d_model^2]; a key head serves the query heads of its group."""
    q, k = query.double().numpy(), key.double().numpy()
    group = len(q) // len(k)
    return np.array([(q[h].T @ k[h // group]).ravel() for h in range(len(q))])


def naive_rank(gram: np.ndarray) -> float:
    values = np.linalg.eigvalsh(gram)
    share = values[values > 1e-12 * values.max()] / values.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


@pytest.mark.parametrize("kv", [6, 2, 1])
def test_similarity_and_ranks_against_the_whole_products(kv: int) -> None:
    query, key = random(6, kv)
    products = naive_products(query, key)
    raw = products @ products.T
    assert heads.product_gram(layer(query, key)).numpy() == pytest.approx(raw, rel=1e-10)
    unit = products / np.linalg.norm(products, axis=1, keepdims=True)
    cosines = unit @ unit.T
    others = cosines - np.eye(6)
    assert heads.similarity(layer(query, key), to="others").value == pytest.approx(others.sum(1) / 5, rel=1e-9)
    assert heads.similarity(layer(query, key)).value == pytest.approx((cosines - 3 * np.eye(6)).max(1), rel=1e-9)
    centring = np.eye(6) - 1 / 6
    for centred in (False, True):
        for normalise, gram in ((True, cosines), (False, raw)):
            expected = naive_rank(centring @ gram @ centring if centred else gram)
            found = heads.effective_rank(layer(query, key), centred=centred, normalise=normalise)
            assert found.value == pytest.approx(expected, rel=1e-9)
            assert heads.effective_rank(layer(query, key), centred=centred, normalise=normalise, share=True).value == pytest.approx(
                expected / 6
            )


def test_the_product_does_not_change_with_the_basis_of_a_head() -> None:
    query, key = random(6, 6)
    turn, _ = torch.linalg.qr(torch.randn(6, 4, 4, generator=torch.Generator().manual_seed(1)))
    turned = layer(turn @ query, turn @ key)
    assert torch.allclose(heads.product_gram(turned), heads.product_gram(layer(query, key)), atol=1e-3)


def test_the_ceilings_are_all_heads_and_one_less_when_centred() -> None:
    orthogonal = torch.zeros(6, 4, 30)
    for h in range(6):
        orthogonal[h, :, 4 * h : 4 * h + 4] = torch.eye(4)
    made = layer(orthogonal, orthogonal)
    assert heads.effective_rank(made).value == pytest.approx(6)
    assert heads.effective_rank(made, centred=True).value == pytest.approx(5)
    assert heads.effective_rank(made, centred=True, share=True).value == pytest.approx(0.833, abs=1e-3)
    assert heads.similarity(made).value == pytest.approx(np.zeros(6))


def test_equal_heads_count_as_one_and_have_no_centred_spectrum() -> None:
    query, key = random(1, 1)
    made = layer(query.expand(6, 4, 30), key.expand(6, 4, 30))
    assert heads.effective_rank(made).value == pytest.approx(1)
    assert heads.similarity(made).value == pytest.approx(np.ones(6))
    with pytest.raises(MeasurementError, match="all heads are alike"):
        heads.effective_rank(made, centred=True)


def test_what_cannot_be_measured_says_why() -> None:
    query, key = random(6, 6)
    with pytest.raises(NotObservable, match="no k matrix"):
        heads.effective_rank(layer(query, None))
    with pytest.raises(MeasurementError, match="one head"):
        heads.similarity(layer(query[:1], key[:1]))
    with pytest.raises(MeasurementError, match="head 2 has a query-key product of 0"):
        heads.similarity(layer(query * torch.tensor([1.0, 1, 0, 1, 1, 1])[:, None, None], key))
