# pyright: standard
"""Which heads a score needs, as probabilities: a few single effects that add up.

The model is y = c + m |S| + sum of L single effects + background + noise for a mask S, where a
single effect is one head that is not known, times a size that is not known (Wang, Sarkar,
Carbonetto & Stephens, "A simple new approach to variable selection in regression", 2020).  Fitting
one effect at a time to what the others leave gives each head a probability, and sets of heads that
the masks cannot tell apart.  All other heads are background: each a small random effect, so masks
that share many of them are not independent (a linear mixed model).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

N_EFFECTS = 12
"""Single effects at most; those without evidence switch themselves off."""
N_SWEEPS = 40
"""Rounds over the single effects at most."""
SETTLED = 1e-3
"""Largest change of a fitted value, in standard deviations, at which sweeping ends."""
SIZES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Standard deviations of an effect that are tried, in those of the scores."""
SPREADS = (0.0, 0.03, 0.1, 0.3, 0.6)
"""Shares of the scores' variance that background and misfit are tried at."""
USUAL_SIZE = 0.25
"""Standard deviation of an effect, in those of the scores, when heads are compared."""
LEAST_MISFIT = 1e-4
"""Of that variance: some is always there."""
MEASURED = 1e-6
"""Weight of a unit, as a share of the largest, below which no mask tells anything of it."""
LIKELY = 0.5
"""A head at least this probable is fitted as a head of its own when others are judged."""
LARGEST = 1e100
"""Values from which squares would overflow."""
GROUP_PROBABILITY = 0.95
"""The probability that a group of heads that cannot be told apart holds an effect's head."""


class Variances(NamedTuple):
    """What a mask's score varies by beside the heads that matter."""

    known: Array
    """float64 (n_masks,): from the items alone."""
    misfit: float
    """Of a mask as a whole: what heads do together that they do not do alone."""
    background: float
    """Of each head's small effect."""

    def covariance(self, X: Array) -> Array:
        """float64 (n_masks, n_masks)."""
        return np.diag(self.known + self.misfit) + self.background * (X @ X.T)


class Posterior(NamedTuple):
    """What the masks say of every head."""

    effects: Array
    """float64 (n_units,): posterior mean of the loss when the head is out."""
    inclusion: Array
    """float64 (n_units,): probability that the head is one of those that matter."""
    promise: Array
    """float64 (n_units,): expected loss of each head on top of the others; orders what to measure
    next."""
    groups: tuple[tuple[int, ...], ...]
    """For each effect the fewest units that hold its head with `GROUP_PROBABILITY`, whatever the
    prior says."""
    variances: Variances
    intercept: float
    per_head: float
    """Mean loss of a head of the background."""

    def fitted(self, X: Array) -> Array:
        """The loss that the model expects of each mask, float64 (n_masks,)."""
        return self.intercept + self.per_head * X.sum(axis=1) + X @ self.effects


class Whitened(NamedTuple):
    """Scores and design after removing covariance and fixed terms: errors have variance 1."""

    X: Array
    y: Array


def fit(
    X: Array,
    y: Array,
    known: Array,
    *,
    prior: Array | None = None,
    n_effects: int = N_EFFECTS,
) -> Posterior:
    """Fit the model to masks and what they cost.

    Args:
        X: float64 (n_masks, n_units), 1 where a mask knocks a unit out.
        y: losses, float64 (n_masks,).
        known: variance of each loss that is known from the items, float64 (n_masks,).
        prior: how likely each unit is before any mask, float64 (n_units,); all alike by default.
        n_effects: heads that matter, at most.

    Raises:
        ValueError: the shapes do not fit, a value is not finite, or a prior is not positive.
    """
    X, y, known = (np.asarray(part, dtype=np.float64) for part in (X, y, known))
    if X.ndim != 2:
        raise ValueError(f"expected masks of heads, found an array of shape {X.shape}")
    n_units = X.shape[1]
    shares = np.ones(n_units) if prior is None else np.asarray(prior, dtype=np.float64)
    _check(X, y, known, shares)
    pi = shares / shares.sum()

    def given(likely: NDArray[np.bool_]) -> tuple[Variances, Whitened, _Sums]:
        variances = estimate_variances(X, y, known, fixed=X[:, likely])
        white = whiten(X, y, variances, fixed_terms(X))
        return variances, white, _sweep(white, pi, n_effects)

    _, _, first = given(np.zeros(n_units, dtype=bool))
    variances, white, sums = given(first.inclusion() >= LIKELY)
    effects = sums.effects()
    rest = y - X @ effects
    terms = np.linalg.lstsq(fixed_terms(X), rest, rcond=None)[0]
    return Posterior(
        effects=effects,
        inclusion=sums.inclusion(),
        promise=_promise(white, effects, pi, size=USUAL_SIZE * float(np.std(y))),
        groups=sums.groups(pi),
        variances=variances,
        intercept=float(terms[0]),
        per_head=float(terms[1]) if len(terms) > 1 else 0.0,
    )


