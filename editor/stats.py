"""Intervals for paired comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from editor.records import Item, Metric, Scores

N_BOOT = 2000
HEADROOM_ERRORS = 5.0
"""Standard errors that must lie between a base score and the floor for a drop to mean anything."""
Array = NDArray[np.float64]


class Change(NamedTuple):
    """edited - base, with the ends of its 95 % interval."""

    base: float
    edited: float
    change: float
    low: float
    high: float


def values(scores: Scores, metric: Metric) -> tuple[Array, Array]:
    """A metric as per-item numerators and weights: the metric is sum(numerators) / sum(weights).

    `nats_per_token` weighs an item by its tokens; the others count every item once.

    Returns:
        Two arrays, float64 (n_items,).
    """
    n_tokens = np.asarray(scores.n_tokens, dtype=np.float64)
    if metric == "nats_per_token":
        return -np.asarray(scores.logprob), n_tokens
    if metric == "logprob":
        return np.asarray(scores.logprob), np.ones(len(n_tokens))
    return np.asarray(scores.exact), np.ones(len(n_tokens))


def mean(scores: Scores, metric: Metric) -> float:
    """The metric over all items."""
    numerators, weights = values(scores, metric)
    return float(numerators.sum() / weights.sum())


def paired_change(
    base: Scores, edited: Scores, metric: Metric, items: Sequence[Item], *, seed: int = 0
) -> Change:
    """Change of a metric with a 95 % percentile bootstrap interval.

    Items about the same thing (same key) are resampled together: they are not independent.
    """
    (before, weights), (after, _) = values(base, metric), values(edited, metric)
    b, e, w = _resampled((before, after, weights), items, seed)
    low, high = map(float, np.percentile((e - b) / w, [2.5, 97.5]))
    if metric == "exact":
        low, high = _widened(after - before, items, (low, high), least=-1.0)
    first, second = before.sum() / weights.sum(), after.sum() / weights.sum()
    return Change(float(first), float(second), float(second - first), low, high)


def share_interval(
    sample: Sequence[float] | Array, items: Sequence[Item], *, least: float = 0.0
) -> tuple[float, float]:
    """`mean_interval` of outcomes that are yes or no, or with `least` -1 of their changes."""
    flat = np.asarray(sample, dtype=np.float64)
    return _widened(flat, items, mean_interval(flat, items), least=least)


def _widened(
    sample: Array, items: Sequence[Item], found: tuple[float, float], *, least: float
) -> tuple[float, float]:
    """The interval; where all outcomes are alike, resampling them would give it no width.

    With n outcomes alike, another one may still have a probability of 1 - 0.025^(1/n) (Clopper &
    Pearson, 1934); items with one key count once.
    """
    if np.ptp(sample) > 0:
        return found
    value, n = float(sample[0]), len({item.key for item in items})
    beyond = 1.0 - 0.025 ** (1.0 / n)
    return max(value - beyond, least), min(value + beyond, 1.0)


def mean_interval(
    sample: Sequence[float] | Array, items: Sequence[Item], *, seed: int = 0, tail: float = 2.5
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean, items with one key resampled together.

    Args:
        tail: percent left out at each end; 2.5 makes the interval one of 95 %.
    """
    flat = np.asarray(sample, dtype=np.float64)
    return ratio_interval(flat, np.ones(len(flat)), items, seed=seed, tail=tail)


def ratio_interval(
    above: Array, below: Array, items: Sequence[Item], *, seed: int = 0, tail: float = 2.5
) -> tuple[float, float]:
    """The same of the ratio of two sums over the items.

    Args:
        below: its sum is surely above 0: of the few resamples in which it is not, there is no
            ratio.
    """
    a, b = _resampled((above, below), items, seed)
    low, high = np.percentile(a[b > 0] / b[b > 0], [tail, 100 - tail])
    return float(low), float(high)


def above_floor(score: float, floor: float, n: int) -> float:
    """How many standard errors a share of n items lies above the floor.

    The error is never 0, so that 0 of n or n of n right is not certainty.
    """
    share = min(max(score, floor, 1 / n), 1 - 1 / n) if n > 1 else 0.5
    return (score - floor) / (share * (1 - share) / n) ** 0.5


def wilson(share: float, n: int) -> tuple[float, float]:
    """95 % interval of a share of n independent items (Wilson, JASA 22:209, 1927)."""
    z2 = 1.959964**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = (z2 * (share * (1 - share) / n + z2 / (4 * n * n))) ** 0.5 / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def clusters_of(items: Sequence[Item]) -> NDArray[np.int64]:
    """Which items are about the same thing, numbered by first appearance; int64 (n_items,)."""
    keys = {key: place for place, key in enumerate(dict.fromkeys(item.key for item in items))}
    return np.array([keys[item.key] for item in items], dtype=np.int64)


def _resampled(parts: Sequence[Array], items: Sequence[Item], seed: int) -> list[Array]:
    """Sums of each part over resamples of the items; each float64 (N_BOOT,)."""
    cluster = clusters_of(items)
    n = int(cluster.max()) + 1
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(n, np.full(n, 1 / n), size=N_BOOT)
    sums: list[Array] = [np.bincount(cluster, part, n).astype(np.float64) for part in parts]
    return [draws @ one for one in sums]
