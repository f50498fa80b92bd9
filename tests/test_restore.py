"""A restore patch is a plain zip file that gives back what it should, or one clear error."""

from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor import restore
from editor.baking import read_manifest
from editor.errors import CheckFailed, EditorError, ModelError, UsageError
from editor.records import Manifest
from small import HEADS, ONE, TWO, bake, files_of, make_base, undo, verify

Entries = dict[str, bytes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the edit `out` of `base`, and its patch; the tests change copies only."""
    root = tmp_path_factory.mktemp("made")
    bake(make_base(root / "base"), root / "out")
    return root


def patch_of(made: Path) -> Path:
    return made / "out.restore.zip"


def entries_of(patch: Path) -> Entries:
    with zipfile.ZipFile(patch) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, entries: Entries, how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def changed(made: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the patch whose restore.json is changed."""
    entries = entries_of(patch_of(made))
    contents = json.loads(entries["restore.json"])
    change(contents)
    return write(path, {**entries, "restore.json": json.dumps(contents).encode()})


def put_back(made: Path, patch: Path, folder: Path) -> Any:
    """What `undo` does after it has found the patch's sha256 to be the recorded one."""
    folder.mkdir()
    return restore.undo(made / "out", patch, folder)


class TestThePatch:
    def test_lies_beside_the_folder_and_is_recorded(self, made: Path) -> None:
        manifest, content = read_manifest(made / "out"), patch_of(made).read_bytes()
        assert manifest.restore is not None
        assert manifest.restore.n_bytes == len(content)
        assert manifest.restore.sha256 == hashlib.sha256(content).hexdigest()
        assert not [name for name in files_of(made / "out") if "restore" in name]

    def test_holds_the_removed_bytes_and_the_replaced_files(self, made: Path) -> None:
        entries = entries_of(patch_of(made))
        names = {f"removed/{ONE}", f"removed/{TWO}", "replaced/README.md", "replaced/report.html"}
        assert set(entries) == names | {"restore.json"}
        assert entries["replaced/README.md"] == (made / "base/README.md").read_bytes()
        written = {one.file: one for one in read_manifest(made / "out").written}
        for file in (ONE, TWO):
            removed = entries[f"removed/{file}"]
            assert len(removed) == 16 * 4 * 4  # 16 rows, 4 float32 of a head
            assert hashlib.sha256(removed).hexdigest() == written[file].sha256_before
            zeros = hashlib.sha256(bytes(len(removed))).hexdigest()
            assert zeros == written[file].sha256_after

    def test_is_the_same_for_the_same_edit(self, made: Path, tmp_path: Path) -> None:
        bake(made / "base", tmp_path / "again", HEADS[::-1])
        assert (tmp_path / "again.restore.zip").read_bytes() == patch_of(made).read_bytes()

    def test_is_an_ordinary_zip_file_without_compression(self, made: Path) -> None:
        with zipfile.ZipFile(patch_of(made)) as archive:
            assert archive.testzip() is None
            assert {one.compress_type for one in archive.infolist()} == {zipfile.ZIP_STORED}

    def test_of_another_edit_is_not_written_over(self, made: Path, tmp_path: Path) -> None:
        (tmp_path / "o.restore.zip").write_text("precious")
        with pytest.raises(UsageError, match="restore patch of another edit"):
            bake(made / "base", tmp_path / "o")
        assert (tmp_path / "o.restore.zip").read_text() == "precious"
        bake(made / "base", tmp_path / "o", force=True)
        assert zipfile.is_zipfile(tmp_path / "o.restore.zip")

    def test_goes_when_the_edit_fails(self, made: Path, tmp_path: Path) -> None:
        with pytest.raises(ModelError, match="L9H9"):
            bake(made / "base", tmp_path / "o", (HEADS[0].__class__(9, 9),))
        assert not list(tmp_path.iterdir())


def rows(contents: dict[str, Any]) -> dict[str, Any]:
    return contents["written"][0]["rows"][0]


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a name that leads out": lambda c: c["base_files"][0].update(name="../evil.json"),
    "an absolute name": lambda c: c["base_files"][0].update(name="/tmp/evil.json"),
    "a name of two dots inside": lambda c: c["base_files"][0].update(name="a/../../evil.json"),
    "a name with a backslash": lambda c: c["base_files"][0].update(name="..\\evil.json"),
    "a drive": lambda c: c["base_files"][0].update(name="C:evil.json"),
    "an empty name": lambda c: c["base_files"][0].update(name=""),
    "a name of no text": lambda c: c["base_files"][0].update(name="a\0b"),
    "a wrong name of an edited file": lambda c: c["edited_files"][0].update(name="../evil.json"),
    "a file that it has not": lambda c: c["base_files"].append({**c["base_files"][0], "name": "x"}),
    "a file twice": lambda c: c["base_files"].append(c["base_files"][0]),
    "a negative start": lambda c: rows(c).update(start=-64),
    "a start behind the end": lambda c: rows(c).update(start=1 << 50),
    "no rows": lambda c: rows(c).update(n_rows=0),
    "too many rows": lambda c: rows(c).update(n_rows=1 << 40),
    "rows without bytes": lambda c: rows(c).update(row_bytes=0),
    "rows of a terabyte": lambda c: rows(c).update(row_bytes=1 << 40, n_rows=1),
    "no columns": lambda c: rows(c).update(columns=[]),
    "columns that overlap": lambda c: rows(c).update(columns=[[0, 8], [4, 12]]),
    "columns that fall": lambda c: rows(c).update(columns=[[8, 4]]),
    "a column outside of the row": lambda c: rows(c).update(columns=[[0, 65]]),
    "a negative column": lambda c: rows(c).update(columns=[[-4, 4]]),
    "ranges that overlap": lambda c: c["written"][0]["rows"].append(rows(c)),
    "more columns than were kept": lambda c: rows(c).update(columns=[[0, 32]]),
    "another version": lambda c: c.update(schema_version=99),
    "an unknown field": lambda c: c.update(more=1),
    "a file that becomes a folder": lambda c: c["base_files"].insert(
        0, {**c["base_files"][0], "name": "config.json/x"}
    ),
}


