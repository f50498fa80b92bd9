"""The restore patch: what an edit took out of a checkpoint, and how it is put back.

    OUT.restore.zip    restore.json   the base's files with their sha256, and the byte ranges
                       removed/FILE   the bytes of those ranges, in the order of the file
                       replaced/FILE  the base's files that the edit's own took the place of

It lies beside the edited folder, not in it: whoever publishes the folder would else publish with it
what was removed.  An ordinary zip file, stored without compression, the same for the same edit.
"""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, cast

import numpy as np
from pydantic import ValidationError

from editor.errors import CheckFailed, ModelError
from editor.layout import CHUNK_BYTES, digest_file, reading
from editor.patching import MAX_ROW_BYTES, Bytes, Patch, copy_patched
from editor.records import FileDigest, Record, RestorePatch, Rows, Written
from editor.safetensors_header import parse_json, shown
from editor.staging import MARKER, RESTORE, check_space, writing

SCHEMA_VERSION = 1
_CONTENTS = "restore.json"
_MAX_CONTENTS_BYTES = 64 << 20
_MAX_TABLE_BYTES = 8 << 20
_END, _END64 = struct.Struct("<12sL6s"), struct.Struct("<40sQ8s")


class Contents(Record):
    """`restore.json`: what the patch restores."""

    schema_version: int
    base_files: tuple[FileDigest, ...]
    """Every file of the base, weights and others."""
    edited_files: tuple[FileDigest, ...]
    """The same files as the edit left them; those that it left out are missing."""
    written: tuple[Written, ...]


class RestoreWriter:
    """Writes a restore patch; made by `recording`."""

    def __init__(self, archive: zipfile.ZipFile, folder: Path) -> None:
        self._archive, self._folder = archive, folder
        self._removed: dict[str, IO[bytes]] = {}

    def removed(self, file: str) -> IO[bytes]:
        """A stream for the bytes that are removed from one file; several may be open at a time."""
        # An archive takes one file after the other, so they wait in files without names.
        stream = cast("IO[bytes]", TemporaryFile(dir=self._folder))  # noqa: SIM115  until `close`
        self._removed[file] = stream
        return stream

    def replaced(self, folder: Path, file: str) -> FileDigest:
        """Keep a file of the base whole."""
        with (
            (folder / file).open("rb") as source,
            self._archive.open(_entry(f"replaced/{file}"), "w", force_zip64=True) as stream,
        ):
            while piece := source.read(CHUNK_BYTES):
                stream.write(piece)
        return digest_file(folder, file)

    def contents(self, contents: Contents) -> None:
        """Write what was removed, and say what the patch restores: the last thing to be done."""
        for file, stream in sorted(self._removed.items()):
            stream.seek(0)
            with self._archive.open(_entry(f"removed/{file}"), "w", force_zip64=True) as target:
                shutil.copyfileobj(stream, target, CHUNK_BYTES)
        self._archive.writestr(_entry(_CONTENTS), contents.model_dump_json(indent=1))

    def close(self) -> None:
        """Let go of what was kept for the archive."""
        for stream in self._removed.values():
            stream.close()


@contextmanager
def recording(path: Path) -> Generator[RestoreWriter]:
    """Write a restore patch at `path`, which must not exist."""
    with writing(path), zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as archive:
        writer = RestoreWriter(archive, path.parent)
        try:
            yield writer
        finally:
            writer.close()


def digest_patch(path: Path) -> RestorePatch:
    """Size and sha256 of a finished patch."""
    digest = digest_file(path.parent, path.name)
    return RestorePatch(n_bytes=digest.n_bytes, sha256=digest.sha256)


