"""Which heads are chosen on a model whose heads' effects are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from editor.choose import Control, choose
from editor.errors import CapabilityAbsent
from editor.measure import Bench
from editor.records import EditPlan, Head
from editor.search import SEARCHES
from planted import HEADS, BackupModel, Memory, PlantedModel, planted_task

A, B, C, D = Head(1, 2), Head(4, 0), Head(7, 5), Head(8, 1)
FAINT = {
    head: float(effect)
    for head, effect in zip(HEADS, np.random.default_rng(0).normal(0, 0.005, 80), strict=True)
}
TARGET = {**FAINT, A: 1.5, B: 1.2, C: 0.9}
METHODS = tuple(SEARCHES)
TEXT = planted_task("english", 20, "text")
SEARCHING = {"adaptive": 20, "published": 100}
"""Masks of each search on `HEADS`."""


def most_evaluations(method: str, max_heads: int) -> int:
    """The search's masks, and 18 for each head that is asked for."""
    return SEARCHING[method] + 18 * max_heads


def run(
    model: PlantedModel | None = None,
    *,
    target: Mapping[Head, float] | None = None,
    copying: Mapping[Head, float] | None = None,
    english: Mapping[Head, float] | None = None,
    **how: Any,
) -> EditPlan:
    """Search and choose with two controls, of right answers and of text."""
    effects = {
        "recall": TARGET if target is None else target,
        "copying": copying or {},
        "english": english or {},
    }
    bench = Bench(model or PlantedModel(effects), how.get("memory") or Memory())
    task = planted_task("recall")
    search = SEARCHES[how.get("method", "adaptive")](
        bench, task, HEADS, how.get("excluded", frozenset()), how.get("seed", 0)
    )
    controls = [Control(planted_task("copying"), 0.05), Control(TEXT, 0.05)]
    return choose(bench, task, controls, search, how.get("max_heads", 5))


@pytest.mark.parametrize("seed", range(5))
def test_planted_heads_are_chosen_the_costliest_first(seed: int) -> None:
    plan = run(seed=seed)
    assert plan.heads == (A, B, C)
    assert plan.capability == "recall"
    for head in (A, B, C):
        assert str(head) in plan.why


@pytest.mark.parametrize("seed", range(3))
def test_the_published_method_finds_them_too(seed: int) -> None:
    plan = run(method="published", seed=seed)
    assert set(plan.heads) >= {A, B}
    assert set(plan.heads) <= {A, B, C}


@pytest.mark.parametrize("control", ["copying", "english"])
def test_a_head_that_breaks_a_controls_limit_is_left_out(control: str) -> None:
    plan = run(target={**TARGET, D: 2.0}, **{control: {D: 1.5}})
    assert plan.heads == (A, B, C)
    assert "L8H1" in plan.why and control in plan.why and "0.05" in plan.why


def test_heads_that_break_a_limit_only_together_are_not_all_chosen() -> None:
    together = {A: 0.03, B: 0.03, C: 0.0}
    plan = run(english=together)
    assert set(plan.heads) == {A, C}
    assert run(english={head: cost / 2 for head, cost in together.items()}).heads == (A, B, C)


def test_a_control_that_gains_breaks_no_limit() -> None:
    assert run(english={A: -1.0}, copying={B: -3.0}).heads == (A, B, C)


def test_the_limit_must_hold_with_a_margin_for_other_items() -> None:
    """On average the texts lose less than the limit; some lose more."""
    assert A not in run(english={A: 0.0499}).heads
    assert A in run(english={A: 0.04}).heads


def test_what_is_excluded_is_never_chosen() -> None:
    assert run(excluded=frozenset({A, Head(0, 0)})).heads == (B, C)


def test_a_stand_in_is_chosen_after_the_head_that_hides_it() -> None:
    effects = {"recall": {**FAINT, A: 0.8, B: 2.0}, "copying": {}, "english": {}}
    hidden = run(BackupModel(effects, backups={B: A}))
    assert hidden.heads == (A, B)


def test_at_most_so_many_heads_are_chosen() -> None:
    assert run(max_heads=2).heads == (A, B)
    assert run(max_heads=1).heads == (A,)


def test_heads_that_add_nothing_are_not_chosen() -> None:
    plan = run(max_heads=40)
    assert plan.heads == (A, B, C)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("max_heads", [1, 5, 64])
