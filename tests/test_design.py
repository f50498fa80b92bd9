from __future__ import annotations

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


def test_bernoulli_has_the_density_that_was_asked_for():
    rows = design.bernoulli(range(200), n_units=200, n_masks=400, density=0.05, seed=1).rows
    share = sum(map(len, rows)) / (200 * 400)
    assert 0.045 < share < 0.055


@pytest.mark.parametrize("sampler", ["stratified", "partitions", "bernoulli"])
def test_the_seed_decides(sampler):
    def draw(seed: int):
        if sampler == "stratified":
            return design.stratified(range(50), n_units=50, n_masks=20, size=4, seed=seed)
        if sampler == "partitions":
            return design.partitions(range(50), n_units=50, n_rounds=3, size=4, seed=seed)
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
        lambda: design.bernoulli(range(3), n_units=3, n_masks=2, density=1.0, seed=0),
    ],
)
def test_misuse_is_a_value_error(call):
    with pytest.raises(ValueError):
        call()
