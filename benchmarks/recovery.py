"""Planted heads: how many each method finds, and whether its intervals and claims hold.

    .venv/bin/python benchmarks/recovery.py            # about 15 minutes on 2 cores
    .venv/bin/python benchmarks/recovery.py --quick    # 8 repeats, 2 minutes
    .venv/bin/python benchmarks/recovery.py --json

The model is simulated: 1,024 heads, of which five take 36, 12, 10, 8 and 7 % off a score of 0.785
and all others 0.1 +- 0.4 %; losses multiply, and a mask is scored on 100 questions, each right or
wrong by chance.  Everything else is the tool's own: its searches, on its measuring.  With universal
heads, three more take 90 % off every task, and are not known beforehand; asking whether a head is
universal counts as an evaluation.  Repeat r is seeded with r.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the processes share the cores

import numpy as np

from editor import design, estimate, posterior, shared
from editor.adaptive import AdaptiveSearch
from editor.capabilities.base import AnswerLikelihood, Capability, Continuation, Likelihood
from editor.measure import Bench, Task
from editor.records import Design, Fill, Head, Item, Mask
from editor.responses import Response
from editor.search import Job, measure_rows

N_LAYERS, N_HEADS = 32, 32
HEADS = tuple(Head(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS))
EFFECTS = (0.36, 0.12, 0.10, 0.08, 0.07)
BACKGROUND = (0.001, 0.004)
UNIVERSAL_EFFECT = 0.9
BASE = 0.785
N_ITEMS = 100
BUDGETS = (50, 100, 150, 200, 400)
UNIVERSAL_BUDGETS = (100, 200, 400)
REPEATS = 200
"""Of what is claimed: adaptive and published at 100 and 200 evaluations, and the null."""
CURVE_REPEATS = 50
"""Of every other point of the curves."""


class Forgetful:
    """A journal that keeps nothing: each mask is measured anew."""

    def get(self, key: str) -> str | None:
        """Nothing is there."""

    def append(self, key: str, value_json: str) -> None:
        """Nothing is kept."""


@dataclass
class Simulated:
    """A model whose heads take known shares off the score.

    With `dealt`, a mask gets the chance of success of another mask that was asked with it: a
    permuted y.
    """

    effects: np.ndarray
    rng: np.random.Generator
    dealt: bool = False
    asked: int = field(default=0)

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]:
        """Right or wrong by chance, for every request under every mask."""
        self.asked += sum(bool(mask) for mask in masks)
        log_kept = np.log1p(-self.effects)
        units = [[h.layer * N_HEADS + h.head for h in mask] for mask in masks]
        chance = np.array([min(1.0, BASE * np.exp(log_kept[out].sum())) for out in units])
        if self.dealt:
            chance = self.rng.permutation(chance)
        right = self.rng.random((len(masks), len(requests))) < chance[:, None]
        return [[Likelihood(0.0, int(one), 1) for one in row] for row in right]

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        """None: the searches here may only knock out."""
        raise NotImplementedError

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        """None: nothing is written here."""
        raise NotImplementedError


def task() -> Task:
    """A hundred questions."""
    items = tuple(Item(key=str(n), prompt=f"{n}", answer=" x", variant="") for n in range(N_ITEMS))
    capability = Capability(
        name="planted",
        summary="simulated",
        kind="task",
        floor=0.0,
        control_limit=0.05,
        source="simulated",
        licence="Apache-2.0",
        make_items=lambda: items,
        scorer=AnswerLikelihood(),
    )
    return Task(capability, items)


TASK = task()


@dataclass(frozen=True)
class Planting:
    """Where the heads are that matter."""

    model: Simulated
    needed: tuple[int, ...]
    """The costliest first."""
    universal: tuple[int, ...]


def plant(seed: int, n_universal: int = 0, *, dealt: bool = False) -> Planting:
    """A model with planted heads."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(*BACKGROUND, len(HEADS))
    places = rng.choice(len(HEADS), len(EFFECTS) + n_universal, replace=False)
    effects[places[: len(EFFECTS)]] = EFFECTS
    effects[places[len(EFFECTS) :]] = UNIVERSAL_EFFECT
    needed, universal = map(int, places[: len(EFFECTS)]), map(int, places[len(EFFECTS) :])
    return Planting(Simulated(effects, rng, dealt), tuple(needed), tuple(universal))


def job_of(planting: Planting, budget: int, seed: int) -> Job:
    """The search for planted heads; a suspect that is measured on a control costs one more."""
    universal = set(planting.universal)
    model = planting.model

    def is_universal(head: Head) -> bool:
        model.asked += 1
        return head.layer * N_HEADS + head.head in universal

    return Job(
        bench=Bench(model, Forgetful()),
        task=TASK,
        heads=HEADS,
        excluded=frozenset(),
        seed=seed,
        budget=budget,
        max_heads=len(EFFECTS),
        view="exact",
        prior="none",
        is_universal=is_universal,
    )


