"""Rows out of files that strangers wrote: JSON lines, JSON, CSV, Parquet and Arrow.

Nothing in them is run.  Sizes are bounded before they are believed, and every fault of a file is
one line that names it, with the number of its line where it has lines.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import stat
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, Any, cast

from editor.datasets import Kind
from editor.errors import UsageError
from editor.wording import one_line

MAX_BYTES = 1 << 30
"""Of a file, unpacked: the largest one of those that are known has 50 million."""
MAX_LINE = 16 << 20
MAX_ROWS = 1_000_000
MAX_TEXT = 1_000_000
"""Characters of one text."""
_BATCH_ROWS = 1024
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet", ".arrow")
"""What `read_rows` reads; any of these may hold a data set."""

Row = dict[str, Any]


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, by what its name ends with.

    Raises:
        UsageError: it is missing, too large, or holds something else.
    """
    readers: dict[str, Callable[[Path], Iterator[Row]]] = {
        **{".jsonl": _json_lines, ".jsonl.gz": _json_lines, ".json": _json, ".csv": _csv},
        **{".parquet": _parquet, ".arrow": _arrow},
    }
    suffix = next(one for one in reversed(SUFFIXES) if path.name.lower().endswith(one))
    check_file(path)
    with named(path):
        yield from _counted(path, readers[suffix](path))


def check_file(path: Path) -> None:
    """That a path is a file of bearable size.

    Raises:
        UsageError: it is not.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise UsageError(f"{_shown(path)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):  # to open a pipe would wait for ever
        raise UsageError(f"{_shown(path)} is no file")
    if found.st_size > MAX_BYTES:
        raise _too_large(path)


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, unpacked where its name ends with `.gz`, numbered from 1.

    Raises:
        UsageError: it is no UTF-8, a line is too long, or all are together.
    """
    n_bytes = 0
    with _opened(path) as stream:
        number = 0
        while raw := stream.readline(MAX_LINE + 1):
            number += 1
            n_bytes += len(raw)
            if len(raw) > MAX_LINE:
                raise UsageError(f"{_shown(path)}:{number}: the line is longer than {MAX_LINE}")
            if n_bytes > MAX_BYTES:
                raise _too_large(path)
            yield number, _utf8(path, number, raw)


def checked(row: Mapping[str, Any], fields: Mapping[str, Kind], place: str) -> Row:
    """The fields of a data set in one of its rows.

    Args:
        place: where the row is, for the message.

    Raises:
        UsageError: one is missing or of another kind.
    """
    found: Row = {}
    for name, kind in fields.items():
        if name not in row:
            raise UsageError(
                f"{place}: the field {name!r} is missing",
                f"a row has the fields {', '.join(fields)}",
            )
        value = _read_as(row[name], kind)
        if value is None:
            raise UsageError(f"{place}: the field {name!r} should be {_WORDS[kind]}")
        found[name] = value
    return found


_WORDS: dict[Kind, str] = {
    "text": f"a text of at most {MAX_TEXT:,} characters",
    "number": "a whole number",
    "truth": "true or false",
    "texts": "a list of texts",
    "choices": "an object with lists of texts `text` and `label` of the same length",
}


def _read_as(value: Any, kind: Kind) -> Any:
    """The value as its kind; None where it is something else.  CSV has texts only."""
    if isinstance(value, str) and kind != "text":
        try:
            value = json.loads(value.lower() if kind == "truth" else value)
        except (ValueError, RecursionError):
            return None
    return value if _fits(value, kind) else None


def _fits(value: Any, kind: Kind) -> bool:
    if kind == "text":
        return _is_text(value)
    if kind == "truth":
        return isinstance(value, bool)
    if kind == "number":
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if kind == "texts":
        return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, Any]", value)
    texts: Any = fields.get("text")
    labels: Any = fields.get("label")
    return _fits(texts, "texts") and _fits(labels, "texts") and len(texts) == len(labels)


