"""From masks and scores to an effect for every head: y = b0 + X b, sparse in b.

Estimators are replaceable functions of one type: X float64 (n_masks, n_units) and
y float64 (n_masks,) in, float64 (n_units,) out, positive where the score needs the unit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from editor.records import Head, HeadEffect

Array = NDArray[np.float64]
Estimator = Callable[[Array, Array], Array]

MOST_PURSUED = 40
"""Units after which matching pursuit stops: a capability has fewer."""
N_BOOT = 100
"""Resamples of the items for an interval of a regression's effects."""


def _check(X: Array, y: Array) -> None:
    if X.ndim != 2 or y.ndim != 1 or len(X) != len(y) or not X.size:
        raise ValueError(
            "expected X (n_masks, n_units) and y (n_masks,), none of them empty, "
            f"found shapes {X.shape} and {y.shape}"
        )
    for name, values in (("X", X), ("y", y)):
        if not np.isfinite(values).all():
            wrong = int((~np.isfinite(values)).sum())
            raise ValueError(f"expected finite numbers in {name}, found {wrong} that are not")


@contextmanager
def _unsettled_is_used() -> Generator[None]:
    """A path that is not wholly settled where heads are always out together is near enough."""
    from sklearn.exceptions import ConvergenceWarning  # pyright: ignore[reportMissingTypeStubs]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def published_lasso(X: Array, y: Array) -> Array:
    """The published recipe: Lasso with intercept and penalty 0.01 on the standardized score.

    Bair et al., arXiv 2603.03335: argmin 1/(2M) ||y - b0 - X b||^2 + 0.01 ||b||_1.

    Returns:
        Effects in the score's unit, float64 (n_units,).

    Raises:
        ValueError: a shape does not fit or is empty, or a value is not finite.
    """
    _check(X, y)
    from sklearn.linear_model import Lasso  # pyright: ignore[reportMissingTypeStubs]

    spread = float(y.std())
    if spread == 0:
        return np.zeros_like(X[0])
    fit = Lasso(alpha=0.01, max_iter=50_000)
    with _unsettled_is_used():
        cast("Any", fit).fit(X, (y - y.mean()) / spread)
    standardized: Array = np.asarray(cast("Any", fit).coef_, dtype=np.float64)
    return -spread * standardized


def lasso(X: Array, y: Array) -> Array:
    """Lasso with intercept; the penalty is chosen by the Bayesian information criterion.

    With fewer masks than units, cross-validation keeps units that only fit noise; of 40 scores that
    were pure noise, this kept any unit for three.

    Returns:
        Effects in the score's unit, float64 (n_units,).

    Raises:
        ValueError: a shape does not fit or is empty, or a value is not finite.
    """
    _check(X, y)
    from sklearn import linear_model  # pyright: ignore[reportMissingTypeStubs]

    used = np.flatnonzero(X.any(axis=0))
    out = np.zeros(X.shape[1])
    centred_X, centred_y = X[:, used] - X[:, used].mean(axis=0), y - y.mean()
    if not centred_y.any() or not centred_X.any():
        return out
    n = len(centred_y)
    # A grid of our own: the keyword for its length is not the same in all releases.
    largest = float(np.abs(centred_X.T @ centred_y).max()) / n
    penalties = largest * np.logspace(0, -3, 60)
    with _unsettled_is_used():
        fitted = cast("Any", linear_model).lasso_path(
            centred_X, centred_y, alphas=penalties, max_iter=20_000
        )
    paths: Array = fitted[1]
    residual = ((centred_y[:, None] - centred_X @ paths) ** 2).sum(axis=0)
    size = (paths != 0).sum(axis=0)
    allowed = size <= n // 3
    cost = n * np.log(residual / n + 1e-12) + size * np.log(n)
    best = int(np.argmin(np.where(allowed, cost, np.inf)))
    out[used] = -paths[:, best]
    return out


def ridge(X: Array, y: Array, *, penalty: float = 2.0) -> Array:
    """Ridge regression with intercept: every unit of a costly mask shares the blame.

    Unlike the Lasso it does not drop all but one of the units that appear together.

    Returns:
        Effects in the score's unit, float64 (n_units,).

    Raises:
        ValueError: a shape does not fit or is empty, or a value is not finite.
    """
    _check(X, y)
    centred_X, centred_y = X - X.mean(axis=0), y - y.mean()
    gram = centred_X @ centred_X.T + penalty * np.eye(len(y))
    return -np.asarray(centred_X.T @ np.linalg.solve(gram, centred_y), dtype=np.float64)


