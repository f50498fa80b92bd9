"""A walk reads all bytes once and in order, sets exactly its patches' bits, and notices changes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor import patching
from editor.errors import ModelError
from editor.patching import AHEAD, Patch, Piece, copy_patched, digests, walk, walk_part


def patch_of(
    start: int, row_bytes: int, n_rows: int, *, seed: int = 0, alike: bool = True
) -> Patch:
    rng = np.random.default_rng(seed)
    mask = rng.integers(0, 256, row_bytes, np.uint8)
    mask[rng.random(row_bytes) < 0.4] = 0
    value = rng.integers(0, 256, (1 if alike else n_rows, row_bytes), np.uint8) & mask
    return Patch(start, row_bytes, n_rows, mask, value)


def patched(content: bytes, patches: list[Patch]) -> bytes:
    """What a file should become, one byte at a time."""
    new = bytearray(content)
    for patch in patches:
        for row in range(patch.n_rows):
            value = patch.value[0 if len(patch.value) == 1 else row]
            for column in range(patch.row_bytes):
                at = patch.start + row * patch.row_bytes + column
                mask = int(patch.mask[column])
                new[at] = new[at] & ~mask & 0xFF | int(value[column])
    return bytes(new)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, list[Patch]]:
    """A file, and patches in the order of its bytes that may touch but not overlap."""
    patches: list[Patch] = []
    end = 0
    for n in range(draw(st.integers(0, 4))):
        start = end + draw(st.integers(0, 20))
        row_bytes, n_rows = draw(st.tuples(st.integers(1, 30), st.integers(1, 6)))
        patches.append(patch_of(start, row_bytes, n_rows, seed=n, alike=draw(st.booleans())))
        end = patches[-1].stop
    size = end + draw(st.integers(0, 40))
    return np.random.default_rng(size).bytes(size), patches


def ignore(_: Piece) -> None:
    pass


@settings(max_examples=200, deadline=None)
@given(files(), st.sampled_from([1, 7, 32, 1 << 20]))
def test_every_byte_comes_once_and_only_bits_of_patches_are_set(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[bytes, list[Patch]], chunk: int
) -> None:
    content, patches = case
    folder = tmp_path_factory.mktemp("walk")
    source = folder / "source"
    source.write_bytes(content)
    old, new = bytearray(), bytearray()

    def use(piece: Piece) -> None:
        assert piece.offset == len(old)
        assert (piece.new is piece.old) or piece.patch is not None
        old.extend(piece.old.tobytes())
        new.extend(piece.new.tobytes())

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(patching, "CHUNK_BYTES", chunk)
        found = copy_patched(source, folder / "copy", iter(patches), use)
    expected = patched(content, patches)
    assert old == content and new == expected == (folder / "copy").read_bytes()
    assert found.before == hashlib.sha256(content).hexdigest()
    assert found.after == hashlib.sha256(expected).hexdigest()
    assert found.n_bytes == len(content)
    assert found.n_changed == sum(a != b for a, b in zip(content, expected, strict=True))
    assert source.read_bytes() == content


def test_columns_are_the_ranges_of_bytes_that_hold_set_bits() -> None:
    mask = np.array([1, 0, 0, 2, 255, 0, 4], np.uint8)
    assert Patch(0, 7, 1, mask, np.zeros((1, 7), np.uint8)).columns() == ((0, 1), (3, 5), (6, 7))
    assert Patch(0, 2, 1, np.zeros(2, np.uint8), np.zeros((1, 2), np.uint8)).columns() == ()


def test_a_part_is_walked_as_the_whole_is(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(300)
    (tmp_path / "f").write_bytes(content)
    patches = [patch_of(60, 10, 4), patch_of(120, 7, 3, alike=False)]
    pieces = list(walk_part(tmp_path / "f", 50, 200, patches))
    assert pieces[0].offset == 50
    assert b"".join(p.new.tobytes() for p in pieces) == patched(content, patches)[50:200]
    with pytest.raises(ModelError, match="ends at byte 300, expected at least 301"):
        list(walk_part(tmp_path / "f", 50, 301, []))


@pytest.mark.parametrize(
    "patches",
    [
        [patch_of(20, 4, 2), patch_of(0, 4, 2)],
        [patch_of(0, 4, 2), patch_of(7, 4, 2)],
        [patch_of(0, 4, 2), patch_of(0, 4, 2)],
    ],
    ids=["order", "overlap", "same"],
)
def test_patches_out_of_order_are_a_mistake_of_the_program(
    tmp_path: Path, patches: list[Patch]
) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="order"):
        list(walk(tmp_path / "f", patches))


@pytest.mark.parametrize("patches", [[patch_of(90, 4, 3)], [patch_of(200, 4, 1)]])
def test_a_file_that_ends_before_a_patch_does_is_refused(
    tmp_path: Path, patches: list[Patch]
) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    with pytest.raises(ModelError, match=r"f: ends at byte 100, expected at least"):
        copy_patched(tmp_path / "f", tmp_path / "copy", patches)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\1")
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (append, "changed while it was read"),
        (lambda path: os.truncate(path, 70), "ends at byte|changed while it was read"),
        (rewrite, "changed while it was read"),
    ],
    ids=["append", "truncate", "rewrite"],
)
@pytest.mark.parametrize("when", [0, 1, 9])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    message: str,
    when: int,
) -> None:
    monkeypatch.setattr(patching, "CHUNK_BYTES", 10)
    (tmp_path / "f").write_bytes(bytes(100))
    seen: list[Piece] = []

    def use(piece: Piece) -> None:
        if len(seen) == when:
            change(tmp_path / "f")
        seen.append(piece)

    with pytest.raises(ModelError, match=message):
        copy_patched(tmp_path / "f", tmp_path / "copy", [patch_of(40, 10, 2)], use)


def test_a_file_that_grows_as_fast_as_it_is_read_has_an_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1234")
    with pytest.raises(ModelError, match="changed while"):
        digests(walk(tmp_path / "f", []), lambda _: append(tmp_path / "f"))


def test_buffers_are_used_again_only_when_they_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hashing that lags behind, on a file of many more pieces than there are buffers."""
    monkeypatch.setattr(patching, "CHUNK_BYTES", 64)
    content = np.random.default_rng(0).bytes(64 * 12 * AHEAD + 5)
    (tmp_path / "f").write_bytes(content)
    patches = [patch_of(64 * 20, 8, 300, alike=False)]

    class Slow:
        def __init__(self, sha: object = None) -> None:
            self._sha = sha or real()

        def update(self, data: memoryview) -> None:
            time.sleep(0.0005)
            self._sha.update(data)

        def copy(self) -> Slow:
            return Slow(self._sha.copy())

        def hexdigest(self) -> str:
            return self._sha.hexdigest()

    real = hashlib.sha256
    monkeypatch.setattr(patching.hashlib, "sha256", Slow)
    found = copy_patched(tmp_path / "f", tmp_path / "copy", patches)
    monkeypatch.undo()
    assert found.before == hashlib.sha256(content).hexdigest()
    assert found.after == hashlib.sha256(patched(content, patches)).hexdigest()


