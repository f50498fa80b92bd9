"""Which heads to remove: built up head by head on the choose split, under limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from editor import stats
from editor.errors import CapabilityAbsent, TimeUp
from editor.measure import GRADIENT_COST, MORE_TIME, N_TRIES, Bench, Task, as_mask
from editor.records import Added, EditPlan, Head, Item, Mask, Measured, Metric, Predicted, Scores
from editor.responses import item_losses
from editor.search import Search, interleave

Array = NDArray[np.float64]

N_BATCHES = 2
"""How often as many are tried while none of those can be removed."""
NEARLY_GONE = 0.1
"""Share of the target's right answers below which one batch of candidates must do."""
SHARE_A_NAT = 0.1
"""How many answers (as a share of all) a nat of log-probability counts as, in a loss."""
MIN_GAIN = 0.01
"""Loss of the target that a further head must add."""
LEAST_TAKE = 0.05
"""Loss of a target that a head which was chosen for another one must surely take, to count for this
one too: far more than what moves by chance, with some of the answers in it or half a nat."""
SURE_ERRORS = 3.0
"""Standard errors that a head must win the target where it is to improve: the best of many that do
nothing seems to win something."""


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
class Terms:
    """How much the choice may take."""

    max_heads: int
    budget: int
    """Evaluations of the target that search and choice may take together."""
    sign: Literal[1, -1] = 1
    """1 removes heads that the target needs, -1 those without which it does better."""
    out_of_time: Callable[[], bool] = lambda: False
    on_chosen: Callable[[Sequence[Head]], None] = lambda heads: None
    """Hears of the heads chosen so far, in the order of choice."""
    out: tuple[Head, ...] = ()
    """Heads that are out already, chosen for other targets; those that take this one too count."""
    base: str = ""
    """What the base scores, in words: said where no head is chosen."""


@dataclass(frozen=True)
class _Judge:
    """Measures sets of heads on the choose split."""

    bench: Bench
    target: Task
    controls: Sequence[Control]
    base: Mapping[str, Scores]
    sign: Literal[1, -1]
    out_of_time: Callable[[], bool]

    def losses(self, masks: Sequence[Mask]) -> Array:
        """What each mask does to each item of the target; float64 (n_masks, n_items)."""
        return target_losses(self.bench, self.target, masks, sign=self.sign)

    def numbers(self, masks: Sequence[Mask]) -> list[bool] | None:
        """Measure the masks of the target: whether each yields numbers.

        Returns:
            None where the time is not enough for all of them.
        """
        # A step of a few is finished once it is begun: the clock is for those that try every head.
        late = self.out_of_time if len(masks) > 1 + N_TRIES else lambda: False
        found = self.bench.measured(self.target, masks, out_of_time=late)
        return [one is not None for one in found] if len(found) == len(masks) else None

    def nearly_gone(self, chosen: Sequence[Head]) -> bool:
        """Whether hardly any right answer is left with these heads out."""
        (found,) = self.bench.scores(self.target, [as_mask(chosen)])
        whole = stats.mean(self.base[self.target.name], "exact")
        return self.sign > 0 and stats.mean(found, "exact") <= NEARLY_GONE * whole

    def broken(self, mask: Mask) -> str | None:
        """The first control whose limit the mask breaks, with its figures.

        The change must stay inside by one standard error: the test split will differ.
        """
        for control in self.controls:
            name = control.task.name
            (found,) = self.bench.measured(control.task, [mask])
            if found is None:
                return f"a score of {name} would be no number"
            worse = _worsening(self.base[name], found, control.metric)
            if worse > control.limit:
                return f"{name} would worsen by up to {worse:.3f} (limit {control.limit:g})"
        return None


def target_losses(
    bench: Bench, target: Task, masks: Sequence[Mask], *, sign: Literal[1, -1] = 1
) -> Array:
    """What each mask does to each item of a target; float64 (n_masks, n_items).

    1 for a lost answer and a tenth for each nat; the other way round where the target is to
    improve.  Exactness is what will be judged, but says nothing of an answer that is nearly or
    long gone; log-probability does.
    """
    base, *found = bench.scores(target, [(), *masks])
    exact = [np.subtract(base.exact, one.exact) for one in found]
    nats = [item_losses(base, one) for one in found]
    return sign * (np.asarray(exact) + SHARE_A_NAT * np.asarray(nats))


