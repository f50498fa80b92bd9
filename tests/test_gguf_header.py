"""A GGUF header is read as it is, or refused with one error, in little time and memory."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from editor.errors import ModelError
from editor.ggml_types import BLOCKS, GGML_TYPES
from editor.gguf_header import MAX_STRINGS, MAX_TENSORS, MAX_VALUES, read_gguf_header
from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    Tensor,
    array,
    gguf_bytes,
    header,
    tensor,
    text,
    value,
    write_gguf,
)

METADATA = {
    "general.architecture": "llama",
    "general.name": "Tiny\nmodel",
    "general.file_type": 3,
    "llama.block_count": 2,
    "llama.attention.head_count": [4, 2],
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.tokens": ["a", "b", "", "日本"],
    "tokenizer.ggml.token_type": [1, 1, 3, 1],
    "tokenizer.chat_template": "x" * 1000,
}
TENSORS = {
    "a.weight": Tensor("F32", (3, 5)),
    "b.weight": Tensor("Q4_1", (64, 2)),
    "c.weight": Tensor("Q6_K", (256, 2, 3)),
}


# --- what is right ---


@pytest.mark.parametrize("alignment", [None, 1, 64, 4096])
def test_reads_what_the_file_says(tmp_path: Path, alignment: int | None) -> None:
    more = {} if alignment is None else {"general.alignment": alignment}
    path = write_gguf(tmp_path / "m.gguf", {**METADATA, **more}, TENSORS)
    found = read_gguf_header(path)
    assert found.alignment == (alignment or 32) and found.file_bytes == path.stat().st_size
    assert list(found.tensors) == list(TENSORS)
    for name, entry in found.tensors.items():
        assert (entry.dtype, entry.shape) == TENSORS[name][:2]
        assert entry.start % found.alignment == 0
    sizes = [entry.stop - entry.start for entry in found.tensors.values()]
    assert sizes == [60, 80, 6 * 210]
    last = found.tensors["c.weight"]
    assert last.stop <= found.file_bytes < last.stop + found.alignment


def test_keeps_single_values_and_what_counts_heads(tmp_path: Path) -> None:
    found = read_gguf_header(write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)).metadata
    assert found["general.architecture"] == "llama"
    assert found["general.name"] == "Tiny\nmodel"
    assert found["llama.attention.head_count"] == (4, 2)
    assert found["llama.rope.freq_base"] == 10000.0
    assert found["tokenizer.ggml.add_bos_token"] is False
    assert found["tokenizer.chat_template"] == "x" * 256
    assert "tokenizer.ggml.tokens" not in found and "tokenizer.ggml.token_type" not in found


def test_the_end_may_be_without_padding(tmp_path: Path) -> None:
    raw = gguf_bytes(METADATA, TENSORS)
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    stop = read_gguf_header(path).tensors["c.weight"].stop
    for n_bytes in range(stop, len(raw) + 1):
        path.write_bytes(raw[:n_bytes])
        assert read_gguf_header(path).tensors["c.weight"].stop == stop


@pytest.mark.parametrize("version", [2, 3])
def test_versions(tmp_path: Path, version: int) -> None:
    raw = bytearray(gguf_bytes(METADATA, TENSORS))
    raw[4] = version
    (tmp_path / "m.gguf").write_bytes(raw)
    assert len(read_gguf_header(tmp_path / "m.gguf").tensors) == 3


def test_tensors_come_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    table = [tensor("late", [8], 0, 32), tensor("early", [8], 0, 0)]
    raw = header(tensors=table)
    (tmp_path / "m.gguf").write_bytes(raw + bytes(-len(raw) % 32 + 64))
    assert list(read_gguf_header(tmp_path / "m.gguf").tensors) == ["early", "late"]


def test_the_types_are_ggmls() -> None:
    gguf = pytest.importorskip("gguf")
    ours = {number: (kind.name, kind.block, kind.n_bytes) for number, kind in GGML_TYPES.items()}
    for kind, (block, n_bytes) in gguf.GGML_QUANT_SIZES.items():
        assert ours[kind.value] == (kind.name, block, n_bytes)
    assert len(BLOCKS) == len(GGML_TYPES)


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen2")
    writer.add_head_count([4, 8])
    writer.add_token_list(["a", "b"])
    writer.add_token_scores([0.5, 0.25])
    data = np.arange(640, dtype=np.float32).reshape(5, 128)
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_gguf_header(tmp_path / "m.gguf")
    assert found.metadata["qwen2.attention.head_count"] == (4, 8)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    for one in reader.tensors:
        entry = found.tensors[one.name]
        assert entry.shape == tuple(one.shape) and entry.dtype == one.name
        assert (entry.start, entry.stop - entry.start) == (one.data_offset, one.n_bytes)


# --- what is wrong ---

ONE = [tensor("w", [8], 0, 0)]
GOOD = header(tensors=ONE)


def whole(*values: bytes, tensors: list[bytes] = ONE, n_data: int = 32, align: int = 32) -> bytes:
    raw = header(values, tensors)
    return raw + bytes(-len(raw) % align + n_data)


def deep(levels: int) -> bytes:
    return b"".join(array(ARRAY, 1) for _ in range(levels)) + array(U8, 1, b"\0")


FAULTS: dict[str, tuple[bytes, str]] = {
    # the beginning
    "empty": (b"", "no GGUF"),
    "two bytes": (b"GG", "no GGUF"),
    "magic only": (b"GGUF", "cut off"),
    "23 bytes": (GOOD[:23], "cut off"),
    "a zip": (b"PK\x03\x04" * 20, "no GGUF"),
    "safetensors": (struct.pack("<Q", 40) + b"{" * 40, "no GGUF"),
    "ggml of old": (b"lmgg" + bytes(40), "no GGUF"),
    "reversed magic": (header(tensors=ONE, magic=b"FUGG"), "no GGUF"),
    "escape codes": (b"\x1b[2J" + bytes(40), r"\\x1b\[2J"),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "version 0": (header(tensors=ONE, version=0), "version 0"),
    "version 1": (header(tensors=ONE, version=1), "version 1"),
    "version 4": (header(tensors=ONE, version=4), "version 4"),
    "version 2^32-1": (header(tensors=ONE, version=2**32 - 1), "version 4294967295"),
    "big-endian 2": (b"GGUF" + struct.pack(">IQQ", 2, 1, 0) + bytes(99), "big-endian"),
    "big-endian 3": (b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(99), "big-endian"),
    # counts
    "2^60 values": (header(tensors=ONE, n_values=2**60) + bytes(99), "metadata values"),
    "2^64-1 values": (header(tensors=ONE, n_values=2**64 - 1) + bytes(99), "metadata values"),
    "2^60 tensors": (header(n_tensors=2**60) + bytes(99), "tensors"),
    "2^64-1 tensors": (header(n_tensors=2**64 - 1) + bytes(99), "tensors"),
    "a value too many": (header(tensors=ONE, n_values=1) + bytes(99), "m.gguf"),
    "a tensor too many": (header(tensors=ONE, n_tensors=2) + bytes(10), "cut off"),
    "values for the file's size": (header(n_values=9) + bytes(30), "metadata values"),
    "tensors for the file's size": (header(n_tensors=9) + bytes(30), "tensors"),
    "no tensors": (whole(tensors=[]), "no tensors"),
    "too many values": (header(n_values=MAX_VALUES + 1) + bytes(1 << 20), "metadata values"),
    "too many tensors": (header(n_tensors=MAX_TENSORS + 1) + bytes(1 << 20), "tensors"),
    # keys
    "key of 2^62": (header(n_values=1) + struct.pack("<Q", 2**62) + bytes(99), "metadata key"),
    "key beyond the end": (header([struct.pack("<Q", 900)], ONE) + bytes(9), "metadata key"),
    "key not UTF-8": (whole(value(b"\xff\xfe", U8, b"\0")), "UTF-8"),
    "key twice": (whole(value("k", U8, b"\0"), value("k", U8, b"\1")), "twice"),
    "key with escapes twice": (whole(*[value("\x1b[2J", U8, b"\0")] * 2), r"\\x1b\[2J"),
    # values
    "type 13": (whole(value("k", 13, bytes(8))), "unknown type 13"),
    "type 2^32-1": (whole(value("k", 2**32 - 1, bytes(8))), "unknown type"),
    "text of 2^62": (whole(value("k", STRING, struct.pack("<Q", 2**62))), "cut off"),
    "text of 2^64-1": (whole(value("k", STRING, struct.pack("<Q", 2**64 - 1))), "cut off"),
    "text longer than the file": (whole(value("k", STRING, struct.pack("<Q", 400))), "cut off"),
    "2^60 numbers": (whole(value("k", ARRAY, array(F32, 2**60))), "cut off"),
    "2^64-1 bytes": (whole(value("k", ARRAY, array(U8, 2**64 - 1))), "cut off"),
    "2^60 texts": (whole(value("k", ARRAY, array(STRING, 2**60))), "cut off"),
    "texts for the file's size": (whole(value("k", ARRAY, array(STRING, 99))), "cut off"),
    "a text of texts too long": (
        whole(value("k", ARRAY, array(STRING, 2, text("a") + struct.pack("<Q", 2**63)))),
        "cut off",
    ),
    "array of arrays": (whole(value("k", ARRAY, array(ARRAY, 1, array(U8, 1, b"\0")))), "arrays"),
    "arrays 9999 deep": (whole(value("k", ARRAY, deep(9999))), "arrays"),
    "array of 2^60 arrays": (whole(value("k", ARRAY, array(ARRAY, 2**60))), "arrays"),
    "array of type 77": (whole(value("k", ARRAY, array(77, 1))), "unknown type 77"),
    "2^60 head counts": (
        whole(value("x.attention.head_count", ARRAY, array(I32, 2**60))),
        "one a layer",
    ),
    "5000 head counts": (
        whole(value("x.attention.head_count_kv", ARRAY, array(I32, 5000, bytes(20000)))),
        "one a layer",
    ),
    "many head counts": (
        whole(
            *(
                value(f"{n}.attention.head_count", ARRAY, array(I32, 4096, bytes(4 * 4096)))
                for n in range(20)
            )
        ),
        "in all",
    ),
    "head counts cut off": (
        whole(value("x.attention.head_count", ARRAY, array(U64, 4000))),
        "cut off",
    ),
    # alignment, parts
    "alignment 0": (whole(value("general.alignment", U32, bytes(4))), "power of two"),
    "alignment 48": (whole(value("general.alignment", U32, struct.pack("<I", 48))), "power of two"),
    "alignment 2^31": (
        whole(value("general.alignment", U32, struct.pack("<I", 2**31))),
        "cut off",
    ),
    "alignment as text": (whole(value("general.alignment", STRING, text("32"))), "uint32"),
    "alignment as uint64": (
        whole(value("general.alignment", U64, struct.pack("<Q", 32))),
        "uint32",
    ),
    "split": (whole(value("split.count", 2, struct.pack("<H", 3))), "one of 3 parts"),
    "split without tensors": (
        whole(value("split.count", 2, struct.pack("<H", 2)), tensors=[]),
        "one of 2 parts",
    ),
    "split as text": (whole(value("split.count", STRING, text("two"))), "parts"),
    # tensors
    "name of 2^62": (header(n_tensors=1) + struct.pack("<Q", 2**62) + bytes(99), "tensor's name"),
    "name not UTF-8": (whole(tensors=[tensor(b"\xc3\x28", [8], 0, 0)]), "UTF-8"),
    "name twice": (whole(tensors=[tensor("w", [8], 0, 0), tensor("w", [8], 0, 32)]), "two tensors"),
    "name with escapes": (whole(tensors=[tensor("\x1b[2J\r", [8], 99, 0)]), r"\\x1b\[2J\\r"),
    "5 sizes": (whole(tensors=[tensor("w", [1, 1, 1, 1, 8], 0, 0)]), "4 sizes"),
    "2^32-1 sizes": (
        whole(tensors=[text("w") + struct.pack("<I", 2**32 - 1)], n_data=999),
        "4 sizes",
    ),
    "size 0": (whole(tensors=[tensor("w", [8, 0], 0, 0)]), "sizes from 1"),
    "size 2^63": (whole(tensors=[tensor("w", [2**63], 0, 0)]), "sizes from 1"),
    "size 2^64-1": (whole(tensors=[tensor("w", [2**64 - 1], 0, 0)]), "sizes from 1"),
    "sizes that overflow": (whole(tensors=[tensor("w", [2**33, 2**31, 8], 0, 0)]), "cut off"),
    "size 2^62": (whole(tensors=[tensor("w", [2**62], 0, 0)]), "cut off"),
    "a dropped type": (whole(tensors=[tensor("w", [32], 4, 0)]), "type 4"),
    "type of the future": (whole(tensors=[tensor("w", [8], 999, 0)]), "type 999"),
    "no whole blocks of 32": (whole(tensors=[tensor("w", [8, 4], 2, 0)]), "blocks of 32"),
    "no whole blocks of 256": (whole(tensors=[tensor("w", [128, 2], 12, 0)]), "blocks of 256"),
    "a number in blocks": (whole(tensors=[tensor("w", [], 8, 0)]), "blocks of 32"),
    # offsets
    "offset 1": (whole(tensors=[tensor("w", [8], 0, 1)], n_data=64), "multiple of 32"),
    "offset 64": (whole(tensors=[tensor("w", [8], 0, 64)], n_data=96), "gap"),
    "offset 2^63": (whole(tensors=[tensor("w", [8], 0, 2**63)]), "gap"),
    "offset 2^64-32": (whole(tensors=[tensor("w", [8], 0, 2**64 - 32)]), "gap"),
    "same offset": (
        whole(tensors=[tensor("v", [8], 0, 0), tensor("w", [8], 0, 0)], n_data=64),
        "overlaps",
    ),
    "overlap": (
        whole(tensors=[tensor("v", [16], 0, 0), tensor("w", [8], 0, 32)], n_data=96),
        "overlaps",
    ),
    "gap": (
        whole(tensors=[tensor("v", [8], 0, 0), tensor("w", [8], 0, 64)], n_data=96),
        "gap after tensor 'v'",
    ),
    "a byte missing": (whole(n_data=31), "cut off"),
    "no data": (whole(n_data=0), "cut off"),
    "not padded to the data": (GOOD, "cut off"),
    "a byte too many": (whole(n_data=33), "padded"),
    "a page too many": (whole(n_data=4096), "padded"),
}


def test_there_are_enough_faults() -> None:
    assert len(FAULTS) >= 60


@pytest.mark.parametrize("fault", FAULTS)
def test_one_error_for_each_fault(tmp_path: Path, fault: str) -> None:
    raw, message = FAULTS[fault]
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    start = time.perf_counter()
    with pytest.raises(ModelError, match=message) as caught:
        read_gguf_header(path)
    assert time.perf_counter() - start < 1
    assert "m.gguf" in caught.value.message and caught.value.hint
    assert caught.value.message.isprintable() and len(caught.value.message) < 600


def test_a_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    raw = gguf_bytes(METADATA, {"w": Tensor("F32", (8,))})
    path = tmp_path / "m.gguf"
    for n_bytes in range(len(raw)):
        path.write_bytes(raw[:n_bytes])
        with pytest.raises(ModelError, match="m.gguf"):
            read_gguf_header(path)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_changed_bytes_never_surprise(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = bytearray(gguf_bytes(METADATA, TENSORS))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(raw) - 1300))
        raw[at] = data.draw(st.sampled_from([0, 1, 8, 9, 127, 128, 255]))
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.write_bytes(raw)
    try:
        found = read_gguf_header(path)
    except ModelError as error:
        assert "changed.gguf" in error.message and error.message.isprintable()
        return
    for entry in found.tensors.values():
        assert 0 < entry.start < entry.stop <= len(raw)


@pytest.mark.parametrize("kind", ["folder", "missing", "fifo"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    with pytest.raises(ModelError, match="m.gguf"):
        read_gguf_header(path)


# --- how much it may cost ---


def bombs() -> dict[str, bytes]:
    empty = MAX_STRINGS * bytes(8)
    names = [tensor(f"{n:0>1000}", [1], 0, 32 * n) for n in range(MAX_TENSORS // 2)]
    keys = [value(f"{n:0>1000}", STRING, text("é" * 128)) for n in range(MAX_VALUES)]
    ones = [value(f"{n}", ARRAY, array(STRING, 1, text("x" * 70))) for n in range(MAX_VALUES)]
    return {
        "empty texts": whole(value("k", ARRAY, array(STRING, MAX_STRINGS, empty)), n_data=0),
        "one text too many": whole(
            value("k", ARRAY, array(STRING, MAX_STRINGS, empty)),
            value("l", ARRAY, array(STRING, 1, text(""))),
        ),
        "long names": whole(tensors=names, n_data=0),
        "long keys": whole(*keys, n_data=0),
        "short arrays": whole(*ones, n_data=0),
        "a long text": whole(value("k", STRING, text(bytes(40 << 20))), n_data=0),
        "long numbers": whole(value("k", ARRAY, array(F32, 10 << 20, bytes(40 << 20))), n_data=0),
        "flags": whole(value("k", ARRAY, array(BOOL, 40 << 20, bytes(40 << 20))), n_data=0),
    }


def test_neither_time_nor_memory_grows_without_end(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for name, raw in bombs().items():
        path.write_bytes(raw)
        start = time.perf_counter()
        with pytest.raises(ModelError):
            read_gguf_header(path)
        assert time.perf_counter() - start < 5, name
        # Tracing slows the walk of four million strings down; what it keeps is one window.
        if "text" not in name:
            tracemalloc.start()
            with pytest.raises(ModelError):
                read_gguf_header(path)
            assert tracemalloc.get_traced_memory()[1] < 100e6, name
            tracemalloc.stop()
