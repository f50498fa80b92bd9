"""What several workers are worth: against threads on a real model, and in the limit.

    .venv/bin/python benchmarks/workers.py            # about 10 minutes on 2 cores
    .venv/bin/python benchmarks/workers.py --quick    # about 3 minutes
    .venv/bin/python benchmarks/workers.py --json

1. SmolLM2-135M, recall, bfloat16 on the CPU: the same masks x items by one process that has all
   cores as threads, and by as many workers as there are cores, each with one thread.  Both have
   their models loaded before the clock starts; the two take turns and the medians are compared.
   One process measures in larger batches, so the last bits differ: how much is shown.
2. Evaluations that sleep 100 ms each: eight workers against one.  What is missing to 8 times is
   the queue, the pipes, the journal on disk, and waiting for the last job.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from editor import capabilities
from editor.capabilities.base import Continuation, Likelihood
from editor.fanout import Crew, FanOut
from editor.measure import Bench, Task
from editor.processes import Processes
from editor.progress import Silent
from editor.records import Fill, Head, Mask, Scores
from editor.session import Options, loaded_bench, open_model
from editor.store import Journal

MODEL = "smollm2-135m"
N_ITEMS, HEADS_A_MASK = 24, 3
EVALUATION_S = 0.1
MANY = 8


class Forgetful:
    """A journal that keeps nothing, so that the same work can be timed again."""

    def get(self, key: str) -> str | None:
        del key

    def append(self, key: str, value_json: str) -> None: ...


@dataclass(frozen=True)
class Sleepy:
    """A model of which each mask takes its time; loads itself."""

    seconds: float = EVALUATION_S

    def __call__(self, slot: int) -> Sleepy:
        return self

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]:
        time.sleep(self.seconds * len(masks))
        return [[Likelihood(-float(len(mask)), 1, 1) for _ in requests] for mask in masks]

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        raise NotImplementedError

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        raise NotImplementedError


def real(n_masks: int, rounds: int) -> dict[str, Any]:
    """Seconds of one process with all threads and of one worker a core."""
    import torch

    cores = os.cpu_count() or 1
    os.environ.pop("OMP_NUM_THREADS", None)
    torch.set_num_threads(cores)
    opened = open_model(MODEL, Options(), Silent())
    capability = capabilities.get("recall")
    task = Task(capability, capability.items("search")[:N_ITEMS])
    rng, heads = np.random.default_rng(0), opened.spec.heads()
    masks = [draw(rng, heads) for _ in range(n_masks)]
    seconds: dict[str, list[float]] = {"threads": [], "workers": []}
    found: dict[str, list[Scores]] = {}
    with ExitStack() as stack:
        benches: dict[str, Bench] = {}
        for name, n in (("threads", 1), ("workers", cores)):
            bench = loaded_bench(opened, "bfloat16", Forgetful(), Options(workers=n), Silent())
            benches[name] = stack.enter_context(closing(bench))
            bench.scores(task, masks)  # loads the models, and records their lower layers
        for _ in range(rounds):
            for name, bench in benches.items():
                began = time.monotonic()
                found[name] = bench.scores(task, masks)
                seconds[name].append(time.monotonic() - began)
    median = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "masks": n_masks,
        "items": N_ITEMS,
        "workers": cores,
        "seconds_one_process": median["threads"],
        "seconds_workers": median["workers"],
        "time_ratio": median["workers"] / median["threads"],
        "mean_difference_nats": float(
            np.mean(
                [
                    np.abs(np.subtract(one.logprob, other.logprob))
                    for one, other in zip(found["threads"], found["workers"], strict=True)
                ]
            )
        ),
    }


def draw(rng: np.random.Generator, heads: Sequence[Head]) -> Mask:
    chosen = rng.choice(len(heads), HEADS_A_MASK, replace=False)
    return tuple(sorted(heads[int(n)] for n in chosen))


def simulated(n_masks: int) -> dict[str, Any]:
    """Seconds of one worker and of eight, with the journal on disk."""
    capability = capabilities.get("recall")
    task = Task(capability, capability.all_items[:N_ITEMS])
    masks: list[Mask] = [(Head(n // 32, n % 32),) for n in range(n_masks)]
    seconds = {n: timed_simulation(task, masks, n) for n in (1, MANY)}
    return {
        "masks": n_masks,
        "evaluation_s": EVALUATION_S,
        "seconds_one": seconds[1],
        f"seconds_{MANY}": seconds[MANY],
        "speedup": seconds[1] / seconds[MANY],
    }


def timed_simulation(task: Task, masks: Sequence[Mask], n: int) -> float:
    warm: list[Mask] = [(Head(1000, k),) for k in range(40 * n)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal.open(Path(folder) / "journal.jsonl") as journal,
        closing(Bench(FanOut(Crew(Processes(n)), Sleepy()), journal)) as bench,
    ):
        bench.scores(task, warm)  # until every worker has been started
        began = time.monotonic()
        bench.scores(task, masks)
        return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer masks and rounds")
    parser.add_argument("--json", action="store_true", help="one object with all figures")
    asked = parser.parse_args()
    found = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "real": real(64, 3) if asked.quick else real(128, 5),
        "simulated": simulated(640 if asked.quick else 1600),
    }
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print(found["machine"])
    for name in ("real", "simulated"):
        print(name)
        for key, value in found[name].items():
            print(f"  {key:26} {value:.2f}" if isinstance(value, float) else f"  {key:26} {value}")


if __name__ == "__main__":
    main()
