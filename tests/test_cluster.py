"""Fan-out on a real Ray cluster of this machine, whose parts are killed in the middle."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from editor.cluster import Cluster, Room, room
from editor.errors import ModelError, UsageError, WorkersLost
from editor.fanout import Crew, FanOut
from editor.measure import Bench
from editor.workers import require_ray
from planted import HEADS, Memory
from test_fanout import MASKS, TASK, Planting, Traps, expected

ray: Any = pytest.importorskip("ray")
ROOT = Path(__file__).resolve().parent


class TestRoom:
    FOUR, SIXTEEN = {"CPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}

    @pytest.mark.parametrize(
        ("nodes", "free", "workers", "gpu", "found"),
        [
            ([FOUR], {"CPU": 4.0}, None, False, Room(1, 4, 0)),
            ([FOUR], {"CPU": 4.0}, 3, False, Room(3, 1, 0)),
            ([FOUR], {"CPU": 4.0}, 9, False, Room(4, 1, 0)),
            ([FOUR, SIXTEEN], {"CPU": 20.0}, None, False, Room(2, 4, 0)),
            ([FOUR, SIXTEEN], {"CPU": 20.0}, 5, False, Room(5, 4, 0)),
            ([FOUR, SIXTEEN], {"CPU": 9.0}, 5, False, Room(2, 4, 0)),
            ([FOUR, SIXTEEN], {"CPU": 20.0, "GPU": 2.0}, None, True, Room(2, 1, 1)),
            ([SIXTEEN, SIXTEEN], {"CPU": 32.0, "GPU": 4.0}, 3, True, Room(3, 1, 1)),
        ],
    )
    def test_is_divided_evenly(self, nodes, free, workers, gpu, found) -> None:
        assert room(nodes, free, workers, gpu=gpu) == found

    @pytest.mark.parametrize(
        ("nodes", "free", "gpu", "words"),
        [
            ([], {}, False, "has no CPU"),
            ([FOUR], {"CPU": 4.0}, True, "has no GPU"),
            ([FOUR], {}, False, "no CPU of the Ray cluster is free"),
        ],
    )
    def test_that_is_not_there_is_told(self, nodes, free, gpu, words) -> None:
        with pytest.raises(UsageError, match=words):
            room(nodes, free, None, gpu=gpu)


def test_ray_missing_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_ray("auto")
    monkeypatch.setattr("editor.workers.find_spec", lambda name: None)
    require_ray(None)
    with pytest.raises(UsageError, match="needs the package ray") as caught:
        require_ray("auto")
    assert "capability-editor[ray]" in caught.value.hint


def test_nobody_at_the_address_is_told_at_once() -> None:
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        with pytest.raises(UsageError, match=r"nothing answers at 127.0.0.1:9"):
            Cluster(address, None, gpu=False)


@pytest.fixture(scope="module")
def local() -> Generator[None]:
    """Two CPUs of this machine; the actors find the modules of the tests."""
    where = os.pathsep.join([str(ROOT), str(ROOT.parent)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", where)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()


@pytest.fixture
def cluster(local: None) -> Generator[Cluster]:
    hands = Cluster("auto", 2, gpu=False)
    yield hands
    hands.close()


@pytest.mark.slow
class TestCluster:
    def test_gives_the_numbers_of_one(self, cluster: Cluster) -> None:
        memory = Memory()
        assert cluster.room == Room(2, 1, 0)
        found = Bench(FanOut(Crew(cluster), Planting()), memory).scores(TASK, MASKS)
        assert found == expected() and len(memory.entries) == len(MASKS)

    def test_an_actor_killed_in_the_middle_changes_nothing(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        planting = Planting(traps=Traps(tmp_path, deadly=(HEADS[20],), lives=2))
        found = Bench(FanOut(Crew(cluster), planting), Memory()).scores(TASK, MASKS)
        assert found == expected()
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_job_that_kills_three_ends_the_run(self, cluster: Cluster, tmp_path: Path) -> None:
        planting = Planting(traps=Traps(tmp_path, deadly=(HEADS[20],), lives=99))
        with pytest.raises(WorkersLost, match="3 workers died of one job") as caught:
            Bench(FanOut(Crew(cluster), planting), Memory()).scores(TASK, MASKS)
        assert "\n" not in caught.value.message

    def test_other_versions_on_a_machine_are_refused(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("editor.cluster._versions", lambda: {"torch": "0.1"})
        with pytest.raises(ModelError, match=r"has torch \d\S+ instead of 0\.1"):
            Bench(FanOut(Crew(cluster), Planting()), Memory()).scores(TASK, MASKS)


HEAD_GONE = """
import sys
from test_fanout import *
from editor.cluster import Cluster
from editor.errors import EditorError
hands = Cluster(sys.argv[1], None, gpu=False)
engine = FanOut(Crew(hands), Planting(seconds=0.2))
try:
    with closing(engine):
        memory = Memory()
        bench = Bench(engine, memory, lambda n: print(len(memory.entries), flush=True))
        while True:
            memory.entries.clear()
            bench.scores(TASK, MASKS)
except EditorError as error:
    print(type(error).__name__, error.message, "|", error.hint, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="finds the head's process in /proc")
@pytest.mark.slow
def test_the_head_gone_is_told_before_ray_ends_the_process(tmp_path: Path) -> None:
    port = 20000 + secrets.randbelow(10000)
    where = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT.parent)]),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    ray_command = [sys.executable, "-m", "ray.scripts.scripts"]
    start = ["start", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    # Its own folder: there Ray notes which cluster is meant by `auto`.  Sockets need a short path.
    folder = tempfile.mkdtemp(prefix="ray")
    start.append(f"--temp-dir={folder}")
    subprocess.run([*ray_command, *start], env=where, check=True, capture_output=True, timeout=120)
    marks = [f"--gcs_server_port={port}", f":{port}"]
    parts = processes_with(marks)
    try:
        (head,) = [pid for pid, args in parts.items() if marks[0] in args]
        command = [sys.executable, "-c", HEAD_GONE, f"127.0.0.1:{port}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=where, text=True) as driver:
            assert driver.stdout is not None
            while int(driver.stdout.readline()) < 8:
                pass
            os.kill(head, signal.SIGKILL)
            began = time.monotonic()
            rest, _ = driver.communicate(timeout=100)
        last = rest.splitlines()[-1]
        assert last.startswith("WorkersLost the head of the Ray cluster at ")
        assert "the same command again" in last
        assert driver.returncode == 0 and time.monotonic() - began < 55
    finally:
        for pid, args in parts.items():
            if processes_with(marks).get(pid) == args:
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


def processes_with(marks: list[str]) -> dict[int, str]:
    """Command lines of the processes that name the port of this test's cluster."""
    found: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            args = (place / "cmdline").read_text("utf-8", "replace").replace("\0", " ")
        except OSError:
            continue
        if "ray" in args and any(mark in args for mark in marks):
            found[int(place.name)] = args
    return found
