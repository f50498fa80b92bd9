"""The heads that every text needs: found once a model, they belong to no capability."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from editor import stats
from editor.errors import TimeUp
from editor.measure import MORE_TIME, Bench, Task
from editor.records import Estimate, Head, HeadEffect, Mask, Metric, Scores, UniversalHeads
from editor.responses import item_losses

UNIVERSAL_NATS = 0.1
"""A head whose removal costs this many nats a token of any text control is universal."""
SCAN_VERSION = 1
"""Raise it when `find_universal` would find others on the same model."""


def find_universal(
    bench: Bench,
    heads: Sequence[Head],
    texts: Sequence[Task],
    checkpoint: str,
    *,
    out_of_time: Callable[[], bool] = lambda: False,
) -> UniversalHeads:
    """Knock out every head alone on every text: what all text needs belongs to no capability.

    Args:
        heads: all heads of the model.
        texts: tasks of text capabilities.
        checkpoint: identity of the model, for the record.
        out_of_time: whether to measure no more.

    Raises:
        TimeUp: the time is up before all are measured.
    """
    began = time.monotonic()
    masks: list[Mask] = [(head,) for head in heads]
    for text in texts:
        n_done = len(bench.measured(text, masks, out_of_time=out_of_time))
        if n_done < len(masks):
            raise TimeUp(
                f"the time was up after {n_done} of {len(masks)} heads of the once-a-model scan "
                f"for universal heads on {text.name}",
                f"{MORE_TIME}; or do without the scan with --universal suspects",
            )
    effects = [measure_singles(bench, text, heads, "nats_per_token") for text in texts]
    costly = {one.head for found in effects for one in found.effects if one.effect > UNIVERSAL_NATS}
    # Without these the model says nothing at all.
    costly |= {head for found in effects for mask in found.not_numbers for head in mask}
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


def measure_singles(bench: Bench, task: Task, heads: Sequence[Head], metric: Metric) -> Estimate:
    """The effect of each head knocked out alone, with its interval.

    Log-probabilities are cut as everywhere: an item loses at most `responses.DEEPEST_LOSS` nats.
    """
    (base,) = bench.scores(task, [()])
    found = bench.measured(task, [(head,) for head in heads])
    effects: list[HeadEffect] = []
    for head, masked in zip(heads, found, strict=True):
        if masked is None:
            continue
        scores = _cut(base, masked) if metric == "logprob" else masked
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
        n_masks=len(effects),
        fit_r2=None,
        effects=tuple(sorted(effects, key=lambda one: (-one.effect, one.head))),
        not_numbers=tuple((h,) for h, one in zip(heads, found, strict=True) if one is None),
    )


def _cut(base: Scores, masked: Scores) -> Scores:
    kept = np.subtract(base.logprob, item_losses(base, masked))
    return masked.model_copy(update={"logprob": tuple(map(float, kept))})
