"""Safetensors checkpoints on disk: write edited copies, and prove what they are.

    base --apply_edits--> folder: the same files, with the declared slices zero
         --verify_edits-> the same claim, read again from both folders

Knows nothing of heads or models.  Everything outside of the slices, headers and metadata included,
stays byte for byte; no tensor is ever held in memory whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

from editor.errors import CheckFailed, ModelError
from editor.layout import (
    CHUNK_BYTES,
    digest_file,
    locate_tensors,
    other_weights,
    read_headers,
    reading,
    source_files,
    weight_files,
)
from editor.records import Checkpoint, FileDigest, TensorEdit
from editor.safetensors_header import (
    DTYPE_BITS,
    Header,
    TensorEntry,
    read_header,
    shown,
)
from editor.staging import check_space, staged, writing

__all__ = [
    "apply_edits",
    "locate_tensors",
    "other_weights",
    "read_header",
    "read_headers",
    "staged",
    "verify_edits",
    "weight_files",
]

ZERO_IS_ZERO_BITS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I8"})
"""Types whose number zero is all-zero bits."""


class _Stripes(NamedTuple):
    """`n` byte ranges [first + i * stride, first + i * stride + length) of one file."""

    first: int
    stride: int
    n: int
    length: int


def apply_edits(base: Path, folder: Path, edits: Sequence[TensorEdit]) -> Checkpoint:
    """Copy a checkpoint, with the slices that `edits` name set to zero.

    Files with edits are read, patched, hashed and written in one pass.

    Args:
        base: The checkpoint; it is only read.
        folder: An existing folder for the copy, such as `staged` yields.
        edits: Slices to zero; they may overlap.

    Returns:
        Digests of every file written, and how many bytes took another value.

    Raises:
        ModelError: The base is damaged, or an edit does not fit it.
        EditorError: The disk is full; see `writing`.
    """
    headers = read_headers(base)
    by_file = _group(base, headers, edits)
    files = source_files(base)
    with writing(folder):
        check_space(folder, sum(n_bytes for _, n_bytes in files))
    digests: list[FileDigest] = []
    changed: list[FileDigest] = []
    bytes_changed = 0
    for name, n_bytes in files:
        stripes = [_stripes(headers[name].tensors[e.tensor], e) for e in by_file.get(name, ())]
        digest, n_changed = _copy(base, folder, name, n_bytes=n_bytes, stripes=stripes)
        digests.append(digest)
        bytes_changed += n_changed
        if n_changed:
            changed.append(digest)
    return Checkpoint(
        files=tuple(digests),
        changed=tuple(changed),
        edits=tuple(edits),
        bytes_changed=bytes_changed,
        bytes_total=sum(header.file_bytes for header in headers.values()),
    )


def verify_edits(base: Path, folder: Path, checkpoint: Checkpoint) -> None:
    """Read base and copy again, and check every byte of what `checkpoint` says.

    Works from the tensors' shapes row by row, not from the byte ranges that `apply_edits` wrote.

    Raises:
        CheckFailed: At the first difference: a byte changed outside of the edits, one inside is
            not zero, a file is missing, a digest or the count of changed bytes is another.
        ModelError: The base is damaged, or an edit does not fit it.
    """
    headers = read_headers(base)
    by_file = _group(base, headers, checkpoint.edits)
    recorded = {digest.name: digest for digest in checkpoint.files}
    unlisted = sorted(set(headers) - set(recorded))
    if unlisted:
        raise CheckFailed(f"the weight file {unlisted[0]} is not among the checkpoint's files")
    known = {name for name, _ in source_files(base)}
    n_changed, changed = 0, set[str]()
    for name, digest in recorded.items():
        if name not in known or not (folder / name).is_file():
            where = folder if name in known else base
            raise CheckFailed(f"{shown(name)} is missing from {where}")
        header = headers.get(name)
        n_here = _compare(base / name, folder / name, header, by_file.get(name, ()))
        n_changed += n_here
        changed |= {name} if n_here else set()
        if digest_file(folder, name) != digest:
            raise CheckFailed(f"{folder / name}: size or sha256 is not the recorded one")
    if changed != {digest.name for digest in checkpoint.changed}:
        raise CheckFailed(f"{folder}: the files that differ from the base are {sorted(changed)}")
    if n_changed != checkpoint.bytes_changed:
        raise CheckFailed(
            f"{folder}: {n_changed} bytes differ from the base, recorded are "
            f"{checkpoint.bytes_changed}"
        )
    _check_no_other_weights(headers, folder)


def _check_no_other_weights(headers: Mapping[str, Header], folder: Path) -> None:
    # A second set of weights beside the verified one is what a loader might take instead.
    try:
        found = read_headers(folder)
    except ModelError as error:
        raise CheckFailed(f"the edited checkpoint is damaged: {error.message}") from error
    if found != headers:
        raise CheckFailed(f"{folder}: its weight files are not those of the base")


def _group(
    base: Path, headers: Mapping[str, Header], edits: Sequence[TensorEdit]
) -> dict[str, list[TensorEdit]]:
    by_file: dict[str, list[TensorEdit]] = {}
    for edit in edits:
        header = headers.get(edit.file)
        entry = header.tensors.get(edit.tensor) if header else None
        if entry is None:
            raise ModelError(
                f"{base}: the edit names tensor {shown(edit.tensor)} in {shown(edit.file)}, "
                "which the checkpoint does not have",
                "the edit was made for another model",
            )
        _check_fits(base / edit.file, entry, edit)
        by_file.setdefault(edit.file, []).append(edit)
    return by_file


def _check_fits(path: Path, entry: TensorEntry, edit: TensorEdit) -> None:
    if entry.dtype not in ZERO_IS_ZERO_BITS:
        raise ModelError(
            f"{path}: tensor {shown(edit.tensor)} has dtype {entry.dtype}, whose zero is not known",
            f"types that can be edited: {', '.join(sorted(ZERO_IS_ZERO_BITS))}",
        )
    if len(entry.shape) != 2:
        raise ModelError(
            f"{path}: tensor {shown(edit.tensor)} should be a matrix, found {list(entry.shape)}",
            "the edit was made for another model",
        )
    size = entry.shape[edit.axis]
    if not 0 <= edit.start < edit.stop <= size:
        raise ModelError(
            f"{path}: tensor {shown(edit.tensor)} has {size} entries along axis {edit.axis}, "
            f"the edit asks for [{edit.start}, {edit.stop})",
            "the edit was made for another model",
        )


def _stripes(entry: TensorEntry, edit: TensorEdit) -> _Stripes:
    n_rows, n_columns = entry.shape
    itemsize = DTYPE_BITS[entry.dtype] // 8
    row = n_columns * itemsize
    if edit.axis == 0:
        length = (edit.stop - edit.start) * row
        return _Stripes(entry.start + edit.start * row, max(length, 1), 1, length)
    length = (edit.stop - edit.start) * itemsize
    return _Stripes(entry.start + edit.start * itemsize, row, n_rows, length)


def _copy(
    base: Path, folder: Path, name: str, *, n_bytes: int, stripes: Sequence[_Stripes]
) -> tuple[FileDigest, int]:
    """Copy one file through one buffer; returns its digest and how many bytes were changed."""
    sha, offset, n_changed = hashlib.sha256(), 0, 0
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with reading(base / name):
        source = (base / name).open("rb", buffering=0)
    with source, writing(folder / name):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # "x": what is already there was not ours to write, and is never followed as a link.
        with (folder / name).open("xb", buffering=0) as target:
            while size := _fill(source, buffer, base / name):
                n_changed += sum(_zero(buffer, offset, size, stripe) for stripe in stripes)
                sha.update(view[:size])
                _write_all(target, view[:size])
                offset += size
    if offset != n_bytes:
        raise ModelError(
            f"{base / name}: changed while it was copied: expected {n_bytes} bytes, found {offset}",
            "make sure that nothing writes to the model's folder, and try again",
        )
    return FileDigest(name=name, n_bytes=offset, sha256=sha.hexdigest()), n_changed


def _fill(source: FileIO, buffer: bytearray, path: Path) -> int:
    with reading(path):
        return source.readinto(buffer)


def _write_all(target: FileIO, view: memoryview) -> None:
    # An unbuffered write may be short: on a disk that is about to be full, for one.
    while view:
        view = view[target.write(view) :]


def _zero(buffer: bytearray, offset: int, size: int, stripe: _Stripes) -> int:
    """Zero the part of `stripe` that lies in buffer[:size], which begins at file byte `offset`.

    Returns the number of bytes that were not zero before.
    """
    first, stride, n, length = stripe
    # The ranges i that end after the buffer's beginning and begin before its end.
    low = max(0, (offset - first - length) // stride + 1)
    high = min(n, -((first - offset - size) // stride))
    n_changed = 0
    for start in range(first + low * stride - offset, first + high * stride - offset, stride):
        begin, end = max(start, 0), min(start + length, size)
        n_changed += end - begin - buffer.count(0, begin, end)
        buffer[begin:end] = bytes(end - begin)
    return n_changed


class _Pair(NamedTuple):
    """A file of the base and its copy, both read from the same offset on."""

    base: BinaryIO
    copy: BinaryIO
    path: Path
    header: Header | None

    def differs(self, offset: int, why: str) -> CheckFailed:
        tensors = self.header.tensors.items() if self.header else ()
        inside = (name for name, at in tensors if at.start <= offset < at.stop)
        tensor = next((f"tensor {shown(name)}, " for name in inside), "")
        return CheckFailed(f"{self.path}: {tensor}byte {offset}: {why}")


def _compare(base: Path, copy: Path, header: Header | None, edits: Sequence[TensorEdit]) -> int:
    """Compare one file with its base; returns how many bytes differ, all of them declared."""
    by_tensor: dict[str, list[TensorEdit]] = {}
    for edit in edits:
        by_tensor.setdefault(edit.tensor, []).append(edit)
    n_changed = 0
    with (
        reading(copy),
        base.open("rb", buffering=CHUNK_BYTES) as one,
        copy.open("rb", buffering=CHUNK_BYTES) as two,
    ):
        pair = _Pair(one, two, copy, header)
        # A header lists its tensors in the order of their bytes.
        for name, entry in header.tensors.items() if header else ():
            if name in by_tensor:
                _compare_equal(pair, entry.start)
                n_changed += _compare_rows(pair, entry, by_tensor[name])
        _compare_equal(pair, None)
    return n_changed


def _compare_equal(pair: _Pair, stop: int | None) -> None:
    """Require equal bytes from here to the offset `stop`, or to the end of both files."""
    while stop is None or pair.base.tell() < stop:
        offset = pair.base.tell()
        size = CHUNK_BYTES if stop is None else min(CHUNK_BYTES, stop - offset)
        expected, found = pair.base.read(size), pair.copy.read(size)
        if expected != found:
            raise pair.differs(offset + _first_difference(expected, found), "not as in the base")
        if not expected:
            return


def _compare_rows(pair: _Pair, entry: TensorEntry, edits: Sequence[TensorEdit]) -> int:
    n_rows, n_columns = entry.shape
    itemsize = DTYPE_BITS[entry.dtype] // 8
    columns = [(e.start * itemsize, e.stop * itemsize) for e in edits if e.axis == 1]
    zero_rows = {r for e in edits if e.axis == 0 for r in range(e.start, e.stop)}
    n_changed = 0
    for r in range(n_rows):
        offset = pair.base.tell()
        before, found = pair.base.read(n_columns * itemsize), pair.copy.read(n_columns * itemsize)
        expected = bytearray(before)
        for start, stop in [(0, len(before))] if r in zero_rows else columns:
            n_changed += stop - start - expected.count(0, start, stop)
            expected[start:stop] = bytes(stop - start)
        if bytes(expected) != found:
            at = _first_difference(expected, found)
            declared = r in zero_rows or any(start <= at < stop for start, stop in columns)
            why = "should be zero" if declared else "not as in the base, and no edit declares it"
            raise pair.differs(offset + at, why)
    return n_changed


def _first_difference(one: bytes | bytearray, two: bytes) -> int:
    pairs = enumerate(zip(one, two, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(two)))
