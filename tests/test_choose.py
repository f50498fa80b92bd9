"""Which heads are chosen on a model whose heads' effects are known."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from editor import stats
from editor.capabilities.base import Likelihood
from editor.choose import N_TRIES, Control, Terms, choose
from editor.errors import CapabilityAbsent, TimeUp
from editor.measure import Bench, Task
from editor.methods import METHODS as SEARCHES
from editor.methods import budget_of, search_budget
from editor.recipe import Recipe
from editor.records import EditPlan, Head
from editor.search import Job, Search
from planted import CHUNK, HEADS, BackupModel, Memory, OverflowingModel, PlantedModel, planted_task

A, B, C, D = Head(1, 2), Head(4, 0), Head(7, 5), Head(8, 1)
FAINT = {
    head: float(effect)
    for head, effect in zip(HEADS, np.random.default_rng(0).normal(0, 0.005, 80), strict=True)
}
TARGET = {**FAINT, A: 1.5, B: 1.2, C: 0.9}
METHODS = tuple(SEARCHES)
TEXT = planted_task("english", 20, "text")


def most_evaluations(method: str, max_heads: int) -> int:
    """The default budget of a recipe on `HEADS`."""
    recipe = Recipe.model_validate(
        {"model": "m", "capability": "recall", "method": method, "max_heads": max_heads}
    )
    return budget_of(recipe, len(HEADS))


def search_of(bench: Bench, task: Task, **how: Any) -> tuple[Search, Terms]:
    """The search of a run as the pipeline sets it up, and the terms of the choice."""
    method, max_heads = how.get("method", "adaptive"), how.get("max_heads", 5)
    budget = how.get("budget") or most_evaluations(method, max_heads)
    sign, out_of_time = how.get("sign", 1), how.get("out_of_time", lambda share=1.0: False)
    job = Job(
        bench=bench,
        task=task,
        heads=HEADS,
        excluded=how.get("excluded", frozenset()),
        seed=how.get("seed", 0),
        budget=search_budget(method, budget, max_heads, len(HEADS)),
        max_heads=max_heads,
        sign=sign,
        out_of_time=out_of_time,
    )
    terms = Terms(max_heads, budget, sign, out_of_time, base="the base scores 0.9")
    return SEARCHES[method](job), terms


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of single heads take most of the time, and nothing here asks how exact they are."""
    monkeypatch.setattr(stats, "N_BOOT", 200)


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
    search, terms = search_of(bench, task, **how)
    controls = [Control(planted_task("copying"), 0.05), Control(TEXT, 0.05)]
    return choose(bench, task, controls, search, terms)


@pytest.mark.parametrize("seed", range(3))
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
@pytest.mark.parametrize(("max_heads", "n_needed"), [(1, 0), (1, 1), (5, 80), (64, 12)])
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
    for seed in range(4):
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
    for part in ("recall", "L1H2", "copying would worsen by", "limit 0.05", "base scores 0.9"):
        assert part in caught.value.message
    assert caught.value.hint


def test_where_no_limit_was_in_the_way_none_is_blamed() -> None:
    with pytest.raises(CapabilityAbsent, match="no limit was in the way") as caught:
        run(target=FAINT, method="scan")
    assert "--max-control-drop" not in (caught.value.hint or "")
    assert "stand in" in (caught.value.hint or "")


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
        def likelihoods(self, requests: Any, masks: Any, **how: Any) -> Any:
            if self.n_calls > 30:
                raise KeyboardInterrupt
            return super().likelihoods(requests, masks, **how)

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
    search, terms = search_of(bench, task, max_heads=3)
    assert choose(bench, task, [], search, terms).heads == (A, B, C)


