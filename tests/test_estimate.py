from __future__ import annotations

import numpy as np
import pytest

from editor import design, estimate
from editor.records import Head

N_UNITS = 120
PLANTED = {7: 1.0, 40: 0.8, 90: 0.6}


def planted(n_masks: int, seed: int, noise: float = 0.05):
    rows = design.stratified(range(N_UNITS), n_units=N_UNITS, n_masks=n_masks, size=6, seed=seed)
    X = design.matrix([rows])
    effects = np.zeros(N_UNITS)
    effects[list(PLANTED)] = list(PLANTED.values())
    rng = np.random.default_rng(seed)
    return X, -1.0 - X @ effects + rng.normal(0, noise, n_masks)


@pytest.mark.parametrize("estimator", [estimate.lasso, estimate.published_lasso, estimate.ridge])
@pytest.mark.parametrize("seed", range(3))
def test_planted_heads_come_first(estimator, seed):
    X, y = planted(100, seed)
    top = np.argsort(-estimator(X, y))[:3]
    assert set(top) == set(PLANTED)


def test_lasso_estimates_the_size_and_leaves_the_rest_at_zero():
    X, y = planted(200, 0)
    found = estimate.lasso(X, y)
    for unit, effect in PLANTED.items():
        assert found[unit] == pytest.approx(effect, abs=0.12)
    rest = np.delete(found, list(PLANTED))
    assert np.abs(rest).max() < 0.1


def test_lasso_finds_nothing_in_noise():
    X, _ = planted(100, 0)
    for seed in range(20):
        y = np.random.default_rng(seed).normal(size=100)
        assert np.count_nonzero(estimate.lasso(X, y)) <= 2


@pytest.mark.parametrize("estimator", [estimate.lasso, estimate.published_lasso, estimate.ridge])
def test_a_constant_score_has_no_effects(estimator):
    X, _ = planted(50, 0)
    assert not estimator(X, np.full(50, -1.0)).any()


@pytest.mark.parametrize("estimator", [estimate.lasso, estimate.ridge])
def test_effects_follow_a_permutation_of_the_heads(estimator):
    X, y = planted(100, 1)
    order = np.random.default_rng(5).permutation(N_UNITS)
    assert estimator(X[:, order], y) == pytest.approx(estimator(X, y)[order], abs=1e-4)


def test_pool_evidence_clears_the_units_of_a_cheap_mask():
    X = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=float)
    losses = np.array([2.0, 0.0, 2.0, 0.0])  # unit 0 alone costs 2
    evidence = estimate.pool_evidence(X, losses)
    assert int(np.argmax(evidence)) == 0


def test_pool_evidence_of_an_untested_unit_is_the_least():
    X = np.array([[1, 0, 0], [0, 1, 0]], dtype=float)
    assert estimate.pool_evidence(X, np.array([1.0, 0.5]))[2] == -np.inf


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