def fixed_terms(X: Array) -> Array:
    """A constant, and how many heads a mask has where masks differ enough in that.

    With few heads in all there is no background of many, and their number says which they are.

    Returns:
        float64 (n_masks, 1 or 2).
    """
    sizes = X.sum(axis=1)
    one = np.ones(len(sizes))
    varies = X.shape[1] > N_EFFECTS and sizes.max() > 1.5 * sizes.min()
    return np.column_stack([one, sizes]) if varies else one[:, None]


def estimate_variances(X: Array, y: Array, known: Array, *, fixed: Array) -> Variances:
    """Misfit and background by restricted maximum likelihood over a grid.

    Args:
        fixed: columns of heads that matter, float64 (n_masks, n_fixed): no background.
    """
    Z = np.column_stack([fixed_terms(X), fixed])
    left = float(np.var(y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]))
    # Where a few heads explain everything, a variance of nothing would make all weights infinite.
    spread = max(left, LEAST_MISFIT * float(np.var(y)), 1e-12)
    shared = X @ X.T
    a_head = spread / max(float(np.mean(np.diag(shared))), 1.0)
    best, found = -np.inf, Variances(known, spread, 0.0)

    def better(misfit: float, background: float) -> None:
        nonlocal best, found
        tried = Variances(known, misfit, background)
        value = _restricted_likelihood(np.diag(known + misfit) + background * shared, y, Z)
        if value > best:
            best, found = value, tried

    # One after the other: masks of one size hardly tell the two apart, and a grid of both is slow.
    for one in (*SPREADS, 1.0):
        better(max(one, LEAST_MISFIT) * spread, 0.0)
    for one in SPREADS[1:]:
        better(max(found.misfit - one * spread, LEAST_MISFIT * spread), one * a_head)
        better(found.misfit, one * a_head)
    return found


def _restricted_likelihood(covariance: Array, y: Array, Z: Array) -> float:
    """Log-likelihood of what is left of y after Z, up to a constant (Patterson & Thompson)."""
    root = root_of(covariance)
    both = triangular_solve(root, np.column_stack([y, Z]))
    white_y, white_Z = both[:, 0], both[:, 1:]
    q, r = np.linalg.qr(white_Z)
    left = white_y - q @ (q.T @ white_y)
    logdet = 2 * np.log(np.diag(root)).sum()
    logdet += 2 * np.log(np.maximum(np.abs(np.diag(r)), 1e-9)).sum()
    return float(-0.5 * (logdet + left @ left))


def whiten(X: Array, y: Array, variances: Variances, Z: Array) -> Whitened:
    """Rows decorrelated and scaled to variance 1, with Z projected out."""
    root = root_of(variances.covariance(X))
    both = triangular_solve(root, np.column_stack([y, Z, X]))
    n = Z.shape[1]
    q, _ = np.linalg.qr(both[:, 1 : 1 + n])
    both -= q @ (q.T @ both)
    return Whitened(both[:, 1 + n :], both[:, 0])


def root_of(covariance: Array) -> Array:
    """The lower triangular Cholesky root."""
    return np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)


def triangular_solve(root: Array, right: Array, *, transposed: bool = False) -> Array:
    """root^-1 right, or root^-T right, for a lower triangular root."""
    from scipy import linalg  # pyright: ignore[reportMissingTypeStubs]

    solve = cast("Any", linalg).solve_triangular
    return np.asarray(solve(root, right, lower=True, trans=int(transposed)), dtype=np.float64)


class _Sums:
    """The single effects, each a distribution over the units."""

    def __init__(self, n_effects: int, n_units: int, n_masks: int) -> None:
        self.alpha = np.zeros((n_effects, n_units))
        self.mean = np.zeros((n_effects, n_units))
        self.fitted = np.zeros((n_effects, n_masks))

    def effects(self) -> Array:
        return (self.alpha * self.mean).sum(axis=0)

    def inclusion(self) -> Array:
        return 1.0 - np.prod(1.0 - self.alpha, axis=0)

    def groups(self, prior: Array) -> tuple[tuple[int, ...], ...]:
        """By the masks alone: what only the prior tells apart stays together."""
        found: list[tuple[int, ...]] = []
        for drawn in self.alpha:
            if not drawn.any():
                continue
            alpha = drawn / prior
            alpha /= alpha.sum()
            order = np.argsort(-alpha)
            n = int(np.searchsorted(np.cumsum(alpha[order]), GROUP_PROBABILITY)) + 1
            found.append(tuple(sorted(map(int, order[:n]))))
        return tuple(dict.fromkeys(found))


