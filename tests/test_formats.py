"""Heads of the answers' form are told from those of the capability."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from editor.capabilities.base import Continuation, Likelihood
from editor.formats import check_format, form_effects, form_loss, form_steps, format_heads
from editor.measure import Bench
from editor.records import FormLoss, Head, Mask, Measurement, Scores
from editor.validation import HowLost, Judged, validate_edit, verdict
from editor.wording import form_text
from fixtures import make_spec
from planted import HEADS, N_HEADS, N_LAYERS, Memory, PlantedModel, planted_task, spread_of

FORM, RIGHT, BOTH, NONE = Head(1, 2), Head(4, 0), Head(7, 5), Head(9, 9)
TASK = planted_task("recall", 60)
OTHERS = 20
"""Wrong answers, each of logit 0; what is no answer has the logit `REST`."""
REST, KNOWN = 3.0, 6.0
Pulls = Mapping[Head, tuple[float, float]]
"""By head: logits that its removal takes off every answer, and off the right one besides."""
PULLS: Pulls = {FORM: (5.0, 0.0), RIGHT: (0.0, 5.0), BOTH: (2.0, 2.0)}


class FormModel(PlantedModel):
    """Logits for the right answer, for `OTHERS` wrong ones, and for all that is no answer."""

    def __init__(self, pulls: Pulls = PULLS, baked: Sequence[Head] = ()) -> None:
        super().__init__({"recall": {}})
        self.pulls, self.baked = pulls, tuple(baked)

    def _one(self, request: Continuation, mask: Mask, share: float = 1.0) -> Likelihood:
        spread = spread_of(request.prompt.split()[1])
        pulls = [self.pulls.get(head, (0.0, 0.0)) for head in {*mask, *self.baked}]
        every, right = (spread * sum(one) for one in zip((0.0, 0.0), *pulls, strict=True))
        wrong = math.log(OTHERS) - every
        known = KNOWN - every - right
        with np.errstate(invalid="ignore"):  # some pulls are no numbers
            norm = np.logaddexp.reduce([known, wrong, REST])
            form = float(np.logaddexp(known, wrong) - norm)
        logprob = float(known - norm)
        return Likelihood(logprob - 0.25, 2 * int(logprob > -1.0), 2, form, logprob)


def bench() -> Bench:
    return Bench(FormModel(), Memory())


def loss_of(*heads: Head) -> FormLoss:
    base, masked = bench().scores(TASK, [(), tuple(sorted(heads))])
    found = form_loss(base, masked, TASK.items)
    assert found is not None
    return found


class TestFormLoss:
    def test_a_head_of_the_form_loses_only_that(self) -> None:
        found = loss_of(FORM)
        assert found.kind == "format"
        assert found.form > 1 and found.right == pytest.approx(0, abs=1e-9)
        assert found.share == pytest.approx(1) and 0 < found.form_low <= found.form

    def test_a_head_of_the_answer_loses_only_that(self) -> None:
        found = loss_of(RIGHT)
        assert found.kind == "capability"
        assert found.right > 1 and found.form == pytest.approx(0, abs=1e-9)
        # The plain split would blame the form: the right answer was most of it.
        base, masked = bench().scores(TASK, [(), (RIGHT,)])
        assert base.form is not None and masked.form is not None
        assert np.mean(np.subtract(base.form, masked.form)) > 0.3

    def test_parts_add_up_to_the_loss_of_the_beginning(self) -> None:
        for heads in ((FORM,), (RIGHT,), (BOTH,), (FORM, RIGHT, BOTH)):
            base, masked = bench().scores(TASK, [(), tuple(sorted(heads))])
            assert base.first is not None and masked.first is not None
            found = loss_of(*heads)
            first = float(np.mean(np.subtract(base.first, masked.first)))
            assert found.form + found.right == pytest.approx(first, abs=1e-9)
            assert found.after == pytest.approx(0, abs=1e-9)
            assert found.form_low <= found.form <= found.form_high
            assert found.right_low <= found.right <= found.right_high

    def test_a_head_of_both_has_a_share_between(self) -> None:
        found = loss_of(BOTH)
        assert found.share is not None and found.share_low is not None and found.share_high
        assert 0.2 < found.share_low <= found.share <= found.share_high < 0.8

    def test_no_loss_is_undecided(self) -> None:
        found = loss_of(NONE)
        assert (found.kind, found.share) == ("undecided", None)
        assert "too little" in form_text(found)

    def test_a_trifle_is_not_split(self) -> None:
        slight = Bench(FormModel({FORM: (0.05, 0.0), RIGHT: (0.0, 0.9)}), Memory())
        trifle, more = form_effects(slight, TASK, [FORM, RIGHT])
        assert trifle.form_low > 0 and (trifle.kind, trifle.share) == ("undecided", None)
        assert more.kind == "capability"

    def test_what_is_not_sure_is_undecided(self) -> None:
        rng = np.random.default_rng(1)
        n = len(TASK.items)

        def noisy(size: float) -> Scores:
            # Logits of the right answer, of the others and of the rest, each with its own noise.
            logits = np.array([[KNOWN, math.log(OTHERS), REST]] * n) + rng.normal(0, size, (n, 3))
            logits -= np.logaddexp.reduce(logits, axis=1, keepdims=True)
            first, form = logits[:, 0], np.logaddexp(logits[:, 0], logits[:, 1])
            return Scores(
                exact=(1.0,) * n,
                logprob=tuple(first),
                n_tokens=(1,) * n,
                form=tuple(form),
                first=tuple(first),
            )

        found = form_loss(noisy(0), noisy(1.0), TASK.items)
        assert found is not None
        assert found.form_low < 0 < found.form_high and found.kind == "undecided"

    def test_probabilities_next_to_0_and_1_are_numbers(self) -> None:
        n = len(TASK.items)
        sure = Scores(
            exact=(1.0,) * n,
            logprob=(0.0,) * n,
            n_tokens=(1,) * n,
            form=(0.0,) * n,
            first=(0.0,) * n,
        )
        gone = sure.model_copy(update={"first": (-60.0,) * n, "form": (-50.0,) * n})
        found = form_loss(sure, gone, TASK.items)
        assert found is not None
        assert found.form + found.right == pytest.approx(60, abs=1e-3)
        assert all(math.isfinite(v) for v in (found.form_low, found.right_high))

    def test_without_a_form_there_is_nothing_to_split(self) -> None:
        plain = Bench(PlantedModel({"recall": {FORM: 1.0}}), Memory())
        base, masked = plain.scores(TASK, [(), (FORM,)])
        assert base.form is None and form_loss(base, masked, TASK.items) is None
        assert form_effects(plain, TASK, [FORM]) == ()
        assert check_format(plain, TASK, [FORM], [FORM]) is None


class TestHeads:
    def test_alone_are_told_apart(self) -> None:
        effects = form_effects(bench(), TASK, [FORM, RIGHT, NONE])
        assert [(one.head, one.kind) for one in effects] == [
            (FORM, "format"),
            (RIGHT, "capability"),
            (NONE, "undecided"),
        ]
        assert format_heads(effects) == (FORM,)

    def test_one_without_which_nothing_is_a_number_is_left_out(self) -> None:
        bad = Bench(FormModel({**PULLS, NONE: (float("nan"), 0.0)}), Memory())
        effects = form_effects(bad, TASK, [FORM, NONE, RIGHT])
        assert [one.head for one in effects] == [FORM, RIGHT]
        assert [one.head for one in form_steps(bad, TASK, [FORM, NONE])] == [FORM]

    def test_steps_are_measured_with_those_before_out(self) -> None:
        steps = form_steps(bench(), TASK, [BOTH, RIGHT])
        base, first, both = bench().scores(TASK, [(), (BOTH,), (RIGHT, BOTH)])
        assert steps[0].model_dump(exclude={"head"}) == loss_of(BOTH).model_dump()
        added = form_loss(first, both, TASK.items)
        assert added is not None
        assert steps[1].model_dump(exclude={"head"}) == added.model_dump()

    def test_the_check_says_all_of_it_and_measures_nothing_new(self) -> None:
        found = bench()
        chosen, tried = [RIGHT, FORM], [RIGHT, BOTH, FORM, HEADS[0]]
        masks: list[Mask] = [(), (RIGHT,), (FORM, RIGHT), *((head,) for head in tried)]
        found.scores(TASK, masks)
        n_calls, evaluations = found.model.n_calls, found.evaluations("recall")  # type: ignore[attr-defined]
        check = check_format(found, TASK, chosen, tried)
        assert (found.model.n_calls, found.evaluations("recall")) == (n_calls, evaluations)  # type: ignore[attr-defined]
        assert check is not None
        assert check.task == "recall" and check.heads == (RIGHT, FORM)
        assert [one.head for one in check.effects] == tried
        assert [one.kind for one in check.steps] == ["capability", "format"]
        assert "2 chosen heads" in check.sentence
        assert f"Format heads: {FORM} among the chosen heads" in check.sentence


class TestVerdict:
    ROWS = (Judged(TASK, "target", None, min_drop=0.5),)

    @pytest.mark.parametrize(("head", "accepted"), [(FORM, False), (RIGHT, True)])
    def test_of_an_edit_that_lost_only_the_form(self, head: Head, accepted: bool) -> None:
        edited = Bench(FormModel(baked=[head]), Memory())
        spec = make_spec(N_LAYERS, N_HEADS)
        found = validate_edit(bench(), edited, self.ROWS, [head], spec=spec, seed=0)
        assert found.results[0].gate == "pass"
        assert found.accepted == accepted
        said = "answer format, not the capability"
        assert any(said in reason for reason in found.reasons) != accepted
        assert found.format_loss == loss_of(head)

    def test_without_a_form_is_that_of_the_limits(self) -> None:
        assert verdict([]) == verdict([], [HowLost("")]) == (True, ())
        assert verdict([], [HowLost("", loss_of(RIGHT))]) == (True, ())
        assert not verdict([], [HowLost("", loss_of(FORM))])[0]


def test_sentences_name_shares_and_later_tokens() -> None:
    assert "100 % is lost form" in form_text(loss_of(FORM))
    assert "0 % is lost form" in form_text(loss_of(RIGHT))
    assert "the rest is the answer itself" in form_text(loss_of(RIGHT))
    assert "Later tokens" not in form_text(loss_of(RIGHT))
    gained = loss_of(RIGHT).model_copy(update={"share": -0.05, "share_low": -0.07})
    assert "nothing is lost form (95% interval −7 to" in form_text(gained)
    longer = loss_of(RIGHT).model_copy(update={"after": 0.4})
    assert "Later tokens of the answer, which are not split, lose 0.40" in form_text(longer)


def test_a_journal_from_before_still_loads() -> None:
    line = (
        '{"mask":[],"task":"recall","items":"00","elapsed_s":1.0,'
        '"scores":{"exact":[1.0],"logprob":[-0.5],"n_tokens":[1]}}'
    )
    scores = Measurement.model_validate_json(line).scores
    assert scores.form is None and scores.first is None


def test_answers_of_a_capability_are_asked_with_each_item() -> None:
    items = tuple(
        item.model_copy(update={"answer": f" {n % 3}"}) for n, item in enumerate(TASK.items)
    )
    capability = replace(TASK.capability, make_items=lambda: items)
    assert capability.answers == (" 0", " 1", " 2")
    assert replace(capability, kind="text").answers == ()
    asked: list[Continuation] = []

    class Asked(FormModel):
        def likelihoods(
            self, requests: Sequence[Continuation], masks: Sequence[Mask], **how: Any
        ) -> list[list[Likelihood]]:
            asked.extend(requests)
            return super().likelihoods(requests, masks, **how)

    # A part of the items is asked with all answers, so that the form is one and the same.
    task = replace(TASK, capability=capability, items=items[:2])
    Bench(Asked(), Memory()).scores(task, [()])
    assert [one.among for one in asked] == [(" 0", " 1", " 2")] * 2
