"""Every kind of fault once, in real processes; `benchmarks/faults.py` tries many at random."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults import KINDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def survived(tmp_path_factory: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "benchmarks/faults.py", "--quick", "--json", "--seed", "3"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("faults"))},
        timeout=600,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_after_a_fault_finds_what_the_undisturbed_one_did(
    survived: dict[str, Any], kind: str
) -> None:
    (row,) = [row for row in survived["rows"] if row["kind"] == kind]
    assert row["same"], row["what"]