def takes(loss: Array, items: Sequence[Item]) -> bool:
    """Whether a loss, float64 (n_items,), is sure and worth a word."""
    return float(loss.mean()) >= LEAST_TAKE and stats.mean_interval(loss, items)[0] > 0


def choose(
    bench: Bench, target: Task, controls: Sequence[Control], search: Search, terms: Terms
) -> EditPlan:
    """Add the head that costs the target most while every control stays inside its limit.

    Each step measures with the heads chosen so far already out, so that a head whose work another
    one takes over is seen for what it adds.  Heads that are out already come first: those that take
    something of this target too are among its heads.

    Raises:
        CapabilityAbsent: no candidate can be removed inside the limits.
        TimeUp: the time is up before one was tried.
    """
    ordered = sorted(controls, key=lambda control: control.task.capability.kind != "text")
    tasks = [target, *(control.task for control in ordered)]
    base = {task.name: bench.scores(task, [()])[0] for task in tasks}
    judge = _Judge(bench, target, ordered, base, terms.sign, terms.out_of_time)
    out, counted = terms.out, _counted(judge, terms.out)
    chosen: list[Head] = []  # in the order of choice, without those that were out already
    refused: dict[Head, str] = {}
    gains: dict[Head, float] = {}
    added: dict[Head, Array] = {}
    alone: dict[Head, Array] = {}

    def open_tries() -> int:
        """How many candidates the budget still allows."""
        left = terms.budget - bench.evaluations(target.capability.name)
        # A head that was no candidate of the first step is measured alone in the end.
        left -= sum(head not in alone for head in chosen) + bool(out or chosen)
        return 0 if terms.out_of_time() else max(min(search.n_tries, left), 0)

    most = terms.max_heads - len(counted)
    while len(chosen) < most and open_tries() > GRADIENT_COST:
        # What gained in the last step is likely to gain again.
        before = sorted((h for h, gain in gains.items() if gain > 0), key=lambda h: -gains[h])
        gone = (*out, *chosen)
        ranked = [h for h in interleave(search.rank(gone), before) if h not in gone]
        candidates = [head for head in ranked if head not in refused]
        best: Head | None = None
        found: dict[Head, Array] = {}
        for _ in range(1 if judge.nearly_gone(gone) else N_BATCHES):
            n = open_tries()
            tried, candidates = candidates[:n], candidates[n:]
            best, found = _step(judge, gone, tried, refused)
            gains |= {head: float(each.mean()) for head, each in found.items()}
            alone |= {} if gone else found
            if best is not None:
                break
        if best is None:
            break
        chosen.append(best)
        terms.on_chosen([*(step.head for step in counted), *chosen])
        added[best] = found[best]
    left_out = [f"{head} left out: {why}" for head, why in refused.items()]
    if len(chosen) < most and terms.out_of_time():
        left_out.append("the time was up before another head could be chosen")
    if not (chosen or counted):
        raise _nothing_found(target.name, gains, left_out, terms)
    unknown = [head for head in chosen if head not in alone]
    if unknown:
        alone |= zip(unknown, judge.losses([(head,) for head in unknown]), strict=True)
    steps = [_added(head, added[head], alone[head], target.items) for head in chosen]
    steps = (*counted, *steps)
    return EditPlan(
        capability=target.name,
        heads=tuple(step.head for step in steps),
        steps=steps,
        predicted=predict(bench, target, ordered, as_mask([*out, *chosen])),
        evaluations=bench.evaluations(target.capability.name),
        why="; ".join([*(_why(step, terms.sign) for step in steps), *left_out]),
    )


def _counted(judge: _Judge, out: Sequence[Head]) -> tuple[Added, ...]:
    """Of the heads that are out already, those that take something of this target too.

    Alone, or once those before it are out: of two that do the same work, each costs little alone.
    """
    if not out:
        return ()
    alone = judge.losses([(head,) for head in out])
    together = judge.losses([as_mask(out[:n]) for n in range(len(out) + 1)])
    items = judge.target.items
    found = zip(out, np.diff(together, axis=0), alone, strict=True)
    return tuple(
        _added(head, added, by_itself, items)
        for head, added, by_itself in found
        if takes(added, items) or takes(by_itself, items)
    )


def _added(head: Head, added: Array, alone: Array, items: Sequence[Item]) -> Added:
    """A step, from what the head does to each item under the others and alone."""
    beyond = added - alone
    low, high = stats.mean_interval(beyond, items)
    return Added(
        head=head,
        gain=float(added.mean()),
        alone=float(alone.mean()),
        beyond=Measured(value=float(beyond.mean()), low=low, high=high),
    )


