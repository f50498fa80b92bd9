"""Where a block of each of ggml's types keeps its numbers, as data.

A block stores small whole numbers (*codes*) and what turns them into weights: a half-precision
scale `d`, in some types an offset `dmin`, and in the K types, whose blocks of 256 are cut into
*groups*, a small scale (and offset) a group.  The numbers are packed: each is described by the
bytes and bits that hold it.

Source: `ggml-common.h` and `dequantize_row_*` of `ggml-quants.c` in ggml-org/llama.cpp.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from editor.errors import ModelError
from editor.ggml_types import BLOCKS
from editor.patching import Bytes
from editor.safetensors_header import shown

_Places = npt.NDArray[np.intp]

EDITABLE = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
"""The types of which a slice can be zeroed."""

FLOATS = ("F32", "F16", "BF16")
"""Those of them that have no codes."""


class Part(NamedTuple):
    """Some bits of each of n numbers."""

    byte: _Places
    """(n,): the byte of the block that holds them."""
    shift: Bytes
    """(n,): how far from the byte's lowest bit."""
    n_bits: int
    up: int = 0
    """How far from the number's lowest bit."""


class Field(NamedTuple):
    """n whole numbers, packed into a block."""

    parts: tuple[Part, ...]
    zero: int = 0
    """The number that stands for 0."""
    signed: bool = False


class Layout(NamedTuple):
    """Where a block keeps its numbers."""

    group: int
    """Elements that share a scale."""
    codes: Field
    """One an element."""
    d: int | None = None
    """Offset of the block's scale, float16."""
    dmin: int | None = None
    """Offset of the block's offset, float16.  Without it a code for zero exists."""
    scales: Field | None = None
    """One a group."""
    mins: Field | None = None
    """One a group: times `dmin`, and subtracted.  Without it `dmin` itself is added."""


def layout_of(type_name: str) -> Layout:
    """The layout of a type's blocks.

    Raises:
        ModelError: The type is not among `EDITABLE`.
    """
    if type_name not in EDITABLE:
        raise ModelError(
            f"weights of the type {shown(type_name)} cannot be edited",
            f"the types that can: {', '.join(EDITABLE)}",
        )
    return _build(type_name)


@cache
def _build(type_name: str) -> Layout:
    if type_name in FLOATS:
        n_bytes = BLOCKS[type_name].n_bytes
        places = range(n_bytes)
        return Layout(1, Field(tuple(_part([at], [0], 8, 8 * at) for at in places)))
    if type_name.endswith("_K"):
        return _K_LAYOUTS[type_name]()
    return _small(type_name)


def _part(byte: npt.ArrayLike, shift: npt.ArrayLike, n_bits: int, up: int = 0) -> Part:
    return Part(np.asarray(byte, np.intp), np.asarray(shift, np.uint8), n_bits, up)


def _small(type_name: str) -> Layout:
    """Blocks of 32: d, dmin (of the types _1), fifth bits (of the types Q5), codes."""
    at = np.arange(32)
    if type_name == "Q8_0":
        return Layout(32, Field((_part(2 + at, 0 * at, 8),), signed=True), d=0)
    dmin = 2 if type_name.endswith("_1") else None
    codes = 2 if dmin is None else 4
    parts: tuple[Part, ...] = ()
    if type_name.startswith("Q5"):
        parts = (_part(codes + at // 8, at % 8, 1, up=4),)
        codes += 4
    # The first 16 elements are the low halves of the bytes, the others the high halves.
    low = _part(codes + at % 16, at // 16 * 4, 4)
    middle = 16 if parts else 8
    return Layout(32, Field((low, *parts), middle if dmin is None else 0), d=0, dmin=dmin)


def _twos(start: int) -> Part:
    """Two bits an element: of each half of the block, quarter q is bits 2q of the same 32 bytes."""
    at = np.arange(256)
    return _part(start + at // 128 * 32 + at % 32, at % 128 // 32 * 2, 2)


def _fours(start: int) -> Part:
    """Four bits an element: of each 64, the first 32 are the low halves of 32 bytes."""
    at = np.arange(256)
    return _part(start + at // 64 * 32 + at % 32, at % 64 // 32 * 4, 4)


def _ones(start: int, up: int) -> Part:
    """One bit an element: each 32 are the same bit of 32 bytes."""
    at = np.arange(256)
    return _part(start + at % 32, at // 32, 1, up)


def _q2_k() -> Layout:
    at = np.arange(16)
    scales, mins = _part(at, 0 * at, 4), _part(at, 0 * at + 4, 4)
    return Layout(
        group=16,
        codes=Field((_twos(16),)),
        d=80,
        dmin=82,
        scales=Field((scales,)),
        mins=Field((mins,)),
    )


def _q3_k() -> Layout:
    at = np.arange(16)
    low = _part(96 + at % 8, at // 8 * 4, 4)
    high = _part(104 + at % 4, at // 4 * 2, 2, up=4)
    return Layout(
        group=16,
        codes=Field((_twos(32), _ones(0, up=2)), zero=4),
        d=108,
        scales=Field((low, high), zero=32),
    )


def _six_bits(*, low: npt.ArrayLike, low_shift: int, high: int) -> Field:
    """Eight numbers of six bits in the 12 bytes from 4 on (`get_scale_min_k4`).

    The first four have a byte each; the others have half of a byte, and their two highest bits are
    the two that the first four leave free.
    """
    shift = np.where(np.arange(8) < 4, 0, low_shift)
    spare = [*range(high, high + 4)] * 2
    return Field((_part(low, shift, 4), _part(spare, [4] * 4 + [6] * 4, 2, up=4)))


def _q4_k() -> Layout:
    return Layout(
        group=32,
        codes=Field((_fours(16),)),
        d=0,
        dmin=2,
        scales=_six_bits(low=[4, 5, 6, 7, 12, 13, 14, 15], low_shift=0, high=4),
        mins=_six_bits(low=[8, 9, 10, 11, 12, 13, 14, 15], low_shift=4, high=8),
    )


def _q5_k() -> Layout:
    return _q4_k()._replace(codes=Field((_fours(48), _ones(16, up=4))))


def _q6_k() -> Layout:
    at, group = np.arange(256), np.arange(16)
    low = _part(at // 128 * 64 + at % 64, at % 128 // 64 * 4, 4)
    return Layout(
        group=16,
        codes=Field((low, _twos(128)._replace(up=4)), zero=32),
        d=208,
        scales=Field((_part(192 + group, 0 * group, 8),), signed=True),
    )


_K_LAYOUTS = {"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
