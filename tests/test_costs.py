"""What is said of a job before it begins, against what it then measures."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from editor import capabilities, costs, session, tasks
from editor.cli import main
from editor.measure import Bench
from editor.pipeline import remove
from editor.progress import Silent
from editor.recipe import Recipe
from editor.records import Head
from editor.session import Options
from editor.tasks import scope
from planted import PlantedModel
from test_cli import make_model
from tiny import Wired


class Lines(Silent):
    def __init__(self) -> None:
        self.said, self.n_tokens = list[str](), 0

    def say(self, line: str) -> None:
        self.said.append(line)

    def tokens(self, n: int) -> None:
        self.n_tokens += n


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """`--offline` sets variables for the libraries."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def known(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> Wired:
    monkeypatch.setattr(capabilities, "get", wired.get)
    monkeypatch.setattr(capabilities, "names", lambda: tuple(wired.capabilities))
    return wired


def plan_of(*arguments: str) -> dict[str, Any]:
    found = CliRunner().invoke(main, ["plan", *arguments, "--json"])
    assert found.exit_code == 0, found.stderr
    return json.loads(found.stdout)


def test_a_run_says_first_what_it_takes_and_takes_no_more(known: Wired, tmp_path: Path) -> None:
    lines = Lines()
    options = Options(runs=tmp_path / "runs", cache=tmp_path / "cache", offline=True)
    recipe = Recipe(
        model=str(known.folder),
        capability="naming",
        search_items=16,
        choose_items=20,
        test_items=60,
    )
    found = remove(recipe, tmp_path / "out", options, lines)
    (ahead,) = [line for line in lines.said if line.startswith("ahead: ")]
    most = re.search(r"at most ([\d,]+) evaluations, ([\d,]+) tokens", ahead)
    assert most is not None
    evaluations, tokens = (int(text.replace(",", "")) for text in most.groups())
    assert found.evaluations + found.scan_evaluations < evaluations
    assert 0.3 * tokens < lines.n_tokens <= 1.05 * tokens
    assert sum("left" in line and "took" in line for line in lines.said) == 1
    # On the way on nothing is timed: the journal answers.
    again = Lines()
    remove(recipe, tmp_path / "more", options, again)
    assert any(line.startswith("ahead: ") for line in again.said)
    assert not any("took" in line for line in again.said)


def test_a_timed_plan_has_hours_and_writes_nothing(known: Wired, tmp_path: Path) -> None:
    given = ("-c", "naming", "-m", str(known.folder), "--cache", str(tmp_path / "c"), "--offline")
    timed = plan_of(*given, "--runs", str(tmp_path / "runs"))
    assert timed["timing"]["seconds"] > 0 and set(timed["timing"]["s_per_token"]) == {
        "task",
        "text",
    }
    assert 0 < timed["hours"] < 1
    assert not (tmp_path / "runs").exists() and not (tmp_path / "c" / "universal").exists()
    untimed = plan_of(*given, "--no-timing")
    assert untimed["timing"] is untimed["hours"] is None
    assert [at["masks"] for at in untimed["stages"]] == [at["masks"] for at in timed["stages"]]
    assert untimed["network"] == "" and untimed["disk_bytes"] > 0
    names = [at["stage"] for at in timed["stages"]]
    assert names == ["baseline", "scan", "search", "choice", "checks", "validation"]


