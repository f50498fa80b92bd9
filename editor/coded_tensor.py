"""One stored weight and the slices of it that are to be zero, checked before a code is applied.

    edits + TensorEntry --gather--> CodedTensor --a code's function--> Plan: patches, and where
                                                                      each of their bits belongs

Every fault of a file is one `ModelError`; the hint is the same for all that cannot be edited as
they are stored: `WAY_ROUND`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from editor.errors import ModelError
from editor.patching import Bytes, Patch
from editor.records import TensorEdit, ZeroCode
from editor.safetensors_header import MAX_COMPANION_BYTES, TensorEntry, shown

WAY_ROUND = "take the unquantized model, edit it, and quantize the result"
DAMAGED = "the file is damaged or was written by another tool: download it again"

MAX_WIDTH = 1 << 24
MAX_VALUE_BYTES = 256 << 20
"""Most bytes of codes that one tensor's patches may carry, where each row has its own."""

Read = Callable[[str], tuple[TensorEntry, bytes]]
"""A tensor beside the weight by its stored name, whole; KeyError where there is none."""
Ranges = tuple[tuple[int, int], ...]
"""Half-open intervals, rising, neither overlapping nor touching."""
Words = npt.NDArray[np.uint32]
Indices = npt.NDArray[np.int64]


class CodedTensor(NamedTuple):
    """One stored weight, and the slices of the multiplied-out weight that are to be zero."""

    name: str
    entry: TensorEntry
    code: ZeroCode
    axis: int
    width: int
    """Length of the multiplied-out weight along `axis`."""
    ranges: Ranges
    """The slices, in elements along `axis`."""
    read: Read
    where: str
    """The file, for messages."""

    def fail(self, expected: str, found: object, hint: str = WAY_ROUND) -> NoReturn:
        """Raise a `ModelError` of the form: tensor should be `expected`, found `found`."""
        raise ModelError(
            f"{self.where}: tensor {shown(self.name, 200)} ({self.code}, {self.width} wide) "
            f"{expected}, found {found}",
            hint,
        )

    def beside(self, name: str, dtypes: tuple[str, ...]) -> tuple[TensorEntry, bytes] | None:
        """The tensor `name` beside this one, or None.

        Raises:
            ModelError: It has another dtype, is too large, or not all of its bytes were read.
        """
        try:
            entry, content = self.read(name)
        except KeyError:
            return None
        if entry.dtype not in dtypes:
            self.fail(f"needs {shown(name, 200)} as {' or '.join(dtypes)}", entry.dtype, DAMAGED)
        size = entry.stop - entry.start
        if size > MAX_COMPANION_BYTES or len(content) != size:
            self.fail(
                f"needs {shown(name, 200)} of at most {MAX_COMPANION_BYTES} bytes",
                f"{len(content)} of {size} bytes",
                DAMAGED,
            )
        return entry, content

    def needed(self, name: str, dtypes: tuple[str, ...]) -> tuple[TensorEntry, bytes]:
        """The tensor `name` beside this one.

        Raises:
            ModelError: There is none, or see `beside`.
        """
        found = self.beside(name, dtypes)
        if found is None:
            self.fail(f"needs {shown(name, 200)} beside it", "none", DAMAGED)
        return found


class Plan(NamedTuple):
    """What zeroes the slices of one tensor, and how to read a deviation from it."""

    patches: list[Patch]
    """In file order, none touching the bits of another, all of the same `row_bytes`."""
    ignored: Bytes
    """uint8 (row_bytes,): bits inside the masks that may be anything: the sign of a zero."""
    locate: Callable[[int], tuple[int, int]]
    """(output, input) of the weight that owns a bit, counted from the tensor's first byte and
    from each byte's lowest bit."""


def gather(edits: Sequence[TensorEdit], entry: TensorEntry, read: Read, where: str) -> CodedTensor:
    """Merge the edits of one tensor, and check them against what is known without its code.

    Raises:
        ModelError: An edit lies outside of the weight, or the tensor is empty or implausibly wide.
        ValueError: There are no edits, or they are not of one tensor, code, axis and width.
    """
    first = edits[0] if edits else None
    if first is None:
        raise ValueError("a tensor without edits has no patches")
    tensor = CodedTensor(first.tensor, entry, first.code, first.axis, first.width, (), read, where)
    for edit in edits:
        same = first.model_copy(update={"start": edit.start, "stop": edit.stop})
        if edit != same:
            raise ValueError(f"the edits {first} and {edit} are not of one tensor")
        if not 0 <= edit.start < edit.stop <= edit.width:
            hint = "the edit was made for another model"
            tensor.fail(
                f"should be edited between 0 and {edit.width}", f"{edit.start} to {edit.stop}", hint
            )
    if first.width > MAX_WIDTH:
        tensor.fail(f"should be at most {MAX_WIDTH} wide", first.width, DAMAGED)
    if not entry.stop > entry.start or not all(entry.shape):
        tensor.fail("should hold numbers", f"the shape {list(entry.shape)}", DAMAGED)
    return tensor._replace(ranges=merged((edit.start, edit.stop) for edit in edits))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Half-open intervals in any order, as rising ones that neither overlap nor touch."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return tuple(found)


def bit_mask(ranges: Ranges, *, width: int, bits: int, row_bytes: int) -> Bytes:
    """The bits of one row that hold the elements of `ranges`, packed from each byte's lowest bit.

    Args:
        ranges: Elements of the row.
        width: Elements in the row.
        bits: Bits of an element.
        row_bytes: Bytes of the row; those after the last element stay 0.

    Returns:
        uint8 (row_bytes,).
    """
    mask = np.zeros(row_bytes, np.uint8)
    if bits % 8 == 0:
        for start, stop in ranges:
            mask[start * bits // 8 : stop * bits // 8] = 0xFF
        return mask
    chosen = np.zeros(width, np.bool_)
    for start, stop in ranges:
        chosen[start:stop] = True
    packed = np.packbits(np.repeat(chosen, bits), bitorder="little")
    mask[: len(packed)] = packed
    return mask


def unpacked(words: Words, bits: int) -> Words:
    """The numbers of `bits` bits in 32-bit words, lowest bits first.

    Args:
        words: uint32 (n_rows, n_words).
        bits: A divisor of 32.

    Returns:
        uint32 (n_rows, n_words * 32 / bits).
    """
    per = 32 // bits
    numbers = np.empty((len(words), words.shape[1] * per), np.uint32)
    for j in range(per):
        numbers[:, j::per] = words >> np.uint32(bits * j) & np.uint32((1 << bits) - 1)
    return numbers


def as_rows(content: bytes, row_bytes: int) -> Bytes:
    """Whole rows of bytes, uint8 (n_rows, row_bytes)."""
    return np.ndarray((len(content) // row_bytes, row_bytes), np.uint8, content)
