"""A capability file -> a `Capability`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from editor.capabilities import judges
from editor.capabilities.base import AnswerLikelihood, Capability, Scorer, TextLikelihood
from editor.capabilities.definition import WRITTEN, Definition, Read, read_definition
from editor.capabilities.scorers import ChoiceLikelihood, Judge, Reference, Written
from editor.capabilities.stable import stable_shuffle


def load(path: Path, taken: Sequence[str] = ()) -> Capability:
    """The capability that a file defines.

    Args:
        taken: names that it may not have.

    Raises:
        UsageError: the file has faults; the message has a line for each.
    """
    found = read_definition(path, taken)
    own = found.definition
    # In an order of their own: a run that takes the first ones gets some of each part of a file.
    items = tuple(stable_shuffle(found.items, own.name, lambda item: item.canonical()))
    return Capability(
        name=own.name,
        summary=own.summary or f"Defined in {path.name}.",
        kind=own.kind,
        floor=found.floor,
        control_limit=own.control_limit,
        source=own.source,
        licence=own.licence,
        make_items=lambda: items,
        scorer=_scorer(own),
        dense=Reference() if own.scorer in WRITTEN else None,
        default_control=False,
        definition=_digest(found),
        plain_messages=own.without_template == "plain",
    )


def _digest(found: Read) -> str:
    texts = [found.definition.canonical(), *(item.canonical() for item in found.items)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _scorer(own: Definition) -> Scorer:
    if own.kind == "text":
        return TextLikelihood()
    if own.scorer == "logprob":
        return AnswerLikelihood()
    if own.scorer == "choice":
        return ChoiceLikelihood(by_length=own.by_length)
    return Written(_judge(own), own.max_new_tokens, own.stop)


def _judge(own: Definition) -> Judge:
    if own.scorer == "exact":
        return judges.exact(ignore_case=own.ignore_case)
    if own.scorer == "contains":
        return judges.contains(ignore_case=own.ignore_case)
    if own.scorer == "number":
        return judges.number
    if own.scorer == "regex":
        return judges.pattern(ignore_case=own.ignore_case)
    return judges.words(own.words, at_least=own.at_least)
