"""Where the rows of data sets come from: what was fetched, a local folder, the Hub, in this order.

A set that was fetched is one file of canonical JSON lines below the cache, with a note beside it
that has its sha256.  That is the digest of the rows wherever they come from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from editor.datasets import DataSet, data_set
from editor.errors import UsageError
from editor.hub_rows import hub_rows, is_offline, without_hub
from editor.packaged import as_published, local_rows
from editor.row_files import Row
from editor.source import default_cache
from editor.store import write_atomic
from editor.wording import one_line

_LARGEST_NOTE = 100_000


class Found(NamedTuple):
    """The rows of a data set, and where they are from."""

    rows: tuple[Row, ...]
    sha256: str
    """Of the rows as canonical JSON lines."""
    origin: str
    """For people: where they are from in the first place; no path of this machine."""
    revision: str | None
    """Commit of the Hub, where they are from there."""
    kept: bool
    """Whether they were in the cache."""


class Library:
    """Data sets by name; each is looked up once.

    Args:
        data_dir: a folder with files or unpacked packages, beside the cache and the Hub.
        cache: where fetched sets are kept; by default `source.default_cache()`.
        offline: ask the Hub for nothing.
        say: hears in one line what was found where.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        cache: Path | None = None,
        *,
        offline: bool = False,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._data_dir = data_dir
        self._cache = cache
        self._offline = offline
        self._say = say
        self._found: dict[str, Found] = {}

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        """The rows of a data set, with the Hub's fields.

        Raises:
            UsageError: it is unknown, not there, or damaged; the hint says how to get it.
        """
        return self.found(name).rows

    def digest(self, name: str) -> str:
        """sha256 of the rows as canonical JSON lines.

        Raises:
            UsageError: as `rows`.
        """
        return self.found(name).sha256

    def first(self, names: tuple[str, ...]) -> str:
        """The first of several data sets that is to be had; said aloud where it is not the first.

        Args:
            names: the last may be "", for none at all.

        Raises:
            UsageError: none is.
        """
        missing: list[UsageError] = []
        for name in names:
            if not name:
                self._say(f"data: without {names[0]}: {missing[0].message}")
                return name
            try:
                self.found(name)
            except Missing as error:
                missing.append(error)
                continue
            if missing:
                self._say(f"data: {name} stands in for {names[0]}: {missing[0].message}")
            return name
        raise missing[0]

    def found(self, name: str) -> Found:
        """The rows of a data set and where they are from.

        Raises:
            UsageError: as `rows`.
        """
        if name not in self._found:
            found = self._look_up(data_set(name))
            where = "the cache: " if found.kept else ""
            self._say(
                f"data: {name}, {len(found.rows)} rows from {where}{found.origin}, "
                f"sha256 {found.sha256[:12]}"
            )
            self._found[name] = found
        return self._found[name]

    def fetch(self, name: str) -> Path:
        """Get a data set for later, from the local folder if there is one, else from the Hub.

        What was fetched before is replaced.

        Returns:
            The file that now holds it.

        Raises:
            UsageError: it is unknown or not to be had.
            OSError: the cache cannot be written.
        """
        wanted = data_set(name)
        found = self._local(wanted) or self._of_hub(wanted)
        self._found[name] = found
        return self._keep(name, found)

    def _look_up(self, wanted: DataSet) -> Found:
        found = self._fetched(wanted) or self._local(wanted)
        if found is None:
            found = self._of_hub(wanted)
            # Kept, so that a run that goes on later asks the same; a cache that cannot be written
            # costs another download.
            with suppress(OSError):
                self._keep(wanted.name, found)
        return found

    def _files(self, name: str) -> tuple[Path, Path]:
        folder = (self._cache or default_cache()) / "data"
        return folder / f"{name}.jsonl", folder / f"{name}.json"

    def _fetched(self, wanted: DataSet) -> Found | None:
        """What was fetched before.

        Raises:
            UsageError: it is not what was written then.
        """
        file, note = self._files(wanted.name)
        if not (file.exists() and note.exists()):
            return None
        again = UsageError(
            f"{one_line(str(file))} is not what was fetched",
            f"delete it, or get it again: `editor capabilities fetch {wanted.name}`",
        )
        try:
            if note.stat().st_size > _LARGEST_NOTE:
                raise again
            said = json.loads(note.read_bytes())
            sha256, origin, revision = said["sha256"], str(said["origin"]), said["revision"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise again from error
        rows = as_published(file, wanted)
        if _digest(rows) != sha256:
            raise again
        commit = revision if isinstance(revision, str) else None
        return Found(rows, sha256, one_line(origin), commit, kept=True)

    def _local(self, wanted: DataSet) -> Found | None:
        rows = local_rows(self._data_dir, wanted) if self._data_dir else None
        if rows is None:
            return None
        return Found(rows, _digest(rows), "the folder of --data-dir", None, kept=False)

    def _of_hub(self, wanted: DataSet) -> Found:
        if wanted.hub is None or self._offline or is_offline():
            raise _missing(wanted, self._data_dir, offline=wanted.hub is not None)
        try:
            rows, commit = hub_rows(wanted)
        except UsageError as error:
            raise Missing(error.message, error.hint) from error
        return Found(rows, _digest(rows), f"the Hub, {wanted.hub}", commit, kept=False)

    def _keep(self, name: str, found: Found) -> Path:
        file, note = self._files(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        said = {"name": name, "rows": len(found.rows), "sha256": found.sha256}
        said |= {"origin": found.origin, "revision": found.revision}
        # Without its note a file does not count; a note of other rows is found out by the digest.
        note.unlink(missing_ok=True)
        write_atomic(file, "".join(_lines(found.rows)))
        write_atomic(note, json.dumps(said, indent=1) + "\n")
        return file


class Missing(UsageError):
    """A data set that is known and not to be had here."""


def _missing(wanted: DataSet, data_dir: Path | None, *, offline: bool) -> Missing:
    where = "not fetched before"
    if data_dir is not None:
        where += f", and not in {one_line(str(data_dir))}"
    if offline:
        where += ", and this run is offline"
        hint = f"`editor capabilities fetch {wanted.name}` gets it from the Hub; without that, "
    else:
        where += ", and not on the Hub"
        hint = ""
    message = f"the data set {wanted.name} ({wanted.about}) is not here: {where}"
    return Missing(message, hint + without_hub(wanted))


def _lines(rows: Iterable[Row]) -> Iterable[str]:
    return (json.dumps(row, sort_keys=True, separators=(",", ":")) + "\n" for row in rows)


def _digest(rows: Iterable[Row]) -> str:
    digest = hashlib.sha256()
    for line in _lines(rows):
        digest.update(line.encode())
    return digest.hexdigest()
