"""`editor runs`: what it lists and shows, and what it will not remove."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from editor import run_folders
from editor.cli import main
from editor.errors import UsageError
from editor.records import Fingerprint
from editor.run_folders import refuse_other_settings
from editor.store import LOCK, holding, is_held
from finished_runs import make_run, write_run

RECALL, COPYING = "2026-01-31-small-recall-0f3a9c21", "2026-02-01-small-copying-77aa00bb"
KEYS = ("recall 0123456789abcdef ", "recall 0123456789abcdef L1H1", "recall 0123 L1H1,L2H2 mean")


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finished run and one that is not, below runs/."""
    monkeypatch.chdir(tmp_path)
    found = make_run({"L1H1": (4, 0.4)}, chosen=("L1H1",))
    for name in (RECALL, COPYING):
        folder = write_run(Path("runs", name), found)
        lines = [json.dumps({"key": key, "value": 1}, separators=(",", ":")) for key in KEYS]
        (folder / "journal.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "command.json").write_text('["localize", "-c", "recall", "-m", "./my model"]')
    Path("runs", COPYING, "estimate.json").unlink()
    Path("runs", "no run").mkdir()


def run(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(main, ["runs", *arguments], input=input)


def shown(*arguments: str) -> dict[str, Any]:
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.stderr
    return json.loads(found.stdout)


def refused(*arguments: str) -> str:
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert "Traceback" not in found.stderr
    return found.stderr


class TestList:
    def test_all_runs_with_what_they_hold(self) -> None:
        one, other = shown()["runs"]
        assert (one["name"], other["name"]) == (RECALL, COPYING)
        assert (one["state"], other["state"]) == ("finished", "stopped")
        # What the choice counted; else the masks so far, the empty one not among them.
        assert (one["evaluations"], other["evaluations"], other["n_entries"]) == (100, 2, 3)
        assert (one["capability"], one["method"], one["model"]) == (
            "recall",
            "adaptive",
            "org/small",
        )
        assert one["begun"] == "2026-01-31" and one["changed"].endswith("+00:00")
        files = Path("runs", RECALL).iterdir()
        assert one["n_bytes"] == sum(path.stat().st_size for path in files)

    def test_text_has_a_line_a_run(self) -> None:
        text = run().stdout
        assert RECALL in text and COPYING in text and "no run" not in text
        assert "not finished" in text

    def test_a_run_that_ended_without_heads_is_not_one_to_go_on_with(self) -> None:
        Path("runs", COPYING, "ended.txt").write_text("the model does not\x1b[31m show it\n")
        assert shown()["runs"][1]["state"] == "ended"
        assert "no result" in run().stdout
        found = CliRunner().invoke(main, ["compare"])
        assert RECALL in found.output
        found = CliRunner().invoke(main, ["compare", COPYING])
        assert (found.exit_code, found.stdout) == (2, "")
        assert "ended without heads: the model does not" in found.stderr
        assert "\x1b" not in found.stderr

    def test_a_held_run_is_said_to_be_held(self) -> None:
        with holding(Path("runs", COPYING)):
            assert [one["state"] for one in shown()["runs"]] == ["finished", "held"]
        assert shown()["runs"][1]["state"] == "stopped"

    def test_looking_creates_nothing(self) -> None:
        run()
        assert not list(Path("runs").rglob(LOCK))

    def test_a_damaged_run_is_listed_with_its_fault(self) -> None:
        Path("runs", RECALL, "journal.jsonl").write_text("damage\n")
        Path("runs", COPYING, "config.json").write_text("{")
        one, other = sorted(shown()["runs"], key=lambda one: one["name"])
        assert one["state"] == other["state"] == "unreadable"
        assert "journal.jsonl:1" in one["fault"] and "config.json" in other["fault"]

    def test_a_torn_last_line_is_none(self) -> None:
        with Path("runs", COPYING, "journal.jsonl").open("a") as stream:
            stream.write('{"key":"recall 01 L5H5","val')
        assert shown()["runs"][1]["n_entries"] == 3

    def test_no_folder_is_told(self) -> None:
        assert "no folder nowhere" in refused("--runs", "nowhere")
        Path("empty").mkdir()
        assert run("--runs", "empty").stdout == "no run below empty\n"

    def test_names_of_strangers_do_nothing_to_the_terminal(self) -> None:
        write_run(Path("runs", "x\x1b[31m\nerror: y"), make_run({"L1H1": (4, 0.4)}))
        text = run().stdout
        assert "\x1b" not in text and "\nerror" not in text


class TestShow:
    def test_what_was_found_and_how_to_go_on(self) -> None:
        text = run("show", "recall").stdout
        for part in ("org/small", "max heads", "1 head (L1H1)", "masks by task: recall 3"):
            assert part in text
        assert f"--plan runs/{RECALL}/estimate.json" in text

    def test_the_command_to_go_on_can_be_pasted(self) -> None:
        text = run("show", "copying").stdout
        assert "editor localize -c recall -m './my model'" in text
        Path("runs", COPYING, "command.json").write_text('["x; rm -rf ~", "\\u001b[2J"]')
        text = run("show", "copying").stdout
        assert "editor 'x; rm -rf ~'" in text and "\x1b" not in text
        Path("runs", COPYING, "command.json").write_text("{")
        assert "editor.localize" in run("show", "copying").stdout

    def test_it_finds_names_as_compare_does(self) -> None:
        assert shown("show", f"runs/{RECALL}")["info"]["name"] == RECALL
        assert shown("--runs", "runs", "show", "copying")["info"]["name"] == COPYING
        assert "2 runs" in refused("show", "small")
        assert "lacks config.json" in refused("show", "no run")


class TestRemove:
    def test_yes_removes_the_named_runs_only(self) -> None:
        size = shown()["runs"][0]["n_bytes"]
        removed = shown("remove", "recall", "--yes")
        assert removed == {"folders": [f"runs/{RECALL}"], "n_bytes": size}
        assert {path.name for path in Path("runs").iterdir()} == {COPYING, "no run"}

    def test_without_yes_it_asks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "--yes" in refused("remove", "recall")
        monkeypatch.setattr("editor.run_verbs.can_ask", lambda: True)
        assert run("remove", "recall", input="n\n").exit_code == 2
        assert Path("runs", RECALL).is_dir()
        found = run("remove", "recall", input="y\n")
        assert found.exit_code == 0 and "remove 1 run?" in found.stderr
        assert not Path("runs", RECALL).exists()

    def test_a_held_run_is_refused_and_nothing_is_removed(self) -> None:
        with holding(Path("runs", COPYING)):
            assert is_held(Path("runs", COPYING))
            assert "another process" in refused("remove", "recall", "copying", "--yes")
        assert Path("runs", RECALL).is_dir() and Path("runs", COPYING).is_dir()

    def test_what_is_no_run_is_refused(self) -> None:
        Path("model").mkdir()
        Path("model", "config.json").write_text("{}")
        assert "is no run" in refused("remove", "model", "--yes")
        assert Path("model", "config.json").is_file()

    @pytest.mark.parametrize("name", ["thesis.txt", "edited-x.jsonl", "sub/a"])
    def test_a_folder_with_files_of_others_is_refused(self, name: str) -> None:
        file = Path("runs", RECALL, name)
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")
        assert "what is not of a run" in refused("remove", "recall", "--yes")
        assert file.read_text() == "mine"

    def test_no_link_is_followed(self, tmp_path: Path) -> None:
        away = tmp_path / "away"
        Path("runs", RECALL).rename(away)
        Path("runs", "link-recall").symlink_to(away)
        assert "is a link" in refused("remove", "link-recall", "--yes")
        precious = tmp_path / "precious"
        precious.write_text("mine")
        report = Path("runs", COPYING, "report.html")
        report.symlink_to(precious)
        assert "report.html" in refused("remove", "copying", "--yes")
        assert precious.read_text() == "mine" and (away / "config.json").is_file()

    def test_what_is_interrupted_is_still_a_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(path: Path, **_: Any) -> None:
            if path.name == LOCK:
                raise OSError(5, "Input/output error")
            os.unlink(path)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", fail)
            assert run("remove", "recall", "--yes").exit_code == 3
        assert shown("remove", "recall", "--yes")["folders"]

    def test_every_file_that_a_run_writes_is_known(self) -> None:
        for name in ("command.json", "edited-0f3a9c21.jsonl", ".estimate.json.0f3a9c21.tmp"):
            path = Path("runs", COPYING, name)
            path.write_text("")
            assert run_folders._is_own(path)


class TestOtherSettings:
    """A run that was broken off is not left behind by a setting that was changed unawares."""

    WANTED = make_run({"L1H1": (4, 0.4)}, chosen=("L1H1",)).fingerprint

    def other(self, **changed: Any) -> Fingerprint:
        settings = self.WANTED.settings.model_copy(update=changed)
        return self.WANTED.model_copy(update={"settings": settings})

    def test_are_listed(self) -> None:
        with pytest.raises(UsageError) as caught:
            refuse_other_settings(Path("runs"), self.other(seed=7, max_heads=3))
        assert COPYING in caught.value.message and COPYING in caught.value.hint
        before = self.WANTED.settings
        assert f"seed {before.seed} -> 7" in caught.value.message
        assert f"max_heads {before.max_heads} -> 3" in caught.value.message
        assert "dtype" not in caught.value.message
        assert "--new-run" in caught.value.hint

    def test_the_same_settings_go_on(self) -> None:
        refuse_other_settings(Path("runs"), self.WANTED)

    def test_another_capability_or_model_is_another_run(self) -> None:
        refuse_other_settings(Path("runs"), self.other(capability="copying"))
        model = self.other(seed=7).model_copy(update={"model": "org/large"})
        refuse_other_settings(Path("runs"), model)

    def test_what_came_to_an_end_is_in_nobodys_way(self) -> None:
        Path("runs", COPYING, "ended.txt").write_text("no head was found\n")
        refuse_other_settings(Path("runs"), self.other(seed=7))

    def test_nor_what_is_being_worked_in_or_holds_nothing(self) -> None:
        with holding(Path("runs", COPYING)):
            refuse_other_settings(Path("runs"), self.other(seed=7))
        Path("runs", COPYING, "journal.jsonl").write_text("")
        refuse_other_settings(Path("runs"), self.other(seed=7))

    def test_what_cannot_be_read_is_passed_over(self) -> None:
        Path("runs", COPYING, "config.json").write_text("{}")
        refuse_other_settings(Path("runs"), self.other(seed=7))
        refuse_other_settings(Path("nowhere"), self.other(seed=7))