def _is_text(value: Any) -> bool:
    # Half of a surrogate pair, which JSON can spell, is no character.
    return (
        isinstance(value, str)
        and len(value) <= MAX_TEXT
        and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


@contextmanager
def named(path: Path) -> Generator[None]:
    """Turn faults of a file, and of the libraries that read it, into one line."""
    pyarrow: Any = import_module("pyarrow")
    faults: tuple[type[Exception], ...] = (
        OSError,
        EOFError,
        zlib.error,
        ValueError,
        pyarrow.ArrowException,
        csv.Error,
    )
    try:
        yield
    except MemoryError as error:
        raise _too_large(path) from error
    except faults as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        said = one_line(reason.strip().partition("\n")[0])[:200] or type(error).__name__
        raise UsageError(f"{_shown(path)} cannot be read: {said}") from error


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in lines_of(path):
        if line.strip():
            yield _object(_parsed(line, f"{_shown(path)}:{number}"), f"{_shown(path)}:{number}")


def _json(path: Path) -> Iterator[Row]:
    """A list of objects."""
    rows = _parsed("".join(line for _, line in lines_of(path)), _shown(path))
    if not isinstance(rows, list):
        raise UsageError(f"{_shown(path)}: should be a list of objects")
    for number, row in enumerate(cast("list[Any]", rows), start=1):
        yield _object(row, f"{_shown(path)}: row {number}")


def _csv(path: Path) -> Iterator[Row]:
    text = io.StringIO("".join(line for _, line in lines_of(path)), newline="")
    csv.field_size_limit(MAX_TEXT * 4)
    reader = csv.DictReader(text, strict=True)
    for row in reader:
        if None in row or None in row.values():
            at = f"{_shown(path)}:{reader.line_num}"
            raise UsageError(f"{at}: the row has not as many values as the heading has names")
        yield dict(row)


def _parquet(path: Path) -> Iterator[Row]:
    parquet: Any = import_module("pyarrow.parquet")
    with parquet.ParquetFile(path) as file:
        groups = range(file.metadata.num_row_groups)
        if sum(file.metadata.row_group(at).total_byte_size for at in groups) > MAX_BYTES:
            raise _too_large(path)
        yield from _of_batches(path, file.iter_batches(batch_size=_BATCH_ROWS))


def _arrow(path: Path) -> Iterator[Row]:
    """An Arrow stream, or an Arrow file, whose first bytes say so."""
    pyarrow: Any = import_module("pyarrow")
    with path.open("rb") as stream:
        if stream.read(6) == b"ARROW1":
            with pyarrow.ipc.open_file(path) as file:
                batches = (file.get_batch(at) for at in range(file.num_record_batches))
                yield from _of_batches(path, batches)
            return
        stream.seek(0)
        with pyarrow.ipc.open_stream(stream) as batches:
            yield from _of_batches(path, batches)


def _of_batches(path: Path, batches: Any) -> Iterator[Row]:
    """The rows of Arrow's batches, whose offsets are checked before anything follows them."""
    n_bytes = 0
    for batch in batches:
        batch.validate(full=True)
        n_bytes += batch.nbytes
        if n_bytes > MAX_BYTES:
            raise _too_large(path)
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            yield from batch.slice(start, _BATCH_ROWS).to_pylist()


def _counted(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        if number > MAX_ROWS:
            raise UsageError(f"{_shown(path)} has more than {MAX_ROWS:,} rows")
        yield row


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise UsageError(f"{place}: the JSON is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise UsageError(f"{place}: no JSON: {error.msg} at character {error.pos + 1}") from error
    except ValueError as error:  # a number of too many digits
        raise UsageError(f"{place}: no JSON that can be read") from error


def _object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise UsageError(f"{place}: should be a JSON object")
    return cast("Row", value)


def _utf8(path: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{_shown(path)}:{number}: byte {error.start + 1} of the line is no UTF-8",
            "save the file as UTF-8",
        ) from error


def _opened(path: Path) -> IO[bytes]:
    if path.name.lower().endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def _too_large(path: Path) -> UsageError:
    return UsageError(
        f"{_shown(path)} is larger than {MAX_BYTES >> 20} MiB, unpacked: no data set here is so"
    )


def _shown(path: Path) -> str:
    return one_line(str(path))
