"""Two ways to show a long run on stderr: one live line in a terminal, plain lines elsewhere.

Both are a `editor.progress.Progress` and a context manager; a total of 0 means that it is unknown.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from editor.wording import duration

LINE_EVERY_S = 10.0
"""Seconds between two plain lines of one stage."""
RECENT = 20
"""Reports of finished masks over which the pace is taken: what a journal answers takes no time."""


SHOWN_BEST = 3
"""Of the heads that look best so far, how many fit on a line."""


class Pace:
    """How far a stage is and how fast it goes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.best: tuple[str, ...] = ()
        """Heads that look best so far; a new stage goes on from them."""
        self.begin(0)

    def begin(self, total: int) -> None:
        """Start at zero of `total` masks, 0 when it is not known."""
        self.total, self.done, self._n_tokens = max(total, 0), 0, 0
        self._began = self._clock()
        self._recent: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)], maxlen=RECENT)

    def advance(self, n: int) -> None:
        """`n` more masks are done."""
        self.done += n
        self._recent.append((self._clock(), self.done, self._n_tokens))

    def tokens(self, n: int) -> None:
        """`n` more tokens were measured."""
        self._n_tokens += n

    @property
    def elapsed_s(self) -> float:
        """Seconds since the stage began."""
        return self._clock() - self._began

    @property
    def s_per_mask(self) -> float | None:
        """Seconds a mask, lately; None before the first."""
        (then, before, _), (now, after, _) = self._recent[0], self._recent[-1]
        return (now - then) / (after - before) if after > before else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second, lately; None before the first."""
        (then, _, before), (now, _, after) = self._recent[0], self._recent[-1]
        return (after - before) / (now - then) if after > before and now > then else None

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take, where total and pace are known."""
        pace = self.s_per_mask
        if pace is None or self.done >= self.total:
            return None
        return pace * (self.total - self.done)

    def text(self) -> str:
        """The figures on one line, the most wanted first: a narrow terminal cuts the end off."""
        parts: list[str] = []
        if self.done or self.total:
            # A total is an estimate; once it is passed, the count says more.
            of = f"/{self.total}" if self.done <= self.total else ""
            parts.append(f"{self.done}{of} masks")
        if (left := self.left_s) is not None:
            parts.append(f"{duration(left)} left")
        if self.best:
            parts.append(f"best {' '.join(self.best[:SHOWN_BEST])}")
        if (rate := self.tokens_per_s) is not None:
            parts.append(f"{rate:,.0f} tokens/s")
        if (peak := memory_peak_bytes()) is not None:
            parts.append(f"peak {peak / 2**30:.1f} GiB")
        if peak := device_peak_bytes():
            parts.append(f"device {peak / 2**30:.1f} GiB")
        parts.append(f"{duration(self.elapsed_s)} elapsed")
        if (pace := self.s_per_mask) is not None:
            parts.append(f"{pace:.2f} s/mask")
        return ", ".join(parts)


class Lines:
    """Plain lines, for pipes and logs: no control codes, no line that is drawn twice."""

    def __init__(
        self, emit: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._emit, self._clock = emit, clock
        self._pace, self._title, self._last = Pace(clock), "", 0.0

    def say(self, line: str) -> None:
        self._emit(line)

    def stage(self, title: str, total: int) -> None:
        self._end()
        self._title, self._last = title, self._clock()
        self._pace.begin(total)
        self._emit(f"{title} ..." if total <= 0 else f"{title}: about {total} masks")

    def advance(self, n: int) -> None:
        self._pace.advance(n)
        if self._clock() - self._last >= LINE_EVERY_S:
            self._last = self._clock()
            self._emit(f"{self._title}: {self._pace.text()}")

    def tokens(self, n: int) -> None:
        self._pace.tokens(n)

    def best(self, heads: Sequence[str]) -> None:
        self._pace.best = tuple(heads)

    def _end(self) -> None:
        if self._title and self._pace.done:
            took = duration(self._pace.elapsed_s)
            self._emit(f"{self._title}: {self._pace.done} masks in {took}")
        self._title = ""

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._end()


class Bar:
    """One live line on a terminal; what is said scrolls by above it.

    Args:
        clean: makes a line harmless for a terminal.
        heard: hears of every line that is said and every stage that begins.
    """

    def __init__(self, clean: Callable[[str], str], heard: Callable[[str], None]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.table import Column
        from rich.text import Text

        pace = Pace()

        class Figures(ProgressColumn):
            """The figures, anew at every refresh so that the clock runs between two masks."""

            def render(self, task: Task) -> Text:
                del task
                return Text(pace.text())

        self._clean, self._heard, self._pace = clean, heard, pace
        self._live = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=12),
            Figures(table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(stderr=True),
            transient=True,
            refresh_per_second=4,
        )
        self._task: Any = None

    def say(self, line: str) -> None:
        self._heard(line)
        self._live.console.print(self._clean(line), markup=False, highlight=False, soft_wrap=True)

    def stage(self, title: str, total: int) -> None:
        if self._task is not None:
            self._live.remove_task(self._task)
        self._heard(title)
        self._pace.begin(total)
        # Without a total the bar pulses.
        self._task = self._live.add_task(self._clean(title), total=total if total > 0 else None)

    def advance(self, n: int) -> None:
        self._pace.advance(n)
        if self._task is not None:
            total = max(self._pace.total, self._pace.done) if self._pace.total else None
            self._live.update(self._task, completed=self._pace.done, total=total)

    def tokens(self, n: int) -> None:
        self._pace.tokens(n)

    def best(self, heads: Sequence[str]) -> None:
        self._pace.best = tuple(map(self._clean, heads))

    def __enter__(self) -> Bar:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def memory_peak_bytes() -> int | None:
    """The most memory that this process has held, where the system tells."""
    with suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Kilobytes, but on a Mac bytes.
        return peak if sys.platform == "darwin" else peak * 1024
    return None


def device_peak_bytes() -> int | None:
    """The most memory of the accelerators that torch has held; None without one in use."""
    torch: Any = sys.modules.get("torch")  # loading it here would take seconds
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    return sum(torch.cuda.max_memory_allocated(at) for at in range(torch.cuda.device_count()))
