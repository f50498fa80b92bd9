"""Whether intervals hold what they should, and how often chance passes for a head."""

from __future__ import annotations

import numpy as np
import pytest

from editor import confidence, design, posterior
from editor.posterior import Posterior
from editor.records import Item, Scores
from editor.responses import DEEPEST_LOSS, Response, at_fitted, respond

N_UNITS, N_ITEMS = 120, 24
PLANTED = {7: 1.0, 40: 0.6, 90: 0.4}
UNITS = list(PLANTED)


def masks(n_masks: int = 60, seed: int = 0) -> np.ndarray:
    rows = design.partitions(range(N_UNITS), n_units=N_UNITS, n_rounds=8, size=8, seed=seed)
    return design.matrix([rows])[:n_masks]


def effects_of(seed: int, background: float = 0.03) -> np.ndarray:
    effects = np.random.default_rng(seed).normal(0, background, N_UNITS)
    effects[UNITS] = list(PLANTED.values())
    return effects


def responded(losses: np.ndarray, clusters: np.ndarray | None = None) -> Response:
    """Paired losses, float64 (n_masks, n_items)."""
    if clusters is None:
        clusters = np.arange(losses.shape[1])
    known = np.zeros(len(losses))
    return Response(losses.mean(axis=1), known, losses, clusters, DEEPEST_LOSS)


