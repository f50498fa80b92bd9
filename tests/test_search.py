"""Searches on a model whose heads' effects are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from editor import estimate, stats
from editor.errors import CapabilityAbsent, TimeUp
from editor.measure import Bench
from editor.methods import METHODS as SEARCHES
from editor.records import Estimate, Head, HeadEffect, Mask, UniversalHeads
from editor.responses import DEEPEST_LOSS, item_losses
from editor.search import Job, Search, interleave, rivals, with_singles
from editor.universal import UNIVERSAL_NATS, costly_heads, find_universal, measure_singles
from editor.validation import check_headroom
from planted import CHUNK, HEADS, BackupModel, Memory, OverflowingModel, PlantedModel, planted_task

A, B, C = Head(1, 2), Head(4, 0), Head(7, 5)
NOISE = np.random.default_rng(0).normal(0, 0.02, len(HEADS))
FAINT = dict(zip(HEADS, map(float, NOISE), strict=True))
TARGET = {**FAINT, A: 2.0, B: 1.5, C: 1.0}
NONE: frozenset[Head] = frozenset()
METHODS = tuple(SEARCHES)
RANKING = tuple(method for method in METHODS if method != "greedy")
"""Greedy ranks nothing: it leaves every head to the choice."""
DRAWING = ("adaptive", "published")
KEEPING = tuple(method for method in METHODS if method != "published")
"""Published masks whatever there is."""
BUDGET = {"adaptive": 44, "published": 100, "scan": len(HEADS), "greedy": 0, "gradient": 0}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of single heads take most of the time, and nothing here asks how exact they are."""
    monkeypatch.setattr(stats, "N_BOOT", 200)


class Noting(PlantedModel):
    """Remembers every mask."""

    def __init__(self, effects: Mapping[str, Mapping[Head, float]]) -> None:
        super().__init__(effects)
        self.masks: list[Mask] = []

    def likelihoods(self, requests, masks, **how):
        self.masks += masks
        return super().likelihoods(requests, masks, **how)


def make_search(
    method: str,
    *,
    memory: Memory | None = None,
    effects: Mapping[Head, float] | None = None,
    model: Noting | None = None,
    **fields: Any,
) -> tuple[Search, Bench, Noting]:
    """A search on the planted target, with its bench and model."""
    model = model or Noting({"recall": TARGET if effects is None else effects})
    bench = Bench(model, memory or Memory())
    given = {"excluded": NONE, "seed": 0, "budget": BUDGET[method], "max_heads": 5, **fields}
    job = Job(bench=bench, task=planted_task("recall"), heads=HEADS, **given)
    return SEARCHES[method](job), bench, model


class NotingBackup(BackupModel, Noting):
    """A stand-in, and every mask."""

    def __init__(
        self, effects: Mapping[str, Mapping[Head, float]], backups: Mapping[Head, Head]
    ) -> None:
        super().__init__(effects, backups)
        self.masks = []


class NotingOverflow(OverflowingModel, Noting):
    """No numbers without a certain head, and every mask."""

    def __init__(self, effects: Mapping[str, Mapping[Head, float]], overflows: Head) -> None:
        super().__init__(effects, overflows)
        self.masks = []


