"""A capability of the user's own, in one YAML file: read, and told of every fault by its line.

The items stand in the file itself, or one a line in a JSONL file beside it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator

from editor.capabilities import messages
from editor.capabilities.base import SPLIT_SHARES, split_of
from editor.capabilities.definition_checks import FITS, overlaps, plain, too_few
from editor.errors import FileFaults, UsageError
from editor.records import Item, Record, Split, Turn
from editor.safetensors_header import unique_keys
from editor.strict_yaml import Kind, faults_of, line_of, read_document, read_text

KIND = Kind(
    "a capability file",
    "name: opposites",
    "`editor capabilities new NAME` writes an example with every field",
)
MAX_ITEMS_BYTES = 64_000_000
MAX_CHARS = 100_000
"""Of a prompt, an answer or a choice."""
SHOWN_FAULTS = 20

ScorerName = Literal["logprob", "choice", "exact", "contains", "number", "regex", "words"]
WRITTEN: tuple[ScorerName, ...] = ("exact", "contains", "number", "regex", "words")
"""Scorers of what the model writes; the others are of likelihoods."""

NAME = "[a-z0-9][a-z0-9-]{0,59}"
"""What a capability may be called, as a pattern."""

_Text = Annotated[str, Field(strict=True, max_length=MAX_CHARS)]
_Given = Annotated[str, Field(strict=True, min_length=1, max_length=MAX_CHARS)]
_Flag = Annotated[bool, Field(strict=True)]
_Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
_Drop = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class ItemFields(Record):
    """One question, as a file has it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    prompt: _Given = ""
    """What the model reads."""
    messages: tuple[Turn, ...] = ()
    """In the place of `prompt`: a conversation that the model is to answer."""
    answer: _Text = ""
    """The right answer; for `words` and `regex`, if given, a text that would be right."""
    choices: tuple[_Given, ...] = ()
    """For `choice`: all answers that are offered, the right one among them."""
    pattern: _Text = ""
    """For `regex`: what must be found in the text."""
    key: _Text = ""
    """What it is about: items with one key fall into one split.  By default the prompt."""
    variant: _Text = "own"
    """The form of the question."""
    split: Split | None = None
    """The split, where the file says it; all items must say it then."""
    transfer: _Flag = False
    """Kept out of search and choice: the same ability in another form."""


class Splits(Record):
    """Shares of the items, drawn by hash of their keys."""

    search: _Share = SPLIT_SHARES[0][1]
    choose: _Share = SPLIT_SHARES[1][1]
    test: _Share = SPLIT_SHARES[2][1]

    @model_validator(mode="after")
    def _whole(self) -> Splits:
        total = self.search + self.choose + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"splits: the shares must add up to 1, not {total:g}")
        return self


