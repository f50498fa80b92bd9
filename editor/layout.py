"""Which files make up a checkpoint's folder, and which tensor lies in which of them.

    config.json + model.safetensors.index.json (or one model.safetensors) -> {tensor: file}

The index decides which files are weights; every name in it is untrusted, and so is every link.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from editor.errors import ModelError
from editor.records import FileDigest
from editor.safetensors_header import (
    MAX_COMPANION_BYTES,
    MAX_HEADER_BYTES,
    Header,
    TensorEntry,
    parse_json,
    read_header,
    shown,
)
from editor.staging import CARD, MANIFEST, MARKER, REPORT, RESTORE, SIGNATURE

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CHUNK_BYTES = 4 << 20
"""Size of the buffers through which files are copied and hashed."""

SAFE_CONVERSION = (
    "pickled weights can run code when they are loaded: convert them to safetensors in a place of "
    "no value, with AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder) of "
    "transformers, which loads tensors only, then copy the tokenizer's files"
)
"""What to do with weights that are not safetensors."""

_NOT_COPIED = (MANIFEST, MARKER, RESTORE, SIGNATURE, REPORT)
_WRITTEN = (*_NOT_COPIED, CARD)
"""Names that an edit has files of its own for: a folder of that name would be in their way."""
_MAX_DEPTH = 32
_MAX_FILES = 1 << 14
"""Weight files of one index; the largest models have some hundreds."""
_MAX_NAME_BYTES = 255
_WEIGHT_SUFFIXES = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
)


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Turn what the operating system refuses while `path` is read into a `ModelError`."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"{error.filename or path}: cannot be read: {error.strerror or error}",
            "check that it is there and whole",
        ) from error


def read_headers(folder: Path) -> dict[str, Header]:
    """Read the headers of all weight files, checked against the index.

    Args:
        folder: A checkpoint with `config.json` and safetensors.

    Returns:
        Header by file name, sorted by name.

    Raises:
        ModelError: A file is missing or damaged, or index and files contradict one another.
    """
    if not folder.is_dir():
        raise ModelError(
            f"{folder}: expected a folder with {CONFIG} and {SINGLE}, found "
            f"{'a file' if folder.exists() else 'nothing'}",
            "check the path",
        )
    if not (folder / CONFIG).is_file():
        hint = "give the model's folder, or download the file from where the model came from"
        if (folder / "adapter_config.json").is_file():
            hint = "this is an adapter: merge it into its base model first"
        raise ModelError(f"{folder}: {CONFIG} is missing", hint)
    if os.path.lexists(folder / INDEX):
        return _indexed_headers(folder)
    if not (folder / SINGLE).is_file():
        _no_safetensors(folder)
    return {SINGLE: read_header(folder / SINGLE)}


def read_tensor(path: Path, name: str, entry: TensorEntry) -> bytes:
    """The bytes of one small tensor, such as those beside a quantized weight.

    Raises:
        ModelError: It is too large to be that, or cannot be read.
    """
    n_bytes = entry.stop - entry.start
    if n_bytes > MAX_COMPANION_BYTES:
        raise ModelError(
            f"{path}: tensor {shown(name)} has {n_bytes} bytes, expected at most "
            f"{MAX_COMPANION_BYTES}",
            "the file is damaged: download it again",
        )
    with reading(path), path.open("rb") as stream:
        stream.seek(entry.start)
        return stream.read(n_bytes)


def other_weights(folder: Path) -> tuple[str, ...]:
    """Files that look like weights but are not the ones the index names.

    An edit leaves them as they are, so they may still hold what was removed.
    """
    weights = set(read_headers(folder))
    names = (name for name, _ in source_files(folder))
    return tuple(n for n in names if n.lower().endswith(_WEIGHT_SUFFIXES) and n not in weights)


def digest_file(folder: Path, name: str) -> FileDigest:
    """Size and sha256 of one file, streamed.

    Raises:
        ModelError: The file cannot be read.
    """
    sha, n_bytes, buffer = hashlib.sha256(), 0, bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with reading(folder / name), (folder / name).open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            sha.update(view[:size])
            n_bytes += size
    return FileDigest(name=name, n_bytes=n_bytes, sha256=sha.hexdigest())


def source_files(folder: Path) -> list[tuple[str, int]]:
    """Every file that belongs to a copy of `folder`, with its size in bytes, sorted by name.

    Left out: the editor's own files and a signature, which are not true of a copy, and folders that
    begin with a dot.

    Raises:
        ModelError: A link leads out of the folder (other than into the blobs of the Hub's cache
            that it is a snapshot of), something is neither file nor folder, or a name holds what
            no name should.
    """
    root = folder.resolve()
    allowed = [root]
    if root.parent.name == "snapshots":
        allowed.append(root.parent.parent / "blobs")
    with reading(folder):
        return sorted(_walk(root, "", allowed))


def _walk(folder: Path, prefix: str, allowed: list[Path]) -> Iterator[tuple[str, int]]:
    for entry in sorted(os.scandir(folder), key=lambda at: at.name):
        name = prefix + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.name.startswith("."):
            continue
        _check_copied(name, is_folder)
        if is_folder:
            yield from _walk(Path(entry.path), f"{name}/", allowed)
            continue
        # Also of a file that is not copied: what it leads to may be read.
        if entry.is_symlink():
            _check_link(Path(entry.path), allowed)
        if name in _NOT_COPIED:
            continue
        status = entry.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(
                f"{entry.path}: expected a file, found something that cannot be copied",
                "remove it from the model's folder",
            )
        yield name, status.st_size


def _check_copied(name: str, is_folder: bool) -> None:
    # A manifest records every name, as UTF-8, and a restore patch is not trusted with a worse one.
    if not name.isprintable():
        raise ModelError(
            f"the model's folder holds {shown(name)}, a name with characters that cannot be shown",
            "rename or remove it",
        )
    if is_folder and name in _WRITTEN:
        raise ModelError(
            f"the model's folder holds a folder {name}, where an edited model has a file",
            "rename or remove it",
        )
    if name.count("/") > _MAX_DEPTH:
        raise ModelError(
            f"the model's folder holds folders in folders more than {_MAX_DEPTH} deep, such as "
            f"{shown(name)}",
            "remove them: they are no part of a model",
        )


def _check_link(link: Path, allowed: list[Path]) -> None:
    # A downloaded folder may hold a link to a private file, which a copy would then publish; a
    # linked folder may also hold itself.
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{link}: the link leads nowhere", "download the file again") from error
    if target.is_dir() or not any(target.is_relative_to(root) for root in allowed):
        raise ModelError(
            f"{link}: the link leads to {'a folder' if target.is_dir() else 'a file outside'}, "
            f"{target}, which is not copied",
            "put the file itself in the link's place, if it belongs to the model",
        )


def _indexed_headers(folder: Path) -> dict[str, Header]:
    weight_map = _read_index(folder / INDEX)
    files = sorted(set(weight_map.values()))
    if (folder / SINGLE).exists() and files != [SINGLE]:
        raise ModelError(
            f"{folder}: has both {SINGLE} and {INDEX}, which names other files; "
            "programs differ in which one they load",
            "remove the one that does not belong there",
        )
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise ModelError(
            f"{folder}: {shown(missing[0])} is missing; {INDEX} names it"
            + (f", and {len(missing) - 1} more are missing" if len(missing) > 1 else ""),
            "finish the download",
        )
    headers = {file: read_header(folder / file) for file in files}
    for name, file in weight_map.items():
        if name not in headers[file].tensors:
            raise ModelError(
                f"{folder / file}: tensor {shown(name)} should be in it by {INDEX}, but is not",
                "index and files are of different versions: download both again",
            )
    for file, header in headers.items():
        for name in header.tensors:
            if weight_map.get(name) != file:
                raise ModelError(
                    f"{folder / file}: holds tensor {shown(name)}, which {INDEX} "
                    f"{'puts into another file' if name in weight_map else 'does not name'}",
                    "index and files are of different versions: download both again",
                )
    return headers


def _read_index(path: Path) -> dict[str, str]:
    index = parse_json(read_small(path, MAX_HEADER_BYTES), path, what="the index")
    raw = index.get("weight_map")
    if not isinstance(raw, dict) or not raw:
        raise ModelError(
            f"{path}: weight_map should be an object that names a file for each tensor, "
            f"found {shown(index.get('weight_map'))}",
            "download the file again",
        )
    weight_map: dict[str, str] = {}
    plain: set[str] = set()
    for name, file in cast("dict[str, object]", raw).items():
        if not isinstance(file, str) or (file not in plain and not _is_plain(file)):
            raise ModelError(
                f"{path}: tensor {shown(name)} should be in a *.safetensors file of this folder, "
                f"found {shown(file)}",
                "a file name may not lead out of the folder: use another copy of the model",
            )
        weight_map[name] = file
        plain.add(file)
        if len(plain) > _MAX_FILES:
            raise ModelError(
                f"{path}: should name at most {_MAX_FILES} files, found more",
                "download the file again",
            )
    return weight_map


def _is_plain(name: str) -> bool:
    # Colons are Windows' drives and streams; a leading dot also covers `.` and `..`.
    strange = any(c in "/\\:" or not c.isprintable() for c in name)
    strange = strange or len(name.encode("utf-8", "replace")) > _MAX_NAME_BYTES
    return name.endswith(".safetensors") and not name.startswith(".") and not strange


def read_small(path: Path, limit_bytes: int) -> bytes:
    """Read a text file whole, unless it is larger than such a file can sensibly be.

    Raises:
        ModelError: The file cannot be read, or has more than `limit_bytes`.
    """
    with reading(path):
        if not path.is_file():
            raise ModelError(f"{path}: expected a file", "check that it is there and whole")
        with path.open("rb") as file:
            text = file.read(limit_bytes + 1)
    if len(text) > limit_bytes:
        raise ModelError(
            f"{path}: expected at most {limit_bytes} bytes, found more", "download the file again"
        )
    return text


def _no_safetensors(folder: Path) -> None:
    with reading(folder):
        names = sorted(os.listdir(folder))
    pickled = [n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    hint = "give the folder that holds the weights, or finish the download"
    found = "no weights"
    if pickled:
        found = f"only pickled weights ({shown(pickled[0])})"
        hint = SAFE_CONVERSION
    elif any(n.endswith(".gguf") for n in names):
        found = "only a GGUF file"
        hint = "give the GGUF file itself, or the original safetensors model"
    elif any(n.endswith(".safetensors") for n in names):
        found = f"safetensors of other names, without {INDEX}"
        hint = f"rename a single file to {SINGLE}, or download the index"
    raise ModelError(f"{folder}: {SINGLE} (or {INDEX}) is missing: found {found}", hint)
