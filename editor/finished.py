"""From names on the command line to runs that have found their heads."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from editor.comparison import Finished, compare
from editor.errors import ModelError, UsageError, nearest
from editor.layout import read_small
from editor.records import Comparison, Fingerprint, Localization, Record
from editor.safetensors_header import parse_json
from editor.staging import MANIFEST
from editor.store import CONFIG, ENDED, ESTIMATE, JOURNAL
from editor.wording import one_line

R = TypeVar("R", bound=Record)

MAX_RUN_BYTES = 64 << 20
"""More than an estimate of a model with a hundred thousand heads takes."""
MAX_WHY_BYTES = 4096
"""Of why a run ended without heads."""
MAX_LISTED = 12
"""The most runs that a hint lists."""
LARGEST = 1e9
"""No effect is as large: a run that says so is damaged, and its sums would say nothing."""


def compare_runs(names: Sequence[str], runs: Path) -> Comparison:
    """Compare the named runs, or without a name all finished runs below a folder.

    A run that searched for several capabilities counts as one for each.

    Raises:
        UsageError: a name fits no finished run or several, or there is none.
    """
    found, notes = (read_named(names, runs), list[str]()) if names else read_all(runs)
    return compare([one for run in found for one in run.each()], notes)


def read_all(runs: Path) -> tuple[list[Finished], list[str]]:
    """All finished runs below a folder, and a sentence for each folder that is left out.

    Raises:
        UsageError: there is no such folder, or no finished run in it.
    """
    found: list[Finished] = []
    left_out: list[str] = []
    for folder in list_folders(runs):
        try:
            found.append(read_run(folder))
        except UsageError as error:
            left_out.append(f"Left out: {one_line(error.message)}.")
    if not found:
        why = f"; {left_out[0]}" if left_out else ""
        raise UsageError(
            f"no finished run below {runs}{why}",
            "make one with `editor localize`, or say where they are with --runs",
        )
    return found, left_out


def read_named(names: Sequence[str], runs: Path) -> list[Finished]:
    """Runs by their folder, or by a part of its name below `runs`.

    Raises:
        UsageError: a name fits no folder or several, two name the same one, or it is no run.
    """
    folders = [folder_of(name, runs) for name in names]
    seen: set[str] = set()
    for folder in folders:
        real = os.path.realpath(folder)
        if real in seen:
            raise UsageError(f"{folder} is named twice", "name each run once")
        seen.add(real)
    found: list[Finished] = []
    faults: list[UsageError] = []
    for folder in folders:
        try:
            found.append(read_run(folder))
        except UsageError as error:
            faults.append(error)
    if faults:
        raise UsageError("; ".join(error.message for error in faults), faults[0].hint)
    return found


def read_run(folder: Path) -> Finished:
    """The settings and the estimates of one run.

    Raises:
        UsageError: the folder is no run, the run is not finished, or a file is damaged or of
            another version.
    """
    require_run(folder)
    fingerprint = read_record(folder / CONFIG, Fingerprint)
    if (folder / ENDED).is_file():
        with (folder / ENDED).open("rb") as stream:
            why = stream.read(MAX_WHY_BYTES).decode("utf-8", "replace")
        raise UsageError(f"{folder} ended without heads: {one_line(why.strip())}")
    if not (folder / ESTIMATE).is_file():
        raise UsageError(
            f"{folder} is not finished: it has no {ESTIMATE}",
            "run its `editor localize` or `editor remove` again, it goes on where it stopped",
        )
    found = read_record(folder / ESTIMATE, Localization)
    if len(found.also) != len(fingerprint.settings.also):
        raise UsageError(f"{folder / ESTIMATE}: other capabilities than in {CONFIG}", _AGAIN)
    fault = next(filter(None, map(_fault, found.each())), None)
    if fault:
        raise UsageError(f"{folder / ESTIMATE}: {fault}", _AGAIN)
    return Finished(str(folder), fingerprint, found)


_AGAIN = "restore the file, or run `editor localize` with --new-run"


def folder_of(name: str, runs: Path) -> Path:
    """A folder by its path, or by a part of its name below `runs`.

    Raises:
        UsageError: the name fits none or several, or is that of a file.
    """
    if os.path.isdir(name):
        return Path(name)
    if os.path.exists(name):
        raise UsageError(f"{name} is a file, not the folder of a run", "name the folder")
    folders = {path.name: path for path in list_folders(runs, required=False)}
    fitting = [folder for folder in folders if name in folder]
    if len(fitting) > 1:
        raise UsageError(
            f"{name!r} is in the name of {len(fitting)} runs below {runs}: "
            f"{', '.join(fitting[:MAX_LISTED])}{', ...' if len(fitting) > MAX_LISTED else ''}",
            "name more of it",
        )
    if not fitting:
        few = 0 < len(folders) <= MAX_LISTED
        hint = nearest(name, folders) if few else "say where the runs are with --runs"
        raise UsageError(f"no folder {name}, and no run below {runs} with it in its name", hint)
    return folders[fitting[0]]


def list_folders(runs: Path, *, required: bool = True) -> list[Path]:
    """The folders in the folder of all runs, by their names.

    Args:
        required: an error if it is not there, else no folders.

    Raises:
        UsageError: it is not there, or cannot be read.
    """
    if not os.path.isdir(runs):
        if required:
            raise UsageError(f"there is no folder {runs}", "say where the runs are with --runs")
        return []
    try:
        return sorted(path for path in runs.iterdir() if path.is_dir())
    except OSError as error:
        raise UsageError(
            f"{runs} cannot be read: {error.strerror}", "check its permissions"
        ) from error


def require_run(folder: Path) -> None:
    """Refuse what is not the folder of a run.

    Raises:
        UsageError: it is an edited checkpoint, a model, or something else.
    """
    if (folder / MANIFEST).is_file():
        raise UsageError(
            f"{folder} is an edited checkpoint, not a run: its {MANIFEST} has no effects of heads",
            f"name the folder of the run that found its heads: it has an {ESTIMATE}",
        )
    # A model has a config.json too.
    begun = (folder / JOURNAL).is_file() or (folder / ESTIMATE).is_file()
    if not (begun and (folder / CONFIG).is_file()):
        raise UsageError(
            f"{folder} is no run: it lacks {CONFIG} or {ESTIMATE}",
            "name a folder that `editor localize` or `editor remove` made below --runs",
        )


def read_record(file: Path, kind: type[R]) -> R:
    """One file of a run.

    Raises:
        UsageError: it is missing, damaged or of another version.
    """
    try:
        text = read_small(file, MAX_RUN_BYTES)
        parse_json(text, file, what="the record")
        return kind.model_validate_json(text)
    except ModelError as error:
        raise UsageError(error.message, _AGAIN) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise UsageError(
            f"{file}: {where[:200]}: {first['msg']}; it is damaged, or of another version of the "
            "editor",
            _AGAIN,
        ) from error


def _fault(found: Localization) -> str | None:
    """What is wrong with estimates that have the right form."""
    if not found.estimates or not found.estimates[0].effects:
        return "expected an estimate with effects of heads, found none"
    effects = found.estimates[0].effects
    if len({one.head for one in effects}) < len(effects):
        return "a head has two effects"
    for one in effects:
        numbers = (one.low, one.effect, one.high)
        if not all(math.isfinite(x) and abs(x) < LARGEST for x in numbers):
            return f"the effect of {one.head} should be a finite number with an interval"
    return None
