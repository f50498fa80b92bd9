"""A folder that appears whole or not at all: written beside its final place, then renamed.

    <output>.partial   the folder while it is written, with the marker `.editor-partial` inside
    <output>.replaced  the old folder, for the instant between the two renames under `force`
    <output>.restore.zip  what was written as `.restore.zip` in the folder: it stays beside it

A marker without a running owner (its file lock is free) is what a killed process left.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from editor.errors import DiskError, EditorError, UsageError

MARKER = ".editor-partial"
"""File that says: this folder is unfinished, and the editor may delete it."""
MANIFEST = "editor.json"
"""File that says: this folder was written by the editor, so `force` may replace it."""
CARD, REPORT, SIGNATURE = "README.md", "report.html", "model.sig"
OWN_FILES = frozenset({MANIFEST, CARD, REPORT, SIGNATURE})
"""What the editor itself puts beside the base's files."""
RESTORE = ".restore.zip"
"""File that leaves the folder when it gets its name, for a place beside it: `<output>` + this."""
SPACE_MARGIN_BYTES = 64 << 20

_NO_PLACE = (
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT),
    *(errno.ELOOP, errno.ENAMETOOLONG),
)
"""Errors that say that nothing can be written at a path."""


@contextmanager
def staged(output: Path, *, force: bool, base: Path | None = None) -> Generator[Path]:
    """Yield an empty folder that becomes `output` when the block ends well.

    Args:
        output: The final folder; its missing parents are created.
        force: Replace `output` if it is empty or holds `editor.json`.
        base: A folder that is read meanwhile, so `output` may not be it, hold it or lie in it.

    Yields:
        `<output>.partial`, removed again when the block raises, whatever it raises; so are parents
        that were created for it.

    Raises:
        UsageError: `output` exists, is not the editor's, or its place cannot be written.
        EditorError: The disk is full or fails.
    """
    output = Path(os.path.abspath(output))
    check_output(output, force=force, base=base)
    partial = output.with_name(output.name + ".partial")
    with writing(output), _parents_of(output):
        marker = _claim(partial)
        try:
            yield partial
            # The lock lives until the marker is gone; its content must not reach the output.
            (partial / MARKER).unlink()
            _sync_tree(partial)
            _check_free(output, force=force)
            _check_beside(output, force=force)
            _publish(partial, output)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            marker.close()


@contextmanager
def _parents_of(output: Path) -> Generator[None]:
    """Create the missing parents of a folder, and remove them again when the block raises."""
    missing = [at for at in output.parents if not at.exists()]
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # something else may lie there by now
            for parent in missing:
                parent.rmdir()
        raise


