"""Workers that are processes of this machine, each at the end of a pipe.

They end with their parent, however it ends: the pipe closes, and a thread watches for it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from editor.engine import Job
from editor.fanout import Done, Failed, Holder, Lost, Make, Reply

PATIENCE_S = 5.0
"""How long a process may take to end before it is killed."""

_CONTEXT = multiprocessing.get_context("spawn")  # a fork would copy torch's threads in any state


class Processes:
    """`fanout.Hands` on this machine; a process is started when it gets its first job."""

    hint = "its memory may be too small: try fewer --workers; what was measured is kept"

    def __init__(self, n: int) -> None:
        self.slots: Sequence[int] = range(n)
        self._started: dict[int, tuple[SpawnProcess, Connection]] = {}

    def give(self, slot: int, make: Make, job: Job) -> None:
        if slot not in self._started:
            self._started[slot] = _start(slot)
        # One that is dead is found out by `wait`.
        with suppress(ConnectionError):
            self._started[slot][1].send((make, job))

    def wait(self) -> list[tuple[int, Reply]]:
        slot_of = {at: slot for slot, (_, at) in self._started.items()}
        return [(slot_of[at], self._hear(slot_of[at])) for at in wait([*slot_of])]  # pyright: ignore[reportArgumentType]

    def pids(self) -> list[int]:
        """Process ids of the workers that were started."""
        return [process.pid for process, _ in self._started.values() if process.pid is not None]

    def close(self) -> None:
        started, self._started = self._started, {}
        for process, pipe in started.values():
            pipe.close()
            process.terminate()
        for process, _ in started.values():
            _end(process)

    def _hear(self, slot: int) -> Reply:
        process, pipe = self._started[slot]
        try:
            reply: Done | Failed = pipe.recv()
            return reply
        except (EOFError, OSError):
            del self._started[slot]
            pipe.close()
            _end(process)
            return Lost(_words(process.exitcode))


def _start(slot: int) -> tuple[SpawnProcess, Connection]:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(
        target=_serve, args=(theirs, slot), name=f"editor-worker-{slot}", daemon=True
    )
    with _uninterrupted():
        process.start()
    theirs.close()  # so that the pipe ends with the worker
    return process, ours


@contextmanager
def _uninterrupted() -> Generator[None]:
    """What is started here never hears of Ctrl-C: its parent decides what that means."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(process: SpawnProcess) -> None:
    process.join(PATIENCE_S)
    if process.is_alive():
        process.kill()
        process.join()


def _words(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _serve(pipe: Connection, slot: int) -> None:
    """A worker's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    holder = Holder(slot)
    with suppress(EOFError, ConnectionError):
        while True:
            made: Any = pipe.recv()
            pipe.send(holder.reply(*made))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # a job may keep the main thread for minutes
