"""How different the heads of a layer are, from their query-key products A_h = W_Q,h^T W_K,h alone (arXiv:2601.11471, appendix C)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.core.observable import Value, observable

if TYPE_CHECKING:
    from torch import Tensor

    from attncheck.core.evidence import LayerWeights

SOURCE = "arXiv:2601.11471, appendix C"


@observable("heads.similarity", reads="weights", dims=("layer", "head"), source=SOURCE)
def similarity(layer: LayerWeights, *, to: Literal["nearest", "others"] = "nearest") -> Value:
    """Similarity of each head to the other heads of its layer, s_ij = <A_i, A_j> / (|A_i| |A_j|), from -1 to 1.

    A_h = W_Q,h^T W_K,h is what a head compares tokens by, whatever basis its d dims are written in. `to: nearest` is the largest s_ij
    over the other heads, `others` their mean. Weights only: a norm of queries and keys, rotary embeddings and the data are not in it.

    Raises NotObservable where a layer has no query or key matrix, MeasurementError for a layer of one head or a head of zeros.
    """
    import torch

    gram = normalised(product_gram(layer), layer)
    heads = gram.shape[0]
    if heads < 2:
        raise MeasurementError(f"{layer.path}: one head has no others to resemble")
    apart = ~torch.eye(heads, dtype=torch.bool)
    if to == "nearest":
        return Value(gram.masked_fill(~apart, -torch.inf).amax(-1).numpy(), ("head",))
    return Value(((gram * apart).sum(-1) / (heads - 1)).numpy(), ("head",))


@observable("heads.effective_rank", reads="weights", dims=("layer",), source=SOURCE)
def effective_rank(layer: LayerWeights, *, centred: bool = False, normalise: bool = True, share: bool = False) -> Value:
    """Effective number of different heads: exp of the entropy of the normalised eigenvalues of the heads' Gram matrix.

    The Gram matrix is s_ij (`normalise: false`: <A_i, A_j> as it is). `centred` subtracts row and column means and adds the grand mean
    first, as a PCA does; its ceiling is H - 1, not H. `share: true` divides by H. Raises as `heads.similarity` does.
    """
    gram = product_gram(layer)
    if normalise:
        gram = normalised(gram, layer)
    if centred:
        gram = gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()
    return Value(spectral_entropy_rank(gram, layer) / (gram.shape[0] if share else 1))


def product_gram(layer: LayerWeights) -> Tensor:
    """<A_i, A_j> = tr(W_K,i W_K,j^T W_Q,j W_Q,i^T), [H, H] in float64, from d x d products; no d_model x d_model matrix is formed."""
    import torch

    if layer.query is None or layer.key is None:
        which = "q" if layer.query is None else "k"
        raise NotObservable(f"{layer.path}: no {which} matrix: {layer.missing.get(which, 'the layer has none')}")
    query, key = (w.detach().cpu().double() for w in (layer.query, layer.key))
    if query.shape[2] != key.shape[2] or query.shape[1] != key.shape[1]:
        raise NotObservable(f"{layer.path}: queries {list(query.shape)} and keys {list(key.shape)} have no product")
    group = query.shape[0] // key.shape[0]
    heads, size, _ = query.shape
    kv = torch.arange(heads) // group
    gram = torch.empty(heads, heads, dtype=torch.float64)
    flat_query, flat_key = query.flatten(0, 1), key.flatten(0, 1)
    for i in range(heads):
        queries = (query[i] @ flat_query.T).reshape(size, heads, size)
        keys = (key[kv[i]] @ flat_key.T).reshape(size, -1, size)[:, kv]
        gram[i] = (queries * keys).sum((0, 2))
    return gram


def normalised(gram: Tensor, layer: LayerWeights) -> Tensor:
    """Inner products as cosines."""
    size = gram.diagonal()
    if bool((size <= 0).any()):
        raise MeasurementError(f"{layer.path}: head {int((size <= 0).int().argmax())} has a query-key product of 0, so no direction")
    return gram / (size[:, None] * size[None, :]).sqrt()


def spectral_entropy_rank(gram: Tensor, layer: LayerWeights) -> float:
    """exp(-sum v log v), v the eigenvalues of a positive semi-definite matrix divided by their sum."""
    import torch

    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    total = values.sum()
    if float(total) <= 1e-12 * gram.shape[0]:
        raise MeasurementError(f"{layer.path}: the heads' Gram matrix is 0, so it has no spectrum (all heads are alike)")
    share = values / total
    return float(torch.exp(-torch.special.xlogy(share, share).sum()))
