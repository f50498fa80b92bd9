"""The folders of runs, finished or not: what they hold, and how they are removed."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from editor.errors import ModelError, UsageError
from editor.finished import (
    MAX_RUN_BYTES,
    folder_of,
    list_folders,
    read_record,
    require_run,
)
from editor.layout import read_small
from editor.records import Fingerprint, HeadText, Localization, Record, Settings
from editor.several_text import shared_sentence
from editor.staging import REPORT
from editor.store import (
    COMMAND,
    CONFIG,
    ENDED,
    ENVIRONMENT,
    ESTIMATE,
    JOURNAL,
    LOCK,
    LOG,
    holding,
    is_held,
)
from editor.wording import one_line

State = Literal["held", "finished", "validated", "ended", "stopped", "unreadable"]
"""held: a process is working in it; finished: its heads are chosen; validated: it only compared
files; ended: it came to its end without a result; stopped: it can be gone on with; unreadable:
damaged, or of another version of the editor."""

_OWN = frozenset({COMMAND, CONFIG, ENDED, ENVIRONMENT, ESTIMATE, JOURNAL, LOCK, LOG, REPORT})
_OWN_FORMS = re.compile(r"edited-[0-9a-f]{8}\.jsonl|\..+\.[0-9a-f]{8}\.tmp")
_KEY = re.compile(rb'\{"key":("(?:[^"\\]|\\.)*")')
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?=-)")
MAX_NAMED = 5


class RunInfo(Record):
    """One run as `editor runs` lists it."""

    folder: str
    name: str
    model: str
    capability: str
    """Several with commas between them."""
    method: str
    state: State
    fault: str = ""
    """Why it is unreadable."""
    evaluations: int
    """Masks on which the capability was scored: what the choice counted, or so far."""
    n_entries: int
    """Lines of the journal."""
    n_bytes: int
    begun: str
    """The day in its name; empty where that has none."""
    changed: str
    """When something was last measured, in UTC; empty where nothing was."""


class TaskCount(Record):
    """What a journal holds of one task."""

    task: str
    masks: int


class RunDetails(Record):
    """One run as `editor runs show` tells it."""

    info: RunInfo
    settings: Settings
    versions: dict[str, str | None]
    measured: tuple[TaskCount, ...]
    heads: tuple[HeadText, ...]
    """What was found; empty while nothing is."""
    why: str
    report: str
    """The HTML page; empty where there is none."""
    files: tuple[str, ...]
    command: tuple[str, ...]
    """The last command, as it was typed; empty where Python began the run."""


class Removed(Record):
    """What `editor runs remove` did."""

    folders: tuple[str, ...]
    n_bytes: int


class _Asked(NamedTuple):
    """A journal's key: which task, with which heads out."""

    task: str
    mask: str


def list_runs(runs: Path) -> tuple[RunInfo, ...]:
    """All runs in a folder, the oldest first; what is no run is passed over.

    Raises:
        UsageError: there is no such folder.
    """
    found: list[RunInfo] = []
    for folder in list_folders(runs):
        with suppress(UsageError):
            require_run(folder)
            found.append(look_at(folder))
    return tuple(sorted(found, key=lambda one: (one.begun, one.changed, one.name)))


def look_at(folder: Path) -> RunInfo:
    """What a folder of a run holds, as far as it can be read."""
    config, estimate, fault = None, None, ""
    try:
        config = read_record(folder / CONFIG, Fingerprint)
        if (folder / ESTIMATE).is_file():
            estimate = read_record(folder / ESTIMATE, Localization)
        asked = _asked(folder / JOURNAL)
    except UsageError as error:
        fault, asked = error.message, ()
    targets = config.settings.targets if config else ()
    so_far = len({one for one in asked if one.task in targets and one.mask})
    day = _DATE.match(folder.name)
    return RunInfo(
        folder=str(folder),
        name=folder.name,
        model=config.model if config else "",
        capability=", ".join(targets),
        method=config.settings.method if config else "",
        state=_state(folder, fault),
        fault=fault,
        evaluations=estimate.evaluations if estimate else so_far,
        n_entries=len(asked),
        n_bytes=_size(folder),
        begun=day[0] if day else "",
        changed=_changed(folder / JOURNAL),
    )


