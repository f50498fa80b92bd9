"""The header of a safetensors file, read from untrusted bytes and checked before it is believed.

    8 bytes: header length, little-endian | JSON header | the tensors' bytes, without gaps

Every fault is one `ModelError` that names the file: nothing after this module meets an offset that
lies outside of the file or a shape that does not fit its bytes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

from editor.errors import ModelError

MAX_HEADER_BYTES = 100_000_000
"""The cap of the safetensors library itself."""
MAX_COMPANION_BYTES = 64 << 20
"""A larger tensor is none of those that lie beside a quantized weight: scales, zero points."""
MAX_JSON_PARTS = 1 << 20
"""Values of a JSON text, counted by their commas and brackets.  Each takes up to 300 bytes
of memory.  A tensor of a header makes 8 of them, one of an index 1: the largest has 140,000."""
MAX_WIDE_BYTES = 16 << 20
"""Of a JSON text that is not all ASCII: each of its characters may take 4 bytes of memory."""
_MAX_RANK = 16
_MAX_DIM = 1 << 62
_LENGTH_BYTES = 8

DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element, by the name that safetensors writes."""


class TensorEntry(NamedTuple):
    """One tensor of a file; `start` and `stop` are byte offsets from the file's beginning."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """What a safetensors file says of itself."""

    tensors: dict[str, TensorEntry]
    metadata: dict[str, str]
    header_bytes: int
    """Length of the JSON text, padding included."""
    file_bytes: int


def shown(value: object, limit: int = 80) -> str:
    """`value` for an error message: control characters escaped, cut to about `limit` characters."""
    # A file's own text is quoted by repr, so it cannot move the cursor of the reader's terminal.
    if isinstance(value, dict | list):
        return f"a JSON {'object' if isinstance(value, dict) else 'array'}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def parse_json(text: bytes, path: Path, *, what: str) -> dict[str, object]:
    """Read one JSON object from an untrusted file.

    Args:
        text: The bytes, UTF-8.
        path: The file they came from, for the message.
        what: What the text is, for the message.

    Raises:
        ModelError: Not UTF-8, not JSON, nested without end, not an object, a key given twice, or
            more than there is memory for.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_JSON_PARTS:
        _damaged(path, f"{what} may hold {MAX_JSON_PARTS} values, found more")
    if len(text) > MAX_WIDE_BYTES and not text.isascii():
        _damaged(path, f"{what} of more than {MAX_WIDE_BYTES} bytes should be ASCII")
    try:
        value: object = json.loads(text.decode("utf-8"), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{path}: {what} should be a JSON object, but it cannot be read: {error}", _DOWNLOAD
        ) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: {what} should be a JSON object, found {shown(value)}", _DOWNLOAD)
    return cast("dict[str, object]", value)


def read_header(path: Path) -> Header:
    """Read and check the header of one safetensors file; the tensors' bytes are not read.

    Args:
        path: The file.

    Returns:
        The tensors in the order of their bytes, with offsets from the beginning of the file.

    Raises:
        ModelError: The file is missing, cut short, padded, or contradicts itself.
    """
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            length = _header_length(path, file.read(_LENGTH_BYTES), file_bytes)
            text = file.read(length)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", "check the path") from error
    if len(text) != length or not text.startswith(b"{"):
        _damaged(path, "the header should begin with '{'")
    content = parse_json(text, path, what="the safetensors header")
    metadata = _metadata(path, content.pop("__metadata__", {}))
    data_start = _LENGTH_BYTES + length
    entries = [(name, _entry(path, name, raw, data_start)) for name, raw in content.items()]
    entries.sort(key=lambda pair: (pair[1].start, pair[1].stop))
    _check_cover(path, entries, data_start=data_start, file_bytes=file_bytes)
    return Header(dict(entries), metadata, length, file_bytes)


_DOWNLOAD = "the file is damaged or is not what its name says: download it again"


