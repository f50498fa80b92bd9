"""Recall: the capitals of countries, states and provinces.

The table leaves out places with several capitals, a disputed one, or one that English spells in
two ways, and those whose capital repeats the place's name: there, copying would do for knowing.
"""

from __future__ import annotations

from typing import NamedTuple

from editor.capabilities.base import AnswerLikelihood, Capability
from editor.capabilities.stable import stable_shuffle
from editor.capabilities.table import in_turn, rows
from editor.records import Item


class Place(NamedTuple):
    """One row of `data/capitals.tsv`."""

    name: str
    """As it reads inside a sentence: `the Netherlands`."""
    capital: str
    kind: str
    """country, state, province, region or territory."""


class Phrasing(NamedTuple):
    """A way of asking, after which the capital follows at once."""

    variant: str
    template: str
    """The prompt, with `{place}` or, at the start of a sentence, `{place_s}`."""
    transfer: bool = False

    def prompt(self, name: str) -> str:
        """The question about one place."""
        return self.template.format(place=name, place_s=_possessive(name))


def _possessive(name: str) -> str:
    """`the Bahamas` -> `The Bahamas'`."""
    return name[0].upper() + name[1:] + ("'" if name.endswith("s") else "'s")


PHRASINGS = (
    Phrasing("is", "The capital of {place} is"),
    Phrasing("city-of", "The capital of {place} is the city of"),
    Phrasing("capital-city", "{place_s} capital city is"),
    # The one worked example is not in the table, so that no item's answer is ever shown.
    Phrasing("after-one", "The capital of Portugal is Lisbon. The capital of {place} is"),
    Phrasing("government", "The government of {place} has its seat in the capital,", transfer=True),
    Phrasing(
        "tour", "We toured {place} and ended the trip in its capital, the city of", transfer=True
    ),
)


def places() -> tuple[Place, ...]:
    """The table, in its own order."""
    return tuple(Place(*row) for row in rows("capitals.tsv"))


def _asked(phrasings: tuple[Phrasing, ...]) -> list[Item]:
    """Every place in every phrasing, in turn."""
    # Mixed, because the table goes by kind and the first items would all be countries.
    table = stable_shuffle(places(), "recall", lambda place: place.name)
    return [
        Item(
            key=place.name,
            prompt=phrasing.prompt(place.name),
            answer=f" {place.capital}",
            variant=phrasing.variant,
            transfer=phrasing.transfer,
        )
        for place, phrasing in in_turn(table, phrasings)
    ]


def _items() -> tuple[Item, ...]:
    """All places in all phrasings, the transfer phrasings last."""
    usual = tuple(phrasing for phrasing in PHRASINGS if not phrasing.transfer)
    transfer = tuple(phrasing for phrasing in PHRASINGS if phrasing.transfer)
    return (*_asked(usual), *_asked(transfer))


RECALL = Capability(
    name="recall",
    summary="Naming the capital of a country, state or province.",
    kind="task",
    # No capital occurs twice, so even the best constant answer is right for one place in 350.
    floor=0.0,
    control_limit=0.05,
    source="a table of places and capitals written for this project",
    licence="Apache-2.0",
    make_items=_items,
    scorer=AnswerLikelihood(),
)
