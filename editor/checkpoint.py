"""Checkpoints on disk: write edited copies, and prove what they are.

    base --apply_edits--> folder: the same files, with the declared slices zero
         --verify_edits-> the same claim, read again from both folders

Knows nothing of heads or models.  Everything outside of the slices, headers and metadata included,
stays byte for byte; no tensor is ever held in memory whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np

from editor.errors import CheckFailed, ModelError, UsageError
from editor.layout import other_weights, reading
from editor.parallel import side_by_side
from editor.patching import Bytes, Digests, Patch, Piece, copy_patched, digests, walk
from editor.records import Checkpoint, FileDigest, Rows, TensorEdit, Written
from editor.restore import RestoreWriter
from editor.safetensors_header import shown
from editor.staging import check_space, staged, writing
from editor.weights import Weights, by_tensor, is_gguf, nonzero, open_weights, patches

__all__ = ["apply_edits", "check_written", "other_weights", "staged", "verify_edits"]


def apply_edits(
    base: Path,
    folder: Path,
    edits: Sequence[TensorEdit],
    *,
    link: Callable[[str], FileDigest] | None = None,
    restore: RestoreWriter | None = None,
) -> Checkpoint:
    """Copy a checkpoint, with the slices that `edits` name set to zero.

    Every file is read, patched, hashed and written in one pass.

    Args:
        base: The checkpoint, a folder of safetensors or a GGUF file; it is only read.
        folder: An existing folder for the copy, such as `staged` yields.
        edits: Slices to zero; they may overlap.
        link: Make weight files without edits hard links to the base's instead of copies, and take
            their size and sha256 from this.
        restore: Takes the bytes that are removed.

    Returns:
        Digests of every file, and how many bytes took another value.

    Raises:
        ModelError: The base is damaged, changes meanwhile, or an edit does not fit it.
        UsageError: A link is not possible.
        EditorError: The disk is full; see `writing`.
    """
    weights = open_weights(base)
    edited = {weights.tensors[tensor].file for tensor in by_tensor(weights, edits)}
    removed = 0
    for name in edited:  # whatever does not fit is said before anything is written
        for _, patch in patches(weights, name, edits):
            removed += patch.n_rows * sum(b - a for a, b in patch.columns())
    files = weights.all_files()
    linked = _linkable(weights, edited) if link is not None else ()
    with writing(folder):
        copied_bytes = sum(size for name, size in files if name not in linked)
        check_space(folder, copied_bytes + (removed if restore is not None else 0))

    def write(name: str, keep_on: Callable[[], None]) -> _Copied:
        if link is not None and name in linked:
            _link(weights.folder, folder, name)
            return _Copied(link(name), link(name), (), 0)
        mine = edits if name in edited else ()
        stream = restore.removed(name) if restore is not None and mine else None
        return _copy(weights, folder, _Ranges(name, stream, keep_on), mine)

    with writing(folder):
        copied = side_by_side(write, [name for name, _ in files])
    if open_weights(base) != weights:
        # As long as before, but with its tensors at other places than were zeroed.
        raise ModelError(
            f"{base}: its weights changed while they were read",
            "make sure that nothing writes to the model's folder, and try again",
        )
    return Checkpoint(
        base_files=tuple(at.before for at in copied if at.before.name in weights.files),
        files=tuple(at.after for at in copied),
        edits=tuple(edits),
        written=tuple(one for at in copied for one in at.written),
        linked=linked,
        bytes_changed=sum(at.n_changed for at in copied),
        bytes_total=sum(weights.files.values()),
    )


def check_written(base: Path, folder: Path, checkpoint: Checkpoint) -> None:
    """Read back what `apply_edits` wrote: headers, sizes, and every slice that should be zero.

    Costs the edited tensors' bytes only.  `verify_edits` compares everything.

    Raises:
        CheckFailed: The copy is damaged, has other tensors, or a slice is not zero.
    """
    weights, copy = open_weights(base), _open_copy(base, folder)
    if (copy.tensors, copy.metadata, copy.files) != (
        weights.tensors,
        weights.metadata,
        weights.files,
    ):
        raise CheckFailed(f"{folder}: its weight files are not those of the base")
    check_zero(copy, checkpoint.edits)


def check_zero(weights: Weights, edits: Sequence[TensorEdit]) -> None:
    """Require that every slice is zero when it is multiplied out.

    Raises:
        CheckFailed: For the first value that is not.
        ModelError: An edit does not fit the checkpoint.
    """
    for tensor, group in by_tensor(weights, edits).items():
        place = nonzero(weights, tensor, group)
        if place is not None:
            raise CheckFailed(
                f"{weights.folder / weights.tensors[tensor].file}: tensor {shown(tensor)}, output "
                f"{place[0]}, input {place[1]}: should be zero"
            )


def verify_edits(
    base: Path, folder: Path, edits: Sequence[TensorEdit], replaced: Collection[str] = ()
) -> Checkpoint:
    """Derive the edit anew from the base, and compare every byte of the copy with it.

    Args:
        base: The checkpoint that the copy was made from.
        folder: The folder of the copy; files in it that the base has not are not looked at.
        edits: The slices that should be zero.
        replaced: Files beside the weights that the copy has its own of.

    Returns:
        What `apply_edits` would: the digests of all files, as the base and the copy have them.

    Raises:
        CheckFailed: At the first difference: a byte changed outside of the edits, one inside is
            not zero, or a file is missing.
        ModelError: The base is damaged, or an edit does not fit it.
    """
    weights = open_weights(base)
    edited = {weights.tensors[tensor].file for tensor in by_tensor(weights, edits)}

    def compare(name: str, keep_on: Callable[[], None]) -> _Copied:
        mine = edits if name in edited else ()
        return _compare(weights, folder, _Ranges(name, None, keep_on), mine)

    names = [name for name, _ in weights.all_files()]
    compared = side_by_side(
        compare, [name for name in names if name in weights.files or name not in replaced]
    )
    copy = _open_copy(base, folder)
    if copy.tensors != weights.tensors:
        # A second set of weights beside the verified one is what a loader might take instead.
        raise CheckFailed(f"{folder}: its weight files are not those of the base")
    check_zero(copy, edits)
    return Checkpoint(
        base_files=tuple(at.before for at in compared if at.before.name in weights.files),
        files=tuple(at.after for at in compared),
        edits=tuple(edits),
        written=tuple(one for at in compared for one in at.written),
        linked=(),
        bytes_changed=sum(at.n_changed for at in compared),
        bytes_total=sum(weights.files.values()),
    )


class _Copied(NamedTuple):
    """One file of the base and its copy."""

    before: FileDigest
    after: FileDigest
    written: tuple[Written, ...]
    n_changed: int


def _copied(name: str, found: Digests, written: tuple[Written, ...]) -> _Copied:
    before = FileDigest(name=name, n_bytes=found.n_bytes, sha256=found.before)
    after = FileDigest(name=name, n_bytes=found.n_bytes, sha256=found.after)
    return _Copied(before, after, written, found.n_changed)


def _copy(weights: Weights, folder: Path, record: _Ranges, edits: Sequence[TensorEdit]) -> _Copied:
    name = record.file
    source, target = weights.folder / name, folder / name
    with reading(source):
        source.open("rb").close()
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        named = record.watch(patches(weights, name, edits))
        found = copy_patched(source, target, named, record.see)
    return _copied(name, found, record.written())


def _compare(
    weights: Weights, folder: Path, record: _Ranges, edits: Sequence[TensorEdit]
) -> _Copied:
    name = record.file
    source, copy = weights.folder / name, folder / name
    if not copy.is_file():
        raise CheckFailed(f"{shown(name)} is missing from {folder}")
    with reading(source), copy.open("rb", buffering=0) as file:

        def same(piece: Piece) -> None:
            record.see(piece)
            expected = piece.new
            found = _read_exactly(file.read, expected.size)
            if len(found) != expected.size or not np.array_equal(
                expected, np.frombuffer(found, np.uint8)
            ):
                raise _difference(weights, copy, piece, found)

        found = digests(walk(source, record.watch(patches(weights, name, edits))), same)
        if file.read(1):
            raise CheckFailed(f"{copy}: is longer than the base's {found.n_bytes} bytes")
    return _copied(name, found, record.written())


def _read_exactly(read: Callable[[int], bytes | None], size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (piece := read(size)):
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _difference(weights: Weights, copy: Path, piece: Piece, found: bytes) -> CheckFailed:
    here = np.frombuffer(found, np.uint8)
    n = min(here.size, piece.new.size)
    differ = np.flatnonzero(here[:n] != piece.new[:n])
    at = int(differ[0]) if differ.size else n
    offset = piece.offset + at
    inside = (
        f"tensor {shown(name)}, "
        for name, (file, entry) in weights.tensors.items()
        if file == copy.name and entry.start <= offset < entry.stop
    )
    why = "the file ends" if at == here.size else "not as in the base, and no edit declares it"
    if piece.patch is not None and at < here.size:
        column = (offset - piece.patch.start) % piece.patch.row_bytes
        if piece.patch.mask[column]:
            why = "should be zero"
    return CheckFailed(f"{copy}: {next(inside, '')}byte {offset}: {why}")


class _Sha(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class _Ranges:
    """Notes what the patches of one file reach, and keeps what they remove."""

    def __init__(self, file: str, stream: IO[bytes] | None, keep_on: Callable[[], None]) -> None:
        self.file, self._stream, self._keep_on = file, stream, keep_on
        self._tensors: dict[str, tuple[list[Rows], _Sha, _Sha]] = {}
        self._current = ""

    def watch(self, named: Iterator[tuple[str, Patch]]) -> Iterator[Patch]:
        """Pass patches on, and remember whose turn it is."""
        for tensor, patch in named:
            self._current = tensor
            rows, _, _ = self._tensors.setdefault(tensor, ([], hashlib.sha256(), hashlib.sha256()))
            rows.append(
                Rows(
                    start=patch.start,
                    row_bytes=patch.row_bytes,
                    n_rows=patch.n_rows,
                    columns=patch.columns(),
                )
            )
            yield patch

    def see(self, piece: Piece) -> None:
        """Hash and keep the bytes of one piece that a patch reaches."""
        self._keep_on()
        if piece.patch is None:
            return
        old, new = (
            _columns(np.reshape(data, (-1, piece.patch.row_bytes)), piece.patch.columns())
            for data in (piece.old, piece.new)
        )
        _, before, after = self._tensors[self._current]
        before.update(old)
        after.update(new)
        if self._stream is not None:
            self._stream.write(old)

    def written(self) -> tuple[Written, ...]:
        """One record a tensor."""
        return tuple(
            Written(
                tensor=tensor,
                file=self.file,
                rows=tuple(rows),
                sha256_before=before.hexdigest(),
                sha256_after=after.hexdigest(),
            )
            for tensor, (rows, before, after) in self._tensors.items()
        )


def _columns(rows: Bytes, ranges: Sequence[tuple[int, int]]) -> bytes:
    """The bytes of some columns, row by row."""
    parts = [rows[:, a:b] for a, b in ranges]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)).tobytes()


def _linkable(weights: Weights, edited: set[str]) -> tuple[str, ...]:
    # A link through a symlink would be one to a cache's blob, which many models may share.
    names = (name for name in weights.files if name not in edited)
    return tuple(name for name in names if not (weights.folder / name).is_symlink())


def _link(base: Path, folder: Path, name: str) -> None:
    try:
        os.link(base / name, folder / name)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        raise UsageError(
            f"{folder.parent} cannot hold a hard link to {base / name}: {error.strerror}",
            "leave out --link, or choose an output on the file system of the model",
        ) from error


def _open_copy(base: Path, folder: Path) -> Weights:
    try:
        return open_weights(folder / base.name if is_gguf(base) else folder)
    except ModelError as error:
        raise CheckFailed(f"the edited checkpoint is damaged: {error.message}") from error