def unit_of(head: Head) -> int:
    """The head's place in unit order."""
    return head.layer * N_HEADS + head.head


def first_five(effects: np.ndarray) -> list[int]:
    """The units with the largest effects, the largest first."""
    return [int(unit) for unit in np.argsort(-effects, kind="stable")[: len(EFFECTS)]]


def one_design(planting: Planting, rows: Design, fit: Callable[..., np.ndarray]) -> list[int]:
    """The first five by an estimator, from one design."""
    job = job_of(planting, len(rows.rows), 0)
    return first_five(fit(design.matrix([rows]), measure_rows(job, rows)[1]))


def by_posterior(X: np.ndarray, response: Response) -> np.ndarray:
    """The expected loss of every unit."""
    return posterior.fit(X, response.losses, response.known).promise


def by(estimator: estimate.Estimator, X: np.ndarray, response: Response) -> np.ndarray:
    """The effects by another estimator, from shares of right answers as they are."""
    return estimator(X, np.exp(-response.losses))


def stratified(budget: int, seed: int, density: float) -> Design:
    """The published design."""
    size = round(density * len(HEADS))
    return design.stratified(
        range(len(HEADS)), n_units=len(HEADS), n_masks=budget, size=size, seed=seed
    )


def published(planting: Planting, budget: int, seed: int) -> list[int]:
    """100 masks of 2 % and a Lasso of penalty 0.01 in the paper; here as many as the budget."""
    return one_design(
        planting, stratified(budget, seed, 0.02), partial(by, estimate.published_lasso)
    )


def coar(planting: Planting, budget: int, seed: int) -> list[int]:
    """Component attribution by regression (Shah et al., 2024): independent 5 %, ridge."""
    rows = design.bernoulli(
        range(len(HEADS)), n_units=len(HEADS), n_masks=budget, density=0.05, seed=seed
    )
    return one_design(planting, rows, partial(by, estimate.ridge))


def estimator_on_8(name: str, planting: Planting, budget: int, seed: int) -> list[int]:
    """Another estimator on stratified masks of 8 %."""
    rows = stratified(budget, seed, 0.08)
    return one_design(planting, rows, partial(by, estimate.ESTIMATORS[name]))


def posterior_on_8(planting: Planting, budget: int, seed: int) -> list[int]:
    """The posterior on stratified masks of 8 %."""
    return one_design(planting, stratified(budget, seed, 0.08), by_posterior)


def posterior_on_transversal(planting: Planting, budget: int, seed: int) -> list[int]:
    """The posterior on transversal masks, of 3 % here."""
    rows = design.transversal(range(len(HEADS)), n_units=len(HEADS), n_masks=budget, seed=seed)
    return one_design(planting, rows, by_posterior)


Method = Callable[[Planting, int, int], list[int]]
METHODS: dict[str, Method] = {
    "published": published,
    "COAR-style": coar,
    "Lasso by BIC, 8 %": partial(estimator_on_8, "Lasso, BIC"),
    "matching pursuit, 8 %": partial(estimator_on_8, "orthogonal matching pursuit, BIC"),
    "posterior, 8 %": posterior_on_8,
    "posterior, transversal": posterior_on_transversal,
}
CLAIMED = ("published", "adaptive")
CLAIMED_BUDGETS = (100, 200)
UNIVERSAL_METHODS = ("published", "posterior, 8 %", "adaptive")


class Found(NamedTuple):
    """One repeat of one method."""

    top: int
    """1 when the costliest head comes first."""
    found: int
    """Planted heads among the first five."""
    asked: int
    """Evaluations."""
    covered: tuple[bool, ...] = ()
    """Whether each planted head's interval covers its effect, on the log scale of the search."""
    decided: int = 0
    false: int = 0
    """Decided heads that are not planted."""


def trial(method: str, budget: int, n_universal: int, seed: int) -> Found:
    """Plant, search, count."""
    planting = plant(seed, n_universal)
    if method == "adaptive":
        return adaptive(planting, budget, seed)
    return found_by(METHODS[method](planting, budget, seed), planting)


def found_by(first: list[int], planting: Planting) -> Found:
    """What the first five units are worth."""
    right = len(set(first) & set(planting.needed))
    return Found(int(first[:1] == list(planting.needed[:1])), right, planting.model.asked)


def adaptive(planting: Planting, budget: int, seed: int) -> Found:
    """The tool's default, with what it claims."""
    search = AdaptiveSearch(job_of(planting, budget, seed))
    first = [unit_of(head) for head in search.rank(())[: len(EFFECTS)]]
    found = {unit_of(one.head): one for one in search.estimates()[0].effects}
    truth = {unit: -np.log1p(-planting.model.effects[unit]) for unit in planting.needed}
    decided = {unit_of(head) for head in search.confidence().decided}
    return found_by(first, planting)._replace(
        covered=tuple(found[u].low <= effect <= found[u].high for u, effect in truth.items()),
        decided=len(decided),
        false=len(decided - set(planting.needed)),
    )


