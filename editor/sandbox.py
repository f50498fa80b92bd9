"""Runs programs that a model wrote, with tests, where they can do no harm.

Each runs in processes of its own (`jail`) without network, privileges, environment variables or
other processes, with limits on time, memory, processes and file size.  It can read Python's library
and write to one empty folder in memory, which is gone afterwards, as is every process it started.
All of that is what Linux offers to users without privileges; where it is not to be had, nothing is
run.  Only Python's standard library can be imported.

A program has passed when the runner reads a random word that is sent once the last line of the
tests was reached, and not when it merely ended without an error.  A program written against this
very file could find the word in the memory of its own process: the verdict measures ability, not
honesty.  What it cannot do does not depend on that.
"""

from __future__ import annotations

import marshal
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

from editor import jail
from editor.errors import EditorError, UsageError

Outcome = Literal["passed", "failed", "timed out", "killed", "refused"]

MOST_CHARACTERS = 1_000_000
"""Longest program that is run: nothing that answers a question comes near it."""
PATIENCE_S = 20.0
"""What setting up and cleaning up may take beyond the program's own time, on a busy machine."""
REASON_CHARACTERS = 200
BROKE = "the sandbox broke: "
GUARANTEES = ("network", "files", "processes", "privileges", "limits")


class Limits(NamedTuple):
    """What a program may use."""

    cpu_s: int = 6
    """Processor time of each of its processes."""
    wall_s: float = 20.0
    memory_bytes: int = 512 << 20
    """Address space of each of its processes, and, looked at twenty times a second, what all of
    them together hold."""
    processes: int = 16
    """Processes and threads at a time, its own among them."""
    file_bytes: int = 16 << 20
    """Each file, and all that it prints."""
    folder_bytes: int = 64 << 20
    """All files together."""


LIMITS = Limits()
"""Several times what any reference solution of MBPP and HumanEval takes."""


class Program(NamedTuple):
    """What a model wrote, and the tests that tell whether it is right."""

    code: str
    tests: str
    """Runs after `code`, in the same module; raises when `code` is wrong."""


class Verdict(NamedTuple):
    """How a program ended."""

    outcome: Outcome
    reason: str
    """What went wrong, one line, "" when nothing did; partly in the program's own words."""
    seconds: float

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


class Containment(NamedTuple):
    """What holds for programs that are run on this machine, by trying it."""

    network: bool
    """It cannot connect to anything, not even to this machine."""
    files: bool
    """It sees no file of this machine but Python's library, and changes none."""
    processes: bool
    """It cannot see or signal other processes, and none of its own outlives it."""
    privileges: bool
    """It has none and can get none."""
    limits: bool
    """`Limits` are kept."""
    problem: str = ""
    """Why not all holds."""

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in GUARANTEES if not getattr(self, name))


def run_tests(code: str, tests: str, *, limits: Limits = LIMITS) -> Verdict:
    """Run a program and then its tests, contained.

    Raises:
        UsageError: they cannot be contained on this machine.
        EditorError: the sandbox broke; that says nothing about the program.
    """
    require_containment()
    return _run(code, tests, limits)


def run_all(
    programs: Iterable[Program], *, limits: Limits = LIMITS, workers: int = 1
) -> Iterator[Verdict]:
    """`run_tests` of many, up to `workers` at a time; in their order, each as soon as it is known.

    Raises:
        UsageError: they cannot be contained on this machine; before the first.
        EditorError: the sandbox broke.
    """
    require_containment()
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(partial(_run_one, limits=limits), programs)


def require_containment() -> None:
    """Refuse to go on where programs cannot be contained in every respect.

    Raises:
        UsageError: says what is missing.
    """
    found = containment()
    if found.missing:
        raise UsageError(
            f"model-written code cannot be contained here ({', '.join(found.missing)}): "
            f"{found.problem}",
            "it needs Linux 5.14 or later that lets users make namespaces; containers often do not:"
            " start them with --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
        )


@lru_cache(maxsize=1)
def containment() -> Containment:
    """Try out what holds on this machine, once: a program in the sandbox attempts all of it."""
    if sys.platform != "linux":
        return _nothing(f"this is {sys.platform}, and what contains programs is part of Linux")
    limits = Limits(cpu_s=5)
    try:
        with _bait() as (address, path):
            found = _run("", _canary(address, path, limits), limits)
            changed = path.read_text() != "bait"
    except (EditorError, OSError) as error:
        return _nothing(str(error).removeprefix(BROKE))
    if found.passed and not changed:
        return Containment(True, True, True, True, True)
    if not found.reason.startswith("Broken: "):
        return _nothing(f"a harmless program {found.outcome}: {found.reason}")
    broken = {name for name in GUARANTEES if name in found.reason} | ({"files"} & {changed})
    held = {name: name not in broken for name in GUARANTEES}
    return Containment(**held, problem=f"a program got round it ({', '.join(sorted(broken))})")


def _nothing(problem: str) -> Containment:
    return Containment(False, False, False, False, False, problem)


# --- one program


def _run_one(program: Program, limits: Limits) -> Verdict:
    return _run(program.code, program.tests, limits)


