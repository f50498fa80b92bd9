"""Tables that come with the package, and the order in which their rows are asked."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import TypeVar

E = TypeVar("E")
W = TypeVar("W")


def rows(name: str) -> list[list[str]]:
    """The rows of `data/<name>` in their own order, without the heading."""
    text = files("editor.capabilities").joinpath(f"data/{name}").read_text(encoding="utf-8")
    # QUOTE_NONE: an apostrophe or a quotation mark in a name is only a character.
    return list(csv.reader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))[1:]


def in_turn(entries: Sequence[E], ways: Sequence[W]) -> Iterator[tuple[E, W]]:
    """Every entry with every way of asking, so that the first n are n entries, ways mixed.

    The order goes round by round through all entries; each round, an entry moves to its next way.
    Hence a run that takes only some items loses ways of asking about an entry, not entries.
    """
    for turn in range(len(ways)):
        for index, entry in enumerate(entries):
            yield entry, ways[(index + turn) % len(ways)]
