"""Rows of data sets in a local folder: as files with the Hub's fields, or as packages have them.

Packages have the same rows in other shapes; each shape here gives the Hub's fields back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from editor.datasets import DataSet
from editor.errors import UsageError
from editor.row_files import SUFFIXES, Row, check_file, checked, lines_of, named, read_rows
from editor.wording import one_line

MAX_FILES = 1000


def local_rows(folder: Path, data_set: DataSet) -> tuple[Row, ...] | None:
    """The rows of a data set in a folder; None where it is not there.

    Args:
        folder: what `--data-dir` names.

    Raises:
        UsageError: the folder is missing, or what is there is damaged.
    """
    if not folder.is_dir():
        raise UsageError(f"{one_line(str(folder))} is no folder", "give one with --data-dir")
    files = [folder / f"{data_set.name}{suffix}" for suffix in SUFFIXES]
    files = [path for path in files if path.is_symlink() or path.exists()]
    if len(files) > 1:
        both = " and ".join(one_line(path.name) for path in files)
        raise UsageError(f"{one_line(str(folder))} holds both {both}", "leave one of them")
    if files:
        return as_published(files[0], data_set)
    return _of_package(folder, data_set)


def as_published(path: Path, data_set: DataSet) -> tuple[Row, ...]:
    """The rows of a file whose rows have the Hub's fields.

    Raises:
        UsageError: they do not, or the file cannot be read.
    """
    return _checked(path, read_rows(path), data_set)


def _of_package(folder: Path, data_set: DataSet) -> tuple[Row, ...] | None:
    """The rows as an unpacked package has them; None where it is not there."""
    if data_set.packaged is None:
        return None
    files = sorted(folder.glob(data_set.packaged.pattern))
    if len(files) > MAX_FILES:
        raise UsageError(f"{one_line(str(folder))} holds more than {MAX_FILES} files of a kind")
    shape = SHAPES[data_set.packaged.shape]
    rows: list[Row] = []
    for path in files:
        _check_inside(path, folder)
        rows += _checked(path, shape(path), data_set)
    return tuple(rows) or None


def _check_inside(path: Path, folder: Path) -> None:
    """That no link below the folder's own entries leads out of them.

    An entry of the folder itself may be a link: whoever made the folder made that.

    Raises:
        UsageError: one does.
    """
    entry = folder / path.relative_to(folder).parts[0]
    if not path.resolve().is_relative_to(entry.resolve()):
        raise UsageError(
            f"{one_line(str(path))} is a link that leads out of the folder",
            "put the file itself there",
        )


def _checked(path: Path, rows: Iterator[Row], data_set: DataSet) -> tuple[Row, ...]:
    shown = one_line(str(path))
    found = tuple(
        checked(row, data_set.fields, f"{shown}: row {number}")
        for number, row in enumerate(rows, start=1)
    )
    if not found:
        raise UsageError(f"{shown} has no rows")
    return found


def _docs(path: Path) -> Iterator[Row]:
    """`doc` of each item of a request file, in which an item stands once a choice and twice."""
    seen: set[str] = set()
    for row in read_rows(path):
        doc = row.get("doc")
        if not isinstance(doc, dict):
            raise UsageError(f"{one_line(str(path))}: a row has no `doc`: no request file")
        # The publisher's id is not in all of them, and some sets give one to several items.
        key = json.dumps([row.get("native_id"), doc], sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield cast("Row", doc)


def _arc(path: Path) -> Iterator[Row]:
    """ARC's fields; the labels of its choices are left out there, and are letters here."""
    for doc in _docs(path):
        query, texts, gold = doc.get("query"), doc.get("choices"), doc.get("gold")
        before, after = "Question: ", "\nAnswer:"
        written = isinstance(query, str) and query.startswith(before) and query.endswith(after)
        if not written or not isinstance(texts, list) or not isinstance(gold, int):
            raise UsageError(f"{one_line(str(path))}: an item is no question of ARC")
        labels = [chr(ord("A") + at) for at in range(len(cast("list[Any]", texts)))]
        if not 0 <= gold < len(labels) <= 26:
            raise UsageError(f"{one_line(str(path))}: an item's answer is none of its choices")
        yield {
            "id": doc.get("id"),
            "question": cast("str", query)[len(before) : -len(after)],
            "choices": {"text": texts, "label": labels},
            "answerKey": labels[gold],
        }


def _asdiv(path: Path) -> Iterator[Row]:
    """ASDiv's fields; there the unit follows the number, on the Hub it stands in brackets."""
    for row in read_rows(path):
        number, _, unit = str(row.get("answer")).partition(" ")
        answer = f"{number} ({unit})" if unit else number
        yield {"body": row.get("passage"), "question": row.get("question"), "answer": answer}


def _dictionary(path: Path) -> Iterator[Row]:
    """Words and their phones, without remarks."""
    check_file(path)
    with named(path):
        for number, line in lines_of(path):
            word, _, phones = line.partition(" #")[0].strip().partition(" ")
            if not word or word.startswith(";;;"):
                continue
            if not phones.strip():
                raise UsageError(f"{one_line(str(path))}:{number}: a word without its phones")
            yield {"word": word, "phones": phones.strip()}


SHAPES: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    "rows": read_rows,
    "doc": _docs,
    "arc": _arc,
    "asdiv": _asdiv,
    "dictionary": _dictionary,
}
"""How the rows of a package's file become rows with the Hub's fields."""
