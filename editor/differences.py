"""What differs between two checkpoints, tensor by tensor and head by head.

Tensors are compared by name, whichever files they lie in: a resharded copy has no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from editor.errors import CheckFailed, ModelError
from editor.layout import digest_file, reading
from editor.patching import Bytes, Patch, Piece, walk_part
from editor.plan import compile_edits
from editor.records import Difference, Head, ModelSpec, TensorDifference, TensorEdit
from editor.safetensors_header import shown
from editor.weights import Located, Weights, nonzero, open_weights, tensor_patches


class Side(NamedTuple):
    """One of two checkpoints."""

    name: str
    path: Path
    """A folder of safetensors, or a GGUF file."""
    spec: ModelSpec | None
    """Where its heads lie, if that is known."""


def difference(a: Side, b: Side) -> Difference:
    """Compare two checkpoints.

    Raises:
        ModelError: one of them cannot be read.
    """
    one, two = open_weights(a.path), open_weights(b.path)
    spec = b.spec or a.spec
    found: list[TensorDifference] = []
    for name in sorted({*one.tensors, *two.tensors}):
        entry = _compare(name, one, two, spec)
        if entry is not None:
            found.append(entry)
    files = tuple(_other_files(one, two))
    n_equal = len({*one.tensors} & {*two.tensors}) - sum("only" not in at.kind for at in found)
    notes = () if spec else ("where the heads lie is not known for this model type",)
    return Difference(
        a=a.name,
        b=b.name,
        same=not found and not files,
        tensors=tuple(found),
        tensors_equal=n_equal,
        files=files,
        notes=notes,
    )


def compare_tensors(
    base: Weights, derived: Weights, edits: Sequence[TensorEdit]
) -> tuple[int, list[str]]:
    """Compare the tensors that two checkpoints have in one form, the base's with edits applied.

    Returns:
        How many were compared and are equal, and what could not be compared, in plain words.

    Raises:
        CheckFailed: A tensor differs.
    """
    n_equal, missing, other = 0, list[str](), list[str]()
    for name, at in base.tensors.items():
        there = derived.tensors.get(name)
        if there is None:
            missing.append(name)
        elif _form(at) != _form(there):
            other.append(name)
        else:
            mine = [edit for edit in edits if edit.tensor == name]
            patches = tensor_patches(base, name, mine) if mine else []
            _require_equal(base, derived, name, patches)
            n_equal += 1
    extra = [name for name in derived.tensors if name not in base.tensors]
    kinds = (
        ("tensors of another dtype or shape than the base's", other),
        ("tensors of the base that are not there", missing),
        ("tensors that the base has not", extra),
    )
    return n_equal, [f"{what}: {_some(names)}" for what, names in kinds if names]


def _compare(
    name: str, one: Weights, two: Weights, spec: ModelSpec | None
) -> TensorDifference | None:
    a, b = one.tensors.get(name), two.tensors.get(name)
    if a is None or b is None or _form(a) != _form(b):
        return _other_form(name, a, b)
    edits = _head_edits(spec, name, b) if spec else {}
    every = tensor_patches(one, name, list(edits.values())) if edits else []
    n_changed, n_beside = 0, 0
    for piece, there in _paired(one, two, name, every):
        differ = piece.old ^ there
        n_changed += int(np.count_nonzero(differ))
        if piece.patch is not None:
            rows = np.reshape(differ, (-1, piece.patch.row_bytes))
            differ = rows & ~piece.patch.mask
        n_beside += int(np.count_nonzero(differ))
    if not n_changed:
        return None
    hit = [head for head, edit in edits.items() if _reaches(one, two, name, edit)]
    return TensorDifference(
        tensor=name,
        kind="bytes",
        a=_form(a),
        b=_form(b),
        bytes_changed=n_changed,
        bytes_total=a.entry.stop - a.entry.start,
        heads=tuple(hit),
        zeroed=tuple(head for head in hit if nonzero(two, name, [edits[head]]) is None),
        beside_heads=n_beside > 0,
    )


def _other_form(name: str, a: Located | None, b: Located | None) -> TensorDifference:
    kind = "only in B" if a is None else "only in A" if b is None else "dtype"
    if a is not None and b is not None and a.entry.shape != b.entry.shape:
        kind = "shape"
    larger = max(at.entry.stop - at.entry.start for at in (a, b) if at is not None)
    return TensorDifference(
        tensor=name,
        kind=kind,
        a=_form(a) if a else "",
        b=_form(b) if b else "",
        bytes_changed=None,
        bytes_total=larger,
        heads=(),
        zeroed=(),
        beside_heads=True,
    )


def _head_edits(spec: ModelSpec, tensor: str, at: Located) -> dict[Head, TensorEdit]:
    """What would zero each head that lies in a tensor, in the file where it lies."""
    layers = [layer for layer in spec.layers if layer.tensor == tensor]
    heads = [Head(layer.layer, h) for layer in layers for h in range(layer.n_heads)]
    edits = compile_edits(spec, heads)
    return {
        head: edit.model_copy(update={"file": at.file})
        for head, edit in zip(heads, edits, strict=True)
    }


def _paired(
    one: Weights, two: Weights, name: str, patches: Sequence[Patch]
) -> Iterator[tuple[Piece, Bytes]]:
    """The pieces of a tensor in one checkpoint, patched, and its bytes in the other."""
    a, b = one.tensors[name], two.tensors[name]
    here, there = one.folder / a.file, two.folder / b.file
    with reading(here), there.open("rb") as file:
        file.seek(b.entry.start)
        for piece in walk_part(here, a.entry.start, a.entry.stop, patches):
            data = file.read(piece.old.size)
            if len(data) != piece.old.size:
                raise ModelError(f"{there}: ends too early", "it is being written: try again")
            yield piece, np.frombuffer(data, np.uint8)


def _require_equal(base: Weights, derived: Weights, name: str, patches: Sequence[Patch]) -> None:
    for piece, there in _paired(base, derived, name, patches):
        differ = np.flatnonzero(piece.new != there)
        if differ.size:
            at = piece.offset + int(differ[0]) - base.tensors[name].entry.start
            raise CheckFailed(
                f"{derived.folder / derived.tensors[name].file}: tensor {shown(name)}, byte {at} "
                "of it: not as in the base, and no edit declares it"
            )


def _reaches(one: Weights, two: Weights, name: str, edit: TensorEdit) -> bool:
    """Whether the slice of one head differs."""
    patches = tensor_patches(one, name, [edit])
    for piece, there in _paired(one, two, name, patches):
        if piece.patch is None:
            continue
        differ = np.reshape(piece.old ^ there, (-1, piece.patch.row_bytes))
        if (differ & piece.patch.mask).any():
            return True
    return False


def _other_files(one: Weights, two: Weights) -> Iterator[str]:
    """Files beside the weights that the two do not have alike."""
    weights = {*one.files, *two.files}
    here, there = (
        {name: size for name, size in at.all_files() if name not in weights} for at in (one, two)
    )
    for name in sorted({*here, *there}):
        if name not in here or name not in there:
            yield f"{shown(name)}: only in {'A' if name in here else 'B'}"
        elif digest_file(one.folder, name) != digest_file(two.folder, name):
            yield f"{shown(name)}: differs"


def _form(at: Located) -> str:
    return f"{at.entry.dtype} {list(at.entry.shape)}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(shown, names[:3])) + more
