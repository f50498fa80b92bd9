# pyright: standard
"""How many tokens go through the model at once: from free memory, halved when it runs out.

What a limit was lowered to is remembered as long as the process lives, by device, model size and
operation: a second model of the same size does not run into the same wall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch

from editor.errors import ModelError

Operation = Literal["score", "generate", "gradient"]

BATCH_TOKENS = 1024
"""Tokens of one forward pass where there is no GPU: on two CPU cores larger batches are slower."""
WRITTEN_TOKENS = 4096
"""The same for writing, prompt and new tokens of all rows: a step computes one token a row, and
reads every weight, so that more rows cost little."""
GPU_TOKENS = 1 << 16
"""No more on a GPU, however large: it is busy with fewer."""
MIN_ITEMS = 4
"""Items that share one padded length; more where few masks leave room for them."""
FREE_SHARE = 0.6
"""Share of the free memory that a batch may take by estimate: the estimate is coarse."""

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")
_lowered: dict[tuple[str, int, str], int] = {}


class Shape(NamedTuple):
    """What of a model decides how much memory a token takes."""

    n_layers: int
    hidden: int
    intermediate: int
    n_heads: int
    kv_width: int
    """Elements of the keys of one token in one layer."""
    vocabulary: int
    n_bytes: int
    """Bytes of one element."""


class Limit(NamedTuple):
    """How large a batch may be."""

    tokens: int
    hard: bool
    """Whether more would not fit; else more are only slower."""


class Row(Protocol):
    """What fills a batch: `width` tokens, padding apart."""

    @property
    def width(self) -> int: ...


R = TypeVar("R", bound=Row)


def shape_of(config: Any, n_bytes: int) -> Shape:
    """Sizes of a model by its config; what it does not say is taken from what is usual."""
    text = config.get_text_config(decoder=True)
    fields: dict[str, Any] = text.to_dict()  # asked one by one, some configs raise

    def size(default: int, *names: str) -> int:
        given = (fields.get(name) for name in names)
        return next((value for value in given if isinstance(value, int) and value > 0), default)

    hidden = size(4096, "hidden_size", "n_embd", "d_model")
    n_heads = size(32, "num_attention_heads", "decoder_attention_heads", "n_head", "n_heads")
    head_dim = size(max(1, hidden // n_heads), "head_dim")
    return Shape(
        n_layers=size(32, "num_hidden_layers", "decoder_layers", "n_layer", "n_layers"),
        hidden=hidden,
        intermediate=size(4 * hidden, "intermediate_size", "decoder_ffn_dim", "n_inner", "ffn_dim"),
        n_heads=n_heads,
        kv_width=head_dim * size(n_heads, "num_key_value_heads"),
        vocabulary=size(32000, "vocab_size"),
        n_bytes=n_bytes,
    )


def bytes_a_token(shape: Shape, operation: Operation, width: int) -> int:
    """Memory that one token of a batch takes beside the weights, by estimate, from above.

    Args:
        width: tokens of a row; attention that is not fused keeps a number for each pair of them.
    """
    layer = shape.n_bytes * (8 * shape.hidden + 3 * shape.intermediate)
    layer += 4 * shape.n_heads * width
    if operation == "generate":
        return layer + 2 * shape.n_layers * shape.kv_width * shape.n_bytes
    logits = shape.vocabulary * shape.n_bytes
    if operation == "score":
        return layer + logits
    return shape.n_layers * layer + logits + 8 * shape.vocabulary  # float32, with its gradient


def free_bytes(devices: Sequence[torch.device]) -> int | None:
    """Memory left on the fullest of the GPUs; None where there is none."""
    gpus = [device for device in devices if device.type == "cuda"]
    # What torch keeps for later is free for a batch too.
    return min(
        (
            torch.cuda.mem_get_info(gpu)[0]
            + torch.cuda.memory_reserved(gpu)
            - torch.cuda.memory_allocated(gpu)
            for gpu in gpus
        ),
        default=None,
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _NO_MEMORY)


class Batches:
    """Cuts work into batches that fit.

    Args:
        shape: sizes of the model.
        devices: where its weights lie.
        weight_bytes: tells this model from others in what the process remembers.
        release: drops what is kept beside the weights; says whether there was anything.
    """

    def __init__(
        self,
        shape: Shape,
        devices: Sequence[torch.device],
        weight_bytes: int,
        release: Callable[[], bool] = lambda: False,
    ) -> None:
        self._shape, self._devices, self._release = shape, devices, release
        self._name = (",".join(sorted(map(str, devices))), weight_bytes)

    def limit(self, operation: Operation, width: int) -> Limit:
        """How many tokens a batch of rows of this width may have."""
        free = free_bytes(self._devices)
        if free is None:
            found = Limit(WRITTEN_TOKENS if operation == "generate" else BATCH_TOKENS, False)
        else:
            fits = int(FREE_SHARE * free) // bytes_a_token(self._shape, operation, width)
            found = Limit(min(GPU_TOKENS, max(1, fits)), True)
        lowered = _lowered.get((*self._name, operation))
        if lowered is None or lowered >= found.tokens:
            return found
        return Limit(lowered, True)

    def each(
        self,
        operation: Operation,
        rows: Sequence[R],
        work: Callable[[Sequence[R], int], None],
        *,
        copies: int = 1,
        apart: Callable[[R], Sequence[R]] | None = None,
    ) -> None:
        """Call `work` for neighbouring rows that fill a batch together.

        Args:
            rows: sorted by their width.
            work: takes some rows and how many copies of them (masks) fit at once.  When memory
                ends inside, it is called again with fewer: it must be safe to repeat.
            copies: how many copies of each row there are to do.
            apart: takes a row that does not fit into smaller ones, sorted, that ask the same.

        Raises:
            ModelError: a single row does not fit.
        """
        start = 0
        while start < len(rows):
            group = _group(rows, start, copies, cache(partial(self.limit, operation)))
            tokens = len(group) * group[-1].width
            step = max(1, self.limit(operation, group[-1].width).tokens // tokens)
            if self._fits(partial(work, group, step)):
                start += len(group)
                continue
            released = self._release()
            n_rows = len(group) * min(step, copies)
            if n_rows > 1:
                self._lower(operation, n_rows * group[-1].width)
            elif not released:
                smaller = apart(group[0]) if apart else ()
                if not smaller:
                    _refuse(operation, group[0].width)
                rows = [*smaller, *rows[start + 1 :]]
                start = 0

    @staticmethod
    def _fits(work: Callable[[], None]) -> bool:
        try:
            work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        # Here the error is gone, and with it the tensors of the frames that it passed through.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return False

    def _lower(self, operation: Operation, tokens: int) -> None:
        name = (*self._name, operation)
        _lowered[name] = min(tokens // 2, _lowered.get(name, tokens))


def forget() -> None:
    """Forget every limit that was lowered."""
    _lowered.clear()


def _group(
    rows: Sequence[R], start: int, copies: int, limit: Callable[[int], Limit]
) -> Sequence[R]:
    """Neighbours that fill a batch together with all copies, or `MIN_ITEMS` of them if they fit."""
    end = start + 1
    for end in range(start + 1, len(rows)):
        width = rows[end].width
        tokens, at_most = (end + 1 - start) * width, limit(width)
        too_many = at_most.hard and tokens > at_most.tokens
        if too_many or (tokens * copies > at_most.tokens and end - start >= MIN_ITEMS):
            return rows[start:end]
    return rows[start:]


def _refuse(operation: Operation, width: int) -> None:
    what = {"score": "scoring", "generate": "writing", "gradient": "the gradient of"}[operation]
    raise ModelError(
        f"memory does not suffice for {what} a single row of {width} tokens",
        "choose shorter items, --dtype bfloat16, --device auto for several GPUs, "
        "or a machine with more memory",
    )