class TestHostilePatches:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_are_refused_and_nothing_is_written_elsewhere(
        self, made: Path, tmp_path: Path, name: str
    ) -> None:
        patch = changed(made, tmp_path / "p.zip", HOSTILE[name])
        with pytest.raises(EditorError) as caught:
            put_back(made, patch, tmp_path / "restored")
        assert caught.value.exit_code in (2, 3, 4) and len(caught.value.message) < 1000
        assert {path.name for path in tmp_path.iterdir()} == {"p.zip", "restored"}
        assert not list(made.rglob("evil*")) and not Path("/tmp/evil.json").exists()

    def test_with_absurd_sizes_take_no_memory(self, made: Path, tmp_path: Path) -> None:
        def change(contents: dict[str, Any]) -> None:
            for file in contents["edited_files"]:
                file["n_bytes"] = 1 << 60
            rows(contents).update(n_rows=1 << 50)

        patch = changed(made, tmp_path / "p.zip", change)
        with pytest.raises((ModelError, CheckFailed)):
            put_back(made, patch, tmp_path / "restored")

    @pytest.mark.parametrize(
        "entries",
        [
            {"restore.json": b"{"},
            {"restore.json": b"[" * 100_000},
            {"restore.json": b"\xff"},
            {},
        ],
        ids=["cut", "nested", "no text", "empty"],
    )
    def test_without_contents_are_damaged(
        self, made: Path, tmp_path: Path, entries: Entries
    ) -> None:
        patch = write(tmp_path / "p.zip", entries)
        with pytest.raises(ModelError, match=r"p\.zip.*restore\.json"):
            put_back(made, patch, tmp_path / "restored")

    @pytest.mark.parametrize("left_out", [f"removed/{ONE}", "replaced/README.md"])
    def test_that_lack_a_file_are_damaged(self, made: Path, tmp_path: Path, left_out: str) -> None:
        entries = entries_of(patch_of(made))
        del entries[left_out]
        patch = write(tmp_path / "p.zip", entries)
        with pytest.raises(ModelError, match="hold|no item named"):
            put_back(made, patch, tmp_path / "restored")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            (f"removed/{ONE}", b"x" * 256),
            (f"removed/{ONE}", b"x" * 255),
            (f"removed/{ONE}", b""),
            ("replaced/README.md", b"another"),
            ("replaced/README.md", b"x" * (5 << 20)),
            ("replaced/README.md", b""),
        ],
    )
    def test_with_other_bytes_give_no_base(
        self, made: Path, tmp_path: Path, name: str, content: bytes
    ) -> None:
        patch = write(tmp_path / "p.zip", {**entries_of(patch_of(made)), name: content})
        with pytest.raises((ModelError, CheckFailed)):
            put_back(made, patch, tmp_path / "restored")
        # No more of a file is unpacked than it should have.
        sizes = [path.stat().st_size for path in (tmp_path / "restored").rglob("*.md")]
        assert all(size <= 100 for size in sizes)

    def test_with_compressed_members_are_refused(self, made: Path, tmp_path: Path) -> None:
        entries = {**entries_of(patch_of(made)), f"removed/{ONE}": bytes(100 << 20)}
        patch = write(tmp_path / "bomb.zip", entries, zipfile.ZIP_DEFLATED)
        assert patch.stat().st_size < 1 << 20
        with pytest.raises(ModelError, match="compressed"):
            put_back(made, patch, tmp_path / "restored")
        assert not list((tmp_path / "restored").iterdir())

    @pytest.mark.parametrize("size", [0, 1, 21, 100, -1, -30])
    def test_that_are_cut_off_are_damaged(self, made: Path, tmp_path: Path, size: int) -> None:
        (tmp_path / "p.zip").write_bytes(patch_of(made).read_bytes()[:size])
        with pytest.raises(ModelError, match=r"p\.zip"):
            put_back(made, tmp_path / "p.zip", tmp_path / "restored")

    @pytest.mark.parametrize("signature", [b"PK\1\2", b"PK\3\4"], ids=["directory", "file"])
    def test_with_names_of_no_text_are_damaged(
        self, made: Path, tmp_path: Path, signature: bytes
    ) -> None:
        content = bytearray(patch_of(made).read_bytes())
        flags, name = (8, 46) if signature == b"PK\1\2" else (6, 30)
        at = content.index(signature)
        content[at + flags + 1] |= 8  # the name is UTF-8
        content[at + name] = 0xFF
        (tmp_path / "p.zip").write_bytes(content)
        with pytest.raises(ModelError, match=r"p\.zip: cannot be read"):
            put_back(made, tmp_path / "p.zip", tmp_path / "restored")

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=4))
    def test_with_any_damage_give_the_base_or_an_error(
        self, made: Path, tmp_path_factory: pytest.TempPathFactory, at: int, junk: bytes
    ) -> None:
        root = tmp_path_factory.mktemp("damage")
        content = bytearray(patch_of(made).read_bytes())
        at %= len(content)
        content[at : at + len(junk)] = junk
        (root / "p.zip").write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                put_back(made, root / "p.zip", root / "restored")
        except EditorError:
            return
        assert files_of(root / "restored") == files_of(made / "base")


def test_a_folder_that_was_undone_is_the_base(made: Path, tmp_path: Path) -> None:
    before = files_of(made / "out")
    undo(made / "out", tmp_path / "restored")
    assert files_of(tmp_path / "restored") == files_of(made / "base")
    assert files_of(made / "out") == before
    verify(made / "out", tmp_path / "restored")


def test_the_manifest_reads_as_it_was_written(made: Path) -> None:
    text = (made / "out" / "editor.json").read_text()
    manifest = Manifest.model_validate_json(text)
    assert manifest.model_dump_json(indent=1) + "\n" == text
