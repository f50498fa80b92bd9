"""Whoever changes a byte, a head or a record after the edit is found; the base comes back whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from editor import verification
from editor.baking import read_manifest
from editor.errors import CheckFailed, EditorError, ModelError, UsageError
from editor.progress import Silent
from editor.records import Difference, Head, Verified
from editor.session import Options
from gguf_files import Tensor, write_gguf
from small import (
    GGUF_METADATA,
    HEADS,
    ONE,
    PROJECTION,
    TWO,
    bake,
    change_json,
    files_of,
    flip,
    make_base,
    make_gguf,
    tensors_of,
    undo,
    verify,
)

QUIET = Silent()
OTHER = Head(0, 3)


def diff(a: Path, b: Path) -> Difference:
    return verification.diff(str(a), str(b), Options(), QUIET)


def derivative(
    derived: Path, heads: tuple[Head, ...] = HEADS, base: Path | None = None
) -> Verified:
    name = None if base is None else str(base)
    return verification.verify_derivative(derived, heads, name, Options(), QUIET)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


@pytest.fixture
def out(base: Path, tmp_path: Path) -> Path:
    bake(base, tmp_path / "out")
    return tmp_path / "out"


class TestAnEdit:
    def test_is_verified_alone_and_against_its_base(self, base: Path, out: Path) -> None:
        alone = verify(out)
        assert (alone.heads, alone.base, alone.bytes_changed, alone.tensors) == (
            HEADS,
            None,
            None,
            2,
        )
        assert any("give the base" in line for line in alone.not_checked)
        full = verify(out, base)
        manifest = read_manifest(out)
        assert (full.base, full.heads) == ("base", HEADS)
        assert full.bytes_changed == manifest.bytes_changed > 0
        assert full.not_checked and all("no signature" in line for line in full.not_checked)
        assert full.bytes_read == 2 * sum(file.n_bytes for file in manifest.files)

    @pytest.mark.parametrize("sharded", [True, False])
    def test_is_undone_to_the_last_byte(self, tmp_path: Path, sharded: bool) -> None:
        base = make_base(tmp_path / "b", sharded=sharded)
        (base / "editor.json").write_text('{"name": "of another program"}')
        before = files_of(base)
        bake(base, tmp_path / "o")
        assert "another program" not in (tmp_path / "o" / "editor.json").read_text()
        found = undo(tmp_path / "o", tmp_path / "restored")
        assert files_of(tmp_path / "restored") == before == files_of(base)
        assert [file.name for file in found.files] == sorted(before)
        assert (found.base, found.left_out) == ("b", ())
        assert diff(base, tmp_path / "restored").same

    def test_may_have_files_of_its_own(self, base: Path, out: Path, tmp_path: Path) -> None:
        (out / "notes.md").write_text("mine")
        assert any("'notes.md'" in line for line in verify(out, base).not_checked)
        assert any("'notes.md'" in line for line in verify(out).not_checked)
        assert undo(out, tmp_path / "restored").left_out == ("notes.md",)
        assert not (tmp_path / "restored" / "notes.md").exists()

    def test_another_model_is_named_as_no_base(self, out: Path, tmp_path: Path) -> None:
        other = make_base(tmp_path / "other", sharded=False)
        with pytest.raises(CheckFailed, match="other is not the base of"):
            verify(out, other)

    def test_lists_what_nobody_checks(self, base: Path, out: Path) -> None:
        (out / ".hidden").mkdir()
        said = " ".join(verify(out, base).not_checked)
        assert "'.hidden'" in said and "no signature covers" in said

    def test_recorded_ranges_are_those_of_the_heads(self, out: Path) -> None:
        change_json(out / "editor.json", lambda fields: fields["written"][0]["rows"].pop())
        with pytest.raises(CheckFailed, match="other byte ranges"):
            verify(out)

    def test_is_verified_and_undone_wherever_it_lies(self, out: Path, tmp_path: Path) -> None:
        before = files_of(tmp_path / "base")
        out.rename(tmp_path / "moved")
        Path(f"{out}.restore.zip").rename(tmp_path / "moved.restore.zip")
        shutil.rmtree(tmp_path / "base")
        verify(tmp_path / "moved")
        undo(tmp_path / "moved", tmp_path / "restored")
        assert files_of(tmp_path / "restored") == before

    def test_of_links_is_as_good(self, base: Path, tmp_path: Path) -> None:
        baked = bake(base, tmp_path / "o", HEADS[:1], link=True)
        assert baked.checkpoint.linked == (TWO,)
        assert verify(tmp_path / "o", base).heads == HEADS[:1]
        undo(tmp_path / "o", tmp_path / "restored")
        assert files_of(tmp_path / "restored") == files_of(base)
        assert (tmp_path / "restored" / TWO).stat().st_nlink == 1

    def test_is_not_verified_against_itself(self, out: Path) -> None:
        with pytest.raises(UsageError, match="the edited checkpoint itself"):
            verify(out, out)

    def test_a_folder_that_is_none_is_said(self, base: Path) -> None:
        with pytest.raises(ModelError, match=r"editor\.json"):
            verify(base)


class TestTwoEdits:
    @pytest.fixture
    def twice(self, out: Path, tmp_path: Path) -> Path:
        bake(out, tmp_path / "twice", (OTHER,))
        return tmp_path / "twice"

    def test_compose(self, base: Path, out: Path, twice: Path, tmp_path: Path) -> None:
        manifest, first = read_manifest(twice), read_manifest(out)
        assert manifest.heads == (OTHER,)
        assert [one.heads for one in manifest.earlier] == [HEADS]
        assert manifest.earlier[0].base_files == first.base_files
        every = tuple(sorted((*HEADS, OTHER)))
        assert verify(twice).heads == verify(twice, base).heads == every
        middle = verify(twice, out)
        assert middle.heads == every
        assert middle.bytes_changed == manifest.bytes_changed
        assert verify(twice, base).bytes_changed == manifest.bytes_changed + first.bytes_changed
        undo(twice, tmp_path / "once")
        assert files_of(tmp_path / "once") == files_of(out)
        verify(tmp_path / "once", base)
        shutil.copy(f"{out}.restore.zip", tmp_path / "once.restore.zip")
        undo(tmp_path / "once", tmp_path / "never")
        assert files_of(tmp_path / "never") == files_of(base)

    def test_may_zero_a_head_again(self, base: Path, out: Path, tmp_path: Path) -> None:
        assert bake(out, tmp_path / "again", HEADS[:1]).manifest.bytes_changed == 0
        assert verify(tmp_path / "again", base).heads == HEADS
        assert verify(tmp_path / "again", out).bytes_changed == 0
        assert verify(tmp_path / "again").heads == HEADS

    def test_three_keep_their_order(self, base: Path, twice: Path, tmp_path: Path) -> None:
        bake(twice, tmp_path / "thrice", (Head(1, 0),))
        earlier = read_manifest(tmp_path / "thrice").earlier
        assert [one.heads for one in earlier] == [HEADS, (OTHER,)]
        assert len(verify(tmp_path / "thrice", base).heads) == 4
        assert len(verify(tmp_path / "thrice", twice).heads) == 4

    def test_a_base_that_is_no_longer_its_edit_is_not_edited(
        self, out: Path, tmp_path: Path
    ) -> None:
        flip(out / ONE)
        with pytest.raises(ModelError, match=f"{ONE}.*editor.json records"):
            bake(out, tmp_path / "twice", (OTHER,))
        assert not list(tmp_path.glob("twice*"))

    @pytest.mark.parametrize("against", ["base", "out", None])
    def test_a_head_that_was_never_zeroed_is_not_claimed(
        self, twice: Path, tmp_path: Path, against: str | None
    ) -> None:
        change_json(twice / "editor.json", lambda m: m["earlier"][0]["heads"].append("L1H3"))
        with pytest.raises(CheckFailed):
            verify(twice, tmp_path / against if against else None)


def heads(change: list[str]) -> Callable[[Path], None]:
    return lambda out: change_json(out / "editor.json", lambda m: m.update(heads=change))


def field(name: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    return lambda out: change_json(out / "editor.json", lambda m: change(m[name]))


def add(name: str) -> Callable[[Path], object]:
    return lambda out: (out / name).write_text("{}")


def lengthen(name: str) -> Callable[[Path], object]:
    return lambda out: (out / name).write_bytes((out / name).read_bytes() + b" ")


ELSEWHERE = {"n_bytes": 1, "sha256": ""}


def forget_weights(manifest: dict[str, Any]) -> None:
    manifest["files"] = [one for one in manifest["files"] if one["name"] != ONE]


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a weight": (lambda out: flip(out / ONE), ONE),
    "a header": (lambda out: flip(out / TWO, 20), TWO),
    "a removed weight": (lambda out: flip(out / TWO, -1020), TWO),
    "the config": (lengthen("config.json"), "config.json"),
    "the tokenizer": (lambda out: flip(out / "tokenizer.json", 3), "tokenizer.json"),
    "a file of a folder": (lambda out: flip(out / "original/params.json"), "params.json"),
    "a longer file": (lengthen("tokenizer.json"), "tokenizer.json"),
    "no tokenizer": (lambda out: (out / "tokenizer.json").unlink(), "tokenizer.json"),
    "more code": (add("modeling.py"), "modeling.py"),
    "more config": (add("generation_config.json"), "generation_config.json"),
    "more weights": (add("pytorch_model.bin"), "pytorch_model.bin"),
    "more weights in a folder": (add("original/consolidated.00.pth"), "consolidated.00.pth"),
    "a head that no model has": (heads(["L0H1", "L1H2", "L9H0"]), "L9H0"),
    "fewer heads": (heads(["L0H1"]), "editor.json"),
    "more heads": (heads(["L0H1", "L1H2", "L1H3"]), "editor.json"),
    "other heads": (heads(["L0H1", "L1H3"]), "editor.json"),
    "other edits": (field("edits", lambda edits: edits[0].update(start=0, stop=4)), "editor.json"),
    "fewer edits": (field("edits", lambda edits: edits.pop()), "editor.json"),
    "another code": (field("edits", lambda edits: edits[0].update(code="nf4")), "editor.json"),
    "another sha256": (field("files", lambda files: files[0].update(sha256="0" * 64)), "config"),
    "another size": (field("files", lambda files: files[0].update(n_bytes=1)), "config.json"),
    "a file that is not there": (
        field("files", lambda files: files.append({**ELSEWHERE, "name": "../base/config.json"})),
        "config.json",
    ),
    "a weight file forgotten": (
        lambda out: change_json(out / "editor.json", forget_weights),
        ONE,
    ),
}  # fmt: skip


class TestTampering:
    @pytest.mark.parametrize("against", ["alone", "base"])
    @pytest.mark.parametrize("name", TAMPERED)
    def test_is_found_and_its_file_named(
        self, base: Path, out: Path, name: str, against: str
    ) -> None:
        change, message = TAMPERED[name]
        change(out)
        with pytest.raises(CheckFailed, match=message) as caught:
            verify(out, base if against == "base" else None)
        assert caught.value.exit_code == 4

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: m.update(bytes_changed=m["bytes_changed"] - 1),
            lambda m: m["base_files"][0].update(sha256="0" * 64),
            lambda m: m["written"][0].update(sha256_before="0" * 64),
            lambda m: m["written"][0]["rows"][0].update(start=9),
            lambda m: m["written"].pop(),
        ],
        ids=["bytes_changed", "base_files", "before", "rows", "written"],
    )
    def test_of_what_is_said_of_the_base_is_found_with_the_base(
        self, base: Path, out: Path, change: Callable[[Any], object]
    ) -> None:
        change_json(out / "editor.json", change)
        with pytest.raises(CheckFailed, match=r"editor\.json"):
            verify(out, base)

    def test_another_base_is_named(self, base: Path, out: Path) -> None:
        flip(base / TWO)
        with pytest.raises(CheckFailed, match=TWO) as caught:
            verify(out, base)
        assert "names base" in caught.value.hint

    def test_a_base_of_another_tokenizer_is_named(self, base: Path, out: Path) -> None:
        flip(base / "tokenizer.json", 3)
        with pytest.raises(CheckFailed, match=r"tokenizer\.json"):
            verify(out, base)

    @pytest.mark.parametrize("name", ["../base/x.gguf", "/etc/x.gguf", "sub/x.gguf"])
    def test_a_record_leads_to_no_file_elsewhere(
        self, out: Path, tmp_path: Path, name: str
    ) -> None:
        (out / "sub").mkdir()
        for folder in (tmp_path / "base", out / "sub"):
            make_gguf(folder / "x.gguf")
        change_json(
            out / "editor.json", lambda m: m.update(base_files=[{**ELSEWHERE, "name": name}])
        )
        with pytest.raises((CheckFailed, ModelError), match=r"x\.gguf|editor\.json"):
            verify(out)


class TestUndo:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda out: flip(out / ONE), ONE),
            (lengthen(ONE), ONE),
            (lambda out: (out / ONE).write_bytes((out / ONE).read_bytes()[:-9]), ONE),
            (lambda out: (out / "tokenizer.json").unlink(), "tokenizer.json is missing"),
            (lambda out: flip(Path(f"{out}.restore.zip"), 900), "restore.zip.*sha256"),
            (field("restore", lambda restore: restore.update(sha256="0")), "restore.zip.*sha256"),
        ],
    )
    def test_of_changed_files_is_refused_and_leaves_nothing(
        self, out: Path, tmp_path: Path, change: Callable[[Path], object], message: str
    ) -> None:
        change(out)
        with pytest.raises(CheckFailed, match=message):
            undo(out, tmp_path / "restored")
        assert not list(tmp_path.glob("restored*"))

    def test_with_the_patch_of_another_edit_is_refused(
        self, base: Path, out: Path, tmp_path: Path
    ) -> None:
        bake(base, tmp_path / "other", (OTHER,))
        patch = tmp_path / "other.restore.zip"
        with pytest.raises(CheckFailed, match="other.restore.zip: is not the restore patch of"):
            undo(out, tmp_path / "restored", patch)

    def test_needs_its_patch(self, out: Path, tmp_path: Path) -> None:
        patch = Path(f"{out}.restore.zip").rename(tmp_path / "elsewhere.zip")
        with pytest.raises(ModelError, match="restore patch is missing") as caught:
            undo(out, tmp_path / "restored")
        assert "--restore" in caught.value.hint
        undo(out, tmp_path / "restored", patch)

    def test_goes_into_no_folder_that_is_in_use(self, base: Path, out: Path) -> None:
        for folder in (base, out, out / "sub"):
            with pytest.raises(UsageError):
                undo(out, folder)

    def test_refuses_a_link_before_anything_is_written(self, out: Path, tmp_path: Path) -> None:
        (out / "tokenizer.json").rename(tmp_path / "elsewhere.json")
        (out / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
        with pytest.raises(ModelError, match="link"):
            undo(out, tmp_path / "restored")
        assert not (tmp_path / "restored").exists()

    def test_gives_a_signature_back(self, base: Path, tmp_path: Path) -> None:
        (base / "model.sig").write_text("{}")
        bake(base, tmp_path / "signed")
        assert not (tmp_path / "signed" / "model.sig").exists()
        undo(tmp_path / "signed", tmp_path / "restored")
        assert files_of(tmp_path / "restored") == files_of(base)


class TestDerivatives:
    def resharded(self, out: Path, folder: Path, change: Any = None) -> Path:
        folder.mkdir()
        shutil.copy(out / "config.json", folder)
        tensors = {**load_file(out / ONE), **load_file(out / TWO)}
        if change is not None:
            change(tensors)
        save_file(tensors, folder / "model.safetensors")
        return folder

    def test_of_other_shards_are_compared_byte_by_byte(
        self, base: Path, out: Path, tmp_path: Path
    ) -> None:
        found = derivative(self.resharded(out, tmp_path / "d"), base=base)
        assert found.heads == HEADS
        assert "4 tensors are the base's" in " ".join(found.shown)
        assert found.not_checked == ("who made these files, and from what",)
        alone = derivative(tmp_path / "d")
        assert any("--base" in line for line in alone.not_checked)

    def test_of_another_dtype_are_checked_for_their_heads(
        self, base: Path, out: Path, tmp_path: Path
    ) -> None:
        def halve(tensors: dict[str, Any]) -> None:
            tensors.update({name: t.astype(np.float16) for name, t in tensors.items()})
            tensors["extra"] = np.ones(3, np.float32)

        found = derivative(self.resharded(out, tmp_path / "d", halve), base=base)
        text = " ".join(found.not_checked)
        assert "another dtype" in text and "'extra'" in text
        with pytest.raises(CheckFailed, match="output 0, input 12: should be zero"):
            derivative(tmp_path / "d", (*HEADS, OTHER))

    @pytest.mark.parametrize(
        ("name", "place", "message"),
        [
            (PROJECTION.format(1), (3, 9), "output 3, input 9: should be zero"),
            (PROJECTION.format(1), (3, 7), "byte 220.*: not as in the base"),
            ("model.norm.weight", (2,), "'model.norm.weight'.*not as in the base"),
        ],
    )
    def test_that_are_another_model_are_found(
        self, base: Path, out: Path, tmp_path: Path, name: str, place: Any, message: str
    ) -> None:
        def change(tensors: dict[str, Any]) -> None:
            tensors[name][place] = -3.0

        derived = self.resharded(out, tmp_path / "d", change)
        with pytest.raises(CheckFailed, match=message) as caught:
            derivative(derived, base=base)
        assert caught.value.exit_code == 4 and "model.safetensors" in caught.value.message

    def test_of_gguf_are_checked_for_their_heads(self, tmp_path: Path) -> None:
        weights = np.random.default_rng(0).uniform(1, 2, (2, 256, 256)).astype(np.float16)
        for head in HEADS:
            weights[head.layer, :, 64 * head.head : 64 * head.head + 64] = -0.0

        def write(name: str) -> Path:
            tensors = {
                "token_embd.weight": Tensor("F16", (256, 7)),
                **{
                    f"blk.{n}.attn_output.weight": Tensor("F16", (256, 256), one.tobytes())
                    for n, one in enumerate(weights)
                },
            }
            return write_gguf(tmp_path / name, GGUF_METADATA, tensors)

        assert derivative(write("d.gguf")).tensors == 2
        weights[1, 5, 130] = 1
        with pytest.raises(CheckFailed, match="output 5, input 130: should be zero"):
            derivative(write("e.gguf"))

    def test_take_their_heads_from_a_record(self, out: Path, tmp_path: Path) -> None:
        derived = self.resharded(out, tmp_path / "d")
        with pytest.raises(UsageError, match="editor.json") as caught:
            verification.recorded_heads(derived, None)
        assert "--heads" in caught.value.hint and "--manifest" in caught.value.hint
        assert verification.recorded_heads(derived, out / "editor.json") == HEADS
        shutil.copy(out / "editor.json", derived)
        assert verification.recorded_heads(derived, None) == HEADS
        assert verification.recorded_heads(derived / "model.gguf", None) == HEADS
        with pytest.raises(UsageError, match="no heads"):
            derivative(derived, ())
        with pytest.raises(ModelError, match="L7H0"):
            derivative(derived, (Head(7, 0),))


class TestDiff:
    def copy(self, base: Path, change: Callable[[dict[str, Any]], object]) -> Path:
        """The base in a single file, its tensors changed."""
        folder = base.parent / "b"
        shutil.copytree(base, folder)
        for name in (ONE, TWO, "model.safetensors.index.json"):
            (folder / name).unlink()
        tensors = tensors_of()
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    def test_of_other_shards_is_none(self, base: Path) -> None:
        found = diff(base, self.copy(base, lambda _: None))
        # The index itself is a file of the weights: nobody misses it.
        assert not found.tensors and found.tensors_equal == 4
        assert all("index" in line for line in found.files)

    def test_of_an_edit_names_its_heads(self, base: Path, out: Path) -> None:
        found = diff(base, out)
        assert [(at.heads, at.zeroed) for at in found.tensors] == [((h,), (h,)) for h in HEADS]
        assert not any(at.beside_heads for at in found.tensors)
        assert sum(at.bytes_changed or 0 for at in found.tensors) == (
            read_manifest(out).bytes_changed
        )
        assert found.tensors_equal == 2 and not found.same
        assert found.files == ("'README.md': differs",)
        back = diff(out, base)
        assert [(at.heads, at.zeroed) for at in back.tensors] == [((h,), ()) for h in HEADS]

    def test_tells_changes_inside_of_heads_from_others(self, base: Path) -> None:
        def change(tensors: dict[str, Any]) -> None:
            tensors[PROJECTION.format(0)][2, 5] += 1
            tensors[PROJECTION.format(0)][:, 8:12] = 0
            tensors["model.norm.weight"][0] += 1

        found = {at.tensor: at for at in diff(base, self.copy(base, change)).tensors}
        at = found[PROJECTION.format(0)]
        assert (at.heads, at.zeroed, at.beside_heads) == (
            (Head(0, 1), Head(0, 2)),
            (Head(0, 2),),
            False,
        )
        at = found["model.norm.weight"]
        assert (at.heads, at.beside_heads, at.bytes_total) == ((), True, 64)

    def test_tells_other_forms(self, base: Path) -> None:
        def change(tensors: dict[str, Any]) -> None:
            tensors["extra"] = np.ones(2, np.float32)
            tensors["model.norm.weight"] = np.ones(9, np.float32)
            tensors[PROJECTION.format(0)] = tensors[PROJECTION.format(0)].astype(np.float16)
            del tensors["model.embed_tokens.weight"]

        found = diff(base, self.copy(base, change))
        assert {at.tensor: at.kind for at in found.tensors} == {
            "extra": "only in B",
            "model.norm.weight": "shape",
            PROJECTION.format(0): "dtype",
            "model.embed_tokens.weight": "only in A",
        }
        assert found.tensors_equal == 1
        assert all(at.bytes_changed is None for at in found.tensors)

    def test_needs_no_known_model_type(self, base: Path, out: Path) -> None:
        for folder in (base, out):
            change_json(folder / "config.json", lambda c: c.update(model_type="unheard-of"))
        found = diff(base, out)
        assert len(found.tensors) == 2 and found.notes
        assert all(at.beside_heads and not at.heads for at in found.tensors)

    def test_of_files_beside_the_weights(self, base: Path, tmp_path: Path) -> None:
        shutil.copytree(base, tmp_path / "b")
        (tmp_path / "b" / "extra.txt").write_text("x")
        (tmp_path / "b" / "tokenizer.json").unlink()
        flip(tmp_path / "b" / "original" / "params.json")
        found = diff(base, tmp_path / "b")
        assert not found.same and not found.tensors
        assert found.files == (
            "'extra.txt': only in B",
            "'original/params.json': differs",
            "'tokenizer.json': only in A",
        )


class TestGguf:
    def test_is_edited_in_place_verified_and_undone(self, tmp_path: Path) -> None:
        base = make_gguf(tmp_path / "models" / "m.gguf")
        before = base.read_bytes()
        (base.parent / "README.md").write_text("of all the models here")
        out = tmp_path / "out"
        manifest = bake(base, out).manifest
        assert sorted(files_of(out)) == ["README.md", "editor.json", "m.gguf"]
        assert {edit.code for edit in manifest.edits} == {"ggml"}
        assert "of all the models" not in (out / "README.md").read_text()
        assert verify(out).heads == HEADS
        assert verify(out, base).bytes_changed == manifest.bytes_changed > 0
        assert derivative(out / "m.gguf", base=base).heads == HEADS
        found = diff(base, out / "m.gguf")
        assert [(at.heads, at.zeroed) for at in found.tensors] == [((h,), (h,)) for h in HEADS]
        assert base.read_bytes() == before
        undo(out, tmp_path / "restored")
        assert files_of(tmp_path / "restored") == {"m.gguf": before}

    @pytest.mark.parametrize("at", [-1, 40, 4000])
    @pytest.mark.parametrize("against", [True, False])
    def test_a_changed_bit_is_found(self, tmp_path: Path, at: int, against: bool) -> None:
        base, out = make_gguf(tmp_path / "m.gguf"), tmp_path / "out"
        bake(base, out)
        flip(out / "m.gguf", at)
        with pytest.raises((CheckFailed, ModelError), match=r"m\.gguf"):
            verify(out, base if against else None)
        with pytest.raises(EditorError, match=r"m\.gguf"):
            undo(out, tmp_path / "restored")

    def test_an_edited_file_may_be_edited_again(self, tmp_path: Path) -> None:
        base, out, twice = make_gguf(tmp_path / "m.gguf"), tmp_path / "out", tmp_path / "twice"
        bake(base, out)
        bake(out / "m.gguf", twice, (OTHER,))
        verify(twice, out / "m.gguf")
        undo(twice, tmp_path / "once")
        assert files_of(tmp_path / "once") == {"m.gguf": (out / "m.gguf").read_bytes()}


def test_a_manifest_of_another_schema_is_said(out: Path) -> None:
    change_json(out / "editor.json", lambda m: m.update(schema_version=1))
    with pytest.raises(ModelError, match="schema_version should be 2, found 1"):
        verify(out)
    (out / "editor.json").write_text(json.dumps([1]))
    with pytest.raises(ModelError, match=r"editor\.json"):
        verify(out)