class TestSearches:
    @pytest.mark.parametrize(
        ("method", "seed"),
        [("scan", 0), ("gradient", 0), *((m, s) for m in DRAWING for s in range(5))],
    )
    def test_planted_heads_come_first(self, method: str, seed: int) -> None:
        search, _, _ = make_search(method, seed=seed)
        assert {A, B} <= set(search.rank(())[:6])
        assert C in search.rank(())[:10]
        assert A in {one.head for one in search.estimates()[0].effects[:5]}

    def test_greedy_leaves_every_head_to_the_choice(self) -> None:
        search, bench, _ = make_search("greedy", excluded=frozenset({B}))
        assert set(search.rank((A,))) == set(HEADS) - {A, B}
        assert bench.evaluations("recall") == 0
        assert search.n_tries >= len(HEADS)

    @pytest.mark.parametrize("method", METHODS)
    def test_the_chosen_are_not_ranked_again_and_none_twice(self, method: str) -> None:
        search, _, _ = make_search(method)
        for chosen in ((), (A,), (B, A)):
            ranked = search.rank(chosen)
            assert not set(chosen) & set(ranked)
            assert len(set(ranked)) == len(ranked)
            assert set(ranked) <= set(HEADS)

    @pytest.mark.parametrize("method", KEEPING)
    def test_every_head_that_may_go_is_ranked_and_no_other_is_masked(self, method: str) -> None:
        excluded = frozenset({B, Head(0, 0), Head(9, 7)})
        search, _, model = make_search(method, excluded=excluded)
        assert set(search.rank((A,))) == set(HEADS) - excluded - {A}
        assert not {one.head for one in search.estimates()[0].effects} & excluded
        out = [mask for mask in model.masks if mask != (A,)]
        assert not {head for mask in out for head in mask} & excluded

    def test_published_takes_its_hundred_masks_over_all_heads(self) -> None:
        search, bench, model = make_search("published", excluded=frozenset({A}))
        out = [mask for mask in model.masks if mask]
        assert len(out) == 100 and {len(mask) for mask in out} == {round(len(HEADS) * 0.02)}
        assert {head for mask in out for head in mask} == set(HEADS)
        assert bench.evaluations("recall") <= 100
        assert A in search.rank(())

    def test_published_takes_the_masks_that_it_is_given(self) -> None:
        _, _, model = make_search("published", budget=30)
        assert len([mask for mask in model.masks if mask]) == 30

    @pytest.mark.parametrize("method", ["published", "scan"])
    def test_a_part_of_a_fixed_procedure_is_no_ranking(self, method: str) -> None:
        memory = Memory()
        late = lambda share: len(memory.entries) > 20  # noqa: E731
        with pytest.raises(TimeUp, match=rf"after 2\d of {BUDGET[method]} masks") as found:
            make_search(method, memory=memory, out_of_time=late)
        assert "--max-hours" in found.value.hint
        assert 20 < len(memory.entries) <= 21 + CHUNK
        make_search(method, memory=memory)  # goes on with what is there
        assert len(memory.entries) == 1 + BUDGET[method]

    @pytest.mark.parametrize("method", ["adaptive", "published", "scan"])
    def test_masks_without_numbers_are_told_and_left_out(self, method: str) -> None:
        bad = Head(5, 5)
        model = NotingOverflow({"recall": TARGET}, bad)
        search, bench, _ = make_search(method, model=model)
        found = search.estimates()[0]
        assert found.not_numbers and all(bad in mask for mask in found.not_numbers)
        assert found.n_masks + len(found.not_numbers) == sum(bool(mask) for mask in model.masks)
        assert bench.evaluations("recall") >= found.n_masks + len(found.not_numbers)
        assert A in search.rank(())[:2]
        assert all(np.isfinite([one.effect, one.low, one.high]).all() for one in found.effects)

    @pytest.mark.parametrize("method", ["adaptive", "published"])
    def test_where_no_mask_yields_numbers_there_is_no_list(self, method: str) -> None:
        class Broken(Noting):
            def loss(self, task: str, mask: Mask) -> float:
                return float("nan") if mask else 0.0

        with pytest.raises(CapabilityAbsent, match="not a finite number"):
            make_search(method, model=Broken({"recall": TARGET}), prior="none")

    def test_a_scan_is_every_head_alone(self) -> None:
        search, bench, model = make_search("scan")
        assert set(model.masks) == {(), *((head,) for head in HEADS)}
        assert bench.evaluations("recall") == len(HEADS)
        (found,) = search.estimates()
        effects = {one.head: one.effect for one in found.effects}
        assert effects == pytest.approx({head: TARGET[head] for head in HEADS}, rel=0.05, abs=0.002)

    def test_the_gradient_knocks_nothing_out_to_rank(self) -> None:
        search, bench, model = make_search("gradient")
        assert search.rank(())[:3] == [A, B, C]
        assert model.n_calls == 0 and model.n_gradients == 1
        assert bench.evaluations("recall") == 3

    @pytest.mark.parametrize("method", ["adaptive", "gradient"])
    def test_a_stand_in_is_seen_when_its_principal_is_out(self, method: str) -> None:
        model = NotingBackup({"recall": {**FAINT, A: 2.0, B: 1.5}}, backups={B: A})
        search, _, _ = make_search(method, model=model)
        assert search.rank(())[0] == A
        assert search.rank((A,))[0] == B

    @pytest.mark.parametrize("method", RANKING)
    def test_heads_without_which_it_does_better_come_first_where_they_are_wanted(
        self, method: str
    ) -> None:
        effects = {**FAINT, A: -1.0, B: -0.8, C: 2.0}
        search, _, _ = make_search(method, effects=effects, sign=-1)
        assert set(search.rank(())[:2]) == {A, B}
        ranked = search.rank(())
        assert C not in ranked or ranked.index(C) > len(HEADS) // 2

    @pytest.mark.parametrize("method", DRAWING)
    def test_the_seed_decides(self, method: str) -> None:
        masks = [make_search(method, seed=seed)[2].masks for seed in (1, 1, 2)]
        assert masks[0] == masks[1] != masks[2]

    @pytest.mark.parametrize("method", METHODS)
    def test_the_journal_spares_the_model(self, method: str) -> None:
        memory = Memory()
        first, _, _ = make_search(method, memory=memory)
        ranked, found = first.rank((A,)), first.estimates()
        again, _, model = make_search(method, memory=memory)
        assert (again.rank((A,)), again.estimates()) == (ranked, found)
        assert again.confidence() == first.confidence()
        assert (model.n_calls, model.n_gradients) == (0, 0)

    @pytest.mark.parametrize("method", METHODS)
    def test_estimates_are_sorted_and_counted(self, method: str) -> None:
        search, _, model = make_search(method)
        (found,) = search.estimates()
        out = [mask for mask in model.masks if mask]
        assert found.n_masks == len(out)
        order = search.rank(()) if method == "adaptive" else []
        if not order:
            effects = [one.effect for one in found.effects]
            assert effects == sorted(effects, reverse=True)
        for one in found.effects:
            assert one.low <= one.effect <= one.high
            assert one.n_masks == sum(one.head in mask for mask in out)

    @pytest.mark.parametrize("method", DRAWING)
    def test_a_model_without_effects_is_an_absent_capability(self, method: str) -> None:
        with pytest.raises(CapabilityAbsent, match="recall scores the same under all"):
            make_search(method, effects={})

    @pytest.mark.parametrize("method", ["scan", "greedy", "gradient"])
    def test_heads_alone_without_effects_are_ranked_without_a_fault(self, method: str) -> None:
        search, _, _ = make_search(method, effects={})
        assert isinstance(search.rank(()), list)
        assert all(one.effect == 0 for one in search.estimates()[0].effects)

    @pytest.mark.parametrize("method", ["published", "scan", "greedy", "gradient"])
    def test_only_a_posterior_says_how_sure_it_is(self, method: str) -> None:
        assert make_search(method)[0].confidence() is None

    @pytest.mark.parametrize("method", DRAWING)
    def test_the_exact_view_finds_them_too(self, method: str) -> None:
        search, _, _ = make_search(method, view="exact", budget=100)
        assert {A, B} <= set(search.rank(())[:6])
        assert search.estimates()[0].score == "exact"


