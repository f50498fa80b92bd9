"""Designs are looked at as a whole: what every mask holds, and how often each head is out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor import design

units_st = st.lists(st.integers(0, 299), min_size=1, max_size=80, unique=True)


@given(units_st, st.integers(1, 60), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_stratified_counts_differ_by_at_most_one(units, n_masks, size, seed):
    size = min(size, len(units))
    rows = design.stratified(units, n_units=300, n_masks=n_masks, size=size, seed=seed).rows
    assert len(rows) == n_masks
    assert all(len(set(row)) == size and set(row) <= set(units) for row in rows)
    counts = np.bincount([unit for row in rows for unit in row], minlength=300)[units]
    assert counts.max() - counts.min() <= 1


@given(units_st, st.integers(1, 4), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_partitions_hold_every_unit_once_a_round(units, n_rounds, size, seed):
    rows = design.partitions(units, n_units=300, n_rounds=n_rounds, size=size, seed=seed).rows
    a_round = len(rows) // n_rounds
    for start in range(0, len(rows), a_round):
        pools = rows[start : start + a_round]
        assert sorted(unit for pool in pools for unit in pool) == sorted(units)
        assert max(map(len, pools)) <= size
        assert max(map(len, pools)) - min(map(len, pools)) <= 1


def side_of(n_units: int) -> int:
    return design.prime_from(math.isqrt(n_units - 1) + 1)


seeds_st = st.integers(0, 2**32 - 1)


@given(units_st, seeds_st, st.data())
def test_transversal_units_meet_at_most_once_and_are_out_equally_often(units, seed, data):
    side, units = side_of(len(units)), sorted(units)
    n_masks = data.draw(st.integers(1, side * side if len(units) > 1 else 2))
    found = design.transversal(units, n_units=300, n_masks=n_masks, seed=seed)
    assert (found.sampler, found.seed, found.n_units) == ("transversal", seed, 300)
    assert len(found.rows) == n_masks and all(found.rows)
    X = design.matrix([found])
    assert set(np.flatnonzero(X.any(axis=0))) <= set(units)
    meet = X.T @ X
    counts = np.diag(meet)[units]
    assert (meet - np.diag(np.diag(meet))).max() <= 1
    assert counts.max() - counts.min() <= 1


@given(st.integers(2, 200), st.integers(1, 4), seeds_st)
def test_transversal_rounds_are_partitions_and_two_of_them_tell_all_units_apart(n, n_rounds, seed):
    side = side_of(n)
    n_rounds = min(n_rounds, side)
    rows = design.transversal(range(n), n_units=n, n_masks=n_rounds * side, seed=seed).rows
    for start in range(0, len(rows), side):
        pools = rows[start : start + side]
        assert sorted(unit for pool in pools for unit in pool) == list(range(n))
        assert max(map(len, pools)) <= side
    if n_rounds >= 2:
        columns = [tuple(unit in row for row in rows) for unit in range(n)]
        assert len(set(columns)) == n


@given(st.integers(1, 12), st.integers(1, 16), seeds_st)
def test_transversal_pools_spread_every_layer(n_layers, n_heads, seed):
    n = n_layers * n_heads
    side = side_of(n)
    n_masks = min(3 * side, 2 if n == 1 else side * side)
    rows = design.transversal(range(n), n_units=n, n_masks=n_masks, seed=seed).rows
    most = (n_heads + side - 2) // side + 1  # rows of the grid that a layer touches
    for row in rows:
        assert np.bincount([unit // n_heads for unit in row]).max() <= most


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 72, 270, 1024])
def test_transversal_has_as_many_masks_as_it_says_and_no_more(n):
    for n_masks in (1, side_of(n) ** 2, min(2 * side_of(n) ** 2, max(4, n) ** 2)):
        rows = design.transversal(range(n), n_units=n, n_masks=n_masks, seed=1).rows
        assert len(rows) == n_masks and all(rows)
        X = np.zeros((n_masks, n))
        for number, row in enumerate(rows):
            X[number, list(row)] = 1
        meets = X.T @ X
        np.fill_diagonal(meets, 0)
        assert meets.max() <= 1, "two units meet once at most"
    wrong = max(4, n) ** 2 + 1
    with pytest.raises(ValueError, match=f"{wrong} transversal masks of {n} heads"):
        design.transversal(range(n), n_units=n, n_masks=wrong, seed=1)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"at least one mask, found {wrong}"):
            design.transversal(range(n), n_units=n, n_masks=wrong, seed=1)


@given(st.integers(-5, 2000))
def test_prime_from_is_the_next_prime(number):
    found = design.prime_from(number)
    primes = [p for p in range(2, 2100) if all(p % d for d in range(2, math.isqrt(p) + 1))]
    assert found == next(p for p in primes if p >= number)


@given(units_st, st.data())
def test_greedy_adds_each_other_unit_to_the_chosen(units, data):
    chosen = data.draw(st.lists(st.sampled_from(units), unique=True))
    rows = design.greedy(chosen, units, n_units=300).rows
    assert [set(row) - set(chosen) for row in rows] == [{u} for u in units if u not in chosen]
    assert all(set(chosen) <= set(row) and len(row) == len(chosen) + 1 for row in rows)


def test_bernoulli_has_the_density_that_was_asked_for():
    rows = design.bernoulli(range(200), n_units=200, n_masks=400, density=0.05, seed=1).rows
    share = sum(map(len, rows)) / (200 * 400)
    assert 0.045 < share < 0.055


@pytest.mark.parametrize("sampler", ["stratified", "partitions", "bernoulli", "transversal"])
def test_the_seed_decides(sampler):
    def draw(seed: int):
        if sampler == "stratified":
            return design.stratified(range(50), n_units=50, n_masks=20, size=4, seed=seed)
        if sampler == "partitions":
            return design.partitions(range(50), n_units=50, n_rounds=3, size=4, seed=seed)
        if sampler == "transversal":
            return design.transversal(range(50), n_units=50, n_masks=20, seed=seed)
        return design.bernoulli(range(50), n_units=50, n_masks=20, density=0.1, seed=seed)

    assert draw(3) == draw(3)
    assert draw(3).rows != draw(4).rows


def test_matrix_stacks_designs():
    one = design.singles([0, 2], n_units=4)
    two = design.partitions([1, 3], n_units=4, n_rounds=1, size=2, seed=0)
    assert design.matrix([one, two]).tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 1]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: design.stratified(range(3), n_units=3, n_masks=2, size=4, seed=0),
        lambda: design.stratified([], n_units=3, n_masks=2, size=1, seed=0),
        lambda: design.partitions([], n_units=3, n_rounds=1, size=1, seed=0),
        lambda: design.partitions(range(3), n_units=3, n_rounds=1, size=0, seed=0),
        lambda: design.transversal([], n_units=3, n_masks=1, seed=0),
        lambda: design.bernoulli(range(3), n_units=3, n_masks=2, density=1.0, seed=0),
    ],
)
def test_misuse_is_a_value_error(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("units", [[1, 1], [-1, 2], [2, 5]])
def test_units_that_are_none_or_repeated_are_refused(units):
    with pytest.raises(ValueError, match="expected different units"):
        design.partitions(units, n_units=5, n_rounds=1, size=2, seed=0)


def test_no_sampler_takes_a_unit_twice():
    for sample in (
        lambda: design.stratified([1, 1], n_units=5, n_masks=2, size=1, seed=0),
        lambda: design.bernoulli([1, 1], n_units=5, n_masks=2, density=0.5, seed=0),
        lambda: design.transversal([1, 1], n_units=5, n_masks=2, seed=0),
    ):
        with pytest.raises(ValueError, match="found one twice"):
            sample()


def test_designs_of_different_models_are_not_stacked():
    with pytest.raises(ValueError, match=r"one model, found \[3, 4\]"):
        design.matrix([design.singles([0], n_units=n) for n in (3, 4)])


def test_no_designs_are_refused():
    with pytest.raises(ValueError, match="found none"):
        design.matrix([])
