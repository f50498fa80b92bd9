# pyright: standard
"""How sure the masks make us of each head: intervals, a null, and what is decided."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from editor.posterior import (
    LIKELY,
    Posterior,
    Variances,
    fixed_terms,
    root_of,
    triangular_solve,
    whiten,
)
from editor.responses import Response

Array = NDArray[np.float64]

N_PERMUTATIONS = 200
NULL_LEVEL = 0.05
"""Share of runs without any real head in which some head may pass for one."""


_NORMAL = 1.96
"""Standard errors to each side of a 95 % interval of a normal distribution."""


class Intervals(NamedTuple):
    """Unshrunk effects with their 95 % intervals; each float64 (n_units,)."""

    effect: Array
    low: Array
    high: Array
    z: Array
    """Effect in standard errors of the masks alone."""


class _Weights(NamedTuple):
    """Each unit's effect as a weighted sum of the losses."""

    weights: Array
    """float64 (n_masks, n_units)."""
    variance: Array
    """float64 (n_units,): of that sum, by the covariance of the losses."""


def intervals(X: Array, response: Response, post: Posterior) -> Intervals:
    """Generalized least squares for every head, with the other likely heads fitted beside it.

    Two errors add up: another set of masks would mix other heads in, and other items would lose
    other amounts.

    Args:
        X: float64 (n_masks, n_units).
        response: what the masks cost, item by item.
        post: what was fitted to the same masks.

    Returns:
        NaN where a unit is in no mask or cannot be told from the likely ones.

    Raises:
        ValueError: the shapes do not fit.
    """
    if X.ndim != 2 or X.shape != (len(response.losses), len(post.effects)):
        raise ValueError(
            f"expected {len(response.losses)} masks of {len(post.effects)} heads, found {X.shape}"
        )
    found = _weights(X, post)
    effect = found.weights.T @ response.losses
    clusters = response.clusters
    # The mean of the background is part of every effect, with its own error.
    weights = found.weights + _background(X, post)[:, None]
    variance = (weights * (post.variances.covariance(X) @ weights)).sum(axis=0)
    known = (weights**2 * post.variances.known[:, None]).sum(axis=0)
    of_masks = np.maximum(variance - known - post.variances.background, 0.0)
    n_clusters = int(clusters.max()) + 1
    if n_clusters > 1:
        of_items = _item_variance(weights.T @ response.items, clusters)
        reach = _reach(n_clusters - 1)
    else:
        of_items, reach = known, _NORMAL
    half = reach * np.sqrt(of_masks + of_items)
    whole = weights.T @ response.losses
    return Intervals(whole, whole - half, whole + half, effect / np.sqrt(found.variance))


def _background(X: Array, post: Posterior) -> Array:
    """The mean loss of a head of the background as a weighted sum of the losses; (n_masks,).

    By generalized least squares with the likely heads beside it: next to effects that are shrunk,
    the background would get what they lack.
    """
    Z = fixed_terms(X)
    if Z.shape[1] == 1:  # no such mean is fitted
        return np.zeros(len(X))
    root = root_of(post.variances.covariance(X))
    likely = np.flatnonzero(post.inclusion >= LIKELY)
    white = triangular_solve(root, np.column_stack([Z, X[:, likely]]))
    return triangular_solve(root, np.linalg.pinv(white)[1], transposed=True)


def _reach(n_free: int) -> float:
    """Standard errors to each side of a 95 % interval, by Student's t."""
    from scipy import special  # pyright: ignore[reportMissingTypeStubs]

    return float(cast("Any", special).stdtrit(n_free, 0.975))


def _item_variance(by_item: Array, clusters: NDArray[np.int64]) -> Array:
    """Variance of a mean over items, float64 (n_units,), from float64 (n_units, n_items)."""
    n_items = by_item.shape[1]
    centred = by_item - by_item.mean(axis=1, keepdims=True)
    n = int(clusters.max()) + 1
    member = np.zeros((n_items, n))
    member[np.arange(n_items), clusters] = 1.0
    sums = centred @ member
    return np.asarray((sums**2).sum(axis=1) / n_items**2 * n / (n - 1), dtype=np.float64)


def _weights(X: Array, post: Posterior) -> _Weights:
    likely = np.flatnonzero(post.inclusion >= LIKELY)
    out = _weights_given(X, post.variances, likely)
    for unit in likely:
        others = likely[likely != unit]
        own = _weights_given(X, post.variances, others, only=int(unit))
        out.weights[:, unit], out.variance[unit] = own.weights[:, 0], own.variance[0]
    return out


def _weights_given(
    X: Array, variances: Variances, beside: NDArray[np.intp], only: int | None = None
) -> _Weights:
    """Weights with the units `beside` fitted too."""
    asked = X if only is None else X[:, [only]]
    Z = np.column_stack([fixed_terms(X), X[:, beside]])
    root = root_of(variances.covariance(X))
    both = triangular_solve(root, np.column_stack([Z, asked]))
    q, _ = np.linalg.qr(both[:, : Z.shape[1]])
    left = both[:, Z.shape[1] :]
    whole = (left**2).sum(axis=0)
    left = left - q @ (q.T @ left)
    weight = (left**2).sum(axis=0)
    weight = np.where(weight > 1e-6 * np.maximum(whole, 1e-12), weight, np.nan)
    return _Weights(triangular_solve(root, left, transposed=True) / weight, 1.0 / weight)


def largest_by_chance(
    X: Array, y: Array, rounds: NDArray[np.int64], post: Posterior, *, seed: int
) -> float:
    """The largest z of any head that chance alone reaches in 1 of 20 runs.

    What the likely heads do not explain is dealt to other masks of the same round, many times
    (Freedman & Lane, 1983).

    Args:
        rounds: the round of each mask, int64 (n_masks,).
    """
    likely = np.flatnonzero(post.inclusion >= LIKELY)
    white = whiten(X, y, post.variances, np.column_stack([fixed_terms(X), X[:, likely]]))
    left_X, left = white.X, white.y
    weight = (left_X**2).sum(axis=0)
    usable = weight > 1e-6
    if not usable.any():
        return _NORMAL
    left_X = left_X[:, usable] / np.sqrt(weight[usable])
    rng = np.random.default_rng(seed)
    # Variances that came out too large would let anything pass: what is left has variance 1 at
    # least, as it would have if they were right.
    spread = float(np.sqrt(np.mean(left**2)))
    left = rng.normal(size=len(left)) if spread < 1e-6 else left / min(spread, 1.0)
    dealt = np.empty((len(y), N_PERMUTATIONS))
    for draw in range(N_PERMUTATIONS):
        order = np.lexsort((rng.random(len(y)), rounds))
        dealt[np.argsort(rounds, kind="stable"), draw] = left[order]
    largest = np.abs(left_X.T @ dealt).max(axis=0)
    return float(np.quantile(largest, 1.0 - NULL_LEVEL))