def test_the_last_pieces_stay_valid_while_the_walk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patching, "CHUNK_BYTES", 10)
    content = np.random.default_rng(1).bytes(1000)
    (tmp_path / "f").write_bytes(content)
    kept: list[Piece] = []
    for piece in walk(tmp_path / "f", [patch_of(500, 10, 3)]):
        kept = [*kept, piece][-AHEAD:]
        first = kept[0].offset
        joined = b"".join(one.old.tobytes() for one in kept)
        assert joined == content[first : first + len(joined)]


def test_what_is_there_already_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"new")
    (tmp_path / "precious").write_bytes(b"old")
    (tmp_path / "link").symlink_to("precious")
    for name in ("precious", "link"):
        with pytest.raises(FileExistsError):
            copy_patched(tmp_path / "f", tmp_path / name, [])
    assert (tmp_path / "precious").read_bytes() == b"old"


def test_an_error_of_whoever_uses_the_pieces_ends_the_threads_too(tmp_path: Path) -> None:
    import threading

    (tmp_path / "f").write_bytes(bytes(100))

    def fail(_: Piece) -> None:
        raise KeyError("mine")

    before = threading.active_count()
    with pytest.raises(KeyError, match="mine"):
        digests(walk(tmp_path / "f", []), fail)
    assert threading.active_count() == before
