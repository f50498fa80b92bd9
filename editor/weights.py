"""The tensors of a checkpoint, whichever format its files have, and the patches of edits to them.

a folder of safetensors | one GGUF file  --open_weights-->  Weights: where each tensor lies
tensor edits  --patches-->  bits to set in one file, in the order of its bytes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from editor import ggml_codes, zero_codes
from editor.errors import ModelError
from editor.gguf_header import read_gguf_header
from editor.layout import read_headers, read_tensor, reading, source_files
from editor.patching import CHUNK_BYTES, Patch
from editor.records import TensorEdit
from editor.safetensors_header import TensorEntry, shown


class Located(NamedTuple):
    """One tensor."""

    file: str
    entry: TensorEntry


class Weights(NamedTuple):
    """A checkpoint's weight files, read but for their tensors' bytes."""

    folder: Path
    files: Mapping[str, int]
    """Size in bytes by name, sorted by name."""
    tensors: Mapping[str, Located]
    """In the order of the files and of the bytes in them."""
    metadata: Mapping[str, object]
    """What the headers say beside the tensors, by file: a copy has the same."""

    def all_files(self) -> list[tuple[str, int]]:
        """Name and size of every file of a copy: the weights, and what lies beside them."""
        if is_gguf(self.folder / next(iter(self.files))):
            return sorted(self.files.items())
        return source_files(self.folder)

    def read(self, tensor: str) -> tuple[TensorEntry, bytes]:
        """One small tensor whole.

        Raises:
            KeyError: There is no such tensor.
            ModelError: It is too large to be what it should be, or cannot be read.
        """
        file, entry = self.tensors[tensor]
        return entry, read_tensor(self.folder / file, tensor, entry)


def is_gguf(path: Path) -> bool:
    """Whether a checkpoint is one GGUF file."""
    return path.suffix.lower() == ".gguf"


def open_weights(path: Path) -> Weights:
    """Read the headers of a checkpoint's weight files.

    Args:
        path: A folder of safetensors, or a GGUF file.

    Raises:
        ModelError: They are missing, damaged, or contradict one another.
    """
    if is_gguf(path):
        header = read_gguf_header(path)
        tensors = {name: Located(path.name, entry) for name, entry in header.tensors.items()}
        return Weights(path.parent, {path.name: header.file_bytes}, tensors, {})
    headers = read_headers(path)
    return Weights(
        path,
        {name: header.file_bytes for name, header in headers.items()},
        {
            tensor: Located(name, entry)
            for name, header in headers.items()
            for tensor, entry in header.tensors.items()
        },
        {name: (header.metadata, header.header_bytes) for name, header in headers.items()},
    )


def by_tensor(weights: Weights, edits: Sequence[TensorEdit]) -> dict[str, list[TensorEdit]]:
    """Edits grouped by their tensor, in the order of the files' bytes.

    Raises:
        ModelError: The checkpoint has no such tensor in that file.
    """
    groups: dict[str, list[TensorEdit]] = {}
    for edit in edits:
        at = weights.tensors.get(edit.tensor)
        if at is None or at.file != edit.file:
            raise ModelError(
                f"{weights.folder}: the edit names tensor {shown(edit.tensor)} in "
                f"{shown(edit.file)}, which the checkpoint does not have",
                "the edit was made for another model",
            )
        groups.setdefault(edit.tensor, []).append(edit)
    return {name: groups[name] for name in weights.tensors if name in groups}


def patches(
    weights: Weights, file: str, edits: Sequence[TensorEdit]
) -> Iterator[tuple[str, Patch]]:
    """The bits that edits set in one file, each with its tensor, in the order of the file.

    Made one tensor at a time: what an edit takes in memory is gone before the next.

    Raises:
        ModelError: An edit does not fit its tensor, or the tensor's format has no zero.
    """
    for tensor, group in by_tensor(weights, edits).items():
        if weights.tensors[tensor].file == file:
            for patch in tensor_patches(weights, tensor, group):
                if patch.mask.any():
                    yield tensor, patch


def tensor_patches(weights: Weights, tensor: str, edits: Sequence[TensorEdit]) -> list[Patch]:
    """The bits that edits of one tensor set.

    Raises:
        ModelError: See `patches`.
    """
    file, entry = weights.tensors[tensor]
    where = f"{weights.folder / file}: tensor {shown(tensor)}"
    if edits[0].code == "ggml":
        return ggml_codes.patches(entry, [(edit.start, edit.stop) for edit in edits])
    return zero_codes.patches(edits, entry, weights.read, where)


def nonzero(weights: Weights, tensor: str, edits: Sequence[TensorEdit]) -> tuple[int, int] | None:
    """Find a value inside the slices of one tensor that is not zero when it is multiplied out.

    Unlike `patches` it asks what the bytes mean, not how this program would write them: a file that
    another program requantized may write its zeros in another way.

    Returns:
        (output, input) of the first such value in the order of the bytes, or None.

    Raises:
        ModelError: See `patches`.
    """
    file, entry = weights.tensors[tensor]
    where = f"{weights.folder / file}: tensor {shown(tensor)}"
    path = weights.folder / file
    with reading(path), path.open("rb") as stream:

        def data(start: int, stop: int) -> bytes:
            stream.seek(start)
            return stream.read(stop - start)

        if edits[0].code != "ggml":
            return zero_codes.nonzero_at(edits, entry, weights.read, data, where)
        slices = [(edit.start, edit.stop) for edit in edits]
        row_bytes = tensor_patches(weights, tensor, edits)[0].row_bytes
        step = max(1, CHUNK_BYTES // row_bytes) * row_bytes
        for start in range(entry.start, entry.stop, step):
            rows = np.frombuffer(data(start, min(entry.stop, start + step)), np.uint8)
            rows = np.reshape(rows, (-1, row_bytes))
            place = ggml_codes.nonzero_at(entry.dtype, entry.shape[0], rows, slices)
            if place is not None:
                return (start - entry.start) // row_bytes + place[0], place[1]
    return None