def _damaged(path: Path, what: str) -> NoReturn:
    raise ModelError(f"{path}: {what}", _DOWNLOAD)


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of JSON from its pairs, for `object_pairs_hook`.

    Raises:
        ValueError: a key is given twice.
    """
    # json keeps the last of two equal keys and other readers the first: both would be "right".
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {shown(twice)} is given twice")
    return content


def _header_length(path: Path, prefix: bytes, file_bytes: int) -> int:
    if prefix.startswith(b"version https://git-lfs"[:_LENGTH_BYTES]):
        raise ModelError(
            f"{path}: expected safetensors, found a Git LFS pointer of {file_bytes} bytes",
            "run `git lfs pull` in the folder, or download the file itself",
        )
    if len(prefix) < _LENGTH_BYTES:
        _damaged(path, f"a safetensors file has at least 8 bytes, this one has {file_bytes}")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        _damaged(path, f"the header may have {MAX_HEADER_BYTES} bytes, this one claims {length}")
    if length > file_bytes - _LENGTH_BYTES:
        _damaged(path, f"the header claims {length} bytes, but the file ends at {file_bytes}")
    return length


def _metadata(path: Path, raw: object) -> dict[str, str]:
    if not isinstance(raw, dict):
        _damaged(path, f"__metadata__ should be an object of strings, found {shown(raw)}")
    metadata: dict[str, str] = {}
    for key, value in cast("dict[str, object]", raw).items():
        if not isinstance(value, str):
            _damaged(path, f"__metadata__ {shown(key)} should be a string, found {shown(value)}")
        metadata[key] = value
    return metadata


def _entry(path: Path, name: str, raw: object, data_start: int) -> TensorEntry:
    where = f"tensor {shown(name)}"
    fields = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    if set(fields) != {"dtype", "shape", "data_offsets"}:
        _damaged(path, f"{where} should have exactly dtype, shape and data_offsets")
    dtype = fields["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        _damaged(path, f"{where} has the unknown dtype {shown(dtype)}")
    shape = _sizes(path, f"shape of {where}", fields["shape"])
    offsets = _sizes(path, f"data_offsets of {where}", fields["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _damaged(path, f"data_offsets of {where} should be two rising numbers")
    bits = DTYPE_BITS[dtype]
    for size in shape:
        bits *= size
    start, stop = offsets
    if bits != 8 * (stop - start):
        wanted = f"{dtype} {list(shape)} takes {bits // 8} bytes"
        _damaged(path, f"{where}: {wanted}, but its offsets hold {stop - start}")
    return TensorEntry(dtype, shape, data_start + start, data_start + stop)


def _sizes(path: Path, what: str, raw: object) -> tuple[int, ...]:
    values = cast("list[object]", raw) if isinstance(raw, list) else None
    if values is None or len(values) > _MAX_RANK:
        _damaged(path, f"{what} should be an array of at most {_MAX_RANK} sizes")
    sizes: list[int] = []
    for value in values:
        # bool is an int to Python, but not to safetensors.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_DIM:
            _damaged(path, f"{what} should hold whole numbers from 0, found {shown(value)}")
        sizes.append(value)
    return tuple(sizes)


def _check_cover(
    path: Path, entries: list[tuple[str, TensorEntry]], *, data_start: int, file_bytes: int
) -> None:
    end, before = data_start, "the header"
    for name, entry in entries:
        if entry.stop > file_bytes:
            _damaged(
                path,
                f"tensor {shown(name)} should end at byte {entry.stop}, "
                f"but the file has {file_bytes} bytes",
            )
        if entry.start != end:
            fault = "overlaps" if entry.start < end else "leaves a gap after"
            _damaged(
                path,
                f"tensor {shown(name)} {fault} {before}: "
                f"it starts at byte {entry.start}, expected {end}",
            )
        end, before = entry.stop, f"tensor {shown(name)}"
    if end != file_bytes:
        _damaged(path, f"the tensors end at byte {end}, but the file has {file_bytes} bytes")