def _nothing_found(
    target: str, gains: Mapping[Head, float], left_out: Sequence[str], terms: Terms
) -> CapabilityAbsent | TimeUp:
    """Why no head was chosen, and what to do about it."""
    if not gains and terms.out_of_time():
        return TimeUp(
            f"no head of {target} was tried for removal: the time was up before",
            MORE_TIME,
        )
    most = f"{max(gains.values(), default=0.0):.3f} ({MIN_GAIN} is the least that counts)"
    if terms.sign < 0:
        why = (
            f"no head was found without which {target} does better inside the limits: of "
            f"{len(gains)} tried the best adds {most}"
        )
    elif left_out:
        why = (
            f"no head that {target} needs can be removed inside the limits: of {len(gains)} tried "
            f"the costliest adds {most} to its loss"
        )
    else:
        why = (
            f"no head was found that {target} needs by itself: of {len(gains)} tried the costliest "
            f"adds {most} to its loss, and no limit was in the way"
        )
    if left_out:
        hint = "raise a limit with --max-control-drop, or search with more items"
    else:
        hint = "search with more items, or by another --method"
        if terms.sign > 0:
            hint += "; heads that stand in for each other show together, with editor bake --heads"
    return CapabilityAbsent("; ".join(filter(None, [why, *left_out[:3], terms.base])), hint)


def _why(step: Added, sign: int) -> str:
    """What a head was chosen for, and what that would have been before the others were out."""
    what = f"adds {step.gain:.2f} to the target's loss" if sign > 0 else f"wins {step.gain:.2f}"
    return f"{step.head} {what} ({step.alone:.2f} alone)"


def first_candidates(search: Search) -> list[Head]:
    """The heads that `choose` tries alone."""
    return search.rank(())[:N_TRIES]


def _step(
    judge: _Judge, chosen: Sequence[Head], tried: Sequence[Head], refused: dict[Head, str]
) -> tuple[Head | None, dict[Head, Array]]:
    """Try candidates for the next head; those that break a limit are noted in `refused`.

    Returns:
        The one to add, or None when none adds anything inside the limits; what each adds, by item.
    """
    masks = {head: as_mask([*chosen, head]) for head in tried}
    numbers = judge.numbers([as_mask(chosen), *masks.values()])
    if numbers is None:  # the best may be among those that are not measured
        return None, {}
    told = [head for head, number in zip(tried, numbers[1:], strict=True) if number]
    refused |= dict.fromkeys(
        set(tried).difference(told), "a score of the target would be no number"
    )
    now, *losses = judge.losses([as_mask(chosen), *(masks[head] for head in told)])
    by_item = {head: loss - now for head, loss in zip(told, losses, strict=True)}
    gains = {head: float(each.mean()) for head, each in by_item.items()}
    for head in sorted(told, key=lambda head: -gains[head]):
        error = float(by_item[head].std()) / len(by_item[head]) ** 0.5
        if gains[head] < MIN_GAIN or (judge.sign < 0 and gains[head] < SURE_ERRORS * error):
            continue
        broken = judge.broken(masks[head])
        if broken is None:
            return head, by_item
        refused[head] = broken
    return None, by_item


def _worsening(base: Scores, masked: Scores, metric: Metric) -> float:
    """By how much a metric worsened plus one standard error of that change, paired by item."""
    (before, weights), (after, _) = stats.values(base, metric), stats.values(masked, metric)
    sign = 1.0 if metric == "nats_per_token" else -1.0
    worse = sign * (after - before)
    mean = worse.sum() / weights.sum()
    error = float(np.sqrt(np.sum((worse - mean * weights) ** 2))) / float(weights.sum())
    return float(mean) + error


def predict(
    bench: Bench, target: Task, controls: Sequence[Control], mask: Mask
) -> tuple[Predicted, ...]:
    """What the mask does to the target and the controls, on the items of the choice."""
    metrics: dict[str, Metric] = {control.task.name: control.metric for control in controls}
    out: list[Predicted] = []
    for task in (target, *(control.task for control in controls)):
        before, after = bench.scores(task, [(), mask])
        # A dense scorer's `exact` is no share of right answers.
        own: Metric = "exact" if task.scorer is task.capability.scorer else "logprob"
        metric = metrics.get(task.name, own)
        out.append(
            Predicted(
                task=task.name,
                metric=metric,
                base=stats.mean(before, metric),
                edited=stats.mean(after, metric),
            )
        )
    return tuple(out)
