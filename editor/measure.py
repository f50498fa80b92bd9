"""Masks and items in, per-item scores out; nothing that the journal holds is measured again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from editor.capabilities.base import (
    Capability,
    Continuation,
    Generation,
    ItemScore,
    Outcome,
    Request,
    Scorer,
)
from editor.chat import after_thinking
from editor.engine import Ask, Engine, InProcess, Job, Maskable, Slopes
from editor.errors import CapabilityAbsent, UsageError
from editor.interrupts import finishing
from editor.records import Fill, Head, Item, Mask, Measurement, Scores

T = TypeVar("T")

N_TRIES = 10
"""Candidates that the choice tries at once."""
MORE_TIME = "give more with --max-hours: what was measured is kept, and the same command goes on"
GRADIENT_COST = 3
"""Evaluations that a gradient counts as."""
CHUNK_REQUESTS = 512
"""Requests between two journal entries and two progress reports: a few seconds on two cores."""


def as_mask(heads: Sequence[Head]) -> Mask:
    """The heads in the one order in which a set of them is written."""
    return tuple(sorted(heads))


class Memory(Protocol):
    """What measuring needs of a journal."""

    def get(self, key: str) -> str | None: ...

    def place(self, key: str) -> str: ...

    def append(self, key: str, value_json: str) -> None: ...


@dataclass(frozen=True)
class Task:
    """A capability with the items that are asked, in their order."""

    capability: Capability
    items: tuple[Item, ...]
    label: str = ""
    """Its name in tables; the capability's when empty."""
    dense: bool = False
    """Asked by the capability's dense scorer, where it has one."""

    @property
    def name(self) -> str:
        return self.label or self.capability.name

    @property
    def scorer(self) -> Scorer:
        """How the items are asked and scored."""
        dense = self.capability.dense if self.dense else None
        return dense or self.capability.scorer

    def requests(self) -> list[tuple[Request, ...]]:
        """What is asked of a model; by item."""
        return [
            tuple(
                # An item keeps its messages only where a chat template wrote its prompt.
                request._replace(templated=True) if item.turns else request
                for request in self.scorer.requests(item, self.capability.answers)
            )
            for item in self.items
        ]

    def slopes(self) -> tuple[Continuation, ...]:
        """What a gradient follows: the right answers, as far as their likelihood is asked."""
        asked = zip(self.items, self.requests(), strict=True)
        return tuple(
            request
            for item, requests in asked
            for request in requests
            if isinstance(request, Continuation)
            and (not item.choices or request.answer == item.answer)
        )

    def digest(self) -> str:
        """sha256 of the items and their order."""
        return hashlib.sha256(
            "\n".join(item.canonical() for item in self.items).encode()
        ).hexdigest()


