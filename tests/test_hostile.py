"""Bad and hostile input: always one clear line and the right exit code, and nothing is left."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import faults
import gguf_files as gg
from editor import baking, checkpoint, patching, staging
from editor.cli import main
from editor.safetensors_header import DTYPE_BITS
from faults import Fault, Spoil
from raw_safetensors import write_parts

FAULTS = faults.all_faults()
N_FAULTS = 300
SLOW_S = 5.0
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    os.environ["EDITOR_CACHE"] = str(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "secret").write_text("private")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("private")
    yield
    os.environ.clear()
    os.environ.update(before)


def snapshot(root: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: kind and permissions, size, target or time of change."""
    found: dict[str, tuple[int, int, str]] = {}
    waiting = [os.fsencode(root)]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            status = entry.stat(follow_symlinks=False)
            name = os.fsdecode(entry.path)
            link = os.readlink(name) if entry.is_symlink() else ""
            is_folder = entry.is_dir(follow_symlinks=False)
            size = 0 if is_folder else status.st_size
            found[name] = (
                status.st_mode,
                size,
                link or ("" if is_folder else str(status.st_mtime_ns)),
            )
            if is_folder and len(name) < 3000:
                waiting.append(entry.path)
    return found


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def check_words(result: Result, codes: set[int]) -> None:
    """One error, at most one hint, nothing that a terminal acts on, no traceback."""
    said = result.stderr
    assert result.exit_code in codes, said
    assert "Traceback" not in said + result.stdout
    assert not _CONTROL.search(said + result.stdout), repr(said)
    lines = said.splitlines()
    assert [line.split(":")[0] for line in lines] in (["error"], ["error", "hint"]), said
    assert all(10 < len(line) < 10_000 for line in lines), said
    assert result.stdout == ""


def refused(*arguments: str | Path, codes: set[int]) -> Result:
    """Run; nothing may be there afterwards that was not there before, nor changed or missing."""
    root = Path.cwd()
    before = snapshot(root)
    began = time.monotonic()
    result = run(*arguments)
    assert time.monotonic() - began < SLOW_S
    check_words(result, codes)
    after = snapshot(root)
    assert after == before, sorted(set(after.items()) ^ set(before.items()))[:5]
    return result


def bake(model: Path, *more: str) -> tuple[str, ...]:
    return ("bake", "-m", str(model), "--heads", "L1H2", "-o", "out/edited", "-q", *more)


def make(fault: Fault) -> Path:
    model = faults.make_base(fault.base, Path("model"))
    fault.spoil(model)
    return model


def test_there_are_many_faults() -> None:
    names = [f"{fault.base}-{fault.name}" for fault in FAULTS]
    assert len(set(names)) == len(names) >= N_FAULTS, Counter(names).most_common(1)


@pytest.mark.parametrize("kind", ["single", "sharded", "gguf", *faults.QUANTIZED])
def test_the_bases_are_sound(kind: str) -> None:
    model = faults.make_base(kind, Path("model"))
    result = run(*bake(model))
    assert result.exit_code == 0, result.stderr
    assert run("verify", "out/edited", "--base", str(model)).exit_code == 0
    assert run("inspect", str(model)).exit_code == 0
    undone = run("undo", "out/edited", "-o", "back", "-q")
    assert undone.exit_code == 0, undone.stderr


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.base}-{fault.name}")
def test_a_fault_of_the_model(fault: Fault) -> None:
    refused(*bake(make(fault)), codes={3})


# ---- memory and time ----------------------------------------------------------------------------

MAX_RSS_BYTES = 1 << 30
_MEASURED = """
import sys
from pathlib import Path
sys.argv = ["editor", *sys.argv[1:]]
from editor.cli import main
try:
    main()
finally:
    peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
    print("peak", peak, file=sys.stderr)
"""


def sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> None:
    """A file of `size` bytes that takes no place on the disk, but for the pieces."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        for at, raw in pieces:
            file.seek(at)
            file.write(raw)
        file.truncate(size)


def many(part: str, n: int, *, start: str = "{", end: str = "}") -> bytes:
    return (start + ",".join(part.format(at) for at in range(n)) + end).encode()


def header_of(text: Callable[[], bytes]) -> Spoil:
    return lambda folder: write_parts(folder / faults.SINGLE, text(), b"")


def claimed_header(n_bytes: int, beginning: bytes = b"{") -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / faults.SINGLE).unlink()
        pieces = ((0, n_bytes.to_bytes(8, "little")), (8, beginning))
        sparse(folder / faults.SINGLE, n_bytes + 8, *pieces)

    return spoil


def index_of(text: Callable[[], bytes]) -> Spoil:
    return lambda folder: (folder / faults.INDEX).write_bytes(text()) and None


def config_of(text: Callable[[], bytes]) -> Spoil:
    return lambda folder: (folder / "config.json").write_bytes(text()) and None


def matrices(layers: int, shape: tuple[int, int], dtype: str, **config: int) -> Spoil:
    """Claims of weights of any size, with a sparse file that holds them."""

    def spoil(folder: Path) -> None:
        size = shape[0] * shape[1] * DTYPE_BITS[dtype] // 8
        entries = {
            f"model.layers.{n}.self_attn.o_proj.weight": {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [n * size, (n + 1) * size],
            }
            for n in range(layers)
        }
        text = json.dumps(entries).encode()
        (folder / faults.SINGLE).unlink()
        whole = 8 + len(text) + layers * size
        sparse(folder / faults.SINGLE, whole, (0, len(text).to_bytes(8, "little") + text))
        fields = faults.config(num_hidden_layers=layers, **config)
        (folder / "config.json").write_text(json.dumps(fields))

    return spoil


def gguf_matrix(shape: tuple[int, int], kind: str, **values: int) -> Spoil:
    def spoil(path: Path) -> None:
        metadata = {**faults.gguf_metadata(), "llama.block_count": 1}
        metadata |= {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
        head = gg.header(
            [gg.packed(key, what) for key, what in metadata.items()],
            [gg.tensor("blk.0.attn_output.weight", shape, gg.NUMBER_OF[kind], 0)],
        )
        start = len(head) + -len(head) % 32
        path.unlink()
        sparse(path, start + gg.n_bytes(kind, shape), (0, head))

    return spoil


def gguf_array(inner: int, count: int, size: int) -> Spoil:
    """An array whose elements are really there: zeros, or empty strings."""

    def spoil(path: Path) -> None:
        whole = path.read_bytes()
        value = gg.value("a", gg.ARRAY, gg.array(inner, count))
        head = gg.header([value], n_values=8, n_tensors=3)
        path.unlink()
        sparse(path, len(head) + size + len(whole), (0, head))

    return spoil


HEAVY: dict[str, tuple[str, Spoil]] = {
    "header-2-gib": ("single", claimed_header(2 << 30)),
    "header-100-mb-of-nothing": ("single", claimed_header(100_000_000)),
    "header-of-arrays-in-an-object": (
        "single",
        header_of(lambda: b'{"a":[' + b"[]," * 33_000_000 + b"0]}"),
    ),
    "header-of-nested-objects": (
        "single",
        header_of(lambda: b'{"a":[' + b'{"a":{}},' * 5_000_000 + b"0]}"),
    ),
    "header-of-small-keys": ("single", header_of(lambda: many('"{0}":0', 1_100_000))),
    "header-of-numbers": ("single", header_of(lambda: b'{"a":[' + b"0.5," * 12_000_000 + b"0]}")),
    "header-of-one-text": ("single", header_of(lambda: b'{"a":"' + b"x" * 99_000_000 + b'"}')),
    "header-of-wide-text": (
        "single",
        header_of(lambda: b'{"a":"' + "\U0001f600".encode() + b"x" * 99_000_000 + b'"}'),
    ),
    "header-of-escaped-text": (
        "single",
        header_of(lambda: b'{"a":"\\ud83d\\ude00' + b"x" * 99_000_000 + b'"}'),
    ),
    "header-of-escapes": ("single", header_of(lambda: b'{"a":"' + b"\\n" * 49_000_000 + b'"}')),
    "header-of-brackets": ("single", header_of(lambda: b'{"a":' + b"[" * 90_000_000)),
    "header-of-entries": (
        "single",
        header_of(lambda: many('"{0}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}', 125_000)),
    ),
    "header-of-metadata": (
        "single",
        header_of(lambda: many('"{0}":"x"', 1_000_000, start='{"__metadata__":{', end="}}")),
    ),
    "index-of-small-keys": (
        "sharded",
        index_of(
            lambda: many('"{0}":"a.safetensors"', 1_000_000, start='{"weight_map":{', end="}}")
        ),
    ),
    "index-of-files": (
        "sharded",
        index_of(
            lambda: many('"{0}":"{0}.safetensors"', 17_000, start='{"weight_map":{', end="}}")
        ),
    ),
    "index-too-large": ("sharded", index_of(lambda: b" " * 101_000_000)),
    "config-of-arrays": ("single", config_of(lambda: b'{"a":[' + b"[]," * 5_000_000 + b"0]}")),
    "config-too-large": ("single", config_of(lambda: b" " * 17_000_000)),
    "config-one-number": ("single", config_of(lambda: b'{"a":' + b"9" * 16_000_000 + b"}")),
    "config-of-one-type": (
        "single",
        config_of(lambda: b'{"model_type":"' + b"a" * 16_000_000 + b'"}'),
    ),
    "row-of-8-gib": ("single", matrices(1, (1, 1 << 33), "F8_E4M3", hidden_size=1)),
    "row-of-128-mib": (
        "single",
        matrices(2, (8, 1 << 24), "F64", hidden_size=8, num_attention_heads=1 << 16),
    ),
    "gguf-bytes-2-gib-cut": ("gguf", gguf_array(gg.U8, 1 << 40, 1 << 31)),
    "gguf-bytes-2-gib": ("gguf", gguf_array(gg.U8, 1 << 31, 1 << 31)),
    "gguf-strings-4-million": ("gguf", gguf_array(gg.STRING, 1 << 22, 1 << 25)),
    "gguf-strings-5-million": ("gguf", gguf_array(gg.STRING, 5 << 20, 5 << 23)),
    "gguf-strings-of-8-gib": ("gguf", gguf_array(gg.STRING, 1 << 30, 1 << 33)),
    "gguf-row-of-16-gib": (
        "gguf",
        gguf_matrix(
            (1 << 33, 1),
            "F16",
            embedding_length=1,
            attention__head_count=512,
            attention__value_length=1 << 24,
        ),
    ),
    "gguf-row-of-64-mib": (
        "gguf",
        gguf_matrix(
            (1 << 24, 32),
            "F32",
            embedding_length=32,
            attention__head_count=4,
            attention__value_length=1 << 22,
        ),
    ),
    "gguf-heads-of-one": (
        "gguf",
        gguf_matrix(
            (1 << 16, 32),
            "F32",
            embedding_length=32,
            attention__head_count=1 << 16,
            attention__head_count_kv=1 << 16,
            attention__value_length=1,
        ),
    ),
}


@pytest.mark.parametrize("name", HEAVY)
def test_nothing_takes_a_gigabyte(name: str) -> None:
    kind, spoil = HEAVY[name]
    model = faults.make_base(kind, Path("model"))
    spoil(model)
    before = snapshot(Path.cwd())
    began = time.monotonic()
    words = bake(model)
    if kind == "gguf":
        words = tuple("L0H2" if word == "L1H2" else word for word in words)
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    took = time.monotonic() - began
    said, _, peak = done.stderr.rpartition("peak ")
    print(f"{name}: {int(peak) >> 10} MiB, {took:.1f} s, {said}")
    assert int(peak) << 10 < MAX_RSS_BYTES
    assert done.returncode == 3, said
    assert said.startswith("error: ") and len(said.splitlines()) <= 2
    assert took < 2 * SLOW_S
    assert snapshot(Path.cwd()) == before


# ---- the place of the output ----


def _in_the_way(name: str, make: Callable[[Path], object]) -> Callable[[], None]:
    def spoil() -> None:
        path = Path(name)
        path.parent.mkdir(exist_ok=True)
        make(path)

    return spoil


def _foreign_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def _to_victim(path: Path) -> None:
    path.symlink_to(Path("secret").absolute())


OUTPUTS: dict[str, Callable[[], None]] = {
    "exists": _in_the_way("out/edited", _foreign_folder),
    "is-a-file": _in_the_way("out/edited", lambda path: path.write_text("x")),
    "is-a-pipe": _in_the_way("out/edited", os.mkfifo),
    "is-a-link-to-a-folder": _in_the_way("out/edited", lambda path: path.symlink_to("../private")),
    "is-a-link-to-nothing": _in_the_way("out/edited", lambda path: path.symlink_to("gone")),
    "partial-is-a-link": _in_the_way(
        "out/edited.partial", lambda path: path.symlink_to("../private")
    ),
    "partial-is-a-link-to-nothing": _in_the_way(
        "out/edited.partial", lambda path: path.symlink_to("gone")
    ),
    "partial-is-a-file": _in_the_way("out/edited.partial", lambda path: path.write_text("x")),
    "partial-is-foreign": _in_the_way("out/edited.partial", _foreign_folder),
    "patch-is-a-link": _in_the_way("out/edited.restore.zip", _to_victim),
    "patch-is-a-link-to-nothing": _in_the_way(
        "out/edited.restore.zip", lambda path: path.symlink_to("gone")
    ),
    "patch-is-a-folder": _in_the_way("out/edited.restore.zip", lambda path: path.mkdir()),
    "patch-is-a-pipe": _in_the_way("out/edited.restore.zip", os.mkfifo),
    "parent-is-a-file": _in_the_way("out", lambda path: path.write_text("x")),
    "parent-is-a-link-loop": _in_the_way("out", lambda path: path.symlink_to("out")),
}


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
@pytest.mark.parametrize("name", OUTPUTS)
def test_what_is_in_the_outputs_way_stays(name: str, force: tuple[str, ...]) -> None:
    model = faults.make_base("single", Path("model"))
    OUTPUTS[name]()
    refused(*bake(model, *force), codes={2})


@pytest.mark.parametrize(
    "output",
    [
        *("model", "model/sub", ".", "", "/", "model/../model/sub", "a" * 300),
        *("/dev/null", "/dev/null/sub", "/proc/edited", "x/" * 2100 + "y"),
    ],
    ids=lambda output: output[:20].replace("/", "_"),
)
def test_where_no_output_may_be(output: str) -> None:
    model = faults.make_base("single", Path("model"))
    words = ("bake", "-m", str(model), "--heads", "L1H2", "-o", output, "-q")
    refused(*words, codes={2})


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\tb", "a\u2028b", "a\u202eb", "a  b"])
def test_paths_are_told_on_one_line(name: str) -> None:
    model = faults.make_base("single", Path("model"))
    Path(name).mkdir()
    refused("bake", "-m", model, "--heads", "L1H2", "-o", name, "-q", codes={2})
    refused("bake", "-m", name, "--heads", "L1H2", "-o", "out", "-q", codes={3})
    refused("inspect", name, "-q", codes={3})
    assert "\n" not in run("inspect", model, "--json", "-q").stderr
    refused("inspect", f"{name}/none", "-q", codes={2})
    refused("verify", name, "-q", codes={3})
    refused("undo", name, "-o", "out", "-q", codes={3})
    refused("diff", name, model, "-q", codes={3})


# ---- files that change, disks that do not hold ----


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 512)


def _touch_inside(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 8)
        file.write(b"otherone")


def _swap_places(path: Path) -> None:
    """The same names at each other's place: as long a file, another header."""
    raw = path.read_bytes()
    names = {0: b".self_attn.o_proj", 1: b".mlp.down_proj"}
    size = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + size]
    header = header.replace(names[0], b"\0").replace(names[1], names[0]).replace(b"\0", names[1])
    assert len(header) == size
    with path.open("r+b") as file:
        file.seek(8)
        file.write(header)


