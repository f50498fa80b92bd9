"""From per-item scores to what each mask cost, with the error that the items alone leave.

Two views of the same measurements: the answers' log-probability, which is paired by item, and
exactness, which is a count.  Losses multiply rather than add, so both are taken on a log scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from editor.errors import CapabilityAbsent
from editor.records import Item, Scores, View
from editor.stats import clusters_of

Array = NDArray[np.float64]

DEEPEST_LOSS = 6.0
"""Nats an item beyond which more loss says nothing: the answer is gone."""
RELEVANT_NATS = 0.1
"""Less than this many nats an item is not worth a word: the choice adds no head for less."""
FEWEST_CLUSTERS = 2
"""Things that questions must be about for an interval."""
DEAD_SHARE = 0.95
"""Share of the deepest loss from which a mask is dead: it hides what each of its heads does."""


class Response(NamedTuple):
    """What masks cost one task."""

    losses: Array
    """float64 (n_masks,): nats; positive where the mask costs the task something."""
    known: Array
    """float64 (n_masks,): variance of each loss that counting answers brings."""
    items: Array
    """float64 (n_masks, n_items): each item's loss; their means are the losses, to first order."""
    clusters: NDArray[np.int64]
    """int64 (n_items,): which items are about the same thing."""
    deepest: float
    """The loss of a mask under which nothing is left."""


def item_losses(base: Scores, masked: Scores) -> Array:
    """Loss of log-probability an item, at most `DEEPEST_LOSS` nats; float64 (n_items,)."""
    return np.minimum(np.subtract(base.logprob, masked.logprob), DEEPEST_LOSS)


def respond(
    base: Scores, masked: Sequence[Scores], items: Sequence[Item], view: View = "logprob"
) -> Response:
    """The losses of masks, from the scores with and without them.

    Raises:
        CapabilityAbsent: a score is not a number.
    """
    clusters = clusters_of(items)
    rows = [list(getattr(one, view)) for one in (base, *masked)]
    for number, row in enumerate(rows):
        if not np.isfinite(row).all():
            which = f"mask {number} of {len(masked)}" if number else "the model as it is"
            raise CapabilityAbsent(
                f"{which} scored something that is not a number: no effect can be told from that",
                "try --dtype float32",
            )
    if view == "logprob":
        by_item = np.array([item_losses(base, one) for one in masked])
        losses = by_item.mean(axis=1)
        return Response(losses, np.zeros(len(masked)), by_item, clusters, DEEPEST_LOSS)
    return _counted(np.array(rows[0]), np.array(rows[1:]), clusters)


def _counted(base: Array, exact: Array, clusters: NDArray[np.int64]) -> Response:
    """Right answers on a log scale; a half is added to each count, so that none is no infinity.

    The variance is that of a binomial share by the delta method, (1 - p) / (n p), at a share that
    is drawn a little to the middle.
    """
    n = exact.shape[1]
    right = exact.sum(axis=1)
    share = (right + 1.0) / (n + 2.0)
    whole = np.log((base.sum() + 0.5) / (n + 0.5))
    losses = whole - np.log((right + 0.5) / (n + 0.5))
    by_item = losses[:, None] - (exact - exact.mean(axis=1, keepdims=True)) / share[:, None]
    deepest = float(whole - np.log(0.5 / (n + 0.5)))
    return Response(losses, (1.0 - share) / (n * share), by_item, clusters, deepest)


def at_fitted(response: Response, fitted: Array) -> Response:
    """The same counts with their variance at the fitted loss: the observed one follows its noise.

    Paired log-probabilities have no such variance and stay as they are.
    """
    if not response.known.any():
        return response
    n = response.items.shape[1]
    whole = response.deepest + float(np.log(0.5 / (n + 0.5)))
    margin = 1.0 / (n + 2.0)
    share = np.minimum(np.maximum(np.exp(whole - fitted), margin), 1.0 - margin)
    return response._replace(known=(1.0 - share) / (n * share))


def require_signal(response: Response, task: str) -> None:
    """Refuse masks from which nothing can be told.

    Raises:
        CapabilityAbsent: all questions are about one thing, all masks cost the same, or under all
            of them nothing is left.
    """
    losses, n = response.losses, len(response.losses)
    if len(set(response.clusters.tolist())) < FEWEST_CLUSTERS:
        raise CapabilityAbsent(
            f"all questions of {task} that are asked are about the same: how much such questions "
            "differ, and with it how sure an effect is, cannot be told",
            "ask more with --search-items, or choose another capability",
        )
    if (losses >= DEAD_SHARE * response.deepest).all():
        raise CapabilityAbsent(
            f"nothing is left of {task} under any of {n} masks: dead masks do not tell heads apart",
            "try every head alone with --method scan, or look at log-probabilities with "
            "--score logprob",
        )
    if np.ptp(losses) <= 1e-9:
        raise CapabilityAbsent(
            f"{task} scores the same under all {n} masks: no head that was knocked out matters "
            "to it, or its scorer does not look at what the model says",
            "choose another capability, or more items with --search-items",
        )
