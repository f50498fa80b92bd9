"""Which heads does the capability need?  Universal heads first, then pools of the others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from editor import design, estimate, stats
from editor.measure import Bench, Task, as_mask
from editor.records import (
    Design,
    Estimate,
    Head,
    HeadEffect,
    Metric,
    Scores,
    UniversalHeads,
)

Array = NDArray[np.float64]

UNIVERSAL_NATS = 0.1
"""A head whose removal costs this many nats a token of any text control is universal."""
SCAN_VERSION = 1
"""Raise it when `find_universal` would find others on the same model."""
DEEPEST_LOSS = 6.0
"""Nats an item beyond which more loss says nothing: the answer is gone."""
EXPECTED_POOLS = {"adaptive": 67, "published": 101}
"""About how many masks each search measures on a model of a few hundred heads, for the clock."""
EXPECTED_TRIES = 60
"""About how many more the choice measures on the target, and again on the controls."""


class Search(Protocol):
    """Ranks the heads that may be removed next."""

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        """All candidates, best first, given that `chosen` are out already."""
        ...

    def estimates(self) -> tuple[Estimate, ...]:
        """What the masks so far say of the heads, the first with nothing else out."""
        ...


def find_universal(
    bench: Bench, heads: Sequence[Head], texts: Sequence[Task], checkpoint: str
) -> UniversalHeads:
    """Knock out every head alone on every text: what all text needs belongs to no capability.

    Args:
        heads: all heads of the model.
        texts: tasks of text capabilities.
        checkpoint: identity of the model, for the record.
    """
    began = time.monotonic()
    effects = [measure_singles(bench, text, heads, "nats_per_token") for text in texts]
    costly = {one.head for found in effects for one in found.effects if one.effect > UNIVERSAL_NATS}
    return UniversalHeads(
        checkpoint=checkpoint,
        threshold=UNIVERSAL_NATS,
        evaluations=len(heads),
        effects=tuple(effects),
        heads=tuple(sorted(costly)),
        elapsed_s=round(time.monotonic() - began, 1),
    )


def costly_heads(universal: UniversalHeads, limits: Mapping[str, float]) -> frozenset[Head]:
    """Universal heads, and those that alone already cost a text control more than its limit."""
    over = {
        one.head
        for found in universal.effects
        for one in found.effects
        if one.effect > limits.get(found.task, np.inf)
    }
    return frozenset(over.union(universal.heads))


class AdaptiveSearch:
    """Two views of every head: random pools over all layers, and gradients with `chosen` out.

    Heads stand in for one another: some cost nothing while a stronger one is there.  The gradient,
    taken anew with the chosen heads out, shows those.  It is a first-order guess and misleads in
    the lowest layers, where the pools, which are real knock-outs, do not.
    """

    def __init__(
        self, bench: Bench, task: Task, heads: Sequence[Head], excluded: frozenset[Head], seed: int
    ) -> None:
        self._bench, self._task, self._heads = bench, task, heads
        self._units = [unit for unit, head in enumerate(heads) if head not in excluded]
        rows = design.partitions(
            self._units,
            n_units=len(heads),
            n_rounds=2,
            size=max(8, len(heads) // 50),
            seed=seed,
        )
        self._pools = Pools(bench, task, heads, rows)

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        gradient = self._bench.gradients(self._task, as_mask(chosen))
        steepest = sorted(self._units, key=lambda unit: -gradient[unit])
        views = [self._heads[unit] for unit in steepest], self._pools.ranking()
        return [head for head in interleave(*views) if head not in chosen]

    def estimates(self) -> tuple[Estimate, ...]:
        return (self._pools.estimate(estimate.lasso, "Lasso, BIC"),)


class PublishedSearch:
    """The published recipe: 100 stratified masks of 2 % of all heads, and one Lasso.

    It knows no universal heads: none is kept out of the masks.
    """

    def __init__(
        self, bench: Bench, task: Task, heads: Sequence[Head], excluded: frozenset[Head], seed: int
    ) -> None:
        del excluded
        rows = design.stratified(
            range(len(heads)),
            n_units=len(heads),
            n_masks=100,
            size=max(1, round(len(heads) * 0.02)),
            seed=seed,
        )
        self._pools = Pools(bench, task, heads, rows)

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        (found,) = self.estimates()
        return [one.head for one in found.effects if one.effect > 0 and one.head not in chosen]

    def estimates(self) -> tuple[Estimate, ...]:
        return (self._pools.estimate(estimate.published_lasso, "Lasso, penalty 0.01"),)


SEARCHES = {"adaptive": AdaptiveSearch, "published": PublishedSearch}


def interleave(*lists: Sequence[Head]) -> list[Head]:
    """The lists' firsts, then their seconds, and so on; each head once."""
    places = range(max(map(len, lists), default=0))
    mixed = [one[place] for place in places for one in lists if place < len(one)]
    return list(dict.fromkeys(mixed))


