"""The verbs about runs on disk: list, show, remove."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from editor import flags
from editor.console import DONE, Console
from editor.errors import UsageError


@click.group(
    cls=flags.Verbs,
    invoke_without_command=True,
    examples=(
        "editor runs",
        "editor runs show recall-0f3a9c21",
        "editor runs remove recall-0f3a9c21 --yes",
        "editor runs --runs all-runs --json",
    ),
)
@flags.RUNS
@flags.SAYING
@click.pass_context
def runs(context: click.Context, runs: Path | None) -> int:
    """List what was measured, finished or not."""
    if context.invoked_subcommand is not None:
        return DONE
    from editor.run_folders import list_runs
    from editor.runs_text import runs_text

    folder = flags.options({"runs": runs}).runs
    found = list_runs(folder)
    shown = {"folder": str(folder), "runs": [one.model_dump(mode="json") for one in found]}
    context.ensure_object(Console).result(shown, runs_text(found, folder))
    return DONE


@runs.command(
    "show",
    examples=(
        "editor runs show recall-0f3a9c21",
        "editor runs show runs/2026-01-31-SmolLM2-135M-Instruct-recall-0f3a9c21",
        "editor runs show copying --json",
    ),
)
@click.argument("name", metavar="RUN")
@flags.RUNS
@flags.SAYING
@click.pass_context
def runs_show(context: click.Context, name: str, runs: Path | None) -> int:
    """Show one run: settings, what was measured and found, how to go on.

    RUN is its folder, or a part of its name below --runs.
    """
    from editor.run_folders import show_run
    from editor.runs_text import run_text

    found = show_run(name, _folder(context, runs))
    context.ensure_object(Console).result(found.model_dump(mode="json"), run_text(found))
    return DONE


@runs.command(
    "remove",
    examples=(
        "editor runs remove recall-0f3a9c21",
        "editor runs remove runs/RUN-1 runs/RUN-2 --yes",
        "editor runs remove copying --runs all-runs --yes --json",
    ),
)
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@flags.RUNS
@flags.SAYING
@click.pass_context
def runs_remove(context: click.Context, names: tuple[str, ...], runs: Path | None) -> int:
    """Remove runs: what they measured is lost.

    A run that a process is working in is refused, and so is a folder that holds anything else.
    """
    from editor.run_folders import removable, remove_runs
    from editor.runs_text import removed_text, runs_text

    console, folder = context.ensure_object(Console), _folder(context, runs)
    chosen = removable(names, folder)
    if not console.yes:
        console.note(runs_text(chosen, folder))
        _ask(f"remove {len(chosen)} run{'' if len(chosen) == 1 else 's'}?")
    removed = remove_runs(chosen)
    console.result(removed.model_dump(mode="json"), removed_text(removed))
    return DONE


def _folder(context: click.Context, runs: Path | None) -> Path:
    """The folder of all runs, whether it was said before or after the verb."""
    above = context.parent.params.get("runs") if context.parent else None
    return flags.options({"runs": runs or above}).runs


def can_ask() -> bool:
    """Whether somebody sits there."""
    return sys.stdin.isatty()


def _ask(question: str) -> None:
    """Go on only after a yes.

    Raises:
        UsageError: there is nobody to ask, or the answer is no.
    """
    if not can_ask():
        raise UsageError("there is nobody to ask: this is no terminal", "say --yes")
    if not click.confirm(question, err=True):
        raise UsageError("nothing was removed", "answer y, or say --yes")