def test_a_count_of_answers_is_not_mixed_with_shares_of_heads_alone() -> None:
    pooled = estimated(effect(A, 0.7)).model_copy(update={"score": "exact"})
    alone = estimated(effect(A, 0.5), solver="each head alone").model_copy(
        update={"score": "exact"}
    )
    assert with_singles(pooled, alone) is pooled


def effect(head: Head, size: float, **fields: Any) -> HeadEffect:
    return HeadEffect(head=head, effect=size, low=size, high=size, n_masks=1, **fields)


def estimated(*effects: HeadEffect, solver: str = "pools", n_masks: int = 9) -> Estimate:
    return Estimate(
        task="t", score="logprob", solver=solver, n_masks=n_masks, fit_r2=None, effects=effects
    )


def test_heads_that_were_measured_alone_stand_as_measured_and_keep_their_probability() -> None:
    pooled = estimated(
        effect(A, 2.0, probability=0.99, decided=True), effect(B, 1.0, probability=0.4)
    )
    alone = estimated(effect(A, 1.5), effect(C, 1.2), solver="each head alone", n_masks=2)
    merged = with_singles(pooled, alone)
    assert [(one.head, one.effect) for one in merged.effects] == [(A, 1.5), (C, 1.2), (B, 1.0)]
    assert [one.probability for one in merged.effects] == [0.99, None, 0.4]
    assert [one.decided for one in merged.effects] == [True, False, False]
    assert merged.n_masks == 11 and "2 heads alone" in merged.solver
    assert with_singles(pooled, estimated(n_masks=0)) == pooled


def test_rivals_are_all_other_estimators_on_the_same_masks() -> None:
    rng = np.random.default_rng(0)
    X = (rng.random((150, len(HEADS))) < 0.08).astype(float)
    unit = {head: place for place, head in enumerate(HEADS)}
    losses = 2 * X[:, unit[A]] + X[:, unit[B]] - X[:, unit[C]] + rng.normal(0, 0.05, 150)
    found = rivals(X, losses, HEADS)
    assert [one.solver for one in found] == list(estimate.ESTIMATORS)
    for one in found:
        assert one.heads[:2] == (A, B)
        assert len(one.heads) <= 5 and C not in one.heads


