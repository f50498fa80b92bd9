"""How right a written text is: plain functions of the text and the item."""

from __future__ import annotations

import re
from collections.abc import Sequence

from editor.capabilities.patterns import found
from editor.capabilities.scorers import Judge
from editor.records import Item

_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_BEFORE_RESULT = re.compile(r".*#### ", re.DOTALL)
_LAST_POINT = re.compile(r"\.$")


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


def last_number(text: str) -> str | None:
    """The last number as it is written, with its sign, commas and point; None where there is none.

    As the filter "flexible-extract" of lm-eval's GSM8K finds it.
    """
    found = [match[1] or match[2] for match in _NUMBER.finditer(text)]
    return found[-1].strip() if found else None


def same_number(text: str, answer: str) -> bool:
    """Whether the last number of a text is the result of an answer, which may follow `#### `.

    Compared as lm-eval's GSM8K does: as written, without commas, dollar signs and a last point.
    """
    found = last_number(text)
    return found is not None and _bare(found) == _bare(answer)


def _bare(text: str) -> str:
    result = _BEFORE_RESULT.sub("", text.replace(",", "").replace("$", ""))
    return _LAST_POINT.sub("", result).lower()


def _folded(text: str, ignore_case: bool) -> str:
    return text.strip().casefold() if ignore_case else text.strip()
