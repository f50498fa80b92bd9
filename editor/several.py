"""Several capabilities that one edit removes: the same first masks, one set of heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def choose_each(
    bench: Bench,
    targets: Sequence[Task],
    controls: Sequence[Control],
    searches: Sequence[Search],
    terms: Sequence[Terms],
) -> list[EditPlan]:
    """Heads for the first target, then for the next with those out, and so on.

    The controls' limits hold for all heads together, and so do the predictions.

    Raises:
        CapabilityAbsent: for one target no head can be removed inside the limits.
    """
    plans: list[EditPlan] = []
    for target, search, of_one in zip(targets, searches, terms, strict=True):
        plans.append(choose(bench, target, controls, search, replace(of_one, out=union(plans))))
    if len(plans) == 1:
        return plans
    mask = as_mask(union(plans))
    kept = [controls, *[()] * (len(plans) - 1)]  # controls are told of once
    return [
        plan.model_copy(update={"predicted": predict(bench, target, some, mask)})
        for plan, target, some in zip(plans, targets, kept, strict=True)
    ]


def union(plans: Sequence[EditPlan]) -> tuple[Head, ...]:
    """All heads of the plans, in the order in which they were chosen."""
    return tuple(dict.fromkeys(head for plan in plans for head in plan.heads))


def share(
    bench: Bench, targets: Sequence[Task], plans: Sequence[EditPlan], *, improve: bool = False
) -> Sharing:
    """What each chosen head takes of each target alone, and which heads serve more than one.

    Args:
        targets: on the choose split.
        plans: one a target.
        improve: the targets are to get better without the heads.
    """
    heads, sign = union(plans), -1 if improve else 1
    alone: dict[str, dict[Head, Measured]] = {}
    serving: dict[str, tuple[Head, ...]] = {}
    for target, plan in zip(targets, plans, strict=True):
        found = target_losses(bench, target, [(head,) for head in heads], sign=sign)
        alone[target.name] = {
            head: _measured(loss, target) for head, loss in zip(heads, found, strict=True)
        }
        serving[target.name] = tuple(
            head
            for head, loss in zip(heads, found, strict=True)
            if head in plan.heads or takes(loss, target.items)
        )
    return Sharing(
        heads=serving,
        shared=tuple(head for head in heads if sum(head in one for one in serving.values()) > 1),
        takes=tuple(
            HeadTake(head=head, alone={name: one[head] for name, one in alone.items()})
            for head in heads
        ),
    )


def _measured(loss: stats.Array, target: Task) -> Measured:
    low, high = stats.mean_interval(loss, target.items)
    return Measured(value=float(loss.mean()), low=low, high=high)
