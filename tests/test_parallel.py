"""Work side by side: results in order, the first fault, and an end for the others."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest

from editor.parallel import side_by_side


def test_results_are_in_the_order_of_the_items() -> None:
    assert side_by_side(lambda item, _: item * 2, list(range(50))) == [n * 2 for n in range(50)]
    assert side_by_side(lambda item, _: item, []) == []


def test_the_fault_of_the_first_item_is_raised_though_a_later_one_was_sooner() -> None:
    failed = Event()

    def work(item: int, keep_on: Callable[[], None]) -> None:
        if item == 0:
            assert failed.wait(20)
            keep_on()  # goes on: its own fault is the one to tell
        failed.set()
        raise ValueError(str(item))

    with pytest.raises(ValueError, match="0"):
        side_by_side(work, [0, 1])


def test_later_items_end_once_one_has_failed() -> None:
    begun, ended = Event(), Event()

    def work(item: int, keep_on: Callable[[], None]) -> None:
        if item == 0:
            assert begun.wait(20)
            raise ValueError("none")
        begun.set()
        try:
            while True:  # until somebody says that nobody waits
                keep_on()
        finally:
            ended.set()

    with pytest.raises(ValueError, match="none"):
        side_by_side(work, [0, 1])
    assert ended.is_set()


def test_what_has_not_begun_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("editor.parallel.MAX_WORKERS", 1)
    begun: list[int] = []

    def work(item: int, _: Callable[[], None]) -> None:
        begun.append(item)
        raise ValueError(str(item))

    with pytest.raises(ValueError, match="0"):
        side_by_side(work, list(range(20)))
    assert len(begun) < 20
