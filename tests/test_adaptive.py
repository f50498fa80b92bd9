"""The adaptive search on a model whose heads' effects are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor import adaptive
from editor.adaptive import AdaptiveSearch, first_round, pools
from editor.errors import CapabilityAbsent
from editor.measure import Bench
from editor.records import Head, Mask
from editor.search import Job
from planted import CHUNK, HEADS, Memory, PlantedModel, planted_task

A, B, C, U = Head(1, 2), Head(4, 0), Head(7, 5), Head(0, 3)
NOISE = np.random.default_rng(0).normal(0, 0.02, len(HEADS))
FAINT = dict(zip(HEADS, map(float, NOISE), strict=True))
TARGET = {**FAINT, A: 2.0, B: 1.5, C: 1.0}


class Noting(PlantedModel):
    """Remembers every mask of the target."""

    def __init__(self, target: Mapping[Head, float], base: float = -0.5) -> None:
        super().__init__({"recall": target}, base)
        self.masks: list[Mask] = []

    def likelihoods(self, requests: Any, masks: Any, **how: Any) -> Any:
        self.masks += [mask for mask in masks if mask]
        return super().likelihoods(requests, masks, **how)


def make_job(model: PlantedModel | None = None, memory: Memory | None = None, **fields: Any) -> Job:
    given = {"excluded": frozenset(), "seed": 0, "budget": 100, "max_heads": 3, **fields}
    bench = Bench(model or Noting(TARGET), memory or Memory())
    return Job(bench=bench, task=planted_task("recall"), heads=HEADS, **given)


def spent(job: Job) -> int:
    return job.bench.evaluations("recall")


def test_a_group_names_no_head_that_may_not_be_removed() -> None:
    """Heads that are always out together, one of them universal."""
    job = make_job(budget=24, is_universal=lambda head: head == A, prior="none")
    found = AdaptiveSearch(job).confidence()
    assert A in found.universal
    assert all(A not in group and len(group) > 1 for group in found.groups)


@pytest.mark.parametrize("view", ["exact", "logprob"])
@pytest.mark.parametrize("seed", range(4))
def test_the_interval_of_a_decided_head_is_on_its_side_of_zero(view: str, seed: int) -> None:
    job = replace(make_job(seed=seed), view=view, task=planted_task("recall", 8))
    search = AdaptiveSearch(job)
    effects = {one.head: one for one in search.estimates()[0].effects}
    found = search.confidence()
    assert all(effects[head].low > 0 for head in found.decided)
    told = {*found.decided, *found.undecided}
    assert all(head in told for head, one in effects.items() if (one.probability or 0) > 0.5)


class TestFindings:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("prior", ["gradient", "none"])
    def test_planted_heads_come_first_and_are_decided(self, seed: int, prior: str) -> None:
        job = make_job(seed=seed, prior=prior)
        search = AdaptiveSearch(job)
        assert search.rank(())[:3] == [A, B, C]
        found = search.confidence()
        assert found.decided == (A, B, C)
        assert not found.helped
        assert found.level == 0.95
        assert spent(job) <= job.budget
        by_head = {one.head: one for one in search.estimates()[0].effects}
        for head in (A, B, C):
            one = by_head[head]
            assert one.decided and one.probability is not None and one.probability >= 0.95
            assert one.low <= TARGET[head] * 1.0 <= one.high
        assert sum(one.decided for one in by_head.values()) == 3

    def test_what_is_said_is_what_was_found(self) -> None:
        search = AdaptiveSearch(make_job(max_heads=5, budget=60))
        found = search.confidence()
        assert found.sentence.startswith("3 heads decided at 95 % (L1H2, L4H0, L7H5)")
        assert f"after {found.evaluations} masks in {found.rounds} rounds" in found.sentence
        undecided = f"{len(found.undecided)} more" if found.undecided else "none"
        assert f", {undecided} undecided " in found.sentence
        assert not set(found.undecided) & set(found.decided)
        assert found.rounds >= 2 and found.chance_z > 0

    def test_it_stops_when_all_is_decided_before_the_budget_is_spent(self) -> None:
        job = make_job(budget=300)
        found = AdaptiveSearch(job).confidence()
        assert found.decided == (A, B, C)
        assert "3 heads are decided, as many as may be removed" in found.stopped
        assert spent(job) < 150

    def test_it_goes_on_while_heads_are_undecided_and_stops_at_the_budget(self) -> None:
        for budget in (24, 37, 60, 101):
            job = make_job(budget=budget, max_heads=5)
            found = AdaptiveSearch(job).confidence()
            assert f"{budget}" in found.stopped
            assert budget - 7 <= found.evaluations + 3 <= budget
            assert spent(job) <= budget

    def test_heads_that_help_are_told_apart(self) -> None:
        effects = {**FAINT, A: 2.0, B: -1.5}
        found = AdaptiveSearch(make_job(Noting(effects), max_heads=5)).confidence()
        assert (found.decided, found.helped) == ((A,), (B,))

    def test_heads_that_help_are_what_is_looked_for_with_the_sign_turned(self) -> None:
        effects = {**FAINT, A: 2.0, B: -1.5, C: -1.0}
        search = AdaptiveSearch(make_job(Noting(effects, base=-4.0), max_heads=2, sign=-1))
        found = search.confidence()
        assert found.decided == (B, C)
        assert set(found.helped) <= {A}
        assert search.rank(())[:2] == [B, C]
        assert A not in search.rank(())[:20]
        assert "2 heads are decided" in found.stopped

    def test_without_gradients_none_is_computed(self) -> None:
        model = Noting(TARGET)
        AdaptiveSearch(make_job(model, prior="none")).rank((A,))
        assert model.n_gradients == 0

    @pytest.mark.parametrize("view", ["logprob", "exact"])
    def test_a_model_without_effects_is_an_absent_capability(self, view: str) -> None:
        model = Noting({})
        with pytest.raises(CapabilityAbsent, match="recall"):
            AdaptiveSearch(make_job(model, view=view))
        assert len(model.masks) <= 30, "the first round says it"

    def test_a_model_of_which_nothing_is_left_is_an_absent_capability(self) -> None:
        with pytest.raises(CapabilityAbsent, match="nothing is left of recall"):
            AdaptiveSearch(make_job(Noting(dict.fromkeys(HEADS, 50.0))))

    def test_costly_pools_become_smaller(self) -> None:
        model = Noting({**dict.fromkeys(HEADS, 0.1), A: 2.0})
        job = make_job(model, density=0.2, max_heads=5)
        AdaptiveSearch(job)
        n_first = len(first_round(job).rows)
        first, later = model.masks[:n_first], model.masks[n_first:]
        assert max(map(len, later)) <= max(map(len, first)) // 2


class TestUniversal:
    UNIVERSAL = {**TARGET, U: 2.5}

    def make(self, **fields: Any) -> tuple[AdaptiveSearch, Job, list[Head], Noting]:
        asked: list[Head] = []

        def is_universal(head: Head) -> bool:
            asked.append(head)
            return head == U

        model = Noting(self.UNIVERSAL)
        job = make_job(model, is_universal=is_universal, **fields)
        return AdaptiveSearch(job), job, asked, model

    @pytest.mark.parametrize("seed", range(3))
    def test_a_universal_head_is_asked_about_and_set_apart(self, seed: int) -> None:
        search, _, asked, _ = self.make(seed=seed)
        assert U in asked
        assert len(set(asked)) == len(asked)
        found = search.confidence()
        assert found.decided == (A, B, C)
        assert U not in (*found.undecided, *found.helped)
        assert U not in {one.head for one in search.estimates()[0].effects if one.decided}
        assert search.rank(())[:3] == [A, B, C]

    @pytest.mark.parametrize("prior", ["gradient", "none"])
    def test_it_is_never_a_candidate(self, prior: str) -> None:
        search, _, _, _ = self.make(prior=prior)
        for chosen in ((), (A,)):
            assert set(search.rank(chosen)) == set(HEADS) - {U, *chosen}

    def test_it_is_measured_no_more(self) -> None:
        _, job, asked, model = self.make(max_heads=5)
        assert U in asked
        last = max(place for place, mask in enumerate(model.masks) if U in mask)
        assert last < len(model.masks) - 20

    def test_only_what_looks_strong_is_asked_about(self) -> None:
        _, _, asked, _ = self.make()
        assert len(asked) <= 8

    def test_asking_counts_in_the_budget(self) -> None:
        for budget in (40, 70, 100):
            search, job, asked, _ = self.make(budget=budget, max_heads=5)
            masks = search.confidence().evaluations
            assert asked
            assert budget - 7 <= masks + len(asked) + 3 <= budget
            assert spent(job) + len(asked) <= budget


class TestLimits:
    def test_an_excluded_head_is_never_masked(self) -> None:
        excluded = frozenset({B, Head(0, 0), Head(9, 7)})
        model = Noting(TARGET)
        search = AdaptiveSearch(make_job(model, excluded=excluded, max_heads=5))
        assert {head for mask in model.masks for head in mask} == set(HEADS) - excluded
        assert not set(search.rank(())) & excluded
        assert not set(search.confidence().decided) & excluded

    def test_when_the_time_is_up_the_round_is_cut_short(self) -> None:
        job = make_job(out_of_time=lambda share: True, max_heads=5)
        search = AdaptiveSearch(job)
        found = search.confidence()
        assert (found.rounds, found.stopped) == (1, "its share of the time is over")
        assert found.evaluations == CHUNK < len(first_round(job).rows)
        assert set(search.rank(())) == set(HEADS)

    def test_no_round_begins_once_the_time_is_up(self) -> None:
        memory = Memory()
        job = make_job(
            out_of_time=lambda share: len(memory.entries) > 30, max_heads=5, memory=memory
        )
        found = AdaptiveSearch(job).confidence()
        assert found.stopped == "its share of the time is over"
        assert 30 <= found.evaluations < 30 + 2 * CHUNK

    def test_a_likely_head_that_costs_nothing_alone_is_not_decided(self) -> None:
        class Together(PlantedModel):
            """B costs something only where A is out too."""

            def loss(self, task: str, mask: Mask) -> float:
                found = super().loss(task, mask)
                return found + (1.5 if {A, B} <= set(mask) else 0.0)

        for seed in range(6):
            model = Together({"recall": {**FAINT, A: 2.0}})
            found = AdaptiveSearch(make_job(model=model, seed=seed, budget=60)).confidence()
            assert found.decided == (A,)

    def test_every_head_is_in_some_pool_of_the_first_round(self) -> None:
        for budget in (24, 37, 60, 400):
            rows = first_round(make_job(budget=budget)).rows
            assert {unit for row in rows for unit in row} == set(range(len(HEADS)))
        assert len(first_round(make_job(budget=10**6)).rows) < 500

    def test_it_finds_heads_where_most_may_not_go(self) -> None:
        excluded = frozenset(HEADS[::2] + HEADS[1::4]) - {A, B}
        found = AdaptiveSearch(make_job(excluded=excluded, max_heads=2)).confidence()
        assert found.decided == (A, B) and 1.5 < found.chance_z < 6

    @pytest.mark.parametrize("n_heads", [1, 2, 3, 8])
    def test_few_heads_that_may_go_are_no_fault(self, n_heads: int) -> None:
        excluded = frozenset(HEADS) - {A, *HEADS[40 : 40 + n_heads - 1]}
        job = make_job(excluded=excluded, max_heads=5)
        try:
            search = AdaptiveSearch(job)
        except CapabilityAbsent as error:
            assert n_heads < 4 and "--method scan" in error.hint
        else:
            assert search.rank(())[0] == A

    def test_no_head_that_may_go_is_an_absent_capability(self) -> None:
        with pytest.raises(CapabilityAbsent, match="no head"):
            AdaptiveSearch(make_job(excluded=frozenset(HEADS)))

    def test_a_search_where_all_heads_turn_out_universal_ends(self) -> None:
        few = {A, B, C, U}
        job = make_job(excluded=frozenset(HEADS) - few, is_universal=lambda head: True, max_heads=5)
        found = AdaptiveSearch(job).confidence()
        assert not found.decided
        assert "no head is left" in found.stopped or "budget" in found.stopped

    def test_the_journal_spares_the_model(self) -> None:
        memory = Memory()
        first = AdaptiveSearch(make_job(memory=memory))
        ranked, found, estimates = first.rank((A,)), first.confidence(), first.estimates()
        model = Noting(TARGET)
        again = AdaptiveSearch(make_job(model, memory))
        assert (again.rank((A,)), again.confidence(), again.estimates()) == (
            ranked,
            found,
            estimates,
        )
        assert (model.n_calls, model.n_gradients) == (0, 0)

    @pytest.mark.parametrize("prior", ["gradient", "none"])
    def test_the_seed_decides(self, prior: str) -> None:
        masks: list[list[Mask]] = []
        for seed in (1, 1, 2):
            model = Noting(TARGET)
            AdaptiveSearch(make_job(model, seed=seed, prior=prior))
            masks.append(model.masks)
        assert masks[0] == masks[1] != masks[2]


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=60, unique=True),
    st.integers(1, 40),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_pools_are_as_many_as_asked_and_count_every_unit_alike(
    units: list[int], n_masks: int, size: int, seed: int
) -> None:
    found = pools(units, n_units=100, n_masks=n_masks, size=size, seed=seed)
    assert len(found.rows) == n_masks and found.n_units == 100
    assert all(1 <= len(row) <= size and set(row) <= set(units) for row in found.rows)
    counts = np.bincount([unit for row in found.rows for unit in row], minlength=100)[units]
    assert counts.max() - counts.min() <= 1
    assert found == pools(units, n_units=100, n_masks=n_masks, size=size, seed=seed)


def test_the_first_round_is_over_all_heads_that_may_go() -> None:
    job = make_job(excluded=frozenset({A}), budget=200, density=0.1)
    rows = first_round(job).rows
    assert len(rows) == round(adaptive.FIRST_SHARE * 200)
    assert {unit for row in rows for unit in row} == set(job.units)
    assert {len(row) for row in rows} <= {6, 7}
