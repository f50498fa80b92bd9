"""How a stored weight writes the number zero: exact patches for slices of a quantized matrix.

    edits of one tensor + its entry + the tensors beside it --patches----> list[Patch]
    the same + the bytes                                    --nonzero_at-> the first weight not 0

    zero             floats, float8, int8: zero bits
    nf4, fp4         bitsandbytes: two numbers a byte, code 7 or 0; fp4 also of compressed-tensors
    offset, gptq, gptq_v2, awq   see `packed_codes`

What the patches leave alone is the same as before, bit by bit.  A scale that is infinite or not a
number is not looked at: with such a scale the model had no weight there before, either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from editor import packed_codes
from editor.coded_tensor import (
    DAMAGED,
    WAY_ROUND,
    CodedTensor,
    Plan,
    Read,
    as_rows,
    bit_mask,
    gather,
)
from editor.patching import MAX_ROW_BYTES, Bytes, Patch
from editor.records import TensorEdit, ZeroCode
from editor.safetensors_header import DTYPE_BITS, TensorEntry
from editor.stored_shape import quant_state_shape

__all__ = [
    "ZERO_BITS",
    "Read",
    "nonzero_at",
    "patches",
]

_SIGNED = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
"""Types with a second zero, the negative one: only the highest bit is set."""
ZERO_BITS = _SIGNED | {"F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8"}
"""Types whose number zero is all-zero bits."""

_CHUNK_BYTES = 4 << 20


def patches(edits: Sequence[TensorEdit], entry: TensorEntry, read: Read, where: str) -> list[Patch]:
    """What to write so that the slices of one weight are exactly zero, and nothing else changes.

    Args:
        edits: The slices, all of one tensor, code, axis and width; they may overlap or touch.
        entry: The stored tensor.
        read: Gives a tensor beside the weight (qzeros, g_idx, quant_state, ...) by its stored
            name, whichever file it is in.  Raises KeyError where there is none, and refuses one of
            more than `MAX_COMPANION_BYTES`.
        where: Names the file, for messages.

    Returns:
        Patches in file order; none sets a bit of another.  Where the codes of zero differ from
        row to row they take as many bytes as the slices (asymmetric `offset`: as the tensor).

    Raises:
        ModelError: The tensor is not stored as its code says, a tensor beside it is missing or
            damaged, or zero has no exact code.
    """
    return _plan(edits, entry, read, where).patches


def nonzero_at(
    edits: Sequence[TensorEdit],
    entry: TensorEntry,
    read: Read,
    data: Callable[[int, int], bytes],
    where: str,
) -> tuple[int, int] | None:
    """Find a weight inside the slices that is not zero when it is multiplied out.

    Args:
        edits: See `patches`.
        entry: The stored tensor.
        read: See `patches`.
        data: Gives the file's bytes [start, stop), by offsets from the file's beginning; asked for
            rising pieces of a few MiB, or of one row.
        where: Names the file, for messages.

    Returns:
        (output, input) of the first such weight in the order of the bytes, or None.  A negative
        zero is a zero.

    Raises:
        ModelError: See `patches`, or `data` gave too few bytes.
    """
    plan = _plan(edits, entry, read, where)
    for patch in plan.patches:
        bit = _first_deviation(patch, plan.ignored, data, where)
        if bit is not None:
            return plan.locate(bit - 8 * entry.start)
    return None


def _plan(edits: Sequence[TensorEdit], entry: TensorEntry, read: Read, where: str) -> Plan:
    tensor = gather(edits, entry, read, where)
    make = _CODES.get(tensor.code)
    if make is None:
        tensor.fail(f"should have one of the codes {', '.join(_CODES)}", tensor.code)
    return make(tensor)


def _first_deviation(
    patch: Patch, ignored: Bytes, data: Callable[[int, int], bytes], where: str
) -> int | None:
    """The first bit of the file, from each byte's lowest, that is not as `patch` would set it."""
    size = patch.row_bytes
    step = max(1, _CHUNK_BYTES // size)
    mask = patch.mask & ~ignored
    for row in range(0, patch.n_rows, step):
        stop = min(row + step, patch.n_rows)
        start = patch.start + row * size
        content = data(start, patch.start + stop * size)
        if len(content) != (stop - row) * size:
            raise ValueError(f"{where}: asked for {(stop - row) * size} bytes, got {len(content)}")
        found = as_rows(content, size)
        value = patch.value if len(patch.value) == 1 else patch.value[row:stop]
        wrong = ((found ^ value) & mask).ravel()
        at = np.flatnonzero(wrong)
        if len(at):
            byte = int(wrong[at[0]])
            return 8 * (start + int(at[0])) + (byte & -byte).bit_length() - 1
    return None


def _plain(tensor: CodedTensor) -> Plan:
    """A matrix whose elements are whole bytes and whose zero is all-zero bits."""
    dtype, shape = tensor.entry.dtype, tensor.entry.shape
    if dtype not in ZERO_BITS:
        tensor.fail(f"should be one of {', '.join(sorted(ZERO_BITS))}", dtype)
    if len(shape) != 2 or shape[tensor.axis] != tensor.width:
        hint = "the edit was made for another model"
        tensor.fail(f"should be a matrix with that axis {tensor.axis}", list(shape), hint)
    if dtype == "I8":
        _check_row_order(tensor)
    bits, start = DTYPE_BITS[dtype], tensor.entry.start
    row_bytes = _row_bytes(tensor, shape[1] * bits // 8)
    if tensor.axis == 1:
        mask = bit_mask(tensor.ranges, width=shape[1], bits=bits, row_bytes=row_bytes)
        made = [Patch(start, row_bytes, shape[0], mask, np.zeros((1, row_bytes), np.uint8))]
    else:
        mask = np.full(row_bytes, 0xFF, np.uint8)
        value = np.zeros((1, row_bytes), np.uint8)
        made = [
            Patch(start + a * row_bytes, row_bytes, b - a, mask, value) for a, b in tensor.ranges
        ]
    ignored = np.zeros(row_bytes, np.uint8)
    if dtype in _SIGNED:
        ignored[bits // 8 - 1 :: bits // 8] = 0x80

    def locate(bit: int) -> tuple[int, int]:
        row, column = divmod(bit // bits, shape[1])
        return (row, column) if tensor.axis == 1 else (column, row)

    return Plan(made, ignored, locate)


def _check_row_order(tensor: CodedTensor) -> None:
    # bitsandbytes once wrote int8 in the tiled orders of GPU kernels; 0 is row by row.
    name = tensor.name.removesuffix("weight") + "weight_format"
    found = tensor.beside(name, ("U8",))
    if found is not None and any(found[1]):
        tensor.fail("should be stored row by row (weight_format 0)", list(found[1][:1]))


def _four_bits(tensor: CodedTensor) -> Plan:
    """Two numbers a byte: (n, 1) of bitsandbytes, or U8 (out, width / 2) of compressed-tensors."""
    entry, width = tensor.entry, tensor.width
    if tensor.axis != 1 or width % 2:
        tensor.fail("should be edited along an input of even width", f"axis {tensor.axis}")
    if len(entry.shape) != 2:
        tensor.fail("should have two axes", list(entry.shape))
    row_bytes = _row_bytes(tensor, width // 2)
    flat = entry.shape[1] == 1
    n_out = _check_flat(tensor) if flat else _check_rows(tensor)
    mask = bit_mask(tensor.ranges, width=width, bits=4, row_bytes=row_bytes)
    if flat:
        # bitsandbytes puts the first number of two into the high half of the byte.
        mask = mask << np.uint8(4) | mask >> np.uint8(4)
    code, sign = (0x77, 0x00) if tensor.code == "nf4" else (0x00, 0x88)
    ignored = np.full(row_bytes, sign, np.uint8)

    def locate(bit: int) -> tuple[int, int]:
        byte, within = divmod(bit, 8)
        return divmod(2 * byte + (within < 4 if flat else within >= 4), width)

    value = (mask & np.uint8(code))[None]
    return Plan([Patch(entry.start, row_bytes, n_out, mask, value)], ignored, locate)


def _check_flat(tensor: CodedTensor) -> int:
    """Check a weight of bitsandbytes; returns the number of its outputs."""
    entry = tensor.entry
    if entry.dtype not in ("U8", "F16", "BF16", "F32"):
        tensor.fail("should be U8, or bytes shown as F16, BF16 or F32", entry.dtype)
    name = f"{tensor.name}.quant_state.bitsandbytes__{tensor.code}"
    state, content = tensor.needed(name, ("U8",))
    shape = quant_state_shape(content if len(state.shape) == 1 else b"", name, tensor.where)
    n_numbers = 2 * (entry.stop - entry.start)
    if shape[1] != tensor.width or shape[0] * shape[1] != n_numbers:
        tensor.fail(f"should hold the {list(shape)} numbers of quant_state", n_numbers, DAMAGED)
    table = tensor.beside(f"{tensor.name}.quant_map", ("F32",))
    if table is not None:
        codes = np.frombuffer(table[1], "<f4")
        zeros = (7,) if tensor.code == "nf4" else (0, 8)
        if table[0].shape != (16,) or any(codes[at] for at in zeros):
            tensor.fail(f"needs a quant_map with 0 at {zeros}", "another", WAY_ROUND)
    return shape[0]


def _check_rows(tensor: CodedTensor) -> int:
    """Check a weight of compressed-tensors; returns the number of its outputs."""
    entry = tensor.entry
    if tensor.code != "fp4" or entry.dtype != "U8" or entry.shape[1] * 2 != tensor.width:
        expected = f"[out, {tensor.width // 2}]" if tensor.code == "fp4" else "[n, 1]"
        tensor.fail(f"should be U8 {expected}", f"{entry.dtype} {list(entry.shape)}")
    name = tensor.name.removesuffix("weight_packed") + "weight_zero_point"
    try:
        tensor.read(name)
    except KeyError:
        return entry.shape[0]
    tensor.fail("should be symmetric", name)


def _row_bytes(tensor: CodedTensor, n_bytes: int) -> int:
    if n_bytes > MAX_ROW_BYTES:
        tensor.fail(f"should have rows of at most {MAX_ROW_BYTES} bytes", n_bytes, DAMAGED)
    return n_bytes


_CODES: Mapping[ZeroCode, Callable[[CodedTensor], Plan]] = MappingProxyType(
    {
        "zero": _plain,
        "nf4": _four_bits,
        "fp4": _four_bits,
        "offset": packed_codes.offset,
        "gptq": packed_codes.gptq,
        "gptq_v2": packed_codes.gptq,
        "awq": packed_codes.awq,
    }
)
"""What knows each code; "ggml" is none of safetensors."""