class TestSteps:
    def test_say_what_each_head_adds_and_what_it_costs_alone(self) -> None:
        plan = run()
        assert [step.head for step in plan.steps] == list(plan.heads)
        first = plan.steps[0]
        assert first.gain == pytest.approx(first.alone) == pytest.approx(1.0 + 0.15, abs=0.05)
        for step in plan.steps:
            assert f"{step.head} adds {step.gain:.2f}" in plan.why
            assert f"({step.alone:.2f} alone)" in plan.why

    @pytest.mark.parametrize("method", METHODS)
    def test_a_stand_in_adds_what_it_does_not_cost_alone(self, method: str) -> None:
        effects = {"recall": {A: 0.8, B: 2.0}, "copying": {}, "english": {}}
        plan = run(BackupModel(effects, backups={B: A}), method=method, max_heads=2)
        if method in ("published", "scan") and B not in plan.heads:
            return  # they do not see it
        assert plan.heads == (A, B)
        principal, stand_in = plan.steps
        assert stand_in.alone == pytest.approx(0.0, abs=1e-9)
        assert principal.alone == pytest.approx(principal.gain)
        # A alone costs each item 0.64 to 0.96 nats and few answers; with B out all are gone.
        exact = 1.0 - sum(-0.5 - 0.8 * spread > -1.5 for spread in SPREADS) / len(SPREADS)
        assert principal.alone == pytest.approx(exact + 0.1 * 0.8 * float(np.mean(SPREADS)))
        assert stand_in.gain == pytest.approx(1.0 - exact + 0.1 * 2.0 * float(np.mean(SPREADS)))

    def test_a_head_that_no_first_step_tried_is_measured_alone_inside_the_budget(self) -> None:
        """Ten stand-ins of A: none costs anything alone, so the first step tries others."""
        backups = {Head(layer, 6): A for layer in range(10)}
        effects = {**FAINT, A: 0.5, **dict.fromkeys(backups, 0.6)}
        model = BackupModel({"recall": effects, "copying": {}, "english": {}}, backups)
        for method in ("adaptive", "gradient"):
            memory = Memory()
            plan = run(model, method=method, memory=memory, max_heads=4)
            assert len(plan.heads) >= 2
            assert masks_of(memory) + 3 * gradients_of(memory) <= most_evaluations(method, 4)