def test_a_dry_run_says_the_same_without_the_time(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(Path("model"))
    given = ("-c", "recall", "-m", "model", "--cache", "cache")
    planned = plan_of(*given, "-o", "out", "--no-timing")
    dry = CliRunner().invoke(main, ["remove", *given, "-o", "out", "--dry-run", "--json"])
    assert planned == json.loads(dry.stdout)
    text = CliRunner().invoke(main, ["plan", *given, "--no-timing"]).stdout
    assert "`editor plan`" in text and "nothing is downloaded" in text and "journal" in text
    searching = CliRunner().invoke(main, ["localize", *given, "--dry-run", "--json"])
    stages = json.loads(searching.stdout)["stages"]
    assert [at["stage"] for at in stages][-1] == "checks"  # nothing is written, so nothing compared


def test_a_model_that_is_not_here_is_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", "hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    planned = plan_of("-c", "recall", "-m", "no/such", "--offline")
    assert "downloads it" in planned["network"] and planned["stages"] == []
    assert planned["hours"] is planned["download_bytes"] is None


class TestDownload:
    @pytest.fixture
    def hub(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
        """A Hub of which nothing is here; records what was asked of it."""
        import huggingface_hub
        from huggingface_hub import errors

        asked: dict[str, Any] = {}

        def snapshot_download(repo: str, **options: Any) -> Any:
            asked[repo] = options
            if options["local_files_only"]:
                raise errors.LocalEntryNotFoundError("not here")
            if "error" in asked:
                raise asked["error"]
            assert options["dry_run"], "nothing is downloaded by a plan"
            files = [(16_000_000_000, True), (7_000, True), (400, False), (None, True)]
            return [SimpleNamespace(file_size=size, will_download=new) for size, new in files]

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return asked

    def test_is_told_by_size(self, hub: dict[str, Any]) -> None:
        planned = plan_of("-c", "recall", "-m", "llama-3.1-8b@main")
        assert planned["network"] == "14.9 GiB in 3 files of llama-3.1-8b@main"
        assert planned["download_bytes"] == 16_000_007_000
        (repo,) = hub
        assert (repo, hub[repo]["revision"]) == ("meta-llama/Llama-3.1-8B-Instruct", "main")
        assert "*.safetensors" in hub[repo]["allow_patterns"]

    def test_of_unknown_size_says_why(self, hub: dict[str, Any]) -> None:
        from huggingface_hub import errors

        hub["error"] = errors.LocalEntryNotFoundError("no connection")
        planned = plan_of("-c", "recall", "-m", "no/such")
        assert "how much is not known" in planned["network"]
        assert "cannot be reached" in planned["network"]
        assert planned["download_bytes"] is None


def test_a_recipe_file_is_planned_and_flags_replace_its_fields(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    recipe = tmp_path / "r.yaml"
    recipe.write_text(f"model: {tmp_path / 'model'}\ncapability: recall\nmax_heads: 2\n")
    planned = plan_of(str(recipe), "--no-timing", "--method", "scan")
    assert (planned["max_heads"], planned["method"]) == (2, "scan")
    missing = CliRunner().invoke(main, ["plan", "--no-timing"])
    assert missing.exit_code == 2 and "model" in missing.stderr


def test_stages_grow_with_what_they_measure(known: Wired) -> None:
    opened = session.open_model(str(known.folder), Options(offline=True), Silent())

    def cost(**changes: Any) -> dict[str, costs.StageCost]:
        recipe = Recipe(model="m", capability="naming", **changes)
        what = scope(recipe)
        settings = session.settle(recipe, what, opened.spec)
        count = costs.by_characters
        found = costs.stages(what, settings, 16, scan=True, output=True, count=count)
        return {at.stage: at for at in found}

    one, two = cost(search_items=8), cost(search_items=16)
    assert two["search"].tokens == pytest.approx(2 * one["search"].tokens, rel=0.1)
    assert two["choice"] == one["choice"]
    texts = len(tasks.scan_texts())
    assert one["scan"].masks == 17 * texts and one["scan"].tokens == one["scan"].text_tokens > 0
    assert cost(method="scan")["search"].masks >= 16


def test_hours_are_tokens_at_the_pace_of_their_kind() -> None:
    one = costs.StageCost(stage="a", masks=1, items=1, tokens=300, text_tokens=100)
    assert costs.hours([one], {"task": 36.0, "text": 72.0}) == pytest.approx(4.0)
    assert costs.hours([one], {"task": 36.0}) == pytest.approx(3.0)


def test_what_is_timed_is_not_kept(known: Wired) -> None:
    opened = session.open_model(str(known.folder), Options(offline=True), Silent())
    recipe = Recipe(model="m", capability="naming")
    what = scope(recipe)
    settings = session.settle(recipe, what, opened.spec)

    class Planted(PlantedModel):
        def _one(self, request: Any, mask: Any, share: float) -> Any:
            return super()._one(request._replace(prompt="naming 1"), mask, share)

    from editor.preview import _Forgetful

    bench = Bench(Planted({"naming": {Head(0, 0): 1.0}}), _Forgetful(), count=len)
    found = costs.timed(bench, what, settings, opened.spec)
    assert found.tokens == 11 * (24 + 3)
