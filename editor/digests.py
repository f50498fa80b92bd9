"""sha256 of weight files, remembered: a large model is hashed once, not by every command.

A digest is believed while the file's device, inode, size and time of change are those that it had
(a hard link alters its other time).  What has to be proved never asks here: `verify` reads all.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from editor.layout import digest_file, reading, source_files
from editor.records import FileDigest
from editor.store import write_atomic

DECIDING = (".json", ".jinja", ".model", ".txt", ".tiktoken", ".py")
"""Suffixes of the files beside the weights that change what a model computes or reads."""
_SETTLED_S = 2.0
"""A file that changed this shortly before may change again within the clock's grain."""


def remembered_digest(folder: Path, name: str, cache: Path) -> FileDigest:
    """Size and sha256 of one file, from an earlier command where it is unchanged since.

    Args:
        folder: The folder of the file.
        name: The file's name in it.
        cache: Folder where digests are kept.

    Raises:
        ModelError: The file cannot be read.
    """
    path = folder / name
    with reading(path):
        place = os.path.realpath(path)
        state = _state(path)
    note = cache / "digests" / f"{hashlib.sha256(os.fsencode(place)).hexdigest()}.json"
    with suppress(OSError, ValueError, AttributeError, TypeError):
        known = json.loads(note.read_bytes())
        if known["state"] == state and len(bytes.fromhex(known["sha256"])) == 32:
            return FileDigest(name=name, n_bytes=state[2], sha256=known["sha256"])
    began = time.time()
    digest = digest_file(folder, name)
    with reading(path):
        unchanged = _state(path) == state
    if unchanged and began - state[3] / 1e9 > _SETTLED_S:
        # A cache that cannot be written costs time, and nothing else.
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(note, json.dumps({"state": state, "sha256": digest.sha256}))
    return digest


def identity(root: Path, weights: Sequence[str], cache: Path) -> str:
    """sha256 over the digests of all files that decide what a model says.

    Args:
        root: The model's folder.
        weights: Names of its weight files.
        cache: Folder where digests are kept.

    Raises:
        ModelError: One of them cannot be read.
    """
    names = [name for name, _ in source_files(root) if name.endswith(DECIDING)]
    files = [remembered_digest(root, name, cache) for name in weights]
    files += [digest_file(root, name) for name in names if name not in set(weights)]
    text = "\n".join(f"{file.name} {file.sha256}" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()


def _state(path: Path) -> list[int]:
    at = path.stat()
    return [at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns]
