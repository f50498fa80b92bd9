"""Measurement designs: which heads each mask knocks out.

Every function is pure: what may be knocked out and a seed or generator in, a `Design` or heads out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from editor.records import Design, Head, ModelSpec


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
        ValueError: there are fewer units than `size`, a size below 1, or no masks.
    """
    _check_units(units, n_masks)
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
        ValueError: `density` is not between 0 and 1, or there are no masks.
    """
    _check_units(units, n_masks)
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
        ValueError: no units or rounds, or a size below 1.
    """
    _check_units(units, n_rounds)
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


def transversal(units: Sequence[int], *, n_units: int, n_masks: int, seed: int) -> Design:
    """Pools of about sqrt(n) of the n units, in which no two units meet twice.

    The units stand in a square grid whose side q is a prime; a round cuts it into q lines of one
    slope, and two points lie on one line only (Thierry-Mieg, 2006, shifts modulo a prime).
    Neighbours, such as the heads of a layer, fall into different pools.  From two whole rounds on,
    no two units are in the same masks.

    Args:
        units: the units that may be knocked out, in unit order.
        n_units: all units of the model.
        n_masks: rows, at most the square of the number of units (16 for the fewest).  More than the
            smallest grid has take a larger one, with smaller pools.
        seed: of the slopes' order and of the columns'.

    Raises:
        ValueError: no units, or too many masks.
    """
    _check_units(units, n_masks)
    if not units or n_masks > max(4, len(units)) ** 2:
        raise ValueError(f"{n_masks} transversal masks of {len(units)} heads do not exist")
    side = prime_from(math.isqrt(len(units) - 1) + 1)
    while len(rows := _lines(units, side, n_masks, seed)) < n_masks:
        side = prime_from(side + 1)  # few units leave lines of the grid empty
    return _design("transversal", rows[:n_masks], n_units=n_units, seed=seed)


def _lines(units: Sequence[int], side: int, n_masks: int, seed: int) -> list[list[int]]:
    """Lines of the grid that hold units, slope by slope, until there are enough."""
    rng = np.random.default_rng(seed)
    columns = rng.permutation(side)
    rows: list[list[int]] = []
    # Slope 0 would put neighbours together; a vertical line of the grid stands in its place.
    for slope in (int(one) for one in rng.permutation(side)):
        lines: list[list[int]] = [[] for _ in range(side)]
        for place, unit in enumerate(units):
            a, b = place // side, int(columns[place % side])
            lines[(a + slope * b) % side if slope else b].append(unit)
        rows += [lines[int(line)] for line in rng.permutation(side) if lines[int(line)]]
        if len(rows) >= n_masks:
            break
    return rows


def prime_from(number: int) -> int:
    """The smallest prime that is at least `number` and at least 2."""
    found = max(number, 2)
    while any(found % divisor == 0 for divisor in range(2, math.isqrt(found) + 1)):
        found += 1
    return found


def greedy(chosen: Sequence[int], units: Sequence[int], *, n_units: int) -> Design:
    """One step of the greedy search: the chosen units and one more, each in turn."""
    taken = set(chosen)
    rows = ([*chosen, unit] for unit in units if unit not in taken)
    return _design("greedy", rows, n_units=n_units, seed=0)


def singles(units: Sequence[int], *, n_units: int) -> Design:
    """One mask a unit."""
    return _design("singles", ([unit] for unit in units), n_units=n_units, seed=0)


def matrix(designs: Sequence[Design]) -> NDArray[np.float64]:
    """The designs stacked as X: float64 (n_masks, n_units), 1 where a mask knocks a unit out.

    Raises:
        ValueError: no designs, or designs of different models.
    """
    if not designs:
        raise ValueError("expected designs to stack, found none")
    if len(sizes := {design.n_units for design in designs}) > 1:
        raise ValueError(f"expected designs of one model, found {sorted(sizes)} heads")
    rows = [row for design in designs for row in design.rows]
    out = np.zeros((len(rows), designs[0].n_units))
    for i, row in enumerate(rows):
        out[i, list(row)] = 1.0
    return out


def random_peers(spec: ModelSpec, heads: Sequence[Head], rng: np.random.Generator) -> list[Head]:
    """For each head another one of its layer, none twice and none of `heads`."""
    n_heads = {at.layer: at.n_heads for at in spec.layers}
    taken = set(heads)
    out: list[Head] = []
    for head in heads:
        free = [Head(head.layer, h) for h in range(n_heads[head.layer])]
        free = [peer for peer in free if peer not in taken]
        if free:  # else the layer has no other head left
            out.append(free[int(rng.integers(len(free)))])
            taken.add(out[-1])
    return out


def _check_units(units: Sequence[int], n: int) -> None:
    if n < 1:
        raise ValueError(f"expected at least one mask, found {n}")
    if len(set(units)) < len(units):
        raise ValueError("expected different units, found one twice")


def _design(sampler: str, rows: Iterable[Sequence[int]], *, n_units: int, seed: int) -> Design:
    sorted_rows = tuple(tuple(sorted(int(unit) for unit in row)) for row in rows)
    for number, row in enumerate(sorted_rows):
        if len(set(row)) < len(row) or (row and not 0 <= row[0] <= row[-1] < n_units):
            raise ValueError(
                f"mask {number}: expected different units from 0 to {n_units - 1}, found {row}"
            )
    return Design(sampler=sampler, seed=seed, n_units=n_units, rows=sorted_rows)
