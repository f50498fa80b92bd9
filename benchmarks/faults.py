"""Interrupt a run in every way that we know, go on, and compare with the undisturbed run.

    .venv/bin/python benchmarks/faults.py            # 50 random faults, about 6 minutes on 2 cores
    .venv/bin/python benchmarks/faults.py --quick    # one of each kind
    .venv/bin/python benchmarks/faults.py --json

A run is a whole `editor remove` of a small model in a process of its own, with a real journal.
After each fault the same run is started again; its estimate, its editor.json (times left out) and
its weight files must be those of the undisturbed run, bit for bit.

    kill     kill -9 at a random moment
    cut      a journal that ends at a random byte
    line     a bad line in the middle: refused with file and line, then restored
    disk     a disk of a random size that is full (a tmpfs; without the right to mount, as `limit`)
    limit    files that may not grow beyond a random size
    clock    the clock set back by a year in the middle, then kill -9
    memory   out of memory, once
    second   a second process on the same run: refused, and the first goes on
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[0:1] = [str(ROOT), str(ROOT / "tests")]  # the tests make the model, and have a faults.py
if __name__ == "__main__":  # who only imports this keeps all threads
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork copies one thread

KINDS = ("kill", "cut", "line", "disk", "limit", "clock", "memory", "second")
N_FAULTS = 50
MANY_BYTES = 64 << 20
YEAR = timedelta(days=365)
Effect = Callable[[], None]


class Outcome(NamedTuple):
    """How a process ended."""

    ended: str
    """`done`, `killed`, or the name of an error."""
    said: str = ""


class Place(NamedTuple):
    """The folders of one run."""

    base: Path

    @property
    def runs(self) -> Path:
        return self.base / "runs"

    @property
    def run(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    @property
    def output(self) -> Path:
        return self.base / "edited"


class Bed:
    """A small model, and the run of it that nobody disturbed."""

    def __init__(self, folder: Path) -> None:
        import torch
        import transformers

        from editor import capabilities, pipeline  # noqa: F401  children find them loaded
        from tiny import save_wired

        torch.set_num_threads(1)
        transformers.utils.logging.disable_progress_bar()
        self.folder = folder
        self.wired = save_wired(folder / "wired")
        capabilities.get = self.wired.get  # pyright: ignore[reportAttributeAccessIssue]
        capabilities.names = lambda: tuple(self.wired.capabilities)
        self.reference = Place(folder / "reference")
        self.reference.base.mkdir()
        began = time.monotonic()
        first = self.process(self.reference)
        self.seconds = time.monotonic() - began
        if first.ended != "done":
            raise SystemExit(f"the undisturbed run failed: {first}")
        self.result = result_of(self.reference)

    def process(
        self, place: Place, before: Effect = lambda: None, meanwhile: Callable[[int], None] = id
    ) -> Outcome:
        """`editor remove` in a process of its own.

        Args:
            before: done in that process before it begins.
            meanwhile: called here with its id once it has begun.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            outcome = self._remove(place, before)
            os.write(writing, json.dumps(outcome).encode()[:60_000])
            os._exit(0)
        os.close(writing)
        meanwhile(child)
        with os.fdopen(reading, "rb") as stream:
            said = stream.read()
        os.waitpid(child, 0)
        return Outcome(*json.loads(said)) if said else Outcome("killed")

    def _remove(self, place: Place, before: Effect) -> Outcome:
        from editor import pipeline
        from editor.progress import Silent
        from editor.recipe import Recipe
        from editor.session import Options

        options = Options(runs=place.runs, cache=place.base / "cache", offline=True, force=True)
        recipe = Recipe(
            model=str(self.wired.folder),
            capability="naming",
            search_items=8,
            choose_items=10,
            test_items=20,
        )
        try:
            before()
            pipeline.remove(recipe, place.output, options, Silent())
        except BaseException as error:
            return Outcome(type(error).__name__, str(error)[:500])
        return Outcome("done")

    def new_place(self, kind: str) -> Place:
        return Place(Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=self.folder)))

    def copied_place(self, kind: str) -> Place:
        """A copy of the undisturbed run that has not found anything yet: it measures again."""
        place = self.new_place(kind)
        shutil.copytree(self.reference.base, place.base, dirs_exist_ok=True)
        shutil.rmtree(place.output)
        shutil.rmtree(place.base / "cache" / "universal")
        (place.run / "estimate.json").unlink()
        return place


