"""What a long run tells its user, apart from how it is shown."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of stages, finished masks and lines worth reading."""

    def say(self, line: str) -> None:
        """A fact the user should see."""
        ...

    def stage(self, title: str, total: int) -> None:
        """A new stage of `total` masks begins."""
        ...

    def advance(self, n: int) -> None:
        """`n` masks of the stage are done."""
        ...


class Silent:
    """Shows nothing."""

    def say(self, line: str) -> None:
        del line

    def stage(self, title: str, total: int) -> None:
        del title, total

    def advance(self, n: int) -> None:
        del n
