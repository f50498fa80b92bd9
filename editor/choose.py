"""Which heads to remove: built up head by head on the choose split, under limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from editor import stats
from editor.errors import CapabilityAbsent
from editor.measure import GRADIENT_COST, Bench, Task, as_mask
from editor.records import EditPlan, Head, Mask, Metric, Predicted, Scores
from editor.search import Search, interleave, item_losses

N_TRIES = 10
"""Candidates tried for each head at once."""
N_BATCHES = 2
"""How often as many are tried while none of those can be removed."""
NEARLY_GONE = 0.1
"""Share of the target's right answers below which one batch of candidates must do."""
EVALUATIONS_A_HEAD = 18
"""Evaluations of the target that the choice may take for each head that was asked for."""
SHARE_A_NAT = 0.1
"""How many answers (as a share of all) a nat of log-probability counts as, in a loss."""
MIN_GAIN = 0.01
"""Loss of the target that a further head must add."""


@dataclass(frozen=True)
class Control:
    """A task that must survive."""

    task: Task
    limit: float
    """The most that its metric may worsen."""

    @property
    def metric(self) -> Metric:
        return "nats_per_token" if self.task.capability.kind == "text" else "exact"


@dataclass(frozen=True)
class _Judge:
    """Measures sets of heads on the choose split."""

    bench: Bench
    target: Task
    controls: Sequence[Control]
    base: Mapping[str, Scores]

    def losses(self, masks: Sequence[Mask]) -> list[float]:
        """Loss of the target under each mask: share of answers lost, plus what nats count as.

        Exactness is what will be judged, but says nothing of an answer that is nearly or long gone;
        log-probability does.
        """
        base = self.base[self.target.name]
        return [
            stats.mean(base, "exact")
            - stats.mean(found, "exact")
            + SHARE_A_NAT * float(item_losses(base, found).mean())
            for found in self.bench.scores(self.target, masks)
        ]

    def exact(self, chosen: Sequence[Head]) -> float:
        """Share of the target's answers that are right with these heads out."""
        (found,) = self.bench.scores(self.target, [as_mask(chosen)])
        return stats.mean(found, "exact")

    def broken(self, mask: Mask) -> str | None:
        """The first control whose limit the mask breaks, with its figures.

        The change must stay inside by one standard error: the test split will differ.
        """
        for control in self.controls:
            name = control.task.name
            (found,) = self.bench.scores(control.task, [mask])
            worse = _worsening(self.base[name], found, control.metric)
            if worse > control.limit:
                return f"{name} would worsen by up to {worse:.3f} (limit {control.limit:g})"
        return None


def choose(
    bench: Bench, target: Task, controls: Sequence[Control], search: Search, max_heads: int
) -> EditPlan:
    """Add the head that costs the target most while every control stays inside its limit.

    Each step measures with the heads chosen so far already out, so that a head whose work another
    one takes over is seen for what it adds.

    Raises:
        CapabilityAbsent: no candidate can be removed inside the limits.
    """
    ordered = sorted(controls, key=lambda control: control.task.capability.kind != "text")
    tasks = [target, *(control.task for control in ordered)]
    base = {task.name: bench.scores(task, [()])[0] for task in tasks}
    judge = _Judge(bench, target, ordered, base)

    def spent() -> int:
        return bench.evaluations(target.capability.name)

    chosen: tuple[Head, ...] = ()  # in the order of choice
    refused: dict[Head, str] = {}
    gains: list[str] = []
    gained: dict[Head, float] = {}
    budget = spent() + EVALUATIONS_A_HEAD * max_heads
    while len(chosen) < max_heads and spent() + N_TRIES + GRADIENT_COST <= budget:
        # What gained in the last step is likely to gain again.
        before = sorted((h for h, gain in gained.items() if gain > 0), key=lambda h: -gained[h])
        ranked = [h for h in interleave(search.rank(chosen), before) if h not in chosen]
        open_ = [head for head in ranked if head not in refused]
        step = _Step(None, {})
        left = judge.exact(chosen)
        whole = stats.mean(base[target.name], "exact")
        n_batches = 1 if left <= NEARLY_GONE * whole else N_BATCHES
        for start in range(0, N_TRIES * n_batches, N_TRIES):
            if spent() + N_TRIES > budget:
                break
            step = _step(judge, chosen, open_[start : start + N_TRIES], refused)
            gained |= step.gains
            if step.head is not None:
                break
        if step.head is None:
            break
        chosen = (*chosen, step.head)
        gains.append(f"{step.head} adds {gained[step.head]:.2f} to the target's loss")
    left_out = [f"{head} left out: {why}" for head, why in refused.items()]
    if not chosen:
        most = max(gained.values(), default=0.0)
        raise CapabilityAbsent(
            f"no head that {target.name} needs can be removed inside the limits: of "
            f"{len(gained)} tried the costliest adds {most:.3f} to its loss ({MIN_GAIN} is the "
            "least that counts)" + "".join(f"; {line}" for line in left_out[:3]),
            "raise a limit with --max-control-drop, or search with more items",
        )
    return EditPlan(
        capability=target.name,
        heads=chosen,
        predicted=_predict(bench, tasks, ordered, base, as_mask(chosen)),
        evaluations=spent(),
        why="; ".join([*gains, *left_out]),
    )


def first_candidates(search: Search) -> list[Head]:
    """The heads that `choose` tries alone."""
    return search.rank(())[:N_TRIES]


class _Step(NamedTuple):
    """The outcome of trying candidates for the next head."""

    head: Head | None
    """The one to add, or None when none adds anything inside the limits."""
    gains: dict[Head, float]
    """Loss of the target that each candidate adds."""


def _step(
    judge: _Judge, chosen: Sequence[Head], tried: Sequence[Head], refused: dict[Head, str]
) -> _Step:
    """Try the candidates; those that break a limit are noted in `refused`."""
    masks = {head: as_mask([*chosen, head]) for head in tried}
    now, *losses = judge.losses([as_mask(chosen), *masks.values()])
    gains = {head: loss - now for head, loss in zip(tried, losses, strict=True)}
    for head in sorted(tried, key=lambda head: -gains[head]):
        if gains[head] < MIN_GAIN:
            break
        broken = judge.broken(masks[head])
        if broken is None:
            return _Step(head, gains)
        refused[head] = broken
    return _Step(None, gains)


def _worsening(base: Scores, masked: Scores, metric: Metric) -> float:
    """By how much a metric worsened plus one standard error of that change, paired by item."""
    (before, weights), (after, _) = stats.values(base, metric), stats.values(masked, metric)
    sign = 1.0 if metric == "nats_per_token" else -1.0
    worse = sign * (after - before)
    mean = worse.sum() / weights.sum()
    error = float(np.sqrt(np.sum((worse - mean * weights) ** 2))) / float(weights.sum())
    return float(mean) + error


def _predict(
    bench: Bench,
    tasks: Sequence[Task],
    controls: Sequence[Control],
    base: Mapping[str, Scores],
    mask: Mask,
) -> tuple[Predicted, ...]:
    metrics: dict[str, Metric] = {control.task.name: control.metric for control in controls}
    out: list[Predicted] = []
    for task in tasks:
        (found,) = bench.scores(task, [mask])
        metric = metrics.get(task.name, "exact")
        out.append(
            Predicted(
                task=task.name,
                metric=metric,
                base=stats.mean(base[task.name], metric),
                edited=stats.mean(found, metric),
            )
        )
    return tuple(out)
