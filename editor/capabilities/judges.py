"""How right a written text is: plain functions of the text and the item."""

from __future__ import annotations

import re
from collections.abc import Sequence

from editor.capabilities.numbers import last_number, same_number
from editor.capabilities.patterns import found
from editor.capabilities.scorers import Judge
from editor.records import Item


def exact(*, ignore_case: bool) -> Judge:
    """The text is the item's answer, up to space around it."""

    def judge(text: str, item: Item) -> float:
        return float(_folded(text, ignore_case) == _folded(item.answer, ignore_case))

    return judge


def contains(*, ignore_case: bool) -> Judge:
    """The text contains the item's answer as whole words."""

    def judge(text: str, item: Item) -> float:
        wanted, found = (_folded(one, ignore_case) for one in (item.answer, text))
        return float(re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", found) is not None)

    return judge


def number(text: str, item: Item) -> float:
    """The last number in the text is the last in the item's answer."""
    return float(same_number(text, last_number(item.answer) or item.answer))


def pattern(*, ignore_case: bool) -> Judge:
    """The item's `check`, a regular expression, is found in the text.

    Raises:
        UsageError: when judging, the search took too long.
    """

    def judge(text: str, item: Item) -> float:
        return float(found(item.check, text, ignore_case=ignore_case))

    return judge


def words(entries: Sequence[str], *, at_least: int) -> Judge:
    """The text has so many of the words, each counted as often as it stands there, in any case."""
    # The longest first, so that an entry of two words is not taken for its first.
    ordered = sorted({" ".join(_folded(one, True).split()) for one in entries}, key=len)[::-1]
    parts = (r"\s+".join(map(re.escape, one.split())) for one in ordered)
    any_of = re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)")

    def judge(text: str, item: Item) -> float:
        return float(sum(1 for _ in any_of.finditer(text.casefold())) >= at_least)

    return judge


def _folded(text: str, ignore_case: bool) -> str:
    return text.strip().casefold() if ignore_case else text.strip()
