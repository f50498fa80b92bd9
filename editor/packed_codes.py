"""The codes of weights packed into 32-bit words: GPTQ, AWQ and compressed-tensors.

A stored number q stands for (q - zero) * scale, so q = zero is exactly 0 whatever the scale is.
The zero is one number for all (symmetric), or one for each output and group of inputs, packed in a
tensor beside the weight:

    offset   weight_packed (out, in * bits / 32), zero 2^(bits-1) or weight_zero_point
    gptq     qweight (in * bits / 32, out), qzeros (groups, out * bits / 32): zero - 1
    gptq_v2  the same, but qzeros hold the zero itself
    awq      qweight (in, out / 8), qzeros (groups, out / 8), both in one order of nibbles

Words are little-endian and filled from their lowest bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from editor.coded_tensor import (
    DAMAGED,
    MAX_VALUE_BYTES,
    WAY_ROUND,
    CodedTensor,
    Indices,
    Plan,
    Ranges,
    Words,
    bit_mask,
    merged,
    unpacked,
)
from editor.patching import MAX_ROW_BYTES, Bytes, Patch
from editor.safetensors_header import TensorEntry

_WORD = 32
_BLOCK_BYTES = 4 << 20
_AWQ_BITS = 4
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring outputs each nibble of an AWQ word holds, lowest nibble first."""


