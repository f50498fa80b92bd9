"""How few heads hold a capability, and which heads two capabilities share.

An effect counts to the total when its 95 % interval lies above zero, or where a posterior was
fitted, when its head is more likely than not one of those that matter: the sum of hundreds of
effects that are noise would outweigh the few that are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from editor.records import Estimate, Head, HeadEffect, Overlap, TopShare

Array = NDArray[np.float64]

KS = (1, 2, 3, 5, 10, 20)
"""How many of the strongest heads a share is told for."""
N_DRAWS = 4000
LIKELY = 0.5
"""Probability that a head matters from which its effect counts, where a posterior was fitted."""
Z_95 = 1.959964
"""Half the width of a normal distribution's central 95 %, in standard deviations."""


class Tally(NamedTuple):
    """The effects of one estimate that are told from zero, as shares of their sum."""

    heads: tuple[HeadEffect, ...]
    """The strongest first."""
    total: float
    """In the score's unit."""
    shares: Array
    """Held by the first 1, 2, ... heads, float64 (n_told,), rising to 1."""
    draws: Array
    """The same, drawn from the heads' intervals, float64 (N_DRAWS, n_told)."""

    def top(self, k: int) -> tuple[float, Array]:
        """Share of the first k heads, and its draws, float64 (N_DRAWS,)."""
        return float(self.shares[k - 1]), self.draws[:, k - 1]

    def half(self) -> tuple[int, tuple[int, int]]:
        """How many heads hold half of the total, with a 95 % interval."""
        counts = 1 + np.argmax(self.draws >= 0.5, axis=1)
        low, high = np.percentile(counts, [2.5, 97.5], method="nearest")
        return 1 + int(np.argmax(self.shares >= 0.5)), (int(low), int(high))


def is_told(one: HeadEffect) -> bool:
    """Whether an effect is told from zero, by its interval or by the posterior of its head."""
    likely = one.probability is not None and one.probability >= LIKELY
    return one.effect != 0 and (likely or one.low > 0 or one.high < 0)


def told(estimate: Estimate) -> tuple[HeadEffect, ...]:
    """The heads that cost something when they are out, told from zero, the strongest first."""
    found = [one for one in estimate.effects if one.effect > 0 and is_told(one)]
    return tuple(sorted(found, key=lambda one: (-one.effect, one.head)))


def tally(estimate: Estimate) -> Tally:
    """Shares of the total, with a parametric bootstrap for their intervals.

    In each draw every effect is normally distributed with its own spread on either side, such that
    95 % of the draws lie inside the head's interval, and cut at zero.  The heads keep the order of
    their effects in every draw.  So an interval is that of the same k heads, and does not cover
    that they were picked for being large: where effects are close, the first k are overrated.  The
    heads are drawn independently, though they were measured on the same items.

    The seed comes from the estimate: a run has the same interval whatever it is compared with, and
    two runs have independent ones.
    """
    heads = told(estimate)
    effect, low, high = (
        np.array([getattr(one, end) for one in heads], dtype=np.float64)
        for end in ("effect", "low", "high")
    )
    rng = np.random.default_rng(int(estimate.digest()[:16], 16))
    normal: Array = rng.normal(size=(N_DRAWS, len(heads)))
    spread = np.maximum(np.where(normal < 0, effect - low, high - effect), 0) / Z_95
    drawn = np.maximum(effect + spread * normal, 0)
    return Tally(heads, float(effect.sum()), _shares(effect[None])[0], _shares(drawn))


def top_shares(estimate: Estimate, found: Tally, n_heads: int) -> tuple[TopShare, ...]:
    """Shares for every k up to the number of heads told from zero, and for `KS` above it."""
    n_told = len(found.heads)
    if not n_told:
        return ()
    low, high = np.percentile(found.draws, [2.5, 97.5], axis=0)
    positive = np.sort([one.effect for one in estimate.effects if one.effect > 0])[::-1]
    of_positive = _shares(positive[None])[0]
    return tuple(
        TopShare(
            k=k,
            of_heads=k / n_heads,
            share=float(found.shares[k - 1]) if k < n_told else 1.0,
            ci=(float(low[k - 1]), float(high[k - 1])) if k < n_told else (1.0, 1.0),
            of_positive=float(of_positive[min(k, len(positive)) - 1]),
        )
        for k in sorted({*range(1, n_told + 1), *(k for k in KS if k <= n_heads)})
    )


def overlap(a: Sequence[Head], b: Sequence[Head], n_heads: int) -> Overlap:
    """The heads in both sets, against two sets of these sizes drawn from `n_heads` heads.

    Hypergeometric: P(X = x) = C(a, x) C(n - a, b - x) / C(n, b), and a b / n on average.
    """
    inside = frozenset(b)
    both = tuple(head for head in a if head in inside)
    as_many = sum(
        comb(len(a), x) * comb(n_heads - len(a), len(b) - x)
        for x in range(len(both), min(len(a), len(b)) + 1)
    )
    return Overlap(
        n_a=len(a),
        n_b=len(b),
        heads=both,
        expected=len(a) * len(b) / n_heads if n_heads else 0.0,
        p=as_many / comb(n_heads, len(b)),
    )


def spearman(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rank correlation, values that are equal at their middle rank.

    Returns:
        The correlation, or None where it has none: all values of one side are equal.
    """
    a, b = (_ranks(values) - (len(values) + 1) / 2 for values in (x, y))
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else None


def _shares(effects: Array) -> Array:
    """Running sums along the second axis as shares of the last; 1 where nothing is to be shared."""
    sums = effects.cumsum(axis=1)
    whole = sums[:, -1:]
    return np.divide(sums, whole, out=np.ones_like(sums), where=whole > 0)


def _ranks(values: Sequence[float]) -> Array:
    found = cast("Any", np).unique(values, return_inverse=True, return_counts=True)
    count: Array = found[2]
    middle = np.cumsum(count) - (count - 1) / 2
    return middle[found[1].reshape(-1)]
