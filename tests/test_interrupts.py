"""Ctrl-C in real processes: once ends after the batch, twice at once, never with a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from editor.interrupts import finishing, listening

ROOT = Path(__file__).resolve().parent.parent
WORK = """
import hashlib, sys, time
import click
from editor.console import Program
from editor.interrupts import finishing

@click.group(cls=Program)
def main(): pass

@main.command()
@click.argument("how")
def work(how):
    for n in range(3):
        with finishing() if how != "bare" else open("/dev/null"):
            print("begins", n, flush=True)
            if how == "deaf":  # a library that computes, and hears of nothing
                hashlib.pbkdf2_hmac("sha256", b"x", b"y", 200_000_000)
            time.sleep(1.0)
            print("kept", n, flush=True)
main()
"""


def start(how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, "work", how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins 0\n"
    return process


def test_the_first_finishes_the_batch_and_keeps_it() -> None:
    process = start("batches")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "kept 0\n")
    assert "finishing the running batch" in err
    assert "interrupted; run the same command again to go on" in err
    assert "Traceback" not in err


def test_the_second_quits_at_once() -> None:
    process = start("batches")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize("how", ["batches", "deaf"])
def test_one_that_is_passed_on_twice_is_one(how: str) -> None:
    """`timeout -s INT` and others send what the terminal has sent already."""
    process = start(how)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    if how == "deaf":  # still computing, and not given up
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=3)
        process.kill()
        process.communicate()
    else:
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (130, "kept 0\n")


def test_the_second_quits_even_while_a_library_computes() -> None:
    process = start("deaf")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)  # the library would take minutes
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err


def test_without_a_batch_the_first_quits() -> None:
    process = start("bare")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "module", ["editor.cli", "click", "editor.console", "editor.flags", "pydantic", "numpy"]
)
def test_none_comes_too_early(module: str) -> None:
    """A Ctrl-C at the moment when some module is about to be loaded."""
    program = (
        "import os, runpy, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv = ['editor', 'remove', '-c', 'recall', '-m', 'nowhere/x', '-o', 'o']\n"
        "sys.argv += ['--dry-run', '--offline']\n"
        "runpy.run_module('editor', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=60,
    )
    assert done.returncode == 130, done.stderr
    assert "interrupted" in done.stderr and "Traceback" not in done.stderr


def test_one_that_comes_in_a_destructor_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    class Thing:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), listening():
        thing = Thing()
        del thing
        time.sleep(5)
    assert "Traceback" not in capsys.readouterr().err


def test_who_is_told_to_ignore_ctrl_c_does() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening(), finishing():
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_program_that_uses_the_package_keeps_its_own_handling() -> None:
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), finishing():
        signal.raise_signal(signal.SIGINT)
        pytest.fail("nobody listens, so nothing is put off")
    with listening():
        pass
    assert signal.getsignal(signal.SIGINT) is before and sys.unraisablehook is hook


def test_blocks_inside_one_another_end_with_the_outer_one() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), listening(), finishing():
        with finishing():
            signal.raise_signal(signal.SIGINT)
        reached.append("inner")
    assert reached == ["inner"]


def test_another_thread_has_no_handlers() -> None:
    faults: list[BaseException] = []

    def work() -> None:
        try:
            with listening():
                pass
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not faults