@pytest.mark.parametrize("n_needed", [0, 1, 12, 80])
def test_evaluations_stay_below_the_bound(method: str, max_heads: int, n_needed: int) -> None:
    rng = np.random.default_rng(n_needed)
    needed = {HEADS[i]: float(rng.uniform(0.06, 0.3)) for i in rng.permutation(80)[:n_needed]}
    memory = Memory()
    try:
        plan = run(target={**FAINT, **needed}, method=method, max_heads=max_heads, memory=memory)
    except CapabilityAbsent:
        assert n_needed < 2
    else:
        assert plan.evaluations <= most_evaluations(method, max_heads)
        assert len(plan.heads) <= max_heads
    masks = {key for key in memory.entries if key.startswith("recall") and not key.endswith(" ")}
    assert len(masks) <= most_evaluations(method, max_heads)


def test_evaluations_stay_below_the_bound_where_many_heads_are_refused() -> None:
    most = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        n_needed, least = int(rng.integers(3, 60)), float(rng.choice([0.03, 0.045, 0.06]))
        needed = {HEADS[i]: float(rng.uniform(least, 0.3)) for i in rng.permutation(80)[:n_needed]}
        costly = {HEADS[i]: 2.0 for i in rng.permutation(80)[: int(rng.integers(0, 60))]}
        plan = run(target={**FAINT, **needed}, copying=costly, max_heads=5, seed=seed)
        most = max(most, plan.evaluations)
    assert most <= most_evaluations("adaptive", 5)


def test_evaluations_count_every_mask_of_the_target() -> None:
    memory = Memory()
    plan = run(memory=memory)
    masks = [key for key in memory.entries if key.startswith("recall") and not key.endswith(" ")]
    gradients = [key for key in memory.entries if key.startswith("gradient recall")]
    assert plan.evaluations == len(masks) + 3 * len(gradients)


@pytest.mark.parametrize("method", METHODS)
def test_no_head_that_may_go_is_an_absent_capability_with_the_figures(method: str) -> None:
    needed = {A: 2.0, B: 1.6}
    with pytest.raises(CapabilityAbsent) as caught:
        run(target={**FAINT, **needed}, copying={A: 5.0, B: 5.0}, method=method)
    assert caught.value.exit_code == 5
    for part in ("recall", "L1H2", "copying would worsen by", "limit 0.05"):
        assert part in caught.value.message
    assert caught.value.hint


def test_a_model_without_effects_is_an_absent_capability() -> None:
    with pytest.raises(CapabilityAbsent, match="recall"):
        run(target={})


@pytest.mark.parametrize("method", METHODS)
def test_one_seed_gives_one_plan(method: str) -> None:
    assert run(method=method, seed=3) == run(method=method, seed=3)


@pytest.mark.parametrize("method", METHODS)
def test_a_finished_choice_is_repeated_from_the_journal_alone(method: str) -> None:
    memory = Memory()
    first = run(method=method, memory=memory)
    model = PlantedModel({"recall": TARGET, "copying": {}, "english": {}})
    assert run(model, method=method, memory=memory) == first
    assert (model.n_calls, model.n_gradients) == (0, 0)


def test_an_interrupted_choice_goes_on_to_the_same_plan() -> None:
    class Stops(PlantedModel):
        def likelihoods(self, requests: Sequence[Any], masks: Sequence[Any]) -> Any:
            if self.n_calls > 30:
                raise KeyboardInterrupt
            return super().likelihoods(requests, masks)

    effects = {"recall": TARGET, "copying": {}, "english": {}}
    memory = Memory()
    with pytest.raises(KeyboardInterrupt):
        run(Stops(effects), memory=memory)
    assert memory.entries
    model = PlantedModel(effects)
    assert run(model, memory=memory) == run()
    assert model.n_calls < 60


def test_the_prediction_is_what_the_chosen_heads_do_to_every_task() -> None:
    plan = run(copying={A: 0.05}, english={B: 0.02})
    found = {one.task: one for one in plan.predicted}
    assert list(found)[0] == "recall" and set(found) == {"recall", "copying", "english"}
    recall, english = found["recall"], found["english"]
    assert (recall.metric, recall.base, recall.edited) == ("exact", 1.0, 0.0)
    assert english.metric == "nats_per_token"
    assert english.edited - english.base == pytest.approx(0.02, rel=0.05)


def test_without_controls_the_costliest_heads_go() -> None:
    bench = Bench(PlantedModel({"recall": TARGET}), Memory())
    task = planted_task("recall")
    search = SEARCHES["adaptive"](bench, task, HEADS, frozenset(), 0)
    assert choose(bench, task, [], search, 3).heads == (A, B, C)
