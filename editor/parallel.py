"""Files worked on side by side: hashing one keeps a core busy while another waits for the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event
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
            another call has failed or the user interrupts.
        items: What to work on.

    Raises:
        Whatever `work` raises: of several faults that of the first item.
    """
    stop = Event()

    def keep_on() -> None:
        if stop.is_set():
            raise Stopped

    with ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1)) as pool:
        futures = [pool.submit(work, item, keep_on) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            stop.set()
            if not all(future.done() for future in futures):
                for future in futures:
                    future.cancel()
    faults = [at.exception() for at in futures if not at.cancelled() and at.exception()]
    for fault in faults:
        if fault is not None and not isinstance(fault, Stopped):
            raise fault
    return [future.result() for future in futures]
