"""What a program can do in the sandbox: every attack, and that it would work outside of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from editor import jail, sandbox
from editor.errors import EditorError, UsageError
from editor.sandbox import Limits, Program, Verdict

QUICK = Limits(cpu_s=1, wall_s=4.0)
GOOD = Program("def double(x):\n    return 2 * x", "assert double(4) == 8")
WRONG = "def double(x):\n    return x\n"
TESTS = GOOD.tests
INSIDE = "import os; assert os.getppid() == 1 and os.getpid() < 99\n"
"""Stops what would do harm outside of the sandbox."""
MANDATORY = "EDITOR_TEST_SANDBOX"


@pytest.fixture(autouse=True)
def _contained(request: pytest.FixtureRequest) -> None:
    """Attacks are only tried where all is contained; with the variable set, that must be so."""
    if "anywhere" in request.fixturenames:
        return
    missing = sandbox.containment().missing
    if missing and not os.environ.get(MANDATORY):
        pytest.skip(f"cannot contain programs here: {sandbox.containment().problem}")
    assert not missing, sandbox.containment().problem


@pytest.fixture
def anywhere() -> None:
    """Marks tests that need no sandbox."""


def run(code: str, tests: str = TESTS, limits: Limits = QUICK) -> Verdict:
    """The verdict on a program; one that is right must pass after it."""
    first, good = sandbox.run_all([Program(code, tests), GOOD], limits=limits)
    assert good.passed, good
    return first


def outside(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same program as a plain process."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# --- what passes


def test_a_right_program_passes_and_a_wrong_one_fails_with_its_reason() -> None:
    assert run(*GOOD) == ("passed", "", pytest.approx(1, abs=4))
    assert run(WRONG)[:2] == ("failed", "AssertionError")
    assert run("def double(x)\n    return")[0] == "failed"
    assert run("", "raise ValueError('a\\nb\x1b[31m' + 'c' * 999)").reason.startswith(
        "ValueError: a b?[31mccc"
    )
    assert len(run("", "raise ValueError('c' * 999)").reason) == sandbox.REASON_CHARACTERS


def test_all_of_the_standard_library_that_answers_use_is_there() -> None:
    code = (
        "import bisect, collections, datetime, decimal, fractions, functools, hashlib, heapq\n"
        "import itertools, json, math, random, re, sqlite3, ssl, string, sys, threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from dataclasses import dataclass\n"
        "from typing import *\n"
        "@dataclass\n"
        "class Pair:\n"
        "    left: int\n"
        "def double(x):\n"
        "    open('note', 'w').write('kept')\n"
        "    with ThreadPoolExecutor(2) as pool:\n"
        "        return sum(pool.map(lambda one: one.left, [Pair(x), Pair(x)]))\n"
        "if __name__ == '__main__':\n"
        "    input()\n"
    )
    assert run(code, TESTS + "; assert open('note').read() == 'kept'").passed


def test_many_come_back_in_order_whoever_is_first() -> None:
    slow = Program("import time; time.sleep(0.5)\n" + GOOD.code, TESTS)
    programs = [slow, GOOD, Program(WRONG, TESTS), GOOD]
    found = sandbox.run_all(programs, limits=QUICK, workers=2)
    assert [one.outcome for one in found] == ["passed", "passed", "failed", "passed"]


def test_code_that_is_no_unicode_or_has_no_end() -> None:
    assert run("x = '\ud800'\n" + GOOD.code).passed
    assert run("x = '\x00'")[0] == "failed"
    assert run("#" * sandbox.MOST_CHARACTERS + "#")[0] == "refused"
    assert run("(" * 9999)[0] in ("failed", "killed")


# --- time, memory, processes, files


def test_endless_loops() -> None:
    assert run("while True: pass")[:2] == ("timed out", "took more than its processor time")
    waits = "import time; time.sleep(99)"
    assert run(waits, limits=Limits(wall_s=0.5))[:2] == (
        "timed out",
        "took more than its wall time",
    )
    assert run("def double(x):\n    while True: pass")[0] == "timed out"
    assert run("while True:\n    try:\n        while True: pass\n    except BaseException: pass")[
        0
    ] in ("timed out", "killed")
    stopped = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    assert run(stopped, limits=Limits(wall_s=0.5))[0] == "timed out"


def test_an_endless_loop_that_ignores_every_signal_it_can() -> None:
    deaf = "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
    assert run(deaf + "    except (OSError, ValueError): pass\nwhile True: pass")[0] in (
        "timed out",
        "killed",
    )


def test_ten_gigabytes() -> None:
    assert run("x = bytearray(10 << 30)")[:2] == ("failed", "MemoryError")
    assert run("x = bytearray(10 << 20)\n" + GOOD.code).passed
    assert run("x = [0]\nwhile True: x += x")[:2] == ("failed", "MemoryError")


def test_processes_that_take_too_much_memory_together() -> None:
    each = (
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(b'x') * (100 << 20)\n"
        "        time.sleep(60)\n"
        "time.sleep(60)"
    )
    limits = Limits(memory_bytes=256 << 20)
    assert run(each, limits=limits)[:2] == (
        "killed",
        "its processes together took too much memory",
    )
    assert run("x = bytearray(b'x') * (100 << 20)\n" + GOOD.code, limits=limits).passed


def test_a_fork_bomb() -> None:
    bomb = INSIDE + "while True:\n    try: os.fork()\n    except OSError: pass"
    assert not run(bomb, limits=Limits(cpu_s=1, wall_s=2.0)).passed


@pytest.mark.parametrize(
    "what", ["os.fork() or time.sleep(9)", "Thread(target=time.sleep).start()"]
)
def test_no_more_processes_and_threads_than_allowed(what: str) -> None:
    code = (
        "import os, time\n"
        "from threading import Thread\n"
        "def more(n):\n"
        "    for _ in range(n):\n"
        f"        {what}\n"
    ).replace("time.sleep)", "time.sleep, args=(9,), daemon=True)")
    limits = Limits(wall_s=5.0, processes=8)
    assert run(code, "more(5)", limits).passed
    assert run(code, "more(8)", limits)[0] == "failed"


def test_files_that_are_too_large() -> None:
    fills = "with open('{}', 'wb') as file: file.write(bytes({}))"
    limits = Limits(file_bytes=1 << 20, folder_bytes=2 << 20)
    assert run("", fills.format("a", 1 << 20), limits).passed
    assert "File too large" in run("", fills.format("a", (1 << 20) + 1), limits).reason
    several = "\n".join(fills.format(name, 1 << 20) for name in "abc")
    assert "No space left" in run("", several, limits).reason


def test_printing_without_end() -> None:
    loud = "import sys\nfor _ in range({}): sys.stdout.write('x' * 1000000)\n" + GOOD.code
    assert "File too large" in run(loud.format(10000)).reason
    assert run(loud.format(2)).passed
    assert "File too large" in run(loud.format(10000).replace("stdout", "stderr")).reason


# --- the machine


def test_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket; socket.create_connection({server.getsockname()}, 2).close()"
        assert outside(connect).returncode == 0
        assert "OSError" in run(connect).reason or "refused" in run(connect).reason
    listed = "import socket; assert [name for _, name in socket.if_nameindex()] == ['lo']"
    assert run(listed + "\n" + GOOD.code).passed
    sends = "import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"
    assert "unreachable" in run(sends).reason


def test_sockets_that_have_no_address_on_a_network() -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0editor-test-{os.getpid()}")
        server.listen()
        name = server.getsockname().decode()
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})"
        assert outside(connect).returncode == 0
        assert "refused" in run(connect).reason


def test_files_of_others_are_neither_read_nor_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o666)
    read, write = f"open({str(secret)!r}).read()", f"open({str(secret)!r}, 'w').write('mine')"
    assert outside(f"assert {read} == 'secret'").returncode == 0
    assert "FileNotFoundError" in run(read).reason
    assert "FileNotFoundError" in run(write).reason
    assert secret.read_text() == "secret"
    assert outside(write).returncode == 0
    assert secret.read_text() == "mine"


@pytest.mark.parametrize("path", ["/new", "/etc/new", "/usr/lib/new", "/dev/new", os.__file__])
def test_nothing_is_written_outside_of_the_folder(path: str) -> None:
    assert run(f"open({path!r}, 'a')").reason.startswith(
        ("OSError: [Errno 30]", "PermissionError", "FileNotFoundError")
    )


def test_the_callers_home_and_the_machines_processes_are_not_there() -> None:
    home = Path.home()
    # A Python that was installed there is all that can be seen of it.
    python = Path(sys.base_prefix)
    way = {python.relative_to(home).parts[0]} if python.is_relative_to(home) else set[str]()
    seen = f"import os; found = set(os.listdir({str(home)!r}))"
    assert outside(seen).returncode == (0 if home.exists() else 1)
    verdict = run(f"{seen}\n{GOOD.code}", f"assert found <= {way!r}\n{TESTS}")
    assert verdict.passed or verdict.reason.startswith(("FileNotFoundError", "PermissionError"))
    assert "FileNotFoundError" in run("import os; os.listdir('/proc')").reason
    assert "FileNotFoundError" in run("open('/etc/passwd')").reason


def test_the_folder_is_empty_each_time_and_gone_afterwards() -> None:
    leaves = "import os; assert os.listdir('.') == []; open('left', 'w').write('x')\n" + GOOD.code
    before = set(os.listdir("/tmp"))
    assert run(leaves).passed
    assert run(leaves).passed
    assert "left" not in set(os.listdir("/tmp")) - before
    assert not Path("left").exists()


def test_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/hf_secret")
    seen = "import os; assert 'hf_secret' in str(dict(os.environ))"
    assert outside(seen).returncode == 0
    assert run(seen)[:2] == ("failed", "AssertionError")
    # Not in the memory of the process either, where they lie however os.environ was changed.
    native = "import ctypes; assert ctypes.CDLL(None).getenv(b'HF_TOKEN')"
    assert outside(native).returncode == 0
    assert run(native)[:2] == ("failed", "AssertionError")


@pytest.mark.parametrize(
    "what",
    [
        "os.setuid(0)",
        "os.setgroups([0])",
        "os.chroot('/usr')",
        "os.chmod('/usr/lib', 0o777)",
        "os.mknod('disk', 0o60600, os.makedev(8, 0))",
        "resource.setrlimit(resource.RLIMIT_NPROC, (999, 999))",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        "native('unshare', 0x10000000)",
        "native('unshare', 0x00020000)",
        "native('mount', b'x', b'/tmp', b'tmpfs', 0, b'')",
        "native('umount2', b'/usr/lib', 2)",
        "native('ptrace', 16, 1, 0, 0)",
        "native('reboot', 0)",
    ],
)
def test_privileges(what: str) -> None:
    prepare = (
        "import ctypes, os, resource\n"
        "def native(name, *arguments):\n"
        "    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:\n"
        "        raise OSError(ctypes.get_errno(), name)\n"
    )
    verdict = run(INSIDE + prepare + what)
    assert verdict.outcome == "failed"
    assert "Error" in verdict.reason
    assert "AssertionError" not in verdict.reason


# --- other processes


def test_killing_the_parent() -> None:
    kill = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {kill!r}])"
    assert outside(parent).returncode == -signal.SIGKILL
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM):
        assert run(INSIDE + f"os.kill(os.getppid(), {int(number)})")[:2] == (
            "failed",
            "NameError: name 'double' is not defined",
        )
    assert run(INSIDE + "os.kill(os.getppid(), 9)\n" + GOOD.code).passed


def test_killing_everybody() -> None:
    # No control: outside it would work.
    assert not run(INSIDE + "os.kill(-1, 9)").passed
    assert not run(INSIDE + "os.killpg(0, 9)").passed
    assert not run(INSIDE + "for pid in range(2, 999):\n    os.kill(pid, 9)").passed


def test_killing_the_editor() -> None:
    kill = f"import os; os.kill({os.getpid()}, 0)"
    assert outside(kill).returncode == 0
    assert "ProcessLookupError" in run(kill).reason


def marked(path: Path) -> list[int]:
    """Processes that were started from this copy of the jail."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(path).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


