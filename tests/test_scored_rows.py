"""No token is read that nothing asks for, and none twice that one row can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from editor.capabilities.base import Continuation
from editor.errors import UsageError
from editor.model import MaskableModel, load
from editor.scored_rows import Encoded, Row, batch_of, shared_rows, whole_rows
from test_model import MASKS, SINGLES, assert_close, assert_untouched, forget, reference
from tiny import MASK, spec_of

CHOICES = [
    Continuation(prompt, answer)
    for prompt in ("one two =", "a", "The capital of France is")
    for answer in (" ", "x", "b", " Paris", " Lyon", " P")
]


class TestRows:
    def test_choices_of_one_token_are_one_row(self) -> None:
        choices = [Encoded(n, [7, 8, 9, 20 + n], 1) for n in range(5)]
        (row,) = shared_rows(choices)
        assert row.ids == [7, 8, 9]
        assert [item.place for item in row.asked] == list(range(5))
        batch = batch_of([row], 2, torch.device("cpu"))
        assert batch.ids.tolist() == [[7, 8, 9]] * 2
        assert list(zip(batch.rows.tolist(), batch.positions.tolist(), strict=True)) == [
            (0, 2),
            (1, 2),
        ], "the logits are computed once a copy"
        assert batch.at.tolist() == [0] * 5 + [1] * 5
        assert batch.targets.tolist() == list(range(20, 25)) * 2
        assert batch.counts == [1] * 10

    def test_what_begins_another_is_read_there(self) -> None:
        one, longer = Encoded(0, [7, 8, 20], 1), Encoded(1, [7, 8, 21, 22, 23], 3)
        other = Encoded(2, [7, 9, 9], 2)
        rows = shared_rows([longer, other, one])
        assert rows == [Row([7, 9], (other,)), Row([7, 8, 21, 22], (one, longer))]
        batch = batch_of(rows, 1, torch.device("cpu"))
        assert batch.ids.tolist() == [[7, 9, 0, 0], [7, 8, 21, 22]]
        assert batch.counts == [2, 1, 3]
        assert batch.at.tolist() == [0, 1, 2, 2, 3, 4]
        assert batch.targets.tolist() == [9, 9, 20, 21, 22, 23]

    def test_a_mean_is_over_whole_texts(self) -> None:
        items = [Encoded(0, [1, 2, 3], 1), Encoded(1, [1, 2], 1), Encoded(2, [1, 2], 1)]
        assert [row.ids for row in whole_rows(items)] == [[1, 2], [1, 2], [1, 2, 3]]

    def test_an_empty_answer_has_no_tokens(self) -> None:
        (row,) = shared_rows([Encoded(0, [4], 0)])
        assert row.ids == [4]
        assert batch_of([row], 1, torch.device("cpu")).counts == [0]


class TestChoices:
    def test_of_one_context_are_scored_as_if_alone(self, any_model: MaskableModel) -> None:
        forget(any_model)
        for masks in (MASKS, SINGLES):
            found = any_model.likelihoods(CHOICES, masks)
            for row, mask in zip(found, masks, strict=True):
                for one, request in zip(row, CHOICES, strict=True):
                    ((alone,),) = any_model.likelihoods([request], [mask])
                    assert_close([one], [alone], 1e-4)
        (base,) = any_model.likelihoods(CHOICES, [()])
        assert_close(base, [reference(any_model, one) for one in CHOICES], 1e-4)

    def test_add_up_in_the_gradient(self, any_model: MaskableModel) -> None:
        found = torch.tensor(any_model.gradients(CHOICES, MASK))
        alone = sum(torch.tensor(any_model.gradients([one], MASK)) for one in CHOICES)
        assert torch.allclose(found, torch.as_tensor(alone), atol=1e-3)

    def test_their_context_is_read_once(self, any_model: MaskableModel) -> None:
        forget(any_model)
        shapes: list[Any] = []
        inputs = any_model._model.get_input_embeddings()
        handle = inputs.register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
        single = [Continuation("one two =", letter) for letter in "abcdefgh"]
        found = any_model.likelihoods(single, [MASK])
        handle.remove()
        width = len(any_model._tokenizer("one two =").input_ids)
        assert shapes == [(1, width)]
        assert len({one.logprob for one in found[0]}) == 8


class TestSpreadModels:
    """accelerate's hooks, which move tensors between devices, change nothing here."""

    def test_auto_gives_the_numbers_of_the_cpu(self, any_checkpoint: Path) -> None:
        check_same(any_checkpoint, load_on(any_checkpoint, "auto"))

    @pytest.mark.parametrize("each", [False, True], ids=["whole", "by layer"])
    def test_with_hooks_on_every_part_too(self, any_checkpoint: Path, each: bool) -> None:
        from accelerate import dispatch_model

        spread = load_on(any_checkpoint, "cpu")
        raw: Any = spread._model
        blocks = [name for name, one in raw.named_modules() if one in spread._blocks]
        parts = {name: "cpu" for name, one in raw.named_modules() if not list(one.children())}
        parts = {n: d for n, d in parts.items() if not n.startswith(tuple(f"{b}." for b in blocks))}
        places = {**parts, **dict.fromkeys(blocks, "cpu")} if each else {"": "cpu"}
        dispatch_model(raw, places, main_device="cpu", force_hooks=True)
        assert any("forward" in vars(one) for one in raw.modules()), "there are hooks"
        again = MaskableModel(raw, spread._tokenizer, spec_of(any_checkpoint))
        check_same(any_checkpoint, again)
        if each:
            assert all("forward" in vars(block) for block in again._blocks), "they are still there"

    def test_needs_accelerate(self, any_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("editor.model.find_spec", lambda name: None)
        with pytest.raises(UsageError, match="accelerate"):
            load_on(any_checkpoint, "auto")


def load_on(folder: Path, device: str) -> MaskableModel:
    return load(folder, spec_of(folder), dtype="auto", device=device)


def check_same(folder: Path, spread: MaskableModel) -> None:
    plain = load_on(folder, "cpu")
    for masks, fill in ((SINGLES, "zero"), (MASKS, "zero"), (MASKS, "mean")):
        found, wanted = (one.likelihoods(CHOICES, masks, fill=fill) for one in (spread, plain))
        assert found == wanted
    assert spread.gradients(CHOICES, MASK) == plain.gradients(CHOICES, MASK)
    texts = [
        one.generate(["one", "three words"], MASKS, max_new_tokens=4) for one in (spread, plain)
    ]
    assert texts[0] == texts[1]
    assert_untouched(plain)
