"""Batches fit the memory, are halved when it ends, and change no result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from transformers import LlamaConfig

from editor import batching
from editor.batching import (
    BATCH_TOKENS,
    GPU_TOKENS,
    Batches,
    Limit,
    Shape,
    bytes_a_token,
    is_out_of_memory,
    shape_of,
)
from editor.errors import ModelError
from editor.model import MaskableModel
from test_generation import PROMPTS
from test_model import MASKS, REQUESTS, SINGLES, assert_close, assert_untouched, forget

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
SHAPE = Shape(32, 4096, 14336, 32, 1024, 128256, 2)
FAULTS: list[BaseException] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


class Wide(NamedTuple):
    width: int


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    batching.forget()
    yield
    batching.forget()


def batches(release: Callable[[], bool] = lambda: False) -> Batches:
    return Batches(SHAPE, [CPU], 1000, release)


class TestErrors:
    @pytest.mark.parametrize("error", FAULTS, ids=lambda e: type(e).__name__)
    def test_that_say_memory_ran_out(self, error: BaseException) -> None:
        assert is_out_of_memory(error)

    @pytest.mark.parametrize(
        "error", [RuntimeError("shapes differ"), ValueError("out of memory"), KeyboardInterrupt()]
    )
    def test_others(self, error: BaseException) -> None:
        assert not is_out_of_memory(error)


class TestSize:
    def test_of_a_model(self) -> None:
        config = LlamaConfig(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
        )
        assert shape_of(config, 2) == SHAPE

    def test_a_gradient_keeps_all_layers_and_a_long_row_more_pairs(self) -> None:
        score, gradient = (bytes_a_token(SHAPE, op, 100) for op in ("score", "gradient"))
        assert gradient > 10 * score
        assert bytes_a_token(SHAPE, "score", 4000) > 1.5 * score
        # Keys and values of 8 groups of 128 elements, in 32 layers, 2 bytes each: 128 KiB a token.
        more = bytes_a_token(SHAPE, "generate", 100) - (score - 2 * SHAPE.vocabulary)
        assert more == 128 << 10

    def test_on_the_cpu_is_what_is_fastest(self) -> None:
        assert batches().limit("score", 20) == Limit(BATCH_TOKENS, hard=False)

    def test_on_a_gpu_is_what_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Free memory is faked; nothing is put on a GPU."""
        gb = 1 << 30
        for free, kept in ((80 * gb, 0), (2 * gb, 0), (gb, gb)):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, n=free: (n, 200 * gb))
            monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _, n=kept: n + 5)
            monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 5)
            on_gpu = Batches(SHAPE, [CPU, GPU], 1000)
            for op in ("score", "generate", "gradient"):
                limit = on_gpu.limit(op, 100)
                assert limit.hard and 1 <= limit.tokens <= GPU_TOKENS
                assert limit.tokens * bytes_a_token(SHAPE, op, 100) <= 0.6 * (free + kept)
        assert on_gpu.limit("score", 100).tokens > 1000 > on_gpu.limit("gradient", 100).tokens


