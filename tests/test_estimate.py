from __future__ import annotations

import numpy as np
import pytest

from editor import design, estimate
from editor.records import Head

N_UNITS = 120
PLANTED = {7: 1.0, 40: 0.8, 90: 0.6}
ALL = tuple(estimate.ESTIMATORS.values())
SPARSE = (estimate.lasso, estimate.omp)


def planted(n_masks: int, seed: int, noise: float = 0.05):
    rows = design.stratified(range(N_UNITS), n_units=N_UNITS, n_masks=n_masks, size=6, seed=seed)
    X = design.matrix([rows])
    effects = np.zeros(N_UNITS)
    effects[list(PLANTED)] = list(PLANTED.values())
    rng = np.random.default_rng(seed)
    return X, -1.0 - X @ effects + rng.normal(0, noise, n_masks)


@pytest.mark.parametrize("estimator", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_planted_heads_come_first(estimator, seed):
    X, y = planted(100, seed)
    top = np.argsort(-estimator(X, y))[:3]
    assert set(top) == set(PLANTED)


@pytest.mark.parametrize("estimator", SPARSE)
def test_the_size_is_estimated_and_the_rest_left_at_zero(estimator):
    X, y = planted(200, 0)
    found = estimator(X, y)
    for unit, effect in PLANTED.items():
        assert found[unit] == pytest.approx(effect, abs=0.12)
    rest = np.delete(found, list(PLANTED))
    assert np.abs(rest).max() < 0.1


@pytest.mark.parametrize("estimator", SPARSE)
def test_hardly_anything_is_found_in_noise(estimator):
    X, _ = planted(100, 0)
    for seed in range(20):
        y = np.random.default_rng(seed).normal(size=100)
        assert np.count_nonzero(estimator(X, y)) <= 2


@pytest.mark.parametrize("estimator", ALL)
def test_a_constant_score_has_no_effects(estimator):
    X, _ = planted(50, 0)
    assert not estimator(X, np.full(50, -1.0)).any()


@pytest.mark.parametrize("estimator", ALL)
def test_effects_follow_a_permutation_of_the_heads(estimator):
    X, y = planted(100, 1)
    order = np.random.default_rng(5).permutation(N_UNITS)
    assert estimator(X[:, order], y) == pytest.approx(estimator(X, y)[order], abs=1e-4)


def test_pursuit_fits_exactly_what_is_exact_and_stops_there():
    X, _ = planted(100, 3)
    effects = np.zeros(N_UNITS)
    effects[list(PLANTED)] = list(PLANTED.values())
    assert estimate.omp(X, 2.0 - X @ effects) == pytest.approx(effects, abs=1e-9)


def test_intervals_hold_the_effect_and_say_how_often_a_head_was_out():
    X, y = planted(100, 2)
    heads = [Head(0, unit) for unit in range(N_UNITS)]
    losses = -y[:, None] + np.random.default_rng(0).normal(0, 0.1, (100, 20))
    found = {one.head: one for one in estimate.head_effects(X, losses, heads, estimate.ridge)}
    assert len(found) == N_UNITS
    for unit in PLANTED:
        one = found[Head(0, unit)]
        assert one.low <= one.effect <= one.high
        assert one.n_masks == int(X[:, unit].sum())


def test_held_out_fit_is_high_for_signal_and_low_for_noise():
    X, y = planted(300, 0)
    fit = estimate.held_out_r2(X, y)
    assert fit is not None and fit > 0.5
    noise = estimate.held_out_r2(X, np.random.default_rng(0).normal(size=300))
    assert noise is not None and noise < 0.1
    assert estimate.held_out_r2(X, np.zeros(300)) is None


@pytest.mark.parametrize("fit", [*ALL, estimate.held_out_r2])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.ones((0, 3)), np.ones(0)),
        (np.ones((20, 0)), np.ones(20)),
        (np.ones((20, 3)), np.ones(19)),
        (np.ones(20), np.ones(20)),
        (np.ones((20, 3)), np.full(20, np.nan)),
        (np.full((20, 3), np.inf), np.ones(20)),
    ],
)
def test_what_does_not_fit_or_is_no_number_is_refused(fit, X, y):
    with pytest.raises(ValueError, match=r"expected .*, found"):
        fit(X, y)


@pytest.mark.parametrize("estimator", ALL)
def test_heads_that_are_never_out_have_no_effects(estimator):
    assert not estimator(np.zeros((30, 4)), np.random.default_rng(0).normal(size=30)).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("estimator", ALL)
def test_no_warning_reaches_the_user(estimator):
    """Columns that differ by little, on which the Lasso's path does not settle."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 1)) + 0.01 * rng.normal(size=(100, 200))
    assert np.isfinite(estimator(X, rng.normal(size=100))).all()
