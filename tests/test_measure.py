"""The bench: every mask measured once, remembered, counted and returned in its place."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from editor.capabilities.base import Continuation, Generation, ItemScore, Outcome
from editor.errors import CapabilityAbsent, UsageError
from editor.interrupts import listening
from editor.measure import CHUNK_REQUESTS, GRADIENT_COST, Bench, Task, as_mask, writes
from editor.records import Head, Item, Mask, Measurement
from planted import HEADS, Memory, OverflowingModel, PlantedModel, planted_task

A, B, C = Head(1, 2), Head(4, 0), Head(7, 5)
EFFECTS = {"recall": {A: 2.0, B: 0.3}, "copying": {C: 1.0}, "english": {A: 0.2}}


def make_bench(memory: Memory | None = None) -> tuple[Bench, PlantedModel]:
    model = PlantedModel(EFFECTS)
    return Bench(model, Memory() if memory is None else memory), model


def test_scores_are_in_the_order_of_masks_and_items() -> None:
    bench, model = make_bench()
    task = planted_task("recall", 15)
    masks: list[Mask] = [(B,), (), (A, B), (A,), (C,)]
    for mask, scores in zip(masks, bench.scores(task, masks), strict=True):
        wanted = model.likelihoods([Continuation(i.prompt, i.answer) for i in task.items], [mask])
        assert scores.logprob == tuple(one.logprob for one in wanted[0])
        assert scores.exact == tuple(float(one.n_greedy == 1) for one in wanted[0])
        assert scores.n_tokens == (1,) * 15


def test_equal_masks_are_measured_once() -> None:
    bench, model = make_bench()
    found = bench.scores(planted_task("recall"), [(A,), (), (A,), (B,), (A,)])
    assert model.n_calls == 3
    assert found[0] == found[2] == found[4] != found[3]


def test_what_the_journal_holds_is_not_measured_again() -> None:
    memory = Memory()
    task, masks = planted_task("recall"), [(), (A,), (B,)]
    first = make_bench(memory)[0].scores(task, masks)
    again, model = make_bench(memory)
    assert again.scores(task, masks) == first
    assert model.n_calls == 0
    again.scores(task, [*masks, (C,)])
    assert model.n_calls == 1


def test_other_items_another_order_or_another_task_are_measured_anew() -> None:
    bench, model = make_bench()
    task = planted_task("recall")
    others = [
        task,
        replace(task, items=task.items[:-1]),
        replace(task, items=task.items[::-1]),
        replace(task, label="recall-transfer"),
        planted_task("copying"),
    ]
    for n, other in enumerate(others, 1):
        bench.scores(other, [(A,)])
        assert model.n_calls == n
    for other in others:
        bench.scores(other, [(A,)])
    assert model.n_calls == len(others)


def test_an_interrupted_measurement_keeps_what_was_finished() -> None:
    class Stops(PlantedModel):
        def likelihoods(self, requests, masks, **how):
            if self.n_calls:
                raise KeyboardInterrupt
            return super().likelihoods(requests, masks, **how)

    memory, task = Memory(), planted_task("recall", 300)
    masks = [(head,) for head in HEADS[:20]]
    with pytest.raises(KeyboardInterrupt):
        Bench(Stops(EFFECTS), memory).scores(task, masks)
    kept = len(memory.entries)
    assert 0 < kept < len(masks)
    bench, model = make_bench(memory)
    found = bench.scores(task, masks)
    assert model.n_calls == len(masks) - kept
    assert found == make_bench()[0].scores(task, masks)


def test_a_mask_without_numbers_is_marked_and_the_others_are_kept() -> None:
    bad, good, memory = Head(1, 1), Head(2, 2), Memory()
    model = OverflowingModel({"recall": {good: 1.0}}, bad)
    bench, task = Bench(model, memory), planted_task("recall")
    masks = [(good,), (bad,), (bad, good), ()]
    with pytest.raises(CapabilityAbsent, match="not a finite number without L1H1") as caught:
        bench.scores(task, masks)
    assert caught.value.exit_code == 5 and "float32" in caught.value.hint
    assert len(memory.entries) == 4
    again = Bench(PlantedModel({"recall": {}}), memory)
    assert [one is None for one in again.measured(task, masks)] == [False, True, True, False]
    assert again.evaluations("recall") == 3


def test_journal_lines_are_records() -> None:
    memory = Memory()
    bench, _ = make_bench(memory)
    task = planted_task("recall", 3)
    (scores,) = bench.scores(task, [(A, B)])
    (line,) = memory.entries.values()
    found = Measurement.model_validate_json(line)
    assert (found.mask, found.task, found.items) == ((A, B), "recall", task.digest())
    assert found.scores == scores


class NoSlopes(PlantedModel):
    """One whose derivatives overflow, though its scores do not."""

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        found = super().gradients(requests, mask)
        return [[float("nan"), *layer[1:]] for layer in found]


def test_a_gradient_without_numbers_is_said_and_done_without() -> None:
    memory, heard = Memory(), list[str]()
    task = planted_task("recall")
    for model in (NoSlopes(EFFECTS), PlantedModel({"recall": {}})):  # then from the journal
        bench = Bench(model, memory, on_note=heard.append)
        found = bench.gradients(task, (A,))
        assert found.shape == (len(HEADS),) and not found.any()
    assert heard == [heard[0]] * 2
    assert str(A) in heard[0] and "--prior none" in heard[0]


@pytest.mark.parametrize(
    "other",
    [
        lambda line: '{"scores": "many"}',
        lambda line: "[]",
        lambda line: line.replace('"exact":[', '"exact":[0.5,'),
        lambda line: line.replace(str(A), str(B)),
        lambda line: line.replace('"logprob":[', '"logprob":[null,'),
    ],
)
def test_an_entry_that_holds_something_else_is_named(other: Callable[[str], str]) -> None:
    memory, task = Memory(), planted_task("recall", 3)
    make_bench(memory)[0].scores(task, [(), (A,)])
    (_, key) = memory.entries
    changed = other(memory.entries[key])
    assert changed != memory.entries[key]
    memory.entries[key] = changed
    with pytest.raises(UsageError, match=r"memory:2: expected 3 scores of one mask") as caught:
        make_bench(memory)[0].scores(task, [(A,)])
    assert "--new-run" in caught.value.hint


@pytest.mark.parametrize("other", ["7", '["a"]', '{"a": 1}', "[[1, []]]"])
def test_so_is_one_of_a_gradient(other: str) -> None:
    memory, task = Memory(), planted_task("recall", 3)
    make_bench(memory)[0].gradients(task, ())
    (key,) = memory.entries
    memory.entries[key] = other
    with pytest.raises(UsageError, match="memory:1: expected an effect a head"):
        make_bench(memory)[0].gradients(task, ())


class TestMeans:
    """Masks that put a head's mean in its place are other measurements than those with zero."""

    def test_the_journal_tells_the_two_apart(self) -> None:
        memory, task = Memory(), planted_task("recall", 70)
        model = PlantedModel(EFFECTS, mean_share=0.5)
        bench = Bench(model, memory)
        (base, zero), (again, mean) = (
            bench.scores(task, [(), (A,)], fill=fill) for fill in ("zero", "mean")
        )
        assert again == base and model.n_calls == 3, "with nothing out there is nothing to fill"
        lost = [np.subtract(base.logprob, one.logprob).mean() for one in (zero, mean)]
        assert lost == pytest.approx([2.0, 1.0])
        assert bench.scores(task, [(A,)]) == [zero]
        assert bench.scores(task, [(A,)], fill="mean") == [mean]
        assert model.n_calls == 3
        key = f"recall {task.digest()[:16]} "
        assert list(memory.entries) == [key, f"{key}L1H2", f"{key}L1H2 mean"]
        fills = [Measurement.model_validate_json(at).fill for at in memory.entries.values()]
        assert fills == ["zero", "zero", "mean"]

    def test_both_are_counted(self) -> None:
        bench, _ = make_bench()
        task = planted_task("recall")
        for fill in ("zero", "mean", "mean"):
            bench.scores(task, [(), (A,)], fill=fill)
        assert bench.evaluations("recall") == 2

    def test_an_old_line_of_a_journal_is_one_with_zero(self) -> None:
        memory, task = Memory(), planted_task("recall", 3)
        make_bench(memory)[0].scores(task, [(A,)])
        (line,) = memory.entries.values()
        fields = json.loads(line)
        assert fields.pop("fill") == "zero"
        assert Measurement.model_validate(fields) == Measurement.model_validate_json(line)

    def test_what_is_written_has_no_mean(self) -> None:
        bench, model = make_bench()
        task = replace(TestGeneration.task, items=planted_task("recall", 3).items)
        assert writes(task) and not writes(planted_task("recall"))
        with pytest.raises(ValueError, match="zero"):
            bench.scores(task, [(A,)], fill="mean")
        assert model.n_calls == 0


