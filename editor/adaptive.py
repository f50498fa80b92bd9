"""The adaptive search: pools over all heads, then over the suspects, until the answer is clear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from editor import confidence, confidence_text, design, estimate, posterior
from editor.errors import CapabilityAbsent
from editor.measure import GRADIENT_COST, N_TRIES
from editor.posterior import Posterior
from editor.records import Confidence, Design, Estimate, Head, HeadEffect, Mask, Scores
from editor.responses import Response, at_fitted, require_signal, respond
from editor.search import Job, by_gradient, interleave, only_numbers, require_numbers, rivals

Array = NDArray[np.float64]

FIRST_SHARE = 0.3
"""Share of the budget for pools over all heads."""
ROUND_SHARE = 0.1
"""Share of the budget for each round among the suspects."""
POOL_SHARE = 0.25
"""Share of the suspects in a mask."""
FEWEST_SUSPECTS = 24
MOST_ROUNDS_OVER_ALL, MOST_MASKS_A_ROUND = 12, 100
"""However large the budget: more before looking is wasted where a few heads are plain."""
FEWEST_POOLED = 4
"""Heads below which there is nothing to pool."""
SHARE_OF_TIME = 0.5
"""What the search may take of a run's time: the choice takes as many evaluations, on more items."""
SURE_ALONE = 2.0
"""Standard errors over the items by which a head alone must cost something, to be decided."""
LARGEST_GROUP = 8
"""Heads that cannot be told apart: of more than these no list is of use."""
LEAST_ROUND = 4
"""Masks below which a round is not worth its pools."""
UNLIKELY = 0.05
"""Probability below which a head is no suspect any more."""
COSTLY_POOL = 1.0
"""Median loss of a mask, in nats, from which the next masks get half as many heads: heads add up
only where something is left to lose."""


@dataclass(frozen=True)
class Reading:
    """What the masks so far say."""

    X: Array
    """float64 (n_masks, n_units)."""
    response: Response
    post: Posterior
    found: confidence.Intervals
    chance_z: float
    """Standard errors that no head passes by chance."""


