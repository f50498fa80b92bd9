# pyright: standard
"""Workers that are actors of a Ray cluster: on other machines, or on this one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from editor.engine import Job
from editor.errors import ModelError, UsageError, WorkersLost
from editor.fanout import Done, Failed, Holder, Lost, Make, Reply
from editor.store import code_version, computing

LOOK_S = 2.0
"""Seconds between two looks whether the head still answers."""
PATIENCE_S = 20.0
"""How long the head may be silent.  After 60 s Ray ends the process itself, without a word."""

_HELP = "see docs/many-machines.md"

FREED_S = 6.0
"""How long is waited for what others use."""


class Room(NamedTuple):
    """How many workers a cluster takes, and what each gets."""

    workers: int
    cpus: int
    gpus: int

    def __str__(self) -> str:
        each = f"{self.cpus} CPUs" if not self.gpus else f"{self.gpus} GPU"
        return f"{self.workers} workers with {each} each"


class Cluster:
    """`fanout.Hands` on a Ray cluster; an actor is started when it gets its first job."""

    hint = (
        f"is its machine short of memory, or without the editor? {_HELP}; what was measured is kept"
    )

    def __init__(self, address: str, workers: int | None, *, gpu: bool) -> None:
        """Connect.

        Raises:
            UsageError: no cluster answers, or it has no room.
        """
        import ray

        self._ray: Any = ray
        self._owned = not ray.is_initialized()
        if self._owned:
            _connect(ray, address)
        try:
            self.address = _head_of(ray, address)
            self.room = self._settled_room(workers, gpu)
        except BaseException:
            self.close()
            raise
        self.slots: Sequence[int] = range(self.room.workers)
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}
        """Replies that are awaited, and whose they are."""
        self._silent_since: float | None = None
        self._looked = time.monotonic()

    def _settled_room(self, workers: int | None, gpu: bool) -> Room:
        """The room, once what a command before this one used is free again, which takes seconds."""
        until = time.monotonic() + FREED_S
        while True:
            alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            free = self._ray.available_resources()
            late = time.monotonic() > until
            if late or free.get("GPU" if gpu else "CPU", 0) >= _sum(alive)["GPU" if gpu else "CPU"]:
                return room(alive, free, workers, gpu=gpu)
            time.sleep(0.5)

    def give(self, slot: int, make: Make, job: Job) -> None:
        if slot not in self._actors:
            options = {"num_cpus": self.room.cpus, "num_gpus": self.room.gpus, "max_restarts": 0}
            remote = self._ray.remote(Worker).options(**options, scheduling_strategy="SPREAD")
            self._actors[slot] = remote.remote(_versions())
        self._asked[self._actors[slot].reply.remote(make, job)] = slot

    def wait(self) -> list[tuple[int, Reply]]:
        ready: list[Any] = []
        while not ready:
            asked = list(self._asked)
            try:
                ready, _ = self._ray.wait(asked, num_returns=1, timeout=LOOK_S)
                ready, _ = self._ray.wait(asked, num_returns=len(asked), timeout=0)
            except (ConnectionError, RuntimeError) as error:  # of a Ray client without its server
                raise self._gone() from error
            self._look()
        return [(slot, self._hear(ref, slot)) for ref in ready for slot in [self._asked.pop(ref)]]

    def close(self) -> None:
        for actor in getattr(self, "_actors", {}).values():
            with suppress(Exception):  # it may be dead, and so may the cluster
                self._ray.kill(actor)
        if self._owned:
            self._ray.shutdown()

    def _hear(self, ref: Any, slot: int) -> Reply:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            with suppress(Exception):  # most are dead already
                self._ray.kill(self._actors[slot])
            del self._actors[slot]
            return Lost(_words(error))
        except ConnectionError as error:
            raise self._gone() from error

    def _look(self) -> None:
        """Whether the head answers: without it Ray would wait, and then end this process."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        if _answers(self.address):
            self._silent_since = None
            return
        self._silent_since = self._silent_since or now
        if now - self._silent_since > PATIENCE_S:
            raise self._gone()

    def _gone(self) -> WorkersLost:
        return WorkersLost(
            f"the head of the Ray cluster at {self.address} is gone",
            "what was measured is kept: run the same command again once it is back",
        )


class Worker:
    """The actor."""

    def __init__(self, wanted: dict[str, str | None]) -> None:
        found = _versions()
        self._differs = [
            f"{name} {found.get(name)} instead of {version}"
            for name, version in wanted.items()
            if found.get(name) != version
        ]
        self._holder = Holder(0)  # Ray shows an actor its own GPUs only, counted from 0

    def reply(self, make: Make, job: Job) -> Done | Failed:
        """See `Holder.reply`; refused where the packages are others than the command's."""
        if self._differs:
            error = ModelError(
                f"{socket.gethostname()} has {', '.join(self._differs)}",
                "install the same versions on every machine",
            )
            return Failed(error, "")
        return self._holder.reply(make, job)


def room(
    nodes: Sequence[Mapping[str, float]],
    free: Mapping[str, float],
    workers: int | None,
    *,
    gpu: bool,
) -> Room:
    """How to divide a cluster.

    Each worker gets a GPU; or, on CPUs, an equal number of them, which every machine has.  By
    default there are as many as GPUs, or as machines.

    Args:
        nodes: what each machine has.
        free: what nobody uses now, in all.
        workers: how many are wanted.

    Raises:
        UsageError: there is no room for one.
    """
    kind = "GPU" if gpu else "CPU"
    has = [int(node.get(kind, 0)) for node in nodes if node.get(kind, 0) >= 1]
    if not has:
        raise UsageError(f"the Ray cluster has no {kind}", _HELP)
    wanted = workers or (sum(has) if gpu else len(has))
    each = 1 if gpu else max(1, min(*has, sum(has) // wanted))
    fit = min(wanted, sum(n // each for n in has), int(free.get(kind, 0)) // each)
    if not fit:
        raise UsageError(
            f"no {kind} of the Ray cluster is free", "wait for its other jobs, or end them"
        )
    return Room(fit, 1 if gpu else each, 1 if gpu else 0)


def _sum(nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {kind: sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU")}


def _connect(ray: Any, address: str) -> None:
    place = address.removeprefix("ray://")
    if ":" in place and not _answers(place):
        raise UsageError(f"nothing answers at {place}", f"is Ray's head running there? {_HELP}")
    how: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray would tell of this by itself with every worker that goes: it is told here in one line.
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False, **how)
    except Exception as error:
        raise UsageError(f"no Ray cluster at {address!r}: {_words(error)}", _HELP) from error


def _head_of(ray: Any, address: str) -> str:
    if address.startswith("ray://"):
        return address.removeprefix("ray://")
    return str(ray.get_runtime_context().gcs_address)


def _answers(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_S):
            return True
    except (OSError, ValueError):
        return False


def _versions() -> dict[str, str | None]:
    return {**computing(), "editor": code_version()}


def _words(error: BaseException) -> str:
    """One line: what Ray says first, or the error that it quotes last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    last = lines[-1] if "Error" in lines[-1].partition(" ")[0] else lines[0]
    return f"{type(error).__name__}: {last}"