def undo(edited: Path, patch: Path, folder: Path) -> tuple[FileDigest, ...]:
    """Write the base that `edited` was made from.

    Args:
        edited: The edited checkpoint's folder.
        patch: Its restore patch.
        folder: An existing folder for the base, such as `staged` yields.

    Returns:
        The base's files, every one with the sha256 that the base had.

    Raises:
        ModelError: The patch is missing, damaged, or contradicts itself.
        CheckFailed: The edited files are not those that the patch was made for.
    """
    with reading(patch), _opened(patch) as archive:
        contents = _read_contents(archive, patch)
        with writing(folder):
            check_space(folder, sum(file.n_bytes for file in contents.base_files))
        names = set(archive.namelist())
        as_edited = {file.name: file for file in contents.edited_files}
        for file in contents.base_files:
            target = folder / file.name
            with writing(target):
                target.parent.mkdir(parents=True, exist_ok=True)
            if f"replaced/{file.name}" in names:
                _extract(archive, f"replaced/{file.name}", target, file, patch)
                continue
            if file.name not in as_edited:
                raise ModelError(f"{patch}: holds nothing for {shown(file.name)}", _DAMAGED)
            _restore(edited, archive, contents, as_edited[file.name], file, target)
        return contents.base_files


_DAMAGED = "the restore patch is damaged: take another copy of it, or the base itself"


def _restore(
    edited: Path,
    archive: zipfile.ZipFile,
    contents: Contents,
    before: FileDigest,
    after: FileDigest,
    target: Path,
) -> None:
    source = edited / before.name
    if not source.is_file():
        raise CheckFailed(f"{source} is missing", "give the folder as the edit left it")
    written = [one for one in contents.written if one.file == before.name]
    with reading(source), _removed(archive, before.name, bool(written)) as stream:
        found = copy_patched(source, target, _patches(written, stream))
    if (found.before, found.n_bytes) != (before.sha256, before.n_bytes):
        raise CheckFailed(
            f"{source}: is not the file that the edit wrote: its size or sha256 differs",
            "the files were changed after the edit, or the patch is of another edit",
        )
    if found.after != after.sha256:
        raise CheckFailed(f"{source}: the restore patch does not give the base's bytes", _DAMAGED)


@contextmanager
def _removed(archive: zipfile.ZipFile, name: str, is_there: bool) -> Generator[IO[bytes] | None]:
    if not is_there:
        yield None
        return
    try:
        stream = archive.open(f"removed/{name}")
    except KeyError as error:
        raise ModelError(f"{archive.filename}: {error.args[0]}", _DAMAGED) from error
    with stream:
        yield stream


def _patches(written: list[Written], stream: IO[bytes] | None) -> Iterator[Patch]:
    """Patches that put the removed bytes back, a few rows each, in the order of the file."""
    spans = sorted((rows.start, n) for n, one in enumerate(written) for rows in one.rows)
    by_start = {rows.start: rows for one in written for rows in one.rows}
    for start, _ in spans:
        if stream is not None:
            yield from _row_patches(by_start[start], stream)


def _row_patches(rows: Rows, stream: IO[bytes]) -> Iterator[Patch]:
    mask = np.zeros(rows.row_bytes, np.uint8)
    for a, b in rows.columns:
        mask[a:b] = 0xFF
    wide = int(np.count_nonzero(mask))
    step = max(1, CHUNK_BYTES // rows.row_bytes)
    for first in range(0, rows.n_rows, step):
        n = min(step, rows.n_rows - first)
        value: Bytes = np.zeros((n, rows.row_bytes), np.uint8)
        kept = stream.read(n * wide)
        if len(kept) != n * wide:
            raise ModelError("the restore patch ends too early", _DAMAGED)
        value[:, mask != 0] = np.reshape(np.frombuffer(kept, np.uint8), (n, wide))
        yield Patch(rows.start + first * rows.row_bytes, rows.row_bytes, n, mask, value)


# What zipfile raises of damaged files is not all BadZipFile: names may be no UTF-8, for one.
_UNREADABLE = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeError,
    struct.error,
)


@contextmanager
def _opened(patch: Path) -> Generator[zipfile.ZipFile]:
    if not patch.is_file():
        raise ModelError(
            f"{patch}: the restore patch is missing", "say where it is with --restore FILE"
        )
    _check_table(patch)
    try:
        with zipfile.ZipFile(patch) as archive:
            stored = all(one.compress_type == zipfile.ZIP_STORED for one in archive.infolist())
            if not stored:
                raise ModelError(f"{patch}: holds compressed files, which no patch has", _DAMAGED)
            yield archive
    except _UNREADABLE as error:
        raise ModelError(f"{patch}: cannot be read: {error}", _DAMAGED) from error