class Definition(Record):
    """What a capability file says beside its items."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: Annotated[str, Field(strict=True, pattern=f"^{NAME}$")]
    """Small letters, digits and hyphens."""
    summary: _Text = ""
    """What it is, in a sentence."""
    kind: Literal["task", "text"] = "task"
    """A task has right answers and can be removed; a text is a control only: `prompt` begins it and
    `answer` is the rest."""
    scorer: ScorerName = "logprob"
    """How an answer is found right: see docs/capabilities.md."""
    separator: _Text = " "
    """What stands between prompt and answer, unless one of them has space there already."""
    ignore_case: _Flag = True
    """For exact, contains and regex."""
    by_length: _Flag = False
    """For choice: compare log-probability a character."""
    max_new_tokens: Annotated[int, Field(strict=True, ge=1, le=4096)] = 32
    """The most that the model writes."""
    stop: tuple[_Given, ...] = ()
    """A text ends before the first of these."""
    words: tuple[_Given, ...] = ()
    """For words: those that are counted, in any case; several words may be one entry."""
    at_least: Annotated[int, Field(strict=True, ge=1)] = 1
    """For words: how many make a text count."""
    floor: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] | None = None
    """Share of right answers of a model without the capability; by default what giving one and the
    same answer always scores, or guessing, and 0 for regex and words."""
    control_limit: _Drop = 0.05
    """What it may lose as a control: share of right answers, or nats a token for a text."""
    splits: Splits = Splits()
    """Shares of search, choose and test, where items do not say their split."""
    without_template: Annotated[
        Literal["refuse", "plain"], Field(exclude_if=lambda found: found == "refuse")
    ] = "refuse"
    """For messages: what a model without a chat template is asked, nothing or a plain prompt."""
    source: _Text = "the user's own"
    licence: _Text = "not said"


class Located(NamedTuple):
    """An item and where it stands."""

    place: str
    """`file:line`"""
    fields: ItemFields


@dataclass(frozen=True)
class Read:
    """A capability file without faults."""

    definition: Definition
    floor: float
    items: tuple[Item, ...]


def read_definition(path: Path, taken: Sequence[str] = ()) -> Read:
    """Read a capability file and its items.

    Args:
        taken: names that it may not have.

    Raises:
        UsageError: something is wrong; the message has a line for every fault.
    """
    fields, node = read_document(path, KIND)
    faults: list[str] = []
    raw_items = fields.pop("items", None)
    definition, hint = None, ""
    try:
        definition = Definition.model_validate(fields)
    except ValidationError as error:
        lines, hint = faults_of(
            error, str(path), node, KIND.name, (*Definition.model_fields, "items")
        )
        faults += lines
    if definition is not None and definition.name in taken:
        faults.append(f"{path}:{line_of(node, ['name'])}: name: {definition.name} is built in")
    located = _located(path, node, raw_items, faults)
    if definition is not None:
        faults += _misfits(path, node, definition, located)
    if definition is None or faults:
        raise _refusal(faults, hint)
    floor = _floor(definition, located)
    items = tuple(_item(definition, one.fields) for one in located)
    faults += overlaps([one.place for one in located], items)
    faults += too_few(str(path), items, floor if definition.kind == "task" else None)
    if faults:
        raise _refusal(faults, "")
    return Read(definition, floor, items)


def _refusal(faults: Sequence[str], hint: str) -> UsageError:
    shown = list(faults[:SHOWN_FAULTS])
    if len(faults) > SHOWN_FAULTS:
        shown.append(f"and {len(faults) - SHOWN_FAULTS} more")
    return FileFaults(tuple(shown), hint or KIND.hint)


# --- reading the items ---


def _located(path: Path, node: yaml.Node, raw: object, faults: list[str]) -> list[Located]:
    """The items, from the file itself or from the one that it names."""
    at = f"{path}:{line_of(node, ['items']) or 1}: items"
    if isinstance(raw, str):
        try:
            file = _beside(path, raw)
            return list(
                _from_lines(file, read_text(file, "a file of items", MAX_ITEMS_BYTES), faults)
            )
        except UsageError as error:
            faults.append(f"{at}: {error.message}")
            return []
    if isinstance(raw, list):
        given = cast("list[object]", raw)
        lines = [line_of(node, ["items", n]) for n in range(len(given))]
        found = (
            _validated(f"{path}:{line}", one, faults)
            for line, one in zip(lines, given, strict=True)
        )
        return [one for one in found if one is not None]
    what = "nothing" if raw is None else type(raw).__name__
    faults.append(f"{at}: expected a list of items or the name of a JSONL file, found {what}")
    return []


def _beside(path: Path, name: str) -> Path:
    """A file in the folder of the capability file, or below it.

    Raises:
        UsageError: it leads out of there.
    """
    folder = Path(os.path.realpath(path.parent))
    file = Path(os.path.realpath(folder / name))
    if not file.is_relative_to(folder):
        raise UsageError(f"{name} lies outside of the folder of {path.name}")
    if not file.is_file():
        raise UsageError(f"there is no file {name} beside {path.name}")
    return path.parent / name


def _from_lines(file: Path, text: str, faults: list[str]) -> Iterator[Located]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        try:
            values = json.loads(line, parse_constant=_no_constant, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "") or str(error).splitlines()[0]
            faults.append(f"{place}: no JSON: {reason}")
            continue
        found = _validated(place, values, faults)
        if found is not None:
            yield found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _validated(place: str, values: object, faults: list[str]) -> Located | None:
    if not isinstance(values, dict):
        faults.append(f"{place}: expected an item with its fields, found {type(values).__name__}")
        return None
    long = [
        f"{place}: {name} has {len(value):,} characters, the most are {MAX_CHARS:,}"
        for name, value in cast("Mapping[object, Any]", values).items()
        if isinstance(value, str) and len(value) > MAX_CHARS
    ]
    if long:
        faults += long
        return None
    try:
        found = Located(place, ItemFields.model_validate(values))
    except ValidationError as error:
        lines, hint = faults_of(error, place, None, "an item", ItemFields.model_fields)
        faults += [f"{line} ({hint})" if hint and "no field" in line else line for line in lines]
        return None
    wrong = [f"{place}: {why}" for why in messages.faults(found.fields)]
    faults += wrong
    return None if wrong else found


def _misfits(
    path: Path, node: yaml.Node, definition: Definition, located: Sequence[Located]
) -> Iterator[str]:
    """Faults of fields that are right by themselves."""
    scorer = definition.scorer
    at = f"{path}:{line_of(node, ['scorer']) or line_of(node, ['kind']) or 1}"
    if definition.kind == "text" and scorer != "logprob":
        yield f"{at}: scorer: a text is measured by logprob, not by {scorer}"
    if scorer == "words" and not definition.words:
        yield f"{at}: words: must be given for the scorer words"
    if scorer != "words" and definition.words:
        yield f"{path}:{line_of(node, ['words'])}: words: belongs to the scorer words, not {scorer}"
    if definition.kind == "text":
        for one in located:
            if one.fields.messages:
                yield f"{one.place}: messages: belong to a task, a text has a prompt"
    needed = "prompt and answer" if definition.kind == "text" else scorer
    for one in located:
        for why in FITS[scorer](one.fields):
            yield f"{one.place}: {why} (the scorer is {needed})"
        if one.fields.pattern and scorer != "regex":
            yield f"{one.place}: pattern: belongs to the scorer regex, not {scorer}"
        if one.fields.choices and scorer != "choice":
            yield f"{one.place}: choices: belong to the scorer choice, not {scorer}"
    said = [one.place for one in located if one.fields.split is not None]
    if said and len(said) < len(located):
        silent = next(one.place for one in located if one.fields.split is None)
        yield f"{silent}: split: must be given here too, as {said[0]} gives one"


def _floor(definition: Definition, located: Sequence[Located]) -> float:
    """What the file says, else the best of two habits: a choice at random, one answer always."""
    if definition.floor is not None:
        return definition.floor
    asked = [one.fields for one in located if not one.fields.transfer]
    if not asked or definition.scorer in ("regex", "words"):
        return 0.0
    answers = Counter(plain(one.answer) for one in asked)
    most = max(answers.values())
    always = most / len(asked) if most > 1 else 0.0
    by_chance = sum(1 / len(one.choices) for one in asked if one.choices) / len(asked)
    return max(always, by_chance)


def _item(definition: Definition, one: ItemFields) -> Item:
    prompt = one.prompt or messages.plain_form(one.messages)
    key = one.key or plain(prompt)
    shares: list[tuple[Split, float]] = [
        (name, getattr(definition.splits, name)) for name, _ in SPLIT_SHARES
    ]

    def joined(answer: str) -> str:
        apart = prompt[-1:].isspace() or answer[:1].isspace() or not answer
        return answer if apart else definition.separator + answer

    return Item(
        key=key,
        prompt=prompt,
        answer=joined(one.answer),
        variant=one.variant,
        transfer=one.transfer,
        choices=tuple(map(joined, one.choices)),
        check=one.pattern,
        split=one.split or split_of(definition.name, key, shares),
        turns=one.messages,
    )
