"""Where answers part, and how likely a model finds the beginning of any of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from editor.answer_form import Begun, Form, begun, parting
from editor.capabilities.base import Continuation
from editor.model import MaskableModel
from editor.records import Mask
from tiny import MASK, open_tiny, save_random

MASKS: list[Mask] = [(), MASK, MASK[:1]]
AMONG = (" 7\n", " 12\n", " 13\n", " x\n", " 7\n")
PROMPTS = ("3 + 4 =", "long prompt: 3 + 9 =", "4 + 9 =", "=")
REQUESTS = [Continuation(p, a, AMONG) for p, a in zip(PROMPTS, AMONG, strict=False)]


class TestParting:
    @pytest.mark.parametrize(
        ("answers", "form"),
        [
            ([[1], [2], [1]], Form(0, (1, 2))),
            ([[5, 9], [5, 3, 4], [5, 9, 9]], Form(1, (3, 9))),  # all begin with 5
            ([[5, 6, 9], [5, 6, 3]], Form(2, (3, 9))),
            ([[5, 6, 9], [5, 6, 3], [4, 6, 3]], Form(0, (4, 5))),
            ([[1], [1, 2]], None),  # one is the beginning of the other
            ([[1, 2], [1, 2]], None),
            ([[1]], None),
            ([[], [1]], None),
            ([], None),
        ],
    )
    def test_is_where_the_answers_first_differ(
        self, answers: list[list[int]], form: Form | None
    ) -> None:
        assert parting(answers) == form

    def test_fits_what_goes_on_with_one_of_the_tokens(self) -> None:
        form = Form(1, (3, 9))
        assert form.fits([5, 9]) and form.fits([5, 3, 1])
        assert not form.fits([5, 4]) and not form.fits([5])


def test_rows_of_several_classes_keep_their_places() -> None:
    logits = torch.randn((6, 11), generator=torch.Generator().manual_seed(3))
    logprobs, norm = logits.log_softmax(1).double(), logits.logsumexp(1)
    target = torch.tensor([2, 4, 1, 0, 5, 7])
    right = logprobs[torch.arange(6), target]
    forms = [Form(1, (4, 6)), None, Form(0, (3, 5, 7)), Form(0, (7, 8))]
    found = begun(logits, norm, right, [0, 2, 4, 5], forms)
    assert found[1] is None
    wanted = {
        0: Begun(float(right[0] + logprobs[1, [4, 6]].logsumexp(0)), float(right[0] + right[1])),
        2: Begun(float(logprobs[4, [3, 5, 7]].logsumexp(0)), float(right[4])),
        3: Begun(float(logprobs[5, [7, 8]].logsumexp(0)), float(right[5])),
    }
    for row, one in wanted.items():
        assert found[row] == pytest.approx(one, abs=1e-6)


def test_a_row_that_is_no_number_spoils_no_other() -> None:
    logits = torch.randn((4, 11), generator=torch.Generator().manual_seed(4))
    target, forms = torch.tensor([2, 4, 1, 5]), [Form(0, (4, 6)), Form(1, (3, 5)), Form(0, (5, 7))]

    def found() -> list[Begun | None]:
        logprobs, norm = logits.log_softmax(1).double(), logits.logsumexp(1)
        right = logprobs[torch.arange(4), target]
        return begun(logits, norm, right, [0, 1, 3], forms)

    whole = found()
    logits[0] = float("nan")
    first, *others = found()
    assert first is not None and math.isnan(first.form)
    assert others == whole[1:]


def direct(model: MaskableModel, request: Continuation, mask: Mask) -> tuple[float, float]:
    """Form and right beginning of an answer after a space, from all logits of one whole pass."""
    tokenizer = model._tokenizer
    prompt = tokenizer(request.prompt).input_ids
    (space,) = tokenizer(" ").input_ids
    ids = torch.tensor([[*prompt, space]])
    with torch.inference_mode(), model.knocked_out([mask]):
        logprobs = model._model(input_ids=ids).logits[0].double().log_softmax(1)
    seconds = {tokenizer(answer).input_ids[1] for answer in request.among}
    assert len(seconds) == 3, "7, 1 and x; 12 and 13 go on alike"
    spaced = float(logprobs[len(prompt) - 1, space])
    form = spaced + float(logprobs[len(prompt), sorted(seconds)].logsumexp(0))
    right = tokenizer(request.answer).input_ids[1]
    return form, spaced + float(logprobs[len(prompt), right])


class TestLikelihoods:
    def test_are_those_of_all_logits(self, tiny_checkpoint: Path) -> None:
        model = open_tiny(tiny_checkpoint, "float32")
        for mask, row in zip(MASKS, model.likelihoods(REQUESTS, MASKS), strict=True):
            for request, found in zip(REQUESTS, row, strict=True):
                form, first = direct(model, request, mask)
                assert found.form == pytest.approx(form, abs=1e-5)
                assert found.first == pytest.approx(first, abs=1e-5)
                assert found.form is not None and found.first is not None
                assert found.logprob < found.first < found.form <= 0

    def test_the_rest_of_a_likelihood_is_as_without(self, tiny_checkpoint: Path) -> None:
        model = open_tiny(tiny_checkpoint)
        alone = [request._replace(among=()) for request in REQUESTS]
        with_form, without = (model.likelihoods(some, MASKS) for some in (REQUESTS, alone))
        assert [[one[:3] for one in row] for row in with_form] == [
            [one[:3] for one in row] for row in without
        ]
        assert all(one.form is None and one.first is None for row in without for one in row)

    def test_of_all_tokens_is_certain(self, tiny_checkpoint: Path) -> None:
        model = open_tiny(tiny_checkpoint, "float32")
        tokens = [t for t in model._tokenizer.get_vocab() if len(t) == 1 and t.isascii()]
        ((found,),) = model.likelihoods([Continuation("x", "a", tuple(tokens))], [()])
        ((less,),) = model.likelihoods([Continuation("x", "a", tuple(tokens[:9] + ["a"]))], [()])
        assert found.form is not None and less.form is not None
        assert less.form < found.form <= 0

    def test_of_bfloat16_is_a_probability(self, tmp_path: Path) -> None:
        model = open_tiny(save_random(tmp_path / "half", "llama", dtype="bfloat16"))
        for row in model.likelihoods(REQUESTS, MASKS):
            for one in row:
                assert one.form is not None and one.first is not None
                assert math.isfinite(one.form) and one.first <= one.form + 1e-6 <= 1e-6

    def test_a_class_is_tokenized_once(
        self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, asked = open_tiny(tiny_checkpoint), []
        plain = model._answer_ids

        def counted(prompt: str, prompt_ids: list[int], answer: str) -> list[int]:
            asked.append(answer)
            return plain(prompt, prompt_ids, answer)

        monkeypatch.setattr(model, "_answer_ids", counted)
        for _ in range(2):
            model.likelihoods(REQUESTS, [()])
        assert len(asked) == 2 * len(REQUESTS) + len(AMONG)

    def test_an_answer_that_reads_otherwise_after_its_prompt_has_its_own_class(
        self, tiny_checkpoint: Path
    ) -> None:
        model = open_tiny(tiny_checkpoint, "float32")
        # `th` is one token: after a prompt that ends with t, h stands alone.
        usual, odd = Continuation("at", "um", ("um", "h")), Continuation("at", "thy", ("thy", "a"))
        (found,) = model.likelihoods([usual, odd], [()])
        for one in found:
            assert one.form is not None and one.first is not None and one.first < one.form

    def test_answers_that_do_not_part_have_no_form(self, tiny_checkpoint: Path) -> None:
        model = open_tiny(tiny_checkpoint)
        for among in ((" x",), (" x", " xy"), (" x", " x")):
            ((found,),) = model.likelihoods([Continuation("a", " x", among)], [()])
            assert found.form is None and found.first is None