@pytest.fixture
def own_jail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the jail by whose name its processes are known."""
    copy = tmp_path / "own_jail.py"
    copy.write_text(Path(jail.__file__).read_text())
    monkeypatch.setattr(jail, "__file__", str(copy))
    return copy


def gone(path: Path, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while marked(path):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


OUTLIVES = {
    "a child": "if os.fork() == 0: time.sleep(99)\n",
    "a daemon": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for s in range(1, 32):\n"
        "            if s not in (9, 19): signal.signal(s, signal.SIG_IGN)\n"
        "        time.sleep(99)\n    os._exit(0)\n"
    ),
    "a thread": "threading.Thread(target=time.sleep, args=(99,)).start()\n",
}


@pytest.mark.parametrize("how", OUTLIVES)
def test_nothing_outlives_its_program(how: str, own_jail: Path) -> None:
    begun = time.monotonic()
    code = "import os, signal, threading, time\n" + OUTLIVES[how] + GOOD.code
    assert sandbox.run_tests(code, TESTS, limits=Limits(wall_s=60)).passed
    assert time.monotonic() - begun < 30
    assert gone(own_jail)


def test_a_daemon_outlives_its_program_outside(tmp_path: Path) -> None:
    note = tmp_path / "note"
    daemon = OUTLIVES["a daemon"].replace(
        "time.sleep(99)", f"open({str(note)!r}, 'w'); os._exit(0)"
    )
    assert outside("import os, signal, threading, time\n" + daemon).returncode == 0
    end = time.monotonic() + 20
    while not note.exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert note.exists()


def test_programs_end_with_the_editor(own_jail: Path) -> None:
    code = (
        "from editor import jail, sandbox\n"
        f"jail.__file__ = {str(own_jail)!r}\n"
        "sandbox.run_tests('import time; time.sleep(99)', '', limits=sandbox.Limits(wall_s=99))"
    )
    root = str(Path(__file__).resolve().parent.parent)
    editor = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root})
    try:
        end = time.monotonic() + 60
        while len(marked(own_jail)) < 3 and time.monotonic() < end:
            assert editor.poll() is None
            time.sleep(0.02)
        assert len(marked(own_jail)) >= 3
    finally:
        editor.kill()
        editor.wait()
    assert gone(own_jail)


# --- what only looks like passing

PRETENDS = {
    "exit": "import sys; sys.exit(0)",
    "exit in the function": "import sys\ndef double(x): sys.exit(0)",
    "exit at once": "import os; os._exit(0)",
    "exit at once in the function": "import os\ndef double(x): os._exit(0)",
    "SystemExit": "raise SystemExit",
    "KeyboardInterrupt": "def double(x): raise KeyboardInterrupt",
    "GeneratorExit": "raise GeneratorExit",
    "an error without words": (
        "class E(BaseException):\n    def __str__(self): raise self\ndef double(x): raise E"
    ),
    "exit after a copy": "import os\ndef double(x):\n    if os.fork(): os._exit(0)\n    return 8",
    "words in the pipe": (
        "import os\ndef double(x):\n    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'passed')\n        except OSError: pass\n    os._exit(0)"
    ),
    "a full pipe": (
        "import os\ndef double(x):\n    os.set_blocking(3, False)\n"
        "    while True: os.write(3, bytes(4096))"
    ),
    "a closed pipe": "import os; os.close(3)\n" + GOOD.code,
    "words before the right answer": "import os; os.write(3, b'x' * 40)\n" + GOOD.code,
    "a patched error": "import builtins; builtins.AssertionError = type('E', (), {})\n" + WRONG,
    "a patched int": "import builtins; builtins.double = lambda x: 8",
    "patched builtins": (
        "__builtins__ = {'len': None}\nimport sys\nsys.modules['builtins'] = None\n" + WRONG
    ),
    "a trace": (
        "import sys\ndef trace(frame, event, arg):\n"
        "    if frame.f_code.co_filename == 'tests' and event == 'call': sys.exit(0)\n"
        "    return trace\nsys.settrace(trace)\n" + WRONG
    ),
    "exit when the program ends": "import atexit, os; atexit.register(os._exit, 0)\n" + WRONG,
    "an exit for every error": (
        "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\nos.write = print\n" + WRONG
    ),
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a thread that exits": (
        "import os, threading, time\nthreading.Thread(target=os._exit, args=(0,)).start()\n"
        "time.sleep(9)"
    ),
    "closed output": "import os, sys; sys.stdout.close(); os.close(1); os.close(2)\n" + WRONG,
}


@pytest.mark.parametrize("how", PRETENDS)
def test_what_only_looks_like_passing_fails(how: str) -> None:
    verdict = run(PRETENDS[how])
    assert verdict.outcome in ("failed", "killed")
    assert verdict.reason


@pytest.mark.parametrize("how", ["exit", "exit in the function", "exit at once", "SystemExit"])
def test_an_exit_code_would_call_that_passed(how: str) -> None:
    assert outside(f"{PRETENDS[how]}\n{TESTS}").returncode == 0


def test_patched_builtins_do_not_change_the_tests() -> None:
    patched = "import builtins\nbuiltins.sorted = lambda x: [1, 2]\nbuiltins.all = lambda x: True\n"
    tests = "assert all([x == y for x, y in zip(sorted([3, 1]), [1, 2])])"
    assert outside(f"{patched}\n{tests}").returncode == 0
    assert run(patched, tests)[:2] == ("failed", "AssertionError")


def test_output_that_is_closed_does_not_matter_to_a_right_program() -> None:
    assert run("import os, sys; sys.stdout.close(); os.close(1); os.close(2)\n" + GOOD.code).passed


# --- where it cannot be contained


@pytest.fixture
def fresh() -> Iterator[None]:
    """What was found out about this machine is forgotten before and after."""
    sandbox.containment.cache_clear()
    yield
    sandbox.containment.cache_clear()


HOLES = {
    "network": ("| NEW_PIDS | NEW_NETWORK", "| NEW_PIDS"),
    "files": ("    _own_files(order, NOBODY if privileged else INSIDE_ID)", "    os.chdir('/tmp')"),
    "processes": ("| NEW_PIDS | NEW_NETWORK", "| NEW_NETWORK"),
    "privileges": (
        '    _checked(_libc.unshare(NEW_USERS), "a namespace without a name")',
        "    pass",
    ),
    "limits": ("resource.RLIMIT_FSIZE: order.file_bytes,", ""),
}


@pytest.mark.parametrize("what", HOLES)
@pytest.mark.usefixtures("fresh")
def test_a_hole_in_the_sandbox_is_found(what: str, own_jail: Path) -> None:
    whole, hole = HOLES[what]
    text = own_jail.read_text()
    assert text.count(whole) == 1
    own_jail.write_text(text.replace(whole, hole))
    sandbox.containment.cache_clear()
    found = sandbox.containment()
    assert what in found.missing
    with pytest.raises(UsageError, match=what):
        sandbox.run_tests(*GOOD)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('!Operation not permitted (namespaces)', end='')", "Operation not permitted"),
        ("raise OSError('no such call')", "no such call"),
        ("print('0\\n', end='')", "limits could not be set"),
    ],
)
@pytest.mark.usefixtures("anywhere", "fresh")
def test_a_machine_without_namespaces_is_told_so(
    script: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(script)
    monkeypatch.setattr(jail, "__file__", str(broken))
    assert sandbox.containment().missing == sandbox.GUARANTEES
    with pytest.raises(UsageError, match=expected):
        list(sandbox.run_all([GOOD]))


@pytest.mark.usefixtures("anywhere", "fresh")
def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.sys, "platform", "darwin")
    with pytest.raises(UsageError, match="this is darwin"):
        sandbox.require_containment()


def test_a_sandbox_that_breaks_later_says_nothing_about_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.require_containment()
    broken = tmp_path / "broken.py"
    broken.write_text("print('!No space left on device (mounting /tmp)', end='')")
    monkeypatch.setattr(jail, "__file__", str(broken))
    with pytest.raises(EditorError, match="No space left on device"):
        sandbox.run_tests(*GOOD)
