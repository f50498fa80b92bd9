"""Measurement designs: which heads each mask knocks out.

Every function is pure: the units that may be knocked out and a seeded generator in, a `Design` out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from editor.records import Design


def stratified(units: Sequence[int], *, n_units: int, n_masks: int, size: int, seed: int) -> Design:
    """Each mask takes the units used least so far, ties broken at random.

    The counts of any two of `units` differ by at most 1.

    Args:
        units: the units that may be knocked out.
        n_units: all units of the model.
        n_masks: rows.
        size: units a mask; n_masks * size is the total number of knock-outs.
        seed: of the random ties.

    Raises:
        ValueError: there are fewer units than `size`, or a size below 1.
    """
    if not 1 <= size <= len(units):
        raise ValueError(f"a mask of {size} heads cannot be drawn from {len(units)}")
    rng = np.random.default_rng(seed)
    used = np.zeros(len(units), dtype=np.int64)
    rows: list[list[int]] = []
    for _ in range(n_masks):
        order = np.lexsort((rng.random(len(units)), used))[:size]
        used[order] += 1
        rows.append([units[i] for i in order])
    return _design("stratified", rows, n_units=n_units, seed=seed)


def bernoulli(
    units: Sequence[int], *, n_units: int, n_masks: int, density: float, seed: int
) -> Design:
    """Each mask knocks out each unit independently with probability `density`.

    Raises:
        ValueError: `density` is not between 0 and 1.
    """
    if not 0 < density < 1:
        raise ValueError(f"density must be between 0 and 1, not {density}")
    rng = np.random.default_rng(seed)
    drawn = rng.random((n_masks, len(units))) < density
    rows = ([unit for unit, out in zip(units, row, strict=True) if out] for row in drawn)
    return _design("bernoulli", rows, n_units=n_units, seed=seed)


def partitions(
    units: Sequence[int], *, n_units: int, n_rounds: int, size: int, seed: int
) -> Design:
    """Split the units at random into pools of at most `size`, `n_rounds` times over.

    Every unit is knocked out exactly `n_rounds` times; pool sizes differ by at most 1.

    Raises:
        ValueError: no units, or a size below 1.
    """
    if not units or size < 1:
        raise ValueError(f"cannot split {len(units)} heads into pools of {size}")
    rng = np.random.default_rng(seed)
    n_pools = -(-len(units) // size)
    rows = (
        [units[int(i)] for i in pool]
        for _ in range(n_rounds)
        for pool in np.array_split(rng.permutation(len(units)), n_pools)
    )
    return _design("partitions", rows, n_units=n_units, seed=seed)


def singles(units: Sequence[int], *, n_units: int) -> Design:
    """One mask a unit."""
    return _design("singles", ([unit] for unit in units), n_units=n_units, seed=0)


def matrix(designs: Sequence[Design]) -> NDArray[np.float64]:
    """The designs stacked as X: float64 (n_masks, n_units), 1 where a mask knocks a unit out."""
    rows = [row for design in designs for row in design.rows]
    out = np.zeros((len(rows), designs[0].n_units))
    for i, row in enumerate(rows):
        out[i, list(row)] = 1.0
    return out


def _design(sampler: str, rows: Iterable[Sequence[int]], *, n_units: int, seed: int) -> Design:
    sorted_rows = tuple(tuple(sorted(int(unit) for unit in row)) for row in rows)
    return Design(sampler=sampler, seed=seed, n_units=n_units, rows=sorted_rows)
