"""How ggml's types pack a row of weights, and the bits that make a slice of it exactly zero.

    type, slices --zero_rows--> mask, value: old & ~mask | value is 0 in the slices, else unchanged

A block stores small whole numbers (*codes*) and what turns them into weights: a half-precision
scale `d`, in some types an offset `dmin`, and in the K types, whose blocks of 256 are cut into
*groups*, a small scale (and offset) a group.  A slice is zeroed by its codes; where it covers a
whole group or block, the group's or block's scales are zeroed, too, so that nothing is left of it.

Where a block keeps its numbers is in `ggml_layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from editor.errors import ModelError
from editor.ggml_layouts import EDITABLE, FLOATS, Field, layout_of
from editor.ggml_types import BLOCKS
from editor.patching import Bytes, Patch
from editor.safetensors_header import TensorEntry

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

_CHUNK = 1 << 20  # elements that are multiplied out at a time


def zero_rows(type_name: str, width: int, slices: Sequence[tuple[int, int]]) -> tuple[Bytes, Bytes]:
    """The bits that zero slices of a row.

    Where a slice covers whole blocks, its weights become +0.0.  Elsewhere they are the block's
    finite scale times zero, which is -0.0 where that scale is negative.

    Args:
        type_name: ggml's name of the type.
        width: Elements of the row.
        slices: Elements [start, stop) to zero.

    Returns:
        mask and value, each uint8 (bytes of the row,): `old & ~mask | value` is the new row.

    Raises:
        ModelError: The type has no zero, or only whole groups of it can be zeroed and a slice
            begins or ends inside of one.
        ValueError: The row is not whole blocks, or a slice lies outside of it.
    """
    layout = layout_of(type_name)
    _, block, n_bytes = BLOCKS[type_name]
    chosen = _chosen(type_name, width, slices)
    groups = np.reshape(chosen, (len(chosen), -1, layout.group))
    whole: Flags = np.asarray(groups.all(axis=2))
    if layout.dmin is not None and (groups.any(axis=2) & ~whole).any():
        raise ModelError(
            f"{type_name} can be zeroed in whole blocks of {layout.group} only, "
            f"but a head begins or ends inside of one",
            "choose neighbouring heads that fill whole blocks, or another type of the file",
        )
    mask = np.zeros((width // block, n_bytes), np.uint8)
    value = np.zeros_like(mask)
    _set_zero(mask, value, layout.codes, chosen)
    for field in (layout.scales, layout.mins):
        if field is not None:
            _set_zero(mask, value, field, whole)
    for offset in (layout.d, layout.dmin):
        if offset is not None:
            mask[chosen.all(axis=1), offset : offset + 2] = 0xFF
    return mask.ravel(), value.ravel()


def obstacle(type_name: str, head_dim: int) -> str:
    """Why a single head of `head_dim` elements cannot be zeroed in this type; "" if it can."""
    if type_name not in EDITABLE:
        return f"{type_name} cannot be edited"
    layout = layout_of(type_name)
    if layout.dmin is not None and head_dim % layout.group:
        return f"heads of {head_dim} are no whole {type_name} blocks of {layout.group}"
    return ""


def patches(entry: TensorEntry, slices: Sequence[tuple[int, int]]) -> list[Patch]:
    """What to write into the file so that slices of every row of a tensor are zero.

    Args:
        entry: The tensor, of the shape (width, rows, ...).
        slices: Elements [start, stop) of each row.

    Returns:
        One patch, or none where there is nothing to zero.

    Raises:
        ModelError: As `zero_rows`.
        ValueError: As `zero_rows`.
    """
    mask, value = zero_rows(entry.dtype, entry.shape[0], slices)
    if not mask.any():
        return []
    return [Patch(entry.start, len(mask), prod(entry.shape[1:]), mask, value[None])]


def nonzero_at(
    type_name: str, width: int, rows: Bytes, slices: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    """Find a weight in the slices that is not zero, however the zero is written.

    Args:
        type_name: ggml's name of the type.
        width: Elements of a row.
        rows: uint8 (n_rows, bytes of a row).
        slices: Elements [start, stop) of each row.

    Returns:
        Row and column of the first one (NaN is not zero), or None.

    Raises:
        ModelError: The type cannot be read.
        ValueError: As `zero_rows`, or the rows have another length.
    """
    chosen = _chosen(type_name, width, slices)
    blocks = _blocks(type_name, rows)
    if blocks.shape[1] != len(chosen):
        raise ValueError(f"{width} elements of {type_name} are {len(chosen)} blocks a row")
    touched = np.nonzero(chosen.any(axis=1))[0]
    if not touched.size:
        return None
    n_elements = chosen.shape[1]
    step = max(1, _CHUNK // (touched.size * n_elements))
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step, touched]
        values = _multiplied_out(type_name, np.reshape(part, (-1, part.shape[2])))
        # (rows of this chunk, touched blocks, elements of a block)
        wrong = (np.reshape(values, (*part.shape[:2], n_elements)) != 0) & chosen[touched]
        if wrong.any():
            row, block, element = np.argwhere(wrong)[0].tolist()
            return start + row, int(touched[block]) * n_elements + element
    return None


def dequantize(type_name: str, data: Bytes) -> Floats:
    """The weights that rows stand for.

    Args:
        type_name: ggml's name of the type.
        data: uint8 (n_rows, bytes of a row).

    Returns:
        float32 (n_rows, width), bit for bit what ggml computes.

    Raises:
        ModelError: The type cannot be read.
        ValueError: A row is not whole blocks.
    """
    blocks = _blocks(type_name, data)
    n_rows, n_blocks, n_bytes = blocks.shape
    values = _multiplied_out(type_name, np.reshape(blocks, (-1, n_bytes)))
    return np.reshape(values, (n_rows, n_blocks * values.shape[1]))


def _chosen(type_name: str, width: int, slices: Sequence[tuple[int, int]]) -> Flags:
    """Which elements lie in the slices: bool (n_blocks, elements of a block)."""
    layout_of(type_name)
    block = BLOCKS[type_name].block
    if width < 1 or width % block:
        raise ValueError(f"{width} elements are no whole {type_name} blocks of {block}")
    chosen = np.zeros(width, np.bool_)
    for start, stop in slices:
        if not 0 <= start <= stop <= width:
            raise ValueError(f"the slice [{start}, {stop}) is not inside of [0, {width})")
        chosen[start:stop] = True
    return np.reshape(chosen, (-1, block))


def _blocks(type_name: str, rows: Bytes) -> Bytes:
    """Rows cut into blocks: uint8 (n_rows, n_blocks, bytes of a block)."""
    layout_of(type_name)
    n_bytes = BLOCKS[type_name].n_bytes
    if rows.ndim != 2 or rows.shape[1] % n_bytes:
        raise ValueError(f"expected rows of whole {type_name} blocks of {n_bytes} bytes")
    return np.reshape(rows, (len(rows), rows.shape[1] // n_bytes, n_bytes))


def _set_zero(mask: Bytes, value: Bytes, field: Field, chosen: Flags) -> None:
    """Let the chosen numbers, bool (n_blocks, n), be zero; a byte may hold parts of several."""
    block, at = np.nonzero(chosen)
    for part in field.parts:
        ones = np.uint8((1 << part.n_bits) - 1)
        zero = np.uint8(field.zero >> part.up & int(ones))
        place, shift = (block, part.byte[at]), part.shift[at]
        np.bitwise_or.at(mask, place, np.left_shift(ones, shift))
        np.bitwise_or.at(value, place, np.left_shift(zero, shift))


def _numbers(blocks: Bytes, field: Field) -> Floats:
    """What a field's numbers stand for, before any scale: (n_blocks, n)."""
    total = np.zeros((len(blocks), len(field.parts[0].byte)), np.int16)
    for part in field.parts:
        bits = blocks[:, part.byte] >> part.shift & np.uint8((1 << part.n_bits) - 1)
        total |= bits.astype(np.int16) << part.up
    if field.signed:
        total = total.astype(np.int8).astype(np.int16)
    return (total - np.int16(field.zero)).astype(np.float32)


