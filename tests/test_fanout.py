"""Fan-out: several workers give the numbers of one, also when some of them die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from editor.engine import Ask, Engine, Finished, InProcess, Job, Slopes, do
from editor.errors import CapabilityAbsent, WorkersLost
from editor.fanout import MAX_LOST, Crew, Done, Failed, FanOut, Holder, Lost
from editor.measure import Bench
from editor.processes import Processes
from editor.records import Head, Mask
from planted import HEADS, Memory, PlantedModel, planted_task

A, B = Head(1, 2), Head(4, 0)
EFFECTS = {"recall": {A: 2.0, B: 0.3}}
MASKS: list[Mask] = [(), *((head,) for head in HEADS[:60])]
TASK = planted_task("recall", 128)
N_JOBS = 19  # of 4 masks and, at the end, fewer


class Slow(PlantedModel):
    """Every mask takes its time; some of them are fatal, or a fault."""

    def __init__(self, seconds: float, traps: Traps) -> None:
        super().__init__(EFFECTS)
        self.seconds, self.traps = seconds, traps

    def likelihoods(self, requests: Any, masks: Sequence[Mask], **how: Any) -> Any:
        for mask in masks:
            time.sleep(self.seconds)
            self.traps.spring(mask)
        return super().likelihoods(requests, masks, **how)


@dataclass(frozen=True)
class Traps:
    """What happens to a worker that comes upon a mask."""

    folder: Path | None = None
    deadly: Mask | None = None
    lives: int = 0
    """Workers that it kills; the next one gets by."""
    faulty: Mask | None = None

    def spring(self, mask: Mask) -> None:
        if mask == self.faulty:
            raise CapabilityAbsent("no number", "use another")
        if mask == self.deadly and self.folder is not None:
            for life in range(self.lives):
                try:
                    (self.folder / f"killed-{life}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Planting:
    """Loads a fake model in a worker."""

    seconds: float = 0.0
    traps: Traps = Traps()
    beside: int = 0

    def __call__(self, slot: int) -> Slow:
        return Slow(self.seconds, self.traps)


def expected(masks: Sequence[Mask] = MASKS) -> list[Any]:
    return Bench(PlantedModel(EFFECTS), Memory()).scores(TASK, masks)


@pytest.fixture
def processes() -> Generator[Callable[..., tuple[Bench, Memory, Processes]]]:
    opened: list[Bench] = []

    def make(n: int, planting: Planting) -> tuple[Bench, Memory, Processes]:
        hands, memory = Processes(n), Memory()
        opened.append(Bench(FanOut(Crew(hands), planting), memory))
        return opened[-1], memory, hands

    yield make
    for bench in opened:
        bench.close()


class Scripted:
    """Hands whose workers answer in the order, and with the deaths, that a test says."""

    hint = "look"

    def __init__(self, n: int, deaths: Callable[[int, Job], bool] = lambda slot, job: False):
        self.slots: Sequence[int] = range(n)
        self.holder, self.deaths = Holder(0), deaths
        self.given: list[tuple[int, Any, Job]] = []
        self.n_given = 0

    def give(self, slot: int, make: Any, job: Job) -> None:
        assert slot not in [at for at, _, _ in self.given], "it is busy"
        self.given.append((slot, make, job))
        self.n_given += 1

    def wait(self) -> list[tuple[int, Any]]:
        assert self.given, "nobody works: this would wait for ever"
        slot, make, job = self.given.pop()  # the last first
        return [(slot, Lost("hit") if self.deaths(slot, job) else self.holder.reply(make, job))]

    def close(self) -> None: ...


def scripted(n: int, **how: Any) -> tuple[Bench, Scripted]:
    hands = Scripted(n, **how)
    return Bench(FanOut(Crew(hands), Planting()), Memory()), hands


class TestQueue:
    def test_any_order_and_number_of_workers_gives_the_same(self) -> None:
        for n in (1, 2, 3, 8, 50):
            bench, hands = scripted(n)
            assert bench.scores(TASK, MASKS) == expected()
            assert hands.n_given == N_JOBS if n > 1 else hands.n_given < N_JOBS

    def test_jobs_are_cut_alike_however_many_do_them(self) -> None:
        def cut(n: int) -> set[Job]:
            seen: set[Job] = set()
            engine = FanOut(Crew(Scripted(n)), Planting())

            class Listening(Engine):
                n_workers = engine.n_workers

                def results(self, jobs: Sequence[Job]) -> Generator[Finished]:
                    seen.update(jobs)
                    return engine.results(jobs)

            Bench(Listening(), Memory()).scores(TASK, MASKS)
            return seen

        assert cut(2) == cut(7) and len(cut(2)) == N_JOBS
        assert len(cut(1)) < N_JOBS, "one gets the largest, which are fastest"

    def test_a_lost_job_is_done_by_another(self) -> None:
        died: set[Job] = set()

        def once(_slot: int, job: Job) -> bool:
            deadly = (HEADS[20],) in job[1] or (HEADS[50],) in job[1]
            return deadly and job not in died and not died.add(job)

        bench, hands = scripted(3, deaths=once)
        assert bench.scores(TASK, MASKS) == expected()
        assert hands.n_given == N_JOBS + 2

    def test_a_job_that_kills_ends_the_run_and_is_named(self) -> None:
        bench, hands = scripted(4, deaths=lambda _, job: (A,) in getattr(job, "masks", ()))
        with pytest.raises(WorkersLost, match=r"3 workers died of one job \(128 requests"):
            bench.scores(TASK, MASKS)

    def test_a_worker_that_only_dies_is_given_up_and_the_others_go_on(self) -> None:
        bench, hands = scripted(3, deaths=lambda slot, _: slot == 1)
        assert bench.scores(TASK, MASKS) == expected()
        assert N_JOBS < hands.n_given <= N_JOBS + MAX_LOST

    def test_nobody_left_is_told(self) -> None:
        bench, hands = scripted(2, deaths=lambda *_: True)
        with pytest.raises(WorkersLost):
            bench.scores(TASK, MASKS)
        assert hands.n_given <= 2 * MAX_LOST

    def test_what_an_abandoned_round_sends_is_not_taken_for_another(self) -> None:
        crew = Crew(Scripted(4))
        masks: list[Mask] = [(), (A,), (B,), (A, B)]
        requests = TASK.capability.scorer.requests(TASK.items[0])
        jobs = [Ask(requests, (mask,)) for mask in masks]
        first = crew.work(Planting(), jobs)
        next(first)
        again = list(crew.work(Planting(), list(reversed(jobs))))
        wanted = [do(PlantedModel(EFFECTS), job) for job in reversed(jobs)]
        assert [one.answer for one in sorted(again)] == wanted
        with pytest.raises(RuntimeError, match="other jobs"):
            next(first)

    def test_gradients_and_texts_go_the_same_way(self) -> None:
        bench, hands = scripted(2)
        alone = Bench(PlantedModel(EFFECTS), Memory())
        assert (bench.gradients(TASK, (A,)) == alone.gradients(TASK, (A,))).all()
        assert bench.texts(["recall 1"], (A,), max_new_tokens=3) == ["<script>recall 1 1"]
        assert hands.n_given == 2

    def test_two_models_share_the_workers(self) -> None:
        crew = Crew(Scripted(2))
        first = FanOut(crew, Planting())
        second = first.beside(Planting(beside=1))
        second.close()
        for engine in (first, second):
            assert Bench(engine, Memory()).scores(TASK, MASKS[:9]) == expected(MASKS[:9])

    def test_a_result_that_comes_twice_is_kept_once(self) -> None:
        class Twice(InProcess):
            def results(self, jobs: Sequence[Job]) -> Generator[Finished]:
                for one in super().results(jobs):
                    yield one
                    yield one

        memory = Memory()
        bench = Bench(Twice(PlantedModel(EFFECTS)), memory)
        assert bench.scores(TASK, MASKS) == expected()
        assert len(memory.entries) == len(MASKS)


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} {two}")

    class Breaks(PlantedModel):
        def gradients(self, requests: Any, mask: Mask) -> Any:
            raise Odd(1, 2)

    reply = Holder(0).reply(lambda slot: Breaks(EFFECTS), Slopes((), ()))
    assert isinstance(reply, Failed)
    assert type(reply.error) is RuntimeError and "Odd: 1 2" in str(reply.error)
    assert "in gradients" in reply.trace


def test_the_same_jobs_are_answered_by_a_holder_of_two_models() -> None:
    holder, loaded = Holder(5), list[int]()

    def load(slot: int) -> PlantedModel:
        loaded.append(slot)
        return PlantedModel(EFFECTS)

    for _ in range(3):
        assert isinstance(holder.reply(load, Slopes((), (A,))), Done)
    assert loaded == [5]


class TestProcesses:
    def test_give_the_numbers_of_one(self, processes: Any) -> None:
        bench, memory, hands = processes(2, Planting())
        assert bench.scores(TASK, MASKS) == expected()
        assert len(hands.pids()) == 2 and len(memory.entries) == len(MASKS)

    def test_a_worker_killed_in_the_middle_changes_nothing(
        self, processes: Any, tmp_path: Path
    ) -> None:
        planting = Planting(traps=Traps(tmp_path, deadly=(HEADS[20],), lives=2))
        bench, _, _ = processes(2, planting)
        assert bench.scores(TASK, MASKS) == expected()
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_worker_killed_from_outside_changes_nothing(self, processes: Any) -> None:
        bench, memory, hands = processes(2, Planting(seconds=0.02))
        killed: list[int] = []

        class Kills(Memory):
            def append(self, key: str, value_json: str) -> None:
                super().append(key, value_json)
                if len(self.entries) in (8, 30):
                    killed.append(hands.pids()[0])
                    os.kill(killed[-1], signal.SIGKILL)

        bench = Bench(bench.model, Kills())
        assert bench.scores(TASK, MASKS) == expected()
        assert len(set(killed)) == 2

    def test_a_job_that_kills_three_ends_the_run(self, processes: Any, tmp_path: Path) -> None:
        planting = Planting(traps=Traps(tmp_path, deadly=(HEADS[20],), lives=99))
        bench, memory, _ = processes(2, planting)
        with pytest.raises(WorkersLost, match=r"3 workers died of one job .*killed by SIGKILL"):
            bench.scores(TASK, MASKS)
        assert len(list(tmp_path.iterdir())) == 3
        # What was measured is there, and the same call goes on.
        bench = Bench(PlantedModel(EFFECTS), memory)
        assert bench.scores(TASK, MASKS) == expected()

    def test_a_fault_is_raised_here_with_its_hint(self, processes: Any) -> None:
        bench, _, hands = processes(2, Planting(traps=Traps(faulty=(HEADS[20],))))
        with pytest.raises(CapabilityAbsent, match="no number") as caught:
            bench.scores(TASK, MASKS)
        assert caught.value.hint == "use another"
        assert "in likelihoods" in str(caught.value.__cause__)
        # The workers are there for the next.
        assert bench.scores(TASK, MASKS[:9]) == expected(MASKS[:9])

    def test_close_ends_them_whatever_they_do(self) -> None:
        hands = Processes(2)
        engine = FanOut(Crew(hands), Planting(seconds=60))
        with closing(engine.results([Ask((), ((),)), Ask((), ((A,),))])):
            for slot in range(2):
                hands.give(slot, Planting(seconds=60), Ask(TASK_REQUESTS, ((A,),)))
            pids = hands.pids()
            began = time.monotonic()
            engine.close()
        assert time.monotonic() - began < 5
        assert not any(map(is_alive, pids))


TASK_REQUESTS = TASK.capability.scorer.requests(TASK.items[0])


@pytest.mark.skipif(sys.platform == "win32", reason="kills by signal")
def test_workers_end_with_their_parent_in_the_middle_of_a_job(tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        textwrap.dedent("""
        from test_fanout import *

        if __name__ == "__main__":
            hands = Processes(2)
            for slot in range(2):
                hands.give(slot, Planting(seconds=300), Ask(TASK_REQUESTS, ((A,),)))
            print(*hands.pids(), flush=True)
            hands.wait()
        """)
    )
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, env=where) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
        time.sleep(3)  # until both are at work
        parent.send_signal(signal.SIGINT)  # only the parent hears of it, and a pipe is no terminal
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
