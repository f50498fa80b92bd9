# pyright: standard
"""Hooks on output projections: each changes heads in a projection's input, or listens to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from editor.errors import ModelError
from editor.records import AttentionLayer


@contextmanager
def hooked(hooks: Sequence[tuple[Any, Callable[..., Any]]]) -> Iterator[None]:
    """Forward pre-hooks on modules that are gone when the block ends, however it ends."""
    with ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_pre_hook(hook).remove)
        yield


class ScaleHeads:
    """Multiplies each head's slice of a projection's input by a factor."""

    def __init__(self, at: AttentionLayer, scale: Tensor) -> None:
        self._scale, self._head_dim = scale, at.head_dim

    def __call__(self, _module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        wide = self._scale.repeat_interleave(self._head_dim)
        return (args[0] * wide.to(args[0]), *args[1:])


class FillHeads:
    """Puts zero, or a mean, in the place of heads in a projection's input, row by row.

    Args:
        places: pairs of a mask's number and a head that it knocks out.
        n_masks: how many masks the batch has.
        repeat: rows that share a mask.
        mean: (n_heads * head_dim,), what to put there; None for zero.
    """

    def __init__(
        self,
        at: AttentionLayer,
        places: Sequence[tuple[int, int]],
        *,
        n_masks: int,
        repeat: int,
        mean: Tensor | None = None,
    ) -> None:
        out = torch.zeros((n_masks, at.n_heads), dtype=torch.bool)
        rows, heads = zip(*places, strict=True)
        out[list(rows), list(heads)] = True
        wide = out.repeat_interleave(at.head_dim, dim=1)  # (n_masks, n_heads * head_dim)
        self._out = wide.repeat_interleave(repeat, dim=0)[:, None, :]
        self._module, self._mean = at.module, mean

    def __call__(self, _module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x = args[0]  # (n_rows, n_tokens, n_heads * head_dim)
        _check_rows(x, self._out.shape[:1], self._module)
        out = self._out.to(x.device)
        # Chosen, not multiplied: NaN and infinity survive a product with zero.
        filled = x.masked_fill(out, 0) if self._mean is None else x.where(~out, self._mean.to(x))
        return (filled, *args[1:])


class MeanOfHeads:
    """Takes the mean of a projection's input over all tokens that are no padding."""

    def __init__(self, at: AttentionLayer) -> None:
        self._module, self._count = at.module, 0
        self._sum = torch.zeros(at.n_heads * at.head_dim, dtype=torch.double)
        self._real = torch.zeros((0, 0), dtype=torch.bool)
        self._new, self._n_new = torch.zeros_like(self._sum), 0

    def expect(self, real: Tensor) -> None:
        """Make ready for a batch, and forget what was not kept of the one before.

        Args:
            real: bool (n_rows, n_tokens), which of its tokens are no padding.
        """
        self._real = real
        self._new, self._n_new = torch.zeros_like(self._sum), 0

    def keep(self) -> None:
        """Count the batch: it went through the model as a whole."""
        self._sum += self._new
        self._count += self._n_new

    @property
    def mean(self) -> Tensor:
        """float64 (n_heads * head_dim,), on the CPU."""
        return self._sum / max(1, self._count)

    def __call__(self, _module: Any, args: tuple[Tensor, ...]) -> None:
        _check_rows(args[0], self._real.shape, self._module)
        real = args[0][self._real.to(args[0].device)]  # (n_real, n_heads * head_dim)
        # Summed in float32 on the device: not every device has float64.
        self._new += real.float().sum(dim=0).double().cpu()
        self._n_new += len(real)


def _check_rows(x: Tensor, shape: torch.Size, module: str) -> None:
    """That the first dimensions of a batch are those of one row a prompt."""
    if x.dim() != 3 or x.shape[: len(shape)] != shape:
        raise ModelError(
            f"{module} got a batch of shape {tuple(x.shape)}, not one row a prompt",
            "this architecture packs its batch; its heads cannot be masked row by row",
        )
