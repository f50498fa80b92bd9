"""The header of a GGUF file, read from untrusted bytes and checked before it is believed.

    "GGUF" | version | counts | metadata: key, type, value | tensors: name, sizes, type, offset
    | padding | the tensors' bytes, each padded to the alignment

Every fault is one `ModelError` that names the file.  No count of the file is believed beyond what
its size allows, and nothing is kept of the long arrays: a tokenizer is skipped, not read.
"""

from __future__ import annotations

import os
import stat
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from editor.errors import ModelError
from editor.ggml_types import GGML_TYPES
from editor.safetensors_header import TensorEntry, shown

MAX_VALUES = 1 << 14
MAX_TENSORS = 1 << 15
MAX_STRINGS = 1 << 22
"""Strings in all arrays together, which have to be walked one by one: a large tokenizer has 10^6.
"""
MAX_PER_LAYER = 4096
"""Elements of an array that holds one number a layer."""
_MAX_NAME = 1024
_MAX_TEXT = 256
_MAX_KEPT = 1 << 16
_MAX_RANK = 4
_MAX_DIM = 1 << 63
_WINDOW = 1 << 20


# Types of metadata values, by the number that the file uses.
_SCALARS = {
    kind: struct.Struct(f"<{form}")
    for kind, form in {
        **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i"},
        **{6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"},
    }.items()
}
_WHOLE = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_U32_KIND, _STRING, _ARRAY = 4, 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_ALIGNMENT = "general.alignment"
_PER_LAYER = (".attention.head_count", ".attention.head_count_kv")
_DOWNLOAD = "the file is damaged or is not what its name says: download it again"

Value = str | int | float | tuple[int, ...]


class GgufHeader(NamedTuple):
    """What a GGUF file says of itself."""

    tensors: dict[str, TensorEntry]
    """In the order of their bytes.  `dtype` is ggml's name of the type; `shape` is (ne0, ne1, ...),
    the row's width first; `start` and `stop` are byte offsets from the file's beginning."""
    metadata: dict[str, Value]
    """Single values, long text cut; of the arrays only those that count heads layer by layer."""
    alignment: int
    file_bytes: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check the header of one GGUF file; the tensors' bytes are not read.

    Args:
        path: The file.

    Returns:
        The tensors with their place in the file, and the metadata.

    Raises:
        ModelError: The file is missing, cut off, padded, one part of several, or contradicts
            itself.
    """
    try:
        # Opening a pipe would wait for its other end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path}: expected a GGUF file, found a folder or device")
        with path.open("rb") as stream:
            return _read(_Cursor(path, stream, os.fstat(stream.fileno()).st_size))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", "check the path") from error


class _Cursor:
    """A place in the file, which can only move forward and not beyond the end."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path = path
        self.size = size
        self.n_strings = 0
        self.n_kept = 0
        self._stream = stream
        self._window = b""
        self._base = 0
        self._at = 0

    @property
    def position(self) -> int:
        return self._base + self._at

    def fail(self, what: str, hint: str = _DOWNLOAD) -> NoReturn:
        raise ModelError(f"{self.path}: {what}", hint)

    def require(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.size - self.position:
            self.fail(
                f"it is cut off, or its header is damaged: {what} at byte {self.position} "
                f"takes {n_bytes:,} bytes, but the file has {self.size:,}"
            )

    def skip(self, n_bytes: int, what: str) -> None:
        self.require(n_bytes, what)
        self._at += n_bytes

    def peek(self, n_bytes: int) -> bytes:
        """The next few bytes, or as many as there are; the cursor stays."""
        start = self._see(n_bytes)
        return self._window[start : start + n_bytes]

    def take(self, n_bytes: int, what: str) -> bytes:
        """The next few bytes: no more than a window holds."""
        start = self._see(n_bytes)
        self.skip(n_bytes, what)
        return self._window[start : start + n_bytes]

    def number(self, form: struct.Struct, what: str) -> int:
        return form.unpack(self.take(form.size, what))[0]

    def name(self, what: str) -> str:
        length = self.number(_U64, f"the length of {what}")
        if length > _MAX_NAME:
            self.fail(f"{what} may have {_MAX_NAME} bytes, this one claims {length:,}")
        raw = self.take(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} should be UTF-8, found {shown(raw)}")

    def text(self, what: str) -> str:
        """A string's beginning; the rest is skipped."""
        length = self.number(_U64, f"the length of {what}")
        self.require(length, what)
        kept = self.take(min(length, _MAX_TEXT), what)
        self.skip(length - len(kept), what)
        return kept.decode("utf-8", "replace")

    def skip_strings(self, count: int, what: str) -> None:
        self.n_strings += count
        if self.n_strings > MAX_STRINGS:
            self.fail(f"{what}: arrays may hold {MAX_STRINGS:,} strings, these are more")
        unpack = _U64.unpack_from
        while count:
            at = start = self._see(8)
            window, last = self._window, len(self._window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            # Nothing was seen where the file ends: the skip says so.
            self.skip(max(at - start, 8), what)

    def _see(self, n_bytes: int) -> int:
        """Load what comes next, unless it is there; the place of the cursor in the window."""
        if self._at + n_bytes > len(self._window) and self.position < self.size:
            self._base, self._at = self.position, 0
            self._stream.seek(self._base)
            self._window = self._stream.read(_WINDOW)
            if len(self._window) < min(_WINDOW, self.size - self._base):
                self.fail("the file became shorter while it was read")
        return self._at


def _read(cursor: _Cursor) -> GgufHeader:
    _check_magic(cursor)
    n_tensors = cursor.number(_U64, "the count of tensors")
    n_values = cursor.number(_U64, "the count of metadata values")
    # The least that a value and a tensor can take in the file.
    for count, limit, least, what in (
        (n_values, MAX_VALUES, 13, "metadata values"),
        (n_tensors, MAX_TENSORS, 24, "tensors"),
    ):
        if count > limit or count * least > cursor.size:
            most = min(limit, cursor.size // least)
            cursor.fail(f"a file of {cursor.size:,} bytes may hold {most:,} {what}, not {count:,}")
    metadata: dict[str, Value] = {}
    _read_metadata(cursor, n_values, metadata)
    alignment = _alignment(cursor, metadata)
    _check_split(cursor, metadata)
    if not n_tensors:
        cursor.fail("it holds no tensors", "name the file that holds the weights")
    relative = _read_tensors(cursor, n_tensors)
    start = _padded(cursor.position, alignment)
    entries = [
        (name, entry._replace(start=entry.start + start, stop=entry.stop + start))
        for name, entry in relative.items()
    ]
    entries.sort(key=lambda pair: pair[1].start)
    _check_cover(cursor, entries, data_start=start, alignment=alignment)
    return GgufHeader(dict(entries), metadata, alignment, cursor.size)


def _check_magic(cursor: _Cursor) -> None:
    beginning = cursor.peek(24)
    if beginning.startswith(b"version https://git-lfs"):
        cursor.fail(
            f"expected GGUF, found a Git LFS pointer of {cursor.size} bytes",
            "run `git lfs pull` in the folder, or download the file itself",
        )
    if (magic := beginning[:4]) != b"GGUF":
        cursor.fail(f"it is no GGUF file: it starts with {magic!r}, expected b'GGUF'")
    if len(beginning) < 24:
        cursor.fail(f"it is cut off: a GGUF file has at least 24 bytes, this one {cursor.size}")
    (version,) = _U32.unpack_from(beginning, 4)
    if int.from_bytes(beginning[4:8], "big") in (2, 3):
        cursor.fail("it is a big-endian GGUF file", "convert it with gguf-convert-endian")
    if version not in (2, 3):
        cursor.fail(
            f"it has GGUF version {version}, expected 2 or 3",
            "convert the model again with a current llama.cpp" if version == 1 else _DOWNLOAD,
        )
    cursor.skip(8, "the beginning")


def _read_metadata(cursor: _Cursor, n_values: int, metadata: dict[str, Value]) -> None:
    seen: set[str] = set()
    for _ in range(n_values):
        key = cursor.name("a metadata key")
        if key in seen:
            # Readers differ in whether the first or the last one counts.
            cursor.fail(f"the metadata key {shown(key)} is given twice")
        seen.add(key)
        where = f"metadata {shown(key)}"
        kind = cursor.number(_U32, where)
        if key == _ALIGNMENT and kind != _U32_KIND:
            cursor.fail(f"{where} should be of type {_U32_KIND} (uint32), found type {kind}")
        if (value := _value(cursor, key, kind, where)) is not None:
            metadata[key] = value


def _value(cursor: _Cursor, key: str, kind: int, where: str) -> Value | None:
    """The value, or None of one that is skipped."""
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind], where)
    if kind == _STRING:
        return cursor.text(where)
    if kind != _ARRAY:
        cursor.fail(f"{where} has the unknown type {kind}")
    inner, count = cursor.number(_U32, where), cursor.number(_U64, where)
    if inner == _STRING:
        # A string takes 8 bytes at least: a count that cannot be is refused before it is walked.
        cursor.require(count * 8, where)
        cursor.skip_strings(count, where)
        return None
    if inner not in _SCALARS:
        kinds = "arrays" if inner == _ARRAY else f"values of the unknown type {inner}"
        cursor.fail(f"{where} is an array of {kinds}, expected numbers or strings")
    if inner in _WHOLE and key.endswith(_PER_LAYER):
        return _per_layer(cursor, _SCALARS[inner], count, where)
    cursor.skip(count * _SCALARS[inner].size, where)
    return None


def _per_layer(cursor: _Cursor, form: struct.Struct, count: int, where: str) -> tuple[int, ...]:
    cursor.n_kept += count
    if count > MAX_PER_LAYER:
        cursor.fail(f"{where} may hold {MAX_PER_LAYER} numbers, one a layer, found {count:,}")
    if cursor.n_kept > _MAX_KEPT:
        cursor.fail(f"{where}: arrays of one number a layer may hold {_MAX_KEPT:,} in all")
    raw = cursor.take(count * form.size, where)
    return tuple(number for (number,) in form.iter_unpack(raw))


def _alignment(cursor: _Cursor, metadata: dict[str, Value]) -> int:
    alignment = metadata.get(_ALIGNMENT, 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        cursor.fail(f"{_ALIGNMENT} should be a power of two, found {shown(alignment)}")
    return alignment


def _check_split(cursor: _Cursor, metadata: dict[str, Value]) -> None:
    parts = metadata.get("split.count", 0)
    if not isinstance(parts, int) or parts > 1:
        cursor.fail(
            f"it is one of {shown(parts)} parts of a model, expected one whole file",
            "merge the parts first: llama-gguf-split --merge FIRST-PART WHOLE.gguf",
        )


def _read_tensors(cursor: _Cursor, n_tensors: int) -> dict[str, TensorEntry]:
    """The tensors' table; offsets count from the first tensor's byte."""
    tensors: dict[str, TensorEntry] = {}
    for _ in range(n_tensors):
        name = cursor.name("a tensor's name")
        if name in tensors:
            cursor.fail(f"there are two tensors {shown(name)}")
        tensors[name] = _tensor(cursor, f"tensor {shown(name)}")
    return tensors


def _tensor(cursor: _Cursor, where: str) -> TensorEntry:
    rank = cursor.number(_U32, where)
    if rank > _MAX_RANK:
        cursor.fail(f"{where} may have {_MAX_RANK} sizes, found {rank}")
    shape = tuple(cursor.number(_U64, where) for _ in range(rank))
    if any(not 1 <= size < _MAX_DIM for size in shape):
        cursor.fail(f"{where} should have sizes from 1, found {list(shape)}")
    number, start = cursor.number(_U32, where), cursor.number(_U64, where)
    kind = GGML_TYPES.get(number)
    if kind is None:
        cursor.fail(
            f"{where} has the type {number}, which is unknown",
            "the file is damaged, or newer than this program: update it",
        )
    width = shape[0] if shape else 1
    if width % kind.block:
        cursor.fail(f"{where}: rows of {width} are no whole {kind.name} blocks of {kind.block}")
    return TensorEntry(kind.name, shape, start, start + prod(shape) // kind.block * kind.n_bytes)


def _check_cover(
    cursor: _Cursor, entries: list[tuple[str, TensorEntry]], *, data_start: int, alignment: int
) -> None:
    end, before = data_start, "the header"
    for name, entry in entries:
        where = f"tensor {shown(name)}"
        if (entry.start - data_start) % alignment:
            cursor.fail(f"{where} should start at a multiple of {alignment} bytes")
        if entry.start < end:
            cursor.fail(f"{where} overlaps {before}: it starts at byte {entry.start:,}")
        # Bytes that belong to nothing are how llama.cpp finds a wrong offset, too.
        if entry.start != _padded(end, alignment):
            cursor.fail(
                f"{where} leaves a gap after {before}: it starts at byte {entry.start:,}, "
                f"expected {_padded(end, alignment):,}"
            )
        if entry.stop > cursor.size:
            cursor.fail(
                f"it is cut off: {where} ends at byte {entry.stop:,}, "
                f"but the file has {cursor.size:,}"
            )
        end, before = entry.stop, where
    if cursor.size > _padded(end, alignment):
        cursor.fail(
            f"it is padded: the last tensor ends at byte {end:,}, but the file has {cursor.size:,}"
        )


def _padded(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
