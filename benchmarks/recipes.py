"""Run the recipes for SmolLM2-135M and print the README's table.

    .venv/bin/python benchmarks/recipes.py            # about 15 minutes on 2 cores
    .venv/bin/python benchmarks/recipes.py --quick    # recall alone, about 3 minutes
    .venv/bin/python benchmarks/recipes.py --json

Each job is a fresh run in a folder that is thrown away; only the scan for universal heads may come
from the cache, and its cost is shown apart.
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

ROOT = Path(__file__).resolve().parent.parent
CAPABILITIES = ("recall", "copying", "arithmetic")


def run_recipe(capability: str) -> dict[str, Any]:
    """The object that `editor run` prints, with the wall time of the whole process."""
    recipe = ROOT / "recipes" / f"{capability}-smollm2-135m.yaml"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "editor", "run", str(recipe), "--json"]
        command += ["--output", f"{folder}/edited", "--runs", f"{folder}/runs"]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
        if done.returncode not in (0, 4):
            raise SystemExit(done.stderr)
        manifest = json.loads(Path(folder, "edited", "editor.json").read_text("utf-8"))
    times = manifest["times"]
    return {**json.loads(done.stdout), "process_s": seconds, "scan_s": times["scan_s"]}


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """The figures that the README shows."""
    rows = {(row["task"], row["metric"]): row for row in found["results"]}

    def lost(task: str) -> float:
        row = rows[task, "exact"]
        return -row["change"] / row["base"]

    target = found["capability"]
    kept = [task for task in CAPABILITIES if task != target]
    return {
        "heads": found["heads"],
        "base": rows[target, "exact"]["base"],
        "edited": rows[target, "exact"]["edited"],
        "lost": lost(target),
        "lost_transfer": lost(f"{target}-transfer"),
        "english_nats": rows["english", "nats_per_token"]["change"],
        "python_nats": rows["python", "nats_per_token"]["change"],
        "kept": {task: rows[task, "exact"]["change"] for task in kept},
        "accepted": found["accepted"],
        "evaluations": found["evaluations"],
        "scan_evaluations": found["scan_evaluations"],
        "process_s": round(found["process_s"]),
        "scan_s": round(found["scan_s"]),
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """The README's table, in Markdown."""
    lines = [
        "| removed | heads | right answers, base → edited | lost | lost in the unsearched form | "
        "English, Python (nats a token) | other tasks | evaluations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in results.items():
        kept = ", ".join(f"{task} {100 * change:+.1f}" for task, change in one["kept"].items())
        lines.append(
            f"| {name} | {' '.join(one['heads'])} | {one['base']:.1%} → {one['edited']:.1%} | "
            f"{one['lost']:.0%} | {one['lost_transfer']:.0%} | {one['english_nats']:+.3f}, "
            f"{one['python_nats']:+.3f} | {kept} | {one['evaluations']} |"
        )
    return "\n".join(lines)


def machine() -> str:
    """What the figures were measured on."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> None:
    """Run, and print the table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="recall alone")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    names = CAPABILITIES[:1] if asked.quick else CAPABILITIES
    results = {name: figures(run_recipe(name)) for name in names}
    if asked.json:
        print(json.dumps({"machine": machine(), "recipes": results}, indent=1))
    else:
        print(f"{table(results)}\n")
        for name, one in results.items():
            print(
                f"{name}: {one['process_s']} s, the once-a-model scan {one['scan_s']} s (recorded)"
            )
        print(machine())


if __name__ == "__main__":
    main()
