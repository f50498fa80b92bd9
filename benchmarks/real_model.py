"""Heads of a real model by five methods: what the removal takes, and what it costs elsewhere.

    .venv/bin/python benchmarks/real_model.py            # 30 minutes on 2 cores
    .venv/bin/python benchmarks/real_model.py --quick    # recall alone, 5 minutes
    .venv/bin/python benchmarks/real_model.py --json --keep masks.jsonl    # can be interrupted

SmolLM2-135M-Instruct, five capabilities, up to five heads each.  The adaptive search may take 0.4
evaluations for each head of the model, search and choice together; the published recipe and the
COAR-style regression get as many as it took, and remove their first five heads.  The scan tries
every head alone that is not universal, and removes the costliest five.  All are judged on the same
test items, with the heads masked.

Collateral is the mean over the controls of what each lost, in units of its limit (0.05 nats a token
of English, 0.1 of Python, 5 points of right answers), gains counted as nothing.  Yield is the share
of the target's right answers that is lost, per unit of collateral; collateral below 0.2 counts as
0.2, since less cannot be told from nothing, and a yield below 0.01 as 0.01 in the mean.  Intervals
resample the items, by what they are about.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from editor import design, estimate, stats, tasks
from editor.choose import Terms, choose
from editor.errors import CapabilityAbsent
from editor.measure import Bench, as_mask
from editor.methods import METHODS, search_budget
from editor.progress import Silent
from editor.recipe import make_recipe
from editor.records import Head, Scores, UniversalHeads
from editor.search import Job, measure_rows
from editor.session import Options, loaded_bench, open_model, universal_file
from editor.store import Journal
from editor.universal import costly_heads, find_universal
from editor.validation import Judged

MODEL = "smollm2-135m"
CAPABILITIES = ("recall", "copying", "arithmetic", "inflection", "coreference")
MAX_HEADS = 5
SHORT = ("recall", "copying")
"""Capabilities with short prompts; what the gradient is worth is measured on these alone."""
NO_GRADIENT = "adaptive, no gradient"
SHARE_OF_SCAN = 0.4
"""Evaluations of a search and its choice, as a share of those of a full scan."""
SEARCH_ITEMS, CHOOSE_ITEMS, TEST_ITEMS = 12, 24, 80
"""Fewer than the tool's defaults, for all methods alike: what is compared is how they search."""
LEAST_COLLATERAL = 0.2
N_BOOT = 1000


@dataclass(frozen=True)
class Setting:
    """One capability on the model."""

    bench: Bench
    what: tasks.Scope
    known: tasks.Known
    heads: tuple[Head, ...]
    universal: UniversalHeads
    budget: int

    def job(self, budget: int, **changes: Any) -> Job:
        """A search of the target's known items."""
        excluded = costly_heads(self.universal, self.what.limits)
        job = Job(self.bench, self.known.searching, self.heads, excluded, 0, budget, MAX_HEADS)
        return replace(job, **changes)


class Chosen(NamedTuple):
    """What a method removes, and what finding it took."""

    heads: tuple[Head, ...]
    evaluations: int


def adaptive(at: Setting) -> Chosen:
    """The tool's default: search, then choice under the controls' limits."""
    return chosen_by(at, "adaptive")


def chosen_by(at: Setting, method: str, **changes: Any) -> Chosen:
    """Search by a method, and the tool's choice under the controls' limits."""
    budget = search_budget(method, at.budget, MAX_HEADS, len(at.heads))
    search = METHODS[method](at.job(budget, **changes))
    controls = tasks.choose_controls(at.what, CHOOSE_ITEMS)
    terms = Terms(MAX_HEADS, at.budget)
    try:
        plan = choose(at.bench, at.known.choosing, controls, search, terms)
    except CapabilityAbsent:  # nothing inside the limits
        return Chosen((), at.bench.evaluations(at.what.target.name))
    return Chosen(plan.heads, plan.evaluations)


def without_gradient(at: Setting) -> Chosen:
    """The same by knock-outs alone."""
    return chosen_by(at, "adaptive", prior="none")


