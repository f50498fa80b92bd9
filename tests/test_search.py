"""Searches on a model whose heads' effects are known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from editor.errors import CapabilityAbsent
from editor.measure import Bench
from editor.records import Estimate, Head, HeadEffect, Mask, UniversalHeads
from editor.search import (
    SEARCHES,
    UNIVERSAL_NATS,
    costly_heads,
    find_universal,
    interleave,
    item_losses,
)
from editor.validation import check_headroom
from fixtures import make_spec
from planted import HEADS, N_HEADS, N_LAYERS, BackupModel, Memory, PlantedModel, planted_task

A, B, C = Head(1, 2), Head(4, 0), Head(7, 5)
NOISE = np.random.default_rng(0).normal(0, 0.02, len(HEADS))
FAINT = dict(zip(HEADS, map(float, NOISE), strict=True))
TARGET = {**FAINT, A: 2.0, B: 1.5, C: 1.0}
SPEC = make_spec(N_LAYERS, N_HEADS)
NONE: frozenset[Head] = frozenset()
METHODS = tuple(SEARCHES)


class Noting(PlantedModel):
    """Remembers every mask."""

    def __init__(self, effects: Mapping[str, Mapping[Head, float]]) -> None:
        super().__init__(effects)
        self.masks: list[Mask] = []

    def likelihoods(self, requests, masks):
        self.masks += masks
        return super().likelihoods(requests, masks)


def make_search(method: str, *, excluded=NONE, seed=0, memory=None, effects=None, model=None):
    """A search on the planted target, with its bench and model."""
    model = model or Noting({"recall": TARGET if effects is None else effects})
    bench = Bench(model, Memory() if memory is None else memory)
    task = planted_task("recall")
    return SEARCHES[method](bench, task, HEADS, excluded, seed), bench, model


class TestSearches:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("seed", range(5))
    def test_planted_heads_come_first(self, method: str, seed: int) -> None:
        search, _, _ = make_search(method, seed=seed)
        assert {A, B} <= set(search.rank(())[:6])
        assert C in search.rank(())[:10]
        assert A in {one.head for one in search.estimates()[0].effects[:5]}

    @pytest.mark.parametrize("method", METHODS)
    def test_the_chosen_are_not_ranked_again_and_none_twice(self, method: str) -> None:
        search, _, _ = make_search(method)
        for chosen in ((), (A,), (B, A)):
            ranked = search.rank(chosen)
            assert not set(chosen) & set(ranked)
            assert len(set(ranked)) == len(ranked)
            assert set(ranked) <= set(HEADS)

    def test_adaptive_ranks_every_head_that_may_go(self) -> None:
        search, _, _ = make_search("adaptive", excluded=frozenset({B}))
        assert set(search.rank((A,))) == set(HEADS) - {A, B}

    def test_adaptive_never_masks_an_excluded_head(self) -> None:
        excluded = frozenset({B, Head(0, 0), Head(9, 7)})
        search, bench, model = make_search("adaptive", excluded=excluded)
        assert not set(search.rank(())) & excluded
        measured = {head for mask in model.masks for head in mask}
        assert measured == set(HEADS) - excluded
        assert not {one.head for one in search.estimates()[0].effects} & excluded
        assert bench.evaluations("recall") < 60

    def test_published_takes_its_hundred_masks_over_all_heads(self) -> None:
        search, bench, model = make_search("published", excluded=frozenset({A}))
        out = [mask for mask in model.masks if mask]
        assert len(out) == 100 and {len(mask) for mask in out} == {round(len(HEADS) * 0.02)}
        assert {head for mask in out for head in mask} == set(HEADS)
        assert bench.evaluations("recall") <= 100
        assert A in search.rank(())

    def test_adaptive_sees_a_stand_in_when_its_principal_is_out(self) -> None:
        model = BackupModel({"recall": {**FAINT, A: 2.0, B: 1.5}}, backups={B: A})
        search, _, _ = make_search("adaptive", model=model)
        assert search.rank(())[0] == A
        assert search.rank((A,))[0] == B

    @pytest.mark.parametrize("method", METHODS)
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
        assert (model.n_calls, model.n_gradients) == (0, 0)

    @pytest.mark.parametrize("method", METHODS)
    def test_estimates_are_sorted_and_counted(self, method: str) -> None:
        search, _, model = make_search(method)
        (found,) = search.estimates()
        assert found.n_masks == len({mask for mask in model.masks if mask})
        effects = [one.effect for one in found.effects]
        assert effects == sorted(effects, reverse=True)
        for one in found.effects:
            assert one.low <= one.effect <= one.high
            assert one.n_masks == sum(one.head in mask for mask in model.masks)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_model_without_effects_is_ranked_without_a_fault(self, method: str) -> None:
        search, _, _ = make_search(method, effects={})
        assert isinstance(search.rank(()), list)
        assert all(one.effect == 0 for one in search.estimates()[0].effects)


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
