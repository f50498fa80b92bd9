"""sha256 of weight files, remembered: a large model is hashed once, not by every command.

A digest is believed while the file's device, inode, size and time of change are those that it had
(a hard link alters its other time).  What has to be proved never asks here: `verify` reads all.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from editor.layout import digest_file, reading
from editor.records import FileDigest
from editor.store import write_atomic

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


def _state(path: Path) -> list[int]:
    at = path.stat()
    return [at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns]