def published_chosen(at: Setting) -> Chosen:
    """The published masks and Lasso, then the tool's choice: what the search itself is worth."""
    return chosen_by(at, "published", excluded=frozenset())


def scan(at: Setting) -> Chosen:
    """The five costliest of all heads, each alone, universal ones left out."""
    search = METHODS["scan"](at.job(len(at.heads)))
    return Chosen(tuple(search.rank(())[:MAX_HEADS]), len(at.heads))


def published(at: Setting) -> Chosen:
    """The published recipe with as many masks as the adaptive search took evaluations."""
    search = METHODS["published"](at.job(at.budget, excluded=frozenset()))
    return Chosen(tuple(search.rank(())[:MAX_HEADS]), at.budget)


def coar(at: Setting) -> Chosen:
    """Component attribution by regression (Shah et al., 2024): independent 5 %, ridge."""
    n = len(at.heads)
    rows = design.bernoulli(range(n), n_units=n, n_masks=at.budget, density=0.05, seed=0)
    told, response = measure_rows(at.job(at.budget), rows)
    effects = estimate.ridge(design.matrix([told.rows]), -response.losses)
    first = np.argsort(-effects)[:MAX_HEADS]
    return Chosen(tuple(at.heads[int(unit)] for unit in first), at.budget)


BY_NAME: dict[str, Callable[[Setting], Chosen]] = {
    "adaptive": adaptive,
    "published": published,
    "COAR-style": coar,
    "scan": scan,
    "published, then our choice": published_chosen,
    NO_GRADIENT: without_gradient,
}


class Losses(NamedTuple):
    """Per-item losses of one task, positive where it got worse."""

    above: np.ndarray
    """Numerators, float64 (n_items,)."""
    below: np.ndarray
    """What they are divided by, summed."""
    clusters: np.ndarray


def losses_of(row: Judged, base: Scores, masked: Scores) -> Losses:
    """The target's share of right answers lost; a control's worsening in units of its limit."""
    text = row.task.capability.kind == "text"
    before, weights = stats.values(base, "nats_per_token" if text else "exact")
    after, _ = stats.values(masked, "nats_per_token" if text else "exact")
    worse = after - before if text else before - after
    below = before if row.role == "target" else weights * (row.limit or 1.0)
    return Losses(worse, below, stats.clusters_of(row.task.items))


def judge(target: Losses, controls: Sequence[Losses], seed: int | None) -> tuple[float, ...]:
    """Loss of the target, collateral, and their ratio; on a resample of the items with a seed."""
    rng = None if seed is None else np.random.default_rng(seed)

    def ratio(one: Losses) -> float:
        if rng is None:
            return float(one.above.sum() / one.below.sum())
        n = int(one.clusters.max()) + 1
        times = rng.multinomial(n, np.full(n, 1 / n))[one.clusters]
        return float((times * one.above).sum() / max((times * one.below).sum(), 1e-9))

    lost = ratio(target)
    collateral = float(np.mean([max(ratio(one), 0.0) for one in controls]))
    return lost, collateral, max(lost, 0.0) / max(collateral, LEAST_COLLATERAL)


def outcome(at: Setting, chosen: Chosen) -> dict[str, Any]:
    """What a removal takes and costs on the test split."""
    rows = [row for row in tasks.judged(at.what, TEST_ITEMS, 0.5) if row.min_drop or row.limit]
    found = []
    for row in rows:
        base, masked = at.bench.scores(row.task, [(), as_mask(chosen.heads)])
        found.append(losses_of(row, base, masked))
    target, *controls = found
    lost, collateral, gain = judge(target, controls, None)
    draws = np.array([judge(target, controls, seed) for seed in range(N_BOOT)])
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return {
        "heads": [str(head) for head in chosen.heads],
        "evaluations": chosen.evaluations,
        "lost": lost,
        "lost_ci": [float(low[0]), float(high[0])],
        "collateral": collateral,
        "collateral_ci": [float(low[1]), float(high[1])],
        "yield": gain,
        "yield_ci": [float(low[2]), float(high[2])],
        "controls": {
            row.task.name: float(one.above.sum() / one.below.sum()) * (row.limit or 1.0)
            for row, one in zip(rows[1:], controls, strict=True)
        },
    }


