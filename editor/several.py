"""Several capabilities that one edit removes: the same first masks, one set of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from editor import stats
from editor.choose import Control, Terms, choose, predict, takes, target_losses
from editor.measure import Bench, Task, as_mask
from editor.methods import first_masks
from editor.records import EditPlan, Head, HeadTake, Measured, Sharing
from editor.search import Job, Search


def measure_shared(method: str, jobs: Sequence[Job]) -> None:
    """Measure the masks with which the searches begin, for each target before any goes on.

    They follow from what may be knocked out, the budget and the seed, not from any score, so they
    are the same for all; the searches find them in the journal.
    """
    masks = first_masks(method, jobs[0])
    for job in jobs:
        job.bench.measured(job.task, [(), *masks], out_of_time=lambda: jobs[0].out_of_time(1.0))


class Chosen(NamedTuple):
    """Heads for every target."""

    heads: tuple[Head, ...]
    """All of them, in the order in which they were chosen."""
    plans: list[EditPlan]
    """One a target."""
    sharing: Sharing | None
    """None for one target."""


def choose_each(
    bench: Bench,
    targets: Sequence[Task],
    controls: Sequence[Control],
    searches: Sequence[Search],
    terms: Sequence[Terms],
) -> Chosen:
    """Heads for the first target, then for the next with those out, and so on.

    The controls' limits hold for all heads together, and so do the predictions.

    Raises:
        CapabilityAbsent: for one target no head can be removed inside the limits.
    """
    plans: list[EditPlan] = []
    for target, search, of_one in zip(targets, searches, terms, strict=True):
        out = union(plans)
        plans.append(choose(bench, target, controls, search, replace(of_one, out=out)))
    heads = union(plans)
    if len(plans) == 1:
        return Chosen(heads, plans, None)
    sharing = share(bench, targets, plans, sign=terms[0].sign)
    mask = as_mask(heads)
    kept = [controls, *[()] * (len(plans) - 1)]  # controls are told of once
    for n, (target, plan, some) in enumerate(zip(targets, plans, kept, strict=True)):
        predicted = predict(bench, target, some, mask)
        own = sharing.heads[target.name]
        plans[n] = plan.model_copy(update={"predicted": predicted, "heads": own})
    return Chosen(heads, plans, sharing)


def union(plans: Sequence[EditPlan]) -> tuple[Head, ...]:
    """All heads of the plans, in the order in which they were chosen."""
    return tuple(dict.fromkeys(head for plan in plans for head in plan.heads))


def share(
    bench: Bench,
    targets: Sequence[Task],
    plans: Sequence[EditPlan],
    *,
    sign: Literal[1, -1] = 1,
) -> Sharing:
    """What each chosen head takes of each target, and which heads serve more than one.

    A head may take nothing alone and yet be what the others need to be out: a target that stands on
    two heads is lost with both.  So it is looked at alone and as the last.

    Args:
        targets: on the choose split.
        plans: one a target.
        sign: -1 where the targets are to get better without the heads.
    """
    heads = union(plans)
    alone: dict[str, dict[Head, Measured]] = {}
    last: dict[str, dict[Head, Measured]] = {}
    serving: dict[str, tuple[Head, ...]] = {}
    others = [as_mask([other for other in heads if other != head]) for head in heads]
    masks = [as_mask(heads), *((head,) for head in heads), *others]
    for target, plan in zip(targets, plans, strict=True):
        whole, *found = target_losses(bench, target, masks, sign=sign)
        by_itself = dict(zip(heads, found, strict=False))
        at_last = {
            head: whole - rest for head, rest in zip(heads, found[len(heads) :], strict=True)
        }
        alone[target.name] = {head: _measured(by_itself[head], target) for head in heads}
        last[target.name] = {head: _measured(at_last[head], target) for head in heads}
        serving[target.name] = tuple(
            head
            for head in heads
            if head in plan.heads
            or takes(by_itself[head], target.items)
            or takes(at_last[head], target.items)
        )
    return Sharing(
        heads=serving,
        shared=tuple(head for head in heads if sum(head in one for one in serving.values()) > 1),
        takes=tuple(
            HeadTake(
                head=head,
                alone={name: one[head] for name, one in alone.items()},
                last={name: one[head] for name, one in last.items()},
            )
            for head in heads
        ),
    )


def _measured(loss: stats.Array, target: Task) -> Measured:
    low, high = stats.mean_interval(loss, target.items)
    return Measured(value=float(loss.mean()), low=low, high=high)
