"""Coreference: of two people, who it was that the other one gave something to.

Each scene has two people, a place and a thing of its own, so that splits share nothing but frames.
"""

from __future__ import annotations

from typing import NamedTuple

from editor.capabilities.base import AnswerLikelihood, Capability
from editor.capabilities.stable import stable_number, stable_shuffle
from editor.capabilities.table import in_turn, rows
from editor.records import Item


class Scene(NamedTuple):
    """One row of `data/scenes.tsv`."""

    first: str
    second: str
    place: str
    """With its article: `the bakery`."""
    thing: str
    """With its article: `a cake`."""


class Frame(NamedTuple):
    """A sentence about a scene, up to the name of the one who did nothing yet."""

    variant: str
    template: str
    transfer: bool = False


class Way(NamedTuple):
    """A frame, and which of the two the answer is."""

    frame: Frame
    answer_is_first: bool


FRAMES = (
    Frame("went", "When {a} and {b} went to {place}, {actor} gave {thing} to"),
    Frame("arrived", "After {a} and {b} arrived at {place}, {actor} handed {thing} to"),
    Frame("working", "While {a} and {b} were working at {place}, {actor} passed {thing} to"),
    Frame("met", "One afternoon {a} and {b} met at {place}, and {actor} offered {thing} to"),
    Frame(
        "turns",
        "At {place}, {a} and {b} took turns with {thing}. {actor} had it first, "
        "and then it was the turn of",
        transfer=True,
    ),
)


def scenes() -> tuple[Scene, ...]:
    """The table, in its own order."""
    return tuple(Scene(*row) for row in rows("scenes.tsv"))


def _ways(*, transfer: bool) -> list[Way]:
    """The frames, once with each answer; neighbours differ in both frame and answer."""
    frames = [frame for frame in FRAMES if frame.transfer == transfer]
    return [
        Way(frame, bool((index + half) % 2))
        for half in range(2)
        for index, frame in enumerate(frames)
    ]


def _item(scene: Scene, way: Way) -> Item:
    """One sentence; whether its answer is named first or second depends on a hash."""
    pair = (scene.first, scene.second)
    actor, answer = reversed(pair) if way.answer_is_first else pair
    # A scene has each frame twice: once with either answer, both times with the same one leading.
    leads = stable_number(f"{way.frame.variant} {' '.join(pair)}") % 2
    a, b = (pair[1], pair[0]) if leads else pair
    prompt = way.frame.template.format(a=a, b=b, actor=actor, place=scene.place, thing=scene.thing)
    return Item(
        key=" and ".join(pair),
        prompt=prompt,
        answer=f" {answer}",
        variant=way.frame.variant,
        transfer=way.frame.transfer,
    )


def _items() -> tuple[Item, ...]:
    """All scenes in all ways, the transfer frames last."""
    table = stable_shuffle(scenes(), "coreference", lambda scene: scene.first)
    return tuple(
        _item(scene, way)
        for transfer in (False, True)
        for scene, way in in_turn(table, _ways(transfer=transfer))
    )


COREFERENCE = Capability(
    name="coreference",
    summary="Telling which of two people received what the other one gave.",
    kind="task",
    # Either name, without regard to who acts.  The first name is right as often as the second.
    floor=0.5,
    control_limit=0.05,
    source="scenes written for this project",
    licence="Apache-2.0",
    make_items=_items,
    scorer=AnswerLikelihood(),
    default_control=False,
)