class TestEach:
    def test_covers_all_rows_once_in_order(self) -> None:
        rows = [Wide(n // 3 + 1) for n in range(100)]
        seen: list[Wide] = []
        batches().each("score", rows, lambda group, step: seen.extend(group), copies=7)
        assert seen == rows

    def test_more_copies_fit_where_rows_are_few(self) -> None:
        steps: list[tuple[int, int]] = []
        for n in (1, 16, 64):
            batches().each(
                "score", [Wide(8)] * n, lambda group, step: steps.append((len(group), step))
            )
        assert steps == [(1, 128), (16, 8), (64, 2)]

    def test_where_masks_fill_a_batch_few_rows_share_a_width(self) -> None:
        """Padding costs as much as tokens: four rows are enough to share it."""
        rows = [Wide(width) for width in (10, 10, 10, 10, 10, 20, 30, 40)]
        groups: list[list[int]] = []
        batches().each(
            "score", rows, lambda group, _: groups.append([r.width for r in group]), copies=30
        )
        assert groups == [[10] * 4, [10, 20, 30, 40]]

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda e: type(e).__name__)
    def test_halves_until_it_fits_and_remembers(self, fault: BaseException) -> None:
        tried: list[int] = []
        done: list[Wide] = []

        def work(group: Sequence[Wide], step: int) -> None:
            tokens = len(group) * group[-1].width * min(step, 50)
            tried.append(tokens)
            if tokens > 100:
                raise fault
            done.extend(group)

        rows = [Wide(10)] * 40
        batches().each("score", rows, work, copies=50)
        assert done == rows
        failed = [tokens for tokens in tried if tokens > 100]
        assert len(failed) <= 4 and failed == sorted(failed, reverse=True)
        tried.clear()
        batches().each("score", rows, work, copies=50)
        assert max(tried) <= 100, "another model of the process knows it too"
        assert batches().limit("gradient", 10).tokens == BATCH_TOKENS

    def test_a_single_row_that_does_not_fit_is_a_model_error(self) -> None:
        kept = [True]

        def release() -> bool:
            return kept.pop() if kept else False

        calls: list[int] = []

        def work(group: Sequence[Wide], step: int) -> None:
            calls.append(len(group) * min(step, 1))
            raise MemoryError

        with pytest.raises(ModelError, match="single row of 70 tokens.*") as caught:
            batches(release).each("gradient", [Wide(70)] * 4, work)
        assert calls == [4, 2, 1], "what was kept is dropped on the way"
        assert "--device auto" in (caught.value.hint or "")

    def test_other_errors_pass(self) -> None:
        def work(*_: Any) -> None:
            raise RuntimeError("shapes differ")

        with pytest.raises(RuntimeError, match="shapes differ"):
            batches().each("score", [Wide(3)], work)


TOLERANCE = 1e-4
"""Nats by which a log-probability in float32 may depend on what else is in its batch."""


@pytest.mark.parametrize("tokens", [1, 30, 200, 5000])
@pytest.mark.parametrize("least", [1, 4])
def test_numbers_depend_neither_on_batches_nor_on_order(
    any_model: MaskableModel, monkeypatch: pytest.MonkeyPatch, tokens: int, least: int
) -> None:
    masks = [*MASKS, *SINGLES[::3]]
    forget(any_model)
    wanted = any_model.likelihoods(REQUESTS, masks)
    gradients = torch.tensor(any_model.gradients(REQUESTS, MASKS[1]))
    monkeypatch.setattr(batching, "BATCH_TOKENS", tokens)
    monkeypatch.setattr(batching, "MIN_ITEMS", least)
    forget(any_model)
    turned = any_model.likelihoods(REQUESTS[::-1], masks[::-1])
    for row, want in zip(turned[::-1], wanted, strict=True):
        assert_close(row[::-1], want, TOLERANCE)
    again = torch.tensor(any_model.gradients(REQUESTS[::-1], MASKS[1]))
    assert torch.allclose(again, gradients, atol=10 * TOLERANCE)
    assert any_model.likelihoods(REQUESTS[::-1], masks[::-1]) == turned, "the same bits again"


def injected(model: MaskableModel, at_most: int, fault: BaseException) -> Any:
    """Raise late in every pass of more than so many tokens; returns the hook's handle."""

    def fail(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
        if args[0].shape[0] * args[0].shape[1] > at_most:
            raise fault

    return model._layers[-1][1][0].register_forward_pre_hook(fail)


@pytest.mark.parametrize("fault", FAULTS[:2], ids=["gpu", "cpu"])
class TestModel:
    """Results with memory that ends in every large pass equal the undisturbed ones."""

    def test_scores(self, any_model: MaskableModel, fault: BaseException) -> None:
        for masks, fill in ((MASKS, "zero"), (SINGLES, "zero"), (MASKS, "mean")):
            forget(any_model)
            wanted = any_model.likelihoods(REQUESTS, masks, fill=fill)
            forget(any_model)
            batching.forget()
            handle = injected(any_model, 100, fault)
            try:
                found = any_model.likelihoods(REQUESTS, masks, fill=fill)
            finally:
                handle.remove()
            for one, other in zip(found, wanted, strict=True):
                assert_close(one, other, 1e-4)
            assert any_model._batches.limit("score", 9).hard
        assert_untouched(any_model)

    def test_gradients(self, any_model: MaskableModel, fault: BaseException) -> None:
        wanted = any_model.gradients(REQUESTS, MASKS[1])
        handle = injected(any_model, 50, fault)
        try:
            found = any_model.gradients(REQUESTS, MASKS[1])
        finally:
            handle.remove()
        assert torch.allclose(torch.tensor(found), torch.tensor(wanted), atol=1e-3)
        assert any_model._batches.limit("gradient", 9).hard

    def test_texts(self, any_model: MaskableModel, fault: BaseException) -> None:
        wanted = any_model.generate(PROMPTS, MASKS, max_new_tokens=5)
        handle = injected(any_model, 60, fault)
        try:
            found = any_model.generate(PROMPTS, MASKS, max_new_tokens=5)
        finally:
            handle.remove()
        assert found == wanted
        assert any_model._batches.limit("generate", 9).hard
        assert_untouched(any_model)

    def test_one_row_too_large(self, any_model: MaskableModel, fault: BaseException) -> None:
        handle = injected(any_model, 3, fault)
        try:
            with pytest.raises(ModelError, match="scoring a single row"):
                any_model.likelihoods(REQUESTS, MASKS)
        finally:
            handle.remove()
        assert_untouched(any_model)
