"""Files copied with some of their bits set: the one place that writes what an edit changes.

    source --walk--> (old, new) pieces in the order of the file --> hashes of both, and a new file

A `Patch` says which bits of which rows take which value.  It knows nothing of formats, tensors or
heads, and holds no more than one row (or, where every row has its own value, one slice).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from editor.direct_file import DirectFile
from editor.errors import ModelError

Bytes = npt.NDArray[np.uint8]

CHUNK_BYTES = 1 << 20
"""Size of the pieces that are read, patched, hashed and written; a row is never cut."""
AHEAD = 8
"""Pieces whose arrays stay valid: while one is written, those before it may be hashed."""


MAX_ROW_BYTES = 8 << 20
"""A longer row is no row of a weight.  Some `AHEAD` rows, their masks and their new bytes are in
memory at a time."""


class Patch(NamedTuple):
    """Set bits in `n_rows` neighbouring rows of `row_bytes` bytes each: old & ~mask | value."""

    start: int
    """Offset of the first row from the beginning of the file."""
    row_bytes: int
    n_rows: int
    mask: Bytes
    """uint8 (row_bytes,): the bits that are set, the same in every row."""
    value: Bytes
    """uint8 (1, row_bytes), or (n_rows, row_bytes) where rows differ: 0 outside of the mask."""

    @property
    def stop(self) -> int:
        """Offset of the first byte after the last row."""
        return self.start + self.n_rows * self.row_bytes

    def columns(self) -> tuple[tuple[int, int], ...]:
        """The ranges of bytes of a row that hold set bits, in order."""
        if self.mask.all():
            return ((0, self.row_bytes),)
        edges = np.flatnonzero(np.diff(np.concatenate(([0], self.mask != 0, [0]))))
        return tuple((int(a), int(b)) for a, b in np.reshape(edges, (-1, 2)))

    def applied(self, rows: Bytes, first: int) -> Bytes:
        """A copy of `rows`, uint8 (n, row_bytes), which begin at row `first`, with the bits set."""
        new: Bytes = np.array(rows)
        value = self.value if len(self.value) == 1 else self.value[first : first + len(rows)]
        for a, b in self.columns():
            new[:, a:b] = (rows[:, a:b] & ~self.mask[a:b]) | value[:, a:b]
        return new


class Piece(NamedTuple):
    """Neighbouring bytes of a file, as they are and as they shall be."""

    offset: int
    old: Bytes
    new: Bytes
    """The same array as `old` where no patch reaches."""
    patch: Patch | None


class Digests(NamedTuple):
    """sha256 in hex of a file as it is and as it shall be, and how many of its bytes differ."""

    before: str
    after: str
    n_bytes: int
    n_changed: int


def walk(path: Path, patches: Iterable[Patch]) -> Generator[Piece]:
    """Read a file once, from beginning to end.

    Args:
        path: The file.
        patches: In the order of the file, apart from each other; taken one by one, when the walk
            gets there.

    Yields:
        Pieces without gaps, of which the last `AHEAD` are valid: buffers are used again.

    Raises:
        ModelError: The file changes while it is read, or ends before a patch does.
        OSError: It cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        began = os.fstat(file.fileno())
        # Not to its end: a file that grows as fast as it is read would have none.
        yield from _pieces(file, patches, began.st_size)
        ended = os.fstat(file.fileno())
    if (began.st_size, began.st_mtime_ns) != (ended.st_size, ended.st_mtime_ns):
        raise ModelError(
            f"{path}: changed while it was read",
            "make sure that nothing writes to the model's folder, and try again",
        )


