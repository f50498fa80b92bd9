"""Base files against edited files: the same items, paired, with intervals and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from editor import design, stats
from editor.capabilities import Capability, Continuation
from editor.errors import CapabilityAbsent, CheckFailed
from editor.formats import form_loss
from editor.measure import Bench, Task, as_mask, writes
from editor.records import (
    CurvePoint,
    FormLoss,
    Gate,
    Head,
    Mask,
    Metric,
    ModelSpec,
    Result,
    Role,
    Sample,
    Scores,
    TargetCurve,
    Validation,
    WrittenFaults,
)
from editor.wording import form_text
from editor.written_faults import objection, written_faults

N_RANDOM_SETS = 3
CURVE_ITEMS = 100
CURVE_TEXTS = 32
"""The same of a task that lets the model write: each costs as much as tens of the others."""
SAMPLES_A_TASK = 3
SAMPLE_TOKENS = 24
MASK_TOLERANCE = 0.05
"""Nats; a masked and a baked run may differ by rounding where batch shapes differ."""


@dataclass(frozen=True)
class Judged:
    """A task and what may happen to it."""

    task: Task
    role: Role
    limit: float | None
    """The most a control's metric may worsen; None for a target or a row that is only reported."""
    min_drop: float | None = None
    """For a target: the share of the base score above the floor that must be gone."""
    rise: bool = False
    """For a target: it must get better instead."""
    transfer: bool = False
    """The other form of the target before it."""


def check_headroom(
    exact: Sequence[float], capability: Capability, model: str, *, improve: bool = False
) -> None:
    """Refuse to look for what the model does not have, or cannot do better.

    Args:
        improve: the capability is to get better: the model need not have it.

    Raises:
        CapabilityAbsent: the mean of `exact` is not `HEADROOM_ERRORS` standard errors above
            the floor, or there is nothing to gain.
    """
    if improve:
        if min(exact) >= 1:
            raise CapabilityAbsent(
                f"{model} answers all {len(exact)} items of {capability.name} that were asked: "
                "there is nothing to gain",
                "choose another capability or model, or ask more items (--search-items)",
            )
        return
    errors = stats.above_floor(float(np.mean(exact)), capability.floor, len(exact))
    if errors < stats.HEADROOM_ERRORS:
        raise CapabilityAbsent(
            f"{model} does not show {capability.name}: {base_text(exact, capability)}, "
            f"{errors:.1f} standard errors above it ({stats.HEADROOM_ERRORS:g} are needed)",
            "choose a model that has the capability; with few items, ask more of them "
            "(--search-items, --choose-items)",
        )


def base_text(exact: Sequence[float], capability: Capability) -> str:
    """The base model's score with its 95 % interval, and the floor."""
    score = float(np.mean(exact))
    low, high = stats.wilson(score, len(exact))
    return (
        f"exact {score:.3f} [{low:.3f}, {high:.3f}] on {len(exact)} items, "
        f"floor {capability.floor:.3f}"
    )


def compare(judged: Judged, base: Scores, edited: Scores, *, seed: int) -> list[Result]:
    """The rows of one task."""
    metrics: tuple[Metric, ...] = ("exact", "logprob")
    if judged.task.capability.kind == "text":
        metrics = ("nats_per_token", "exact")
    elif not _has_likelihoods(judged.task):
        metrics = ("exact",)
    return [
        _row(
            judged, metric, stats.paired_change(base, edited, metric, judged.task.items, seed=seed)
        )
        for metric in metrics
    ]


def _has_likelihoods(task: Task) -> bool:
    """Whether log-probabilities are asked for; not of texts that are only judged."""
    return any(isinstance(request, Continuation) for asked in task.requests() for request in asked)


def _row(judged: Judged, metric: Metric, change: stats.Change) -> Result:
    gated = metric == ("nats_per_token" if judged.task.capability.kind == "text" else "exact")
    limit = _limit(judged, change.base) if gated else None
    result = Result(
        task=judged.task.name,
        role=judged.role,
        metric=metric,
        n=len(judged.task.items),
        base=change.base,
        edited=change.edited,
        change=change.change,
        ci=(change.low, change.high),
        limit=limit,
        rise=judged.rise and gated,
        gate="info",
    )
    return result if limit is None else result.model_copy(update={"gate": _gate(judged, result)})


def _limit(judged: Judged, base: float) -> float | None:
    """The worst change allowed, in the sign of the change."""
    capability = judged.task.capability
    if judged.rise:
        return 0.0
    if judged.min_drop is not None:
        return -judged.min_drop * max(0.0, base - capability.floor)
    if judged.limit is None:
        return None
    return judged.limit if capability.kind == "text" else -judged.limit


