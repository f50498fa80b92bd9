"""Ways to rank the heads that may be removed next, all on the same measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from editor import design, estimate
from editor.errors import CapabilityAbsent, TimeUp
from editor.measure import MORE_TIME, N_TRIES, Bench, Task, as_mask
from editor.records import Confidence, Design, Estimate, Head, Mask, Prior, Rival, Scores, View
from editor.responses import Response, require_signal, respond
from editor.universal import measure_singles

N_RIVAL_HEADS = 5


@dataclass(frozen=True)
class Job:
    """What is searched for, in what, and how much that may cost."""

    bench: Bench
    task: Task
    heads: tuple[Head, ...]
    """All heads of the model, in unit order."""
    excluded: frozenset[Head]
    """Heads that are known to be needed by everything."""
    seed: int
    budget: int
    """Evaluations of the task that the search may take."""
    max_heads: int
    confidence: float = 0.95
    view: View = "logprob"
    density: float = 0.08
    """Share of the heads in a mask at first."""
    prior: Prior = "gradient"
    sign: Literal[1, -1] = 1
    """1 looks for heads that the task needs, -1 for heads without which it does better."""
    is_universal: Callable[[Head], bool] | None = None
    """Asked of heads that look strong, where universal heads are not known beforehand; an answer
    costs an evaluation."""
    out_of_time: Callable[[float], bool] = lambda share: False
    """Whether that share of the run's time is over."""
    turn: float = 1.0
    """Share of the searches' time after which this one must end: several take turns."""
    on_best: Callable[[Sequence[Head]], None] = lambda heads: None
    """Hears which heads look best so far, the best first."""

    @property
    def units(self) -> list[int]:
        """The heads that may be knocked out, as unit indices."""
        return [unit for unit, head in enumerate(self.heads) if head not in self.excluded]

    def mask(self, units: Sequence[int]) -> tuple[Head, ...]:
        """The units as a set of heads."""
        return as_mask([self.heads[unit] for unit in units])


class Search(Protocol):
    """Ranks the heads that may be removed next."""

    n_tries: ClassVar[int]
    """Candidates that the choice should try at once."""

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        """All candidates, best first, given that `chosen` are out already."""
        ...

    def estimates(self) -> tuple[Estimate, ...]:
        """What the masks so far say of the heads, the first with nothing else out."""
        ...

    def confidence(self) -> Confidence | None:
        """How sure the ranking is; None where the method does not tell."""
        ...


class PublishedSearch:
    """The published recipe: stratified masks of 2 % of all heads, and one Lasso.

    It knows no universal heads: none is kept out of the masks.
    """

    n_tries: ClassVar[int] = N_TRIES

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told, self._response = measure_rows(job, published_design(job))
        self._X = design.matrix([self._told.rows])
        require_signal(self._response, job.task.name)
        job.on_best(self.rank(())[: job.max_heads])

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        effects = estimate.published_lasso(self._X, -self._response.losses)
        heads, sign = self._job.heads, self._job.sign
        ranked = sorted(range(len(heads)), key=lambda unit: -sign * effects[unit])
        return [heads[u] for u in ranked if sign * effects[u] > 0 and heads[u] not in chosen]

    def estimates(self) -> tuple[Estimate, ...]:
        effects = estimate.head_effects(
            self._X,
            self._response.items,
            self._job.heads,
            estimate.published_lasso,
            seed=self._job.seed,
        )
        return (
            Estimate(
                task=self._job.task.name,
                score=self._job.view,
                solver="Lasso, penalty 0.01",
                n_masks=len(self._X),
                fit_r2=estimate.held_out_r2(self._X, -self._response.losses),
                effects=tuple(sorted(effects, key=lambda one: (-one.effect, one.head))),
                not_numbers=self._told.not_numbers,
            ),
        )

    def confidence(self) -> Confidence | None:
        return None


def published_design(job: Job) -> Design:
    """The masks of the published recipe."""
    return design.stratified(
        range(len(job.heads)),
        n_units=len(job.heads),
        n_masks=job.budget,
        size=max(1, round(len(job.heads) * 0.02)),
        seed=job.seed,
    )


class ScanSearch:
    """Every head alone: one evaluation a head, no model of how they add up."""

    n_tries: ClassVar[int] = N_TRIES

    def __init__(self, job: Job) -> None:
        self._job = job
        heads = [job.heads[unit] for unit in job.units]
        measured_all(job, [(head,) for head in heads])
        self._found = singles_of(job, heads)
        job.on_best(self.rank(())[: job.max_heads])

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        ranked = sorted(self._found.effects, key=lambda one: -self._job.sign * one.effect)
        return [one.head for one in ranked if one.head not in chosen]

    def estimates(self) -> tuple[Estimate, ...]:
        return (self._found,)

    def confidence(self) -> Confidence | None:
        return None


class GreedySearch:
    """Every head is tried at every step: as many evaluations as heads for each pick."""

    n_tries: ClassVar[int] = 10**9

    def __init__(self, job: Job) -> None:
        self._job = job
        self._alone: Estimate | None = None

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        job = self._job
        return [job.heads[unit] for unit in job.units if job.heads[unit] not in chosen]

    def estimates(self) -> tuple[Estimate, ...]:
        return (singles_of(self._job, self.rank(())),)

    def confidence(self) -> Confidence | None:
        return None