def omp(X: Array, y: Array) -> Array:
    """Orthogonal matching pursuit; the extended Bayesian criterion chooses the number of units.

    Pati, Rezaiifar & Krishnaprasad (1993): the unit that explains most of what is left joins, and
    all are fitted anew.  Each unit is the best of many, which the plain criterion leaves out: it
    kept 30 of 120 units for pure noise (Chen & Chen, 2008).

    Returns:
        Effects in the score's unit, float64 (n_units,).

    Raises:
        ValueError: a shape does not fit or is empty, or a value is not finite.
    """
    _check(X, y)
    n, out = len(y), np.zeros(X.shape[1])
    centred_X, centred_y = X - X.mean(axis=0), y - y.mean()
    if not centred_X.any():
        return out
    norm = np.sqrt(np.maximum((centred_X**2).sum(axis=0), 1e-12))
    a_unit = np.log(n) + 2 * np.log(X.shape[1])
    best, left, taken = np.inf, centred_y, list[int]()
    for size in range(min(n // 3, X.shape[1]) + 1):
        cost = n * np.log(float(left @ left) / n + 1e-12) + size * a_unit
        if cost < best:
            best, out = cost, np.zeros(X.shape[1])
            out[taken] = -_least_squares(centred_X[:, taken], centred_y)
        if not left.any() or size > MOST_PURSUED:
            break
        taken.append(int(np.argmax(np.abs(centred_X.T @ left) / norm)))
        part = centred_X[:, taken]
        left = centred_y - part @ _least_squares(part, centred_y)
    return out


def _least_squares(X: Array, y: Array) -> Array:
    return np.asarray(np.linalg.lstsq(X, y, rcond=None)[0], dtype=np.float64)


def head_effects(
    X: Array, losses: Array, heads: Sequence[Head], estimator: Estimator, *, seed: int = 0
) -> list[HeadEffect]:
    """Effects of all heads that some mask knocked out, with intervals over resampled items.

    Args:
        X: float64 (n_masks, n_units).
        losses: float64 (n_masks, n_items), baseline minus score of every item.
        heads: the head of each unit.
        estimator: fitted on the mean over the items.
    """
    effects = estimator(X, -losses.mean(axis=1))
    rng = np.random.default_rng(seed)
    n_items = losses.shape[1]
    draws = np.array(
        [
            estimator(X, -losses[:, rng.integers(n_items, size=n_items)].mean(axis=1))
            for _ in range(N_BOOT)
        ]
    )  # (N_BOOT, n_units)
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    count = X.sum(axis=0).astype(int)
    return [
        HeadEffect(
            head=heads[unit],
            effect=float(effects[unit]),
            low=float(min(low[unit], effects[unit])),
            high=float(max(high[unit], effects[unit])),
            n_masks=int(count[unit]),
        )
        for unit in map(int, np.flatnonzero(count))
    ]


def held_out_r2(X: Array, y: Array, *, n_folds: int = 5, seed: int = 0) -> float | None:
    """R^2 of the ridge fit on masks left out of it; None where there is nothing to explain.

    Raises:
        ValueError: a shape does not fit or is empty, or a value is not finite.
    """
    _check(X, y)
    if len(y) < 2 * n_folds or not np.ptp(y):
        return None
    rng = np.random.default_rng(seed)
    fold = rng.permutation(len(y)) % n_folds
    error = 0.0
    for one in range(n_folds):
        fit, test = fold != one, fold == one
        effects = ridge(X[fit], y[fit])
        intercept = y[fit].mean() + (X[fit] @ effects).mean()
        error += float(((y[test] - intercept + X[test] @ effects) ** 2).sum())
    return 1.0 - error / float(((y - y.mean()) ** 2).sum())


ESTIMATORS: dict[str, Estimator] = {
    "Lasso, BIC": lasso,
    "orthogonal matching pursuit, BIC": omp,
    "ridge": ridge,
    "Lasso, penalty 0.01": published_lasso,
}
"""The rivals, by the name that reports show."""
