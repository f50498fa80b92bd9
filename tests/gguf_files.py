"""GGUF files written by hand, right or wrong in one place."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from editor.ggml_types import GGML_TYPES

NUMBER_OF = {kind.name: number for number, kind in GGML_TYPES.items()}

U8, I32, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 5, 4, 6, 7, 8, 9, 10
_FORMS = {U8: "B", 1: "b", 2: "H", 3: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q"}


def text(raw: str | bytes) -> bytes:
    raw = raw.encode() if isinstance(raw, str) else raw
    return struct.pack("<Q", len(raw)) + raw


def array(inner: int, count: int, raw: bytes = b"") -> bytes:
    return struct.pack("<IQ", inner, count) + raw


def value(key: str | bytes, kind: int, raw: bytes) -> bytes:
    """One metadata value as it stands in a file."""
    return text(key) + struct.pack("<I", kind) + raw


def packed(key: str, what: Any) -> bytes:
    """A Python value under the type that llama.cpp gives it."""
    if isinstance(what, str):
        return value(key, STRING, text(what))
    if isinstance(what, list):
        inner = STRING if what and isinstance(what[0], str) else I32
        parts = (text(one) if inner == STRING else struct.pack("<i", one) for one in what)
        return value(key, ARRAY, array(inner, len(what), b"".join(parts)))
    kind = BOOL if isinstance(what, bool) else F32 if isinstance(what, float) else U32
    return value(key, kind, struct.pack(f"<{_FORMS[kind]}", what))


def tensor(name: str | bytes, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """One line of the tensors' table."""
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def header(
    values: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    *,
    n_values: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    n_values = len(values) if n_values is None else n_values
    counts = struct.pack("<IQQ", version, n_tensors, n_values)
    return magic + counts + b"".join(values) + b"".join(tensors)


class Tensor(NamedTuple):
    kind: str
    shape: tuple[int, ...]
    """ne0 first."""
    data: bytes | None = None
    """None: bytes of zeros."""


def n_bytes(kind: str, shape: Sequence[int]) -> int:
    _, block, size = GGML_TYPES[NUMBER_OF[kind]]
    return prod(shape) // block * size


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A whole file."""
    alignment = metadata.get("general.alignment", 32)
    table: list[bytes] = []
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        table.append(tensor(name, shape, NUMBER_OF[kind], len(data)))
        data += bytes(n_bytes(kind, shape)) if raw is None else raw
        data += bytes(-len(data) % alignment)
    head = header([packed(key, what) for key, what in metadata.items()], table)
    return head + bytes(-len(head) % alignment) + data


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path
