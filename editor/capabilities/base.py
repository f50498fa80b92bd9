"""What a capability is: items, disjoint splits, a scorer that yields a value per item, a floor."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from editor.records import Item, Split

SPLIT_SHARES: tuple[tuple[Split, float], ...] = (("search", 0.3), ("choose", 0.2), ("test", 0.5))


class Continuation(NamedTuple):
    """A request: how likely is `answer` right after `prompt`?"""

    prompt: str
    answer: str
    among: tuple[str, ...] = ()
    """All answers of the kind, this one included, or () where there is no such class."""
    templated: bool = False
    """A chat template wrote the prompt: it has all special tokens, and gets no more."""


class Likelihood(NamedTuple):
    """What a model says to a `Continuation`."""

    logprob: float
    """Log-probability of the whole answer, in nats."""
    n_greedy: int
    """How many tokens of the answer are the model's most likely next token, given the ones before.
    When all are, greedy decoding from `prompt` yields the answer."""
    n_tokens: int
    form: float | None = None
    """Log-probability, in nats, that some answer of the class begins: of what all of them begin
    with, and then of any token that one of them goes on with.  Whether the model then goes on and
    ends as it should (stop tokens) is not in it.  None without a class, or where it is of one."""
    first: float | None = None
    """Log-probability of the right answer up to that token; `first - form` is that of the right
    one among the answers."""


class Generation(NamedTuple):
    """A request: what does the model write after `prompt`, greedily?"""

    prompt: str
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    """The text ends before the first of these; none of them is the empty one."""
    templated: bool = False
    """As of `Continuation`."""


Request = Continuation | Generation
Outcome = Likelihood | str
"""A `Likelihood` for a `Continuation`, the written text for a `Generation`."""


class ItemScore(NamedTuple):
    """The two forms in which every item is scored."""

    exact: float
    logprob: float
    n_tokens: int
    form: float | None = None
    """`Likelihood.form`, where the item has one."""
    first: float | None = None
    fault: str | None = None
    """What is wrong with the written text (`text_faults.Fault`), "" where nothing is; None where
    none was asked for."""


class Library(Protocol):
    """Where data sets are that are no part of the package."""

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The rows of a data set, with the fields that its publisher gave them.

        Raises:
            UsageError: it is not there; the hint says how to get it.
        """
        ...

    def first(self, names: tuple[str, ...]) -> str:
        """The first of several data sets that is to be had; the name "" is none at all, and is.

        Raises:
            UsageError: none is.
        """
        ...

    def digest(self, name: str) -> str:
        """sha256 of a data set's rows."""
        ...


@dataclass(frozen=True)
class Outside:
    """What from outside of the package a capability may be made of."""

    include_path: Path | None = None
    """A folder with tasks of lm-eval's form, beside its own."""
    trust_remote_code: bool = False
    """Run Python code that such tasks name."""
    offline: bool = False
    """Take data sets from caches only."""
    allow_code_execution: bool = False
    """Run programs that the model writes, contained, where that is how they are judged."""


class Scorer(Protocol):
    """Turns an item into requests to a model, and the outcomes into a score."""

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        """What to ask the model; `among` are all answers of the item's capability."""
        ...

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore: ...


class AnswerLikelihood:
    """One continuation an item: exact when every token of the answer is the greedy one."""

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return (Continuation(item.prompt, item.answer, among),)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        (outcome,) = outcomes
        assert isinstance(outcome, Likelihood)
        exact = float(outcome.n_greedy == outcome.n_tokens)
        return ItemScore(exact, outcome.logprob, outcome.n_tokens, outcome.form, outcome.first)


class TextLikelihood(AnswerLikelihood):
    """One passage an item: exact is the share of its tokens that are the greedy ones."""

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        (outcome,) = outcomes
        assert isinstance(outcome, Likelihood)
        share = outcome.n_greedy / outcome.n_tokens
        return ItemScore(share, outcome.logprob, outcome.n_tokens)


def split_of(
    capability: str, key: str, shares: Sequence[tuple[Split, float]] = SPLIT_SHARES
) -> Split:
    """The split that everything about `key` belongs to, by hash: stable when items are added."""
    digest = hashlib.sha256(f"{capability}\n{key}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    for name, share in shares:
        if position < share:
            return name
        position -= share
    return "test"


@dataclass(frozen=True)
class Capability:
    """Something a model can do, and how to tell."""

    name: str
    summary: str
    kind: Literal["task", "text"]
    """A task has right answers; a text is prose or code whose likelihood is measured."""
    floor: float
    """`exact` of a model without the capability (a task only)."""
    control_limit: float
    """How much it may lose as a control by default: share of items, or nats a token for a text."""
    source: str
    licence: str
    make_items: Callable[..., tuple[Item, ...]]
    """Takes the rows of each set in `data`, in their order."""
    scorer: Scorer
    """What validation uses, and whatever tells whether a model has the capability."""
    dense: Scorer | None = None
    """What search and choice use by default where it is not `scorer`: likelihoods where that one
    has the model write texts, which is slow and says little under a mask that changes nothing."""
    default_control: bool = True
    """Whether a recipe that names no controls keeps it: each further one costs every run time."""
    data: tuple[str | tuple[str, ...], ...] = ()
    """Names of the data sets that the items come from; of several together the first that is to be
    had, where "" stands for doing without."""
    both_forms: str = ""
    """What is lost where an edit takes the usual form and not the transfer form.  Where this is
    said, such an edit has not removed the capability."""
    library: Library | None = None
    """Where those are."""
    definition: str = ""
    """sha256 of what defines it, where that is no part of this version: a file of the user's."""
    plain_messages: bool = True
    """Of items that are messages: whether a model without a chat template may be asked `prompt`."""

    @cached_property
    def all_items(self) -> tuple[Item, ...]:
        """All items in their fixed order.

        Raises:
            UsageError: a data set is not there.
        """
        if self.library is None:
            if self.data:
                raise ValueError(f"{self.name} is made from data sets, and no library was given")
            return self.make_items()
        rows = self.library.rows
        return self.make_items(*(rows(name) if name else () for name in self.data_used))

    @cached_property
    def data_used(self) -> tuple[str, ...]:
        """The names of the data sets that the items do come from, one for each in `data`.

        Raises:
            UsageError: one is not there.
        """
        if self.library is None:
            return ()
        first = self.library.first
        return tuple(first(one if isinstance(one, tuple) else (one,)) for one in self.data)

    @property
    def data_digests(self) -> dict[str, str]:
        """sha256 of the rows of each data set that the items come from, by its name.

        Raises:
            UsageError: one is not there.
        """
        library = self.library
        return (
            {}
            if library is None
            else {name: library.digest(name) for name in self.data_used if name}
        )

    @cached_property
    def answers(self) -> tuple[str, ...]:
        """The different answers of all items, in their order; none for a text."""
        if self.kind == "text":
            return ()
        return tuple(dict.fromkeys(item.answer for item in self.all_items))

    def items(self, split: Split, *, transfer: bool = False) -> tuple[Item, ...]:
        """The items of one split, in their fixed order, with or without the transfer form."""
        return tuple(
            item
            for item in self.all_items
            if item.transfer == transfer and (item.split or split_of(self.name, item.key)) == split
        )
