"""Slices become exactly zero and nothing else changes, by a second reading of every layout.

The packers and readers here are written from the formats' descriptions with plain integers, one
number at a time, and share nothing with the code under test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor import zero_codes
from editor.coded_tensor import merged
from editor.errors import ModelError
from editor.patching import Patch
from editor.records import TensorEdit
from editor.safetensors_header import DTYPE_BITS, TensorEntry
from editor.zero_codes import ZERO_BITS, nonzero_at, patches

START = 24
"""Bytes of the file before the tensor; as many follow it."""
NF4 = [-1.0, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1.0]
FP4 = [0.0, 0.01, 8, 12, 4, 6, 2, 3, -0.0, -0.01, -8, -12, -4, -6, -2, -3]
E2M1 = [0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

Matrix = np.ndarray[Any, Any]
Beside = dict[str, tuple[TensorEntry, bytes]]


class Case(NamedTuple):
    """One stored weight in a file, with a reader of its own."""

    code: str
    name: str
    entry: TensorEntry
    file: bytes
    beside: Beside
    weight: Callable[[bytes], Matrix]
    """The multiplied-out weight, (out, in), of the tensor's bytes."""
    width: int
    axis: int = 1

    def read(self, name: str) -> tuple[TensorEntry, bytes]:
        return self.beside[name]

    def edits(self, *ranges: tuple[int, int], **changes: Any) -> list[TensorEdit]:
        fields = {"tensor": self.name, "code": self.code, "width": self.width, "axis": self.axis}
        return [
            TensorEdit(file="f", start=a, stop=b, **{**fields, **changes})  # type: ignore[arg-type]
            for a, b in ranges
        ]

    def patches(self, *ranges: tuple[int, int], **changes: Any) -> list[Patch]:
        return patches(self.edits(*ranges, **changes), self.entry, self.read, "f")

    def nonzero(self, file: bytes, *ranges: tuple[int, int]) -> tuple[int, int] | None:
        return nonzero_at(self.edits(*ranges), self.entry, self.read, lambda a, b: file[a:b], "f")

    def value(self, file: bytes) -> Matrix:
        return self.weight(file[self.entry.start : self.entry.stop])


def entry_of(dtype: str, shape: tuple[int, ...], start: int = 0) -> TensorEntry:
    size = int(np.prod(shape)) * DTYPE_BITS[dtype] // 8
    return TensorEntry(dtype, shape, start, start + size)


def tensor(dtype: str, array: Matrix, numpy_type: str) -> tuple[TensorEntry, bytes]:
    return entry_of(dtype, array.shape), array.astype(numpy_type).tobytes()


def case(
    code: str, name: str, dtype: str, shape: tuple[int, ...], content: bytes, **rest: Any
) -> Case:
    entry = entry_of(dtype, shape, START)
    assert entry.stop - entry.start == len(content)
    file = b"\xa5" * START + content + b"\x5a" * START
    return Case(code, name, entry, file, **{"beside": {}, **rest})


