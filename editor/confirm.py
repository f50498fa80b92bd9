"""Checks on the heads that were chosen: pairs of them, means for zeros, random sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from editor import design, stats
from editor.measure import Bench, Task, as_mask, writes
from editor.records import (
    Confirmation,
    Head,
    HeadEffect,
    Interaction,
    Item,
    Mask,
    MeanAblated,
    Measured,
    ModelSpec,
    RandomSet,
    RandomSets,
    Scores,
)
from editor.responses import DEEPEST_LOSS, RELEVANT_NATS, item_losses

Array = NDArray[np.float64]

MAX_ITEMS = 24
MAX_FINALISTS = 6
"""Heads, the first chosen, that are measured alone and in pairs."""
N_RANDOM_SETS = 20
DRAWS = 10 * N_RANDOM_SETS
"""Random sets that are drawn to find as many different ones; layers of few heads have fewer."""
MIN_TELLING = 8
"""Things asked about (items with different keys) that an interval of an interaction needs."""
HALF = 0.5
"""Share of an effect: what a random set must reach to come near, what must remain under means."""


def expected_masks(n_heads: int) -> int:
    """About how many masks `confirm` measures for so many chosen heads."""
    n = min(n_heads, MAX_FINALISTS)
    return n + n * (n - 1) // 2 + N_RANDOM_SETS + 2


def confirm(
    bench: Bench,
    task: Task,
    heads: Sequence[Head],
    spec: ModelSpec,
    *,
    seed: int = 0,
    improve: bool = False,
) -> Confirmation:
    """Check the chosen heads on items of the choice, of which the first `MAX_ITEMS` are asked.

    Args:
        task: the target on the choose split.
        heads: in the order in which they were chosen.
        seed: of the random sets.
        improve: the target gets better without these heads.  Then no pairs are measured: what
            they say of backups and overlap is about losses.
    """
    name, before = task.capability.name, bench.evaluations(task.capability.name)
    task = replace(task, items=task.items[:MAX_ITEMS])
    first, mask = tuple(heads[:MAX_FINALISTS]), as_mask(heads)
    rng = np.random.default_rng(seed)
    sets = _peer_sets(spec, heads, rng)
    pairs = [] if improve else [as_mask(pair) for pair in combinations(first, 2)]
    masks = list(dict.fromkeys([(), mask, *((head,) for head in first), *pairs, *sets]))
    bench.scores(task, masks[:2])  # these two must be numbers
    measured = zip(masks, bench.measured(task, masks), strict=True)
    found = {one: scores for one, scores in measured if scores is not None}
    means = None
    if not writes(task):
        (filled,) = bench.scores(task, [mask], fill="mean")
        means = mean_ablated(found[()], found[mask], filled, task.items)
    return Confirmation(
        task=task.name,
        heads=tuple(heads),
        n_items=len(task.items),
        evaluations=bench.evaluations(name) - before,
        alone=tuple(_alone(head, found, task.items) for head in first if (head,) in found),
        interactions=interactions(found, first, task.items) if pairs else (),
        mean_ablated=means,
        random_sets=random_sets(found, mask, sets, improve=improve) if any(sets) else None,
    )


def _peer_sets(spec: ModelSpec, heads: Sequence[Head], rng: np.random.Generator) -> list[Mask]:
    """Different random sets of the same layers: fewer than asked for where there are no more."""
    drawn = (as_mask(design.random_peers(spec, heads, rng)) for _ in range(DRAWS))
    return list(dict.fromkeys(drawn))[:N_RANDOM_SETS]


def interactions(
    found: Mapping[Mask, Scores], heads: Sequence[Head], items: Sequence[Item]
) -> tuple[Interaction, ...]:
    """What every pair of heads costs together beyond the sum of the two alone.

    The 95 % intervals hold for all pairs at once (Bonferroni), since one looks for the pairs that
    stand out.

    Args:
        found: scores with nothing out, each head out alone, and each pair.  A pair is left out
            where one of the three yields no numbers.
    """
    pairs = [
        pair
        for pair in combinations(heads, 2)
        if {(pair[0],), (pair[1],), as_mask(pair)} <= found.keys()
    ]
    return tuple(_interaction(pair, found, items, len(pairs)) for pair in pairs)


def _interaction(
    pair: tuple[Head, Head], found: Mapping[Mask, Scores], items: Sequence[Item], n_pairs: int
) -> Interaction:
    """One pair.

    Cut at `DEEPEST_LOSS`, two heads of 4 nats each that add up would seem to overlap by 2; not cut,
    two that each take the whole answer would too.  So losses are not cut, but a pair is only
    flagged where it is also flagged with both the sum and the two together cut.
    """
    one, other, both = (_nats(found, mask) for mask in ((pair[0],), (pair[1],), as_mask(pair)))
    alone, tail = one + other, 2.5 / n_pairs
    beyond = _measured(both - alone, items, tail=tail)
    cut = np.minimum(both, DEEPEST_LOSS) - np.minimum(alone, DEEPEST_LOSS)
    telling = [
        item
        for item, least in zip(items, np.minimum(both, alone), strict=True)
        if least < DEEPEST_LOSS
    ]
    return Interaction(
        heads=pair,
        alone=(float(one.mean()), float(other.mean())),
        together=float(both.mean()),
        interaction=beyond,
        n_items=len(telling),
        kind=_kind(beyond, _measured(cut, items, tail=tail))
        if len({item.key for item in telling}) >= MIN_TELLING
        else "too_few",
    )


def _kind(beyond: Measured, cut: Measured) -> Literal["needs_both", "redundant", "none"]:
    if min(beyond.low, cut.low) > 0 and beyond.value >= RELEVANT_NATS:
        return "needs_both"
    if max(beyond.high, cut.high) < 0 and beyond.value <= -RELEVANT_NATS:
        return "redundant"
    return "none"


def mean_ablated(base: Scores, zero: Scores, mean: Scores, items: Sequence[Item]) -> MeanAblated:
    """How much of what zero costs remains when the heads say on average what they always say."""
    lost_zero, lost_mean = item_losses(base, zero), item_losses(base, mean)
    nats_zero, share = _measured(lost_zero, items), None
    if nats_zero.low > 0:
        low, high = stats.ratio_interval(lost_mean, lost_zero, items)
        value = float(lost_mean.sum() / lost_zero.sum())
        share = Measured(value=value, low=low, high=high)
    return MeanAblated(
        base_exact=stats.mean(base, "exact"),
        exact_lost_zero=_answers_lost(base, zero, items),
        exact_lost_mean=_answers_lost(base, mean, items),
        nats_lost_zero=nats_zero,
        nats_lost_mean=_measured(lost_mean, items),
        share=share,
        verdict=_verdict(share),
    )


def _verdict(share: Measured | None) -> Literal["not_artefact", "partly", "artefact", "unclear"]:
    if share is None:
        return "unclear"
    if share.low >= HALF:
        return "not_artefact"
    return "artefact" if share.high < HALF else "partly"


def random_sets(
    found: Mapping[Mask, Scores], chosen: Mask, sets: Sequence[Mask], *, improve: bool = False
) -> RandomSets:
    """The loss of the chosen heads among that of random heads of the same layers.

    Args:
        found: scores; a set that yields no numbers is not among them, and leaves nothing.
        improve: the least loss counts, not the largest.
    """
    sign = -1 if improve else 1
    base = found[()]

    def loss_of(mask: Mask) -> float:
        return float(item_losses(base, found[mask]).mean()) if mask in found else DEEPEST_LOSS

    loss, *others = map(loss_of, (chosen, *sets))
    as_costly = sum(sign * other >= sign * loss for other in others)
    return RandomSets(
        chosen=loss,
        sets=tuple(RandomSet(heads=m, loss=at) for m, at in zip(sets, others, strict=True)),
        n_near=sum(sign * other >= sign * HALF * loss for other in others),
        n_as_costly=as_costly,
        p_value=(1 + as_costly) / (1 + len(sets)),
    )


def _alone(head: Head, found: Mapping[Mask, Scores], items: Sequence[Item]) -> HeadEffect:
    cost = _measured(_nats(found, (head,)), items)
    return HeadEffect(head=head, effect=cost.value, low=cost.low, high=cost.high, n_masks=1)


def _nats(found: Mapping[Mask, Scores], mask: Mask) -> Array:
    """Loss of log-probability an item; float64 (n_items,)."""
    return np.subtract(found[()].logprob, found[mask].logprob)


def _answers_lost(base: Scores, masked: Scores, items: Sequence[Item]) -> Measured:
    lost = np.subtract(base.exact, masked.exact)
    low, high = stats.share_interval(lost, items, least=-1.0)
    return Measured(value=float(lost.mean()), low=low, high=high)


def _measured(sample: Array, items: Sequence[Item], *, tail: float = 2.5) -> Measured:
    low, high = stats.mean_interval(sample, items, tail=tail)
    return Measured(value=float(sample.mean()), low=low, high=high)
