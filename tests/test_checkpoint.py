"""Only the declared bytes change, whatever the file; damaged input is one clear error."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import gguf_files
import test_zero_codes as zero_cases
from editor import checkpoint, patching, staging
from editor.checkpoint import apply_edits, check_written, staged, verify_edits
from editor.direct_file import DirectFile
from editor.errors import CheckFailed, EditorError, ModelError, UsageError
from editor.ggml_codes import dequantize
from editor.ggml_layouts import EDITABLE as EDITABLE_GGML
from editor.layout import digest_file, other_weights, read_headers
from editor.records import TensorEdit, Written
from editor.safetensors_header import DTYPE_BITS, read_header
from editor.weights import open_weights
from editor.zero_codes import ZERO_BITS
from raw_safetensors import Raw, write_parts, write_raw
from test_ggml_codes import random_rows

EDITABLE = sorted(ZERO_BITS)


def write_shards(folder: Path, shards: dict[str, Raw]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    for name, tensors in shards.items():
        write_raw(folder / name, tensors, format="pt")
    if list(shards) != ["model.safetensors"]:
        write_index(folder, {t: file for file, tensors in shards.items() for t in tensors})


def write_index(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def simple(folder: Path) -> Path:
    """A folder with the float32 4 x 6 matrix `a`, all bytes 1, and some other files."""
    write_shards(folder, {"model.safetensors": {"a": ("F32", [4, 6], b"\x01" * 96)}})
    (folder / "sub").mkdir()
    (folder / "sub" / "vocab.txt").write_text("words")
    return folder


def edit(axis: int = 1, start: int = 2, stop: int = 4, **other: Any) -> TensorEdit:
    width = 6 if axis == 1 else 4
    fields = {"tensor": "a", "file": "model.safetensors", "width": width, **other}
    return TensorEdit(axis=axis, start=start, stop=stop, **fields)  # type: ignore[arg-type]


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[dict[str, Raw], list[TensorEdit]]:
    shards: dict[str, Raw] = {}
    edits: list[TensorEdit] = []
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n_files = draw(st.integers(1, 3))
    for f in range(n_files):
        file = "model.safetensors" if n_files == 1 else f"model-{f}-of-{n_files}.safetensors"
        shards[file] = {}
        for t in range(draw(st.integers(1, 3))):
            name = f"layer.{f}.{t}.weight"
            dtype = draw(st.sampled_from(EDITABLE))
            shape = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
            size = shape[0] * shape[1] * DTYPE_BITS[dtype] // 8
            # Bytes 0 too: they are set and do not change.
            content = rng.integers(0, 8, size, np.uint8).tobytes()
            shards[file][name] = (dtype, list(shape), content)
            axis = draw(st.sampled_from([0, 1]))
            for _ in range(draw(st.integers(0, 2))):
                start = draw(st.integers(0, shape[axis] - 1))
                stop = draw(st.integers(start + 1, shape[axis]))
                edits.append(edit(axis, start, stop, tensor=name, file=file, width=shape[axis]))
    return shards, edits


def expected_tensor(name: str, raw: tuple[str, list[int], bytes], edits: list[TensorEdit]) -> bytes:
    dtype, shape, content = raw
    cells = np.frombuffer(content, np.uint8).reshape(*shape, DTYPE_BITS[dtype] // 8).copy()
    for one in edits:
        if one.tensor == name:
            where = slice(one.start, one.stop)
            cells[(where,) if one.axis == 0 else (slice(None), where)] = 0
    return cells.tobytes()


Case = tuple[dict[str, Raw], list[TensorEdit]]


def ranges_of(written: Written) -> list[int]:
    """Offsets of the bytes that a record says were reached."""
    return [
        rows.start + row * rows.row_bytes + at
        for rows in written.rows
        for row in range(rows.n_rows)
        for a, b in rows.columns
        for at in range(a, b)
    ]


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(checkpoints(), st.sampled_from([16, 100, 1 << 16]))
def test_only_declared_bytes_change(case: Case, chunk: int) -> None:
    shards, edits = case
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        patch.setattr(patching, "CHUNK_BYTES", chunk)
        base, copy = Path(temporary), Path(temporary, ".copy")
        write_shards(base, shards)
        copy.mkdir()
        result = apply_edits(base, copy, edits)
        digests = {digest.name: digest for digest in result.files}
        n_changed = 0
        for file, tensors in shards.items():
            old, now = (base / file).read_bytes(), (copy / file).read_bytes()
            size = sum(len(content) for _, _, content in tensors.values())
            new = [expected_tensor(name, raw, edits) for name, raw in tensors.items()]
            assert now == old[: len(old) - size] + b"".join(new)
            changed = np.flatnonzero(np.frombuffer(old, np.uint8) != np.frombuffer(now, np.uint8))
            n_changed += len(changed)
            assert digests[file].sha256 == hashlib.sha256(now).hexdigest()
            assert digests[file].n_bytes == len(now)
            reached: list[int] = []
            for one in result.written:
                if one.file == file:
                    places = ranges_of(one)
                    assert (
                        one.sha256_before
                        == hashlib.sha256(bytes(old[at] for at in places)).hexdigest()
                    )
                    assert (
                        one.sha256_after
                        == hashlib.sha256(bytes(now[at] for at in places)).hexdigest()
                    )
                    reached += places
            assert set(changed.tolist()) <= set(reached)
            assert len(reached) == len(set(reached))
        assert result.bytes_changed == n_changed


@settings(max_examples=60, deadline=None)
@given(checkpoints(), st.data())
def test_verifying_finds_what_applying_did_and_any_other_byte(case: Case, data: Any) -> None:
    shards, edits = case
    with tempfile.TemporaryDirectory() as temporary:
        base, copy = Path(temporary), Path(temporary, ".copy")
        write_shards(base, shards)
        copy.mkdir()
        result = apply_edits(base, copy, edits)
        assert verify_edits(base, copy, edits) == result
        file = data.draw(st.sampled_from(result.files))
        content = bytearray((copy / file.name).read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        (copy / file.name).write_bytes(content)
        with pytest.raises(CheckFailed, match=f"{file.name}.*byte {at}:"):
            verify_edits(base, copy, edits)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
def test_equals_what_safetensors_saves_of_edited_tensors(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=(64, 96)).astype(dtype) for name in ("a", "b", "c")}
    base, copy = tmp_path / "base", tmp_path / "copy"
    base.mkdir()
    copy.mkdir()
    (base / "config.json").write_text("{}")
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    result = apply_edits(
        base, copy, [edit(1, 16, 32, width=96), edit(0, 3, 9, tensor="b", width=64)]
    )
    tensors["a"][:, 16:32] = 0
    tensors["b"][3:9] = 0
    save_file(tensors, tmp_path / "expected", metadata={"format": "pt"})
    assert (copy / "model.safetensors").read_bytes() == (tmp_path / "expected").read_bytes()
    assert [digest.name for digest in result.changed()] == ["model.safetensors"]
    assert tuple(digest_file(copy, name) for name in read_headers(copy)) == result.changed()


def test_copies_the_other_files_but_not_the_editors_own(tmp_path: Path) -> None:
    base = simple(tmp_path / "base")
    for name in ("editor.json", "report.html", ".gitattributes"):
        (base / name).write_text("x")
    (base / ".git").mkdir()
    (base / ".git" / "HEAD").write_text("x")
    (tmp_path / "copy").mkdir()
    result = apply_edits(base, tmp_path / "copy", [])
    names = [".gitattributes", "config.json", "model.safetensors", "sub/vocab.txt"]
    assert [digest.name for digest in result.files] == names
    assert result.changed() == () and result.bytes_changed == 0 and result.bytes_total > 96


def test_reads_the_links_of_the_hub_cache(tmp_path: Path) -> None:
    blobs = simple(tmp_path / "models--a--b" / "blobs")
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(Path("../../blobs") / name)
    (tmp_path / "copy").mkdir()
    result = apply_edits(snapshot, tmp_path / "copy", [edit()])
    assert not (tmp_path / "copy" / "model.safetensors").is_symlink()
    assert result.bytes_changed == 4 * 2 * 4
    assert (blobs / "model.safetensors").read_bytes().endswith(b"\x01" * 96)


@pytest.mark.parametrize("target", ["../secret", "../folder", "nowhere", "sub"])
def test_refuses_links_that_lead_out(tmp_path: Path, target: str) -> None:
    base = simple(tmp_path / "base")
    (tmp_path / "secret").write_text("private")
    (tmp_path / "folder").mkdir()
    (base / "link").symlink_to(target)
    (tmp_path / "copy").mkdir()
    with pytest.raises(ModelError, match="link"):
        apply_edits(base, tmp_path / "copy", [])
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": "b"}, "does not have"),
        ({"file": "../other.safetensors"}, "does not have"),
        ({"stop": 7}, "should be edited between 0 and 6"),
        ({"start": 4}, "between 0 and 6, found 4 to 4"),
        ({"start": -1}, "between 0 and 6"),
        ({"width": 8}, "should be a matrix with that axis 1"),
        ({"code": "nf4"}, r"should be .*, found F32 \[4, 6\]"),
    ],
)
def test_refuses_edits_that_do_not_fit(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    base = simple(tmp_path / "base")
    with pytest.raises(ModelError, match=message):
        apply_edits(base, tmp_path, [edit(**change)])


def test_refuses_types_whose_zero_is_unknown(tmp_path: Path) -> None:
    write_shards(tmp_path, {"model.safetensors": {"a": ("U8", [4, 6], b"\x01" * 24)}})
    with pytest.raises(ModelError, match="U8"):
        apply_edits(tmp_path, tmp_path, [edit()])


def damage(offset: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        content = bytearray(path.read_bytes())
        content[offset] ^= 0x10
        path.write_bytes(content)

    return change


def append(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")


def add_weights(folder: Path) -> None:
    file = "model-1.safetensors"
    write_raw(folder / file, {"b": ("I8", [1, 1], b"\1")})
    write_index(folder, {"b": file})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damage(20), "byte 20"),
        (damage(-96), "tensor 'a'.*no edit declares it"),
        (damage(-96 + 8), "tensor 'a'.*should be zero"),
        (damage(-1), "tensor 'a'.*no edit"),
        (append, "model.safetensors: is longer than the base"),
        (lambda folder: os.truncate(folder / "model.safetensors", 100), "byte 100"),
        (lambda folder: (folder / "sub" / "vocab.txt").write_text("word2"), "vocab.*byte 4"),
        (lambda folder: (folder / "sub" / "vocab.txt").unlink(), "missing"),
        (lambda folder: (folder / "sub" / "vocab.txt").write_text("wordss"), "vocab.*longer"),
        (lambda folder: (folder / "config.json").write_text("{ }"), "config.json: byte 1"),
        (lambda folder: (folder / "config.json").unlink(), "'config.json' is missing"),
        (lambda folder: (folder / "model.safetensors").unlink(), "'model.safetensors' is missing"),
        (add_weights, "damaged"),
    ],
)
def test_verify_finds_every_difference(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    base, copy = simple(tmp_path / "base"), tmp_path / "copy"
    copy.mkdir()
    result = apply_edits(base, copy, [edit()])
    assert verify_edits(base, copy, [edit()]) == result
    change(copy)
    with pytest.raises(CheckFailed, match=message):
        verify_edits(base, copy, [edit()])


def sharded(folder: Path) -> Path:
    """`a` in one file and `b` in another, float32 4 x 6."""
    names = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    write_shards(folder, {file: {t: ("F32", [4, 6], b"\1" * 96)} for t, file in names.items()})
    return folder


FIRST = edit(file="model-1-of-2.safetensors")


def swap(folder: Path) -> None:
    """Every file is as it was, but the index names other files for the tensors."""
    one, two = (folder / f"model-{n}-of-2.safetensors" for n in (1, 2))
    contents = one.read_bytes(), two.read_bytes()
    write_index(folder, {"a": two.name, "b": one.name})
    one.write_bytes(contents[1])
    two.write_bytes(contents[0])


def second_set(folder: Path) -> None:
    """A single file beside the shards, which a loader takes first."""
    shutil.copy(folder / "model-1-of-2.safetensors", folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap, "model-1-of-2.safetensors.*byte"),
        (second_set, "both model.safetensors and"),
        (lambda folder: write_index(folder, {"a": FIRST.file}), "index.json: byte"),
        (lambda folder: (folder / FIRST.file).unlink(), "'model-1-of-2.safetensors' is missing"),
    ],
)
def test_verify_finds_other_shards(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    base, copy = sharded(tmp_path / "base"), tmp_path / "copy"
    copy.mkdir()
    assert apply_edits(base, copy, [FIRST]) == verify_edits(base, copy, [FIRST])
    change(copy)
    with pytest.raises(CheckFailed, match=message):
        verify_edits(base, copy, [FIRST])


def test_verify_does_not_look_at_files_that_were_replaced(tmp_path: Path) -> None:
    base, copy = simple(tmp_path / "base"), tmp_path / "copy"
    (base / "README.md").write_text("base")
    copy.mkdir()
    result = apply_edits(base, copy, [edit()])
    (copy / "README.md").write_text("card")
    with pytest.raises(CheckFailed, match="README"):
        verify_edits(base, copy, [edit()])
    found = verify_edits(base, copy, [edit()], replaced=("README.md",))
    assert set(found.files) == {file for file in result.files if file.name != "README.md"}
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckFailed, match="model.safetensors"):
        verify_edits(base, copy, [edit()], replaced=("README.md", "model.safetensors"))


def test_check_written_reads_the_slices_back(tmp_path: Path) -> None:
    base, copy = simple(tmp_path / "base"), tmp_path / "copy"
    copy.mkdir()
    result = apply_edits(base, copy, [edit()])
    check_written(base, copy, result)
    damage(-96 + 8)(copy)
    with pytest.raises(CheckFailed, match="tensor 'a', output 0, input 2: should be zero"):
        check_written(base, copy, result)
    os.truncate(copy / "model.safetensors", 190)
    with pytest.raises(CheckFailed, match="damaged"):
        check_written(base, copy, result)


class TestLinks:
    def test_only_shards_without_edits_are_linked(self, tmp_path: Path) -> None:
        base, copy = sharded(tmp_path / "base"), tmp_path / "copy"
        copy.mkdir()
        result = apply_edits(base, copy, [FIRST], link=partial(digest_file, base))
        assert result.linked == ("model-2-of-2.safetensors",)
        same = {
            path.name: path.stat().st_ino == (base / path.name).stat().st_ino
            for path in copy.iterdir()
        }
        assert [name for name in same if same[name]] == ["model-2-of-2.safetensors"]
        assert len(same) == 4
        assert verify_edits(base, copy, [FIRST]) == result.model_copy(update={"linked": ()})

    def test_a_symlink_is_copied(self, tmp_path: Path) -> None:
        base, copy = sharded(tmp_path / "base"), tmp_path / "copy"
        (base / "model-2-of-2.safetensors").rename(base / "blob")
        (base / "model-2-of-2.safetensors").symlink_to("blob")
        copy.mkdir()
        assert apply_edits(base, copy, [FIRST], link=partial(digest_file, base)).linked == ()
        assert not (copy / "model-2-of-2.safetensors").is_symlink()
        assert (copy / "model-2-of-2.safetensors").stat().st_nlink == 1

    @pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
    def test_a_link_that_cannot_be_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        base, copy = sharded(tmp_path / "base"), tmp_path / "copy"
        copy.mkdir()
        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(UsageError, match="hard link.*model-2") as caught:
            apply_edits(base, copy, [FIRST], link=partial(digest_file, base))
        assert "--link" in caught.value.hint

    def test_links_need_no_space(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        base, copy = sharded(tmp_path / "base"), tmp_path / "copy"
        copy.mkdir()
        asked: list[int] = []
        monkeypatch.setattr(checkpoint, "check_space", lambda _, n_bytes: asked.append(n_bytes))
        apply_edits(base, copy, [FIRST], link=partial(digest_file, base))
        apply_edits(base, copy.parent, [FIRST])
        size = (base / "model-2-of-2.safetensors").stat().st_size
        assert asked[1] - asked[0] == size


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "case",
    [
        zero_cases.bitsandbytes(RNG, "nf4", 6, 16),
        zero_cases.bitsandbytes(RNG, "fp4", 6, 16),
        zero_cases.e2m1(RNG, 6, 16),
        zero_cases.offset(RNG, 4, 8, 32),
        zero_cases.offset(RNG, 4, 8, 32, 16),
        zero_cases.gptq(RNG, 4, 8, 32, 16, ordered=True),
        zero_cases.gptq(RNG, 8, 8, 32, 16, v2=True),
        zero_cases.awq(RNG, 16, 32, 16),
    ],
    ids=lambda case: case.code,
)
def test_a_packed_weight_loses_its_slice_and_nothing_else(
    tmp_path: Path, case: zero_cases.Case
) -> None:
    """What the tensors beside the weight say is found in another file."""
    base, copy = tmp_path / "base", tmp_path / "copy"
    content = case.file[case.entry.start : case.entry.stop]
    own: Raw = {case.name: (case.entry.dtype, list(case.entry.shape), content)}
    beside: Raw = {
        name: (entry.dtype, list(entry.shape), raw) for name, (entry, raw) in case.beside.items()
    }
    file = "model-1-of-2.safetensors"
    write_shards(base, {file: own, "model-2-of-2.safetensors": beside} if beside else {file: own})
    copy.mkdir()
    edits = [one.model_copy(update={"file": file}) for one in case.edits((8, 16))]
    result = apply_edits(base, copy, edits)
    assert verify_edits(base, copy, edits) == result and result.bytes_changed
    check_written(base, copy, result)
    before, after = (case.weight(stored_in(folder / file, len(content))) for folder in (base, copy))
    assert not after[:, 8:16].any()
    before[:, 8:16] = 0
    assert (before == after).all()
    old, new = (base / file).read_bytes(), (copy / file).read_bytes()
    assert {n for n in range(len(old)) if old[n] != new[n]} <= set(ranges_of(result.written[0]))


def stored_in(path: Path, size: int) -> bytes:
    return path.read_bytes()[-size:]


@pytest.mark.parametrize("kind", EDITABLE_GGML)
def test_a_gguf_file_loses_its_slice_and_nothing_else(tmp_path: Path, kind: str) -> None:
    shape = (512, 3)
    rows = random_rows(kind, *shape, seed=1)
    tensors = {
        "before": gguf_files.Tensor("F32", (5,), bytes(range(20))),
        "a": gguf_files.Tensor(kind, shape, rows.tobytes()),
        "after": gguf_files.Tensor("F16", (3,), b"sixsix"),
    }
    base = gguf_files.write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama"}, tensors)
    (tmp_path / "beside.txt").write_text("of no one")
    copy = tmp_path / "copy"
    copy.mkdir()
    edits = [edit(1, 0, 256, file="m.gguf", width=512, code="ggml")]
    result = apply_edits(base, copy, edits)
    assert [path.name for path in copy.iterdir()] == ["m.gguf"]
    assert verify_edits(base, copy, edits) == result and result.bytes_changed
    check_written(base, copy, result)
    entry = open_weights(base).tensors["a"].entry
    old, new = base.read_bytes(), (copy / "m.gguf").read_bytes()
    assert (old[: entry.start], old[entry.stop :]) == (new[: entry.start], new[entry.stop :])
    stored = np.frombuffer(new[entry.start : entry.stop], np.uint8).reshape(rows.shape)
    values = dequantize(kind, stored)
    assert not values[:, :256].any()
    assert np.array_equal(values[:, 256:], dequantize(kind, rows)[:, 256:], equal_nan=True)
    broken = bytearray(new)
    broken[entry.start - 40] ^= 1
    (copy / "m.gguf").write_bytes(broken)
    with pytest.raises(CheckFailed, match=f"m.gguf.*byte {entry.start - 40}:"):
        verify_edits(base, copy, edits)


def entry(dtype: str = "I8", shape: object = (2,), offsets: object = (0, 2)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": entry()}, b"1", "should end at byte"),
        ({"a": entry()}, b"123", "the tensors end at byte"),
        ({"a": entry(), "b": entry(offsets=(1, 3))}, b"123", "overlaps"),
        ({"a": entry(), "b": entry(offsets=(3, 5))}, b"12345", "gap"),
        ({"a": entry(offsets=(1, 3))}, b"123", "gap"),
        ({"a": entry(shape=(3,))}, b"12", "takes 3 bytes"),
        ({"a": entry(shape=(1 << 61, 1 << 61))}, b"12", "takes"),
        ({"a": entry(shape=(10**30,))}, b"12", "whole numbers"),
        ({"a": entry(shape=(-2,))}, b"12", "whole numbers"),
        ({"a": entry(shape=(2.0,))}, b"12", "whole numbers"),
        ({"a": entry(shape=(True, 2))}, b"12", "whole numbers"),
        ({"a": entry(shape=[1] * 99)}, b"12", "at most 16"),
        ({"a": entry(shape="2")}, b"12", "at most 16"),
        ({"a": entry(offsets=(2, 0))}, b"12", "rising"),
        ({"a": entry(offsets=(0,))}, b"12", "rising"),
        ({"a": entry(dtype="Q4")}, b"12", "unknown dtype"),
        ({"a": {**entry(), "more": 1}}, b"12", "exactly"),
        ({"a": 5}, b"12", "exactly"),
        ({"__metadata__": {"k": 1}}, b"", "string"),
        ({"__metadata__": []}, b"", "__metadata__"),
    ],
)
def test_header_faults(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    write_parts(path, json.dumps(header).encode(), data)
    with pytest.raises(ModelError, match=message) as caught:
        read_header(path)
    assert str(path) in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at least 8 bytes"),
        (b"1234567", "at least 8 bytes"),
        ((10**9).to_bytes(8, "little") + b"{}", "may have 100000000"),
        ((3).to_bytes(8, "little") + b"{}", "file ends at 10"),
        ((2).to_bytes(8, "little") + b"[]", "begin with"),
        ((2).to_bytes(8, "little") + b"{x", "cannot be read"),
        ((2).to_bytes(8, "little") + b"{\xff", "cannot be read"),
        ((90_000).to_bytes(8, "little") + b'{"a":'.ljust(90_000, b"["), "cannot be read"),
        ((13).to_bytes(8, "little") + b'{"a":1,"a":1}', "'a' is given twice"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
    ],
)
def test_unreadable_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        read_header(path)


def test_names_in_messages_cannot_steer_the_terminal(tmp_path: Path) -> None:
    write_raw(tmp_path / "x", {"\x1b[2J" + "a" * 999: ("I8", [3], b"12")})
    with pytest.raises(ModelError) as caught:
        read_header(tmp_path / "x")
    assert "\x1b" not in caught.value.message and len(caught.value.message) < 400


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 200), st.binary(max_size=4))
def test_any_damage_is_read_or_refused(at: int, patch: bytes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary, "x")
        write_raw(path, {"a": ("F32", [4, 6], b"\1" * 96), "b": ("I8", [1], b"\2")}, format="pt")
        content = path.read_bytes()
        path.write_bytes(content[:at] + patch + content[at + len(patch) + at % 2 :])
        try:
            header = read_header(path)
        except ModelError:
            return
        assert all(8 < t.start <= t.stop <= header.file_bytes for t in header.tensors.values())


@pytest.mark.parametrize(
    "name",
    ["../../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "a\\b.safetensors",
     "C:x.safetensors", "..", "", "x.bin", ".x.safetensors", "x\0.safetensors", 5, None],
)  # fmt: skip
def test_index_may_not_lead_out(tmp_path: Path, name: object) -> None:
    write_shards(tmp_path, {"a.safetensors": {"a": ("I8", [2], b"12")}})
    write_index(tmp_path, {"a": name})
    with pytest.raises(ModelError, match="should be in a"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "a.safetensors", "b": "gone.safetensors"}, "'gone.safetensors' is missing"),
        ({"a": "a.safetensors", "c": "a.safetensors"}, "'c' should be in it"),
        ({"a": "a.safetensors"}, "holds tensor 'b'.*does not name"),
        ({}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_index_and_files_must_agree(tmp_path: Path, weight_map: object, message: str) -> None:
    write_shards(tmp_path, {"a.safetensors": {"a": ("I8", [2], b"12"), "b": ("I8", [2], b"12")}})
    write_index(tmp_path, weight_map)
    with pytest.raises(ModelError, match=message):
        read_headers(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    raw: Raw = {"a": ("I8", [2], b"12")}
    more: Raw = {"c": raw["a"]}
    write_shards(tmp_path, {"a.safetensors": {**raw, **more}, "b.safetensors": raw})
    with pytest.raises(ModelError, match="another file"):
        read_headers(tmp_path)


def test_locates_tensors_by_the_index(tmp_path: Path) -> None:
    raw = ("I8", [2], b"12")
    write_shards(tmp_path, {"x.safetensors": {"a": raw}, "y.safetensors": {"b": raw}})
    write_raw(tmp_path / "consolidated.safetensors", {"a": raw})
    where = {name: at.file for name, at in open_weights(tmp_path).tensors.items()}
    assert where == {"a": "x.safetensors", "b": "y.safetensors"}
    assert other_weights(tmp_path) == ("consolidated.safetensors",)


def test_two_sets_of_weights_are_refused(tmp_path: Path) -> None:
    raw: Raw = {"a": ("I8", [2], b"12")}
    write_shards(tmp_path, {"x.safetensors": raw})
    write_raw(tmp_path / "model.safetensors", raw)
    with pytest.raises(ModelError, match="both"):
        read_headers(tmp_path)


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        ([], "config.json is missing", "download"),
        (["adapter_config.json"], "config.json is missing", "merge"),
        (["config.json"], "model.safetensors .* is missing", "download"),
        (["config.json", "pytorch_model.bin"], "pickled", "save_pretrained"),
        (["config.json", "x.gguf"], "GGUF", "GGUF file itself"),
        (["config.json", "x.safetensors"], "other names", "rename"),
    ],
)
def test_missing_files(tmp_path: Path, files: list[str], message: str, hint: str) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelError, match=message) as caught:
        read_headers(tmp_path)
    assert str(tmp_path) in caught.value.message and hint in caught.value.hint


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="found nothing"):
        read_headers(tmp_path / "nowhere")


def test_staged_appears_whole(tmp_path: Path) -> None:
    output = tmp_path / "new" / "parents" / "out"
    with staged(output, force=False) as folder:
        (folder / "a").write_text("x")
        assert folder.name == "out.partial" and not output.exists()
    assert [path.name for path in output.iterdir()] == ["a"]
    assert [path.name for path in output.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_staged_leaves_nothing_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), staged(tmp_path / "out", force=False) as folder:
        (folder / "a").write_text("x")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_staged_replaces_only_by_force_and_only_its_own(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "precious").write_text("x")
    for force in (False, True):
        with pytest.raises(UsageError), staged(output, force=force):
            pass
    (output / "editor.json").write_text('{"files": [{"name": "weights"}]}')
    (output / "weights").write_text("ours")
    with pytest.raises(UsageError, match="exists") as caught, staged(output, force=False):
        pass
    assert "--force" in caught.value.hint
    with pytest.raises(UsageError, match="precious"), staged(output, force=True):
        pass  # a user's own file beside ours
    (output / "precious").rename(output / "README.md")
    with staged(output, force=True) as folder:
        (folder / "a").write_text("x")
        assert (output / "weights").exists()
    assert [path.name for path in output.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [output]


def test_staged_replaces_an_empty_folder_by_force(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with staged(tmp_path / "out", force=True) as folder:
        (folder / "a").write_text("x")
    assert (tmp_path / "out" / "a").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_staged_refuses_what_is_not_a_folder(tmp_path: Path, kind: str) -> None:
    (tmp_path / "there").mkdir()
    output = tmp_path / "out"
    output.write_text("x") if kind == "file" else output.symlink_to(tmp_path / "there")
    with pytest.raises(UsageError, match="not a folder"), staged(output, force=True):
        pass


def test_staged_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "half").write_text("x")
    with pytest.raises(UsageError, match="in the way"), staged(tmp_path / "out", force=True):
        pass
    assert (partial / "half").exists()
    (partial / ".editor-partial").touch()
    with staged(tmp_path / "out", force=False):
        pass
    assert list((tmp_path / "out").iterdir()) == []


def test_staged_respects_a_running_process(tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    with (partial / ".editor-partial").open("wb") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process"):
            staged(tmp_path / "out", force=True).__enter__()
    assert partial.exists()


@pytest.mark.parametrize("output", ["base", "base/out", "."])
def test_staged_keeps_apart_from_the_base(tmp_path: Path, output: str) -> None:
    base = simple(tmp_path / "base")
    with (
        pytest.raises(UsageError, match="inside one another"),
        staged(tmp_path / output, force=True, base=base),
    ):
        pass


def test_staged_restores_the_old_folder_when_the_rename_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "editor.json").write_text("old")
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if Path(source).name == "out.partial":
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(EditorError, match="broken"), staged(output, force=True):
        pass
    assert (output / "editor.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [output]


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(errno.ENOSPC, 3, "full"), (errno.EACCES, 2, "cannot write"), (errno.EROFS, 3, "Read-only")],
)
def test_a_failing_disk_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int, message: str
) -> None:
    base = simple(tmp_path / "base")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(DirectFile, "_put", fail)
    with (
        pytest.raises(EditorError, match=message) as caught,
        staged(tmp_path / "out", force=False) as folder,
    ):
        apply_edits(base, folder, [edit()])
    assert caught.value.exit_code == code and caught.value.hint
    assert list(tmp_path.iterdir()) == [base]


def test_space_is_checked_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = simple(tmp_path / "base")
    (tmp_path / "copy").mkdir()
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EditorError, match="1000 are free") as caught:
        apply_edits(base, tmp_path / "copy", [])
    assert caught.value.exit_code == 3
    assert list((tmp_path / "copy").iterdir()) == []


def test_a_base_that_changes_meanwhile_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = simple(tmp_path / "base")
    (tmp_path / "copy").mkdir()
    write = DirectFile.write

    def write_and_append(file: DirectFile, data: Any) -> None:
        write(file, data)
        append(base)

    monkeypatch.setattr(DirectFile, "write", write_and_append)
    with pytest.raises(ModelError, match="model.safetensors: changed while it was read"):
        apply_edits(base, tmp_path / "copy", [edit()])