def check_output(output: Path, *, force: bool, base: Path | None = None) -> None:
    """Raise what `staged` would, before any work is done for it.

    Raises:
        UsageError: `output` exists and may not be replaced, or lies in `base` or holds it.
    """
    output = Path(os.path.abspath(output))
    with writing(output):
        _check_apart(output, base)
        _check_free(output, force=force)
        _check_beside(output, force=force)
        partial = output.with_name(output.name + ".partial")
        if os.path.lexists(partial):
            _check_stale(partial)
        parent = _existing_parent(output.parent)
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        raise DiskError(f"{parent} is on a read-only disk", "choose a folder on another disk")
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"cannot write into {parent}", "choose another output folder, or change its permissions"
        )


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn what the operating system refuses inside the block into one clear line.

    Raises:
        UsageError: The place is not writable.
        DiskError: The disk is full or read-only, or another fault of it.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing_parent(path)).free
            raise DiskError(
                f"the disk of {path} is full: {reason}",
                f"{free} bytes are free there; free some, or choose another disk",
            ) from error
        if error.errno in _NO_PLACE:
            raise UsageError(
                f"cannot write {error.filename or path}: {reason}",
                "choose another output folder, or change its permissions",
            ) from error
        raise DiskError(
            f"writing {error.filename or path} failed: {reason}",
            "see whether the disk and the limits of this account allow it",
        ) from error


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise before a long copy that the disk could not hold.

    Raises:
        DiskError: `folder`'s disk has less than `needed_bytes` and a margin of 64 MiB free.
    """
    needed = needed_bytes + SPACE_MARGIN_BYTES
    free = shutil.disk_usage(_existing_parent(folder)).free
    if free < needed:
        raise DiskError(
            f"the disk of {folder} is too small: {needed} bytes are needed, 64 MiB of them in "
            f"reserve; {free} are free",
            f"free {needed - free} bytes, or choose a folder on another disk",
        )


def _existing_parent(path: Path) -> Path:
    return next((at for at in (path, *path.parents) if at.exists()), Path(path.anchor or "."))


def _check_apart(output: Path, base: Path | None) -> None:
    if base is None:
        return
    # Not `resolve`, which raises what is no OSError where links lead in a circle.
    there, source = (Path(os.path.realpath(path)) for path in (output, base))
    if there.is_relative_to(source) or source.is_relative_to(there):
        raise UsageError(
            f"the output {output} and the model {base} lie inside one another",
            "choose an output folder beside the model",
        )


def _check_free(output: Path, *, force: bool) -> None:
    if not os.path.lexists(output):
        return
    if output.is_symlink() or not output.is_dir():
        raise UsageError(f"the output {output} exists and is not a folder", "choose another name")
    if not force:
        raise UsageError(
            f"the output {output} exists", "choose another name, or pass --force to replace it"
        )
    with writing(output):
        names = os.listdir(output)
    if names and MANIFEST not in names:
        raise UsageError(
            f"{output} was not written by the editor (it has no {MANIFEST}): it is not replaced",
            "choose another name, or delete the folder yourself",
        )
    foreign = _foreign_files(output) if names else []
    if foreign:
        raise UsageError(
            f"{output} holds {foreign[0]!r}, which the editor did not write: it is not replaced",
            "move the file, choose another name, or delete the folder yourself",
        )


def _foreign_files(output: Path) -> list[str]:
    """Files of a folder with a manifest that the manifest does not know of."""
    try:
        recorded = json.loads((output / MANIFEST).read_bytes())["files"]
        known = {str(file["name"]) for file in recorded} | OWN_FILES
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        known = set(OWN_FILES)
    with writing(output):
        found = [path for path in output.rglob("*") if path.is_symlink() or not path.is_dir()]
    names = sorted(path.relative_to(output).as_posix() for path in found)
    return [name for name in names if name not in known]


def beside(output: Path) -> Path:
    """Where the restore patch of an output folder lies."""
    return output.with_name(output.name + RESTORE)


def _check_beside(output: Path, *, force: bool) -> None:
    # It may be all that is left of another edit's removed bytes.
    patch = beside(output)
    if os.path.lexists(patch) and (not force or not patch.is_file() or patch.is_symlink()):
        raise UsageError(
            f"{patch} exists, the restore patch of another edit",
            "choose another output, move it, or pass --force to replace it",
        )


def _claim(partial: Path) -> IO[bytes]:
    """Create `partial` with its locked marker, in place of what a killed process left."""
    if os.path.lexists(partial):
        _remove_stale(partial)
    partial.mkdir()
    marker = (partial / MARKER).open("wb")
    fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return marker


def _remove_stale(partial: Path) -> None:
    _check_stale(partial)
    shutil.rmtree(partial)


def _check_stale(partial: Path) -> None:
    """Raise unless `partial` was left by a process of ours that is gone."""
    marker = partial / MARKER
    ours = partial.is_dir() and not partial.is_symlink()
    # A kill between mkdir and the marker leaves an empty folder, which nobody misses.
    if not ours or (os.listdir(partial) and not marker.is_file()):
        raise UsageError(
            f"{partial} is in the way, and was not left by the editor (it has no {MARKER})",
            "move or delete it, or choose another output folder",
        )
    if marker.is_file():
        with marker.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"another process is writing {partial} just now", "wait for it to end"
                ) from error


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(partial: Path, output: Path) -> None:
    if (partial / RESTORE).exists():
        os.replace(partial / RESTORE, beside(output))
    if not output.exists() or not os.listdir(output):
        os.rename(partial, output)
    else:
        _replace(partial, output)
    _sync(output.parent)


def _replace(partial: Path, output: Path) -> None:
    aside = output.with_name(output.name + ".replaced")
    if os.path.lexists(aside):
        raise UsageError(
            f"{aside} is in the way: an interrupted replacement left it",
            f"it is the folder that {output} was before; move or delete it",
        )
    os.rename(output, aside)
    try:
        os.rename(partial, output)
    except BaseException:
        os.rename(aside, output)
        raise
    try:
        shutil.rmtree(aside)
    except OSError as error:
        raise EditorError(
            f"{output} is in place, but the folder that it replaced could not be removed",
            f"delete {aside} yourself ({error.strerror})",
        ) from error