def _run(code: str, tests: str, limits: Limits) -> Verdict:
    if len(code) > MOST_CHARACTERS:
        return Verdict("refused", f"{len(code)} characters, more than {MOST_CHARACTERS}", 0.0)
    nonce = secrets.token_bytes(32)
    order = jail.Order(
        code.encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
        tests,
        nonce,
        limits.wall_s,
        limits.cpu_s,
        limits.memory_bytes,
        limits.processes,
        limits.file_bytes,
        limits.folder_bytes,
    )
    begun = time.monotonic()
    report = _report_of(marshal.dumps(tuple(order)), limits.wall_s + PATIENCE_S)
    return _verdict(report, nonce, time.monotonic() - begun)


def _report_of(order: bytes, timeout_s: float) -> bytes | None:
    """What the jail says; None when it says nothing in time."""
    python: str = getattr(sys, "_base_executable", None) or sys.executable
    # Some Pythons do not start without it.  The program itself gets no variable of ours at all.
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    try:
        done = subprocess.run(
            [python, "-I", "-S", jail.__file__],
            input=order,
            capture_output=True,
            env={**kept, "LANG": "C.UTF-8"},
            timeout=timeout_s,
            start_new_session=True,  # a Ctrl-C is for the editor
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if not done.stdout:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise EditorError(f"{BROKE}{''.join(last) or f'exit {done.returncode}'}")
    return done.stdout


def _verdict(report: bytes | None, nonce: bytes, seconds: float) -> Verdict:
    if report is None:
        return Verdict("timed out", "it could not be ended in time", seconds)
    if report.startswith(jail.SETUP_FAILED):
        raise EditorError(f"{BROKE}{_one_line(report[1:])}")
    if report.startswith(jail.TOO_MUCH_MEMORY):
        return Verdict("killed", "its processes together took too much memory", seconds)
    head, _, told = report.partition(b"\n")
    status = int(head)
    if not told.startswith(jail.READY):
        raise EditorError(f"{BROKE}the limits could not be set")
    return Verdict(*_ending(status, told[len(jail.READY) :], nonce), seconds)


def _ending(status: int, told: bytes, nonce: bytes) -> tuple[Outcome, str]:
    """Outcome and reason.

    Args:
        status: as `os.waitpid` gives it; -1 when the wall time was over.
        told: what came through the pipe of the program, which it can write to as well.
    """
    if status == -1:
        return "timed out", "took more than its wall time"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == _signal("SIGXCPU"):
            return "timed out", "took more than its processor time"
        return "killed", f"ended by signal {number}"
    # Compared in full: anything else that the program wrote there makes it fail.
    if status == 0 and secrets.compare_digest(told, nonce):
        return "passed", ""
    if status != 0:
        return "failed", f"ended with exit code {os.WEXITSTATUS(status)} before its tests did"
    return "failed", _one_line(told) or "ended before its tests did"


def _signal(name: str) -> int:
    import signal

    return int(getattr(signal, name))


def _one_line(text: bytes) -> str:
    words = text.decode("utf-8", "replace").split()
    shown = "".join(one if one.isprintable() else "?" for one in " ".join(words))
    return shown if len(shown) <= REASON_CHARACTERS else f"{shown[: REASON_CHARACTERS - 1]}…"


# --- what is tried


@contextmanager
def _bait() -> Generator[tuple[tuple[str, int], Path]]:
    """A server that answers and a file that can be written: for this process, as is made sure."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        address: tuple[str, int] = server.getsockname()
        socket.create_connection(address, timeout=5).close()
        path = Path(folder) / "bait"
        path.write_text("bait")
        path.chmod(0o666)
        Path(folder).chmod(0o777)
        yield address, path


def _canary(address: tuple[str, int], path: Path, limits: Limits) -> str:
    """A program that tries what a program must not be able to do, and says what it could do."""
    values = (address, str(path), str(Path.home()), os.getpid(), tuple(limits))
    return f"address, path, home, editor, limits = {values!r}\n{_CANARY}"


_CANARY = """
import ctypes, os, resource, signal, socket, time

class Broken(Exception): pass

def possible(what, *arguments):
    try:
        what(*arguments)
    except (OSError, ValueError, MemoryError):
        return False
    return True

def write(path):
    with open(path, "w") as file:
        file.write("changed")

def fill():
    with open("large", "wb") as file:
        file.truncate(limits[4] + 1)

def forks():
    read, hold = os.pipe()
    born = 0
    try:
        while born <= limits[3]:
            if os.fork() == 0:
                os.close(hold)
                os.read(read, 1)
                os._exit(0)
            born += 1
    except OSError:
        pass
    os.close(hold)
    return born

libc = ctypes.CDLL(None)
broken = set()
if possible(socket.create_connection, address, 2):
    broken.add("network")
if [name for _, name in socket.if_nameindex()] != ["lo"]:
    broken.add("network")
if possible(open, path) or possible(write, path) or possible(os.listdir, "/proc"):
    broken.add("files")
if possible(write, "/new") or possible(write, os.__file__) or os.listdir("."):
    broken.add("files")
if home != "/" and home in os.environ.values():
    broken.add("files")
if os.getppid() != 1 or editor > 99 and possible(os.kill, editor, 0):
    broken.add("processes")
if possible(os.setuid, 0) or possible(os.setgroups, [0]) or libc.unshare(0x10000000) == 0:
    broken.add("privileges")
if possible(os.chroot, "/usr") or set(os.environ) != {"HOME", "LANG"}:
    broken.add("privileges")
if possible(bytearray, limits[2]) or possible(fill) or forks() >= limits[3]:
    broken.add("limits")
if resource.getrlimit(resource.RLIMIT_CPU)[0] != limits[0]:
    broken.add("limits")
if broken:
    raise Broken(" ".join(sorted(broken)))
"""