def drawn(seed: int, *, item_spread: float = 0.5, n_shared: int = 1) -> tuple[np.ndarray, Response]:
    """Masks and what they cost items, each head its own share of each item.

    What an item loses by a head differs by a factor between items; `n_shared` neighbours have it in
    common.
    """
    X, rng = masks(seed=seed), np.random.default_rng(1000 + seed)
    factor = 1 + rng.normal(0, item_spread, (N_UNITS, N_ITEMS // n_shared))
    by_head = effects_of(seed)[:, None] * np.repeat(factor, n_shared, axis=1)
    clusters = np.repeat(np.arange(N_ITEMS // n_shared), n_shared)
    noise = rng.normal(0, 0.05, (len(X), N_ITEMS))
    return X, responded(X @ by_head + noise, clusters)


def fit(X: np.ndarray, response: Response) -> Posterior:
    return posterior.fit(X, response.losses, response.known)


def covered(n_shared: int, *, as_clusters: bool = True) -> float:
    """Share of planted effects inside their intervals, over 60 fits."""
    hits: list[bool] = []
    for seed in range(60):
        X, response = drawn(seed, n_shared=n_shared)
        if not as_clusters:
            response = response._replace(clusters=np.arange(N_ITEMS))
        found = confidence.intervals(X, response, fit(X, response))
        truth = effects_of(seed)
        hits += [bool(found.low[unit] <= truth[unit] <= found.high[unit]) for unit in UNITS]
    return float(np.mean(hits))


def test_intervals_hold_the_planted_effects() -> None:
    assert 0.88 <= covered(1) <= 1.0


def test_items_about_the_same_thing_are_one_observation() -> None:
    """Four items lose alike: as six clusters the interval holds, as 24 items it does not."""
    assert 0.88 <= covered(4) <= 1.0
    assert covered(4, as_clusters=False) < 0.85


def test_effects_are_unbiased_and_intervals_bracket_them() -> None:
    found_at, sizes = [], []
    for seed in range(20):
        X, response = drawn(seed)
        found = confidence.intervals(X, response, fit(X, response))
        usable = np.isfinite(found.effect)
        assert (found.low[usable] <= found.effect[usable]).all()
        assert (found.effect[usable] <= found.high[usable]).all()
        found_at.append(found.effect[UNITS])
        sizes.append(found.high[UNITS] - found.low[UNITS])
    assert np.mean(found_at, axis=0) == pytest.approx(list(PLANTED.values()), abs=0.1)
    assert np.mean(sizes) < 0.6, "an interval that holds everything says nothing"


def test_doubling_every_item_widens_what_clusters_know_and_not_what_they_do_not() -> None:
    X, response = drawn(0)
    post = fit(X, response)
    twice = np.repeat(np.arange(N_ITEMS), 2)
    doubled = response._replace(items=response.items[:, twice], clusters=twice)
    one = confidence.intervals(X, response, post)
    same = confidence.intervals(X, doubled, post)
    assert same.high[UNITS] == pytest.approx(one.high[UNITS])
    taken_for_more = doubled._replace(clusters=np.arange(2 * N_ITEMS))
    narrow = confidence.intervals(X, taken_for_more, post)
    assert (narrow.high[UNITS] < same.high[UNITS]).all()


def test_counts_bring_their_own_error() -> None:
    X, response = drawn(0)
    one_cluster = np.zeros(N_ITEMS, dtype=np.int64)
    widths = []
    for known in (0.001, 0.1):
        counted = response._replace(known=np.full(len(X), known), clusters=one_cluster)
        found = confidence.intervals(X, counted, fit(X, counted))
        widths.append((found.high - found.low)[UNITS])
    assert (widths[1] > widths[0]).all()


def test_heads_that_do_nothing_are_not_told_to_cost_something() -> None:
    """What shrunk effects leave unexplained does not become a loss of every other head."""
    outside: list[float] = []
    n_items, needed = 40, [7, 40]
    for seed in range(10):
        X = np.vstack([masks(48, seed), np.eye(N_UNITS)[needed]])
        X = X[X[:, needed].sum(axis=1) < len(needed)]
        right = np.repeat(1.0 - X[:, needed].max(axis=1)[:, None], n_items, axis=1)
        items = tuple(
            Item(key=str(n), prompt=f"{n}", answer="", variant="") for n in range(n_items)
        )
        base, *scores = (
            Scores(exact=tuple(map(float, row)), logprob=(0.0,) * n_items, n_tokens=(1,) * n_items)
            for row in (np.ones(n_items), *right)
        )
        response = respond(base, scores, items, "exact")
        response = at_fitted(response, fit(X, response).fitted(X))
        found = confidence.intervals(X, response, fit(X, response))
        null = np.setdiff1d(np.arange(N_UNITS), needed)
        outside.append(float(np.mean((found.low[null] > 0) | (found.high[null] < 0))))
    assert np.mean(outside) < 0.08


def test_what_no_mask_tells_is_not_a_number() -> None:
    X, response = drawn(0)
    X = X.copy()
    X[:, 3] = 0.0  # never out
    X[:, 41] = X[:, 40]  # always out with one that matters
    found = confidence.intervals(X, response, fit(X, response))
    assert np.isnan(found.effect[3]) and np.isnan(found.z[3]) and np.isnan(found.low[3])
    post = fit(X, response)._replace(inclusion=np.eye(N_UNITS)[40])
    beside = confidence.intervals(X, response, post)
    assert np.isnan(beside.effect[41]) and np.isfinite(beside.effect[40])


@pytest.mark.parametrize("n_rounds", [1, 3])
def test_chance_passes_for_a_head_in_one_of_twenty_runs(n_rounds: int) -> None:
    n_runs, passed = 100, 0
    for seed in range(n_runs):
        X, rng = masks(45, seed), np.random.default_rng(5000 + seed)
        response = responded(np.tile(rng.normal(0, 0.3, 45)[:, None], (1, 2)))
        post = fit(X, response)
        rounds = np.repeat(np.arange(n_rounds), 45 // n_rounds)
        z = confidence.intervals(X, response, post).z
        limit = confidence.largest_by_chance(X, response.losses, rounds, post, seed=seed)
        passed += bool(np.nanmax(np.abs(z)) > limit)
    assert 0.01 <= passed / n_runs <= 0.11


def test_planted_heads_stand_out_from_chance_and_others_do_not() -> None:
    for seed in range(10):
        X, response = drawn(seed)
        post = fit(X, response)
        rounds = np.zeros(len(X), dtype=np.int64)
        limit = confidence.largest_by_chance(X, response.losses, rounds, post, seed=0)
        z = confidence.intervals(X, response, post).z
        assert z[7] > limit
        assert np.nansum(np.delete(np.abs(z), UNITS) > limit) <= 1


def test_the_seed_decides_what_chance_is() -> None:
    X, response = drawn(0)
    post, rounds = fit(X, response), np.zeros(len(X), dtype=np.int64)
    limits = [
        confidence.largest_by_chance(X, response.losses, rounds, post, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert limits[0] == limits[1] != limits[2]


def test_dealing_stays_inside_a_round() -> None:
    """A round of one mask each can be dealt in one way only: the limit is what was measured."""
    X, response = drawn(0)
    post = fit(X, response)._replace(inclusion=np.zeros(N_UNITS))
    rounds = np.arange(len(X))
    limit = confidence.largest_by_chance(X, response.losses, rounds, post, seed=0)
    z = confidence.intervals(X, response, post).z
    assert limit == pytest.approx(np.nanmax(np.abs(z)))
