"""Jobs for a model, and their results as they are finished: here, or on other processes.

A job says all that its result depends on, whoever does it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from editor.capabilities.base import Continuation, Generation, Likelihood, Outcome, Request
from editor.records import Fill, Mask


class Maskable(Protocol):
    """What measuring needs of a model."""

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]: ...

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]: ...

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> Sequence[Sequence[str | None]]: ...


class Ask(NamedTuple):
    """A job: every request under every mask."""

    requests: tuple[Request, ...]
    masks: tuple[Mask, ...]
    fill: Fill = "zero"

    def __str__(self) -> str:
        more = f" and {len(self.masks) - 1} more" if len(self.masks) > 1 else ""
        return f"{len(self.requests)} requests with {_heads(next(iter(self.masks), ()))} out{more}"


class Slopes(NamedTuple):
    """A job: `Maskable.gradients`."""

    requests: tuple[Continuation, ...]
    mask: Mask

    def __str__(self) -> str:
        return f"the gradients of {len(self.requests)} requests with {_heads(self.mask)} out"


Job = Ask | Slopes
Answer = list[list[Any]]
"""For `Ask` one list a mask, with one outcome a request, None for a text that the model could not
write; for `Slopes` one list a layer."""


class Finished(NamedTuple):
    """A job that was done."""

    number: int
    """Which of the jobs."""
    answer: Answer
    seconds: float


class Engine(ABC):
    """Does jobs."""

    @abstractmethod
    def results(self, jobs: Sequence[Job]) -> Generator[Finished]:
        """Do the jobs; each is yielded once, as soon as it is finished, in any order.

        Raises:
            EditorError: what a job raises, or that nobody is left to do them.
        """

    @property
    def n_workers(self) -> int:
        """How many jobs are done at once."""
        return 1

    def close(self) -> None:  # noqa: B027  there may be nothing to end
        """End what was started; the engine is of no use after it."""


class InProcess(Engine):
    """One job after the other, in this process."""

    def __init__(self, model: Maskable) -> None:
        self._model = model

    def results(self, jobs: Sequence[Job]) -> Generator[Finished]:
        for index, job in enumerate(jobs):
            began = time.monotonic()
            answer = do(self._model, job)
            yield Finished(index, answer, time.monotonic() - began)


def do(model: Maskable, job: Job) -> Answer:
    """What the model answers to a job."""
    if isinstance(job, Slopes):
        return model.gradients(job.requests, job.mask)
    out: list[list[Outcome | None]] = [[""] * len(job.requests) for _ in job.masks]
    scored = {n: r for n, r in enumerate(job.requests) if isinstance(r, Continuation)}
    if scored:
        _place(out, scored, model.likelihoods([*scored.values()], job.masks, fill=job.fill))
    written = {n: r for n, r in enumerate(job.requests) if isinstance(r, Generation)}
    for how in dict.fromkeys(request[1:] for request in written.values()):
        some = {n: r.prompt for n, r in written.items() if r[1:] == how}
        length, stop, templated = how
        texts = model.generate(
            [*some.values()], job.masks, max_new_tokens=length, stop=stop, templated=templated
        )
        _place(out, some, texts)
    return out


def _place(
    out: list[list[Outcome | None]],
    places: Iterable[int],
    found: Sequence[Sequence[Outcome | None]],
) -> None:
    for row, outcomes in zip(out, found, strict=True):
        for place, outcome in zip(places, outcomes, strict=True):
            row[place] = outcome


def _heads(mask: Mask) -> str:
    return ",".join(map(str, mask)) or "nothing"
