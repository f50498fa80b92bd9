"""Try to remove every built-in capability from SmolLM2-135M: the table of recipes/README.md.

    .venv/bin/python benchmarks/capabilities.py --data-dir .venv/data     # two hours on 2 cores
    .venv/bin/python benchmarks/capabilities.py --quick                   # those without data sets
    .venv/bin/python benchmarks/capabilities.py --only math rhyming --data-dir .venv/data --json

A capability that has a recipe in recipes/ is removed by it, any other one with the usual settings.
Each job is a fresh run in a folder that is thrown away; only the scan for universal heads may come
from the cache.  `make setup` puts the data sets into .venv/data.  Programs that the model writes
are run, contained.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from editor import capabilities

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m"
OUTCOMES = {0: "removed", 4: "refused", 5: "not there"}


def attempt(name: str, data_dir: Path | None) -> dict[str, Any]:
    """How the removal of one capability ends."""
    recipe = ROOT / "recipes" / f"{name}-{MODEL}.yaml"
    asked = ["run", str(recipe)] if recipe.exists() else ["remove", "-c", name, "-m", MODEL]
    shown = ["run", f"recipes/{recipe.name}"] if recipe.exists() else [*asked]
    dangerous = ["--allow-code-execution"] if name.startswith("code") else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "editor", *asked, *dangerous, "--json"]
        command += ["--output", f"{folder}/edited", "--runs", f"{folder}/runs"]
        command += ["--data-dir", str(data_dir)] if data_dir else []
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    if done.returncode not in OUTCOMES:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stderr}")
    return {
        "command": " ".join(["editor", *shown, *dangerous]),
        "outcome": OUTCOMES[done.returncode],
        "floor": capabilities.get(name).floor,
        "seconds": round(seconds),
        "said": json.loads(done.stdout),
    }


def row(name: str, found: dict[str, Any]) -> str:
    """One line of the table, in Markdown."""
    said = found["said"]
    minutes = f"{found['seconds'] / 60:.1f}"
    if "error" in said:
        cells = (said["error"]["message"], "", "", "")
    else:
        cells = (*measured(name, said), " ".join(said["heads"]), "; ".join(said["reasons"]))
    return f"| {' | '.join((name, found['outcome'], *cells, minutes))} |"


def measured(name: str, said: dict[str, Any]) -> tuple[str, str]:
    """Right answers before and after with 95 % intervals, and the same of the transfer form."""
    rows = {one["task"]: one for one in said["results"] if one["metric"] == "exact"}

    def change(task: str) -> str:
        one = rows[task]
        low, high = one["interval"]
        return f"{one['base']:.1%} → {one['edited']:.1%} ({100 * low:+.1f} to {100 * high:+.1f})"

    transfer = f"{name}-transfer"
    return change(name), change(transfer) if transfer in rows else ""


def table(results: dict[str, dict[str, Any]]) -> str:
    """The table of recipes/README.md, in Markdown."""
    heading = "capability|ends|right answers|in the transfer form|heads|why refused|minutes"
    lines = [f"| {' | '.join(heading.split('|'))} |", "|---" * 7 + "|"]
    return "\n".join([*lines, *(row(name, found) for name, found in results.items())])


def main() -> None:
    """Run, and print the table or one JSON object."""
    own = [capabilities.get(name) for name in capabilities.names()]
    tasks = [one.name for one in own if one.kind == "task"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="those without data sets")
    parser.add_argument("--only", nargs="+", choices=tasks, help="these alone")
    parser.add_argument("--data-dir", type=Path, help="folder with the data sets")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    bare = [one.name for one in own if one.kind == "task" and not one.data]
    results: dict[str, dict[str, Any]] = {}
    for name in asked.only or (bare if asked.quick else tasks):
        results[name] = attempt(name, asked.data_dir)
        print(f"{name}: {results[name]['outcome']}, {results[name]['seconds']} s", file=sys.stderr)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    if asked.json:
        print(json.dumps({"machine": machine, "capabilities": results}, indent=1))
    else:
        print(f"{table(results)}\n\n{machine}")


if __name__ == "__main__":
    main()