def result_of(place: Place) -> dict[str, Any]:
    """All that a run found and wrote, without times and the folder's name."""
    estimate = json.loads((place.run / "estimate.json").read_text("utf-8"))
    estimate["run"] = ""
    estimate["universal"]["elapsed_s"] = 0
    manifest = json.loads((place.output / "editor.json").read_text("utf-8"))
    del manifest["times"]
    weights = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.output.glob("*.safetensors"))
    }
    return {"estimate": estimate, "manifest": manifest, "weights": weights}


def killed_after(seconds: float) -> Callable[[int], None]:
    def kill(child: int) -> None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)

    return kill


def kill(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place, at = bed.new_place("kill"), rng.uniform(0, 1.1 * bed.seconds)
    found = bed.process(place, meanwhile=killed_after(at))
    return place, f"{found.ended} at {at:.2f} s"


def cut(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place = bed.copied_place("cut")
    file = rng.choice(sorted(place.run.glob("*.jsonl")))
    at = rng.randrange(file.stat().st_size)
    os.truncate(file, at)
    return place, f"{file.name} cut at byte {at}"


def line(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place = bed.copied_place("line")
    file = place.run / "journal.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    at = rng.randrange(len(lines) - 1)
    bad = [b"\0" * 40 + b"\n", b"\n", lines[at][: len(lines[at]) // 2] + b"\n", b"[]\n"]
    lines[at] = rng.choice(bad)
    file.write_bytes(b"".join(lines))
    found = bed.process(place)
    named = f"journal.jsonl:{at + 1}:"
    if found.ended != "UsageError" or named not in found.said:
        raise Failed(f"expected a refusal that names {named}, found {found}")
    file.write_bytes(whole)
    return place, f"refused at line {at + 1}"


def disk(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place = bed.new_place("disk")
    place.runs.mkdir()
    n_bytes = rng.randrange(8 << 10, journal_bytes(bed) + (64 << 10))
    if not mount(place.runs, n_bytes):
        return limit(bed, rng)
    try:
        found = bed.process(place)
        mount(place.runs, MANY_BYTES, again=True)
        bed_result(bed, place)
        if (place.output / "editor.json").is_file():
            shutil.copytree(place.runs, place.base / "kept")
    finally:
        subprocess.run(["umount", str(place.runs)], check=True)
    place.runs.rmdir()
    (place.base / "kept").rename(place.runs)
    return place, f"{found.ended} on a disk of {n_bytes} bytes"


def mount(at: Path, n_bytes: int, *, again: bool = False) -> bool:
    """A disk of that size; whether this user may have one."""
    if shutil.which("mount") is None:
        return False
    options = f"{'remount,' if again else ''}size={n_bytes}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def limit(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place, n_bytes = bed.new_place("limit"), rng.randrange(2 << 10, journal_bytes(bed))

    def forbid() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))

    found = bed.process(place, forbid)
    if found.ended == "done":
        raise Failed("the limit on the size of files was not noticed")
    return place, f"{found.ended} with files of at most {n_bytes} bytes"


def clock(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place, at, jump = bed.new_place("clock"), rng.uniform(0, bed.seconds), rng.randrange(1, 40)
    found = bed.process(place, lambda: set_back(after=jump), killed_after(at))
    again = bed.process(place, lambda: set_back(after=0), killed_after(rng.uniform(0, bed.seconds)))
    return place, f"{found.ended} at {at:.2f} s, set back after {jump} lines, {again.ended} again"


def set_back(*, after: int) -> None:
    """From some line of the journal on, the clock of this process is a year late."""
    from editor import store

    lines, real, append = [0], time.time, store.Journal.append

    class Late(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) - (YEAR if lines[0] >= after else timedelta())

    def counted(self: Any, key: str, value_json: str) -> None:
        lines[0] += 1
        append(self, key, value_json)

    store.Journal.append = counted  # pyright: ignore[reportAttributeAccessIssue]
    store.datetime = Late
    time.time = lambda: real() - (YEAR.total_seconds() if lines[0] >= after else 0)


def memory(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    place, at = bed.new_place("memory"), rng.randrange(60)

    def exhaust() -> None:
        import torch

        from editor.model import MaskableModel

        n_calls, real = [0], MaskableModel._logits_at

        def failing(self: Any, *given: Any) -> Any:
            n_calls[0] += 1
            if n_calls[0] == at + 1:
                raise torch.OutOfMemoryError("out of memory")
            return real(self, *given)

        MaskableModel._logits_at = failing  # pyright: ignore[reportAttributeAccessIssue]

    found = bed.process(place, exhaust)
    return place, f"{found.ended}, out of memory at pass {at + 1}"


def second(bed: Bed, rng: random.Random) -> tuple[Place, str]:
    from editor.store import is_held

    place, others = bed.new_place("second"), list[Outcome]()

    def start_another(_: int) -> None:
        while not (place.runs.is_dir() and any(map(is_held, place.runs.iterdir()))):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3 * bed.seconds))
        others.append(bed.process(place))

    found = bed.process(place, meanwhile=start_another)
    if others[0].ended != "UsageError" or "another process" not in others[0].said:
        raise Failed(f"expected that the second is refused, found {others[0]}")
    if found.ended != "done":
        raise Failed(f"expected that the first goes on, found {found}")
    return place, "the second was refused"


class Failed(Exception):
    """A fault was not survived as it should be."""


def journal_bytes(bed: Bed) -> int:
    return (bed.reference.run / "journal.jsonl").stat().st_size


def bed_result(bed: Bed, place: Place) -> dict[str, Any]:
    """What the run finds when it is started again."""
    again = bed.process(place)
    if again.ended != "done":
        raise Failed(f"it did not go on: {again}")
    return result_of(place)


def survive(bed: Bed, kind: str, rng: random.Random) -> dict[str, Any]:
    """One fault, the run after it, and whether that found the same."""
    fault: dict[str, Callable[[Bed, random.Random], tuple[Place, str]]] = {
        **{"kill": kill, "cut": cut, "line": line, "disk": disk},
        **{"limit": limit, "clock": clock, "memory": memory, "second": second},
    }
    place, said, same = None, "", False
    try:
        place, said = fault[kind](bed, rng)
        found = bed_result(bed, place)
        same = found == bed.result
        if not same:
            said += "; differs in " + ", ".join(k for k in found if found[k] != bed.result[k])
    except Failed as error:
        said = f"{said}; {error}".strip("; ")
    if place is not None and same:
        shutil.rmtree(place.base)
    return {"kind": kind, "same": same, "what": said}


@contextmanager
def temporary() -> Any:
    """A folder that is kept when something failed."""
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    yield folder
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one fault of each kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=N_FAULTS, help="how many")
    given = parser.parse_args()
    rng, began, rows = random.Random(given.seed), time.monotonic(), list[dict[str, Any]]()
    kinds = list(KINDS)
    if not given.quick:  # every kind at least once, the others at random
        kinds = (kinds + rng.choices(KINDS, k=given.faults))[: given.faults]
    with temporary() as folder:
        bed = Bed(folder)
        for kind in kinds:
            rows.append(survive(bed, kind, rng))
            mark = "same" if rows[-1]["same"] else "FAILED"
            print(f"{kind:<8} {mark:<6} {rows[-1]['what']}", file=sys.stderr, flush=True)
    figures = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "seed": given.seed,
        "faults": len(rows),
        "survived": sum(row["same"] for row in rows),
        "undisturbed_s": round(bed.seconds, 2),
        "seconds": round(time.monotonic() - began, 1),
        "rows": rows,
    }
    survived = f"{figures['survived']} of {figures['faults']} faults survived"
    print(json.dumps(figures, indent=1) if given.json else f"{survived} ({figures['machine']})")
    sys.exit(figures["survived"] < figures["faults"])


if __name__ == "__main__":
    main()
