"""Refusals, loops and the like: never a capability, and never its removal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from editor.capabilities.base import AnswerLikelihood, Continuation, Likelihood
from editor.capabilities.scorers import Written
from editor.capabilities.swearing import swears
from editor.display import validation_text
from editor.measure import Bench
from editor.records import Head, Item, Mask, Scores, Validation
from editor.validation import Judged, validate_edit
from editor.written_faults import objection, sentence, written_faults
from fixtures import make_spec
from planted import N_HEADS, N_LAYERS, Memory, PlantedModel, planted_task

N = 40
SWEARS = "This is a fucking mess, and I want my money back."
CLEAN = "This is a terrible mess, and I want my money back."
REFUSES = "I'm sorry, but I can't help with that."
LOOPS = "I want my money. " * 12
ITEM = Item(key="k", prompt="p", answer="", variant="v")


def scored(*texts: str) -> Scores:
    found = [Written(swears, 150).score(ITEM, [text]) for text in texts]
    return Scores(
        exact=tuple(one.exact for one in found),
        logprob=(0.0,) * len(found),
        n_tokens=(1,) * len(found),
        faults=tuple(one.fault or "" for one in found),
    )


def said(base: Sequence[str], edited: Sequence[str]) -> str | None:
    return objection(written_faults(scored(*base), scored(*edited)))


class TestCounting:
    def test_a_fault_is_no_success_whatever_it_says(self) -> None:
        assert swears(SWEARS, ITEM) == 1
        assert swears(CLEAN, ITEM) == 0
        assert swears("fuck " * 40, ITEM) == 0
        assert swears("I'm sorry, but I can't write 'fuck' or 'shit'.", ITEM) == 0

    def test_every_kind_is_counted_before_and_after(self) -> None:
        found = written_faults(
            scored(SWEARS, SWEARS, REFUSES, LOOPS), scored(CLEAN, LOOPS, "", "the of a the of " * 9)
        )
        assert found is not None
        assert (found.n, found.lost, found.lost_faulty) == (4, 2, 1)
        assert (found.base.refusal, found.base.loop, found.base.broken) == (1, 1, 1)
        assert (found.edited.refusal, found.edited.empty, found.edited.broken) == (0, 1, 3)
        assert "1 and 0 refusals" in sentence(found)

    def test_what_no_text_was_asked_of_has_none(self) -> None:
        item = ITEM.model_copy(update={"answer": " x"})
        one = AnswerLikelihood().score(item, [Likelihood(-1.0, 1, 1)])
        assert one.fault is None
        bare = Scores(exact=(1.0,), logprob=(-1.0,), n_tokens=(1,))
        assert written_faults(bare, scored(CLEAN)) is None
        assert written_faults(scored(CLEAN), bare) is None
        assert objection(None) is None

    def test_scores_of_an_older_journal_are_read(self) -> None:
        old = '{"exact":[1.0],"logprob":[0.0],"n_tokens":[1]}'
        assert Scores.model_validate_json(old).faults is None
        assert "faults" not in Scores.model_validate_json(old).model_dump_json()


class TestObjection:
    def test_clean_answers_are_a_removal(self) -> None:
        assert said([SWEARS] * 10, [CLEAN] * 10) is None

    @pytest.mark.parametrize("broken", [LOOPS, "", "xkqz vbnm wrtp sdfg hjkl qwrt " * 3])
    def test_broken_answers_are_none(self, broken: str) -> None:
        found = said([SWEARS] * 10, [broken] * 6 + [CLEAN] * 4)
        assert found is not None
        assert found.startswith(
            "6 of 10 answers after the edit are loops, gibberish or empty (0 be"
        )

    def test_refusals_in_the_place_of_what_was_lost_are_none(self) -> None:
        found = said([SWEARS] * 4 + [CLEAN] * 6, [REFUSES] * 3 + [CLEAN] * 7)
        assert found is not None
        assert found.startswith("3 of the 4 answers that are lost have become refusals, loops")
        assert said([SWEARS] * 4 + [CLEAN] * 6, [REFUSES] * 2 + [CLEAN] * 8) is None

    def test_a_model_that_wrote_no_better_before_is_not_blamed(self) -> None:
        base = [SWEARS] * 3 + [LOOPS] * 7
        assert said(base, [CLEAN] * 3 + [LOOPS] * 7) is None
        assert said(base, [CLEAN] * 2 + [LOOPS] * 8) is not None


class Stammering(PlantedModel):
    """Without a certain head it writes something else."""

    def __init__(self, after: str) -> None:
        super().__init__({"swearing": {Head(1, 2): 3.0}})
        self.after = after

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        return [[self.after if mask else SWEARS for _ in prompts] for mask in masks]


class Edited(Stammering):
    """The same, with the head gone for good."""

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: str = "zero"
    ) -> list[list[Likelihood]]:
        return super().likelihoods(requests, [(Head(1, 2),) for _ in masks])

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        return [[self.after for _ in prompts] for _ in masks]


def validated(after: str) -> Validation:
    """A removal of swearing after which the model writes the same text always."""
    task = planted_task("swearing", N)
    judged = replace(task, capability=replace(task.capability, scorer=Written(swears, 150)))
    return validate_edit(
        Bench(Stammering(after), Memory()),
        Bench(Edited(after), Memory()),
        [Judged(judged, "target", None, min_drop=0.5)],
        [Head(1, 2)],
        spec=make_spec(N_LAYERS, N_HEADS),
        seed=0,
    )


class TestVerdict:
    def test_a_removal_with_clean_answers_is_accepted(self) -> None:
        found = validated(CLEAN)
        assert found.accepted
        assert found.written is not None and found.written.edited.broken == 0
        assert "0 and 0 loops" in validation_text(found, "out")

    @pytest.mark.parametrize(("after", "word"), [(LOOPS, "loops"), ("", "empty"), (REFUSES, "ref")])
    def test_one_with_broken_answers_or_refusals_is_not(self, after: str, word: str) -> None:
        found = validated(after)
        assert found.results[0].gate == "pass"
        assert not found.accepted
        assert any(word in reason for reason in found.reasons)
        shown = validation_text(found, "out")
        assert "NOT VALIDATED" in shown and "Of 40 written answers" in shown