class AdaptiveSearch:
    """Rounds of pools, each from what the rounds before it say.

    Heads stand in for one another: some cost nothing while a stronger one is there.  So candidates
    alternate between the pools, which are knock-outs with everything else in place, and the
    gradient with the chosen heads out, which sees those but misleads in the lowest layers.
    """

    n_tries: ClassVar[int] = N_TRIES

    def __init__(self, job: Job) -> None:
        self._job = job
        (self._base,) = job.bench.scores(job.task, [()])
        self._designs: list[Design] = []
        self._scores: list[Scores] = []
        self._not_numbers: tuple[Mask, ...] = ()
        self._universal: set[int] = set()
        self._asked: set[int] = set()
        self._alone: dict[int, Scores] = {}
        self._prior = _prior_of(job)
        self._stopped = ""
        self._reading = self._measure(first_round(job))
        while not self._stopped:
            self._set_universal_apart()
            self._stopped = self._why_stop()
            if not self._stopped:
                self._reading = self._measure(self._next_round())

    def rank(self, chosen: Sequence[Head]) -> list[Head]:
        heads, promise = self._job.heads, self._job.sign * self._reading.post.promise
        pooled = [heads[unit] for unit in sorted(self._open(), key=lambda unit: -promise[unit])]
        views = [pooled]
        if self._job.prior == "gradient":
            views.insert(0, by_gradient(self._job, chosen))
        out = {*chosen, *(heads[unit] for unit in self._universal)}
        return [head for head in interleave(*views) if head not in out]

    def estimates(self) -> tuple[Estimate, ...]:
        now, heads = self._reading, self._job.heads
        count = now.X.sum(axis=0).astype(int)
        decided = set(self._decided(1)) | set(self._decided(-1))
        effects = [
            HeadEffect(
                head=heads[unit],
                effect=float(now.found.effect[unit]),
                low=float(now.found.low[unit]),
                high=float(now.found.high[unit]),
                n_masks=int(count[unit]),
                probability=float(now.post.inclusion[unit]),
                decided=unit in decided,
            )
            for unit in sorted(range(len(heads)), key=lambda unit: -now.post.promise[unit])
            if np.isfinite(now.found.effect[unit])
        ]
        losses = now.response.losses
        return (
            Estimate(
                task=self._job.task.name,
                score=self._job.view,
                solver="sum of single effects, adaptive pools",
                n_masks=len(losses),
                fit_r2=estimate.held_out_r2(now.X, -losses),
                effects=tuple(effects),
                rivals=rivals(now.X, losses, heads),
                not_numbers=self._not_numbers,
            ),
        )

    def confidence(self) -> Confidence:
        heads = self._job.heads

        def names(units: Sequence[int]) -> tuple[Head, ...]:
            return tuple(heads[unit] for unit in units)

        found = Confidence(
            level=self._job.confidence,
            decided=names(self._decided(self._job.sign)),
            helped=names(self._decided(-self._job.sign)),
            undecided=names(self._undecided()),
            universal=names(sorted(self._universal)),
            not_ruled_out=len(self._not_ruled_out()),
            groups=tuple(names(group) for group in self._groups()),
            chance_z=self._reading.chance_z,
            evaluations=len(self._scores) + len(self._not_numbers),
            rounds=len(self._designs),
            stopped=self._stopped,
            sentence="",
        )
        said = confidence_text.sentence(found, improve=self._job.sign < 0)
        return found.model_copy(update={"sentence": said})

    def _measure(self, rows: Design) -> Reading:
        """Measure one more round and read all of them; once the time is up, only its beginning."""
        job = self._job
        masks = [job.mask(row) for row in rows.rows]
        found = job.bench.measured(job.task, masks, out_of_time=self._out_of_time)
        told = only_numbers(job, rows, found)
        self._scores += told.scores
        self._not_numbers += told.not_numbers
        self._designs.append(told.rows)
        require_numbers(job.task.name, len(self._scores), self._not_numbers)
        singles = zip(told.rows.rows, told.scores, strict=True)
        self._alone |= {row[0]: one for row, one in singles if len(row) == 1}
        X = design.matrix(self._designs)
        response = respond(self._base, self._scores, job.task.items, job.view)
        require_signal(response, job.task.name)
        post = posterior.fit(X, response.losses, response.known, prior=self._prior)
        if response.known.any():
            response = at_fitted(response, post.fitted(X))
            post = posterior.fit(X, response.losses, response.known, prior=self._prior)
        self._tell_best(post)
        rounds = np.repeat(np.arange(len(self._designs)), [len(d.rows) for d in self._designs])
        return Reading(
            X,
            response,
            post,
            confidence.intervals(X, response, post),
            confidence.largest_by_chance(X, response.losses, rounds, post, seed=job.seed),
        )

    def _tell_best(self, post: Posterior) -> None:
        """Say which heads look best; no decision hangs on it."""
        promise = self._job.sign * post.promise
        ranked = sorted(self._open(), key=lambda unit: -promise[unit])
        best = [unit for unit in ranked[: self._job.max_heads] if promise[unit] > 0]
        self._job.on_best([self._job.heads[unit] for unit in best])

    def _out_of_time(self) -> bool:
        return self._job.out_of_time(SHARE_OF_TIME * self._job.turn)

    def _open(self) -> list[int]:
        """Units that may be removed."""
        return [unit for unit in self._job.units if unit not in self._universal]

    def _next_round(self) -> Design:
        """Pools among the suspects: fewer of them each round."""
        job, promise = self._job, self._job.sign * self._reading.post.promise
        n_before = len(self._designs)
        ranked = sorted(self._open(), key=lambda unit: -promise[unit])
        n = max(FEWEST_SUSPECTS, 3 * job.max_heads, len(job.units) >> (n_before + 1))
        suspects = ranked[:n]
        costly = float(np.median(self._reading.response.losses)) > COSTLY_POOL
        most = max(1, int(len(job.units) * job.density / (2 if costly else 1)))
        size = min(most, max(1, int(len(suspects) * POOL_SHARE)))
        alone = self._unproven()[: job.budget - self._spent()]
        room = self._room() - len(alone)
        n_masks = min(max(round(ROUND_SHARE * job.budget), LEAST_ROUND), MOST_MASKS_A_ROUND, room)
        rows = design.singles(alone, n_units=len(job.heads))
        if n_masks >= LEAST_ROUND:
            seed = job.seed + n_before
            more = pools(suspects, n_units=len(job.heads), n_masks=n_masks, size=size, seed=seed)
            rows = more.model_copy(update={"rows": rows.rows + more.rows})
        return rows

    def _room(self) -> int:
        """Pools that the budget allows; some of it is kept for trying heads alone."""
        return self._job.budget - self._spent() - min(self._job.max_heads, self._job.budget // 10)

    def _spent(self) -> int:
        """Evaluations so far; asking whether a head is universal costs one, a gradient more."""
        gradient = 0 if self._prior is None else GRADIENT_COST
        return len(self._scores) + len(self._not_numbers) + len(self._asked) + gradient

    def _set_universal_apart(self) -> None:
        """Ask whether what looks strong is needed by all text; such heads are measured no more."""
        ask, post = self._job.is_universal, self._reading.post
        if ask is None:
            return
        for unit in map(int, np.flatnonzero(post.inclusion >= posterior.LIKELY)):
            if unit in self._asked or post.effects[unit] <= 0 or self._spent() >= self._job.budget:
                continue
            self._asked.add(unit)
            if ask(self._job.heads[unit]):
                self._universal.add(unit)

    def _likely(self, sign: int) -> list[int]:
        """Units that by the pools matter beyond doubt, the largest effect first."""
        now = self._reading
        sure = now.post.inclusion >= self._job.confidence
        clear = sign * now.found.z >= now.chance_z
        apart = {group[0] for group in now.post.groups if len(group) == 1}
        found = [unit for unit in self._open() if sure[unit] and clear[unit] and unit in apart]
        return sorted(found, key=lambda unit: -sign * now.post.effects[unit])

    def _unproven(self) -> list[int]:
        """Likely units that were not tried alone yet: what they cost may take others to be out."""
        return [unit for unit in self._likely(self._job.sign) if unit not in self._alone]

    def _decided(self, sign: int) -> list[int]:
        """Likely units of which it holds alone too, and whose interval says so."""
        found = self._reading.found
        nearest = found.low if sign > 0 else -found.high
        return [u for u in self._likely(sign) if nearest[u] > 0 and self._holds_alone(u, sign)]

    def _holds_alone(self, unit: int, sign: int) -> bool:
        """Whether the unit alone costs something: surely so where items are paired."""
        if unit not in self._alone:
            return sign != self._job.sign  # the other kind is only told of
        job = self._job
        alone = respond(self._base, [self._alone[unit]], job.task.items, job.view)
        cost = sign * float(alone.losses[0])
        if alone.known.any():  # a count of answers, of which one mask says little
            return cost > 0
        error = float(alone.items[0].std()) / len(alone.items[0]) ** 0.5
        return cost > SURE_ALONE * error

    def _undecided(self) -> list[int]:
        """Units that may matter, the likeliest first."""
        post = self._reading.post
        decided = {*self._decided(1), *self._decided(-1)}
        found = [u for u in self._open() if post.inclusion[u] > UNLIKELY and u not in decided]
        wanted = [u for u in found if self._job.sign * post.effects[u] > 0]
        return sorted(wanted, key=lambda unit: -post.inclusion[unit])

    def _not_ruled_out(self) -> list[int]:
        """Other units that may matter as much as the least of those decided.

        Their interval reaches that far, or no mask tells anything of them.
        """
        found, sign = self._reading.found, self._job.sign
        decided, undecided = self._decided(sign), set(self._undecided())
        if not decided:
            return []
        least = min(sign * found.effect[unit] for unit in decided)
        reach = found.high if sign > 0 else -found.low
        others = [u for u in self._open() if u not in undecided and u not in decided]
        return [unit for unit in others if not reach[unit] < least]

    def _groups(self) -> list[list[int]]:
        """Units that may be removed and cannot be told apart; large groups say nothing."""
        post, may_go = self._reading.post, set(self._open())
        groups = [[unit for unit in group if unit in may_go] for group in post.groups]
        effects = self._job.sign * post.effects
        return [one for one in groups if 1 < len(one) <= LARGEST_GROUP and effects[one].sum() > 0]

    def _why_stop(self) -> str:
        job = self._job
        decided = self._decided(job.sign)
        if not self._open():
            return "no head is left that may be removed"
        if len(decided) >= job.max_heads and not self._undecided() and not self._not_ruled_out():
            heads = "1 head is" if len(decided) == 1 else f"{len(decided)} heads are"
            return f"{heads} decided, as many as may be removed, and no other comes near"
        if self._out_of_time():
            return "its share of the time is over"
        provable = self._unproven() and self._spent() < job.budget
        if not provable and self._room() < LEAST_ROUND:
            return f"the {job.budget} evaluations of the budget that are the search's are spent"
        return ""


def first_round(job: Job) -> Design:
    """Pools over all heads.

    Raises:
        CapabilityAbsent: no head may be removed.
    """
    units, n = job.units, len(job.units)
    if not units:
        raise CapabilityAbsent(
            f"no head may be removed for {job.task.name}: all {len(job.heads)} are universal or "
            "cost a text more than its limit",
            "raise the limits of the texts with --max-control-drop",
        )
    if n < FEWEST_POOLED:
        raise CapabilityAbsent(
            f"only {n} of {len(job.heads)} heads may be removed for {job.task.name}: too few to "
            "pool",
            "try each alone with --method scan, or raise the limits of the texts",
        )
    # More than half of the heads in a pool would hide what each of them does.
    size = min(max(2, int(n * job.density)), n // 2)
    most = MOST_ROUNDS_OVER_ALL * -(-n // size)
    n_masks = min(max(2, round(FIRST_SHARE * job.budget)), most)
    size = min(max(size, -(-n // n_masks)), n // 2)  # every head is in some pool
    return pools(units, n_units=len(job.heads), n_masks=n_masks, size=size, seed=job.seed)


def pools(units: Sequence[int], *, n_units: int, n_masks: int, size: int, seed: int) -> Design:
    """`n_masks` pools of about `size` units; the counts of two units differ by at most one."""
    n_rounds = -(-n_masks * size // len(units))
    rows = design.partitions(units, n_units=n_units, n_rounds=n_rounds + 1, size=size, seed=seed)
    return rows.model_copy(update={"rows": rows.rows[:n_masks]})


def _prior_of(job: Job) -> Array | None:
    """How likely each head is before any mask: half from the gradient, half alike."""
    if job.prior == "none":
        return None
    slope = np.maximum(job.sign * job.bench.gradients(job.task, ()), 0.0)
    n = len(job.heads)
    even = np.full(n, 1.0 / n)
    return even if not slope.any() else 0.5 * even + 0.5 * slope / slope.sum()