def _multiplied_out(type_name: str, blocks: Bytes) -> Floats:
    """Weights of blocks: (n_blocks, bytes of a block) -> (n_blocks, elements of a block)."""
    if type_name in FLOATS:
        return _floats(type_name, blocks)
    layout = layout_of(type_name)
    codes = _numbers(blocks, layout.codes)
    # (n_blocks, n_groups, elements of a group); the order of the operations is ggml's.
    grouped = np.reshape(codes, (len(blocks), -1, layout.group))
    with np.errstate(all="ignore"):
        scale = _half(blocks, layout.d)
        if layout.scales is not None:
            scale = scale * _numbers(blocks, layout.scales)
        values = scale[:, :, None] * grouped
        if layout.mins is not None:
            values -= (_half(blocks, layout.dmin) * _numbers(blocks, layout.mins))[:, :, None]
        elif layout.dmin is not None:
            values += _half(blocks, layout.dmin)[:, :, None]
    return np.reshape(values, codes.shape)


def _floats(type_name: str, blocks: Bytes) -> Floats:
    """What the types without codes hold: (n_blocks, bytes of an element) -> (n_blocks, 1)."""
    if type_name == "BF16":
        wide = np.zeros((len(blocks), 4), np.uint8)
        wide[:, 2:] = blocks
        return np.reshape(np.frombuffer(wide, "<f4").astype(np.float32), (-1, 1))
    kind = "<f4" if type_name == "F32" else "<f2"
    plain = np.frombuffer(np.ascontiguousarray(blocks), kind)
    return np.reshape(plain.astype(np.float32), (-1, 1))


def _half(blocks: Bytes, offset: int | None) -> Floats:
    """The float16 at an offset of each block: (n_blocks, 1)."""
    assert offset is not None
    pairs = np.ascontiguousarray(blocks[:, offset : offset + 2])
    return np.reshape(np.frombuffer(pairs, "<f2").astype(np.float32), (-1, 1))
