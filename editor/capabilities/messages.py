"""Questions that are conversations: what is wrong with one, and its plain form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from editor.records import Turn

MOST_CHARS = 100_000
"""Of all messages of a conversation together."""
SPEAKERS = {"user": "User", "assistant": "Assistant"}


class Asked(Protocol):
    """What is looked at of an item, as a file has it."""

    @property
    def prompt(self) -> str: ...

    @property
    def messages(self) -> tuple[Turn, ...]: ...


def faults(one: Asked) -> Iterator[str]:
    """What is wrong with an item's question: one of two forms, and the user speaks last."""
    if one.prompt and one.messages:
        yield "prompt and messages: expected one of the two, found both"
    elif not one.prompt and not one.messages:
        yield "prompt: must be given, or messages"
    size = 0
    for number, turn in enumerate(one.messages):
        size += len(turn.content)
        if not turn.content.strip():
            yield f"messages.{number}.content: expected some text, found none"
        if turn.role == "system" and number:
            yield f"messages.{number}.role: system can only be the first"
    if one.messages and one.messages[-1].role != "user":
        yield f"messages: the last must be of user, found {one.messages[-1].role}"
    if size > MOST_CHARS:
        yield f"messages: have {size:,} characters, the most are {MOST_CHARS:,}"


def plain_form(turns: Sequence[Turn]) -> str:
    """A conversation as a text that a model without a chat template can go on with.

    What the system says comes first, as it is; each other message follows its speaker's name, one
    a line, and the last line is the assistant's, for the answer.
    """
    lines = [
        turn.content if turn.role == "system" else f"{SPEAKERS[turn.role]}: {turn.content}"
        for turn in turns
    ]
    return "\n".join([*lines, "Assistant:"])
