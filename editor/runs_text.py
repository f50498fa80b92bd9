"""What `editor runs` shows: a table of runs, one run, and what was removed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from editor.display import heads_text, table
from editor.run_folders import Removed, RunDetails, RunInfo
from editor.wording import last_part, one_line, size_text

STATES = {
    "held": "measuring (held by a process)",
    "finished": "finished",
    "validated": "compared files",
    "ended": "no result",
    "stopped": "not finished",
    "unreadable": "not readable",
}
_SHOWN_SETTINGS = ("controls", "max_heads", "max_control_drop", "min_target_drop", "budget")
_MORE_SETTINGS = (
    *("confidence", "score", "prior", "universal", "improve", "seed"),
    *("search_items", "choose_items", "test_items", "dtype"),
)


def runs_text(found: Sequence[RunInfo], runs: Path) -> str:
    """All runs, one a line."""
    if not found:
        return f"no run below {runs}"
    rows = [("Run", "Model", "Capability", "Method", "State", "Evaluations", "Size", "Changed")]
    for one in found:
        rows.append(
            (
                one_line(one.name),
                last_part(one.model) if one.model else "-",
                one_line(one.capability) or "-",
                one_line(one.method) or "-",
                STATES[one.state],
                str(one.evaluations),
                size_text(one.n_bytes),
                one.changed[:16].replace("T", " ") or one.begun or "-",
            )
        )
    total = size_text(sum(one.n_bytes for one in found))
    unreadable = [
        f"not readable: {one_line(one.fault)}" for one in found if one.state == "unreadable"
    ]
    lines = [*table(rows, "<<<<<>><"), f"{len(found)} runs, {total}; times are UTC", *unreadable]
    return "\n".join(lines)


def run_text(run: RunDetails) -> str:
    """One run: settings, what was measured, what was found, how to go on."""
    info, settings = run.info, run.settings.model_dump(mode="json")
    given = {key: settings[key] for key in (*_SHOWN_SETTINGS, *_MORE_SETTINGS)}
    measured = ", ".join(f"{one_line(one.task)} {one.masks}" for one in run.measured)
    versions = ", ".join(
        f"{one_line(name)} {one_line(run.versions[name] or 'none')}"
        for name in ("torch", "transformers", "numpy", "capability-editor")
        if name in run.versions
    )
    lines = [
        ("run", info.folder),
        ("state", STATES[info.state] + (f": {info.fault}" if info.fault else "")),
        ("model", info.model),
        ("capability", info.capability),
        ("method", info.method),
        ("begun", info.begun or "not known"),
        ("changed", f"{info.changed} ({size_text(info.n_bytes)})"),
        *((name.replace("_", " "), _value(value)) for name, value in given.items()),
        ("versions", versions or "not known"),
        ("measured", f"{info.n_entries} journal entries; masks by task: {measured or 'none'}"),
        ("evaluations", f"{info.evaluations} of {info.capability}"),
        ("found", heads_text(run.heads) if run.heads else "no heads yet"),
        *([("why", run.why)] if run.why else []),
        *([("report", run.report)] if run.report else []),
        *_ways_on(run),
    ]
    return "\n".join(f"{name:<16} {one_line(value)}" for name, value in lines)


def _value(value: Any) -> str:
    """A setting as it is read, not as Python writes it."""
    if isinstance(value, dict):
        limits = cast("dict[str, float]", value)
        return ", ".join(f"{name} {limit:g}" for name, limit in limits.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[Any]", value))) or "none"
    return str(value)


def _ways_on(run: RunDetails) -> list[tuple[str, str]]:
    """What can be done next."""
    typed = shlex.join(["editor", *run.command]) if run.command else ""
    again = typed or "call Python's editor.localize or editor.remove with the same arguments"
    if run.info.state == "held":
        return [("go on", "a process is at it")]
    if run.info.state == "finished":
        plan = shlex.quote(f"{run.info.folder}/estimate.json")
        return [
            ("typed", typed or "not known"),
            ("bake", f"editor bake -m MODEL --plan {plan} -o OUT"),
        ]
    return [("go on", again)]


def removed_text(removed: Removed) -> str:
    """What is gone."""
    return "\n".join(
        [*(f"removed {one_line(name)}" for name in removed.folders), size_text(removed.n_bytes)]
    )