def _gate(judged: Judged, row: Result) -> Gate:
    """Where change and interval lie against the limit."""
    capability, limit = judged.task.capability, row.limit
    assert limit is not None
    if row.rise:
        return "fail" if row.change <= limit else "unsure" if row.ci[0] <= limit else "pass"
    above = stats.above_floor(row.base, capability.floor, row.n)
    if capability.kind == "task" and above < stats.HEADROOM_ERRORS:
        return "floor"
    # A target must fall to the limit or below; a control must not go past it.
    wanted_below = judged.min_drop is not None or row.metric == "nats_per_token"
    sign = 1 if wanted_below else -1
    worst = row.ci[1] if wanted_below else row.ci[0]
    if sign * row.change > sign * limit:
        return "fail"
    return "unsure" if sign * worst > sign * limit else "pass"


class HowLost(NamedTuple):
    """What is behind the loss of a target."""

    name: str
    """Of the target, where there are several."""
    form: FormLoss | None = None
    """What of it is lost form; where most of it is, the edit has not removed the capability."""
    written: WrittenFaults | None = None
    """What is wrong with the texts; where the edit broke them, neither has it."""
    one_form: str = ""
    """That only one of two forms is lost, of which both must be."""

    def objections(self) -> list[str]:
        """Why the loss is no removal."""
        found = [form_text(self.form)] if self.form and self.form.kind == "format" else []
        found += filter(None, (objection(self.written), self.one_form))
        return [f"{self.name}: {one}" if self.name else one for one in found]


def one_form(judged: Judged, results: Sequence[Result]) -> str:
    """That only the usual form of a target is lost, where both must be; "" where that is not so."""
    why = judged.task.capability.both_forms
    gated = {row.task: row for row in results if row.gate != "info"}
    usual, other = (gated.get(f"{judged.task.name}{form}") for form in ("", "-transfer"))
    if not why or usual is None or other is None or other.gate not in ("fail", "floor"):
        return ""
    if usual.gate not in ("pass", "unsure"):
        return ""  # neither is lost, which is said already
    changes = (f"{row.change:+.3f} [{row.ci[0]:+.3f}, {row.ci[1]:+.3f}]" for row in (usual, other))
    more = " (hardly above its floor before)" if other.gate == "floor" else ""
    usual_change, other_change = changes
    return f"{why}: {usual.task} changed by {usual_change}, {other.task} by {other_change}{more}"


def verdict(
    results: Sequence[Result],
    losses: Sequence[HowLost] = (),
) -> tuple[bool, tuple[str, ...]]:
    """Whether every limit holds, and what stands against it or is not covered by it.

    Args:
        losses: what is behind the loss of each target.
    """
    reasons = [one for loss in losses for one in loss.objections()]
    denied = bool(reasons)
    for row in results:
        where = f"{row.task} {row.metric}"
        if row.rise and row.gate == "fail":
            reasons.append(f"{where} changed by {row.change:+.3f}, but was to rise")
        elif row.rise and row.gate == "unsure":
            low, high = row.ci
            reasons.append(
                f"higher but not surely: {where} changed by {row.change:+.3f} "
                f"[{low:+.3f}, {high:+.3f}]"
            )
        elif row.gate == "fail":
            reasons.append(f"{where} changed by {row.change:+.3f}, the limit is {row.limit:+.3f}")
        elif row.gate == "floor" and row.role == "target":
            reasons.append(
                f"{where}: the base {row.base:.3f} is too near the floor to tell "
                f"from {row.n} items (--test-items asks more)"
            )
        elif row.gate == "floor":
            reasons.append(f"not tested: {where}, the base {row.base:.3f} is near the floor")
        elif row.gate == "unsure":
            low, high = row.ci
            reasons.append(
                f"within the limit but not surely: {where} changed by {row.change:+.3f} "
                f"[{low:+.3f}, {high:+.3f}], the limit is {row.limit:+.3f}"
            )
    accepted = not denied and not any(
        row.gate == "fail" or (row.gate == "floor" and row.role == "target") for row in results
    )
    return accepted, tuple(reasons)


def k_curve(
    bench: Bench, task: Task, spec: ModelSpec, heads: Sequence[Head], *, seed: int
) -> tuple[CurvePoint, ...]:
    """`exact` after the first k chosen heads, against random heads of the same layers.

    Args:
        heads: in the order in which they were chosen.
    """
    task = replace(task, items=task.items[: CURVE_TEXTS if writes(task) else CURVE_ITEMS])
    rng = np.random.default_rng(seed)
    sets = [design.random_peers(spec, heads, rng) for _ in range(N_RANDOM_SETS)]
    ks = range(1, len(heads) + 1)
    masks: list[Mask] = [as_mask(heads[:k]) for k in ks]
    masks += [as_mask(peers[:k]) for peers in sets for k in ks]
    (base,) = bench.scores(task, [()])
    # Heads without which a score is no number leave no right answer.
    found = bench.measured(task, masks)
    exact = [0.0 if one is None else stats.mean(one, "exact") for one in found]
    points = [
        CurvePoint(k=0, chosen=stats.mean(base, "exact"), chosen_ci=_ci(base, task), random=())
    ]
    for k in ks:
        points.append(
            CurvePoint(
                k=k,
                chosen=exact[k - 1],
                chosen_ci=_ci(found[k - 1], task),
                random=tuple(exact[(1 + s) * len(heads) + k - 1] for s in range(len(sets))),
            )
        )
    return tuple(points)


