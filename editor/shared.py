# pyright: standard
"""Several tasks fitted together: which heads all of them need, and which only one.

As `posterior`, with one difference: a single effect is one head that takes something off some of
the tasks, each with a chance of a half.  So a head that all tasks need is found once from all of
them, and a head of one task is not credited with the others' losses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from editor.posterior import (
    LEAST_MISFIT,
    MEASURED,
    N_EFFECTS,
    N_SWEEPS,
    SETTLED,
    SIZES,
    SPREADS,
    Array,
    fixed_terms,
    log_bayes,
    log_sum,
    root_of,
    triangular_solve,
)

LEAST_NOISE = 1e-3
"""Least noise of a task, in standard deviations of its losses: none would let nothing stand out."""


class Shared(NamedTuple):
    """What the masks say of every head, task by task."""

    effects: Array
    """float64 (n_units, n_tasks): posterior mean of the loss when the head is out."""
    inclusion: Array
    """float64 (n_units,): probability that the head matters to any task."""
    loads: Array
    """float64 (n_units, n_tasks): probability that the task needs the head or is hurt by it."""


def fit(X: Array, Y: Array, *, n_effects: int = N_EFFECTS + 4) -> Shared:
    """Fit all tasks' losses at once.

    Args:
        X: float64 (n_masks, n_units), 1 where a mask knocks a unit out.
        Y: losses, float64 (n_masks, n_tasks).
        n_effects: heads that matter to any task, at most.

    Raises:
        ValueError: the shapes do not fit, there is no mask, head or task, or a value is not finite.
    """
    if X.ndim != 2 or 0 in (*X.shape, *Y.shape):
        raise ValueError(f"expected masks, heads and tasks, found shapes {X.shape} and {Y.shape}")
    if Y.ndim != 2 or len(X) != len(Y) or not (np.isfinite(X).all() and np.isfinite(Y).all()):
        raise ValueError(f"expected finite losses of {len(X)} masks, found shape {Y.shape}")
    white_X, white_Y, scales = _whitened(X, Y)
    n_masks, n_units = white_X.shape
    weight = np.maximum((white_X**2).sum(axis=0), 1e-12)
    measured = weight > MEASURED * weight.max()
    spread = float(white_Y.std()) / float(np.sqrt(np.median(weight[measured]) / n_masks))
    alpha = np.zeros((n_effects, n_units))
    mean = np.zeros((n_effects, n_units, Y.shape[1]))
    load = np.zeros_like(mean)
    fitted = np.zeros((n_effects, *white_Y.shape))
    total = np.zeros_like(white_Y)
    for _ in range(N_SWEEPS):
        before = total.copy()
        for one in range(n_effects):
            if one and not alpha[one - 1 :].any():
                break  # the one before it found nothing left
            others = total - fitted[one]
            estimate = white_X.T @ (white_Y - others) / weight[:, None]
            alpha[one], load[one], mean[one] = _single(
                estimate, 1.0 / weight[:, None], spread * np.asarray(SIZES)
            )
            fitted[one] = white_X @ (alpha[one][:, None] * load[one] * mean[one])
            total = others + fitted[one]
        if float(np.abs(total - before).max()) < SETTLED * 10:
            break
    matters = alpha[:, :, None] * load
    return Shared(
        effects=(matters * mean).sum(axis=0) * scales,
        inclusion=1.0 - np.prod(1.0 - alpha, axis=0),
        loads=1.0 - np.prod(1.0 - matters, axis=0),
    )


def _whitened(X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """Design and losses with errors of variance 1, and the losses' scales, float64 (n_tasks,).

    All tasks get one mixture of misfit and background, the likeliest for all of them.
    """
    Z = fixed_terms(X)
    shared = X @ X.T
    shared /= max(float(np.mean(np.diag(shared))), 1.0)
    best: tuple[float, Array] = (-np.inf, np.empty(0))
    for background in SPREADS:
        root = root_of(max(1.0 - background, LEAST_MISFIT) * np.eye(len(X)) + background * shared)
        left = _without(triangular_solve(root, np.column_stack([Y, Z])), Z.shape[1])
        value = -0.5 * len(X) * np.log((left**2).sum(axis=0) + 1e-300).sum()
        value -= Y.shape[1] * np.log(np.diag(root)).sum()
        if value > best[0]:
            best = (float(value), root)
    both = triangular_solve(best[1], np.column_stack([X, Y, Z]))
    left = _without(both, Z.shape[1])
    white_X, white_Y = left[:, : X.shape[1]], left[:, X.shape[1] :]
    least = np.maximum(LEAST_NOISE * white_Y.std(axis=0), 1e-12)
    scales = np.maximum(_noise(white_X, white_Y), least)
    return white_X, white_Y / scales, scales


def _without(both: Array, n_fixed: int) -> Array:
    """The first columns with the last `n_fixed` projected out."""
    q, _ = np.linalg.qr(both[:, -n_fixed:])
    left = both[:, :-n_fixed]
    return left - q @ (q.T @ left)


def _noise(X: Array, Y: Array) -> Array:
    """Standard deviation of each task once the heads that stand out are fitted; float64 (n_tasks,).

    Matching pursuit on all tasks together, of a tenth of the masks at most.
    """
    norm = np.sqrt(np.maximum((X**2).sum(axis=0), 1e-12))
    left, taken = Y, list[int]()
    for _ in range(min(N_EFFECTS, len(Y) // 10)):
        score = ((X.T @ (left / np.maximum(left.std(axis=0), 1e-12))) ** 2).sum(axis=1) / norm**2
        score[taken] = -np.inf
        taken.append(int(np.argmax(score)))
        q, _ = np.linalg.qr(X[:, taken])
        left = Y - q @ (q.T @ Y)
    return np.sqrt((left**2).sum(axis=0) / max(len(Y) - len(taken) - 1, 1))


def _single(
    estimate: Array, variance: Array, sizes: NDArray[np.float64]
) -> tuple[Array, Array, Array]:
    """One effect: probability of every unit, that it loads on each task, and its size there."""
    n_units = len(estimate)
    best, found = 0.0, (np.zeros(n_units), np.zeros_like(estimate), np.zeros_like(estimate))
    for size in sizes:
        bayes = log_bayes(estimate, variance, size**2)
        either = np.logaddexp(0.0, bayes) - np.log(2.0)
        logs = either.sum(axis=1) - np.log(n_units)
        evidence = log_sum(logs)
        if evidence > best:
            load = np.exp(bayes - np.log(2.0) - either)
            shrunk = estimate * size**2 / (size**2 + variance)
            best, found = evidence, (np.exp(logs - evidence), load, shrunk)
    return found