CHANGES = {
    "grows": _append,
    "shrinks": _shorten,
    "vanishes": lambda path: path.unlink(),
    "becomes-a-folder": lambda path: (path.unlink(), path.mkdir())[1],
    "is-rewritten": _touch_inside,
    "gets-another-header": _swap_places,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_changes_between_header_and_copy(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = faults.make_base("single", Path("model"))
    real = checkpoint.apply_edits

    def late(*given: Any, **named: Any) -> Any:
        weights = checkpoint.open_weights
        monkeypatch.setattr(checkpoint, "open_weights", lambda path: opened(weights, path))
        return real(*given, **named)

    def opened(weights: Any, path: Path) -> Any:
        found = weights(path)
        monkeypatch.setattr(checkpoint, "open_weights", weights)
        CHANGES[change](model / faults.SINGLE)
        return found

    monkeypatch.setattr(baking, "apply_edits", late)
    result = run(*bake(model))
    if change == "is-rewritten":  # the header is the same: what was copied is what is there
        assert result.exit_code == 0
        assert run("verify", "out/edited", "--base", str(model)).exit_code == 0
        return
    check_words(result, {3})
    assert not Path("out").exists()


@pytest.mark.parametrize("change", ["grows", "shrinks", "is-rewritten"])
def test_a_shard_that_changes_while_it_is_copied(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = faults.make_base("single", Path("model"))
    os.utime(model / faults.SINGLE, (1e9, 1e9))  # the clock of a disk may be slow
    real = patching._Reader._read
    n_reads = 0

    def read(self: Any, size: int) -> Any:
        nonlocal n_reads
        n_reads += Path(self._file.name).name == faults.SINGLE
        if n_reads == 2:
            CHANGES[change](model / faults.SINGLE)
        return real(self, size)

    monkeypatch.setattr(patching, "CHUNK_BYTES", 512)
    monkeypatch.setattr(patching._Reader, "_read", read)
    result = run(*bake(model))
    check_words(result, {3})
    assert not Path("out").exists()


def test_a_config_that_changes_while_the_weights_are_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = faults.make_base("single", Path("model"))
    real = checkpoint.apply_edits

    def late(*given: Any, **named: Any) -> Any:
        (model / "config.json").write_text(json.dumps(faults.config(num_attention_heads=8)))
        return real(*given, **named)

    monkeypatch.setattr(baking, "apply_edits", late)
    check_words(run(*bake(model)), {3})
    assert not Path("out").exists()


def mounted(folder: Path, *options: str) -> bool:
    done = subprocess.run(["mount", *options, str(folder)], check=False, capture_output=True)
    return done.returncode == 0


@pytest.fixture
def unmounted() -> Iterator[list[Path]]:
    folders: list[Path] = []
    yield folders
    for folder in reversed(folders):
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, unmounted: list[Path]) -> None:
    model = faults.make_base("single", Path("model"))
    with (model / faults.SINGLE).open("rb") as file:
        n_bytes = len(file.read())
    out = Path("out")
    out.mkdir()
    if mounted(out, "-t", "tmpfs", "-o", "size=16k", "none"):
        unmounted.append(out.absolute())
        monkeypatch.setattr(staging, "SPACE_MARGIN_BYTES", -(1 << 30))
        how = "a small tmpfs"
    else:
        real = patching._write_all
        how = "a write that fails"

        def write(file: Any, view: memoryview) -> None:
            real(file, view[: n_bytes // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(patching, "_write_all", write)
    print(f"full disk: {how}")
    result = refused(*bake(model), codes={3})
    assert "full" in result.stderr
    monkeypatch.undo()


def test_too_small_a_disk_is_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = faults.make_base("single", Path("model"))
    monkeypatch.setattr(staging, "SPACE_MARGIN_BYTES", 1 << 60)
    assert "too small" in refused(*bake(model), codes={3}).stderr


def test_a_read_only_output(monkeypatch: pytest.MonkeyPatch, unmounted: list[Path]) -> None:
    model = faults.make_base("single", Path("model"))
    out = Path("out")
    out.mkdir()
    if mounted(out, "-t", "tmpfs", "-o", "ro,size=64k", "none"):
        unmounted.append(out.absolute())
        how = "a tmpfs mounted read-only"
    else:
        how = "a folder without permission"
        out.chmod(0o500)
        if os.access(out, os.W_OK):
            monkeypatch.setattr(os, "access", lambda *_, **__: False)
    print(f"read-only: {how}")
    refused(*bake(model), codes={3})


def test_a_model_that_may_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model = faults.make_base("single", Path("model"))
    (model / faults.SINGLE).chmod(0)
    if os.access(model / faults.SINGLE, os.R_OK):  # root reads everything
        real = Path.open

        def refusing(self: Path, *given: Any, **named: Any) -> Any:
            if self.name == faults.SINGLE:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
            return real(self, *given, **named)

        monkeypatch.setattr(Path, "open", refusing)
    refused(*bake(model), codes={3})


def test_the_hubs_cache_works() -> None:
    blobs = faults.make_base("sharded", Path("models--a--b/blobs"))
    snapshot_of = Path("models--a--b/snapshots/0123")
    snapshot_of.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot_of / file.name).symlink_to(Path("../../blobs") / file.name)
    result = run(*bake(snapshot_of))
    assert result.exit_code == 0, result.stderr
    assert not any(file.is_symlink() for file in Path("out/edited").iterdir())
    assert run("verify", "out/edited", "--base", str(snapshot_of)).exit_code == 0


# ---- edited folders that lie ----


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and what was made from it, to be copied."""
    root = tmp_path_factory.mktemp("edited")
    model = faults.make_base("single", root / "model")
    words = ("bake", "-m", str(model), "--heads", "L1H2", "-o", str(root / "out" / "edited"), "-q")
    assert CliRunner().invoke(main, list(words)).exit_code == 0
    return root


def copied(edited: Path) -> Path:
    for name in ("model", "out"):
        shutil.copytree(edited / name, name)
    return Path("out/edited")


Change = Callable[[dict[str, Any]], Any]


def _field(**fields: Any) -> Change:
    return lambda manifest: {**manifest, **fields}


def _file(name: Any, field: str = "files", at: int = 0) -> Change:
    def change(manifest: dict[str, Any]) -> dict[str, Any]:
        files = [dict(file) for file in manifest[field]]
        files[at]["name"] = name
        return {**manifest, field: files}

    return change


NAMES = {
    **{"up": "../../secret", "absolute": "/etc/passwd", "escape": faults.ESCAPE, "empty": ""},
    **{"newline": "a\nb", "number": 1, "null": None, "gguf": "../../x.gguf", "nul": "a\0b"},
    **{"dot": ".", "slash": "/", "long": "a" * 5000, "loop": "./config.json"},
}
MANIFESTS: dict[str, Change] = {
    **{f"file-{shown}": _file(name) for shown, name in NAMES.items()},
    **{f"base-file-{shown}": _file(name, "base_files") for shown, name in NAMES.items()},
    **{
        f"heads-{shown}": _field(heads=heads)
        for shown, heads in {
            **{"null": None, "none": [], "text": "L1H2", "escape": [faults.ESCAPE]},
            **{"absent-layer": ["L9H0"], "absent-head": ["L0H9"], "huge": ["L999999H999999"]},
            **{"negative": ["L-1H0"], "other": ["L0H1"], "more": ["L1H2", "L0H0"], "twice": [[1]]},
        }.items()
    },
    "no-files": _field(files=[]),
    "no-base-files": _field(base_files=[]),
    "same-file-often": lambda m: {**m, "files": m["files"][:1] * 100_000},
    "edits-none": _field(edits=[]),
    "edits-often": lambda m: {
        **m,
        "edits": [{**m["edits"][0], "start": at} for at in range(30_000)],
    },
    "written-none": lambda m: {**m, "written": [], "files": m["files"][1:]},
    "other-schema": _field(schema_version=1),
    "schema-huge": _field(schema_version=faults.HUGE),
    "schema-escape": _field(schema_version=faults.ESCAPE),
    "unknown-field": _field(**{faults.ESCAPE: 1}),
    "digest-other": lambda m: {**m, "files": [{**m["files"][0], "sha256": faults.ESCAPE}]},
    "size-negative": lambda m: {
        **m,
        "files": [{**m["files"][0], "n_bytes": -1}, *m["files"][1:]],
    },
    "earlier-deep": _field(earlier=[[[[[]]]]]),
    "is-a-list": lambda m: [m],
    "is-nothing": lambda m: None,
}
MANIFEST_TEXTS = {
    "empty": b"",
    "not-utf8": b"\xff",
    "deep": b"[" * 300_000,
    "deep-field": b'{"schema_version": 2, "times": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
    "key-twice": b'{"schema_version": 2, "schema_version": 2}',
    "commas": b'{"schema_version":2,"heads":[' + b'"L0H0",' * 2_000_000 + b'"L0H0"]}',
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_lies(name: str, edited: Path) -> None:
    folder = copied(edited)
    manifest = json.loads((folder / "editor.json").read_bytes())
    (folder / "editor.json").write_text(json.dumps(MANIFESTS[name](manifest)))
    refused("verify", folder, "-q", codes={3, 4})
    refused("verify", folder, "--base", "model", "-q", codes={3, 4})


@pytest.mark.parametrize("name", MANIFEST_TEXTS)
def test_a_manifest_that_is_none(name: str, edited: Path) -> None:
    folder = copied(edited)
    (folder / "editor.json").write_bytes(MANIFEST_TEXTS[name])
    refused("verify", folder, "-q", codes={3})
    refused("undo", folder, "-o", "back/base", "-q", codes={3})


FOLDER_FAULTS: dict[str, Callable[[Path], object]] = {
    "weights-cut": lambda out: _shorten(out / faults.SINGLE),
    "weights-longer": lambda out: _append(out / faults.SINGLE),
    "weights-missing": lambda out: (out / faults.SINGLE).unlink(),
    "a-byte-changed": lambda out: _touch_inside(out / faults.SINGLE),
    "config-other": lambda out: (out / "config.json").write_text(json.dumps(faults.config(a=1))),
    "config-missing": lambda out: (out / "config.json").unlink(),
    "manifest-missing": lambda out: (out / "editor.json").unlink(),
    "more-weights": lambda out: (out / "adapter.safetensors").write_bytes(b"x"),
    "more-code": lambda out: (out / f"modeling{faults.ESCAPE}.py").write_text("x"),
    "many-files": lambda out: [(out / f"{at}.bin").touch() for at in range(300)],
    "link-outside": lambda out: (out / "vocab.txt").symlink_to("/etc/passwd"),
    "weights-link-outside": lambda out: (
        os.replace(out / faults.SINGLE, "w.safetensors"),
        (out / faults.SINGLE).symlink_to("../../w.safetensors"),
    ),
    "pipe": lambda out: os.mkfifo(out / "tokenizer.model"),
    "weights-pipe": lambda out: ((out / faults.SINGLE).unlink(), os.mkfifo(out / faults.SINGLE)),
    "head-not-zero": lambda out: shutil.copy(Path("model") / faults.SINGLE, out / faults.SINGLE),
}


@pytest.mark.parametrize("name", FOLDER_FAULTS)
def test_an_edited_folder_that_was_changed(name: str, edited: Path) -> None:
    folder = copied(edited)
    FOLDER_FAULTS[name](folder)
    refused("verify", folder, "-q", codes={3, 4})
    refused("verify", folder, "--base", "model", "-q", codes={3, 4})


# ---- restore patches that lie ----


def rewritten(
    folder: Path,
    change: Callable[[dict[str, bytes]], dict[str, bytes]],
    compression: int = zipfile.ZIP_STORED,
) -> None:
    """Change what a patch holds, and let the manifest agree."""
    patch = folder.with_name(folder.name + ".restore.zip")
    with zipfile.ZipFile(patch) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(patch, "w", compression) as archive:
        for name, raw in change(content).items():
            archive.writestr(name, raw)
    agree(folder)


def agree(folder: Path) -> None:
    raw = folder.with_name(folder.name + ".restore.zip").read_bytes()
    manifest = json.loads((folder / "editor.json").read_bytes())
    manifest["restore"] = {"n_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / "editor.json").write_text(json.dumps(manifest))


def _contents(change: Change) -> Callable[[Path], None]:
    def changed(content: dict[str, bytes]) -> dict[str, bytes]:
        contents = json.loads(content["restore.json"])
        return {**content, "restore.json": json.dumps(change(contents)).encode()}

    return lambda folder: rewritten(folder, changed)


def _planted(name: str) -> Callable[[Path], None]:
    """A file more, with its content, under a name that the patch chooses."""

    def changed(content: dict[str, bytes]) -> dict[str, bytes]:
        contents = json.loads(content["restore.json"])
        digest = {"name": name, "n_bytes": 4, "sha256": hashlib.sha256(b"evil").hexdigest()}
        contents["base_files"].append(digest)
        content[f"replaced/{name}"] = b"evil"
        return {**content, "restore.json": json.dumps(contents).encode()}

    return lambda folder: rewritten(folder, changed)


def _rows(**fields: Any) -> Callable[[Path], None]:
    def change(contents: dict[str, Any]) -> dict[str, Any]:
        contents["written"][0]["rows"][0].update(fields)
        return contents

    return _contents(change)


def _central(n: int) -> Callable[[Path], None]:
    """A zip file whose table of contents alone would fill the memory."""

    def spoil(folder: Path) -> None:
        entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
        table = entry * n
        end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(table), 0, 0)
        folder.with_name(folder.name + ".restore.zip").write_bytes(table + end)
        agree(folder)

    return spoil


PATCHES: dict[str, Callable[[Path], None]] = {
    **{
        f"plants-{shown}": _planted(name)
        for shown, name in {
            **{"up": "../../evil", "absolute": "/tmp/evil", "dot": "./evil", "empty": ""},
            **{"beside": ".restore.zip", "marker": ".editor-partial", "newline": "a\nb"},
            **{"escape": faults.ESCAPE, "folder": "sub/", "twice": "README.md"},
            **{"below-a-file": "config.json/evil", "long": "a" * 300},
        }.items()
    },
    **{
        f"rows-{shown}": _rows(**fields)
        for shown, fields in {
            **{"start-negative": {"start": -1}, "start-huge": {"start": faults.HUGE}},
            **{"count-huge": {"n_rows": 1 << 40}, "count-zero": {"n_rows": 0}},
            **{"bytes-huge": {"row_bytes": 1 << 40}, "bytes-zero": {"row_bytes": 0}},
            **{"columns-none": {"columns": []}, "columns-wide": {"columns": [[0, 1 << 40]]}},
            **{"columns-back": {"columns": [[8, 4]]}, "columns-negative": {"columns": [[-8, 4]]}},
            **{"columns-half": {"columns": [[1]]}, "one-more": {"columns": [[0, 64]]}},
        }.items()
    },
    "no-contents": lambda out: rewritten(out, lambda c: {"removed/x": b""}),
    "contents-empty": lambda out: rewritten(out, lambda c: {**c, "restore.json": b""}),
    "contents-deep": lambda out: rewritten(out, lambda c: {**c, "restore.json": b"[" * 10**6}),
    "contents-of-many": lambda out: rewritten(
        out, lambda c: {**c, "restore.json": b'{"base_files":[' + b"{}," * 10**6 + b"{}]}"}
    ),
    "nothing-removed": lambda out: rewritten(
        out, lambda c: {n: r for n, r in c.items() if not n.startswith("removed/")}
    ),
    "removed-cut": lambda out: rewritten(
        out, lambda c: {n: r[:8] if n.startswith("removed/") else r for n, r in c.items()}
    ),
    "removed-other": lambda out: rewritten(
        out, lambda c: {n: bytes(len(r)) if n.startswith("removed/") else r for n, r in c.items()}
    ),
    "replaced-other": lambda out: rewritten(
        out, lambda c: {n: r + b"x" if n.startswith("replaced/") else r for n, r in c.items()}
    ),
    "compressed": lambda out: rewritten(out, dict, zipfile.ZIP_DEFLATED),
    "many-files": _contents(
        lambda c: {
            **c,
            "edited_files": c["edited_files"] + [c["edited_files"][0]] * 5000,
            "written": c["written"] * 5000,
        }
    ),
    "sizes-negative": _contents(
        lambda c: {**c, "base_files": [{**f, "n_bytes": -5} for f in c["base_files"]]}
    ),
    "other-base": _contents(
        lambda c: {**c, "base_files": [{**f, "sha256": "0" * 64} for f in c["base_files"]]}
    ),
    "no-zip": lambda out: (
        out.with_name("edited.restore.zip").write_bytes(b"PK\x03\x04" + bytes(100)),
        agree(out),
    )[1],
    "not-the-recorded": lambda out: _append(out.with_name("edited.restore.zip")),
    "missing": lambda out: out.with_name("edited.restore.zip").unlink(),
    "is-a-pipe": lambda out: (
        out.with_name("edited.restore.zip").unlink(),
        os.mkfifo(out.with_name("edited.restore.zip")),
    )[1],
    "is-a-folder": lambda out: (
        out.with_name("edited.restore.zip").unlink(),
        out.with_name("edited.restore.zip").mkdir(),
    )[1],
    "table-of-100-mb": _central(2_000_000),
    "table-lies": lambda out: (
        out.with_name("edited.restore.zip").write_bytes(
            struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 9, 9, 1 << 31, 1 << 31, 0)
        ),
        agree(out),
    )[1],
}


@pytest.mark.parametrize("name", PATCHES)
def test_a_restore_patch_that_lies(name: str, edited: Path) -> None:
    folder = copied(edited)
    PATCHES[name](folder)
    refused("undo", folder, "-o", "back/base", "-q", codes={3, 4})


SAMPLE = [fault for at, fault in enumerate(FAULTS) if at % 12 == 0]


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: f"{fault.base}-{fault.name}")
def test_other_verbs_refuse_the_same(fault: Fault, edited: Path) -> None:
    folder = copied(edited)
    shutil.rmtree("model")
    model = make(fault)
    # Folders concern those who copy, and what lies beside a quantized weight those who edit.
    if not fault.name.startswith("folder-") and fault.base not in faults.QUANTIZED:
        refused("inspect", model, "-q", codes={3})
    if fault.base != "gguf":  # which would be converted: seconds for the libraries alone
        refused("verify", folder, "--base", model, "-q", codes={3, 4})
    if fault.base not in ("gguf", *faults.QUANTIZED) and "config" not in fault.name:
        refused("diff", folder, model, "-q", codes={3})


@pytest.mark.parametrize("form", [(), ("--format", "safetensors")], ids=["as-it-is", "converted"])
@pytest.mark.parametrize("name", ["link-to-device", "is-a-pipe", "cut-half"])
def test_a_gguf_file_that_is_none(name: str, form: tuple[str, ...]) -> None:
    model = faults.make_base("gguf", Path("model"))
    faults.GGUF[name](model)
    refused("inspect", model, *form, "-q", codes={3})


def test_an_index_of_the_largest_models_is_read() -> None:
    model = faults.make_base("sharded", Path("model"))
    experts = {
        f"model.layers.{n % 61}.mlp.experts.{n // 61}.down_proj.w": n for n in range(140_000)
    }
    files = dict.fromkeys(experts, faults.SHARDS[0])
    faults.write_index(model, {**faults.weight_map(), **files})
    result = refused(*bake(model), codes={3})
    assert "should be in it" in result.stderr  # so the index itself was read
