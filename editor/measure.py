"""Masks and items in, per-item scores out; nothing that the journal holds is measured again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from editor.capabilities.base import (
    Capability,
    Continuation,
    Generation,
    ItemScore,
    Likelihood,
    Outcome,
)
from editor.records import Fill, Head, Item, Mask, Measurement, Scores

GRADIENT_COST = 3
"""Evaluations that a gradient counts as."""
CHUNK_REQUESTS = 512
"""Requests between two journal entries and two progress reports: a few seconds on two cores."""


def as_mask(heads: Sequence[Head]) -> Mask:
    """The heads in the one order in which a set of them is written."""
    return tuple(sorted(heads))


class Maskable(Protocol):
    """What measuring needs of a model."""

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]: ...

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]: ...

    def generate(self, prompts: Sequence[str], mask: Mask, *, max_new_tokens: int) -> list[str]: ...


class Memory(Protocol):
    """What measuring needs of a journal."""

    def get(self, key: str) -> str | None: ...

    def append(self, key: str, value_json: str) -> None: ...


@dataclass(frozen=True)
class Task:
    """A capability with the items that are asked, in their order."""

    capability: Capability
    items: tuple[Item, ...]
    label: str = ""
    """Its name in tables; the capability's when empty."""

    @property
    def name(self) -> str:
        return self.label or self.capability.name

    def digest(self) -> str:
        """sha256 of the items and their order."""
        return hashlib.sha256(
            "\n".join(item.canonical() for item in self.items).encode()
        ).hexdigest()


@dataclass(frozen=True)
class Bench:
    """A model, a journal, and a listener that hears of every finished mask."""

    model: Maskable
    journal: Memory
    on_mask: Callable[[int], None] = lambda n: None
    _asked: dict[str, set[tuple[str, Mask]]] = field(
        default_factory=dict[str, set[tuple[str, Mask]]]
    )

    def evaluations(self, capability: str) -> int:
        """On how many pairs of items and a non-empty mask the capability was scored, each once."""
        return sum(bool(mask) for _, mask in self._asked.get(capability, ()))

    def scores(self, task: Task, masks: Sequence[Mask], *, fill: Fill = "zero") -> list[Scores]:
        """Score the task's items under every mask.

        Args:
            fill: what stands in the place of a head that is out; of a task that lets the model
                write, only zero (`writes`).

        Returns:
            One `Scores` a mask, in order; equal masks are measured once.

        Raises:
            ModelError: the model yields something that is not a number.
        """
        items = task.digest()
        asked = self._asked.setdefault(task.capability.name, set())
        asked.update((items if fill == "zero" else f"{items} {fill}", mask) for mask in masks)
        found: dict[Mask, Scores] = {}
        for mask in masks:
            recorded = self.journal.get(_key(task, items, mask, fill))
            if recorded is not None:
                found[mask] = Measurement.model_validate_json(recorded).scores
        missing = [mask for mask in dict.fromkeys(masks) if mask not in found]
        self.on_mask(sum(mask in found for mask in masks))
        step = max(1, CHUNK_REQUESTS // max(1, len(task.items)))
        for start in range(0, len(missing), step):
            chunk = missing[start : start + step]
            began = time.monotonic()
            for mask, scores in zip(chunk, _score(self.model, task, chunk, fill), strict=True):
                elapsed = (time.monotonic() - began) / len(chunk)
                line = Measurement(
                    mask=mask,
                    task=task.name,
                    items=items,
                    scores=scores,
                    elapsed_s=elapsed,
                    fill=fill if mask else "zero",
                )
                self.journal.append(_key(task, items, mask, fill), line.model_dump_json())
                found[mask] = scores
            self.on_mask(len(chunk))
        return [found[mask] for mask in masks]

    def gradients(self, task: Task, mask: Mask) -> NDArray[np.float64]:
        """What each head's knock-out costs an item to first order, with `mask` out already.

        Returns:
            float64 (n_units,): nats an item.  All 0 where the task has no continuations to score.
        """
        key = f"gradient {_key(task, task.digest(), mask)}"
        asked = self._asked.setdefault(task.capability.name, set())
        # A forward and a backward pass cost about as much as three evaluations.
        asked.update((f"{key} {part}", (*mask, Head(-1, part))) for part in range(GRADIENT_COST))
        recorded = self.journal.get(key)
        if recorded is None:
            requests = [r for item in task.items for r in task.capability.scorer.requests(item)]
            scored = [r for r in requests if isinstance(r, Continuation)]
            recorded = json.dumps(self.model.gradients(scored, mask))
            self.journal.append(key, recorded)
        flat = [effect for layer in json.loads(recorded) for effect in layer]
        return np.asarray(flat, dtype=np.float64) / len(task.items)


def writes(task: Task) -> bool:
    """Whether the model is asked to write something, and not only how likely answers are."""
    requests = (r for item in task.items for r in task.capability.scorer.requests(item))
    return any(isinstance(request, Generation) for request in requests)


def _key(task: Task, items: str, mask: Mask, fill: Fill = "zero") -> str:
    heads = ",".join(map(str, mask))
    # With nothing out there is nothing to fill.
    return f"{task.name} {items[:16]} {heads}" + (f" {fill}" if mask and fill != "zero" else "")


def _score(model: Maskable, task: Task, masks: Sequence[Mask], fill: Fill) -> list[Scores]:
    """One `Scores` a mask: requests of all items at once, outcomes back to their items."""
    scorer = task.capability.scorer
    among = task.capability.answers
    requests = [scorer.requests(item, among) for item in task.items]
    outcomes = _outcomes(model, [r for some in requests for r in some], masks, fill)
    return [_scores_of(task, [len(some) for some in requests], row) for row in outcomes]


def _scores_of(task: Task, counts: Sequence[int], row: Sequence[Outcome]) -> Scores:
    start = 0
    scored: list[ItemScore] = []
    for item, count in zip(task.items, counts, strict=True):
        scored.append(task.capability.scorer.score(item, row[start : start + count]))
        start += count
    return Scores(
        exact=tuple(one.exact for one in scored),
        logprob=tuple(one.logprob for one in scored),
        n_tokens=tuple(one.n_tokens for one in scored),
        form=_all_known(one.form for one in scored),
        first=_all_known(one.first for one in scored),
    )


def _all_known(values: Iterable[float | None]) -> tuple[float, ...] | None:
    """The values, or None where the scorer does not have one for every item."""
    given = tuple(values)
    known = tuple(value for value in given if value is not None)
    return known if len(known) == len(given) else None


def _outcomes(
    model: Maskable,
    requests: Sequence[Continuation | Generation],
    masks: Sequence[Mask],
    fill: Fill,
) -> list[list[Outcome]]:
    """One list a mask, with one outcome a request."""
    scored = [r for r in requests if isinstance(r, Continuation)]
    if fill != "zero" and len(scored) < len(requests):
        raise ValueError(f"what a model writes is only measured with zero, not with {fill}")
    none: list[list[Likelihood]] = [[] for _ in masks]
    likelihoods = model.likelihoods(scored, masks, fill=fill) if scored else none
    out: list[list[Outcome]] = []
    for mask, row in zip(masks, likelihoods, strict=True):
        ready = iter(row)
        out.append(
            [
                next(ready)
                if isinstance(r, Continuation)
                else model.generate([r.prompt], mask, max_new_tokens=r.max_new_tokens)[0]
                for r in requests
            ]
        )
    return out