def test_the_listener_hears_of_every_mask() -> None:
    memory, heard = Memory(), []
    task, masks = planted_task("recall", 100), [(head,) for head in HEADS[:30]]
    for _ in range(2):  # measured, then from the journal
        Bench(PlantedModel(EFFECTS), memory, heard.append).scores(task, masks)
        assert sum(heard) == len(masks)
        heard.clear()


class TestEvaluations:
    def test_count_each_set_of_heads_once_and_the_base_never(self) -> None:
        bench, _ = make_bench()
        task = planted_task("recall")
        bench.scores(task, [(), (A,), (A,), (B,)])
        bench.scores(task, [(A,), (A, B)])
        assert bench.evaluations("recall") == 3

    def test_count_over_all_item_sets_of_a_capability(self) -> None:
        bench, _ = make_bench()
        task = planted_task("recall")
        other = replace(task, items=task.items[:5], label="recall-transfer")
        bench.scores(task, [(), (A,)])
        bench.scores(other, [(), (A,)])
        bench.scores(planted_task("copying"), [(A,), (B,), (C,)])
        assert bench.evaluations("recall") == 2
        assert bench.evaluations("copying") == 3
        assert bench.evaluations("english") == 0

    def test_count_what_the_journal_spared(self) -> None:
        memory, task = Memory(), planted_task("recall")
        for _ in range(2):
            bench, _ = make_bench(memory)
            bench.scores(task, [(A,), (B,)])
            bench.gradients(task, ())
            assert bench.evaluations("recall") == 2 + GRADIENT_COST

    def test_count_a_gradient_once(self) -> None:
        bench, _ = make_bench()
        task = planted_task("recall")
        for mask in ((), (A,), ()):
            bench.gradients(task, mask)
        assert bench.evaluations("recall") == 2 * GRADIENT_COST
        bench.scores(task, [(A,)])
        assert bench.evaluations("recall") == 2 * GRADIENT_COST + 1