def compare(bench: Bench, heads: tuple[Head, ...], universal: UniversalHeads, name: str) -> Any:
    """Every method on one capability."""
    recipe = make_recipe(model=MODEL, capability=name)
    what = tasks.scope(recipe)
    known = tasks.known(bench, what.target, SEARCH_ITEMS, CHOOSE_ITEMS)
    at = Setting(bench, what, known, heads, universal, int(SHARE_OF_SCAN * len(heads)))
    out: dict[str, Any] = {}
    for method, run in BY_NAME.items():
        if method == NO_GRADIENT and name not in SHORT:
            continue
        # The other methods get what the adaptive search took.
        spent = out["adaptive"]["evaluations"] if "adaptive" in out else at.budget
        began = time.monotonic()
        fresh = Bench(bench.model, bench.journal)
        choosing = run in (adaptive, without_gradient, published_chosen)
        now = replace(at, bench=fresh, budget=at.budget if choosing else spent)
        out[method] = outcome(now, run(now))
        out[method]["seconds"] = round(time.monotonic() - began, 1)
        print(name, method, json.dumps(out[method]), file=sys.stderr)
    return out


def measure(names: Sequence[str], journal: Journal) -> dict[str, Any]:
    """All figures."""
    options, quiet = Options(), Silent()
    opened = open_model(MODEL, options, quiet)
    bench = loaded_bench(opened, "bfloat16", journal, options, quiet)
    heads = opened.spec.heads()
    file = universal_file(opened, "bfloat16", None)
    universal = (
        UniversalHeads.model_validate_json(file.read_bytes())
        if file.exists()
        else find_universal(bench, heads, tasks.scan_texts(), opened.identity)
    )
    by_name = {name: compare(bench, heads, universal, name) for name in names}
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "capabilities": by_name,
        "summary": {method: summary(by_name, method) for method in BY_NAME},
        "summary_of_short": {
            method: summary({n: by_name[n] for n in SHORT if n in by_name}, method)
            for method in BY_NAME
        },
    }


def summary(by_name: dict[str, Any], method: str) -> dict[str, float]:
    """Means over the capabilities; of the yield the geometric one, which no single one rules."""
    found = [one[method] for one in by_name.values() if method in one]
    return {
        "lost": float(np.mean([one["lost"] for one in found])),
        "collateral": float(np.mean([one["collateral"] for one in found])),
        "yield": float(np.exp(np.mean([np.log(max(one["yield"], 0.01)) for one in found]))),
        "evaluations": float(np.mean([one["evaluations"] for one in found])),
    }


def table(found: dict[str, Any]) -> str:
    """Lost / collateral by capability, and the means, in Markdown."""
    names = list(found["capabilities"])
    lines = [
        f"| | {' | '.join(names)} | yield | evaluations |",
        f"|---|{'---|' * (len(names) + 2)}",
    ]
    for method, whole in found["summary"].items():
        cells = [
            f"{one['lost']:.0%} / {one['collateral']:.2f}" if one else ""
            for one in (found["capabilities"][name].get(method) for name in names)
        ]
        lines.append(
            f"| {method} | {' | '.join(cells)} | {whole['yield']:.2f} | "
            f"{whole['evaluations']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run, and print the table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="recall alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", choices=CAPABILITIES, help="these capabilities")
    parser.add_argument("--keep", type=Path, help="journal of measured masks, to go on with")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = asked.keep or Path(folder, "masks.jsonl")
        with Journal.open(file) as journal:
            names = CAPABILITIES[:1] if asked.quick else asked.only or CAPABILITIES
            found = measure(names, journal)
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        print("right answers lost / collateral\n")
        print(table(found))
        print(found["machine"])


if __name__ == "__main__":
    main()