def walk_part(path: Path, start: int, stop: int, patches: Iterable[Patch]) -> Generator[Piece]:
    """As `walk`, for the bytes [start, stop) of a file."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        yield from _pieces(file, patches, stop)


def digests(pieces: Iterable[Piece], use: Callable[[Piece], None]) -> Digests:
    """Hash what a walk yields, both as it is and as it shall be, while `use` works on it.

    Until the first patch the two are the same and hashed once.
    """
    before = hashlib.sha256()
    after, n_bytes, n_changed = before, 0, 0
    with _hashing() as hash_later:
        for piece in pieces:
            if piece.patch is not None and after is before:
                hash_later.wait()
                after = before.copy()
            hash_later(before.update, piece.old.data)
            if after is not before:
                hash_later(after.update, piece.new.data)
            use(piece)
            n_bytes += piece.old.size
            if piece.new is not piece.old:
                n_changed += int(np.count_nonzero(piece.old != piece.new))
            hash_later.next_piece()
    return Digests(before.hexdigest(), after.hexdigest(), n_bytes, n_changed)


def copy_patched(
    source: Path, target: Path, patches: Iterable[Patch], use: Callable[[Piece], None] | None = None
) -> Digests:
    """Write a patched copy of a file: read, set, hash and write in one pass.

    Args:
        source: The file.
        target: The copy, which must not exist.
        patches: As for `walk`.
        use: Sees every piece too, before it is written.

    Raises:
        ModelError: See `walk`.
        OSError: One of the two files cannot be read or written.
    """
    with DirectFile(target) as file:

        def write(piece: Piece) -> None:
            if use is not None:
                use(piece)
            file.write(piece.new)

        return digests(walk(source, patches), write)


def _pieces(file: FileIO, patches: Iterable[Patch], stop: int) -> Iterator[Piece]:
    reader = _Reader(file)
    for patch in patches:
        yield from reader.plain(patch.start)
        yield from reader.patched(patch)
    yield from reader.plain(stop)


class _Reader:
    """Reads pieces into a ring of buffers: fresh memory for each would cost as much as the copy."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._ring = [np.empty(0, np.uint8)] * (AHEAD + 1)
        self._next = 0

    def plain(self, stop: int) -> Iterator[Piece]:
        """Pieces from where the file stands to `stop`."""
        offset = self._file.tell()
        while offset < stop:
            size = min(CHUNK_BYTES, stop - offset)
            data = self._read(size)
            if data.size < size:
                raise self._short(stop)
            yield Piece(offset, data, data, None)
            offset += data.size

    def patched(self, patch: Patch) -> Iterator[Piece]:
        """Pieces of whole rows."""
        offset = self._file.tell()
        if offset != patch.start:
            raise ValueError("patches must be in the order of the file and apart from each other")
        step = max(1, CHUNK_BYTES // patch.row_bytes)
        for first in range(0, patch.n_rows, step):
            size = min(step, patch.n_rows - first) * patch.row_bytes
            data = self._read(size)
            if data.size < size:
                raise self._short(patch.stop)
            new = patch.applied(np.reshape(data, (-1, patch.row_bytes)), first)
            yield Piece(offset, data, new.ravel(), patch)
            offset += size

    def _read(self, size: int) -> Bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        self._next = (self._next + 1) % len(self._ring)
        if self._ring[self._next].size < size:
            self._ring[self._next] = np.empty(max(size, CHUNK_BYTES), np.uint8)
        data = self._ring[self._next][:size]
        view, n = data.data, 0
        while n < size and (more := self._file.readinto(view[n:])):
            n += more
        return data[:n]

    def _short(self, stop: int) -> ModelError:
        return ModelError(
            f"{self._file.name}: ends at byte {self._file.tell()}, expected at least {stop}",
            "the file is damaged or being written: download it again",
        )


_Update = Callable[[memoryview], None]


class _HashLater:
    """Hash updates on a thread a hash, in order, while the caller reads and writes."""

    def __init__(self) -> None:
        self._threads: dict[_Update, ThreadPoolExecutor] = {}
        self._waiting: list[list[Future[None]]] = [[]]

    def __call__(self, update: _Update, data: memoryview) -> None:
        if update not in self._threads:
            self._threads[update] = ThreadPoolExecutor(1)
        self._waiting[-1].append(self._threads[update].submit(update, data))

    def next_piece(self) -> None:
        """Wait until all but the last pieces are hashed: their buffers are used again."""
        self._waiting.append([])
        while len(self._waiting) > AHEAD:
            for future in self._waiting.pop(0):
                future.result()

    def wait(self) -> None:
        """Wait until everything is hashed."""
        for future in (one for piece in self._waiting for one in piece):
            future.result()

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown()


@contextmanager
def _hashing() -> Generator[_HashLater]:
    later = _HashLater()
    try:
        yield later
        later.wait()
    finally:
        later.close()
