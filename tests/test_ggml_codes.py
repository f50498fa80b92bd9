"""A slice is exactly zero and everything else is bit for bit what it was, in each type of ggml."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.errors import ModelError
from editor.ggml_codes import dequantize, nonzero_at, obstacle, patches, zero_rows
from editor.ggml_layouts import EDITABLE, FLOATS, layout_of
from editor.ggml_types import BLOCKS
from editor.patching import Bytes
from editor.safetensors_header import TensorEntry

gguf = pytest.importorskip("gguf")

K_TYPES = [name for name in EDITABLE if name.endswith("_K")]
CODED = [name for name in EDITABLE if layout_of(name).dmin is None]
"""Types with a code for zero: any element by itself can be zeroed."""
OFFSET = [name for name in EDITABLE if name not in CODED]
REFUSED = sorted(set(BLOCKS) - set(EDITABLE))
Slices = list[tuple[int, int]]

# Where each type keeps its half-precision numbers: written down apart from the layouts.
HALVES = {
    **{"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]},
    **{"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]},
}


def reference(type_name: str, rows: Bytes) -> npt.NDArray[np.float32]:
    kind = gguf.GGMLQuantizationType[type_name]
    with np.errstate(all="ignore"):
        return np.asarray(gguf.quants.dequantize(rows, kind), np.float32)


def bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values).view(np.uint32)


def random_rows(type_name: str, width: int, n_rows: int, seed: int, sign: bool = True) -> Bytes:
    """Any bytes, but with finite scales that are not zero."""
    rng = np.random.default_rng(seed)
    _, block, n_bytes = BLOCKS[type_name]
    rows = rng.integers(0, 256, (n_rows, width // block, n_bytes), dtype=np.uint8)
    for offset in HALVES.get(type_name, ()):
        size = rng.uniform(0.001, 2, rows.shape[:2]) * (rng.choice([-1, 1]) if sign else 1)
        rows[..., offset : offset + 2] = size.astype("<f2")[..., None].view(np.uint8)
    return rows.reshape(n_rows, -1)


def is_chosen(width: int, slices: Slices) -> npt.NDArray[np.bool_]:
    chosen = np.zeros(width, bool)
    for start, stop in slices:
        chosen[start:stop] = True
    return chosen


def edited(type_name: str, width: int, rows: Bytes, slices: Slices) -> Bytes:
    mask, value = zero_rows(type_name, width, slices)
    assert mask.shape == value.shape == (rows.shape[1],) and mask.dtype == value.dtype == np.uint8
    assert not (value & ~mask).any()
    return rows & ~mask | value


def heads_of(draw: Any, head_dim: int, width: int) -> Slices:
    heads = draw(st.sets(st.integers(0, width // head_dim - 1), min_size=1, max_size=4))
    return [(h * head_dim, (h + 1) * head_dim) for h in sorted(heads)]


# --- reading ---


@pytest.mark.parametrize("type_name", EDITABLE)
def test_reads_what_ggml_reads(type_name: str) -> None:
    rows = random_rows(type_name, 1024, 40, seed=1)
    ours, theirs = dequantize(type_name, rows), reference(type_name, rows)
    assert ours.dtype == np.float32 and ours.shape == (40, 1024)
    same = (bits(ours) == bits(theirs)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all()


@pytest.mark.parametrize("type_name", sorted(HALVES))
def test_reads_infinite_scales_as_ggml_does(type_name: str) -> None:
    _, block, n_bytes = BLOCKS[type_name]
    rows = np.random.default_rng(2).integers(0, 256, (300, 256 // block * n_bytes), dtype=np.uint8)
    for offset, half in ((HALVES[type_name][0], b"\x00\x7c"), (HALVES[type_name][-1], b"\x01\xfc")):
        rows[:9, offset : offset + 2] = np.frombuffer(half, np.uint8)
    ours, theirs = dequantize(type_name, rows), reference(type_name, rows)
    assert np.array_equal(ours, theirs, equal_nan=True) and np.isnan(ours).any()


# --- zeroing ---


@pytest.mark.parametrize("type_name", EDITABLE)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_heads_become_zero_and_nothing_else_changes(type_name: str, data: st.DataObject) -> None:
    head_dim = data.draw(st.sampled_from([16, 32, 64, 80, 96, 128, 256]))
    width = 256 * data.draw(st.integers(max(1, head_dim * 2 // 256), 6))
    slices = heads_of(data.draw, head_dim, width)
    rows = random_rows(type_name, width, 3, seed=data.draw(st.integers(0, 2**32)))
    chosen = is_chosen(width, slices)
    group = layout_of(type_name).group
    parts = chosen.reshape(-1, group)
    if type_name in OFFSET and (parts.any(axis=1) & ~parts.all(axis=1)).any():
        with pytest.raises(ModelError, match=f"whole blocks of {group}"):
            zero_rows(type_name, width, slices)
        return
    before, new = reference(type_name, rows), edited(type_name, width, rows, slices)
    after = reference(type_name, new)
    assert (after[:, chosen] == 0).all()
    assert np.array_equal(bits(after)[:, ~chosen], bits(before)[:, ~chosen])
    # Whole blocks are +0; of the others it is the sign of the scale that decides.
    block = BLOCKS[type_name].block
    whole = np.repeat(chosen.reshape(-1, block).all(axis=1), block)
    assert not bits(after)[:, whole].any()
    assert np.array_equal(edited(type_name, width, new, slices), new)
    assert nonzero_at(type_name, width, new, slices) is None


@pytest.mark.parametrize("type_name", EDITABLE)
def test_of_a_real_files_scales_no_zero_is_negative(type_name: str) -> None:
    rows = random_rows(type_name, 1024, 4, seed=3, sign=False)
    slices = [(64, 128), (320, 384), (512, 1024)]
    after = reference(type_name, edited(type_name, 1024, rows, slices))
    assert not bits(after)[:, is_chosen(1024, slices)].any()


@pytest.mark.parametrize("type_name", CODED)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_element_can_be_zeroed_where_zero_has_a_code(
    type_name: str, data: st.DataObject
) -> None:
    ends = sorted(data.draw(st.sets(st.integers(0, 512), min_size=2, max_size=6)))
    slices = list(zip(ends[::2], ends[1::2], strict=False))
    rows = random_rows(type_name, 512, 2, seed=len(ends))
    chosen = is_chosen(512, slices)
    before = reference(type_name, rows)
    after = reference(type_name, edited(type_name, 512, rows, slices))
    assert (after[:, chosen] == 0).all()
    assert np.array_equal(bits(after)[:, ~chosen], bits(before)[:, ~chosen])


@pytest.mark.parametrize("type_name", EDITABLE)
def test_nothing_is_left_of_a_whole_row(type_name: str) -> None:
    a, b = (random_rows(type_name, 512, 2, seed=seed) for seed in (4, 5))
    assert not np.array_equal(a, b)
    slices = [(0, 256), (256, 512)]
    new = edited(type_name, 512, a, slices)
    assert np.array_equal(new, edited(type_name, 512, b, slices))
    mask, _ = zero_rows(type_name, 512, slices)
    assert (mask == 0xFF).all()


@pytest.mark.parametrize("type_name", K_TYPES)
def test_nothing_is_left_of_a_group_but_the_blocks_own_scale(type_name: str) -> None:
    a, b = (random_rows(type_name, 256, 2, seed=seed) for seed in (4, 5))
    for offset in HALVES[type_name]:
        b[:, offset : offset + 2] = a[:, offset : offset + 2]
    zeroed = [(64, 128)]
    for one in (zeroed, [(0, 64), (128, 256)]):
        first, second = (edited(type_name, 256, rows, one) for rows in (a, b))
        assert not np.array_equal(first, second)
    # Zeroed in two steps, the block is the same whatever it was.
    both = [edited(type_name, 256, edited(type_name, 256, rows, zeroed), one) for rows in (a, b)]
    assert np.array_equal(both[0], both[1])


@pytest.mark.parametrize("type_name", EDITABLE)
def test_heads_one_by_one_touch_disjoint_bits(type_name: str) -> None:
    masks = [zero_rows(type_name, 512, [(n, n + 32)])[0] for n in range(0, 512, 32)]
    union = np.zeros_like(masks[0])
    for mask in masks:
        assert mask.any() and not (mask & union).any()
        union |= mask


@pytest.mark.parametrize("type_name", OFFSET)
def test_a_part_of_a_group_is_refused_but_two_halves_are_a_whole(type_name: str) -> None:
    group = layout_of(type_name).group
    with pytest.raises(ModelError, match=f"whole blocks of {group}") as caught:
        zero_rows(type_name, 256, [(0, group // 2)])
    assert type_name in caught.value.message and caught.value.hint
    halves = zero_rows(type_name, 256, [(group // 2, group), (0, group // 2)])
    whole = zero_rows(type_name, 256, [(0, group)])
    assert all(np.array_equal(a, b) for a, b in zip(halves, whole, strict=True))


@pytest.mark.parametrize("type_name", REFUSED)
def test_other_types_are_refused_by_name(type_name: str) -> None:
    rows = np.zeros((1, BLOCKS[type_name].n_bytes), np.uint8)
    for refused in (
        lambda: zero_rows(type_name, 256, [(0, 256)]),
        lambda: nonzero_at(type_name, BLOCKS[type_name].block, rows, []),
        lambda: dequantize(type_name, rows),
    ):
        with pytest.raises(ModelError, match=type_name) as caught:
            refused()
        assert "Q4_K" in caught.value.hint
    assert type_name in obstacle(type_name, 64)


@pytest.mark.parametrize(("type_name", "head_dim", "fits"), [
    *[("Q4_1", 64, True), ("Q4_1", 80, False), ("Q4_K", 96, True), ("Q5_K", 80, False)],
    *[("Q2_K", 80, True), ("Q2_K", 24, False), ("Q6_K", 20, True), ("F16", 3, True)],
])  # fmt: skip
def test_says_which_heads_fit(type_name: str, head_dim: int, fits: bool) -> None:
    reason = obstacle(type_name, head_dim)
    assert (reason == "") == fits
    if not fits:
        assert type_name in reason and str(head_dim) in reason
        with pytest.raises(ModelError):
            zero_rows(type_name, 256 * head_dim, [(head_dim, 2 * head_dim)])


@pytest.mark.parametrize(
    ("width", "slices"),
    [(0, []), (255, []), (-256, []), (256, [(0, 257)]), (256, [(-1, 4)]), (256, [(9, 8)])],
)
def test_misuse(width: int, slices: Slices) -> None:
    with pytest.raises(ValueError, match="elements|slice"):
        zero_rows("Q6_K", width, slices)


def test_rows_of_another_length() -> None:
    with pytest.raises(ValueError, match="blocks"):
        nonzero_at("Q8_0", 64, np.zeros((2, 34), np.uint8), [(0, 32)])
    with pytest.raises(ValueError, match="blocks"):
        dequantize("Q8_0", np.zeros((2, 33), np.uint8))


# --- checking ---


@pytest.mark.parametrize("type_name", EDITABLE)
def test_finds_the_one_weight_that_is_left(type_name: str) -> None:
    width, slices = 1024, [(64, 128), (768, 1024)]
    rows = np.repeat(edited(type_name, width, random_rows(type_name, width, 1, 6), slices), 9, 0)
    assert nonzero_at(type_name, width, rows, slices) is None
    other = random_rows(type_name, width, 1, 7)
    rows[5] = edited(type_name, width, other, [(0, 128), (800, 1024)])
    row, column = nonzero_at(type_name, width, rows, slices) or (-1, -1)
    assert row == 5 and 768 <= column < 800
    assert reference(type_name, rows)[row, column] != 0
    assert not reference(type_name, rows)[row, 768:column].any()
    assert nonzero_at(type_name, width, rows, []) is None


def test_nan_is_not_zero() -> None:
    rows = np.zeros((1, 34), np.uint8)
    rows[0, :2] = (0, 0x7C)
    assert nonzero_at("Q8_0", 32, rows, [(4, 8)]) == (0, 4)


@pytest.mark.parametrize("type_name", [name for name in EDITABLE if name not in K_TYPES])
def test_another_quantization_of_zeros_is_zero(type_name: str) -> None:
    values = np.random.default_rng(8).normal(size=(4, 512)).astype(np.float32)
    values[:, 64:128] = 0
    rows = gguf.quants.quantize(values, gguf.GGMLQuantizationType[type_name]).view(np.uint8)
    assert nonzero_at(type_name, 512, rows, [(64, 128)]) is None
    assert nonzero_at(type_name, 512, rows, [(0, 64)]) is not None


def test_many_rows_are_checked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from editor import ggml_codes

    monkeypatch.setattr(ggml_codes, "_CHUNK", 100)
    rows = np.zeros((50, 34), np.uint8)
    rows[47, :] = 0x11
    assert nonzero_at("Q8_0", 32, rows, [(3, 9)]) == (47, 3)


# --- patches ---


@pytest.mark.parametrize("type_name", EDITABLE)
def test_a_patch_covers_every_row_of_the_tensor(type_name: str) -> None:
    row = random_rows(type_name, 512, 1, 9).shape[1]
    entry = TensorEntry(type_name, (512, 3, 2), 4096, 4096 + 6 * row)
    (patch,) = patches(entry, [(64, 128), (256, 384)])
    assert (patch.start, patch.row_bytes, patch.n_rows) == (4096, row, 6)
    assert patch.start + patch.row_bytes * patch.n_rows == entry.stop
    assert patch.mask.shape == (row,) and patch.value.shape == (1, row)
    assert patches(entry, []) == patches(entry, [(5, 5)]) == []


@pytest.mark.parametrize("type_name", [name for name in EDITABLE if name in FLOATS])
def test_floats_become_zero_bytes(type_name: str) -> None:
    mask, value = zero_rows(type_name, 8, [(2, 5)])
    size = BLOCKS[type_name].n_bytes
    assert not value.any()
    assert mask.tolist() == [0] * 2 * size + [0xFF] * 3 * size + [0] * 3 * size


# Worked by hand from the structs of ggml-common.h.
def test_the_bits_of_q4_0() -> None:
    mask, value = zero_rows("Q4_0", 64, [(0, 16), (32, 64)])
    assert mask.tolist() == [0, 0] + [0x0F] * 16 + [0xFF] * 18
    assert value.tolist() == [0, 0] + [0x08] * 16 + [0, 0] + [0x88] * 16


def test_the_bits_of_q4_k() -> None:
    mask, value = zero_rows("Q4_K", 256, [(160, 192)])
    assert not value.any()
    # Group 5: scale and offset in byte 9 of 12, their highest bits in bytes 1 and 5.
    scales = [0, 0xC0, 0, 0, 0, 0xC0, 0, 0, 0, 0xFF, 0, 0]
    assert mask[:16].tolist() == [0] * 4 + scales
    assert mask[16:].tolist() == [0] * 64 + [0xF0] * 32 + [0] * 32


def test_the_bits_of_q3_k() -> None:
    mask, value = zero_rows("Q3_K", 256, [(144, 160)])
    # Group 9: bit 4 of the second half of hmask, set; codes 0; scale 32 = 0b10_0000.
    assert mask[:32].tolist() == value[:32].tolist() == [0] * 16 + [0x10] * 16
    assert mask[32:96].tolist() == [0] * 48 + [0x03] * 16 and not value[32:96].any()
    assert mask[96:].tolist() == [0, 0xF0] + [0] * 7 + [0x30] + [0] * 4
    assert value[96:].tolist() == [0] * 9 + [0x20] + [0] * 4
