"""What texts begin with alike is read once, and nobody's numbers change by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from editor import batching
from editor.capabilities.base import Continuation
from editor.model import MaskableModel
from editor.prefix_tree import TREE_TOKENS, Tree, reads_trees, tree_batch, trees, trial_tree
from editor.records import Head
from editor.scored_rows import Encoded, Row
from editor.trials import agree, works
from test_families import Letters, loaded, saved
from test_model import MASKS, SINGLES, assert_close, assert_untouched, forget, reference
from tiny import MASK, open_tiny, save_random

SHOTS = "one = 1, two = 2, three = 3. "
REQUESTS = [
    Continuation(SHOTS + question, answer)
    for question in ("four =", "five", "six = 6, seven =", "a")
    for answer in (" 4", " 5", " seven", "", " 7")
    if answer
]
WIDE = [Continuation(f"{SHOTS * 2}{n} and {n + 1} =", f" {2 * n + 1}") for n in range(40)]
TEXTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9).flatmap(
        lambda ids: st.tuples(st.just(ids), st.integers(0, len(ids) - 1))
    ),
    min_size=1,
    max_size=30,
)


def texts_of(tree: Tree) -> list[list[int]]:
    return [[tree.ids[node] for node in tree.path(n)] for n in range(len(tree.asked))]


class TestTrees:
    @given(TEXTS, st.integers(1, 40))
    def test_hold_every_text_once(self, texts: list[tuple[list[int], int]], at_most: int) -> None:
        encoded = [Encoded(n, ids, n_answer) for n, (ids, n_answer) in enumerate(texts)]
        found = trees(encoded, at_most)
        assert sorted(item.place for tree in found for item in tree.asked) == list(
            range(len(texts))
        )
        for tree in found:
            assert texts_of(tree) == [item.read for item in tree.asked]
            assert tree.width <= at_most or len({tuple(item.read) for item in tree.asked}) == 1
            assert tree.depth == max(map(len, texts_of(tree)))
            # No beginning is there twice.
            beginnings = {tuple(t[: n + 1]) for t in texts_of(tree) for n in range(len(t))}
            assert tree.width == len(beginnings)

    @given(TEXTS)
    def test_a_token_sees_those_before_it_in_its_text(
        self, texts: list[tuple[list[int], int]]
    ) -> None:
        for tree in trees([Encoded(n, *text) for n, text in enumerate(texts)], 20):
            sees, positions = tree.sees(), tree.positions()
            seen = {node for n in range(len(tree.asked)) for node in tree.path(n)}
            assert seen == set(range(tree.width))
            for number in range(len(tree.asked)):
                path = tree.path(number)
                assert [positions[node] for node in path] == list(range(len(path)))
                for place, node in enumerate(path):
                    assert sees[node].nonzero().flatten().tolist() == sorted(path[: place + 1])

    def test_a_batch_scores_where_answers_are_predicted(self) -> None:
        items = [Encoded(0, [7, 8, 20], 1), Encoded(1, [7, 8, 21, 22], 2), Encoded(2, [7, 9, 9], 2)]
        (tree,) = trees(items, 100)
        assert tree.ids == [7, 8, 21, 9] and tree.parents == [-1, 0, 1, 0]
        batch = tree_batch(tree, 2, torch.device("cpu"), torch.float32)
        assert batch.ids.tolist() == [tree.ids] * 2
        places = list(zip(batch.rows.tolist(), batch.positions.tolist(), strict=True))
        assert places == [(row, node) for row in (0, 1) for node in (1, 2, 0, 3)]
        assert batch.targets.tolist() == [20, 21, 22, 9, 9] * 2
        assert batch.at.tolist() == [0, 0, 1, 2, 3, 4, 4, 5, 6, 7]
        assert batch.counts == [1, 2, 2] * 2
        assert batch.inputs["position_ids"].tolist() == [[0, 1, 2, 1]] * 2
        mask = batch.inputs["attention_mask"]
        assert mask.shape == (2, 1, 4, 4)
        assert (mask[0, 0] == 0).tolist() == tree.sees().tolist()

    @pytest.mark.parametrize(("width", "depth"), [(1, 1), (64, 3), (100, 40), (30, 90)])
    def test_a_trial_is_as_large_as_what_it_stands_for(self, width: int, depth: int) -> None:
        tree = trial_tree([3, 1, 4], width, depth)
        assert tree.width >= width and tree.depth >= depth
        assert texts_of(tree) == [item.read for item in tree.asked]
        assert tree.path(2)[-1] == tree.width - 1, "the last token looks back to the first"
        assert len({*tree.path(0)[2:], *tree.path(1)[2:]} & set(tree.path(2)[2:])) == 0


class TestNumbers:
    """Against one prompt at a time, without padding."""

    @pytest.mark.parametrize("requests", [REQUESTS, WIDE], ids=["choices", "wide"])
    def test_are_those_of_each_text_alone(
        self, any_model: MaskableModel, requests: list[Continuation]
    ) -> None:
        any_model.likelihoods(requests, [()])  # the trial
        forget(any_model)
        read = tokens_read(any_model, lambda: any_model.likelihoods(requests, [MASK]))
        longest = len(any_model._tokenizer(SHOTS).input_ids)
        assert read < len(requests) * longest, "what is shared is not read for every request"
        for masks in (MASKS, SINGLES):
            for mask, row in zip(masks, any_model.likelihoods(requests, masks), strict=True):
                with any_model.knocked_out([mask]):
                    wanted = [reference(any_model, one) for one in requests]
                assert_close(row, wanted, 1e-4)
        assert any_model._reads_trees
        assert_untouched(any_model)

    def test_with_means_too(self, any_model: MaskableModel) -> None:
        found = any_model.likelihoods(REQUESTS, [MASK], fill="mean")
        any_model._reads_trees = False
        assert_close(found[0], any_model.likelihoods(REQUESTS, [MASK], fill="mean")[0], 1e-4)
        any_model._reads_trees = True

    def test_layers_are_spared_as_well(self, any_model: MaskableModel) -> None:
        forget(any_model)
        any_model.likelihoods(REQUESTS, [()])
        ran: list[int] = []
        (projection,) = any_model._layers[0][1]
        handle = projection.register_forward_pre_hook(lambda *_: ran.append(1))
        any_model.likelihoods(REQUESTS, [(Head(3, 1),)])
        handle.remove()
        assert not ran

    def test_a_tree_that_does_not_fit_comes_apart(
        self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = any_model.likelihoods(REQUESTS, MASKS)
        output, widths = any_model._model.get_output_embeddings(), list[int]()
        inputs = any_model._model.get_input_embeddings()

        def full(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
            widths.append(args[0].shape[-1])
            if args[0].numel() > 64:
                raise torch.OutOfMemoryError("CUDA out of memory")

        forget(any_model)
        handle = inputs.register_forward_pre_hook(full)
        try:
            found = any_model.likelihoods(REQUESTS, MASKS)
        finally:
            handle.remove()
            batching.forget()
        assert max(widths) > 64 and output is not None
        for row, one in zip(found, wanted, strict=True):
            assert_close(row, one, 1e-4)


class TestTrial:
    """A model that finds something else in a tree reads rows."""

    @pytest.mark.parametrize(
        ("model_type", "reads"),
        [("llama", True), ("mixtral", True), ("gemma2", True), ("xglm", True)]
        + [("bloom", False), ("bamba", False), ("lfm2", False), ("qwen3_next", False)]
        + [("xlm", False), ("openai-gpt", False)],
    )
    def test_tells_who_reads_trees(self, tmp_path: Path, model_type: str, reads: bool) -> None:
        folder, spec = saved(tmp_path / "base", model_type, None, "float32")
        model = MaskableModel(loaded(folder), Letters(), spec)
        found = model.likelihoods(REQUESTS, [(), ()])
        assert model._reads_trees == reads
        model._reads_trees = False
        for one, other in zip(found, model.likelihoods(REQUESTS, [(), ()]), strict=True):
            assert_close(one, other, 1e-4)

    def test_is_made_again_for_deeper_trees(self, tmp_path: Path) -> None:
        """A window of attention cuts long texts, and a tree's mask knows of none."""
        folder, spec = saved(tmp_path / "base", "mistral", {"sliding_window": 40}, "float32")
        model = MaskableModel(loaded(folder), Letters(), spec)
        short = [Continuation("abcdefghi" * 2 + end, end) for end in "jklmnopq"]
        long = [Continuation("abcdefghi" * 5 + end, end) for end in "jklmnopq"]
        model.likelihoods(short, [()])
        assert model._reads_trees
        (found,) = model.likelihoods(long, [()])
        assert not model._reads_trees
        alone = [model.likelihoods([one], [()])[0][0] for one in long]
        assert_close(found, alone, 1e-4)

    def test_is_made_once_for_what_is_no_larger(self, tmp_path: Path) -> None:
        model = open_tiny(save_random(tmp_path / "base", "llama"))
        first = tokens_read(model, lambda: model.likelihoods(WIDE, [()]))
        forget(model)
        assert tokens_read(model, lambda: model.likelihoods(WIDE, [()])) < first
        assert model._tried[0] <= TREE_TOKENS

    def test_fails_where_the_model_cannot_be_asked_so(self) -> None:
        def fails(_: Tree | Row) -> torch.Tensor:
            raise AssertionError("a mask of another shape")

        assert works(lambda: reads_trees(trial_tree([1, 2], 8, 4), fails, torch.float32)) is False

    def test_is_made_again_where_memory_ended(
        self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = open_tiny(tiny_checkpoint)
        with monkeypatch.context() as patch:
            patch.setattr(MaskableModel, "_logits_of_two", out_of_memory)
            (found,) = model.likelihoods(REQUESTS, [()])
        assert model._reads_trees and model._tried == (0, 0)
        (again,) = model.likelihoods(REQUESTS, [()])
        assert model._reads_trees and model._tried > (0, 0)
        assert_close(found, again, 1e-4)


def out_of_memory(*_: Any) -> Any:
    raise torch.OutOfMemoryError("out of memory")


class TestAgree:
    WANTED = torch.tensor([[0.0, 1.0, 2.0, 5.0], [3.0, 1.0, 0.0, 0.5]])

    @pytest.mark.parametrize(
        ("dtype", "off", "noise", "agrees"),
        [
            (torch.float32, 0.0, 0.0, True),
            (torch.float32, 1e-4, 0.0, True),
            (torch.float32, 0.1, 0.0, False),
            (torch.bfloat16, 0.03, 0.0, True),
            (torch.bfloat16, 0.3, 0.0, False),
            (torch.bfloat16, 0.3, 0.2, True),
            (torch.bfloat16, 0.3, 0.1, False),
        ],
    )
    def test_allows_what_rounding_does(
        self, dtype: torch.dtype, off: float, noise: float, agrees: bool
    ) -> None:
        found = self.WANTED.clone()
        found[1] += off * self.WANTED[1].std()
        again = self.WANTED + noise * self.WANTED.std(dim=1, keepdim=True)
        assert agree(found, self.WANTED, again, dtype) == agrees


def tokens_read(model: MaskableModel, call: Any) -> int:
    """Tokens that go into the model during a call, of all rows."""
    read: list[int] = []
    inputs = model._model.get_input_embeddings()
    handle = inputs.register_forward_pre_hook(lambda _, args: read.append(args[0].numel()))
    try:
        call()
    finally:
        handle.remove()
    return sum(read)
