"""The posterior on masks whose heads' effects are known, and on masks that say nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor import design, posterior
from editor.posterior import Posterior
from editor.records import Design

N_UNITS = 100
PLANTED = {7: 1.0, 40: 0.8, 90: 0.6}


def effects_of(planted: dict[int, float], n_units: int = N_UNITS) -> np.ndarray:
    effects = np.zeros(n_units)
    effects[list(planted)] = list(planted.values())
    return effects


def masks(n_rounds: int = 6, seed: int = 0, n_units: int = N_UNITS) -> np.ndarray:
    rows = design.partitions(range(n_units), n_units=n_units, n_rounds=n_rounds, size=8, seed=seed)
    return design.matrix([rows])


def fit_planted(planted: dict[int, float], *, seed: int = 0, noise: float = 0.05) -> Posterior:
    X = masks(seed=seed)
    rng = np.random.default_rng(seed)
    y = 0.3 + X @ effects_of(planted) + rng.normal(0, noise, len(X))
    return posterior.fit(X, y, np.zeros(len(X)))


def test_two_heads_alone_are_told_apart_though_their_number_is_their_sum() -> None:
    X = np.array([[0, 1], [1, 0], [1, 1], [0, 0]] * 6, dtype=float)
    y = X @ [2.0, 1.0] + np.random.default_rng(0).normal(0, 0.05, len(X))
    post = posterior.fit(X, y, np.zeros(len(X)))
    assert post.effects == pytest.approx([2.0, 1.0], rel=0.3)  # some of it is taken for background
    assert (post.inclusion > 0.9).all()


@pytest.mark.parametrize(
    ("X", "y", "known"),
    [
        (np.ones(4), np.ones(4), np.zeros(4)),
        (masks(), np.ones(len(masks())) * 1e200, np.zeros(len(masks()))),
        (masks(), np.ones(len(masks())), -np.ones(len(masks()))),
    ],
)
def test_what_cannot_be_fitted_is_a_value_error(
    X: np.ndarray, y: np.ndarray, known: np.ndarray
) -> None:
    with pytest.raises(ValueError, match="expected"):
        posterior.fit(X, y, known)


def test_lists_and_truth_values_are_masks_too() -> None:
    X = masks()
    y = X @ effects_of(PLANTED)
    plain = posterior.fit(X, y, np.zeros(len(X)))
    assert np.array_equal(posterior.fit(X > 0, y, np.zeros(len(X))).effects, plain.effects)
    assert np.array_equal(posterior.fit(X.tolist(), list(y), [0.0] * len(X)).effects, plain.effects)


@pytest.mark.parametrize("seed", range(5))
def test_planted_effects_are_found_and_sized_and_no_others(seed: int) -> None:
    post = fit_planted(PLANTED, seed=seed)
    assert set(np.flatnonzero(post.inclusion >= 0.95)) == set(PLANTED)
    assert list(np.argsort(-post.promise)[:3]) == list(PLANTED)
    for unit, effect in PLANTED.items():
        assert post.effects[unit] == pytest.approx(effect, abs=0.1)
    rest = np.delete(np.arange(N_UNITS), list(PLANTED))
    assert np.abs(post.effects[rest]).max() < 0.03
    assert post.inclusion[rest].max() < 0.2
    assert {(unit,) for unit in PLANTED} <= set(post.groups)
    assert post.intercept == pytest.approx(0.3, abs=0.06)


def test_heads_that_help_are_found_with_their_sign() -> None:
    post = fit_planted({7: 1.0, 40: -0.8})
    assert set(np.flatnonzero(post.inclusion >= 0.95)) == {7, 40}
    assert post.effects[40] == pytest.approx(-0.8, abs=0.1)
    assert int(np.argmin(post.promise)) == 40


def test_what_few_heads_explain_wholly_is_fitted_wholly() -> None:
    X = masks()
    y = 0.3 + X @ effects_of(PLANTED)
    post = posterior.fit(X, y, np.zeros(len(X)))
    assert post.fitted(X) == pytest.approx(y, abs=0.02)
    assert np.isfinite(post.effects).all() and np.isfinite(post.promise).all()


def test_nothing_is_found_in_noise() -> None:
    X = masks()
    sure = 0
    for seed in range(60):
        y = np.random.default_rng(seed).normal(0, 0.3, len(X))
        post = posterior.fit(X, y, np.zeros(len(X)))
        assert (post.inclusion >= 0).all() and (post.inclusion <= 1).all()
        sure += bool((post.inclusion >= 0.95).any())
    assert sure <= 2


@pytest.mark.parametrize("level", [0.0, 2.0])
def test_a_constant_score_has_no_effects(level: float) -> None:
    X = masks()
    post = posterior.fit(X, np.full(len(X), level), np.zeros(len(X)))
    assert not post.effects.any() and not post.inclusion.any() and post.groups == ()
    assert post.promise == pytest.approx(np.zeros(N_UNITS), abs=1e-6)
    assert post.intercept == pytest.approx(level)


@settings(max_examples=15, deadline=None)
@given(st.permutations(range(40)), st.integers(0, 5))
def test_effects_follow_a_permutation_of_the_heads(order: list[int], seed: int) -> None:
    X = masks(seed=seed, n_units=40)
    rng = np.random.default_rng(seed)
    y = X @ effects_of({3: 1.0, 17: -0.5}, 40) + rng.normal(0, 0.1, len(X))
    one = posterior.fit(X, y, np.zeros(len(X)))
    other = posterior.fit(X[:, order], y, np.zeros(len(X)))
    for name in ("effects", "inclusion", "promise"):
        assert getattr(other, name) == pytest.approx(getattr(one, name)[order], abs=1e-6)
    moved = {tuple(sorted(order[unit] for unit in group)) for group in other.groups}
    assert {g for g in moved if len(g) < 3} == {g for g in one.groups if len(g) < 3}


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_masks_does_not_matter(seed: int) -> None:
    X = masks()
    rng = np.random.default_rng(seed)
    y, known = X @ effects_of(PLANTED) + rng.normal(0, 0.1, len(X)), rng.uniform(0, 0.02, len(X))
    order = rng.permutation(len(X))
    one, other = posterior.fit(X, y, known), posterior.fit(X[order], y[order], known[order])
    assert other.effects == pytest.approx(one.effects, abs=1e-3)
    assert other.inclusion == pytest.approx(one.inclusion, abs=1e-3)


def test_heads_that_are_always_out_together_are_one_group() -> None:
    X = masks()
    X[:, 41] = X[:, 40]
    y = X @ effects_of(PLANTED) + np.random.default_rng(0).normal(0, 0.05, len(X))
    post = posterior.fit(X, y, np.zeros(len(X)))
    assert (40, 41) in post.groups
    assert post.inclusion[40] == pytest.approx(post.inclusion[41], abs=1e-9)
    assert post.inclusion[40] < 0.95 > post.inclusion[41]
    assert post.effects[[40, 41]].sum() == pytest.approx(0.8, abs=0.1)


def test_a_prior_moves_the_answer_where_the_masks_are_silent() -> None:
    X = masks()
    X[:, 41] = X[:, 40]
    y = X @ effects_of({40: 0.8}) + np.random.default_rng(0).normal(0, 0.05, len(X))
    prior = np.ones(N_UNITS)
    prior[41] = 99.0
    post = posterior.fit(X, y, np.zeros(len(X)), prior=prior)
    even = posterior.fit(X, y, np.zeros(len(X)))
    assert post.inclusion[41] > 0.95 > even.inclusion[41]
    assert post.inclusion[40] < 0.05
    # A prior is a share: its sum says nothing.
    again = posterior.fit(X, y, np.zeros(len(X)), prior=prior * 7)
    assert again.inclusion == pytest.approx(post.inclusion, abs=1e-9)


def test_a_prior_does_not_outweigh_masks_that_speak() -> None:
    X = masks()
    y = X @ effects_of(PLANTED) + np.random.default_rng(0).normal(0, 0.05, len(X))
    prior = np.ones(N_UNITS)
    prior[list(PLANTED)] = 0.1
    post = posterior.fit(X, y, np.zeros(len(X)), prior=prior)
    assert set(np.flatnonzero(post.inclusion >= 0.95)) == set(PLANTED)


def test_masks_with_a_large_known_error_count_less() -> None:
    """Two heads look alike in size; one is seen only by masks that are hardly known."""
    X = masks()
    y = X @ effects_of({7: 0.5, 40: 0.5}) + np.random.default_rng(1).normal(0, 0.05, len(X))
    known = np.where(X[:, 40] > 0, 4.0, 0.0)
    post = posterior.fit(X, y, known)
    assert post.inclusion[7] > 0.95
    assert post.inclusion[40] < 0.5


def test_small_effects_of_all_heads_are_background() -> None:
    X = masks(n_rounds=10)
    rng = np.random.default_rng(4)
    small = rng.normal(0, 0.05, N_UNITS)
    y = X @ (effects_of({7: 1.0}) + small) + rng.normal(0, 0.01, len(X))
    post = posterior.fit(X, y, np.zeros(len(X)))
    assert set(np.flatnonzero(post.inclusion >= 0.95)) == {7}
    assert post.variances.background > 0
    covariance = post.variances.covariance(X)
    assert covariance.shape == (len(X), len(X))
    assert np.trace(covariance) / len(X) == pytest.approx(8 * 0.05**2, rel=0.6)


def test_masks_of_several_sizes_have_a_term_for_how_many_heads_are_out() -> None:
    n = N_UNITS
    wide = design.partitions(range(n), n_units=n, n_rounds=4, size=20, seed=0)
    X = design.matrix([wide, *(one_round(seed) for seed in range(4))])
    y = 0.1 + 0.05 * X.sum(axis=1) + X @ effects_of({7: 1.0})
    y += np.random.default_rng(0).normal(0, 0.02, len(y))
    post = posterior.fit(X, y, np.zeros(len(X)))
    assert post.per_head == pytest.approx(0.05, abs=0.01)
    assert set(np.flatnonzero(post.inclusion >= 0.95)) == {7}
    assert posterior.fixed_terms(X).shape == (len(X), 2)
    assert posterior.fixed_terms(masks()).shape == (len(masks()), 1)


def one_round(seed: int) -> Design:
    return design.partitions(range(N_UNITS), n_units=N_UNITS, n_rounds=1, size=5, seed=seed)


def test_whitened_rows_have_the_covariance_that_is_removed() -> None:
    X = masks(n_rounds=2)
    variances = posterior.Variances(np.full(len(X), 0.02), 0.1, 0.05)
    root = posterior.root_of(variances.covariance(X))
    unit = posterior.triangular_solve(root, variances.covariance(X))
    assert unit == pytest.approx(root.T)
    assert posterior.triangular_solve(root, root.T, transposed=True) == pytest.approx(
        np.eye(len(X))
    )
    Z = posterior.fixed_terms(X)
    white = posterior.whiten(X, np.ones(len(X)), variances, Z)
    assert white.y == pytest.approx(np.zeros(len(X)), abs=1e-9), "the constant is projected out"
    assert white.X.shape == X.shape


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["X", "y", "known", "prior"])
def test_what_is_no_number_is_refused(where: str, value: float) -> None:
    X = masks()
    given = {"X": X, "y": X.sum(axis=1), "known": np.zeros(len(X)), "prior": np.ones(N_UNITS)}
    given[where] = given[where].copy()
    given[where].flat[3] = value
    with pytest.raises(ValueError, match="finite"):
        posterior.fit(given["X"], given["y"], given["known"], prior=given["prior"])


@pytest.mark.parametrize(("n_y", "n_known", "n_prior"), [(-1, 0, 0), (0, 2, 0), (0, 0, -1)])
def test_shapes_that_do_not_fit_are_refused(n_y: int, n_known: int, n_prior: int) -> None:
    X = masks()
    y, known = np.zeros(len(X) + n_y), np.zeros(len(X) + n_known)
    with pytest.raises(ValueError, match="expected one"):
        posterior.fit(X, y, known, prior=np.ones(N_UNITS + n_prior))


@pytest.mark.parametrize("prior", [np.zeros(N_UNITS), np.full(N_UNITS, -1.0)])
def test_a_prior_that_is_no_share_is_refused(prior: np.ndarray) -> None:
    X = masks()
    with pytest.raises(ValueError, match="prior"):
        posterior.fit(X, X.sum(axis=1), np.zeros(len(X)), prior=prior)
