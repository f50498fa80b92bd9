# pyright: standard
"""How a shortcut through a model is told from a wrong turn: by trying it beside a plain pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from editor.batching import is_out_of_memory

TRIAL_ERRORS = (
    *(AssertionError, AttributeError, IndexError, KeyError),
    *(RuntimeError, TypeError, ValueError),
)
"""What a model's own code raises where it is run in a way that it was not made for."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
"""How far a trial's logits may be off, as a share of their spread; `ROUGH` in other dtypes."""
ROUGH = 0.05
NOISE = 2.0
"""They may also be off by so many times what another shape of the same pass changes: in bfloat16
rounding alone can move the logits of a text that is hard to go on with by a tenth."""


def agree(found: Tensor, wanted: Tensor, again: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits differ by no more than what rounding does in this dtype.

    Args:
        found, wanted: (n_rows, vocabulary).
        again: what is wanted, by the same plain passes in another shape.
    """
    spread = wanted.float().std(dim=1)
    noise = (_distance(again, wanted) / spread).max()
    allowed = max(TOLERANCE.get(dtype, ROUGH), NOISE * float(noise.detach()))
    return bool((_distance(found, wanted) <= allowed * spread).all())


def works(trial: Callable[[], bool]) -> bool | None:
    """Whether a trial succeeds; None where memory ended, so that it says nothing of the model."""
    try:
        return trial()
    except MemoryError:
        return None
    except TRIAL_ERRORS as error:
        return None if is_out_of_memory(error) else False


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Root of the mean square, row by row."""
    return (one.to(other).float() - other.float()).square().mean(dim=1).sqrt()