def null_decides(budget: int, seed: int) -> bool:
    """Whether a search on dealt scores decides anything, at the end or earlier."""
    planting = plant(seed, dealt=True)
    sure = AdaptiveSearch(job_of(planting, budget, seed)).confidence()
    return bool(sure.decided or sure.helped)


def fitting_cost() -> dict[str, float]:
    """Seconds and memory of the joint fit of 8,192 heads, 1,000 masks and ten tasks."""
    rng = np.random.default_rng(0)
    rows = design.stratified(range(8192), n_units=8192, n_masks=1000, size=164, seed=0)
    X = design.matrix([rows])
    effects = np.zeros((8192, 10))
    effects[rng.choice(8192, 12, replace=False)] = rng.uniform(0.3, 1.0, (12, 10))
    Y = X @ effects + rng.normal(0, 0.2, (1000, 10))
    began = time.monotonic()
    found = shared.fit(X, Y)
    seconds = time.monotonic() - began
    right = len(set(np.argsort(-found.inclusion)[:12]) & set(np.flatnonzero(effects[:, 0])))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "peak_mib": peak, "found_of_12": right}


def mean_of(values: Iterable[float]) -> float:
    """The mean, rounded as it is shown."""
    return round(float(np.mean(list(values))), 3)


def curve(
    pool: Executor, repeats: int, n_universal: int, names: Iterable[str], budgets: Sequence[int]
) -> dict[str, Any]:
    """By method and budget: how often the top head is right, how many are found."""
    out: dict[str, Any] = {}
    for name in names:
        for budget in budgets:
            run = partial(trial, name, budget, n_universal)
            claimed = name in CLAIMED and budget in CLAIMED_BUDGETS
            n = repeats if claimed else min(repeats, CURVE_REPEATS)
            done = list(pool.map(run, range(n), chunksize=4))
            out.setdefault(name, {})[str(budget)] = {"repeats": n, **figures(done)}
            print(name, n_universal, budget, out[name][str(budget)], file=sys.stderr)
    return out


def figures(done: Sequence[Found]) -> dict[str, Any]:
    """Means over the repeats; what a method claims, where it claims something."""
    out: dict[str, Any] = {
        "top": mean_of(one.top for one in done),
        "found": mean_of(one.found for one in done),
        "most_asked": max(one.asked for one in done),
    }
    if done[0].covered:
        out["coverage"] = mean_of(one for each in done for one in each.covered)
        out["coverage_by_head"] = [
            mean_of(head) for head in zip(*(one.covered for one in done), strict=True)
        ]
        out["decided"] = mean_of(one.decided for one in done)
        out["false"] = mean_of(one.false for one in done)
    return out


def measure(repeats: int) -> dict[str, Any]:
    """All figures."""
    fitting = fitting_cost()
    with ProcessPoolExecutor() as pool:
        null = list(pool.map(partial(null_decides, 200), range(repeats), chunksize=4))
        return {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "repeats": repeats,
            "curve": curve(pool, repeats, 0, (*METHODS, "adaptive"), BUDGETS),
            "with_three_universal": curve(pool, repeats, 3, UNIVERSAL_METHODS, UNIVERSAL_BUDGETS),
            "null_decides": mean_of(null),
            "fitting": fitting,
        }


def table(rows: dict[str, Any]) -> str:
    """Found of five (top head right), by method and budget, in Markdown."""
    budgets = list(next(iter(rows.values())))
    lines = [f"| evaluations | {' | '.join(budgets)} |", f"|---|{'---|' * len(budgets)}"]
    for name, by_budget in rows.items():
        cells = [f"{one['found']:.1f} ({one['top']:.0%})" for one in by_budget.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, and print the tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="8 repeats")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    found = measure(8 if asked.quick else REPEATS)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print(
        f"found of five (top head right); {found['repeats']} repeats of published and adaptive at "
        f"100 and 200, at most {CURVE_REPEATS} of the others\n"
    )
    print(table(found["curve"]))
    print("\nwith three universal heads\n")
    print(f"{table(found['with_three_universal'])}\n")
    for budget, one in found["curve"]["adaptive"].items():
        print(
            f"adaptive, {budget} evaluations: 95 % intervals cover {one['coverage']:.1%}; "
            f"{one['decided']:.1f} heads decided, {one['false']:.3f} of them wrong"
        )
    print(f"scores dealt to other masks: {found['null_decides']:.1%} of searches decide a head")
    cost = found["fitting"]
    print(
        f"8,192 heads, 1,000 masks, 10 tasks: {cost['seconds']:.1f} s, {cost['peak_mib']:.0f} MiB, "
        f"{cost['found_of_12']} of 12 found"
    )
    print(found["machine"])


if __name__ == "__main__":
    main()
