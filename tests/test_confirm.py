"""The checks on the chosen heads, on models whose heads' effects are known."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from editor import confirm as confirm_module
from editor.capabilities.base import Continuation, Likelihood
from editor.confirm import (
    MAX_FINALISTS,
    MAX_ITEMS,
    N_RANDOM_SETS,
    confirm,
    expected_masks,
    interactions,
    mean_ablated,
    random_sets,
)
from editor.confirm_text import pair_rows, sentences
from editor.measure import Bench, as_mask
from editor.records import Confirmation, Head, Mask, Scores
from fixtures import make_spec
from planted import (
    N_HEADS,
    N_LAYERS,
    BackupModel,
    Memory,
    PlantedModel,
    planted_task,
)
from test_measure import Mixed

A, B, C, D = Head(1, 2), Head(4, 0), Head(7, 5), Head(7, 6)
CHOSEN = (B, A, C)
SPEC = make_spec(N_LAYERS, N_HEADS)
EFFECTS = {"recall": {A: 1.5, B: 1.2, C: 0.4}}


def run(
    model: PlantedModel | None = None,
    heads: Sequence[Head] = CHOSEN,
    *,
    n_items: int = 40,
    memory: Memory | None = None,
    seed: int = 0,
) -> Confirmation:
    bench = Bench(model or PlantedModel(EFFECTS), Memory() if memory is None else memory)
    return confirm(bench, planted_task("recall", n_items), heads, SPEC, seed=seed)


def kinds(found: Confirmation) -> dict[tuple[Head, ...], str]:
    return {as_mask(at.heads): at.kind for at in found.interactions}


class SeriesModel(PlantedModel):
    """A and B do one job in a row: with either out, the other has nothing left to do."""

    def loss(self, task: str, mask: Mask) -> float:
        loss = super().loss(task, mask)
        effects = self.effects[task]
        return loss - min(effects[A], effects[B]) if {A, B} <= set(mask) else loss


class NoisyModel(PlantedModel):
    """Each item adds something of its own under each mask; on average heads still add up."""

    def __init__(self, effects: Any, seed: int, size: float) -> None:
        super().__init__(effects)
        self.seed, self.size = seed, size

    def _one(self, request: Continuation, mask: Mask, share: float) -> Likelihood:
        found = super()._one(request, mask, share)
        text = f"{self.seed} {request.prompt} {mask}".encode()
        digest = hashlib.sha256(text).digest()
        noise = np.random.default_rng(list(digest)).normal(0, self.size)
        return found._replace(logprob=found.logprob + float(noise))


class TestPairs:
    def test_heads_that_add_up_are_not_flagged(self) -> None:
        found = run()
        assert set(kinds(found).values()) == {"none"}
        assert len(found.interactions) == 3
        assert [one.head for one in found.alone] == [B, A, C]
        for one, wanted in zip(found.alone, (1.2, 1.5, 0.4), strict=True):
            assert one.low <= one.effect <= one.high
            assert one.effect == pytest.approx(wanted, rel=0.03)

    def test_a_stand_in_costs_something_only_together_with_what_it_stands_in_for(self) -> None:
        found = run(BackupModel(EFFECTS, backups={C: A}))
        assert kinds(found) == {(A, C): "needs_both", (A, B): "none", (B, C): "none"}
        (pair,) = [at for at in found.interactions if at.kind == "needs_both"]
        assert pair.heads == (A, C)
        assert pair.alone == pytest.approx((1.5, 0.0), rel=0.03)
        assert pair.interaction.value == pytest.approx(0.4, rel=0.03)
        assert pair.together == pytest.approx(sum(pair.alone) + pair.interaction.value)
        assert 0 < pair.interaction.low <= pair.interaction.value <= pair.interaction.high

    def test_heads_that_work_in_a_row_are_redundant(self) -> None:
        found = run(SeriesModel(EFFECTS))
        assert kinds(found) == {(A, B): "redundant", (A, C): "none", (B, C): "none"}
        pair = next(at for at in found.interactions if at.kind == "redundant")
        assert pair.interaction.value == pytest.approx(-1.2, rel=0.03)
        assert pair.interaction.high < 0

    def test_a_small_interaction_is_not_worth_a_word(self) -> None:
        effects = {"recall": {A: 1.5, C: 0.05}}
        found = run(BackupModel(effects, backups={C: A}), heads=(A, C))
        (pair,) = found.interactions
        assert pair.interaction.low > 0 and pair.kind == "none"

    def test_heads_that_each_take_everything_do_not_seem_to_overlap(self) -> None:
        """8 nats and 8 nats cut at 6 would be 4 too few together."""
        found = run(PlantedModel({"recall": {A: 8.0, B: 8.0, C: 0.2}}))
        assert kinds(found) == {(A, B): "too_few", (A, C): "too_few", (B, C): "too_few"}

    def test_items_that_are_lost_either_way_do_not_make_an_overlap(self) -> None:
        """The answer cannot lose more than 7 nats: a floor, and no work that is shared."""

        class Floor(PlantedModel):
            def loss(self, task: str, mask: Mask) -> float:
                return min(super().loss(task, mask), 7.6)

        found = run(Floor({"recall": {A: 5.0, B: 4.0, C: 0.3}}))
        pair = next(at for at in found.interactions if set(at.heads) == {A, B})
        assert pair.interaction.high < 0 and pair.kind != "redundant"
        assert kinds(found)[A, C] == "none"

    def test_an_overlap_is_seen_where_the_sum_would_take_the_answer(self) -> None:
        found = run(SeriesModel({"recall": {A: 4.5, B: 4.5, C: 0.2}}))
        pair = next(at for at in found.interactions if set(at.heads) == {A, B})
        assert sum(pair.alone) > 6 > pair.together
        assert (pair.kind, pair.n_items) == ("redundant", 24)

    def test_few_items_flag_nothing(self) -> None:
        found = run(BackupModel(EFFECTS, backups={C: A}), n_items=5)
        assert set(kinds(found).values()) == {"too_few"}
        assert all(at.n_items == 5 for at in found.interactions)

    def test_items_about_one_thing_count_as_one(self) -> None:
        task = planted_task("recall", 24)
        items = tuple(
            item.model_copy(update={"key": f"k{n % 4}"}) for n, item in enumerate(task.items)
        )
        bench = Bench(BackupModel(EFFECTS, backups={C: A}), Memory())
        found = confirm(bench, replace(task, items=items), CHOSEN, SPEC)
        assert set(kinds(found).values()) == {"too_few"}

    @pytest.mark.parametrize(("depth", "size"), [(1.0, 0.2), (2.2, 0.6)])
    def test_noise_is_seldom_taken_for_an_interaction(self, depth: float, size: float) -> None:
        """Near the depth where an answer is gone too, where a cut makes noise lopsided."""
        heads = (A, B, C, D)
        effects = {head: depth * n for head, n in zip(heads, (1.5, 1.2, 0.4, 0.1), strict=True)}
        task = planted_task("recall", MAX_ITEMS)
        masks = [(), *((head,) for head in heads), *combinations(heads, 2)]
        kinds: list[str] = []
        for seed in range(40):
            scores = Bench(NoisyModel({"recall": effects}, seed, size), Memory()).scores(
                task, masks
            )
            found = dict(zip(masks, scores, strict=True))
            kinds += [at.kind for at in interactions(found, heads, task.items)]
        assert len(kinds) == 240
        assert sum(kind != "none" for kind in kinds) <= 0.05 * 240


class TestMeans:
    @pytest.mark.parametrize(
        ("share", "verdict"),
        [(1.0, "not_artefact"), (0.7, "not_artefact"), (0.2, "artefact"), (0.0, "artefact")],
    )
    def test_what_remains_of_the_effect(self, share: float, verdict: str) -> None:
        found = run(PlantedModel(EFFECTS, mean_share=share)).mean_ablated
        assert found is not None and found.share is not None
        assert found.verdict == verdict
        assert found.share.low <= found.share.value <= found.share.high
        assert found.share.value == pytest.approx(share, abs=1e-9)
        assert found.nats_lost_mean.value == pytest.approx(share * found.nats_lost_zero.value)
        assert found.base_exact == 1.0 and found.exact_lost_zero.value == 1.0
        # 3.1 nats cost the answer when a third of them is left.
        assert found.exact_lost_mean.value == (1.0 if share > 0.5 else 0.0)

    def test_a_share_near_a_half_is_told_as_unsure(self) -> None:
        items = planted_task("recall", 20).items
        base, zero, mean = (
            Scores(exact=(1.0,) * 20, logprob=tuple(lost), n_tokens=(1,) * 20)
            for lost in ([0.0] * 20, [-2.0] * 20, [-2.0, -0.2] * 10)
        )
        found = mean_ablated(base, zero, mean, items)
        assert found.share is not None and found.share.value == pytest.approx(0.55)
        assert found.share.low < 0.5 < found.share.high and found.verdict == "partly"

    def test_without_an_effect_there_is_nothing_that_could_remain(self) -> None:
        found = run(PlantedModel({"recall": {}})).mean_ablated
        assert found is not None
        assert (found.share, found.verdict) == (None, "unclear")

    def test_what_is_written_has_none(self) -> None:
        task = planted_task("recall", 12)
        capability = replace(task.capability, scorer=Mixed())
        bench = Bench(PlantedModel(EFFECTS), Memory())
        found = confirm(bench, replace(task, capability=capability), CHOSEN, SPEC)
        assert found.mean_ablated is None
        assert any("not scored" in line for line in sentences(found))


class TestRandomSets:
    def test_are_of_the_same_layers_without_the_chosen(self) -> None:
        found = run().random_sets
        assert found is not None and len(found.sets) == N_RANDOM_SETS
        for one in found.sets:
            assert [head.layer for head in one.heads] == [1, 4, 7]
            assert not set(one.heads) & set(CHOSEN)
            assert one.loss == 0
        assert len({one.heads for one in found.sets}) == N_RANDOM_SETS, "no set counts twice"
        assert found.chosen == pytest.approx(3.1, rel=0.03)
        assert (found.n_near, found.n_as_costly, found.p_value) == (0, 0, 1 / 21)

    def test_sets_that_cost_as_much_are_counted(self) -> None:
        everywhere = {head: 1.0 for head in SPEC.heads()}
        found = run(PlantedModel({"recall": everywhere})).random_sets
        assert found is not None
        assert (found.n_near, found.n_as_costly, found.p_value) == (20, 20, 1.0)

    def test_half_of_the_loss_is_near(self) -> None:
        others = {head: 0.6 for head in SPEC.heads()}
        found = run(PlantedModel({"recall": {**others, A: 1.0, B: 1.0, C: 1.0}})).random_sets
        assert found is not None
        assert (found.n_near, found.n_as_costly) == (20, 0)

    def test_by_hand(self) -> None:
        losses = {(): 0.0, (A, B): 2.0, (C,): 1.0, (D,): 2.0, (C, D): 9.0, (B, C): 0.9}
        scores = {
            mask: Scores(exact=(1.0,), logprob=(-loss,), n_tokens=(1,))
            for mask, loss in losses.items()
        }
        found = random_sets(scores, (A, B), [(C,), (D,), (C, D), (B, C)])
        assert [one.loss for one in found.sets] == [1.0, 2.0, 6.0, 0.9]
        assert (found.chosen, found.n_near, found.n_as_costly) == (2.0, 3, 2)
        assert found.p_value == 3 / 5

    def test_where_there_are_few_all_are_compared(self) -> None:
        """One head of a layer: the others of it are all the sets there are, and p is no smaller."""
        found = run(heads=[A]).random_sets
        assert found is not None
        assert {one.heads for one in found.sets} == {
            (Head(A.layer, n),) for n in range(N_HEADS) if n != A.head
        }
        assert found.p_value == 1 / N_HEADS

    def test_the_seed_decides(self) -> None:
        one, same, other = (run(seed=seed).random_sets for seed in (3, 3, 4))
        assert one == same != other

    def test_layers_without_other_heads_have_none(self) -> None:
        whole = [Head(3, n) for n in range(N_HEADS)]
        assert run(heads=whole).random_sets is None
        found = run(heads=[A, *whole])
        assert found.random_sets is not None
        assert {len(one.heads) for one in found.random_sets.sets} == {1}
        assert "layers have no more" in sentences(found)[-1]


class TestCost:
    @pytest.mark.parametrize("n_heads", [1, 2, 5, 6, 20])
    def test_few_masks_of_few_items(self, n_heads: int) -> None:
        model = PlantedModel({"recall": {head: 0.5 for head in SPEC.heads()[:n_heads]}})
        found = run(model, heads=[Head(n // 4, n % 4) for n in range(n_heads)], n_items=100)
        assert found.n_items == MAX_ITEMS
        assert model.n_calls == found.evaluations + 1 <= 45
        assert found.evaluations <= expected_masks(n_heads)
        assert len(found.alone) == min(n_heads, MAX_FINALISTS)

    def test_what_the_journal_holds_is_not_measured_again(self) -> None:
        memory = Memory()
        first = run(memory=memory)
        model = PlantedModel(EFFECTS)
        assert run(model, memory=memory) == first
        assert model.n_calls == 0

    def test_what_the_choice_measured_on_the_same_items_is_not_counted(self) -> None:
        model, task = PlantedModel(EFFECTS), planted_task("recall", 20)
        bench = Bench(model, Memory())
        bench.scores(task, [(), (A,), (A, B), as_mask(CHOSEN)])
        found = confirm(bench, task, CHOSEN, SPEC)
        fresh = run(n_items=20)
        assert found.evaluations == fresh.evaluations - 3
        assert found == fresh.model_copy(update={"evaluations": found.evaluations})


class TestWords:
    def test_each_check_has_a_sentence(self) -> None:
        pairs, means, random = sentences(run(BackupModel(EFFECTS, backups={C: A})))
        assert "Of 3 pairs" in pairs and "1 costs more together" in pairs
        assert "L1H2 with L7H5" in pairs
        assert "not an artefact of zero" in means and "100%" in means
        assert "Of 20 random sets of 3 heads" in random and "none as much" in random
        assert "p = 0.048" in random

    def test_each_verdict_has_its_own(self) -> None:
        texts = [
            sentences(run(model))[1]
            for model in (
                PlantedModel(EFFECTS),
                PlantedModel(EFFECTS, mean_share=0.1),
                PlantedModel({"recall": {}}),
            )
        ]
        assert len(set(texts)) == 3 and all(text.endswith(".") for text in texts)

    def test_overlap_and_lost_items_are_told(self) -> None:
        (text, *_) = sentences(run(SeriesModel(EFFECTS)))
        assert "their work overlaps: L4H0 with L1H2" in text
        (text, *_) = sentences(run(PlantedModel({"recall": {A: 8.0, B: 8.0, C: 0.2}})))
        assert "too few questions" in text

    def test_one_head_has_no_pairs(self) -> None:
        found = run(heads=[A])
        assert len(sentences(found)) == 2 and not pair_rows(found.interactions)

    def test_rows_say_what_the_record_says(self) -> None:
        rows = pair_rows(run(BackupModel(EFFECTS, backups={C: A})).interactions)
        row = next(row for row in rows if row[0] == "L1H2 + L7H5")
        assert row[-2:] == ("24", "more together")
        assert {len(row) for row in rows} == {8}


def test_thresholds_are_those_of_the_choice() -> None:
    from editor import choose

    assert pytest.approx(choose.MIN_GAIN / choose.SHARE_A_NAT) == confirm_module.RELEVANT_NATS