@dataclass(frozen=True)
class Bench:
    """A model, a journal, and a listener that hears of every finished mask.

    The journal is written here and nowhere else, whoever did the measuring.
    """

    model: Maskable | Engine
    journal: Memory
    on_mask: Callable[[int], None] = lambda n: None
    on_tokens: Callable[[int], None] = lambda n: None
    """Hears of the tokens of the masks that `on_mask` tells of next."""
    on_note: Callable[[str], None] = lambda line: None
    """Hears what people should know of the measuring, a line each."""
    count: Callable[[Sequence[Request]], int] = lambda requests: 0
    """Tokens of requests; 0 where nobody wants to know."""
    _asked: dict[str, set[tuple[str, Mask]]] = field(
        default_factory=dict[str, set[tuple[str, Mask]]]
    )

    def evaluations(self, capability: str) -> int:
        """On how many pairs of items and a non-empty mask the capability was scored, each once."""
        return sum(bool(mask) for _, mask in self._asked.get(capability, ()))

    def scores(self, task: Task, masks: Sequence[Mask], *, fill: Fill = "zero") -> list[Scores]:
        """`measured`, where every mask must yield numbers.

        Raises:
            CapabilityAbsent: one does not; all are in the journal by then.
        """
        found = self.measured(task, masks, fill=fill)
        for mask, scores in zip(masks, found, strict=True):
            if scores is None:
                raise CapabilityAbsent(
                    f"a score of {task.name} is not a finite number without "
                    f"{', '.join(map(str, mask))}",
                    "its dtype may overflow without them: try --dtype float32",
                )
        return [scores for scores in found if scores is not None]

    def measured(
        self,
        task: Task,
        masks: Sequence[Mask],
        *,
        fill: Fill = "zero",
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> list[Scores | None]:
        """Score the task's items under every mask.

        Args:
            fill: what stands in the place of a head that is out; of a task that lets the model
                write, only zero (`writes`).
            out_of_time: whether to measure no more; asked between two journal entries.

        Returns:
            One `Scores` a mask, in order, once the time is up only of the first.  None stands where
            one of its scores is not a number; equal masks are measured once.

        Raises:
            ModelError: the model yields something that is not a number with nothing knocked out.
            UsageError: the journal holds something else than scores.
        """
        items = task.digest()
        asked = self._asked.setdefault(task.capability.name, set())
        asked.update((items if fill == "zero" else f"{items} {fill}", mask) for mask in masks)
        found: dict[Mask, Scores | None] = {}
        for mask in masks:
            key = _key(task, items, mask, fill)
            recorded = self.journal.get(key)
            if recorded is not None:
                found[mask] = self._read(key, recorded, mask, len(task.items))
        missing = {mask for mask in masks if mask not in found}
        self.on_mask(sum(mask in found for mask in masks))
        if missing:
            found |= self._measured(task, items, masks, missing, fill, out_of_time)
        return [found[mask] for mask in takewhile(found.__contains__, masks)]

    def gradients(self, task: Task, mask: Mask) -> NDArray[np.float64]:
        """What each head's knock-out costs an item to first order, with `mask` out already.

        Returns:
            float64 (n_units,): nats an item.  All 0 where the task has no continuations to score,
            and, said aloud, where one of them is no number.
        """
        key = f"gradient {_key(task, task.digest(), mask)}"
        asked = self._asked.setdefault(task.capability.name, set())
        # A forward and a backward pass cost about as much as three evaluations.
        asked.update((f"{key} {part}", (*mask, Head(-1, part))) for part in range(GRADIENT_COST))
        recorded = self.journal.get(key)
        if recorded is None:
            job = Slopes(task.slopes(), mask)
            with finishing(), closing(self._engine.results([job])) as results:
                layers: list[list[float]] = next(results).answer
                told = all(math.isfinite(effect) for layer in layers for effect in layer)
                kept = layers if told else [[None] * len(layer) for layer in layers]
                recorded = json.dumps(kept)
                self.journal.append(key, recorded)
        try:
            flat = [
                None if one is None else float(one) for at in json.loads(recorded) for one in at
            ]
        except (TypeError, ValueError) as error:
            raise self._unfit(key, "an effect a head") from error
        if None in flat:
            without = f" without {', '.join(map(str, mask))}" if mask else ""
            self.on_note(
                f"the gradient of {task.name}{without} is not a finite number: the search goes on "
                "as with --prior none"
            )
            return np.zeros(len(flat))
        return np.asarray(flat, dtype=np.float64) / len(task.items)

    def written(self, task: Task) -> list[str]:
        """What the model as it is writes for each item of a task that lets it write."""
        key = f"written {_key(task, task.digest(), ())}"
        recorded = self.journal.get(key)
        if recorded is None:
            asked = [
                next((r for r in requests if isinstance(r, Generation)), None)
                for requests in task.requests()
            ]
            requests = tuple(request for request in asked if request is not None)
            if len(requests) < len(task.items):
                raise ValueError(f"{task.name} has items without an answer that ask for no text")
            with finishing(), closing(self._engine.results([Ask(requests, ((),))])) as results:
                (row,) = next(results).answer
                recorded = json.dumps(
                    [str(_to_judge(item, text)) for item, text in zip(task.items, row, strict=True)]
                )
                self.journal.append(key, recorded)
        texts: Any = json.loads(recorded)
        found = cast("list[Any]", texts) if isinstance(texts, list) else []
        if len(found) != len(task.items) or not all(isinstance(one, str) for one in found):
            raise self._unfit(key, f"{len(task.items)} texts")
        return found

    def texts(
        self,
        prompts: Sequence[str],
        mask: Mask,
        *,
        max_new_tokens: int,
        templated: Sequence[bool] | None = None,
    ) -> list[str]:
        """What the model writes after each prompt; not kept in the journal.

        Args:
            templated: by prompt, whether a chat template wrote it; by default none of them.
        """
        ready = [False] * len(prompts) if templated is None else templated
        requests = tuple(
            Generation(prompt, max_new_tokens, templated=one)
            for prompt, one in zip(prompts, ready, strict=True)
        )
        with closing(self._engine.results([Ask(requests, (mask,))])) as results:
            (row,) = next(results).answer
        return [str(text) for text in row]

    def close(self) -> None:
        """End the engine, where it is more than a model."""
        self._engine.close()

    @cached_property
    def _engine(self) -> Engine:
        return self.model if isinstance(self.model, Engine) else InProcess(self.model)

    def _measured(
        self,
        task: Task,
        items: str,
        masks: Sequence[Mask],
        missing: Set[Mask],
        fill: Fill,
        out_of_time: Callable[[], bool],
    ) -> dict[Mask, Scores | None]:
        """Measure what is missing, and keep each in the journal once it is known, in any order."""
        asked = task.requests()
        requests = tuple(chain(*asked))
        if fill != "zero" and any(isinstance(request, Generation) for request in requests):
            raise ValueError(f"what a model writes is only measured with zero, not with {fill}")
        parts = _parts(masks, len(task.items), self._engine.n_workers)
        chunks = [tuple(m for m in part if m in missing) for part in parts]
        chunks = [chunk for chunk in chunks if chunk]
        jobs: list[Job] = [Ask(requests, chunk, fill) for chunk in chunks]
        n_tokens = self.count(requests)
        found: dict[Mask, Scores | None] = {}
        with closing(self._engine.results(jobs)) as results:
            first = chunks[0][0]
            while len(found) < len(missing) and not (first in found and out_of_time()):
                with finishing():
                    index, answer, seconds = next(results)
                    chunk = chunks[index]
                    for mask, row in zip(chunk, answer, strict=True):
                        found[mask] = _scores_of(task, [len(some) for some in asked], row)
                        line = Measurement(
                            mask=mask,
                            task=task.name,
                            items=items,
                            scores=found[mask],
                            elapsed_s=seconds / len(chunk),
                            fill=fill if mask else "zero",
                        )
                        self._keep(_key(task, items, mask, fill), line.model_dump_json())
                self.on_tokens(n_tokens * len(chunk))
                self.on_mask(len(chunk))
        return found

    def _read(self, key: str, recorded: str, mask: Mask, n_items: int) -> Scores | None:
        """The scores of a journal entry.

        Raises:
            UsageError: it holds something else, or those of another mask or of other items.
        """
        try:
            entry = Measurement.model_validate_json(recorded)
            fits = entry.mask == mask and (entry.scores is None or entry.scores.fits(n_items))
        except ValidationError:
            entry, fits = None, False
        if entry is None or not fits:
            raise self._unfit(key, f"{n_items} scores of one mask")
        return entry.scores

    def _unfit(self, key: str, expected: str) -> UsageError:
        return UsageError(
            f"{self.journal.place(key)}: expected {expected}, found something else",
            "restore the file, or start anew with --new-run",
        )

    def _keep(self, key: str, value_json: str) -> None:
        # A job that was given back may have been done after all: the first result stands.
        if self.journal.get(key) is None:
            self.journal.append(key, value_json)


def writes(task: Task) -> bool:
    """Whether the model is asked to write something, and not only how likely answers are."""
    return any(isinstance(request, Generation) for request in chain(*task.requests()))


def _parts(masks: Sequence[Mask], n_items: int, n_workers: int) -> Iterator[list[Mask]]:
    """The masks as they are measured together: by how many are asked for and who measures.

    What the journal has already only leaves gaps, so that a resumed run computes as an undisturbed
    one.  One worker gets as many as it may, which is fastest; several get smaller and smaller
    parts, so that they end at about the same time, however many they are.
    """
    left = list(dict.fromkeys(masks))
    most = max(1, CHUNK_REQUESTS // max(1, n_items))
    least = most if n_workers == 1 else max(1, most // 3)
    while left:
        size = min(most, max(least, -(-len(left) // 4)))
        if len(left) - size < least / 2 and n_workers > 1:
            size = len(left)
        yield left[:size]
        left = left[size:]


def _key(task: Task, items: str, mask: Mask, fill: Fill = "zero") -> str:
    heads = ",".join(map(str, mask))
    # With nothing out there is nothing to fill.
    form = " dense" if task.scorer is not task.capability.scorer else ""
    filled = f" {fill}" if mask and fill != "zero" else ""
    return f"{task.name}{form} {items[:16]} {heads}{filled}"


def _scores_of(task: Task, counts: Sequence[int], found: Sequence[Outcome | None]) -> Scores | None:
    row = [outcome for outcome in found if outcome is not None]
    if len(row) < len(found):
        return None
    start = 0
    scored: list[ItemScore] = []
    for item, count in zip(task.items, counts, strict=True):
        outcomes = [_to_judge(item, outcome) for outcome in row[start : start + count]]
        scored.append(task.scorer.score(item, outcomes))
        start += count
    if not all(math.isfinite(one.exact) and math.isfinite(one.logprob) for one in scored):
        return None
    return Scores(
        exact=tuple(one.exact for one in scored),
        logprob=tuple(one.logprob for one in scored),
        n_tokens=tuple(one.n_tokens for one in scored),
        form=_all_known(one.form for one in scored),
        first=_all_known(one.first for one in scored),
        faults=_all_known(one.fault for one in scored),
    )


def _to_judge(item: Item, outcome: Outcome) -> Outcome:
    """The outcome, of a text that answers messages without what the model thinks before."""
    return after_thinking(outcome) if item.turns and isinstance(outcome, str) else outcome


def _all_known(values: Iterable[T | None]) -> tuple[T, ...] | None:
    """The values, or None where the scorer does not have one for every item."""
    given = tuple(values)
    known = tuple(value for value in given if value is not None)
    return known if len(known) == len(given) else None
