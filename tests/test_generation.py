"""What many masks write at once is what each writes alone, token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from editor.errors import ModelError
from editor.generation import Writer, before, stop_tokens
from editor.model import MaskableModel
from editor.records import Head, Mask
from test_families import Letters, loaded, logits, saved, three_heads
from tiny import MASK, open_tiny, save_random

PROMPTS = ["one two three", "a", "The capital of France is", "x y x", "a", "zebra crossing"]
MASKS: list[Mask] = [(), MASK, (Head(3, 1),), (Head(0, 0), Head(2, 1), Head(3, 3))]
N_NEW = 14


def plain(model: MaskableModel, prompt: str, mask: Mask, n_new: int = N_NEW) -> list[int]:
    """Greedy decoding written out: one prompt, whole passes, no cache, no padding."""
    ids, new = list(model._tokenizer(prompt).input_ids), []
    with model.knocked_out([mask]):
        while len(new) < n_new:
            token = int(logits(model._model, torch.tensor([ids + new]))[0, -1].argmax())
            if token in model._writer._stop:
                break
            new.append(token)
    return new


def decoded(model: MaskableModel, new: list[int]) -> str:
    return model._tokenizer.decode(new, skip_special_tokens=True)


def stopping(model: MaskableModel) -> MaskableModel:
    """The model with stop tokens that some of its texts meet early, others late or never."""
    model._writer._stop = frozenset()
    texts = [plain(model, prompt, mask) for prompt in PROMPTS for mask in MASKS]
    model._writer._stop = frozenset({texts[0][3], texts[5][7], texts[10][5]})
    return model


@pytest.fixture
def stops(any_checkpoint: Path) -> MaskableModel:
    return stopping(open_tiny(any_checkpoint))


class TestTokens:
    def test_are_those_of_one_mask_and_one_prompt_at_a_time(self, stops: MaskableModel) -> None:
        wanted = [[plain(stops, prompt, mask) for prompt in PROMPTS] for mask in MASKS]
        assert len({len(new) for row in wanted for new in row}) > 3, "they end at different steps"
        found = stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW)
        assert found == [[decoded(stops, new) for new in row] for row in wanted]
        assert stops._writer._way == "leaving"
        alone = [
            [stops.generate([p], [mask], max_new_tokens=N_NEW)[0][0] for p in PROMPTS]
            for mask in MASKS
        ]
        assert found == alone
        assert len({tuple(row) for row in found}) == len(MASKS), "every mask counts"

    def test_do_not_depend_on_order_or_batches(
        self, stops: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted = stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW)
        found = stops.generate(PROMPTS[::-1], MASKS[::-1], max_new_tokens=N_NEW)
        assert [row[::-1] for row in found[::-1]] == wanted
        monkeypatch.setattr("editor.batching.WRITTEN_TOKENS", 90)
        monkeypatch.setattr("editor.batching.MIN_ITEMS", 1)
        assert stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW) == wanted

    def test_end_before_a_string(self, stops: MaskableModel) -> None:
        whole = stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW)
        texts = [text for row in whole for text in row if text is not None]
        stop = (texts[0][5:7], texts[7][-2:], "never written")
        found = stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW, stop=stop)
        assert found == [[before(str(text), stop) for text in row] for row in whole]
        assert found != whole

    def test_nothing_is_written_behind_such_a_string(self, stops: MaskableModel) -> None:
        (text,) = stops.generate(PROMPTS[:1], [()], max_new_tokens=N_NEW)[0]
        steps: list[int] = []
        write = stops._writer.next_logits

        def counted(ids: Any, *given: Any) -> Any:
            steps.append(len(ids))
            return write(ids, *given)

        stops._writer.next_logits = counted
        stops.generate(PROMPTS[:1], [()], max_new_tokens=N_NEW, stop=(str(text)[:2],))
        assert len(steps) < N_NEW

    def test_rows_that_ended_leave_the_batch(self, stops: MaskableModel) -> None:
        lengths = [len(plain(stops, prompt, mask)) for prompt in PROMPTS for mask in MASKS]
        stops.generate(PROMPTS[:1], MASKS[:1], max_new_tokens=1)  # the trial
        sizes: list[int] = []
        output = stops._model.get_output_embeddings()
        handle = output.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
        stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW)
        handle.remove()
        # A row takes one step more than it has tokens, but for those that are full.
        assert sizes == [sum(step < length + 1 for length in lengths) for step in range(N_NEW)]
        assert sizes[-1] < sizes[0] == len(lengths)

    def test_nothing_asked_is_nothing_written(self, any_model: MaskableModel) -> None:
        assert any_model.generate([], MASKS, max_new_tokens=3) == [[] for _ in MASKS]
        assert any_model.generate(PROMPTS, [], max_new_tokens=3) == []
        assert any_model.generate(PROMPTS, [()], max_new_tokens=0) == [[""] * len(PROMPTS)]

    def test_a_fault_in_the_middle_leaves_no_hook(self, stops: MaskableModel) -> None:
        wanted = stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW)
        steps: list[int] = []

        def fail(*_: Any) -> None:
            steps.append(1)
            if len(steps) == 4:
                raise KeyboardInterrupt

        handle = stops._model.get_output_embeddings().register_forward_hook(fail)
        with pytest.raises(KeyboardInterrupt):
            stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW)
        handle.remove()
        assert not any(module._forward_pre_hooks for module in stops._model.modules())
        assert stops.generate(PROMPTS, MASKS, max_new_tokens=N_NEW) == wanted


class TestModelsWhoseRowsStay:
    """A state cannot lose a row; some models count positions otherwise when they write."""

    @pytest.mark.parametrize(
        ("model_type", "way"),
        [("llama", "leaving"), ("bamba", "staying"), ("qwen3_next", "staying")]
        + [("openai-gpt", "staying"), ("roberta", "plain")],
    )
    def test_write_the_same_tokens(self, tmp_path: Path, model_type: str, way: str) -> None:
        folder, spec = saved(tmp_path / "base", model_type, None, "float32")
        model = MaskableModel(loaded(folder), Letters(), spec)
        model._writer._stop = frozenset({5, 17, 23})
        masks: list[Mask] = [(), three_heads(spec)]
        prompts = ["abcde fghij", "q", "hello wo", "z", "xyzzy"]
        found = model.generate(prompts, masks, max_new_tokens=10)
        assert found == [
            [decoded(model, plain(model, p, mask, 10)) for p in prompts] for mask in masks
        ]
        assert model._writer._way == way
        assert found[0] != found[1]
        assert model.generate(prompts[::-1], masks, max_new_tokens=10)[1] == found[1][::-1]

    def test_a_cache_that_mixes_rows_up_is_noticed(
        self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The trial, and not the kind of the cache alone, decides."""
        model = open_tiny(tiny_checkpoint)
        wanted = model.generate(PROMPTS, MASKS, max_new_tokens=5)
        monkeypatch.setattr(
            "transformers.cache_utils.DynamicCache.batch_select_indices", lambda *_: None
        )
        other = open_tiny(tiny_checkpoint)
        assert other.generate(PROMPTS, MASKS, max_new_tokens=5) == wanted
        assert other._writer._way == "staying"

        def fails(*_: Any) -> Any:
            raise TypeError("not of this kind")

        monkeypatch.setattr(Writer, "_try_staying", fails)
        third = open_tiny(tiny_checkpoint)
        assert third.generate(PROMPTS, MASKS, max_new_tokens=5) == wanted
        assert third._writer._way == "plain"

    def test_a_trial_that_memory_ended_is_made_again(
        self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = open_tiny(tiny_checkpoint)

        def full(*_: Any) -> Any:
            raise torch.OutOfMemoryError("out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "_try_leaving", full)
            found = model.generate(PROMPTS, MASKS, max_new_tokens=5)
        assert model._writer._way is None
        assert model.generate(PROMPTS, MASKS, max_new_tokens=5) == found
        assert model._writer._way == "leaving"


class TestNoNumbers:
    """Logits that are no numbers choose no token."""

    @pytest.mark.parametrize("way", ["leaving", "staying", "plain"])
    def test_the_text_is_none_and_the_others_stay(self, tiny_checkpoint: Path, way: Any) -> None:
        model = open_tiny(tiny_checkpoint)
        model._writer._way = way
        masks: list[Mask] = [(), (Head(2, 1),), (Head(2, 0),)]
        wanted = model.generate(PROMPTS, masks, max_new_tokens=5)
        (at, (projection,)) = model._layers[2]

        def overflow(_module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
            """Nothing is a number any more without head 1."""
            out = (args[0][..., at.head_dim : 2 * at.head_dim] == 0).all(dim=-1, keepdim=True)
            out[:, :-1] = False  # padding attends to nothing, which is 0 as well
            return output.masked_fill(out, float("nan"))

        projection.register_forward_hook(overflow)
        found = model.generate(PROMPTS, masks, max_new_tokens=5)
        assert found == [wanted[0], [None] * len(PROMPTS), wanted[2]]

    @pytest.mark.parametrize("way", ["leaving", "staying", "plain"])
    def test_a_damaged_model_is_an_error(self, tiny_checkpoint: Path, way: Any) -> None:
        model = open_tiny(tiny_checkpoint)
        model._writer._way = way
        (projection,) = model._layers[2][1]
        projection.register_forward_hook(lambda _module, _args, output: output * float("inf"))
        with pytest.raises(ModelError, match="what comes next is not a finite number"):
            model.generate(PROMPTS, [()], max_new_tokens=5)


class TestSettings:
    def test_stop_tokens_are_those_of_the_checkpoint(self, tmp_path: Path) -> None:
        folder = save_random(tmp_path / "base", "llama")
        model = open_tiny(folder)
        new = plain(model, PROMPTS[0], ())
        assert stop_tokens(model._model, model._tokenizer) == {model._tokenizer.eos_token_id}
        config = folder / "generation_config.json"
        fields = json.loads(config.read_text())
        # Sampling and penalties are not greedy: they are not applied.
        fields |= {"eos_token_id": [0, new[4]], "do_sample": True, "repetition_penalty": 5.0}
        config.write_text(json.dumps(fields))
        model = open_tiny(folder)
        assert stop_tokens(model._model, model._tokenizer) == {0, new[4]}
        end = new.index(new[4])
        found = model.generate(PROMPTS[:1], [()], max_new_tokens=N_NEW)
        assert found == [[decoded(model, new[:end])]]

    def test_a_model_without_one_takes_the_tokenizers(self) -> None:
        class Nothing:
            eos_token_id = None

        assert stop_tokens(Nothing(), Letters()) == {Letters.eos_token_id}
        assert stop_tokens(Nothing(), Nothing()) == frozenset()


class TestLimits:
    def test_an_empty_prompt_is_a_model_error(self, any_model: MaskableModel) -> None:
        with pytest.raises(ModelError, match="prompt 1 is empty"):
            any_model.generate(["a", ""], [()], max_new_tokens=3)

    def test_a_text_ends_where_the_context_is_full(self, tmp_path: Path) -> None:
        folder = save_random(tmp_path / "base", "gpt2")
        model = open_tiny(folder)
        model._writer._stop = frozenset()
        model._context = 24
        long, short = "w" * 20, "w"
        found = model.generate([long, short], [(), MASK], max_new_tokens=9)
        for row, mask in zip(found, [(), MASK], strict=True):
            assert row[0] == decoded(model, plain(model, long, mask, 4))
            assert row[1] == decoded(model, plain(model, short, mask, 9))
        with pytest.raises(ModelError, match="prompt 0 has 24 tokens, the model takes 24"):
            model.generate(["w" * 24], [()], max_new_tokens=1)


@pytest.mark.model
@pytest.mark.slow
def test_the_real_model_writes_the_same_tokens_as_one_by_one() -> None:
    """64 tokens in float32, against transformers' own loop at batch size 1."""
    from editor.architecture import read_spec
    from editor.model import load
    from editor.source import resolve

    folder = resolve("smollm2-135m", offline=True).folder
    model = load(folder, read_spec(folder, source="smollm2"), dtype="float32", device="cpu")
    masks: list[Mask] = [(), (Head(3, 1), Head(12, 4), Head(20, 0)), (Head(8, 8), Head(9, 2))]
    prompts = ["The capital of France is", "Once upon a time", "1 + 1 ="]
    found = model.generate(prompts, masks, max_new_tokens=64)
    assert model._writer._way == "leaving"
    for row, mask in zip(found, masks, strict=True):
        for text, prompt in zip(row, prompts, strict=True):
            ids = torch.tensor([model._tokenizer(prompt).input_ids])
            with model.knocked_out([mask]):
                out = model._model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, do_sample=False
                )
            new = out[0, ids.shape[1] :].tolist()
            assert text == model._tokenizer.decode(new, skip_special_tokens=True)
    assert len({tuple(row) for row in found}) == len(masks)
