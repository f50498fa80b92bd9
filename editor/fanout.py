"""One queue of jobs and several workers: who gets what, and what happens when one dies.

A worker that dies gives its job back and is replaced.  How workers are started and heard is the
matter of `Hands`: processes of this machine (`processes`) or a Ray cluster (`cluster`).
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import NamedTuple, Protocol, cast

from editor.engine import Answer, Engine, Finished, Job, Maskable, do
from editor.errors import WorkersLost

MAX_LOST = 3
"""Workers that may die of one job, and times that one worker may die without having done any."""

Make = Callable[[int], Maskable]
"""Loads the model on the worker of that number.  Hashable, and pickled to get there."""


class Done(NamedTuple):
    """A worker's reply."""

    answer: Answer
    seconds: float


class Failed(NamedTuple):
    """A worker's reply when the job raised."""

    error: Exception
    trace: str


class Lost(NamedTuple):
    """What is heard of a worker that died."""

    how: str


Reply = Done | Failed | Lost


class Hands(Protocol):
    """Starts workers, and carries jobs to them and replies back."""

    hint: str
    """What the user may do when workers die."""

    @property
    def slots(self) -> Sequence[int]:
        """The workers' numbers."""
        ...

    def give(self, slot: int, make: Make, job: Job) -> None:
        """Send a job; the worker is started when there is none, and never waited for."""
        ...

    def wait(self) -> list[tuple[int, Reply]]:
        """Wait for the next replies; a worker that is lost is started again by the next `give`."""
        ...

    def close(self) -> None:
        """End all workers, whatever they do."""
        ...


class Remote(Exception):
    """The traceback of a worker, as the cause of the error that is raised here."""


class Holder:
    """What a worker keeps: the models that it was asked for."""

    def __init__(self, slot: int) -> None:
        self._slot = slot
        self._models: dict[Hashable, Maskable] = {}

    def reply(self, make: Make, job: Job) -> Done | Failed:
        """Do a job, loading its model when it is the first; never raises."""
        try:
            model = self._models.get(make)
            if model is None:
                model = self._models[make] = make(self._slot)
            began = time.monotonic()
            return Done(do(model, job), time.monotonic() - began)
        except Exception as error:
            return Failed(_portable(error), traceback.format_exc())


class Crew:
    """Workers that several engines may share, one at a time."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self._busy: dict[int, tuple[int, int]] = {}
        """By worker, the round and the index of its job."""
        self._round = 0
        self._lost: Counter[int] = Counter()
        """By worker, how often it died since it last replied."""

    @property
    def n_workers(self) -> int:
        """How many workers there are."""
        return len(self._hands.slots)

    def work(self, make: Make, jobs: Sequence[Job]) -> Generator[Finished]:
        """See `Engine.results`.  What an earlier, abandoned round still sends is not looked at."""
        self._round += 1
        this, left = self._round, len(jobs)
        waiting, deaths = deque(range(len(jobs))), Counter[int]()
        while left:
            self._hand_out(make, jobs, waiting)
            finished: list[Finished] = []
            for index, reply in self._replies(this):
                if isinstance(reply, Done):
                    finished.append(Finished(index, *reply))
                elif isinstance(reply, Failed):
                    raise reply.error from Remote(reply.trace)
                else:
                    deaths[index] += 1
                    self._check(deaths[index], jobs[index], reply)
                    waiting.append(index)
            # The listener may take its time; nobody waits for it.
            self._hand_out(make, jobs, waiting)
            for one in finished:
                left -= 1
                yield one
                if self._round != this:
                    raise RuntimeError("these workers were given other jobs meanwhile")

    def close(self) -> None:
        """End the workers."""
        self._hands.close()

    def _hand_out(self, make: Make, jobs: Sequence[Job], waiting: deque[int]) -> None:
        # Those that died last come last: what one of them gave back is for another.
        for slot in sorted(self._hands.slots, key=lambda slot: self._lost[slot]):
            if waiting and slot not in self._busy and self._lost[slot] < MAX_LOST:
                index = waiting.popleft()
                self._busy[slot] = (self._round, index)
                self._hands.give(slot, make, jobs[index])

    def _replies(self, this: int) -> list[tuple[int, Reply]]:
        """Replies to jobs of this round, by index; all that came are taken into the books."""
        found: list[tuple[int, Reply]] = []
        for slot, reply in self._hands.wait():
            self._lost[slot] = self._lost[slot] + 1 if isinstance(reply, Lost) else 0
            number, index = self._busy.pop(slot, (0, 0))
            if number == this:
                found.append((index, reply))
        return found

    def _check(self, deaths: int, job: Job, last: Lost) -> None:
        """Whether to go on after a death."""
        if deaths >= MAX_LOST:
            raise WorkersLost(
                f"{deaths} workers died of one job ({job}), the last was {last.how}",
                self._hands.hint,
            )
        if all(self._lost[slot] >= MAX_LOST for slot in self._hands.slots):
            raise WorkersLost(
                f"every worker died {MAX_LOST} times, the last was {last.how}", self._hands.hint
            )


class FanOut(Engine):
    """Jobs of one model, done by a crew."""

    def __init__(self, crew: Crew, make: Make, *, shared: bool = False) -> None:
        self._crew, self._make, self._shared = crew, make, shared

    def results(self, jobs: Sequence[Job]) -> Generator[Finished]:
        return self._crew.work(self._make, jobs)

    @property
    def n_workers(self) -> int:
        return self._crew.n_workers

    def beside(self, make: Make) -> FanOut:
        """The same workers for another model, which they hold too; closed with this one."""
        return FanOut(self._crew, make, shared=True)

    def close(self) -> None:
        if not self._shared:
            self._crew.close()


def _portable(error: Exception) -> Exception:
    """The error if it survives the way to another process, else one that says the same."""
    try:
        back = cast("object", pickle.loads(pickle.dumps(error)))
        if type(back) is type(error):
            return error
    except Exception:  # whatever its own code raises
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")
