"""From heads to tensor edits."""

from __future__ import annotations

from collections.abc import Sequence

from editor.records import Head, ModelSpec, TensorEdit


def compile_edits(spec: ModelSpec, heads: Sequence[Head]) -> tuple[TensorEdit, ...]:
    """One zeroed slice of an output projection a head, in the order of the model.

    Raises:
        KeyError: the model has no such head; `architecture.check_heads` says so to users.
    """
    layers = {at.layer: at for at in spec.layers}
    edits: list[TensorEdit] = []
    for head in sorted(set(heads)):
        at = layers[head.layer]
        if not 0 <= head.head < at.n_heads:
            raise KeyError(str(head))
        edits.append(
            TensorEdit(
                tensor=at.tensor,
                file=at.file,
                axis=at.axis,
                start=head.head * at.head_dim,
                stop=(head.head + 1) * at.head_dim,
                width=at.n_heads * at.head_dim,
                code=at.code,
            )
        )
    return tuple(edits)