class TestUniversal:
    TEXTS = {
        "english": {A: 0.5, B: UNIVERSAL_NATS / 2},
        "python": {C: 0.5, B: UNIVERSAL_NATS / 2},
    }

    @pytest.fixture
    def found(self) -> UniversalHeads:
        bench = Bench(PlantedModel(self.TEXTS), Memory())
        return find_universal(
            bench, HEADS, [planted_task(t, 14, "text") for t in self.TEXTS], "f" * 64
        )

    def test_are_what_any_text_needs(self, found: UniversalHeads) -> None:
        assert found.heads == (A, C)
        assert found.threshold == UNIVERSAL_NATS
        assert found.evaluations == len(HEADS)
        assert found.checkpoint == "f" * 64

    def test_every_head_is_measured_on_every_text(self, found: UniversalHeads) -> None:
        assert [one.task for one in found.effects] == ["english", "python"]
        for text in found.effects:
            assert {one.head for one in text.effects} == set(HEADS)
            assert text.effects[0].effect == pytest.approx(0.5)
            assert text.effects[0].low <= text.effects[0].effect <= text.effects[0].high
            assert text.score == "nats_per_token"

    def test_a_head_without_which_nothing_is_a_number_is_one(self) -> None:
        bad = Head(0, 3)
        model = OverflowingModel({"english": {}}, bad)
        bench = Bench(model, Memory())
        found = find_universal(bench, HEADS, [planted_task("english", 5, "text")], "x")
        assert found.heads == (bad,)
        assert found.effects[0].not_numbers == ((bad,),)
        assert len(found.effects[0].effects) == len(HEADS) - 1

    def test_a_scan_that_time_ends_is_no_scan_and_goes_on(self) -> None:
        memory, text = Memory(), planted_task("english", 40, "text")
        bench = Bench(PlantedModel({"english": {}}), memory)
        late = lambda: len(memory.entries) > 20  # noqa: E731
        with pytest.raises(TimeUp, match=r"after 2\d of 80 heads") as caught:
            find_universal(bench, HEADS, [text], "x", out_of_time=late)
        assert "--max-hours" in caught.value.hint and "suspects" in caught.value.hint
        assert len(find_universal(bench, HEADS, [text], "x").effects[0].effects) == len(HEADS)

    def test_a_loss_is_cut_like_everywhere(self) -> None:
        bench = Bench(PlantedModel({"recall": {A: 1e30, B: 0.5}}), Memory())
        found = measure_singles(bench, planted_task("recall", 14), (A, B), "logprob")
        assert found.effects[0].effect == found.effects[0].high == DEEPEST_LOSS
        assert found.effects[1].effect == pytest.approx(0.5)

    def test_costly_heads_are_those_and_what_alone_breaks_a_limit(
        self, found: UniversalHeads
    ) -> None:
        assert costly_heads(found, {}) == {A, C}
        assert costly_heads(found, {"english": 0.04}) == {A, B, C}
        assert costly_heads(found, {"english": 0.06, "python": 0.06}) == {A, C}
        assert costly_heads(found, {"recall": 0.0}) == {A, C}, "a limit of what is no text"
        assert costly_heads(found, {"english": 10.0, "python": 10.0}) == {A, C}

    def test_costly_heads_take_each_texts_own_limit(self) -> None:
        def effects(task: str, **cost: float) -> Estimate:
            return Estimate(
                task=task,
                score="nats_per_token",
                solver="each head alone",
                n_masks=1,
                fit_r2=None,
                effects=tuple(
                    HeadEffect(head=Head.parse(h), effect=e, low=e, high=e, n_masks=1)
                    for h, e in cost.items()
                ),
            )

        found = UniversalHeads(
            checkpoint="w",
            threshold=0.1,
            evaluations=2,
            effects=(effects("english", L0H0=0.04, L0H1=0.07), effects("python", L0H0=0.07)),
            heads=(),
            elapsed_s=0.0,
        )
        assert costly_heads(found, {"english": 0.05, "python": 0.1}) == {Head(0, 1)}
        assert costly_heads(found, {"english": 0.1, "python": 0.05}) == {Head(0, 0)}


def test_interleaving_takes_firsts_before_seconds_and_each_once() -> None:
    assert interleave([A, B], [C, A]) == [A, C, B]
    assert interleave([], [C], []) == [C]
    assert interleave() == []


def test_the_loss_of_an_item_is_cut_where_its_answer_is_gone() -> None:
    bench = Bench(PlantedModel({"recall": {A: 1.0, B: 100.0, C: -1.0}}), Memory())
    base, *masked = bench.scores(planted_task("recall", 7), [(), (A,), (B,), (C,)])
    losses = [item_losses(base, scores) for scores in masked]
    assert losses[0].mean() == pytest.approx(1.0)
    assert (losses[1] == losses[1][0]).all() and losses[1][0] < 100
    assert losses[2].mean() == pytest.approx(-1.0)


def test_check_headroom_is_met_by_what_the_planted_model_shows() -> None:
    bench = Bench(PlantedModel({"recall": TARGET}), Memory())
    task = planted_task("recall")
    base, masked = bench.scores(task, [(), (A, B, C)])
    check_headroom(base.exact, task.capability, "planted")
    with pytest.raises(CapabilityAbsent):
        check_headroom(masked.exact, task.capability, "planted")