def refuse_other_settings(runs: Path, wanted: Fingerprint) -> None:
    """Refuse to begin a run while one of the same model and capability is broken off.

    What was measured there would be lost by a setting that was changed unawares.  A run that came
    to an end, with heads or with the news that there are none, is in nobody's way, and neither is
    one that a process works in.

    Raises:
        UsageError: there is one; the message lists in which settings it differs.
    """
    broken_off: list[tuple[float, Path, Fingerprint]] = []
    for folder in list_folders(runs, required=False):
        with suppress(UsageError, OSError):
            found = read_record(folder / CONFIG, Fingerprint)
            if found == wanted:
                return
            alike = found.model == wanted.model
            alike &= found.settings.targets == wanted.settings.targets
            if alike and _state(folder, "") == "stopped" and (folder / JOURNAL).stat().st_size:
                broken_off.append(((folder / JOURNAL).stat().st_mtime, folder, found))
    if not broken_off:
        return
    _, folder, found = max(broken_off, key=lambda one: one[0])
    listed = ", ".join(_differences(found, wanted))
    raise UsageError(
        f"{folder} is not finished and has other settings: {listed}",
        f"`editor runs show {folder.name}` prints the command that goes on with it; --new-run "
        "starts afresh",
    )


def _differences(old: Fingerprint, new: Fingerprint) -> list[str]:
    """`name old -> new` for every setting that differs."""

    def flat(one: Fingerprint) -> dict[str, object]:
        fields = one.model_dump(mode="json")
        return fields.pop("settings") | fields

    before, after = flat(old), flat(new)
    return [
        f"{name} {_short(before.get(name))} -> {_short(after.get(name))}"
        for name in after
        if before.get(name) != after.get(name)
    ]


def _short(value: object) -> str:
    text = value[:12] if isinstance(value, str) else json.dumps(value)
    return one_line(text)


def show_run(name: str, runs: Path) -> RunDetails:
    """All about one run.

    Raises:
        UsageError: the name fits no run or several, or its settings cannot be read.
    """
    folder = folder_of(name, runs)
    require_run(folder)
    config = read_record(folder / CONFIG, Fingerprint)
    info = look_at(folder)
    found = None
    if info.state != "unreadable" and (folder / ESTIMATE).is_file():
        found = read_record(folder / ESTIMATE, Localization)
    counts: dict[str, int] = {}
    for one in () if info.fault else _asked(folder / JOURNAL):
        counts[one.task] = counts.get(one.task, 0) + 1
    page = folder / REPORT
    return RunDetails(
        info=info,
        settings=config.settings,
        versions=_versions(folder / ENVIRONMENT),
        measured=tuple(TaskCount(task=task, masks=n) for task, n in counts.items()),
        heads=found.heads if found else (),
        why="; ".join(_why(found)) if found else "",
        report=str(page) if page.is_file() else "",
        files=tuple(sorted(path.name for path in folder.iterdir())),
        command=_command(folder / COMMAND),
    )


def _why(found: Localization) -> list[str]:
    """What the heads were chosen for, and what they share."""
    if found.sharing is None:
        return [found.plan.why]
    said = [f"{one.plan.capability}: {one.plan.why}" for one in found.each()]
    return [shared_sentence(found.sharing), *said]


def removable(names: Sequence[str], runs: Path) -> list[RunInfo]:
    """The runs of these names, if all of them may be removed.

    Raises:
        UsageError: a name fits no run or several, a run is held, or a folder holds what is not of
            a run; nothing is removed then.
    """
    if not names:
        raise UsageError("no run is named", "`editor runs` lists them")
    found: dict[str, RunInfo] = {}
    for name in names:
        folder = folder_of(name, runs)
        _check_own(folder)
        found[os.path.realpath(folder)] = look_at(folder)
    return list(found.values())


