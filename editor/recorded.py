# pyright: standard
"""Outputs of a model's layers, recorded once: masks that begin higher up start from there.

A knock-out changes nothing below its first layer.  A scan of single heads thus costs half.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_INDEX = re.compile(r"\.\d+\.", re.ASCII)

MAX_BYTES = 16 << 20
"""Memory for recordings that later calls may use, at least,"""
MAX_SHARE = 0.08
"""and this share of what the weights take where that is more."""
MIN_SAVED = 1.5
"""Whole passes that must be spared: the recording takes one."""


class RecordedLayers:
    """The outputs of all decoder layers for one batch of prompts."""

    def __init__(self, blocks: Sequence[torch.nn.Module]) -> None:
        self._blocks = blocks
        self._outputs: list[Any] = []

    @property
    def n_bytes(self) -> int:
        """Memory that the outputs take."""
        return sum(_tensor_bytes(output) for output in self._outputs)

    def record(self, forward: Callable[[], object]) -> None:
        """Keep what every layer returns during `forward`."""
        outputs: list[Any] = []

        def keep(_module: Any, _args: Any, output: Any) -> None:
            outputs.append(output)

        handles = [block.register_forward_hook(keep) for block in self._blocks]
        try:
            forward()
        finally:
            for handle in handles:
                handle.remove()
        if len(outputs) == len(self._blocks):  # else some layer ran twice or not at all
            self._outputs = outputs

    @contextmanager
    def starting_at(self, layer: int, copies: int) -> Iterator[None]:
        """Let layers below `layer` return what was recorded, for `copies` copies of the batch."""
        n_spared = min(layer, len(self._outputs))
        if not n_spared:
            yield
            return
        last = _repeated(self._outputs[n_spared - 1], copies)
        replaced = self._blocks[:n_spared]
        # What spreads a model over devices has put a forward of its own there.
        own = [vars(block).get("forward") for block in replaced]
        for block, output in zip(replaced, [*self._outputs[: n_spared - 1], last], strict=True):
            block.forward = _returning(output)  # only the last one's output is looked at
        try:
            yield
        finally:
            for block, forward in zip(replaced, own, strict=True):
                if forward is None:
                    del block.forward  # the class's own shows again
                else:
                    block.forward = forward


class Recordings:
    """Recorded layers by the batch that they are of; the oldest go when memory is short."""

    def __init__(self, blocks: Sequence[torch.nn.Module], weight_bytes: int = 0) -> None:
        self._blocks, self._weight_bytes = blocks, weight_bytes
        self._kept: OrderedDict[Hashable, RecordedLayers] = OrderedDict()

    def clear(self) -> bool:
        """Drop all; says whether there was anything."""
        had = bool(self._kept)
        self._kept.clear()
        return had

    def peek(self, batch: Hashable) -> RecordedLayers:
        """What was recorded for a batch, or a recording of nothing."""
        return self._kept.get(batch) or RecordedLayers(self._blocks)

    def get(self, batch: Hashable, forward: Callable[[], object]) -> RecordedLayers:
        """What was recorded for a batch, recorded by `forward` when it is not there."""
        if batch not in self._kept:
            lower = RecordedLayers(self._blocks)
            lower.record(forward)
            self._kept[batch] = lower
            at_most = max(MAX_BYTES, int(MAX_SHARE * self._weight_bytes))
            while sum(one.n_bytes for one in self._kept.values()) > at_most:
                self._kept.popitem(last=False)
            return lower
        return self._kept[batch]


def worthwhile(first_layers: Iterable[int], n_layers: int) -> bool:
    """Whether recording pays for masks that begin at these layers."""
    return sum(first_layers) / max(1, n_layers) >= MIN_SAVED


@torch.inference_mode()
def sparing_is_exact(blocks: Sequence[torch.nn.Module], forward: Callable[[int], Tensor]) -> bool:
    """Whether a pass that starts from recorded layers has the result of a whole one, at any layer.

    It has not where a layer hands something on beside its output: keys and values that later layers
    share, say, or where what looks like a layer is but a part of one.

    Args:
        blocks: all layers, in order.
        forward: the logits of so many rows that are alike.
    """
    lower = RecordedLayers(blocks)
    lower.record(lambda: forward(2))
    whole = forward(2)
    for layer in range(1, len(blocks) + 1):
        with lower.starting_at(layer, 2):
            forward(4)  # of another shape, so its last bits may differ: it only has to run
        with lower.starting_at(layer, 1):
            found = forward(2)
        if not torch.equal(found, whole):
            return False
    return True


def block_index(module: str) -> int:
    """Which of the model's layers a projection is in, by its path."""
    at = _INDEX.search(module)
    return int(at[0].strip(".")) if at else 0


def decoder_blocks(model: Any, modules: Sequence[str]) -> list[torch.nn.Module]:
    """All layers of the model, in order, or none where they are not one list.

    Args:
        model: a loaded model.
        modules: paths of the projections, such as `model.layers.3.self_attn.o_proj`.
    """
    lists = {path[: at.start()] for path in modules if (at := _INDEX.search(path))}
    if len(lists) != 1:
        return []
    found = model.get_submodule(lists.pop())
    return list(found) if isinstance(found, torch.nn.ModuleList) else []


def _tensor_bytes(output: Any) -> int:
    first = output if isinstance(output, Tensor) else output[0]
    return first.numel() * first.element_size()


def _returning(output: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: output


def _repeated(output: Any, copies: int) -> Any:
    if isinstance(output, Tensor):
        return output.repeat(copies, *(1 for _ in output.shape[1:])) if output.dim() else output
    if isinstance(output, tuple):
        return tuple(_repeated(one, copies) for one in output)
    return output