def pack(numbers: list[int], bits: int) -> bytes:
    """Numbers from the lowest bit of the first word on, padded to whole words."""
    total = sum(number << (bits * i) for i, number in enumerate(numbers))
    return total.to_bytes(-(-len(numbers) * bits // 32) * 4, "little")


def unpack(content: bytes, bits: int, n: int) -> list[int]:
    total = int.from_bytes(content, "little")
    return [total >> (bits * i) & ((1 << bits) - 1) for i in range(n)]


def plain(rng: np.random.Generator, dtype: str, n_out: int, n_in: int, axis: int = 1) -> Case:
    size = DTYPE_BITS[dtype] // 8
    shape = (n_out, n_in) if axis == 1 else (n_in, n_out)
    signed = dtype not in ("I8", "F8_E4M3FNUZ", "F8_E5M2FNUZ")

    def weight(content: bytes) -> Matrix:
        numbers = [
            int.from_bytes(content[i : i + size], "little") for i in range(0, len(content), size)
        ]
        # The bits themselves, but both zeros alike: enough to tell equal from zero from other.
        negative = 1 << (8 * size - 1)
        found = np.array([0 if signed and n == negative else n for n in numbers], object)
        found = found.reshape(shape)
        return found if axis == 1 else found.T

    content = rng.integers(0, 256, n_out * n_in * size, np.uint8)
    content[rng.random(len(content)) < 0.2] = 0
    content[rng.random(len(content)) < 0.2] = 0x80
    return case(
        *("zero", "o.weight", dtype, shape, content.tobytes()),
        weight=weight,
        width=n_in,
        axis=axis,
    )


def bitsandbytes(rng: np.random.Generator, code: str, n_out: int, n_in: int) -> Case:
    table = NF4 if code == "nf4" else FP4
    absmax = rng.integers(1, 9, n_out * n_in)

    def weight(content: bytes) -> Matrix:
        codes = [half for byte in content for half in (byte >> 4, byte & 15)]
        return np.array([table[c] for c in codes] * absmax).reshape(n_out, n_in)

    name = "o.weight"
    state = json.dumps({"quant_type": code, "shape": [n_out, n_in]}).encode()
    beside = {
        f"{name}.quant_state.bitsandbytes__{code}": (entry_of("U8", (len(state),)), state),
        f"{name}.quant_map": tensor("F32", np.array(table), "<f4"),
    }
    content = rng.bytes(n_out * n_in // 2)
    return case(
        *(code, name, "U8", (len(content), 1), content), beside=beside, weight=weight, width=n_in
    )


def e2m1(rng: np.random.Generator, n_out: int, n_in: int) -> Case:
    def weight(content: bytes) -> Matrix:
        codes = [half for byte in content for half in (byte & 15, byte >> 4)]
        return np.array([E2M1[c] for c in codes]).reshape(n_out, n_in)

    content = rng.bytes(n_out * n_in // 2)
    return case(
        *("fp4", "o.weight_packed", "U8", (n_out, n_in // 2), content), weight=weight, width=n_in
    )


def act_order(rng: np.random.Generator, width: int, size: int) -> Matrix:
    return rng.permutation(np.arange(width) // size)


def offset(
    rng: np.random.Generator,
    bits: int,
    n_out: int,
    n_in: int,
    group: int | None = None,
    *,
    loose: bool = False,
) -> Case:
    """Symmetric without `group`; with it, zero points of their own (loose: an int8 each)."""
    half, n_groups = 1 << (bits - 1), n_in // (group or n_in)
    numbers = rng.integers(0, 1 << bits, (n_out, n_in))
    zeros = rng.integers(0, 1 << bits, (n_out, n_groups)) if group else np.full((n_out, 1), half)
    scales = rng.integers(1, 9, (n_out, n_groups))
    groups = np.arange(n_in) // (group or n_in)
    beside: Beside = {}
    if group and loose:
        beside["o.weight_zero_point"] = tensor("I8", zeros - half, "i1")
    elif group:
        columns = [pack(zeros[:, g].tolist(), bits) for g in range(n_groups)]
        packed = np.array([np.frombuffer(column, "<i4") for column in columns]).T
        beside["o.weight_zero_point"] = tensor("I32", packed, "<i4")
    if not group:
        # Symmetric weights are the same in any order.
        beside["o.weight_g_idx"] = tensor("I32", rng.permutation(n_in), "<i4")
    content = b"".join(pack(row.tolist(), bits) for row in numbers)
    row_bytes = len(content) // n_out

    def weight(stored: bytes) -> Matrix:
        rows = [stored[i : i + row_bytes] for i in range(0, len(stored), row_bytes)]
        found = np.array([unpack(row, bits, n_in) for row in rows])
        return (found - zeros[:, groups]) * scales[:, groups]

    return case(
        *("offset", "o.weight_packed", "I32", (n_out, row_bytes // 4), content),
        beside=beside,
        weight=weight,
        width=n_in,
    )


def gptq(
    rng: np.random.Generator,
    bits: int,
    n_out: int,
    n_in: int,
    group: int,
    *,
    v2: bool = False,
    ordered: bool | None = None,
) -> Case:
    """`ordered`: g_idx in rising order, in another one, or (None) absent."""
    low = 0 if v2 else 1
    n_groups = -(-n_in // group)
    numbers = rng.integers(0, 1 << bits, (n_in, n_out))
    zeros = rng.integers(low, 1 << bits, (n_groups, n_out))
    scales = rng.integers(1, 9, (n_groups, n_out))
    groups = np.arange(n_in) // group
    beside: Beside = {}
    if ordered is not None:
        groups = groups if ordered else act_order(rng, n_in, group)
        beside["o.g_idx"] = tensor("I32", groups, "<i4")
    rows = [pack((row - low).tolist(), bits) for row in zeros]
    packed = np.array([np.frombuffer(row, "<i4") for row in rows])
    beside["o.qzeros"] = tensor("I32", packed, "<i4")
    columns = [pack(numbers[:, o].tolist(), bits) for o in range(n_out)]
    content = np.array([np.frombuffer(column, "<i4") for column in columns]).T

    def weight(stored: bytes) -> Matrix:
        words = np.frombuffer(stored, "<u4").reshape(-1, n_out)
        found = np.array(
            [unpack(words[:, o].astype("<u4").tobytes(), bits, n_in) for o in range(n_out)]
        )
        return (found - zeros[groups].T) * scales[groups].T

    return case(
        *("gptq_v2" if v2 else "gptq", "o.qweight", "I32", content.shape),
        content.astype("<i4").tobytes(),
        beside=beside,
        weight=weight,
        width=n_in,
    )


def awq_row(row: Matrix) -> bytes:
    """AWQ interleaves: nibble i of a word holds output AWQ_ORDER[i] of eight."""
    eights = [row[i : i + 8] for i in range(0, len(row), 8)]
    return b"".join(pack([int(eight[at]) for at in AWQ_ORDER], 4) for eight in eights)


def awq(rng: np.random.Generator, n_out: int, n_in: int, group: int) -> Case:
    numbers = rng.integers(0, 16, (n_in, n_out))
    zeros = rng.integers(0, 16, (n_in // group, n_out))
    scales = rng.integers(1, 9, (n_in // group, n_out))
    groups = np.arange(n_in) // group
    content = b"".join(awq_row(row) for row in numbers)
    zeros_packed = np.frombuffer(b"".join(awq_row(row) for row in zeros), "<i4")
    beside = {"o.qzeros": tensor("I32", zeros_packed.reshape(len(zeros), -1), "<i4")}

    def weight(stored: bytes) -> Matrix:
        found = np.zeros((n_in, n_out), int)
        for row in range(n_in):
            line = unpack(stored[row * n_out // 2 : (row + 1) * n_out // 2], 4, n_out)
            for at, number in enumerate(line):
                found[row, at // 8 * 8 + AWQ_ORDER[at % 8]] = number
        return ((found - zeros[groups]) * scales[groups]).T

    return case(
        *("awq", "o.qweight", "I32", (n_in, n_out // 8), content),
        beside=beside,
        weight=weight,
        width=n_in,
    )


@st.composite
def plain_cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    dtype = draw(st.sampled_from(sorted(ZERO_BITS)))
    n_out, n_in, axis = draw(
        st.tuples(st.integers(1, 6), st.integers(1, 9), st.sampled_from([0, 1]))
    )
    return plain(rng, dtype, n_out, n_in, axis)


@st.composite
def packed_cases(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    kind = draw(st.sampled_from(["nf4", "fp4", "e2m1", "offset", "gptq", "awq"]))
    n_out = draw(st.integers(1, 5))
    if kind in ("nf4", "fp4"):
        return bitsandbytes(rng, kind, n_out, 2 * draw(st.integers(1, 9)))
    if kind == "e2m1":
        return e2m1(rng, n_out, 2 * draw(st.integers(2, 9)))
    size, n_groups = draw(st.sampled_from([8, 16, 32])), draw(st.integers(1, 4))
    if kind == "awq":
        return awq(rng, 8 * n_out, size * n_groups, size)
    ordered = draw(st.sampled_from([True, False, None]))
    if kind == "offset":
        width = max(32, size * n_groups)
        bits = draw(st.sampled_from([4, 8]))
        group = draw(st.sampled_from([None, size]))
        if group is None:
            return offset(rng, bits, n_out, width + draw(st.integers(0, 3)))
        loose = draw(st.booleans())
        return offset(rng, bits, n_out, width, group, loose=loose)
    bits = draw(st.sampled_from([2, 4, 8]))
    width = -(-size * n_groups // (32 // bits)) * (32 // bits)
    size = size if width % size == 0 else width
    return gptq(
        *(rng, bits, n_out * (32 // bits), width, size), v2=draw(st.booleans()), ordered=ordered
    )


@st.composite
def slices(draw: st.DrawFn, width: int) -> list[tuple[int, int]]:
    """Overlapping, touching and apart, in any order."""
    found: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, width - 1))
        found.append((start, draw(st.integers(start + 1, width))))
    return found


def applied(file: bytes, made: list[Patch]) -> bytes:
    """The file with the patches; none may set a bit of another, and they rise."""
    content, seen, last = bytearray(file), bytearray(len(file)), 0
    for patch in made:
        assert patch.start >= last
        last = patch.start
        assert patch.mask.dtype == patch.value.dtype == np.uint8
        assert patch.mask.shape == (patch.row_bytes,) and patch.mask.any()
        assert patch.value.shape in ((1, patch.row_bytes), (patch.n_rows, patch.row_bytes))
        for row in range(patch.n_rows):
            value = patch.value[row if len(patch.value) > 1 else 0]
            assert not (value & ~patch.mask).any()
            for i in range(patch.row_bytes):
                at, mask = patch.start + row * patch.row_bytes + i, int(patch.mask[i])
                assert not seen[at] & mask
                seen[at] |= mask
                content[at] = content[at] & ~mask & 0xFF | int(value[i])
    return bytes(content)


def check(one: Case, ranges: list[tuple[int, int]]) -> bytes:
    made = one.patches(*ranges)
    after = applied(one.file, made)
    assert applied(after, made) == after
    assert after[:START] == one.file[:START] and after[-START:] == one.file[-START:]
    inside = np.zeros(one.width, bool)
    for a, b in ranges:
        inside[a:b] = True
    old, new = one.value(one.file), one.value(after)
    assert (new[:, inside] == 0).all()
    assert (new[:, ~inside] == old[:, ~inside]).all()
    check_nonzero(one, one.file, ranges, inside)
    assert one.nonzero(after, *ranges) is None
    return after


def check_nonzero(one: Case, file: bytes, ranges: list[tuple[int, int]], inside: Matrix) -> None:
    value = one.value(file)
    found = one.nonzero(file, *ranges)
    assert (found is not None) == bool((value[:, inside] != 0).any())
    if found is not None:
        assert value[found] != 0 and inside[found[1]]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_plain_weights(data: st.DataObject) -> None:
    one = data.draw(plain_cases())
    check(one, data.draw(slices(one.width)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_packed_weights(data: st.DataObject) -> None:
    one = data.draw(packed_cases())
    ranges = data.draw(slices(one.width))
    after = bytearray(check(one, ranges))
    # One bit that is wrong is found where it is, unless it is the sign of a zero.
    inside = np.zeros(one.width, bool)
    for a, b in ranges:
        inside[a:b] = True
    bit = data.draw(st.integers(8 * one.entry.start, 8 * one.entry.stop - 1))
    after[bit // 8] ^= 1 << bit % 8
    check_nonzero(one, bytes(after), ranges, inside)


@pytest.mark.parametrize(
    "one",
    [
        bitsandbytes(np.random.default_rng(3), "nf4", 3, 8),
        bitsandbytes(np.random.default_rng(3), "fp4", 3, 8),
        e2m1(np.random.default_rng(3), 3, 8),
        offset(np.random.default_rng(3), 4, 2, 32),
        offset(np.random.default_rng(3), 4, 2, 35, 5),
        offset(np.random.default_rng(3), 8, 2, 32, 8),
        gptq(np.random.default_rng(3), 4, 8, 16, 8, ordered=False),
        awq(np.random.default_rng(3), 8, 8, 4),
        *(plain(np.random.default_rng(3), dtype, 2, 5) for dtype in sorted(ZERO_BITS)),
        plain(np.random.default_rng(3), "BF16", 2, 5, axis=0),
    ],
    ids=lambda one: f"{one.code}-{one.entry.dtype}",
)
def test_every_wrong_bit_is_found(one: Case) -> None:
    ranges = [(1, 2), (3, 5)]
    inside = np.isin(np.arange(one.width), [1, 3, 4])
    after = check(one, ranges)
    for bit in range(8 * one.entry.start, 8 * one.entry.stop):
        wrong = bytearray(after)
        wrong[bit // 8] ^= 1 << bit % 8
        check_nonzero(one, bytes(wrong), ranges, inside)


@pytest.mark.parametrize("storage", ["F16", "BF16", "F32"])
def test_four_bits_shown_as_floats(storage: str) -> None:
    one = bitsandbytes(np.random.default_rng(0), "nf4", 4, 8)
    n_bytes = one.entry.stop - one.entry.start
    shape = (n_bytes * 8 // DTYPE_BITS[storage], 1)
    check(one._replace(entry=one.entry._replace(dtype=storage, shape=shape)), [(3, 5)])


def test_the_last_group_may_be_short() -> None:
    for ordered in (True, False):
        check(gptq(np.random.default_rng(1), 4, 8, 40, 16, ordered=ordered), [(13, 40)])


def test_reads_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_codes, "_CHUNK_BYTES", 16)
    monkeypatch.setattr("editor.packed_codes._BLOCK_BYTES", 64)
    rng = np.random.default_rng(2)
    for one in (awq(rng, 16, 32, 8), offset(rng, 4, 9, 32, 8), plain(rng, "BF16", 7, 5)):
        check(one, [(1, 4)])
        check(one, [(0, one.width)])
    assert len(offset(rng, 4, 9, 32, 8).patches((0, 8))) > 1


def test_zero_bits_are_what_torch_reads_as_zero() -> None:
    torch = pytest.importorskip("torch")
    names = {
        **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"},
        **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
        **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
    }
    assert set(names) == ZERO_BITS
    for name, torch_name in names.items():
        dtype, size = getattr(torch, torch_name), DTYPE_BITS[name] // 8
        for last in (0x00, 0x80):
            content = bytearray(size - 1) + bytes([last])
            read = torch.frombuffer(content, dtype=dtype).to(torch.float64).item()
            one = plain(np.random.default_rng(0), name, 1, 1)
            file = b"\xa5" * START + bytes(content) + b"\x5a" * START
            assert (one.nonzero(file, (0, 1)) is None) == (read == 0)


def test_one_patch_for_all_columns_of_a_matrix() -> None:
    one = plain(np.random.default_rng(0), "F16", 3, 8)
    (patch,) = one.patches((6, 8), (0, 1), (1, 2))
    assert (patch.start, patch.row_bytes, patch.n_rows) == (START, 16, 3)
    assert patch.mask.tolist() == [255] * 4 + [0] * 8 + [255] * 4


def test_merged() -> None:
    assert merged([(5, 7), (0, 2), (1, 3), (3, 4)]) == ((0, 4), (5, 7))


# What is refused


def refused(one: Case, match: str, *ranges: tuple[int, int], **changes: Any) -> None:
    for ask in (
        one.patches,
        lambda *r, **c: nonzero_at(
            one.edits(*r, **c), one.entry, one.read, lambda a, b: one.file[a:b], "f"
        ),
    ):
        with pytest.raises(ModelError, match=match) as caught:
            ask(*ranges or ((0, 2),), **changes)
        assert caught.value.message.startswith("f: tensor ") and caught.value.hint


def shaped(one: Case, dtype: str, *shape: int) -> Case:
    return one._replace(entry=one.entry._replace(dtype=dtype, shape=shape))


def beside(one: Case, name: str, dtype: str, array: Matrix, numpy_type: str) -> Case:
    return one._replace(beside={**one.beside, name: tensor(dtype, array, numpy_type)})


def without(one: Case, name: str) -> Case:
    return one._replace(beside={k: v for k, v in one.beside.items() if k != name})


RNG = np.random.default_rng(7)
GPTQ = gptq(RNG, 4, 8, 32, 8, ordered=True)
AWQ = awq(RNG, 16, 32, 8)
NF = bitsandbytes(RNG, "nf4", 4, 8)
FP = bitsandbytes(RNG, "fp4", 4, 8)
ASYMMETRIC = offset(RNG, 4, 4, 32, 8)
LOOSE = offset(RNG, 4, 4, 32, 8, loose=True)
PLAIN = [plain(RNG, dtype, 4, 8, axis) for dtype in ("F16", "I8") for axis in (0, 1)]
STATE = "o.weight.quant_state.bitsandbytes__nf4"


def state(text: bytes, one: Case = NF) -> Case:
    content = np.frombuffer(text, np.uint8)
    return beside(one, STATE, "U8", content, "u1")


@pytest.mark.parametrize(
    ("one", "match"),
    [
        (shaped(plain(RNG, "F16", 4, 8), "U16", 4, 8), "should be one of"),
        (shaped(plain(RNG, "F16", 4, 8), "F16", 8, 4), "matrix with that axis 1"),
        (shaped(plain(RNG, "F16", 4, 8), "F16", 32), "matrix with that axis 1"),
        (shaped(plain(RNG, "F16", 4, 8), "F16", 1 << 61, 0), "should hold numbers"),
        (beside(plain(RNG, "I8", 4, 8), "o.weight_format", "U8", np.array(2), "u1"), "row by row"),
        (shaped(NF, "I8", 16, 1), "should be U8"),
        (shaped(NF, "U8", 4, 4), r"should be U8 \[n, 1\]"),
        (shaped(NF, "U8", 16), "two axes"),
        (shaped(FP, "U8", 8, 2), r"should be U8 \[out, 4\]"),
        (shaped(FP, "I8", 4, 4), r"should be U8 \[out, 4\]"),
        (NF._replace(width=7), "even width"),
        (NF._replace(width=16), "of quant_state"),
        (NF._replace(axis=0), "axis 0"),
        (without(NF, STATE), "needs 'o.weight.quant_state.*beside it"),
        (state(b'{"shape": [4, 16]}'), "of quant_state"),
        (state(b'{"shape": [8, 4]}'), "of quant_state"),
        (beside(NF, "o.weight.quant_map", "F32", np.ones(16), "<f4"), "quant_map"),
        (beside(NF, "o.weight.quant_map", "F32", np.zeros(8), "<f4"), "quant_map"),
        (beside(NF, "o.weight.quant_map", "U8", np.zeros(16), "u1"), "as F32"),
        (beside(e2m1(RNG, 4, 8), "o.weight_zero_point", "U8", np.ones(4), "u1"), "symmetric"),
        (shaped(GPTQ, "U8", 4, 8), "matrix of I32"),
        (shaped(GPTQ, "I32", 32), "matrix of I32"),
        (GPTQ._replace(axis=0), "axis 0"),
        (shaped(GPTQ, "I32", 3, 8), "2, 4 or 8 bits"),
        (GPTQ._replace(width=64), "qzeros of the shape"),
        (without(GPTQ, "o.qzeros"), "needs 'o.qzeros' beside it"),
        (beside(GPTQ, "o.qzeros", "I32", np.zeros((4, 2)), "<i4"), "qzeros of the shape"),
        (beside(GPTQ, "o.qzeros", "I64", np.zeros((4, 1)), "<i8"), "as I32"),
        (beside(GPTQ, "o.qzeros", "I32", np.full((4, 1), -1), "<i4"), "should have zeros of 4"),
        (beside(GPTQ, "o.g_idx", "I32", np.zeros(31), "<i4"), "g_idx of the shape"),
        (beside(GPTQ, "o.g_idx", "I32", np.arange(32) // 7, "<i4"), "between 0 and 3"),
        (beside(GPTQ, "o.g_idx", "I32", -np.arange(32) // 8, "<i4"), "between 0 and 3"),
        (beside(GPTQ, "o.g_idx", "I32", np.zeros(32), "<i4"), "groups of one size"),
        (beside(GPTQ, "o.g_idx", "I64", np.zeros(32), "<i8"), "as I32"),
        (
            beside(without(GPTQ, "o.g_idx"), "o.qzeros", "I32", np.zeros((3, 1)), "<i4"),
            "groups of one size",
        ),
        (shaped(AWQ, "I32", 16, 4), "a row for each input"),
        (without(AWQ, "o.qzeros"), "beside it"),
        (beside(AWQ, "o.qzeros", "I32", np.zeros((4, 3)), "<i4"), "qzeros of the shape"),
        (beside(AWQ, "o.qzeros", "I32", np.zeros((5, 2)), "<i4"), "groups of one size"),
        (beside(AWQ, "o.qzeros", "I32", np.zeros((64, 2)), "<i4"), "groups of one size"),
        (shaped(ASYMMETRIC, "I32", 4, 3), "4 or 8 bits"),
        (offset(RNG, 4, 4, 6), "4 or 8 bits"),
        (beside(ASYMMETRIC, "o.weight_zero_point", "I32", np.zeros((2, 4)), "<i4"), "point of the"),
        (beside(ASYMMETRIC, "o.weight_zero_point", "F16", np.zeros((1, 4)), "<f2"), "I32 or I8"),
        (beside(ASYMMETRIC, "o.weight_g_idx", "I32", np.arange(32) // 8, "<i4"), "in order"),
        (beside(LOOSE, "o.weight_zero_point", "I8", np.full((4, 4), 8), "i1"), "of 4 bits"),
        (beside(LOOSE, "o.weight_zero_point", "I8", np.zeros((3, 4)), "i1"), "point of the shape"),
        (beside(LOOSE, "o.weight_zero_point", "I8", np.zeros((4, 5)), "i1"), "of one size"),
        (NF._replace(code="ggml"), "one of the codes"),
    ],
)
def test_refuses(one: Case, match: str) -> None:
    refused(one, match)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "should have 1 to"),
        (b" " * (1 << 17), "should have 1 to"),
        (b"\xff\xfe", "should be a JSON object"),
        (b"[4, 8]", "should be a JSON object"),
        (b"[" * 5000, "should be a JSON object"),
        (b'{"shape": 4}', "a shape of two sizes"),
        (b'{"shape": [4, 8, 1]}', "a shape of two sizes"),
        (b'{"shape": [4, true]}', "a shape of two sizes"),
        (b'{"shape": [4, 0]}', "a shape of two sizes"),
        (b"{}", "a shape of two sizes"),
    ],
)
def test_refuses_a_broken_quant_state(text: bytes, match: str) -> None:
    refused(state(text), match)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_tensors_are_patched_inside_or_refused(data: st.DataObject) -> None:
    one = data.draw(st.sampled_from([GPTQ, AWQ, NF, FP, ASYMMETRIC, LOOSE, *PLAIN]))
    size = st.integers(0, 40)
    shape = data.draw(st.lists(size, max_size=3).map(tuple) | st.tuples(size, size))
    dtype = data.draw(st.sampled_from(["I32", "U8", "I8", "F16", "F32"]))
    odd = entry_of(dtype, shape)
    name = data.draw(st.sampled_from(sorted([*one.beside, "o.g_idx", "o.weight_g_idx", ""])))
    if name:
        n_bytes = odd.stop
        content = data.draw(st.binary(max_size=n_bytes)).ljust(n_bytes, b"\1")
        one = one._replace(beside={**one.beside, name: (odd, content)})
    else:
        one = one._replace(entry=entry_of(dtype, shape, START))
    ranges = data.draw(slices(one.width))
    try:
        made = one.patches(*ranges)
        one.nonzero(bytes(one.entry.stop), *ranges)
    except ModelError:
        return
    for patch in made:
        assert one.entry.start <= patch.start
        assert patch.start + patch.n_rows * patch.row_bytes <= one.entry.stop


def test_refuses_edits_outside() -> None:
    refused(AWQ, "between 0 and 32", (30, 33))
    refused(AWQ, "between 0 and 32", (4, 4))
    refused(AWQ, "between 0 and 32", (-1, 4))


def test_refuses_what_is_implausibly_large() -> None:
    wide = case("zero", "o.weight", "I8", (1, 1), b"0", weight=np.array, width=1 << 25)
    refused(wide, "at most 16777216 wide")
    long = TensorEntry("F64", (1, 1 << 24), START, START + (1 << 27))
    refused(wide._replace(entry=long, width=1 << 24), "rows of at most")
    words = TensorEntry("I32", (4, 1 << 25), START, START + (1 << 29))
    refused(GPTQ._replace(entry=words), "rows of at most")
    deep = TensorEntry("I32", (1 << 22, 1 << 7), START, START + (1 << 31))
    many = AWQ._replace(entry=deep, width=1 << 22)
    many = beside(many, "o.qzeros", "I32", np.zeros((1, 1 << 7)), "<i4")
    refused(many, "bytes of codes", (0, 1 << 22))


def test_refuses_a_tensor_beside_it_that_was_not_read_whole() -> None:
    entry, content = GPTQ.beside["o.qzeros"]
    refused(GPTQ._replace(beside={"o.qzeros": (entry, content[:-1])}), "15 of 16 bytes")
    large = entry_of("I32", (4, 1 << 23))
    refused(GPTQ._replace(beside={"o.qzeros": (large, b"")}), "of at most")


def test_misuse() -> None:
    with pytest.raises(ValueError, match="without edits"):
        AWQ.patches()
    both = [*AWQ.edits((0, 2)), *AWQ.edits((0, 2), tensor="other")]
    with pytest.raises(ValueError, match="not of one tensor"):
        patches(both, AWQ.entry, AWQ.read, "f")
    with pytest.raises(ValueError, match="asked for"):
        nonzero_at(AWQ.edits((0, 2)), AWQ.entry, AWQ.read, lambda a, b: b"", "f")
