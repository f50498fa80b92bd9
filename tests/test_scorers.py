"""Choices, written texts and long references: what is asked, and what the answers score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from editor import tasks
from editor.capabilities import Continuation, Generation, Likelihood
from editor.capabilities.scorers import ChoiceLikelihood, Reference, Written
from editor.measure import Bench, Task
from editor.records import Head, Item, Mask
from planted import Memory, PlantedModel, generated_capability

CHOICES = Item(
    key="k", prompt="2 + 2 =", answer=" four", choices=(" five", " four", " a dozen"), variant="v"
)


def likely(*logprobs: float) -> list[Likelihood]:
    return [Likelihood(one, n_greedy=0, n_tokens=2) for one in logprobs]


class TestChoices:
    def test_each_is_asked_after_the_same_prompt(self) -> None:
        asked = ChoiceLikelihood().requests(CHOICES)
        assert asked == tuple(Continuation("2 + 2 =", one) for one in CHOICES.choices)

    @pytest.mark.parametrize(
        ("logprobs", "exact"), [((-3, -2, -9), 1.0), ((-1, -2, -9), 0.0), ((-2, -2, -9), 0.0)]
    )
    def test_the_likeliest_counts_and_of_equals_the_first(
        self, logprobs: tuple[float, ...], exact: float
    ) -> None:
        assert ChoiceLikelihood().score(CHOICES, likely(*logprobs)).exact == exact

    def test_a_long_choice_may_be_compared_by_character(self) -> None:
        found = likely(-4.0, -4.0, -6.5)  # a character: -1, -1, -0.93
        item = CHOICES.model_copy(update={"answer": " a dozen"})
        assert ChoiceLikelihood().score(item, found).exact == 0
        assert ChoiceLikelihood(by_length=True).score(item, found).exact == 1

    def test_log_probability_is_that_among_the_choices(self) -> None:
        found = ChoiceLikelihood().score(CHOICES, likely(-3.0, -2.0, -4.0))
        shares = [math.exp(one) for one in (-3.0, -2.0, -4.0)]
        assert found.logprob == pytest.approx(math.log(shares[1] / sum(shares)))
        colder = ChoiceLikelihood().score(CHOICES, likely(-903.0, -902.0, -904.0))
        assert colder.logprob == pytest.approx(found.logprob)

    def test_what_is_no_number_is_no_score(self) -> None:
        found = ChoiceLikelihood().score(CHOICES, likely(-1.0, math.nan, -2.0))
        assert math.isnan(found.exact)


def ends_in_ok(text: str, item: Item) -> float:
    return float(text.endswith("ok") and item.check in text)


class TestWritten:
    SCORER = Written(ends_in_ok, max_new_tokens=9, stop=("\n\n",))

    def test_asks_for_a_text_and_for_the_likelihood_of_an_answer_where_there_is_one(self) -> None:
        item = Item(key="k", prompt="p", answer=" a b", variant="v")
        assert self.SCORER.requests(item) == (
            Generation("p", 9, ("\n\n",)),
            Continuation("p", " a b"),
        )
        bare = item.model_copy(update={"answer": ""})
        assert self.SCORER.requests(bare) == (Generation("p", 9, ("\n\n",)),)

    def test_the_judge_sees_text_and_item(self) -> None:
        item = Item(key="k", prompt="p", answer="", variant="v", check="7")
        assert self.SCORER.score(item, ["7 is ok"]).exact == 1
        assert self.SCORER.score(item, ["8 is ok"]).exact == 0

    def test_log_probability_is_a_token_of_the_answer(self) -> None:
        item = Item(key="k", prompt="p", answer=" a b", variant="v")
        found = self.SCORER.score(item, ["ok", Likelihood(-6.0, n_greedy=1, n_tokens=3)])
        assert (found.exact, found.logprob, found.n_tokens) == (1, -2, 3)


def test_a_reference_scores_its_tokens() -> None:
    item = Item(key="k", prompt="p", answer=" a long one", variant="v")
    found = Reference().score(item, [Likelihood(-6.0, n_greedy=3, n_tokens=4)])
    assert (found.exact, found.logprob, found.n_tokens) == (0.75, -1.5, 4)


class Writes(PlantedModel):
    """Writes what is asked for, with a word of its own; nothing to the first prompt."""

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        self.n_written = getattr(self, "n_written", 0) + len(prompts) * len(masks)
        texts = ["" if prompt.endswith(" 0") else f"{prompt} ok" for prompt in prompts]
        return [list(texts) for _ in masks]


def written_task(n_items: int = 30) -> Task:
    items = tuple(
        Item(key=f"w-{n}", prompt=f"w {n}", answer="", variant="v") for n in range(n_items)
    )
    capability = replace(
        generated_capability("w", "task", items),
        scorer=Written(ends_in_ok, max_new_tokens=9),
        dense=Reference(),
    )
    return Task(capability, items)


class TestDense:
    def test_scores_of_the_two_ways_are_kept_apart(self) -> None:
        task, memory = written_task(), Memory()
        filled = tuple(item.model_copy(update={"answer": " x"}) for item in task.items)
        task = replace(task, items=filled)
        bench = Bench(Writes({"w": {Head(0, 0): 0.5}}), memory)
        (whole,) = bench.scores(task, [()])
        (dense,) = bench.scores(replace(task, dense=True), [()])
        assert whole.exact[1] == 1
        assert dense.exact != whole.exact
        again = Bench(Writes({"w": {}}), memory)
        assert again.scores(task, [()]) == [whole]
        assert again.scores(replace(task, dense=True), [()]) == [dense]

    def test_what_the_model_writes_stands_in_for_an_answer(self) -> None:
        task, memory = written_task(), Memory()
        model = Writes({"w": {Head(0, 0): 0.5}})
        known = tasks.known(Bench(model, memory), task.capability, 6, 4, dense=True)
        assert all(item.answer == f"{item.prompt} ok" for item in known.searching.items)
        assert known.searching.dense
        assert known.choosing.dense
        assert "w 0" not in [item.prompt for item in known.searching.items]
        written = model.n_written
        again = tasks.known(Bench(model, memory), task.capability, 6, 4, dense=True)
        assert again == known
        assert model.n_written == written, "the journal has the texts"

    def test_searching_by_what_is_right_asks_for_texts(self) -> None:
        known = tasks.known(Bench(Writes({"w": {}}), Memory()), written_task().capability, 6, 4)
        assert not known.searching.dense
        assert all(not item.answer for item in known.searching.items)