class TestGradients:
    def test_are_nats_an_item_one_a_head(self) -> None:
        bench, _ = make_bench()
        task = planted_task("recall", 70)
        found = bench.gradients(task, ())
        assert found.shape == (len(HEADS),) and found.dtype == np.float64
        assert found[HEADS.index(A)] == pytest.approx(2.0)
        assert np.count_nonzero(found) == 2
        assert bench.gradients(task, (A,))[HEADS.index(A)] == 0

    def test_are_remembered(self) -> None:
        memory, task = Memory(), planted_task("recall")
        first = make_bench(memory)[0].gradients(task, (A,))
        bench, model = make_bench(memory)
        assert (bench.gradients(task, (A,)) == first).all()
        assert model.n_gradients == 0
        bench.gradients(task, ())
        bench.gradients(replace(task, items=task.items[:3]), (A,))
        assert model.n_gradients == 2

    def test_do_not_pass_for_scores(self) -> None:
        bench, model = make_bench()
        task = planted_task("recall")
        bench.gradients(task, (A,))
        bench.scores(task, [(A,)])
        assert (model.n_gradients, model.n_calls) == (1, 1)


class Mixed:
    """A scorer that asks for a text between two likelihoods."""

    def requests(
        self, item: Item, among: tuple[str, ...] = ()
    ) -> tuple[Continuation | Generation, ...]:
        generation = Generation(item.prompt, 4)
        if item.prompt.endswith(("1", "3")):  # not every item asks the same
            return (generation,)
        return Continuation(item.prompt, " x"), generation, Continuation(item.prompt, " y")

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        (text,) = [one for one in outcomes if isinstance(one, str)]
        likely = [one for one in outcomes if not isinstance(one, str)]
        assert [isinstance(one, str) for one in outcomes] in ([False, True, False], [True])
        assert f"<script>{item.prompt} " in text
        return ItemScore(float(text[-1]), sum(one.logprob for one in likely), 1 + len(likely))


class TestGeneration:
    task = Task(replace(planted_task("recall").capability, scorer=Mixed()), ())

    def test_outcomes_go_back_to_their_requests(self) -> None:
        bench, _ = make_bench()
        task = replace(self.task, items=planted_task("recall", 5).items)
        base, masked = bench.scores(task, [(), (A, B)])
        assert base.exact == (0.0,) * 5 and masked.exact == (2.0,) * 5  # heads that were out
        assert base.n_tokens == (3, 1, 3, 1, 3)
        assert [logprob != 0 for logprob in base.logprob] == [True, False, True, False, True]
        assert masked.logprob[0] < base.logprob[0]

    def test_texts_alone_need_no_likelihoods(self) -> None:
        bench, model = make_bench()
        task = replace(self.task, items=planted_task("recall", 4).items[1::2])
        found = bench.scores(task, [(), (A,)])
        assert [scores.exact for scores in found] == [(0.0, 0.0), (1.0, 1.0)]
        assert model.n_calls == 0
        assert not bench.gradients(task, ()).any()


def test_a_set_of_heads_is_written_in_one_order() -> None:
    assert as_mask([C, A, B]) == as_mask((B, C, A)) == (A, B, C)


def test_the_tokens_of_what_is_measured_are_told_before_the_masks() -> None:
    heard: list[tuple[str, int]] = []
    bench = Bench(
        PlantedModel({"t": {HEADS[0]: 1.0}}),
        Memory(),
        on_mask=lambda n: heard.append(("masks", n)),
        on_tokens=lambda n: heard.append(("tokens", n)),
        count=lambda requests: 10 * len(requests),
    )
    task = planted_task("t", 3)
    bench.scores(task, [(), (HEADS[0],)])
    assert heard == [("masks", 0), ("tokens", 60), ("masks", 2)]
    bench.scores(task, [(), (HEADS[0],)])
    assert heard[3:] == [("masks", 2)]


def test_an_interrupt_waits_until_the_batch_is_kept() -> None:
    class Interrupted(PlantedModel):
        def likelihoods(self, *given: Any, **flags: Any) -> Any:
            found = super().likelihoods(*given, **flags)
            signal.raise_signal(signal.SIGINT)
            return found

    memory, task = Memory(), planted_task("t", CHUNK_REQUESTS)
    bench = Bench(Interrupted({"t": {HEADS[0]: 1.0}}), memory)
    with pytest.raises(KeyboardInterrupt), listening():
        bench.scores(task, [(), (HEADS[0],)])
    assert len(memory.entries) == 1  # of two batches, the first
