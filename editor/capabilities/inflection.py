"""Inflection: the past tense of English verbs.

The table leaves out verbs with two past forms, with one that looks like the present, and those
made from another verb of the table, such as `understand` from `stand`.
"""

from __future__ import annotations

from typing import NamedTuple

from editor.capabilities.base import AnswerLikelihood, Capability
from editor.capabilities.stable import stable_shuffle
from editor.capabilities.table import in_turn, rows
from editor.records import Item


class Verb(NamedTuple):
    """One row of `data/verbs.tsv`."""

    present: str
    past: str
    kind: str
    """regular or irregular."""


class Phrasing(NamedTuple):
    """A way of asking, after which the past tense follows at once."""

    variant: str
    template: str
    """One question, with `{verb}` and, before nothing but a full stop, `{past}`."""
    between: str
    """What stands between two questions."""
    transfer: bool = False

    def prompt(self, verb: Verb) -> str:
        """The worked examples, then the question about the verb."""
        shown = [self.template.format(verb=shot, past=past) for shot, past in SHOTS]
        asked = self.template.format(verb=verb.present, past="").removesuffix(".").rstrip()
        return self.between.join([*shown, asked])


SHOTS = (("look", "looked"), ("come", "came"), ("clean", "cleaned"))
"""Worked examples; none is in the table."""

PHRASINGS = (
    Phrasing("today", "Today I {verb}. Yesterday I {past}.", " "),
    Phrasing("yesterday", "Today they {verb}, yesterday they {past}.", "\n"),
    Phrasing("last-week", "They often {verb}, and last week they {past}.", " "),
    Phrasing("wanted", "She wanted to {verb}, so she {past}.", "\n"),
    Phrasing(
        "question",
        "Question: What is the past tense of {verb}? Answer: {past}",
        "\n",
        transfer=True,
    ),
    Phrasing("forms", "Present: {verb}\nPast: {past}", "\n\n", transfer=True),
)


def verbs() -> tuple[Verb, ...]:
    """The table, in its own order."""
    return tuple(Verb(*row) for row in rows("verbs.tsv"))


def _asked(*, transfer: bool) -> list[Item]:
    """Every verb in every phrasing, in turn."""
    # Mixed, because the irregular verbs come first in the table.
    table = stable_shuffle(verbs(), "inflection", lambda verb: verb.present)
    phrasings = [phrasing for phrasing in PHRASINGS if phrasing.transfer == transfer]
    return [
        Item(
            key=verb.present,
            prompt=phrasing.prompt(verb),
            answer=f" {verb.past}",
            variant=phrasing.variant,
            transfer=transfer,
        )
        for verb, phrasing in in_turn(table, phrasings)
    ]


def _items() -> tuple[Item, ...]:
    """All verbs in all phrasings, the transfer phrasings last."""
    return (*_asked(transfer=False), *_asked(transfer=True))


INFLECTION = Capability(
    name="inflection",
    summary="Putting an English verb into the past tense.",
    kind="task",
    # No two verbs share a past form, so the best constant answer is right for one in 192; the
    # present is never right.
    floor=0.0,
    control_limit=0.05,
    source="a table of verbs written for this project",
    licence="Apache-2.0",
    make_items=_items,
    scorer=AnswerLikelihood(),
    default_control=False,
)