def _check_table(patch: Path) -> None:
    """Refuse a table of contents that would fill the memory: zipfile reads it whole."""
    with patch.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        # As patches are written, without a comment: end record, or locator and record of zip64.
        file.seek(max(0, size - _END.size - _END64.size - 20))
        tail = file.read()
    if len(tail) < _END.size or not tail.startswith(b"PK\x05\x06", len(tail) - _END.size):
        raise ModelError(f"{patch}: its table of contents is missing", _DAMAGED)
    sizes = [_END.unpack(tail[-_END.size :])[1]]
    if tail.startswith(b"PK\x06\x06") and len(tail) >= _END64.size:
        sizes = [_END64.unpack_from(tail)[1]]
    if max(sizes) > _MAX_TABLE_BYTES:
        raise ModelError(f"{patch}: its table of contents takes {max(sizes)} bytes", _DAMAGED)


def _read_contents(archive: zipfile.ZipFile, patch: Path) -> Contents:
    try:
        with archive.open(_CONTENTS) as stream:
            text = stream.read(_MAX_CONTENTS_BYTES + 1)
        parse_json(text, patch, what=_CONTENTS)  # for what pydantic lets pass
        contents = Contents.model_validate_json(text)
    except (KeyError, ValidationError) as error:
        raise ModelError(f"{patch}: {_CONTENTS} is missing or damaged", _DAMAGED) from error
    if contents.schema_version != SCHEMA_VERSION:
        raise ModelError(
            f"{patch}: schema_version should be {SCHEMA_VERSION}, found {contents.schema_version}",
            "undo with the version of the editor that wrote it",
        )
    for files in (contents.base_files, contents.edited_files):
        names = {file.name for file in files}
        for name in names:
            _check_name(name, patch)
        folders = {"/".join(parts[:n]) for parts in _parts(names) for n in range(1, len(parts))}
        if len(names) < len(files) or names & folders:
            raise ModelError(f"{patch}: names a file twice", _DAMAGED)
    _check_rows(contents, patch)
    return contents


def _check_name(name: str, patch: Path) -> None:
    # The first part may be a name that `staged` gives a meaning to.
    parts = name.split("/")
    plain = name.isprintable() and parts[0] not in (MARKER, RESTORE)
    if not plain or any(at in ("", ".", "..") or len(at.encode()) > 255 for at in parts):
        raise ModelError(f"{patch}: names the file {shown(name)}, which lies elsewhere", _DAMAGED)


def _parts(names: Iterable[str]) -> Iterator[list[str]]:
    return (name.split("/") for name in names)


def _check_rows(contents: Contents, patch: Path) -> None:
    """Ranges inside their files, in order and apart: what follows takes them as they are."""
    rows: dict[str, list[Rows]] = {}
    for one in contents.written:
        rows.setdefault(one.file, []).extend(one.rows)
    for file in contents.edited_files:
        end = 0
        for at in sorted(rows.get(file.name, ()), key=lambda at: at.start):
            fits = at.start >= end and _is_sound(at)
            end = at.start + at.n_rows * at.row_bytes
            if not fits or end > file.n_bytes:
                raise ModelError(f"{patch}: a range lies outside of {shown(file.name)}", _DAMAGED)


def _is_sound(rows: Rows) -> bool:
    edges = [edge for pair in rows.columns for edge in pair]
    rising = bool(edges) and edges == sorted(set(edges))
    sizes = 0 < rows.row_bytes <= MAX_ROW_BYTES and rows.n_rows > 0
    return rising and sizes and edges[0] >= 0 and edges[-1] <= rows.row_bytes


def _extract(
    archive: zipfile.ZipFile, name: str, target: Path, expected: FileDigest, patch: Path
) -> None:
    with archive.open(name) as stream, writing(target), target.open("xb") as out:
        n_left = expected.n_bytes + 1
        while n_left > 0 and (piece := stream.read(min(CHUNK_BYTES, n_left))):
            out.write(piece)
            n_left -= len(piece)
    if (
        digest_file(target.parent, target.name).model_copy(update={"name": expected.name})
        != expected
    ):
        raise ModelError(f"{patch}: {shown(name)} is not the base's file", _DAMAGED)


def _entry(name: str) -> zipfile.ZipInfo:
    # A fixed time: the same edit gives the same patch.
    return zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
