"""Whether heads carry the capability or only the form of its answers.

A head without which the answers are no longer digits, or names of places, takes right answers away
as well, and passes for a head of the capability.  So the loss of the answer's beginning is split.
Of the probability of all beginnings, R is the right answer's, O that of the capability's other
answers, Z the rest, and

    log R/Z = log R/O + log O/Z

in which R/O is the answer itself and O/Z the form.  A head that only knows the answer changes R
alone, hence R/O; one that only keeps the form changes Z alone, hence O/Z.  (The plain split, log
(R + O) + log R/(R + O), would charge the form with what goes where R was most of R + O.)  The loss
of log R is shared out between the two by changing one before the other, averaged over both orders
(Shapley, Contributions to the Theory of Games II, 1953), so that the parts add up to the whole.

Nothing is measured for it: the bench has the figures from the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from editor import stats
from editor.measure import Bench, Task, as_mask
from editor.records import FormatCheck, FormEffect, FormKind, FormLoss, Head, Item, Mask, Scores
from editor.wording import form_text

Array = NDArray[np.float64]

HALF = 0.5
"""Share of a loss above which it is that of the form."""
LEAST = 0.1
"""Nats of the answer's beginning: a smaller loss is not split."""
TINY = 1e-6
"""Probability below which the others' and the rest's are not told from nothing: differences of
float32 sums are not more exact."""


def form_loss(
    base: Scores, masked: Scores, items: Sequence[Item], *, seed: int = 0
) -> FormLoss | None:
    """What of the loss from `base` to `masked` is lost form, paired by item.

    Returns:
        None where one of the two holds no form: the capability's scorer knows none, or the journal
        is from a version that did not.
    """
    before, after = _odds(base), _odds(masked)
    if before is None or after is None:
        return None
    form, right = _shared_out(before, after)
    first = form + right
    later = np.subtract(base.logprob, masked.logprob) - first
    form_ci, right_ci, first_ci = (
        stats.mean_interval(one, items, seed=seed) for one in (form, right, first)
    )
    low, high, share = None, None, None
    if first_ci[0] > 0 and first.mean() >= LEAST:
        share = float(form.sum() / first.sum())
        low, high = stats.ratio_interval(form, first, items, seed=seed)
    return FormLoss(
        form=float(form.mean()),
        form_low=form_ci[0],
        form_high=form_ci[1],
        right=float(right.mean()),
        right_low=right_ci[0],
        right_high=right_ci[1],
        after=float(later.mean()),
        share=share,
        share_low=low,
        share_high=high,
        kind=_kind(low, high),
    )


def form_effects(bench: Bench, task: Task, heads: Sequence[Head]) -> tuple[FormEffect, ...]:
    """What each head takes alone; () where the task has no form."""
    return _effects(bench, task, [(head, (), as_mask([head])) for head in heads])


def form_steps(bench: Bench, task: Task, chosen: Sequence[Head]) -> tuple[FormEffect, ...]:
    """What each head adds to the loss under those before it; () where the task has no form."""
    steps = [
        (head, as_mask(chosen[:place]), as_mask(chosen[: place + 1]))
        for place, head in enumerate(chosen)
    ]
    return _effects(bench, task, steps)


def format_heads(effects: Sequence[FormEffect]) -> tuple[Head, ...]:
    """The heads that carry the form rather than the answer."""
    return tuple(effect.head for effect in effects if effect.kind == "format")


def check_format(
    bench: Bench, task: Task, chosen: Sequence[Head], candidates: Sequence[Head]
) -> FormatCheck | None:
    """Split the losses under the chosen heads and under each candidate.

    Args:
        task: the items on which the heads were chosen, so that the journal has the scores.
        chosen: in the order in which they were chosen.
        candidates: heads that were tried alone.

    Returns:
        None where the task's answers have no form apart from the right one.
    """
    base, masked = bench.scores(task, [(), as_mask(chosen)])
    whole = form_loss(base, masked, task.items)
    if whole is None:
        return None
    effects, steps = form_effects(bench, task, candidates), form_steps(bench, task, chosen)
    return FormatCheck(
        task=task.name,
        heads=tuple(chosen),
        whole=whole,
        steps=steps,
        effects=effects,
        sentence=f"{form_text(whole, _chosen_text(len(chosen)))} {_told(steps, effects)}",
    )


def _chosen_text(n: int) -> str:
    return "the chosen head" if n == 1 else f"the {n} chosen heads"


def _told(steps: Sequence[FormEffect], effects: Sequence[FormEffect]) -> str:
    """The format heads in words: those among the chosen, and those that were only tried."""
    chosen = {step.head for step in steps}
    groups = {
        "among the chosen heads": format_heads(steps),
        "among the others tried": [head for head in format_heads(effects) if head not in chosen],
    }
    found = [f"{', '.join(map(str, heads))} {where}" for where, heads in groups.items() if heads]
    return f"Format heads: {'; '.join(found) or 'none found'}."


class _Odds(NamedTuple):
    """How an answer begins, each float64 (n_items,): log R/O, log O/Z."""

    right: Array
    form: Array


def _odds(scores: Scores) -> _Odds | None:
    if scores.form is None or scores.first is None:
        return None
    first, form = np.exp(scores.first), np.exp(scores.form)
    others, rest = (np.log(np.maximum(one, TINY)) for one in (form - first, 1 - form))
    return _Odds(np.asarray(scores.first) - others, others - rest)


def _log_right(right: Array, form: Array) -> Array:
    """The log of R, from those of R/O and O/Z, as R + O + Z = 1."""
    return right + form - np.logaddexp(np.logaddexp(right + form, form), 0.0)


def _shared_out(before: _Odds, after: _Odds) -> tuple[Array, Array]:
    """The loss of log R that is due to log O/Z, and that due to log R/O; each (n_items,)."""
    whole, gone = _log_right(*before), _log_right(*after)
    no_form = _log_right(before.right, after.form)
    no_right = _log_right(after.right, before.form)
    form = ((whole - no_form) + (no_right - gone)) / 2
    return form, whole - gone - form


def _kind(low: float | None, high: float | None) -> FormKind:
    """By the ends of the interval of the form's share."""
    if low is not None and low > HALF:
        return "format"
    return "capability" if high is not None and high < HALF else "undecided"


def _effects(
    bench: Bench, task: Task, pairs: Sequence[tuple[Head, Mask, Mask]]
) -> tuple[FormEffect, ...]:
    """What each head takes, from the scores under the first mask to those under the second.

    A head is left out whose masks yield no numbers.
    """
    masks = list(dict.fromkeys(mask for _, *both in pairs for mask in both))
    measured = zip(masks, bench.measured(task, masks), strict=True)
    found = {mask: scores for mask, scores in measured if scores is not None}
    losses = [
        (head, form_loss(found[before], found[after], task.items))
        for head, before, after in pairs
        if before in found and after in found
    ]
    return tuple(
        FormEffect(head=head, **loss.model_dump()) for head, loss in losses if loss is not None
    )
