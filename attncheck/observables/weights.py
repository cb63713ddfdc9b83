"""Spectra and norms of the projection matrices. No forward pass; everything in float64."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from attncheck.core.errors import MeasurementError, NotObservable
from attncheck.core.fields import Part, parse_part
from attncheck.core.observable import Value, observable

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from attncheck.core.evidence import LayerWeights

    Floats = np.ndarray[Any, np.dtype[np.float64]]

Matrix = Literal["q", "k", "v", "o"]
Per = Literal["head", "matrix"]
NULL_DRAWS = 16
ZERO = 1e-6
"""Relative to the largest singular value: what is left of a zero after rounding to float32."""


@observable("weights.alpha", reads="weights", dims=("layer",), source="arXiv:2604.22778 (the idea; its fit window is not known)")
def alpha(layer: LayerWeights, *, matrix: Matrix, fit: Part = "first half", per: Per = "matrix", minus_null: bool = False) -> Value:
    """Decay exponent of the singular values: the negated least-squares slope of log sigma_k on log k, k = 1 .. n, over the window `fit`.

    `fit` is a part of the singular values in decreasing order ('first half', 'first 20'; k keeps counting from the largest one).
    `per: head` takes each head's d x d_model slice. The coordinates `r_squared` (of the fit), `null` and `null_stderr` come with it: the
    exponent of a Gaussian matrix of the same shape, mean of 16 seeded draws; `minus_null: true` subtracts it. A power law describes
    few trained spectra well, so read r_squared.

    Raises NotObservable where the layer has no such matrix, MeasurementError where a singular value in the window is 0 or the window
    holds fewer than 3 values.
    """
    import numpy as np

    spectra = singular_values(layer, matrix, per)
    rows, columns = _shape(layer, matrix, per)
    slopes, squares = [], []
    for number, spectrum in enumerate(spectra):
        window = fit_window(len(spectrum), fit)
        chosen = spectrum[window]
        if chosen[-1] <= ZERO * spectrum[0]:
            head = f" of head {number}" if per == "head" else ""
            raise MeasurementError(
                f"{layer.path}: singular value {window.stop} of {matrix}{head} is 0 (below {ZERO:g} of the largest), so its "
                f"logarithm has no slope; choose a smaller `fit`, the rank is {int((spectrum > ZERO * spectrum[0]).sum())}"
            )
        slope, fitted = power_law(spectrum, window)
        slopes.append(slope)
        squares.append(fitted)
    null, error = gaussian_null(rows, columns, fit)
    values = np.array(slopes) - (null if minus_null else 0.0)
    same = np.ones(len(spectra))
    return _value(values, per, {"r_squared": np.array(squares), "null": null * same, "null_stderr": error * same})


@observable("weights.stable_rank", reads="weights", dims=("layer",), source="arXiv:2604.22778")
def stable_rank(layer: LayerWeights, *, matrix: Matrix, per: Per = "matrix") -> Value:
    """Stable rank |W|_F^2 / sigma_1^2, from 1 to the rank."""
    import numpy as np

    return _value(np.array([(s**2).sum() / s[0] ** 2 if s[0] > 0 else np.nan for s in singular_values(layer, matrix, per)]), per)


@observable("weights.spectral_norm", reads="weights", dims=("layer",))
def spectral_norm(layer: LayerWeights, *, matrix: Matrix, per: Per = "matrix") -> Value:
    """Largest singular value of a projection."""
    import numpy as np

    return _value(np.array([s[0] for s in singular_values(layer, matrix, per)]), per)


@observable("weights.norm", reads="weights", dims=("layer", "head"), source="arXiv:2601.11471, Figure 8")
def norm(layer: LayerWeights, *, matrix: Matrix, part: str | None = None, per: Per = "head") -> Value:
    """Frobenius norm of a projection, or of one `part` of it (shared, residual of a low-rank variant), by head or of the whole matrix.

    Keys and values have one entry per key-value head. Raises NotObservable where the layer has no such matrix or part.
    """
    whole = _matrix(layer, matrix, part)
    squares = whole.square().sum((1, 2))
    return _value((squares if per == "head" else squares.sum(0, keepdim=True)).sqrt().numpy(), per)


@observable("weights.part_cosine", reads="weights", dims=("layer", "head"), source="arXiv:2601.11471, Figure 8")
def part_cosine(layer: LayerWeights, *, matrix: Matrix, per: Per = "head") -> Value:
    """Cosine <A, B> / (|A|_F |B|_F) between the two parts of a projection, by head or over the whole matrix.

    Raises NotObservable where the matrix does not have exactly two parts.
    """
    names = sorted(layer.parts.get(matrix, {}))
    if len(names) != 2:
        raise NotObservable(f"{layer.path}: {matrix} has {_named(names)}; a cosine needs exactly two parts")
    one, two = (_matrix(layer, matrix, name) for name in names)
    inner, first, second = (product.sum((1, 2)) for product in (one * two, one * one, two * two))
    if per == "matrix":
        inner, first, second = (product.sum(0, keepdim=True) for product in (inner, first, second))
    return _value((inner / (first * second).sqrt()).numpy(), per)


def singular_values(layer: LayerWeights, matrix: str, per: str) -> list[Floats]:
    """Singular values in decreasing order, of the whole matrix or of each head's slice; kept on the layer for other requests."""
    import torch

    key = ("singular values", matrix, per)
    if key not in layer.memo:
        heads = _matrix(layer, matrix)
        pieces = heads if per == "head" else heads.reshape(1, -1, heads.shape[2])
        layer.memo[key] = [torch.linalg.svdvals(piece).numpy() for piece in pieces]
    found: list[Floats] = layer.memo[key]
    return found