def _ci(scores: Scores | None, task: Task) -> tuple[float, float]:
    if scores is None:
        return (0.0, 0.0)
    return stats.share_interval(scores.exact, task.items)


def samples(base: Bench, edited: Bench, tasks: Sequence[Task]) -> tuple[Sample, ...]:
    """What both models write after the first prompts of each task, greedily."""
    asked = [(task, item) for task in tasks for item in task.items[:SAMPLES_A_TASK]]
    prompts = [item.prompt for _, item in asked]
    templated = [bool(item.turns) for _, item in asked]
    before, after = (
        bench.texts(prompts, (), max_new_tokens=SAMPLE_TOKENS, templated=templated)
        for bench in (base, edited)
    )
    return tuple(
        Sample(task=task.name, prompt=item.prompt, answer=item.answer, base=b, edited=e)
        for (task, item), b, e in zip(asked, before, after, strict=True)
    )


def masked_against_baked(
    base: Bench, edited: Bench, tasks: Sequence[Task], plan: Sequence[Head]
) -> float:
    """The most by which log-probabilities of the edited files differ from the masked base's.

    On the first task that has some: texts that are only judged have none.

    Raises:
        CheckFailed: by more than rounding does.
    """
    task = next((one for one in tasks if _has_likelihoods(one)), tasks[0])
    (masked,) = base.scores(task, [as_mask(plan)])
    (baked,) = edited.scores(task, [()])
    difference = float(np.abs(np.subtract(masked.logprob, baked.logprob)).max())
    if difference > MASK_TOLERANCE:
        raise CheckFailed(
            f"the edited files are not the base with {', '.join(map(str, plan))} removed: "
            f"log-probabilities of {task.name} differ by up to {difference:.3g} nats",
            "check that the base is the model that was edited",
        )
    return difference


def validate_edit(
    base: Bench,
    edited: Bench,
    rows: Sequence[Judged],
    plan: Sequence[Head],
    *,
    spec: ModelSpec,
    seed: int,
) -> Validation:
    """Compare base files and edited files on every row, the target first.

    Args:
        base: the base model; also measures the curve over k, with its heads masked.
        edited: the edited files, loaded afresh.
        rows: a target is the first; further ones are those with a least drop or rise.
        plan: the removed heads, in the order in which they were chosen.

    Raises:
        CheckFailed: the edited files do not behave like the base with the heads masked.
    """
    targets = [row for row in rows if row.min_drop is not None or row.rise]
    first, *others = [row for row in targets or rows[:1] if not row.transfer]
    target = first.task
    results: list[Result] = []
    for row in rows:
        (before,) = base.scores(row.task, [()])
        (after,) = edited.scores(row.task, [()])
        results += compare(row, before, after, seed=seed)
    difference = masked_against_baked(base, edited, [row.task for row in rows], plan)
    losses = [
        _how_lost(base, edited, row, seed=seed)._replace(one_form=one_form(row, results))
        for row in (first, *others)
    ]
    also = tuple(
        TargetCurve(
            task=row.task.name,
            curve=k_curve(base, row.task, spec, plan, seed=seed),
            format_loss=loss.form,
            written=loss.written,
        )
        for row, loss in zip(others, losses[1:], strict=True)
    )
    accepted, reasons = verdict(results, losses if others else [losses[0]._replace(name="")])
    return Validation(
        results=tuple(results),
        items={row.task.name: row.task.digest() for row in rows},
        curve=k_curve(base, target, spec, plan, seed=seed),
        curve_task=target.name,
        format_loss=losses[0].form,
        also=also,
        written=losses[0].written,
        samples=samples(base, edited, [row.task for row in rows]),
        masked_vs_baked=difference,
        accepted=accepted,
        reasons=reasons,
    )


def _how_lost(base: Bench, edited: Bench, row: Judged, *, seed: int) -> HowLost:
    """What is behind a target's loss: of a gain it would say nothing that is true."""
    if row.rise:
        return HowLost(row.task.name)
    (whole,), (baked,) = base.scores(row.task, [()]), edited.scores(row.task, [()])
    form = form_loss(whole, baked, row.task.items, seed=seed)
    return HowLost(row.task.name, form, written_faults(whole, baked))
