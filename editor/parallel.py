"""Files worked on side by side: hashing one keeps a core busy while another waits for the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MAX_WORKERS = 4
"""Each holds some 30 MiB of buffers, and more would only make the disk seek."""


class Stopped(Exception):
    """Raised in a thread whose work nobody waits for any more."""


def side_by_side(work: Callable[[T, Callable[[], None]], R], items: Sequence[T]) -> list[R]:
    """Call `work` for every item, on a few threads; returns the results in the order of the items.

    Args:
        work: Takes an item and a function that it calls now and then, which raises `Stopped` once
            the call for an earlier item has failed or the user interrupts.
        items: What to work on.

    Raises:
        Whatever `work` raises: of several faults that of the first item, so that the same files
            yield the same message.  Earlier items are finished for that, later ones are not.
    """
    first = _First(len(items))

    def one(at: int, item: T) -> R:
        def keep_on() -> None:
            if first.at < at:
                raise Stopped

        keep_on()
        try:
            return work(item, keep_on)
        except Exception:
            first.is_at_most(at)
            raise

    with ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1)) as pool:
        futures = [pool.submit(one, at, item) for at, item in enumerate(items)]
        try:
            return [future.result() for future in futures]
        finally:
            first.is_at_most(-1)  # nobody waits for those after a fault, nor for any if interrupted


class _First:
    """The first item whose call has failed."""

    def __init__(self, at: int) -> None:
        self.at, self._lock = at, Lock()

    def is_at_most(self, at: int) -> None:
        with self._lock:
            self.at = min(self.at, at)