def _sweep(white: Whitened, prior: Array, n_effects: int) -> _Sums:
    """Fit each single effect to what the others leave, until nothing moves."""
    n_masks, n_units = white.X.shape
    sums = _Sums(n_effects, n_units, n_masks)
    # Not the deviation from the mean: that of whitened scores depends on the order of the masks.
    scale = float(np.sqrt(np.mean(white.y**2)))
    if scale < SETTLED:  # all masks cost the same
        return sums
    weight = np.maximum((white.X**2).sum(axis=0), 1e-12)
    measured = weight > MEASURED * weight.max()
    sizes = scale * np.asarray(SIZES) / float(np.sqrt(np.median(weight[measured]) / n_masks))
    total = np.zeros(n_masks)
    for _ in range(N_SWEEPS):
        before = total.copy()
        for one in range(n_effects):
            if one and not sums.alpha[one - 1 :].any():
                break  # the one before it found nothing left
            others = total - sums.fitted[one]
            estimate = white.X.T @ (white.y - others) / weight
            alpha, mean = _single(estimate, 1.0 / weight, np.log(prior), sizes)
            sums.alpha[one], sums.mean[one] = alpha, mean
            sums.fitted[one] = white.X @ (alpha * mean) if alpha.any() else 0.0
            total = others + sums.fitted[one]
        if float(np.abs(total - before).max()) < SETTLED:
            break
    return sums


def _single(
    estimate: Array, variance: Array, log_prior: Array, sizes: Array
) -> tuple[Array, Array]:
    """One effect: probability of every unit, and its size there.

    The prior's size is the one under which the data are likeliest; size 0 is no effect at all.
    """
    best, found = 0.0, (np.zeros_like(estimate), np.zeros_like(estimate))
    for size in sizes:
        logs = log_prior + log_bayes(estimate, variance, size**2)
        evidence = log_sum(logs)
        if evidence > best:
            shrunk = estimate * size**2 / (size**2 + variance)
            best, found = evidence, (np.exp(logs - evidence), shrunk)
    return found


def log_sum(logs: Array) -> float:
    """The logarithm of the sum of what these are the logarithms of."""
    top = float(logs.max())
    return top + float(np.log(np.exp(logs - top).sum()))


def log_bayes(estimate: Array, variance: Array, size2: float | Array) -> Array:
    """Log of the Bayes factor for an effect of variance `size2` (Wakefield's approximation)."""
    shrink = size2 / (size2 + variance)
    return 0.5 * np.log1p(-shrink) + 0.5 * estimate**2 / variance * shrink


def _promise(white: Whitened, effects: Array, prior: Array, *, size: float) -> Array:
    """Expected loss of each unit on top of what the others explain; negative where it helps.

    With one prior `size` for all units: else those that were measured least would look best.
    """
    weight = np.maximum((white.X**2).sum(axis=0), 1e-12)
    estimate = white.X.T @ (white.y - white.X @ effects) / weight + effects
    variance = 1.0 / weight
    size2 = max(size**2, 1e-12)
    odds = np.log(prior / (1.0 - prior)) + log_bayes(estimate, variance, size2)
    probability = 1.0 / (1.0 + np.exp(np.minimum(-odds, 700.0)))
    return np.asarray(probability * estimate * size2 / (size2 + variance), dtype=np.float64)


def _check(X: Array, y: Array, known: Array, prior: Array) -> None:
    if not X.size:
        raise ValueError(f"expected masks of heads, found an array of shape {X.shape}")
    shapes: Sequence[tuple[int, ...]] = (X.shape[:1], y.shape, known.shape)
    if len(set(shapes)) != 1:
        raise ValueError(f"expected one score and one variance a mask, found shapes {shapes}")
    if prior.shape != X.shape[1:]:
        raise ValueError(f"expected one prior a head, found {prior.shape} for {X.shape[1:]}")
    if not all((np.abs(part) < LARGEST).all() for part in (X, y, known, prior)):
        raise ValueError(f"expected finite scores below {LARGEST:g}, found some that are not")
    if (known < 0).any():
        raise ValueError("expected variances of at least 0, found one below")
    if not (prior > 0).all():
        raise ValueError("expected a prior above 0 for every head, found one that is not")