class Pools:
    """The masks of a design, measured on one task."""

    def __init__(self, bench: Bench, task: Task, heads: Sequence[Head], rows: Design) -> None:
        masks = [as_mask([heads[unit] for unit in row]) for row in rows.rows]
        base, *found = bench.scores(task, [(), *masks])
        self._task, self._heads = task, heads
        self._X = design.matrix([rows])
        self._losses = np.array([item_losses(base, scores) for scores in found])

    def ranking(self) -> list[Head]:
        """The heads that were in a mask, those that the masks speak most for first."""
        evidence = estimate.pool_evidence(self._X, self._losses.mean(axis=1))
        units = np.flatnonzero(np.isfinite(evidence))
        return [
            self._heads[unit] for unit in sorted(map(int, units), key=lambda unit: -evidence[unit])
        ]

    def estimate(self, estimator: estimate.Estimator, solver: str) -> Estimate:
        """Effects of the heads that were in a mask."""
        effects = estimate.head_effects(self._X, self._losses, self._heads, estimator)
        return Estimate(
            task=self._task.name,
            score="logprob",
            solver=solver,
            n_masks=len(self._losses),
            fit_r2=estimate.held_out_r2(self._X, -self._losses.mean(axis=1)),
            effects=tuple(sorted(effects, key=lambda one: (-one.effect, one.head))),
        )


def item_losses(base: Scores, masked: Scores) -> Array:
    """Loss of log-probability an item, at most `DEEPEST_LOSS` nats; float64 (n_items,)."""
    return np.minimum(np.subtract(base.logprob, masked.logprob), DEEPEST_LOSS)


def with_singles(pooled: Estimate, singles: Estimate) -> Estimate:
    """The pools' estimate, with the heads that were measured alone as they were measured."""
    alone = {one.head for one in singles.effects}
    effects = [*singles.effects, *(one for one in pooled.effects if one.head not in alone)]
    return pooled.model_copy(
        update={
            "solver": f"{len(alone)} heads alone, the others by {pooled.solver}",
            "n_masks": pooled.n_masks + len(alone),
            "effects": tuple(sorted(effects, key=lambda one: (-one.effect, one.head))),
        }
    )


def measure_singles(bench: Bench, task: Task, heads: Sequence[Head], metric: Metric) -> Estimate:
    """The effect of each head knocked out alone, with its interval."""
    base, *found = bench.scores(task, [(), *((head,) for head in heads)])
    effects: list[HeadEffect] = []
    for head, scores in zip(heads, found, strict=True):
        change = stats.paired_change(base, scores, metric, task.items)
        sign = 1.0 if metric == "nats_per_token" else -1.0  # an effect is a loss
        low, high = sorted((sign * change.low, sign * change.high))
        effects.append(
            HeadEffect(head=head, effect=sign * change.change, low=low, high=high, n_masks=1)
        )
    return Estimate(
        task=task.name,
        score=metric,
        solver="each head alone",
        n_masks=len(heads),
        fit_r2=None,
        effects=tuple(sorted(effects, key=lambda one: (-one.effect, one.head))),
    )
