"""What a long run tells its user, apart from how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
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

    def tokens(self, n: int) -> None:
        """`n` tokens were measured, those of the masks that `advance` tells of next."""
        ...

    def best(self, heads: Sequence[str]) -> None:
        """The heads that look best so far, the best first."""
        ...


class Silent:
    """Shows nothing."""

    def say(self, line: str) -> None:
        del line

    def stage(self, title: str, total: int) -> None:
        del title, total

    def advance(self, n: int) -> None:
        del n

    def tokens(self, n: int) -> None:
        del n

    def best(self, heads: Sequence[str]) -> None:
        del heads
