"""Files of strangers: what is read, and what is told of what cannot be."""

from __future__ import annotations

import gzip
import json
import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from editor import row_files
from editor.datasets import Kind
from editor.errors import UsageError
from editor.row_files import checked, read_rows

ROWS: list[dict[str, Any]] = [
    {"question": "Why, é?", "answer": 2, "choices": ["a", 'b, "c"'], "good": True},
    {"question": "two\nlines", "answer": -1, "choices": [], "good": False},
]
FIELDS: dict[str, Kind] = {
    **{"question": "text", "answer": "number", "choices": "texts", "good": "truth"}
}


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path: Path) -> Path:
    """The rows in the form that the name asks for."""
    name = path.name
    if name.endswith(".jsonl"):
        path.write_text(lines(ROWS), "utf-8")
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines(ROWS).encode()))
    elif name.endswith(".json"):
        path.write_text(json.dumps(ROWS), "utf-8")
    elif name.endswith(".csv"):
        path.write_text(
            'question,answer,choices,good\n"Why, é?",2,"[""a"", ""b, \\""c\\""""]",True\n'
            '"two\nlines",-1,[],False\n',
            "utf-8",
        )
    elif name.endswith(".parquet"):
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        table = pa.Table.from_pylist(ROWS)
        new = pa.ipc.new_file if "file" in name else pa.ipc.new_stream
        with path.open("wb") as stream, new(stream, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize(
    "name",
    ["x.jsonl", "x.jsonl.gz", "x.json", "x.csv", "x.parquet", "x.arrow", "file.arrow", "X.JSONL"],
)
def test_every_form_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name.lower())
    path = path.rename(tmp_path / name)
    assert [checked(row, FIELDS, "here") for row in read_rows(path)] == ROWS


def test_a_byte_order_mark_and_empty_lines_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines(ROWS).replace("\n", "\n\n").encode())
    assert list(read_rows(path)) == ROWS


def said(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        list(read_rows(path))
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("x.jsonl", b'{"a": 1}\n{"a": \n', ":2: no JSON"),
        ("x.jsonl", b'{"a": 1}\n[1]\n', ":2: should be a JSON object"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xe9"}\n', ":2: byte 8 of the line is no UTF-8"),
        ("x.jsonl", b"[" * 200_000, ":1: the JSON is nested too deeply"),
        ("x.jsonl", b'{"a": ' + b"9" * 5000 + b"}", ":1: no JSON that can be read"),
        ("x.json", b'{"a": 1}', "should be a list of objects"),
        ("x.json", b"[1]", "row 1: should be a JSON object"),
        ("x.csv", b"a,b\n1,2\n3\n", ":3: the row has not as many values"),
        ("x.csv", b"a,b\n1,2,3\n", ":2: the row has not as many values"),
        ("x.csv", b'a,b\n"1,2\n', "cannot be read"),
        ("x.jsonl.gz", b"no gzip", "cannot be read"),
        ("x.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 999, mtime=0)[:-9], "cannot be read"),
        ("x.parquet", b"PAR1 and no more PAR1", "cannot be read"),
        ("x.arrow", b"\xff\xff\xff\xff\x10\0\0\0 no message", "cannot be read"),
        ("x.arrow", b"ARROW1\0\0 no footer", "cannot be read"),
        ("x.arrow", b"", "cannot be read"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, raw: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    message = said(path)
    assert says in message
    assert str(path) in message


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "MAX_BYTES", 1 << 20)
    bomb = tmp_path / "x.jsonl.gz"
    bomb.write_bytes(gzip.compress(b'{"a": 1}\n' * 1_000_000, mtime=0))
    assert bomb.stat().st_size < 50_000
    assert "larger than 1 MiB" in said(bomb)


def test_a_line_without_end_is_not_read_whole(tmp_path: Path) -> None:
    bomb = tmp_path / "x.jsonl.gz"
    bomb.write_bytes(gzip.compress(b" " * (row_files.MAX_LINE + 1), mtime=0))
    assert "longer than" in said(bomb)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_columns_that_unfold_are_not_unfolded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(row_files, "MAX_BYTES", 1 << 20)
    table = pa.table({"a": ["x" * 1000] * 10_000})
    path = tmp_path / name
    if name.endswith("parquet"):
        parquet.write_table(table, path, compression="zstd")
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with (
            path.open("wb") as stream,
            pa.ipc.new_stream(stream, table.schema, options=options) as writer,
        ):
            writer.write_table(table)
    assert path.stat().st_size < 1 << 20
    assert "larger than 1 MiB" in said(path)


def test_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "MAX_ROWS", 1)
    assert "more than 1 rows" in said(write(tmp_path / "x.jsonl"))


def test_offsets_that_lead_out_of_the_buffer_are_found(tmp_path: Path) -> None:
    """They would make the reader read memory that is not its own."""
    path = tmp_path / "x.arrow"
    schema = pa.schema([("a", pa.string())])
    with path.open("wb") as stream, pa.ipc.new_stream(stream, schema) as writer:
        writer.write_table(pa.table({"a": ["abc", "defg"]}))
    raw = path.read_bytes()
    good = struct.pack("<iii", 0, 3, 7)
    assert raw.count(good) == 1
    path.write_bytes(raw.replace(good, struct.pack("<iii", 0, 3, 1 << 30)))
    assert "cannot be read" in said(path)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    assert "cannot be read" in said(tmp_path / "absent.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    assert "is no file" in said(tmp_path / "folder.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "is no file" in said(tmp_path / "pipe.jsonl")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("question", 5),
        ("question", "half a pair \ud800"),
        ("question", "x" * (row_files.MAX_TEXT + 1)),
        ("question", b"bytes"),
        ("question", None),
        ("answer", True),
        ("answer", 1.5),
        ("answer", "many"),
        ("answer", 1 << 70),
        ("choices", "[1"),
        ("choices", ["a", 1]),
        ("choices", {"a": 1}),
        ("good", 1),
        ("good", "[" * 100_000),
    ],
)
def test_a_field_of_another_kind_is_named(field: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"^here: the field '{field}' should be "):
        checked({**ROWS[0], field: value}, FIELDS, "here")


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="'good' is missing") as caught:
        checked({name: ROWS[0][name] for name in ("question", "answer", "choices")}, FIELDS, "x:1")
    assert "question, answer, choices, good" in caught.value.hint


@pytest.mark.parametrize(
    "value",
    [{"text": ["a"], "label": []}, {"text": ["a"]}, {"text": "a", "label": "b"}, ["a"], "{}"],
)
def test_choices_need_texts_and_labels(value: object) -> None:
    with pytest.raises(UsageError, match="`text` and `label`"):
        checked({"choices": value}, {"choices": "choices"}, "here")
    good = {"text": ["a", "b"], "label": ["A", "B"]}
    assert checked({"choices": good}, {"choices": "choices"}, "here") == {"choices": good}
