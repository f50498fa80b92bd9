"""A knocked-out head is a zeroed head, in every architecture, batch and shortcut."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from editor import batching
from editor import model as model_module
from editor import recorded as recorded_module
from editor.capabilities.base import Continuation, Generation, Likelihood
from editor.checkpoint import apply_edits
from editor.errors import ModelError
from editor.model import MaskableModel
from editor.plan import compile_edits
from editor.recorded import Recordings, worthwhile
from editor.records import Head, Mask
from tiny import MASK, N_HEADS, N_LAYERS, open_tiny, save_random, spec_of

MASKS: list[Mask] = [
    (),
    MASK,
    (Head(3, 1),),
    (Head(0, 0), Head(3, 3)),
    (Head(1, 2),),
    tuple(Head(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS)),
]
SINGLES: list[Mask] = [(Head(layer, head),) for layer in range(N_LAYERS) for head in range(N_HEADS)]
REQUESTS = [
    Continuation("one two three", " four"),
    Continuation("a", "b"),
    Continuation("The capital of France is", " Paris, of course"),
    Continuation("x y x", " y"),
    Continuation("three words here", "!"),
]


def bake(base: Path, folder: Path, mask: Mask) -> Path:
    folder.mkdir()
    apply_edits(base, folder, compile_edits(spec_of(base), mask))
    return folder


def logits_of(model: MaskableModel, ids: torch.Tensor, masks: list[Mask]) -> torch.Tensor:
    """Logits of all positions; one row a mask, or all rows under the only one."""
    with torch.inference_mode(), model.knocked_out(masks, repeat=len(ids) // len(masks)):
        return model._model(input_ids=ids, use_cache=False).logits.clone()


def some_ids(n_rows: int, n_tokens: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, 250, (n_rows, n_tokens), generator=torch.Generator().manual_seed(seed))


def reference(model: MaskableModel, request: Continuation) -> Likelihood:
    """One prompt, no padding, plain log_softmax."""
    tokenizer, plain = model._tokenizer, model._model
    prompt = tokenizer(request.prompt).input_ids
    ids = tokenizer(request.prompt + request.answer).input_ids
    if ids[: len(prompt)] != prompt:
        ids = prompt + tokenizer(request.answer, add_special_tokens=False).input_ids
    with torch.inference_mode():
        found = plain(input_ids=torch.tensor([ids])).logits[0].float()
    places = range(len(prompt) - 1, len(ids) - 1)
    logprobs = found.log_softmax(dim=1)
    return Likelihood(
        float(sum(logprobs[at, ids[at + 1]] for at in places)),
        sum(int(found[at].argmax()) == ids[at + 1] for at in places),
        len(places),
    )


def assert_close(found: list[Likelihood], wanted: list[Likelihood], tolerance: float) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=tolerance, rel=1e-6)
        assert one[1:] == other[1:]


def forget(model: MaskableModel) -> None:
    """Drop what was recorded: it would hide what a hook of the test does to the model."""
    model._recorded = Recordings(model._blocks)
    model._means = ([], {})
    model._spares = True  # it was tried before: no test counts those passes


def assert_untouched(model: MaskableModel) -> None:
    for name, module in model._model.named_modules():
        assert "forward" not in vars(module), name
        assert not module._forward_hooks and not module._forward_pre_hooks, name


class TestMaskedIsBaked:
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_all_logits_are_equal_bit_for_bit(
        self, any_checkpoint: Path, tmp_path: Path, dtype: str
    ) -> None:
        base = any_checkpoint
        if dtype == "bfloat16":
            base = save_random(tmp_path / base.name, base.name, dtype=dtype)
        masked = open_tiny(base)
        baked = open_tiny(bake(base, tmp_path / "baked", MASK))
        assert masked._model.dtype == baked._model.dtype == getattr(torch, dtype)
        ids = some_ids(5)
        before, found, wanted = (
            logits_of(masked, ids, [()]),
            logits_of(masked, ids, [MASK]),
            logits_of(baked, ids, [()]),
        )
        assert torch.equal(found, wanted)
        assert (found - before).abs().max() > 0.05
        assert masked.likelihoods(REQUESTS, [MASK]) == baked.likelihoods(REQUESTS, [()])
        assert masked.likelihoods(REQUESTS, [MASK]) != masked.likelihoods(REQUESTS, [()])
        assert_untouched(masked)

    def test_every_head_counts_and_none_twice(self, any_model: MaskableModel) -> None:
        ids = some_ids(2)
        base = logits_of(any_model, ids, [()])
        found = [logits_of(any_model, ids, [mask]) for mask in SINGLES]
        assert all(not torch.equal(one, base) for one in found)
        assert len({one.numpy().tobytes() for one in found}) == len(SINGLES)
        twice = logits_of(any_model, ids, [(*MASK, *MASK)])
        assert torch.equal(twice, logits_of(any_model, ids, [MASK]))

    def test_what_is_knocked_out_may_be_infinite(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "base", "llama")
        edit_weights(base, "model.layers.1.self_attn.v_proj.weight", lambda w: w[:16].fill_(1e38))
        model = open_tiny(base)
        with pytest.raises(ModelError, match="finite"):
            model.likelihoods(REQUESTS, [()])
        # The damaged values are those that heads 0 and 1 share.
        (healed,) = model.likelihoods(REQUESTS, [(Head(1, 0), Head(1, 1))])
        assert all(math.isfinite(one.logprob) for one in healed)


class TestRows:
    def test_each_row_has_its_own_mask(self, any_model: MaskableModel) -> None:
        ids = some_ids(1).repeat(len(MASKS), 1)
        together = logits_of(any_model, ids, MASKS)
        for row, mask in enumerate(MASKS):
            alone = logits_of(any_model, ids, [mask] * len(MASKS))
            assert torch.equal(together[row], alone[row])

    def test_neighbouring_rows_share_a_mask(self, any_model: MaskableModel) -> None:
        ids = some_ids(3).repeat(2, 1)
        masks = [MASK, MASKS[2]]
        together = logits_of(any_model, ids, masks)
        assert torch.equal(together[:3], logits_of(any_model, ids, [MASK])[:3])
        assert torch.equal(together[3:], logits_of(any_model, ids, [MASKS[2]])[3:])

    def test_another_number_of_rows_is_refused(self, any_model: MaskableModel) -> None:
        with (
            pytest.raises(ModelError, match="batch"),
            any_model.knocked_out([MASK, ()]),
        ):
            any_model._model(input_ids=some_ids(3))
        assert_untouched(any_model)


class TestLikelihoods:
    def test_equal_a_plain_reference_whatever_the_padding(self, any_model: MaskableModel) -> None:
        (found,) = any_model.likelihoods(REQUESTS, [()])
        assert_close(found, [reference(any_model, one) for one in REQUESTS], 1e-4)
        assert len({len(one.prompt + one.answer) for one in REQUESTS}) > 3

    def test_of_masks_equal_the_reference_on_baked_files(
        self, any_checkpoint: Path, tmp_path: Path
    ) -> None:
        model = open_tiny(any_checkpoint)
        found = model.likelihoods(REQUESTS, MASKS)
        for number, mask in enumerate(MASKS[1:3], 1):
            baked = open_tiny(bake(any_checkpoint, tmp_path / str(number), mask))
            assert_close(found[number], [reference(baked, one) for one in REQUESTS], 1e-4)

    def test_a_token_that_spans_the_border_is_cut_there(self, any_model: MaskableModel) -> None:
        request = Continuation("cat", "hat")
        assert any_model._tokenizer("th").input_ids != any_model._tokenizer("t").input_ids * 2
        (found,) = any_model.likelihoods([request], [()])
        assert found[0].n_tokens == 3
        assert_close(found, [reference(any_model, request)], 1e-4)

    def test_generation_is_greedy_token_by_token(self, any_model: MaskableModel) -> None:
        tokenizer = any_model._tokenizer
        for prompt in ("one two", "zebra", "q"):
            ids = tokenizer(prompt).input_ids
            wrote: list[int] = []
            while len(wrote) < 6:
                with torch.inference_mode():
                    out = any_model._model(input_ids=torch.tensor([[*ids, *wrote]])).logits[0, -1]
                wrote.append(int(out.argmax()))
            ((text,),) = any_model.generate([prompt], [()], max_new_tokens=6)
            assert text == tokenizer.decode(wrote, skip_special_tokens=True)

    def test_an_answer_the_model_would_write_is_all_greedy(self, wired: Any) -> None:
        model = open_tiny(wired.folder)
        for capability in (wired.capabilities["naming"], wired.capabilities["pairing"]):
            items = capability.items("test")[:6]
            requests = [Continuation(item.prompt, item.answer) for item in items]
            for mask in ((), tuple(wired.target_heads), (wired.shared_head,)):
                (found,) = model.likelihoods(requests, [mask])
                (wrote,) = model.generate(
                    [one.prompt for one in requests], [mask], max_new_tokens=found[0].n_tokens
                )
                agrees = [
                    text.strip() == item.answer.strip()
                    for text, item in zip(wrote, items, strict=True)
                ]
                assert [one.n_greedy == one.n_tokens for one in found] == agrees

    def test_keep_the_order_of_masks_and_requests(self, any_model: MaskableModel) -> None:
        requests = [*REQUESTS, *reversed(REQUESTS)]  # each twice, lengths mixed
        masks = [*reversed(MASKS), *MASKS]
        found = any_model.likelihoods(requests, masks)
        assert len(found) == len(masks) and all(len(row) == len(requests) for row in found)
        for row, mask in zip(found, masks, strict=True):
            assert_close(row, row[::-1], 1e-4)  # as the requests read the same backwards
            for one, request in zip(row, requests, strict=True):
                ((alone,),) = any_model.likelihoods([request], [mask])
                assert_close([one], [alone], 1e-4)

    def test_more_than_one_batch_gives_the_same(
        self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        requests = [Continuation(f"{'long ' * (n % 5)}{n}", f" {n}") for n in range(23)]
        whole = any_model.likelihoods(requests, MASKS)
        monkeypatch.setattr(batching, "BATCH_TOKENS", 64)
        monkeypatch.setattr(batching, "MIN_ITEMS", 3)
        monkeypatch.setattr(model_module, "SCORED_A_CHUNK", 5)
        for row, small in zip(whole, any_model.likelihoods(requests, MASKS), strict=True):
            assert_close(row, small, 1e-4)

    def test_nothing_asked_is_nothing_found(self, any_model: MaskableModel) -> None:
        assert any_model.likelihoods([], MASKS) == [[] for _ in MASKS]
        assert any_model.likelihoods(REQUESTS, []) == []


def by_plain_hooks(
    model: MaskableModel, requests: list[Continuation], mask: Mask
) -> list[Likelihood]:
    """Mean-ablation written out: one prompt at a time, one hook a layer, slices set by hand."""
    texts = [model._tokenizer(one.prompt + one.answer).input_ids for one in requests]
    seen: dict[int, list[torch.Tensor]] = {at.layer: [] for at, _ in model._layers}

    def listen(layer: int) -> Any:
        return lambda _module, args: seen[layer].append(args[0][0])

    def fill(layer: int, head: int, width: int) -> Any:
        mean = torch.cat(seen[layer]).mean(dim=0)[head * width : (head + 1) * width]

        def hook(_module: Any, args: Any) -> Any:
            x = args[0].clone()
            x[:, :, head * width : (head + 1) * width] = mean
            return (x, *args[1:])

        return hook

    handles = [
        user.register_forward_pre_hook(listen(at.layer))
        for at, users in model._layers
        for user in users
    ]
    with torch.inference_mode():
        for ids in texts:
            model._model(input_ids=torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    places = {at.layer: (at, users) for at, users in model._layers}
    handles = [
        user.register_forward_pre_hook(fill(head.layer, head.head, places[head.layer][0].head_dim))
        for head in mask
        for user in places[head.layer][1]
    ]
    try:
        return [reference(model, one) for one in requests]
    finally:
        for handle in handles:
            handle.remove()


class TestMeans:
    """A head that is out may have its mean output in its place."""

    requests = [one for one in REQUESTS if one.prompt != "a"]  # no token spans a border

    @pytest.mark.parametrize("mask", [MASK, SINGLES[5], MASKS[-1]], ids=str)
    def test_is_what_plain_hooks_compute(self, any_model: MaskableModel, mask: Mask) -> None:
        forget(any_model)
        (found,) = any_model.likelihoods(self.requests, [mask], fill="mean")
        assert_close(found, by_plain_hooks(any_model, self.requests, mask), 1e-5)
        (zero,) = any_model.likelihoods(self.requests, [mask])
        assert max(abs(a.logprob - b.logprob) for a, b in zip(found, zero, strict=True)) > 1e-3
        assert_untouched(any_model)

    def test_is_so_from_recorded_layers_and_in_batches_too(
        self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forget(any_model)
        runs: list[int] = []
        (projection,) = any_model._layers[0][1]
        monkeypatch.setattr(batching, "BATCH_TOKENS", 60)
        monkeypatch.setattr(batching, "MIN_ITEMS", 2)
        wanted = [by_plain_hooks(any_model, self.requests, mask) for mask in SINGLES[4:]]
        any_model.likelihoods(self.requests, SINGLES)  # records
        handle = projection.register_forward_pre_hook(lambda *_: runs.append(1))
        found = any_model.likelihoods(self.requests, SINGLES[4:], fill="mean")
        handle.remove()
        assert len(runs) == 2, "the passes for the means, and none for a mask"
        for row, want in zip(found, wanted, strict=True):
            assert_close(row, want, 1e-5)

    def test_the_means_are_taken_once_for_one_set_of_requests(
        self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        passes: list[int] = []
        whole = MaskableModel._logits_at
        monkeypatch.setattr(
            MaskableModel, "_logits_at", lambda *args: passes.append(1) or whole(*args)
        )
        forget(any_model)
        counts = []
        for requests, mask in (
            (REQUESTS, MASK),
            (REQUESTS, SINGLES[3]),
            (REQUESTS[1:], MASK),
            (REQUESTS[1:], ()),
        ):
            passes.clear()
            any_model.likelihoods(requests, [mask], fill="mean")
            counts.append(len(passes))
        assert counts[:3] == [2, 1, 2]
        assert any_model.likelihoods(REQUESTS, [()], fill="mean") == any_model.likelihoods(
            REQUESTS, [()]
        )

    def test_a_head_that_always_says_the_same_costs_nothing(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "base", "gpt2")
        width, place = (
            24 // N_HEADS,
            2 * 24 + 24 // N_HEADS,
        )  # of head 1 among queries, keys, values

        def constant(w: torch.Tensor) -> None:
            w[..., place : place + width] = 0

        edit_weights(base, "transformer.h.1.attn.c_attn.weight", constant)
        model, mask = open_tiny(base), (Head(1, 1),)
        (plain,), (mean,) = (model.likelihoods(REQUESTS, [m], fill="mean") for m in ((), mask))
        (zero,) = model.likelihoods(REQUESTS, [mask])
        assert_close(mean, plain, 1e-5)
        assert max(abs(a.logprob - b.logprob) for a, b in zip(zero, plain, strict=True)) > 1e-3


class TestRecordedLayers:
    """Masks that begin above the bottom start from the recorded layers below."""

    def test_gives_the_numbers_of_the_plain_path(self, any_model: MaskableModel) -> None:
        masks = [*SINGLES, (Head(1, 0), Head(3, 2)), MASK]
        assert worthwhile([min(head.layer for head in mask) for mask in masks], N_LAYERS)
        for row, mask in zip(any_model.likelihoods(REQUESTS, masks), masks, strict=True):
            (plain,) = any_model.likelihoods(REQUESTS, [mask])
            assert not worthwhile([min(head.layer for head in mask)], N_LAYERS)
            assert_close(row, plain, 1e-5)
        assert_untouched(any_model)

    def test_spares_layers(self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not by chance that the above holds: blocks below a mask do not run."""
        monkeypatch.setattr(batching, "MIN_ITEMS", len(REQUESTS))  # one group, one recording
        forget(any_model)
        runs: list[int] = []
        first = any_model._blocks[0]
        (projection,) = any_model._layers[0][1]
        handle = projection.register_forward_pre_hook(lambda *_: runs.append(1))
        try:
            any_model.likelihoods(REQUESTS, [(Head(3, head),) for head in range(N_HEADS)] * 2)
        finally:
            handle.remove()
        assert len(runs) == 1, "only the recording looks into the lowest layer"
        assert "forward" not in vars(first)

    def test_a_later_mask_starts_from_what_the_base_recorded(
        self, any_model: MaskableModel
    ) -> None:
        forget(any_model)
        wanted = any_model.likelihoods(REQUESTS, [(Head(3, 1),)])
        any_model.likelihoods(REQUESTS, [()])
        runs: list[int] = []
        (projection,) = any_model._layers[0][1]
        handle = projection.register_forward_pre_hook(lambda *_: runs.append(1))
        try:
            again = any_model.likelihoods(REQUESTS, [(Head(3, 1),)])
        finally:
            handle.remove()
        assert not runs
        assert again == wanted, "the same batch shape gives the same bits"

    def test_recordings_stay_inside_their_memory(
        self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forget(any_model)
        counts = range(1, len(REQUESTS) + 1)
        for count in counts:
            any_model.likelihoods(REQUESTS[:count], [()])
        unlimited = sum(one.n_bytes for one in any_model._recorded._kept.values())
        forget(any_model)
        monkeypatch.setattr(recorded_module, "MAX_BYTES", unlimited // 2)
        for count in counts:
            any_model.likelihoods(REQUESTS[:count], [()])
        kept = any_model._recorded._kept.values()
        assert 0 < sum(one.n_bytes for one in kept) <= unlimited // 2

    @pytest.mark.parametrize("fault", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("at_call", [1, 2])
    def test_leaves_the_model_untouched_whatever_happens(
        self,
        any_model: MaskableModel,
        monkeypatch: pytest.MonkeyPatch,
        fault: type[BaseException],
        at_call: int,
    ) -> None:
        """The first call is the recording, the second the batch with layers replaced."""
        wanted = any_model.likelihoods(REQUESTS, SINGLES)
        forget(any_model)
        calls: list[int] = []
        output = any_model._model.get_output_embeddings()

        def fail(*_args: Any) -> None:
            calls.append(1)
            if len(calls) == at_call:
                raise fault("injected")

        handle = output.register_forward_hook(fail)
        try:
            with pytest.raises(fault, match="injected"):
                any_model.likelihoods(REQUESTS, SINGLES)
        finally:
            handle.remove()
        assert len(calls) == at_call
        assert_untouched(any_model)
        assert any_model.likelihoods(REQUESTS, SINGLES) == wanted


class TestGradients:
    @staticmethod
    def total(model: MaskableModel, scaled: Head, factor: float, mask: Mask) -> float:
        """Sum of all answers' log-probability with one head's output scaled."""
        at, (projection,) = next(pair for pair in model._layers if pair[0].layer == scaled.layer)
        wide = torch.ones(at.n_heads * at.head_dim)
        wide[scaled.head * at.head_dim :][: at.head_dim] = factor
        handle = projection.register_forward_pre_hook(lambda _, args: (args[0] * wide, *args[1:]))
        forget(model)
        try:
            (found,) = model.likelihoods(REQUESTS, [mask])
        finally:
            handle.remove()
            forget(model)
        return sum(one.logprob for one in found)

    @pytest.mark.parametrize("mask", [(), MASK], ids=["base", "masked"])
    def test_agree_with_finite_differences(self, any_model: MaskableModel, mask: Mask) -> None:
        found = any_model.gradients(REQUESTS, mask)
        assert [len(layer) for layer in found] == [N_HEADS] * N_LAYERS
        assert_untouched(any_model)
        for head in (Head(0, 1), Head(1, 2), Head(2, 1), Head(3, 0)):
            step = 1e-2
            high, low = (self.total(any_model, head, 1 + s, mask) for s in (step, -step))
            slope = (high - low) / (2 * step)
            assert found[head.layer][head.head] == pytest.approx(slope, abs=0.02, rel=0.02)
            if head in mask:
                assert found[head.layer][head.head] == 0.0

    def test_predict_knock_outs_of_faint_heads(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "faint", "llama")
        for layer in range(N_LAYERS):
            name = f"model.layers.{layer}.self_attn.o_proj.weight"
            edit_weights(base, name, lambda weight: weight.mul_(1e-3))
        model = open_tiny(base)
        gradient = model.gradients(REQUESTS, MASK)
        masks: list[Mask] = [MASK, *((*MASK, *single) for single in SINGLES)]
        now, *out = (sum(one.logprob for one in row) for row in model.likelihoods(REQUESTS, masks))
        flat = torch.tensor([effect for layer in gradient for effect in layer])
        losses = torch.tensor([now - one for one in out])
        assert losses.abs().max() > 0.01
        assert (flat - losses).abs().max() < 0.1 * losses.abs().max()

    def test_do_not_depend_on_order_or_batches(
        self, any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = torch.tensor(any_model.gradients(REQUESTS, MASK))
        monkeypatch.setattr(batching, "BATCH_TOKENS", 16)
        monkeypatch.setattr(batching, "MIN_ITEMS", 1)
        parts = torch.tensor(any_model.gradients(REQUESTS[::-1], MASK))
        assert torch.allclose(whole, parts, atol=1e-3)
        assert not any_model._model.get_output_embeddings().weight.requires_grad

    def test_of_nothing_are_zero(self, any_model: MaskableModel) -> None:
        assert any_model.gradients([], ()) == [[0.0] * N_HEADS] * N_LAYERS


class TestGenerate:
    PROMPTS = ("one two three", "a", "The capital of France is")

    def test_a_masked_model_writes_what_baked_files_write(
        self, any_checkpoint: Path, tmp_path: Path
    ) -> None:
        base = open_tiny(any_checkpoint)
        baked = open_tiny(bake(any_checkpoint, tmp_path / "baked", MASK))
        wrote = base.generate(self.PROMPTS, [MASK, ()], max_new_tokens=8)
        assert wrote[:1] == baked.generate(self.PROMPTS, [()], max_new_tokens=8)
        assert wrote[0] != wrote[1]
        assert_untouched(base)


def edit_weights(folder: Path, name: str, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    if change is None:
        del tensors[name]
    else:
        change(tensors[name])
    save_file(tensors, file, metadata={"format": "pt"})


class TestFaults:
    def test_a_damaged_model_is_told_with_its_tensor(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "nan", "llama")
        edit_weights(base, "model.norm.weight", lambda weight: weight.fill_(float("nan")))
        with pytest.raises(ModelError, match="not a finite number.*model.norm.weight") as caught:
            open_tiny(base).likelihoods(REQUESTS, [(Head(1, 1),), ()])
        assert caught.value.exit_code == 3

    @pytest.mark.parametrize(("dtype", "hint"), [("bfloat16", "float32"), ("float32", "cannot")])
    def test_one_that_overflows_is_told_by_its_dtype(
        self, tmp_path: Path, dtype: str, hint: str
    ) -> None:
        base = save_random(tmp_path / "large", "llama")
        edit_weights(base, "model.norm.weight", lambda weight: weight.fill_(3e38))
        with pytest.raises(ModelError, match="not a finite number") as caught:
            open_tiny(base, dtype).likelihoods(REQUESTS, [()])
        assert hint in caught.value.hint

    @pytest.mark.parametrize("empty_too", [True, False])
    def test_a_mask_that_yields_no_number_harms_no_other(
        self, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, empty_too: bool
    ) -> None:
        model, score = open_tiny(tiny_checkpoint), MaskableModel._score_batch

        def overflows(self: Any, group: Any, masks: Any, means: Any = None) -> Any:
            found = score(self, group, masks, means)
            return [
                one._replace(logprob=float("nan")) if masks[row // len(group)] else one
                for row, one in enumerate(found)
            ]

        monkeypatch.setattr(MaskableModel, "_score_batch", overflows)
        masks = [(Head(1, 1),), *([()] if empty_too else [])]
        found = model.likelihoods(REQUESTS, masks)
        assert all(math.isnan(one.logprob) for one in found[0])
        assert all(math.isfinite(one.logprob) for row in found[1:] for one in row)

    def test_an_empty_prompt_is_a_model_error(self, any_model: MaskableModel) -> None:
        with pytest.raises(ModelError, match="empty prompt"):
            any_model.likelihoods([REQUESTS[0], Continuation("", " x")], [()])

    def test_a_missing_tensor_is_a_model_error(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "missing", "llama")
        edit_weights(base, "model.layers.2.mlp.down_proj.weight", None)
        with pytest.raises(ModelError, match="lacks weights.*down_proj"):
            open_tiny(base)

    @pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
    def test_a_damaged_file_is_a_model_error(self, tmp_path: Path, name: str) -> None:
        base = save_random(tmp_path / "damaged", "llama")
        spec = spec_of(base)
        (base / name).write_text("{")
        with pytest.raises(ModelError, match="cannot load"):
            model_module.load(base, spec, dtype="auto", device="cpu")

    def test_a_spec_of_another_model_is_a_model_error(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "base", "llama")
        spec = spec_of(base)
        layers = [at.model_copy(update={"n_heads": at.n_heads + 1}) for at in spec.layers]
        with pytest.raises(ModelError, match="expected 5 heads"):
            model_module.load(
                base, spec.model_copy(update={"layers": layers}), dtype="auto", device="cpu"
            )
        gone = spec.layers[0].model_copy(update={"module": "model.layers.9.self_attn.o_proj"})
        with pytest.raises(ModelError, match="no module"):
            model_module.load(
                base, spec.model_copy(update={"layers": (gone,)}), dtype="auto", device="cpu"
            )

    def test_more_tokens_than_the_model_has_places_is_a_model_error(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "short", "gpt2")
        config = json.loads((base / "config.json").read_text())
        config["n_positions"] = 16
        (base / "config.json").write_text(json.dumps(config))
        edit_weights(
            base, "transformer.wpe.weight", lambda weight: weight.set_(weight[:16].clone())
        )
        with pytest.raises(ModelError):
            open_tiny(base).likelihoods([Continuation("w" * 20, " x")], [()])

    def test_gradients_may_be_no_numbers(self, tmp_path: Path) -> None:
        base = save_random(tmp_path / "nan", "llama")
        edit_weights(base, "model.norm.weight", lambda weight: weight.fill_(float("nan")))
        found = open_tiny(base).gradients(REQUESTS, ())
        assert not any(math.isfinite(effect) for layer in found for effect in layer)

    def test_a_mask_of_no_such_head_leaves_no_hook(self, tiny_checkpoint: Path) -> None:
        model = open_tiny(tiny_checkpoint)
        with (
            pytest.raises((IndexError, ModelError)),
            model.knocked_out([(Head(0, 0), Head(1, 99))]),
        ):
            pass
        assert_untouched(model)


def test_tokens_of_requests_are_those_of_prompts_with_answers(any_model: MaskableModel) -> None:
    # One token a byte.
    asked = [Continuation("abc", "de"), Generation("abc", 7)]
    assert any_model.n_tokens(asked) == 5 + 10
    assert any_model.n_tokens([]) == 0