class GradientSearch:
    """The gradient of the score by each head, anew with the chosen heads out: no knock-outs."""

    n_tries: ClassVar[int] = N_TRIES

    def __init__(self, job: Job) -> None:
        self._job = job

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        return [head for head in by_gradient(self._job, chosen) if head not in chosen]

    def estimates(self) -> tuple[Estimate, ...]:
        return (singles_of(self._job, self.rank(())[: self.n_tries]),)

    def confidence(self) -> Confidence | None:
        return None


def singles_of(job: Job, heads: Sequence[Head]) -> Estimate:
    """What each of the heads costs alone."""
    return measure_singles(job.bench, job.task, heads, job.view)


def by_gradient(job: Job, chosen: Sequence[Head]) -> list[Head]:
    """The heads that may go, those first that cost most to first order with `chosen` out."""
    gradient = job.sign * job.bench.gradients(job.task, as_mask(chosen))
    return [job.heads[unit] for unit in sorted(job.units, key=lambda unit: -gradient[unit])]


class Told(NamedTuple):
    """What was measured of a design: the rows that yield numbers, and the others."""

    rows: Design
    scores: list[Scores]
    """One a row."""
    not_numbers: tuple[Mask, ...]
    """Masks under which a score is not a number."""


def measure_rows(job: Job, rows: Design) -> tuple[Told, Response]:
    """Measure a design's masks, and what they cost.

    Raises:
        CapabilityAbsent: none yields numbers.
        TimeUp: the time is up before the last of them.
    """
    (base,) = job.bench.scores(job.task, [()])
    found = measured_all(job, [job.mask(row) for row in rows.rows])
    told = only_numbers(job, rows, found)
    require_numbers(job.task.name, len(told.scores), told.not_numbers)
    return told, respond(base, told.scores, job.task.items, job.view)


def only_numbers(job: Job, rows: Design, found: Sequence[Scores | None]) -> Told:
    """Keep the rows whose masks yield numbers; where fewer were measured, of the first."""
    pairs = list(zip(rows.rows, found, strict=False))
    kept = [(row, scores) for row, scores in pairs if scores is not None]
    return Told(
        rows.model_copy(update={"rows": tuple(row for row, _ in kept)}),
        [scores for _, scores in kept],
        tuple(job.mask(row) for row, scores in pairs if scores is None),
    )


def require_numbers(task: str, n_told: int, not_numbers: Sequence[Mask]) -> None:
    """Refuse a design of which no mask yields numbers.

    Raises:
        CapabilityAbsent: there is none.
    """
    if not n_told:
        raise CapabilityAbsent(
            f"under all of {len(not_numbers)} masks a score of {task} is not a finite number",
            "its dtype may overflow: try --dtype float32",
        )


def measured_all(job: Job, masks: Sequence[Mask]) -> list[Scores | None]:
    """What all the masks yield: a part of a design whose size is fixed means nothing.

    Raises:
        TimeUp: the time is up before the last of them.
    """
    found = job.bench.measured(job.task, masks, out_of_time=lambda: job.out_of_time(1.0))
    if len(found) < len(masks):
        raise TimeUp(
            f"the time was up after {len(found)} of {len(masks)} masks of {job.task.name}, of "
            "which this method needs all",
            MORE_TIME,
        )
    return found


def interleave(*lists: Sequence[Head]) -> list[Head]:
    """The lists' firsts, then their seconds, and so on; each head once."""
    places = range(max(map(len, lists), default=0))
    mixed = [one[place] for place in places for one in lists if place < len(one)]
    return list(dict.fromkeys(mixed))


def rivals(X: estimate.Array, losses: estimate.Array, heads: Sequence[Head]) -> tuple[Rival, ...]:
    """The first heads by every other estimator, from the same masks."""
    out: list[Rival] = []
    for name, estimator in estimate.ESTIMATORS.items():
        effects = estimator(X, -losses)
        order = np.argsort(-effects, kind="stable")[:N_RIVAL_HEADS]
        out.append(Rival(solver=name, heads=tuple(heads[int(u)] for u in order if effects[u] > 0)))
    return tuple(out)


def with_singles(pooled: Estimate, singles: Estimate) -> Estimate:
    """The pools' estimate, with the heads that were measured alone as they were measured."""
    alone = {one.head: one for one in singles.effects}
    # Pools count right answers on a log scale, heads alone as a share.
    if not alone or pooled.score == "exact":
        return pooled
    known = {one.head: one for one in pooled.effects}
    merged = [
        one.model_copy(
            update={
                "probability": known[head].probability,
                "decided": known[head].decided and (one.low > 0 or one.high < 0),
            }
            if head in known
            else {}
        )
        for head, one in alone.items()
    ]
    merged += [one for one in pooled.effects if one.head not in alone]
    return pooled.model_copy(
        update={
            "solver": f"{len(alone)} heads alone, the others by {pooled.solver}",
            "n_masks": pooled.n_masks + len(alone),
            "effects": tuple(sorted(merged, key=lambda one: (-one.effect, one.head))),
            "not_numbers": tuple(dict.fromkeys((*pooled.not_numbers, *singles.not_numbers))),
        }
    )
