"""What a run leaves on disk: atomic files, a journal that survives a kill, a folder of its own.

    runs/2026-01-31-SmolLM2-135M-Instruct-arithmetic-0f3a9c21/
        config.json  command.json  env.json  journal.jsonl  log.txt  estimate.json

The last part of the name is the start of the settings' fingerprint, so the same command finds its
folder again and goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import sys
import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, cast

from editor import __version__
from editor.errors import UsageError

CONFIG, JOURNAL, ESTIMATE, ENDED = "config.json", "journal.jsonl", "estimate.json", "ended.txt"
"""The settings of a run, what it measured, what it found once heads are chosen, and why it came to
an end without any."""
COMMAND, ENVIRONMENT, LOCK, LOG = "command.json", "env.json", ".lock", "log.txt"
"""What was typed, the versions it runs under, who holds it, and what was said."""
LOCK_TRIES, LOCK_WAIT_S = 5, 0.05
"""A look at who holds a run takes its lock for an instant, which must not refuse a run."""

# A resume under other versions of these would mix numbers that are not comparable.
_COMPUTING = ("numpy", "tokenizers", "torch", "transformers")
_PACKAGES = (
    *_COMPUTING,
    *("accelerate", "capability-editor", "gguf", "huggingface-hub", "pydantic", "safetensors"),
    *("scikit-learn",),
)


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write a file so that its path holds the old or the new content, never a part.

    Raises:
        OSError: The disk is full or the folder cannot be written; the old file is untouched.
    """
    raw = data.encode() if isinstance(data, str) else data
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with beside.open("xb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """Append-only JSON lines, each on disk before `append` returns; one value a key.

    A kill can only tear the last line, which is then dropped.  Open with `Journal.open`.
    """

    def __init__(self, stream: BinaryIO, entries: dict[str, str], size: int) -> None:
        self._stream = stream
        self._entries = entries
        self._size = size

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Read what is there, cut off a torn last line, and make ready to append.

        Raises:
            UsageError: A whole line is no entry; the message names file and line.
        """
        created = not path.exists()
        if not (created or path.is_file()):  # a pipe or a device may have no end
            raise UsageError(f"{path} is no file", "restore it, or start anew with --new-run")
        stream = path.open("ab+", buffering=0)
        try:
            stream.seek(0)
            raw = stream.readall()
            whole = raw[: raw.rfind(b"\n") + 1]
            entries = _entries(whole, path)
            stream.truncate(len(whole))
            if created:
                _sync_folder(path.parent)
        except BaseException:
            stream.close()
            raise
        return cls(stream, entries, len(whole))

    def place(self, key: str) -> str:
        """File and line of an entry, for a message about it."""
        number = next((n for n, one in enumerate(self._entries, 1) if one == key), 0)
        return f"{self._stream.name}:{number}"

    def get(self, key: str) -> str | None:
        """The JSON text stored under `key`."""
        return self._entries.get(key)

    def append(self, key: str, value_json: str) -> None:
        """Store a JSON text.

        Raises:
            ValueError: The key is there already, or the text is no JSON or holds a NaN.
            OSError: The disk is full; the journal is as before.
        """
        if key in self._entries:
            raise ValueError(f"the journal has {key!r} already")
        value = _compact(json.loads(value_json))
        line = f'{{"key":{json.dumps(key)},"value":{value}}}\n'.encode()
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._stream.write(rest) :]
            os.fsync(self._stream.fileno())
        except OSError as error:
            # Else the next line would be glued to the part that was written.
            self._stream.truncate(self._size)
            error.filename = self._stream.name  # which a failed write does not tell
            raise
        self._size += len(line)
        self._entries[key] = value

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def close(self) -> None:
        """Release the file."""
        self._stream.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _entries(raw: bytes, path: Path) -> dict[str, str]:
    entries: dict[str, str] = {}
    for number, line in enumerate(raw.split(b"\n")[:-1], 1):
        try:
            entry: Any = json.loads(line)
            key, value = entry["key"], _compact(entry["value"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(
                f"{path}:{number}: expected a journal entry, found {line[:40]!r}",
                "restore the file, or start anew with --new-run",
            ) from error
        if not isinstance(key, str) or key in entries:
            raise UsageError(
                f"{path}:{number}: {key!r} is no key or stands there twice",
                "restore the file, or start anew with --new-run",
            )
        entries[key] = value
    return entries


class RunDir:
    """The folder of one run, held by one process at a time.  Open with `RunDir.open`."""

    def __init__(self, path: Path, lock: BinaryIO, journal: Journal, resumed: bool) -> None:
        self.path = path
        self.journal = journal
        self.resumed = resumed
        """Whether the folder was there before."""
        self._lock = lock

    @classmethod
    def open(
        cls, runs: Path, *, model: str, capability: str, fingerprint: str, new_run: bool
    ) -> RunDir:
        """Go on with the latest run of these settings, or start one.

        Args:
            runs: Folder of all runs; created when missing.
            model: Resolved name of the model, for the folder's name.
            capability: Name of the capability, for the folder's name.
            fingerprint: Hex digest of the settings; its first 8 digits identify the run.
            new_run: Start a new one even so; a number is added to its name.

        Raises:
            UsageError: Another process holds the run, its journal is damaged, the packages that
                compute have changed since, or the folder cannot be written.
            ValueError: `fingerprint` is no hex digest.
        """
        if not re.fullmatch(r"[0-9a-f]{8,}", fingerprint):
            raise ValueError(f"expected a hex digest, not {fingerprint!r}")
        try:
            runs.mkdir(parents=True, exist_ok=True)
            found = _existing(runs, fingerprint[:8])
            if found and not new_run:
                path = found[max(found)]
            else:
                base = f"{datetime.now():%Y-%m-%d}-{_plain(model)}-{_plain(capability)}"
                path = _create(runs, f"{base}-{fingerprint[:8]}", max(found, default=0) + 1)
            return cls._enter(path, resumed=bool(found) and not new_run)
        except OSError as error:
            raise UsageError(
                f"the run folder under {runs} cannot be used: {error.strerror or error}",
                "name another folder with --runs",
            ) from error

    @classmethod
    def _enter(cls, path: Path, resumed: bool) -> RunDir:
        lock = (path / LOCK).open("ab+")
        try:
            _acquire(lock, path)
            _check_environment(path)
            (path / ENDED).unlink(missing_ok=True)
            return cls(path, lock, Journal.open(path / JOURNAL), resumed)
        except BaseException:
            lock.close()
            raise

    def write_config(self, config: Mapping[str, object]) -> None:
        """Write config.json: the settings of the run, fully resolved.

        Raises:
            UsageError: The folder holds other settings; the message lists the differences.
        """
        file = self.path / CONFIG
        new = cast("dict[str, Any]", json.loads(json.dumps(config, allow_nan=False)))
        if file.exists():
            _refuse_differences(file, _read_json(file), new)
        else:
            write_atomic(file, _pretty(new))

    def write_command(self, arguments: Sequence[str]) -> None:
        """Keep what was typed, as the way to go on; the last command counts."""
        write_atomic(self.path / COMMAND, json.dumps(list(arguments)) + "\n")

    def write_end(self, why: str) -> None:
        """Keep why the run came to an end without a result: it was not broken off."""
        write_atomic(self.path / ENDED, why + "\n")

    def log(self, line: str) -> None:
        """Append a line to log.txt, with the time."""
        clean = "".join(c if c.isprintable() or c in "\t\n" else "?" for c in line)
        with (self.path / LOG).open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {clean}\n")

    def close(self) -> None:
        """Let other processes have the folder."""
        self.journal.close()
        self._lock.close()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment() -> dict[str, Any]:
    """Python, platform and package versions, found without importing the packages."""
    versions: dict[str, str | None] = {}
    for package in sorted(_PACKAGES):
        versions[package] = None
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
    }


@cache
def code_version() -> str:
    """The editor's version with a digest of its source and tables: `0.1.0+1a2b3c4d`.

    Two checkouts of one version may measure differently.
    """
    package, digest = Path(__file__).parent, hashlib.sha256()
    files = [*package.rglob("*.py"), *(package / "capabilities" / "data").iterdir()]
    for file in sorted(files):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return f"{__version__}+{digest.hexdigest()[:8]}"


def computing() -> dict[str, str | None]:
    """Versions of the packages that numbers come from."""
    return {name: environment()["packages"][name] for name in _COMPUTING}


def _check_environment(path: Path) -> None:
    file, now = path / ENVIRONMENT, environment()
    if not file.exists():
        write_atomic(file, _pretty(now))
        return
    packages = _read_json(file).get("packages")
    before = cast("dict[str, Any]", packages) if isinstance(packages, dict) else {}
    _refuse_differences(
        file,
        {name: before.get(name) for name in _COMPUTING},
        {name: now["packages"][name] for name in _COMPUTING},
    )


def _refuse_differences(file: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    if changed:
        listed = ", ".join(f"{key} {old.get(key)!r} -> {new.get(key)!r}" for key in changed)
        raise UsageError(
            f"the run cannot be resumed, {file} differs: {listed}",
            "restore these, or start anew with --new-run",
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        data: Any = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{file} is no JSON: {error}", "start anew with --new-run") from error
    if not isinstance(data, dict):
        raise UsageError(f"{file} holds no JSON object", "start anew with --new-run")
    return cast("dict[str, Any]", data)


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


def _plain(name: str) -> str:
    """The last part of a name, without what a file name or a terminal could stumble over."""
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return re.sub(r"[^A-Za-z0-9._+]+", "-", last).strip("-.")[:60] or "unnamed"


def _existing(runs: Path, run_id: str) -> dict[int, Path]:
    """Folders of this id by their number, 1 for the one without."""
    form = re.compile(rf".*-{run_id}(?:-(\d+))?", re.DOTALL)
    matches = ((form.fullmatch(path.name), path) for path in sorted(runs.iterdir()))
    return {int(match[1] or 1): path for match, path in matches if match and path.is_dir()}


def _create(runs: Path, name: str, number: int) -> Path:
    while True:
        path = runs / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            # Another process was faster: the first name is one run, held by its lock; a number
            # was asked for as a new run, so take the next.
            if number == 1:
                return path
            number += 1
            continue
        _sync_folder(runs)
        return path


@contextlib.contextmanager
def holding(path: Path) -> Generator[None]:
    """Keep other processes out of a run's folder for the time of the block.

    Raises:
        UsageError: another process is working in it.
    """
    with (path / LOCK).open("ab+") as lock:
        _acquire(lock, path)
        yield


def is_held(path: Path) -> bool:
    """Whether a process is working in a run's folder."""
    import fcntl

    try:
        # A folder of strangers may have anything there: a pipe would be waited for.
        lock = os.open(path / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:  # never held, or not ours to look at
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _acquire(lock: BinaryIO, path: Path) -> None:
    """Hold the lock until the file is closed, which the system also does for a killed process."""
    for left in reversed(range(LOCK_TRIES)):
        try:
            return _lock(lock)
        except (BlockingIOError, PermissionError) as error:
            if not left:
                raise UsageError(
                    f"another process is working in {path}",
                    "wait for it, or start a second run with --new-run",
                ) from error
            time.sleep(LOCK_WAIT_S)


def _lock(lock: BinaryIO) -> None:
    if sys.platform == "win32":
        import msvcrt

        lock.seek(0)
        msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
