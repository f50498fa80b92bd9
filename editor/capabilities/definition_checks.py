"""Faults of a capability file beyond those of its fields: what does not fit, overlaps, or lacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from editor import stats
from editor.capabilities.base import SPLIT_SHARES
from editor.capabilities.numbers import last_number
from editor.capabilities.patterns import fault_of
from editor.capabilities.same_text import plain
from editor.recipe import FEWEST_ITEMS
from editor.records import Item

MOST_NEEDED = 10_000
"""Items beyond which it is only said that there are too few."""


class Fields(Protocol):
    """What the checks look at of an item, as a file has it."""

    @property
    def answer(self) -> str: ...

    @property
    def choices(self) -> tuple[str, ...]: ...

    @property
    def pattern(self) -> str: ...


def _needs_answer(one: Fields) -> Iterator[str]:
    if not one.answer.strip():
        yield "answer: must be given"


def _needs_choices(one: Fields) -> Iterator[str]:
    if len(set(one.choices)) < 2 or len(set(one.choices)) < len(one.choices):
        yield "choices: expected at least two, all different"
    elif one.answer not in one.choices:
        yield f"answer: expected one of the choices, found {one.answer[:60]!r}"


def _needs_number(one: Fields) -> Iterator[str]:
    if last_number(one.answer) is None:
        yield f"answer: expected a number, found {one.answer[:60]!r}"


def _needs_pattern(one: Fields) -> Iterator[str]:
    if not one.pattern:
        yield "pattern: must be given"
    elif fault := fault_of(one.pattern):
        yield f"pattern: {fault}"


def _nothing(one: Fields) -> Iterator[str]:
    yield from ()


FITS: dict[str, Callable[[Fields], Iterator[str]]] = {
    "logprob": _needs_answer,
    "choice": _needs_choices,
    "exact": _needs_answer,
    "contains": _needs_answer,
    "number": _needs_number,
    "regex": _needs_pattern,
    "words": _nothing,
}


def overlaps(places: Sequence[str], items: Sequence[Item]) -> Iterator[str]:
    """Items that stand twice, and what is in two splits.

    Args:
        places: where each item stands, as `file:line`.
    """
    asked: dict[tuple[str, str], str] = {}
    first: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for place, item in zip(places, items, strict=True):
        text, split = plain(item.prompt), item.split or ""
        same = asked.setdefault((text, item.answer), place)
        if same != place and not item.transfer:
            yield f"{place}: the same item stands at {same}"
        told = False
        for kind, about in (("prompt", text), ("key", item.key)):
            seen = first[kind, about]
            others = [name for name in seen if name != split]
            if split not in seen and others and not told:
                told = True
                where = seen[others[0]]
                overlap = f"split {split} overlaps {others[0]}"
                yield f"{place}: {overlap}: the same {kind} stands at {where}"
            seen.setdefault(split, place)


def too_few(where: str, items: Sequence[Item], floor: float | None) -> Iterator[str]:
    """Splits with fewer items than their purpose needs.

    Args:
        where: the file.
        floor: of a task; None of a text, which has none.
    """
    counts = {
        name: sum(item.split == name and not item.transfer for item in items)
        for name, _ in SPLIT_SHARES
    }
    enough = 0 if floor is None else _fewest_above(floor)
    for name, count in counts.items():
        needed = max(FEWEST_ITEMS, enough if name == "test" else 0)
        if count < needed:
            why = _why(floor, needed)
            yield f"{where}: split {name} has {count} items, at least {needed} are needed{why}"
    looked = counts["search"] + counts["choose"]
    if looked < enough:
        yield (
            f"{where}: search and choose have {looked} items together, at least {enough} are "
            f"needed{_why(floor, enough)}"
        )


def _why(floor: float | None, needed: int) -> str:
    if floor is None or needed <= FEWEST_ITEMS:
        return ""
    return (
        f": with fewer even a model that answers all is not {stats.HEADROOM_ERRORS:g} standard "
        f"errors above the floor {floor:g}"
    )


def _fewest_above(floor: float) -> int:
    """The fewest items of which all right would show the capability."""
    for n in range(1, MOST_NEEDED):
        if stats.above_floor(1.0, floor, n) >= stats.HEADROOM_ERRORS:
            return n
    return MOST_NEEDED