def fit_window(count: int, fit: str) -> slice:
    """The part of `count` ordered values, as a slice. Raises MeasurementError for fewer than 3 values."""
    which, amount, is_count = parse_part(fit)
    wanted = min(count, int(amount) if is_count else int(amount * count + 0.5))
    if wanted < 3:
        raise MeasurementError(f"fit: {fit!r} of {count} singular values holds {wanted}; a slope needs at least 3")
    start = {"first": 0, "last": count - wanted, "middle": (count - wanted) // 2}[which]
    return slice(start, start + wanted)


def power_law(spectrum: Floats, window: slice) -> tuple[float, float]:
    """(alpha, R^2) of log sigma_k = c - alpha log k over the window; k counts from 1 at the largest singular value."""
    import numpy as np

    x = np.log(np.arange(window.start + 1, window.stop + 1, dtype=np.float64))
    y = np.log(spectrum[window])
    x, y = x - x.mean(), y - y.mean()
    slope = float((x @ y) / (x @ x))
    spread = float(y @ y)
    return -slope, 1.0 if spread == 0 else slope**2 * float(x @ x) / spread


@lru_cache(maxsize=1024)
def gaussian_null(rows: int, columns: int, fit: str) -> tuple[float, float]:
    """Mean alpha of `NULL_DRAWS` Gaussian matrices of a shape and its standard error; the seed is fixed."""
    import numpy as np

    draws = np.random.default_rng(0)
    window = fit_window(min(rows, columns), fit)
    found = [power_law(gaussian_singular_values(rows, columns, draws), window)[0] for _ in range(NULL_DRAWS)]
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(NULL_DRAWS))


def gaussian_singular_values(rows: int, columns: int, draws: np.random.Generator) -> Floats:
    """Singular values of a Gaussian matrix in decreasing order, without the matrix.

    Householder reflections leave a Gaussian m x n matrix (m >= n) bidiagonal with independent chi entries: chi_m .. chi_{m-n+1} on the
    diagonal, chi_{n-1} .. chi_1 beside it. Its singular values are the positive eigenvalues of the 2n x 2n symmetric tridiagonal matrix
    with zeros on the diagonal and the entries interleaved: O(n^2) where an SVD takes O(m n^2).
    """
    import numpy as np
    from scipy.linalg import eigvalsh_tridiagonal

    m, n = max(rows, columns), min(rows, columns)
    beside = np.empty(2 * n - 1)
    beside[0::2] = np.sqrt(draws.chisquare(np.arange(m, m - n, -1)))
    beside[1::2] = np.sqrt(draws.chisquare(np.arange(n - 1, 0, -1)))
    values: Floats = eigvalsh_tridiagonal(np.zeros(2 * n), beside)[::-1][:n]
    return values


def _matrix(layer: LayerWeights, matrix: str, part: str | None = None) -> Tensor:
    """[heads, d, d_model] in float64 on the CPU; the output projection by head as well."""
    whole = layer.matrix(matrix)
    if whole is None:
        raise NotObservable(f"{layer.path}: no {matrix} matrix: {layer.missing.get(matrix, 'the layer has none')}")
    if part is not None:
        parts = layer.parts.get(matrix, {})
        if part not in parts:
            raise NotObservable(f"{layer.path}: {matrix} has no part {part!r}; it has {_named(sorted(parts))}")
        whole = parts[part]
    if matrix == "o":
        whole = whole.permute(1, 2, 0)
    return whole.detach().cpu().double()


def _shape(layer: LayerWeights, matrix: str, per: str) -> tuple[int, int]:
    heads = _matrix(layer, matrix)
    return (heads.shape[1] * (1 if per == "head" else heads.shape[0]), heads.shape[2])


def _named(parts: list[str]) -> str:
    return f"the parts {', '.join(parts)}" if parts else "no parts"


def _value(values: Floats, per: str, companions: dict[str, Floats] | None = None) -> Value:
    """Over heads, or the one number of the whole matrix, with companions of the same shape."""
    if per == "head":
        return Value(values, ("head",), coords={name: (("head",), numbers) for name, numbers in (companions or {}).items()})
    return Value(values[0], (), coords={name: ((), numbers[0]) for name, numbers in (companions or {}).items()})
