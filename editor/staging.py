"""A folder that appears whole or not at all: written beside its final place, then renamed.

    <output>.partial   the folder while it is written, with the marker `.editor-partial` inside
    <output>.replaced  the old folder, for the instant between the two renames under `force`

A marker without a running owner (its file lock is free) is what a killed process left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from editor.errors import EditorError, UsageError

MARKER = ".editor-partial"
"""File that says: this folder is unfinished, and the editor may delete it."""
MANIFEST = "editor.json"
"""File that says: this folder was written by the editor, so `force` may replace it."""
SPACE_MARGIN_BYTES = 64 << 20


@contextmanager
def staged(output: Path, *, force: bool, base: Path | None = None) -> Generator[Path]:
    """Yield an empty folder that becomes `output` when the block ends well.

    Args:
        output: The final folder; its missing parents are created.
        force: Replace `output` if it is empty or holds `editor.json`.
        base: A folder that is read meanwhile, so `output` may not be it, hold it or lie in it.

    Yields:
        `<output>.partial`, removed again when the block raises, whatever it raises.

    Raises:
        UsageError: `output` exists, is not the editor's, or its place cannot be written.
        EditorError: The disk is full or fails.
    """
    output = Path(os.path.abspath(output))
    check_output(output, force=force, base=base)
    partial = output.with_name(output.name + ".partial")
    with writing(output):
        marker = _claim(partial)
        try:
            yield partial
            # The lock lives until the marker is gone; its content must not reach the output.
            (partial / MARKER).unlink()
            _sync_tree(partial)
            _check_free(output, force=force)
            _publish(partial, output)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        finally:
            marker.close()


def check_output(output: Path, *, force: bool, base: Path | None = None) -> None:
    """Raise what `staged` would, before any work is done for it.

    Raises:
        UsageError: `output` exists and may not be replaced, or lies in `base` or holds it.
    """
    output = Path(os.path.abspath(output))
    _check_apart(output, base)
    _check_free(output, force=force)
    partial = output.with_name(output.name + ".partial")
    if os.path.lexists(partial):
        _check_stale(partial)
    parent = _existing_parent(output.parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"cannot write into {parent}", "choose another output folder, or change its permissions"
        )


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Turn what the operating system refuses inside the block into one clear line.

    Raises:
        UsageError: The place is not writable.
        EditorError: The disk is full, or another fault of the disk.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing_parent(path)).free
            raise EditorError(
                f"the disk of {path} is full: {reason}",
                f"{free} bytes are free there; free some, or choose another disk",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise UsageError(
                f"cannot write {error.filename or path}: {reason}",
                "choose another output folder, or change its permissions",
            ) from error
        raise EditorError(f"writing {error.filename or path} failed: {reason}") from error


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise before a long copy that the disk could not hold.

    Raises:
        EditorError: `folder`'s disk has less than `needed_bytes` and a margin of 64 MiB free.
    """
    needed = needed_bytes + SPACE_MARGIN_BYTES
    free = shutil.disk_usage(_existing_parent(folder)).free
    if free < needed:
        raise EditorError(
            f"the disk of {folder} is too small: {needed} bytes are needed, {free} are free",
            f"free {needed - free} bytes, or choose a folder on another disk",
        )


def _existing_parent(path: Path) -> Path:
    return next((at for at in (path, *path.parents) if at.exists()), Path(path.anchor or "."))


def _check_apart(output: Path, base: Path | None) -> None:
    if base is None:
        return
    there, source = output.resolve(), base.resolve()
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


def _claim(partial: Path) -> IO[bytes]:
    """Create `partial` with its locked marker, in place of what a killed process left."""
    partial.parent.mkdir(parents=True, exist_ok=True)
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