def offset(tensor: CodedTensor) -> Plan:
    """compressed-tensors "pack-quantized": I32 (out, ceil(width * bits / 32)), 4 or 8 bits.

    Symmetric weights are stored with 2^(bits-1) added; asymmetric ones have `weight_zero_point`,
    one number for each output and group, stored with the same number added.

    Raises:
        ModelError: Dtype, shape, bits or a tensor beside it is not as described.
    """
    n_out, n_words = _matrix(tensor)
    fits = [bits for bits in range(1, 9) if -(-tensor.width * bits // _WORD) == n_words]
    if fits not in ([4], [8]):
        tensor.fail("should have 4 or 8 bits a number", f"{n_words} words for a row")
    bits, row_bytes = fits[0], 4 * n_words
    mask = bit_mask(tensor.ranges, width=tensor.width, bits=bits, row_bytes=row_bytes)

    def locate(bit: int) -> tuple[int, int]:
        row, rest = divmod(bit, 8 * row_bytes)
        return row, rest // bits

    stem = tensor.name.removesuffix("weight_packed")
    zeros = tensor.beside(stem + "weight_zero_point", ("I32", "I8"))
    start = tensor.entry.start
    if zeros is None:
        value = (mask & np.uint8(0x88 if bits == 4 else 0x80))[None]
        patches = [Patch(start, row_bytes, n_out, mask, value)]
    else:
        _check_size(tensor, n_out * row_bytes)
        codes = _zero_points(tensor, *zeros, bits=bits, n_out=n_out)
        # Older readers look a column's zero up by this tensor, newer ones pass it over.
        if tensor.beside(stem + "weight_g_idx", ("I32",)) is not None:
            tensor.fail("should be symmetric, or have its groups in order", "weight_g_idx")
        groups = _groups(tensor, "", codes.shape[1])
        step = max(1, _BLOCK_BYTES // (bits * row_bytes))
        patches = [
            Patch(start + at * row_bytes, row_bytes, len(value), mask, value)
            for at in range(0, n_out, step)
            for value in [_packed_rows(codes[at : at + step], groups, bits, row_bytes) & mask]
        ]
    return Plan(patches, np.zeros(row_bytes, np.uint8), locate)


def gptq(tensor: CodedTensor) -> Plan:
    """GPTQ: I32 (width * bits / 32, out), 2, 4 or 8 bits, packed along the input.

    Raises:
        ModelError: Dtype, shape, bits or a tensor beside it is not as described, or the zero of a
            group does not fit its bits.
    """
    n_words, n_out = _matrix(tensor)
    bits = next((b for b in (2, 4, 8) if b * tensor.width == n_words * _WORD), None)
    if bits is None:
        tensor.fail("should have 2, 4 or 8 bits a number", f"{n_words} words for an input")
    stem = tensor.name.removesuffix("qweight")
    packed = _qzeros(tensor, stem, n_out * bits, bits)
    groups = _groups(tensor, stem + "g_idx", len(packed))
    _check_size(tensor, sum(stop - start + 2 * _WORD for start, stop in tensor.ranges) * n_out)
    _check_size(tensor, 4 * len(packed) * n_out)
    used = np.unique(np.concatenate([groups[start:stop] for start, stop in tensor.ranges]))
    codes = np.zeros((len(packed), n_out), np.uint32)
    codes[used] = unpacked(packed[used], bits)
    if tensor.code == "gptq":
        # Kernels disagree on what follows the largest number: 2^bits, 0, or a carry into the next.
        if (codes[used] == (1 << bits) - 1).any():
            tensor.fail(f"should have zeros of {bits} bits in qzeros", f"{1 << bits}")
        codes[used] += 1
    per = _WORD // bits
    patches: list[Patch] = []
    for first, stop in merged((a // per, -(-b // per)) for a, b in tensor.ranges):
        chosen = _chosen(tensor.ranges, first * per, stop * per)
        columns = groups[first * per : stop * per]
        start = tensor.entry.start + 4 * n_out * first
        patches += _word_rows(start, chosen, codes, columns, bits=bits)

    def locate(bit: int) -> tuple[int, int]:
        word, rest = divmod(bit, _WORD)
        row, out = divmod(word, n_out)
        return out, row * per + rest // bits

    return Plan(patches, np.zeros(4 * n_out, np.uint8), locate)


def awq(tensor: CodedTensor) -> Plan:
    """AWQ "gemm": I32 (width, out / 8): a zeroed input's row is a copy of its group's zeros.

    Raises:
        ModelError: Dtype, shape or qzeros is not as described.
    """
    n_in, n_words = _matrix(tensor)
    if n_in != tensor.width:
        tensor.fail("should have a row for each input", n_in)
    stem = tensor.name.removesuffix("qweight")
    packed = _qzeros(tensor, stem, n_words * _WORD, _AWQ_BITS)
    groups = _groups(tensor, "", len(packed))
    _check_size(tensor, 4 * n_words * sum(stop - start for start, stop in tensor.ranges))
    start, row_bytes = tensor.entry.start, 4 * n_words
    mask = np.full(row_bytes, 0xFF, np.uint8)
    patches = [
        Patch(
            start + a * row_bytes,
            row_bytes,
            b - a,
            mask,
            _as_bytes(packed[groups[a:b]]),
        )
        for a, b in tensor.ranges
    ]

    def locate(bit: int) -> tuple[int, int]:
        row, rest = divmod(bit, 8 * row_bytes)
        word, within = divmod(rest, _WORD)
        return word * 8 + _AWQ_ORDER[within // _AWQ_BITS], row

    return Plan(patches, np.zeros(row_bytes, np.uint8), locate)


def _matrix(tensor: CodedTensor) -> tuple[int, int]:
    entry = tensor.entry
    if tensor.axis != 1:
        tensor.fail("should be edited along its input (axis 1)", f"axis {tensor.axis}")
    if entry.dtype != "I32" or len(entry.shape) != 2:
        tensor.fail("should be a matrix of I32", f"{entry.dtype} {list(entry.shape)}")
    if 4 * entry.shape[1] > MAX_ROW_BYTES:
        tensor.fail(f"should have rows of at most {MAX_ROW_BYTES} bytes", 4 * entry.shape[1])
    return entry.shape[0], entry.shape[1]


def _check_size(tensor: CodedTensor, n_bytes: int) -> None:
    if n_bytes > MAX_VALUE_BYTES:
        tensor.fail(f"should take at most {MAX_VALUE_BYTES} bytes of codes", n_bytes)


def _words(content: bytes, shape: tuple[int, ...]) -> Words:
    return np.ndarray(shape, "<u4", content).astype(np.uint32, copy=False)


def _as_bytes(words: Words) -> Bytes:
    """Bytes of uint32 (n_rows, n_words) in the order of the file: uint8 (n_rows, 4 * n_words)."""
    little = np.ascontiguousarray(words, "<u4")
    return np.ndarray((len(words), 4 * words.shape[1]), np.uint8, little)


def _qzeros(tensor: CodedTensor, stem: str, row_bits: int, bits: int) -> Words:
    """The packed zeros, uint32 (n_groups, row_bits / 32)."""
    entry, content = tensor.needed(stem + "qzeros", ("I32",))
    shape = entry.shape
    if len(shape) != 2 or not shape[0] or shape[1] * _WORD != row_bits:
        expected = f"[groups, {row_bits / _WORD:g}] for {bits} bits"
        tensor.fail(f"needs qzeros of the shape {expected}", list(shape), DAMAGED)
    return _words(content, shape)


def _groups(tensor: CodedTensor, name: str, n_groups: int) -> Indices:
    """The group of each input, int64 (width,): from the tensor `name`, or neighbours in order."""
    found = tensor.beside(name, ("I32",)) if name else None
    if found is None:
        if not 0 < n_groups <= tensor.width or tensor.width % n_groups:
            tensor.fail("should have groups of one size", f"{n_groups} groups", DAMAGED)
        return np.arange(tensor.width) // (tensor.width // n_groups)
    entry, content = found
    if entry.shape != (tensor.width,):
        tensor.fail(f"needs {name} of the shape [{tensor.width}]", list(entry.shape), DAMAGED)
    groups = np.frombuffer(content, "<i4").astype(np.int64)
    if groups.min() < 0 or groups.max() >= n_groups:
        tensor.fail(f"needs {name} between 0 and {n_groups - 1}", "others", DAMAGED)
    # Some kernels look a column's group up, others compute it.  Whoever quantized with an order of
    # its own still filled one group after the other; anything else is read in different ways.
    counts = np.bincount(groups, minlength=n_groups)
    if (counts[:-1] != counts[0]).any() or not 0 < counts[-1] <= counts[0]:
        tensor.fail(f"needs {name} with groups of one size", "others", WAY_ROUND)
    return groups


def _zero_points(
    tensor: CodedTensor, entry: TensorEntry, content: bytes, *, bits: int, n_out: int
) -> Words:
    """The stored number that stands for 0, uint32 (n_out, n_groups)."""
    n_rows = n_out if entry.dtype == "I8" else -(-n_out * bits // _WORD)
    if len(entry.shape) != 2 or entry.shape[0] != n_rows or not entry.shape[1]:
        expected = f"weight_zero_point of the shape [{n_rows}, groups]"
        tensor.fail(f"needs {expected}", list(entry.shape), DAMAGED)
    if entry.dtype == "I32":
        # Packed along the outputs: the same as a weight, transposed.
        columns = np.transpose(_words(content, entry.shape))
        return np.transpose(unpacked(columns, bits)[:, :n_out])
    points = np.ndarray(entry.shape, np.int8, content).astype(np.int64)
    half = 1 << (bits - 1)
    if points.min() < -half or points.max() >= half:
        tensor.fail(f"needs weight_zero_point of {bits} bits", "larger ones", DAMAGED)
    return (points + half).astype(np.uint32)


def _packed_rows(codes: Words, groups: Indices, bits: int, row_bytes: int) -> Bytes:
    """Rows whose every number is its group's code.

    Args:
        codes: uint32 (n_rows, n_groups).
        groups: int64 (width,): the group of each number.
        bits: 4 or 8.
        row_bytes: Length of a row, padding included.

    Returns:
        uint8 (n_rows, row_bytes).
    """
    per = 8 // bits
    numbers = np.zeros((len(codes), row_bytes * per), np.uint8)
    numbers[:, : len(groups)] = codes[:, groups]
    if bits == 8:
        return numbers
    return numbers[:, 0::2] | numbers[:, 1::2] << np.uint8(4)


def _chosen(ranges: Ranges, first: int, stop: int) -> npt.NDArray[np.bool_]:
    chosen = np.zeros(stop - first, np.bool_)
    for a, b in ranges:
        if a < stop and b > first:
            chosen[max(a - first, 0) : b - first] = True
    return chosen


def _word_rows(
    start: int, chosen: npt.NDArray[np.bool_], codes: Words, columns: Indices, *, bits: int
) -> list[Patch]:
    """Patches of neighbouring rows of words, one for each run of rows with the same bits chosen.

    Args:
        start: File offset of the first row.
        chosen: bool (n_rows * 32 / bits,): which inputs are set.
        codes: uint32 (n_groups, n_out).
        columns: int64 (n_rows * 32 / bits,): the group of each input.
        bits: Bits of a number.
    """
    per, n_out = _WORD // bits, codes.shape[1]
    n_rows = len(chosen) // per
    full = np.uint32((1 << bits) - 1)
    masks = np.zeros(n_rows, np.uint32)
    words = np.zeros((n_rows, n_out), np.uint32)
    for j in range(per):
        at = chosen[j::per]
        masks[at] |= full << np.uint32(bits * j)
        words[at] |= codes[columns[j::per][at]] << np.uint32(bits * j)
    ends = [*(np.flatnonzero(np.diff(masks)) + 1).tolist(), n_rows]
    patches: list[Patch] = []
    begin = 0
    for end in ends:
        mask = _as_bytes(np.full((1, n_out), masks[begin], np.uint32))[0]
        value = _as_bytes(words[begin:end])
        patches.append(Patch(start + 4 * n_out * begin, 4 * n_out, end - begin, mask, value))
        begin = end
    return patches