def remove_runs(chosen: Sequence[RunInfo]) -> Removed:
    """Remove the folders of runs.

    Raises:
        UsageError: one is held by now, or holds what is not of a run.
        OSError: a file cannot be removed.
    """
    for run in chosen:
        folder = Path(run.folder)
        _check_own(folder)
        with holding(folder):
            files = [path for path in folder.iterdir() if path.name not in (JOURNAL, CONFIG, LOCK)]
            # The last three: what is interrupted before them is still a run that can be removed.
            for file in (*files, folder / LOCK, folder / JOURNAL, folder / CONFIG):
                file.unlink(missing_ok=True)
            folder.rmdir()
    return Removed(
        folders=tuple(run.folder for run in chosen), n_bytes=sum(run.n_bytes for run in chosen)
    )


def _check_own(folder: Path) -> None:
    """That everything in a folder is of a run, and that nobody works in it."""
    if folder.is_symlink():
        raise UsageError(
            f"{folder} is a link to a folder, not a folder",
            "name the folder itself",
        )
    require_run(folder)
    others = sorted(path.name for path in folder.iterdir() if not _is_own(path))
    if others:
        more = "" if len(others) <= MAX_NAMED else f" and {len(others) - MAX_NAMED} more"
        raise UsageError(
            f"{folder} holds what is not of a run: {', '.join(others[:MAX_NAMED])}{more}",
            "move it elsewhere, then remove the run",
        )
    if is_held(folder):
        raise UsageError(f"another process is working in {folder}", "end it first, or wait for it")


def _is_own(path: Path) -> bool:
    known = path.name in _OWN or _OWN_FORMS.fullmatch(path.name) is not None
    return known and stat.S_ISREG(path.lstat().st_mode)


def _state(folder: Path, fault: str) -> State:
    if is_held(folder):
        return "held"
    if fault:
        return "unreadable"
    if (folder / ESTIMATE).is_file():
        return "finished"
    if any(folder.glob("edited-*.jsonl")):
        return "validated"
    return "ended" if (folder / ENDED).is_file() else "stopped"


def _asked(journal: Path) -> tuple[_Asked, ...]:
    """What a journal says was measured, in its order; a torn last line is passed over.

    Raises:
        UsageError: a line is no entry.
    """
    if not journal.is_file():
        return ()
    found: list[_Asked] = []
    with journal.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            match = _KEY.match(line)
            if match is None and line.endswith(b"\n"):
                raise UsageError(f"{journal}:{number}: expected a journal entry")
            if match is not None and line.endswith(b"\n"):
                task, _, rest = str(json.loads(match[1])).partition(" ")
                found.append(_Asked(task, rest.partition(" ")[2]))
    return tuple(found)


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _changed(journal: Path) -> str:
    with suppress(OSError):
        at = datetime.fromtimestamp(journal.stat().st_mtime, timezone.utc)
        return at.isoformat(timespec="seconds")
    return ""


def _json(file: Path) -> Any:
    """What a file of a run says; None where it says nothing."""
    try:
        return json.loads(read_small(file, MAX_RUN_BYTES)) if file.is_file() else None
    except (ModelError, ValueError, RecursionError):
        return None


def _versions(file: Path) -> dict[str, str | None]:
    found = _json(file)
    packages = cast("dict[str, Any]", found).get("packages") if isinstance(found, dict) else None
    if not isinstance(packages, dict):
        return {}
    versions = cast("dict[str, Any]", packages)
    return {name: None if version is None else str(version) for name, version in versions.items()}


def _command(file: Path) -> tuple[str, ...]:
    found = _json(file)
    return tuple(map(str, cast("list[Any]", found))) if isinstance(found, list) else ()
