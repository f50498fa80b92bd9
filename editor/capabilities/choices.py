"""Questions with offered answers, out of the rows of data sets: what all of them have in common.

Prompts are those of lm-eval's tasks, to the space, so that scores agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from editor.capabilities.stable import stable_shuffle
from editor.errors import UsageError
from editor.records import Item

LETTERS = tuple("ABCDEFGHIJ")


class Question(NamedTuple):
    """A question in one form."""

    key: str
    """What it is about: see `same_text.same_text_key`."""
    prompt: str
    choices: Sequence[str]
    """As they follow the prompt, without the space that separates them."""
    right: int
    """Index of the right one, from 0."""
    variant: str
    transfer: bool = False


def items_of(
    name: str,
    rows: Iterable[Mapping[str, Any]],
    ask: Callable[[Mapping[str, Any]], Iterable[Question]],
) -> tuple[Item, ...]:
    """The items of a data set, in an order that mixes its parts.

    A question two of whose choices are the same text is left out: none of the two is the right one.

    Args:
        name: of the capability: the order depends on it.
        rows: as the publisher has them.
        ask: the forms in which a row is asked.

    Raises:
        UsageError: a row has no right answer; the message has its number, from 1.
    """
    found: list[Item] = []
    for number, row in enumerate(rows, start=1):
        asked = tuple(ask(row))
        for question in asked:
            _check(question, f"row {number} of the data of {name}")
        if all(len(set(question.choices)) == len(question.choices) for question in asked):
            found += map(_item, asked)
    return tuple(stable_shuffle(found, name, lambda item: f"{item.key} {item.prompt}"))


def index_of(text: str) -> int:
    """A label as an index; -1 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else -1


def _check(question: Question, place: str) -> None:
    if not 0 <= question.right < len(question.choices):
        raise UsageError(f"{place}: the right answer is none of its choices")
    if len(question.choices) < 2 or not all(choice.strip() for choice in question.choices):
        raise UsageError(f"{place}: should have two choices or more, none of them empty")


def _item(question: Question) -> Item:
    choices = tuple(f" {choice}" for choice in question.choices)
    return Item(
        key=question.key,
        prompt=question.prompt,
        answer=choices[question.right],
        choices=choices,
        variant=question.variant,
        transfer=question.transfer,
    )


def lettered(
    key: str, asked: str, choices: Sequence[str], right: int, *, transfer: bool
) -> Question:
    """A question with its choices, a line each, to be answered by the letter of one."""
    letters = LETTERS[: len(choices)]
    shown = "".join(
        f"{letter}. {choice}\n" for letter, choice in zip(letters, choices, strict=False)
    )
    # More choices than letters are told as a fault of the row.
    given = letters if len(letters) == len(choices) and all(map(str.strip, choices)) else ()
    return Question(key, f"{asked}\n{shown}Answer:", given, right, "by-letter", transfer)


class Exam(NamedTuple):
    """A question of an examination, with four answers."""

    subject: str
    question: str
    choices: Sequence[str]
    right: int
    key: str

    def by_text(self, *, transfer: bool = False) -> Question:
        """Asked without its choices, each of which is tried as the answer."""
        prompt = (
            f"The following are questions (with answers) about {self.subject}.\n\n"
            f"Question: {self.question.strip()}\nAnswer:"
        )
        return Question(self.key, prompt, self.choices, self.right, "by-text", transfer)

    def by_letter(self, *, transfer: bool = False) -> Question:
        """Asked with its choices, and answered by the letter of one."""
        said = f"The following are multiple choice questions (with answers) about {self.subject}."
        asked = f"{said}\n\n{self.question.strip()}"
        return lettered(self.key, asked, self.choices, self.right, transfer=transfer)
