"""Ctrl-C: once ends after the running batch, twice at once; neither shows a traceback.

Outside of a batch there is nothing to finish, so the first one ends the command too.  Only the
command line listens: a program that uses the package keeps its own handling.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

CODE = 130
GRACE_S = 1.0
"""Seconds that Python gets to act on a second Ctrl-C, which it cannot while a library computes."""
TOGETHER_S = 0.1
"""Two that come closer than a hand types are one: programs that start others pass on what the
terminal has sent them too."""
AGAIN_S = 0.15
"""Seconds after which one that got lost is sent again: longer, or it would not count."""
_SAID = b"finishing the running batch, then stopping; Ctrl-C again quits at once\n"
_CLEAR_LINE, _SHOW_CURSOR = b"\r\x1b[K", b"\x1b[?25h"


class _State:
    """What the handler and the code that is interrupted tell each other."""

    finishing = False
    asked = False


@contextmanager
def finishing() -> Generator[None]:
    """Let a first Ctrl-C wait until the end of the block, which raises it then.

    Raises:
        KeyboardInterrupt: at the end, if one was asked for meanwhile; or at once, for a second.
    """
    outer, _State.finishing = _State.finishing, True
    try:
        yield
    finally:
        _State.finishing = outer
    if _State.asked and not outer:
        raise KeyboardInterrupt


@contextmanager
def listening() -> Generator[None]:
    """Handle Ctrl-C as said above, for the time of a command."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # nohup, or a script's background
    if ignored or threading.current_thread() is not threading.main_thread():
        yield  # handlers are the main thread's
        return
    seen, watched = socket.socketpair()
    watched.setblocking(False)
    watcher = _Watcher(seen)
    before = signal.signal(signal.SIGINT, watcher.hear)
    wakes = signal.set_wakeup_fd(watched.fileno(), warn_on_full_buffer=False)
    hook, sys.unraisablehook = sys.unraisablehook, _again(sys.unraisablehook)
    watcher.start()
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGINT, before)
        watched.close()
        _State.asked = False


class _Watcher(threading.Thread):
    """Counts Ctrl-C as it comes; the handler only runs once Python gets its turn."""

    def __init__(self, seen: socket.socket) -> None:
        super().__init__(daemon=True)
        self._seen, self._n_heard, self._last = seen, 0, -1.0

    def hear(self, *_: object) -> None:
        """The handler."""
        before, self._last = self._last, time.monotonic()
        if before >= 0 and self._last - before < TOGETHER_S:
            return
        self._n_heard += 1
        if _State.finishing and not _State.asked:
            _State.asked = True
            _write(_SAID)
            return
        raise KeyboardInterrupt

    def run(self) -> None:
        """Leave for the second Ctrl-C that nobody acts on."""
        n_seen, last = 0, -1.0
        with self._seen:
            while came := self._seen.recv(64):
                before = last
                if signal.SIGINT in came:
                    last = time.monotonic()
                if last - before < TOGETHER_S:
                    continue
                n_seen += 1
                if n_seen > 1:
                    time.sleep(GRACE_S)
                    if self._n_heard < n_seen:
                        _write((_SHOW_CURSOR if os.isatty(2) else b"") + b"interrupted\n")
                        os._exit(CODE)


def _again(hook: Any) -> Any:
    """A hook that does not lose a Ctrl-C which came in a destructor, nor prints where it came."""

    def heard(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # Raised here it would be lost again: a moment later the destructor is over.
            threading.Timer(AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            hook(unraisable)

    return heard


def _write(said: bytes) -> None:
    """Straight to stderr: the handler may come while something else is being written."""
    with suppress(OSError):
        os.write(2, (_CLEAR_LINE if os.isatty(2) else b"") + said)