class TestTerms:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_budget_is_never_passed(self, method: str) -> None:
        needed = dict.fromkeys(HEADS[::3], 0.2)
        least = {"adaptive": 37, "published": 37, "scan": 93, "greedy": 93, "gradient": 13}[method]
        for budget in (least, least + 1, least + 30):
            memory = Memory()
            plan = run(target={**FAINT, **needed}, method=method, budget=budget, memory=memory)
            spent = masks_of(memory) + 3 * gradients_of(memory)
            assert plan.evaluations == spent <= budget
            assert plan.heads

    def test_more_budget_is_used(self) -> None:
        needed = dict.fromkeys(HEADS[::3], 0.2)
        few, many = (run(target={**FAINT, **needed}, budget=n, max_heads=20) for n in (50, 300))
        assert len(few.heads) < len(many.heads)
        assert few.evaluations <= 50 < many.evaluations

    def test_when_the_time_is_up_what_was_chosen_stands(self) -> None:
        memory = Memory()
        plan = run(
            memory=memory, out_of_time=lambda share=1.0: masks_of(memory) > 15, method="gradient"
        )
        assert plan.heads == (A, B)
        assert masks_of(memory) <= 20

    @pytest.mark.parametrize("method", METHODS)
    def test_a_head_without_which_nothing_is_a_number_is_refused(self, method: str) -> None:
        plan = run(
            OverflowingModel({"recall": TARGET, "copying": {}, "english": {}}, A), method=method
        )
        assert A not in plan.heads and B in plan.heads
        if method in ("greedy", "gradient"):  # a scan does not even rank it
            assert f"{A} left out: a score of the target would be no number" in plan.why

    def test_a_step_that_tries_every_head_is_given_up_when_the_time_is_up(self) -> None:
        memory = Memory()
        most = len(HEADS) + 20
        plan = run(
            memory=memory, out_of_time=lambda share=1.0: masks_of(memory) > most, method="greedy"
        )
        assert plan.heads == (A,) and "the time was up" in plan.why
        assert most < masks_of(memory) <= most + CHUNK

    @pytest.mark.parametrize("method", METHODS)
    def test_when_the_time_is_up_before_the_choice_that_is_said(self, method: str) -> None:
        with pytest.raises(TimeUp, match="the time was up") as caught:
            run(out_of_time=lambda share=1.0: True, method=method)
        assert "--max-hours" in caught.value.hint

    @pytest.mark.parametrize("method", METHODS)
    def test_heads_whose_removal_helps_are_picked_and_no_others(self, method: str) -> None:
        hurting = {A: -1.2, B: -1.0, C: 2.0}
        effects = {"recall": hurting, "copying": {}, "english": {}}
        plan = run(PlantedModel(effects, base=-2.6), method=method, sign=-1)
        assert set(plan.heads) == {A, B}
        assert all(step.gain > 0 for step in plan.steps)
        recall = plan.predicted[0]
        assert recall.edited > recall.base
        assert "wins" in plan.why and "loss" not in plan.why

    @pytest.mark.parametrize("method", METHODS)
    def test_where_no_removal_helps_none_is_picked(self, method: str) -> None:
        needed = {A: 2.0, B: 1.0, **dict.fromkeys(HEADS[20:30], 0.2)}
        with pytest.raises(CapabilityAbsent, match="without which recall does better") as caught:
            run(target=needed, method=method, sign=-1)
        assert caught.value.exit_code == 5
        assert "stand in" not in (caught.value.hint or "")

    def test_the_best_of_many_that_do_nothing_is_no_improvement(self) -> None:
        class Wavers(PlantedModel):
            """Every head moves every item this way or that, on average by nothing."""

            salt = 0

            def _one(self, request: Any, mask: Any, share: float) -> Any:
                seed = zlib.crc32(f"{self.salt} {request.prompt} {mask}".encode())
                moved = float(np.random.default_rng(seed).normal(0.0, 1.0)) if mask else 0.0
                return Likelihood(-2.0 + moved, 0, 1)

        for salt in range(4):
            model = Wavers({"recall": {}})
            model.salt = salt
            with pytest.raises(CapabilityAbsent, match="without which recall does better"):
                run(model, method="gradient", sign=-1, max_heads=1)

    def test_greedy_tries_every_head_at_every_step(self) -> None:
        memory = Memory()
        plan = run(method="greedy", max_heads=2, memory=memory)
        assert plan.heads == (A, B)
        tried = {key.rpartition(" ")[2] for key in memory.entries if key.startswith("recall ")}
        assert {str(head) for head in HEADS} <= tried
        pairs = {",".join(map(str, sorted((A, head)))) for head in HEADS if head != A}
        assert pairs <= tried

    def test_greedy_finds_what_no_ranking_shows(self) -> None:
        """B costs nothing while A is there, nor does any gradient at A's place show it."""
        effects = {"recall": {A: 0.8, B: 2.0}, "copying": {}, "english": {}}
        assert run(BackupModel(effects, {B: A}), method="greedy", max_heads=2).heads == (A, B)

    @pytest.mark.parametrize("method", ["adaptive", "published", "scan", "gradient"])
    def test_other_methods_try_ten_at_once(self, method: str) -> None:
        search, _ = search_of(
            Bench(PlantedModel({"recall": TARGET}), Memory()), planted_task("recall"), method=method
        )
        assert search.n_tries == N_TRIES == 10


SPREADS = [0.8 + 0.4 * (n % 7) / 6 for n in range(40)]
"""What an item of `planted_task` loses of a head's effect."""


def masks_of(memory: Memory) -> int:
    """Masks of the target that were measured, the empty one apart."""
    return sum(key.startswith("recall ") and not key.endswith(" ") for key in memory.entries)


def gradients_of(memory: Memory) -> int:
    return sum(key.startswith("gradient recall") for key in memory.entries)
