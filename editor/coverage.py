"""Which layers have heads that can be zeroed, which have not, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from editor.errors import ModelError
from editor.records import ModelSpec

MAX_REASONS = 3

NO_ATTENTION: dict[str, str] = {
    "linear_attention": "linear attention, no heads that can be zeroed",
    "mamba": "a state space, no attention",
    "mamba2": "a state space, no attention",
    "conv": "a convolution, no attention",
    "recurrent": "a recurrence, no attention",
    "mlp": "no attention",
    "moe": "no attention",
}
"""What a layer is that config.json calls so.  Whatever tensors it has, they are not edited."""


def grouped(reasons: Mapping[int, str]) -> tuple[str, ...]:
    """One line a reason, with the layers that share it, in the order of the first layers."""
    by_reason: dict[str, list[int]] = {}
    for layer in sorted(reasons):
        by_reason.setdefault(reasons[layer], []).append(layer)
    return tuple(f"{layers_text(layers)}: {reason}" for reason, layers in by_reason.items())


def layers_text(layers: Iterable[int]) -> str:
    """`layer 3`, or `layers 0-3, 7`."""
    listed = sorted(layers)
    return f"layer{'s' if len(listed) > 1 else ''} {ranges(listed)}"


def ranges(numbers: Iterable[int]) -> str:
    """Sorted numbers as text: 0-3, 7, 9-10."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def require_coverage(spec: ModelSpec, *, allow_partial: bool) -> None:
    """Require that every layer has heads that can be zeroed, or that partial coverage is wanted.

    Raises:
        ModelError: Layers are not covered and `allow_partial` is false.
    """
    if allow_partial or not spec.not_covered:
        return
    reasons = spec.not_covered[:MAX_REASONS]
    more = len(spec.not_covered) - len(reasons)
    total = f" of {spec.n_layers}" if spec.n_layers else ""
    raise ModelError(
        f"{spec.source}: {len(spec.layers)}{total} layers have heads of their own to zero; "
        f"{'; '.join(reasons)}{f'; and {more} more reasons' if more else ''}",
        "pass --allow-partial to edit the layers that are covered",
    )
