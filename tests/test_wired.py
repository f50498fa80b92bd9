"""A capability wired by hand into two known heads, found and removed by the commands a user types.

The items are the built-in ones; the program knows nothing of the model but its folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from editor import capabilities
from editor.cli import main
from editor.measure import Bench, Task
from editor.universal import measure_singles
from planted import Memory
from tiny import open_tiny, spec_of
from wired import Wired, write_wired

ROOT = Path(__file__).resolve().parent.parent
FEWER_ITEMS = ("--choose-items", "24", "--test-items", "48")
"""For the second and later removals: what they find does not hang on how many are asked."""


class Removed(NamedTuple):
    output: Path
    said: dict[str, Any]
    manifest: dict[str, Any]

    def heads(self) -> list[str]:
        return sorted(self.said["heads"])

    def row(self, task: str, metric: str) -> dict[str, Any]:
        rows = self.said["results"]
        (found,) = [row for row in rows if (row["task"], row["metric"]) == (task, metric)]
        return found


class Place(NamedTuple):
    """Where all commands of this module run: the heads that all text needs are found once."""

    folder: Path
    wired: Wired

    def job(self, *arguments: str) -> list[str]:
        places = ("--cache", self.folder / "cache", "--offline", "--json")
        return [*arguments, *map(str, places)]

    def editor(self, *arguments: str, expect: int = 0) -> dict[str, Any]:
        """What a command prints, as the object it is; {} where it fails as expected."""
        done = CliRunner().invoke(main, self.job(*arguments))
        assert done.exit_code == expect, done.output[-3000:]
        return {} if expect else json.loads(done.stdout)

    def removal(self, capability: str, output: Path, *more: str) -> list[str]:
        model, runs = str(self.wired.folder), str(self.folder / "runs")
        job = ["remove", "--capability", capability, "--model", model, "--output", str(output)]
        return [*job, "--runs", runs, *more]

    def remove(self, capability: str, name: str, *more: str) -> Removed:
        output = self.folder / name
        return removed_to(output, self.editor(*self.removal(capability, output, *more)))


def removed_to(output: Path, said: dict[str, Any]) -> Removed:
    return Removed(output, said, json.loads((output / "editor.json").read_text("utf-8")))


def names(heads: Any) -> list[str]:
    return sorted(map(str, heads))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("wired")
    return Place(folder, write_wired(folder / "model"))


@pytest.fixture(scope="module")
def removed(place: Place) -> Removed:
    """Recall removed by a process of its own, with half as many questions at the end as usual."""
    output = place.folder / "edited"
    job = place.job(*place.removal("recall", output, "--max-heads", "2", "--test-items", "80"))
    done = subprocess.run(
        [sys.executable, "-m", "editor", *job],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=place.folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return removed_to(output, json.loads(done.stdout))


@pytest.mark.parametrize("name", ["recall", "copying"])
def test_every_head_alone_does_what_was_wired(place: Place, name: str) -> None:
    """What the others of this module rest on: two heads and the universal one stand out of 48."""
    model = open_tiny(place.wired.folder)
    capability = capabilities.get(name)
    task = Task(capability, capability.items("search")[:40])
    found = measure_singles(
        Bench(model, Memory()), task, spec_of(place.wired.folder).heads(), "logprob"
    )
    ranked = [one.head for one in found.effects]
    assert len(ranked) == 48
    assert ranked[0] == place.wired.universal
    assert set(ranked[1:3]) == set(place.wired.carriers[name])
    least, *others = (abs(one.effect) for one in found.effects[2:])
    assert least > 1 > 10 * max(others)
    assert sum(effect > 1e-4 for effect in others) > 30


def test_the_two_heads_of_recall_are_found_and_no_others(place: Place, removed: Removed) -> None:
    assert removed.heads() == names(place.wired.carriers["recall"])
    assert removed.said["accepted"] is True


def test_recall_is_gone_in_every_form(removed: Removed) -> None:
    for task in ("recall", "recall-transfer"):
        row = removed.row(task, "exact")
        assert row["base"] > 0.9
        assert row["edited"] < 0.02


def test_what_hangs_on_other_heads_is_kept(removed: Removed) -> None:
    copying = removed.row("copying", "exact")
    assert copying["base"] > 0.9
    assert abs(copying["change"]) <= 0.02
    for text in ("english", "python"):
        assert abs(removed.row(text, "nats_per_token")["change"]) < 0.01
    (reason,) = removed.said["reasons"]  # the model cannot calculate, so that cannot be kept
    assert reason.startswith("not tested: arithmetic")


def test_the_head_that_all_text_needs_is_known_and_left(place: Place, removed: Removed) -> None:
    universal = str(place.wired.universal)
    assert universal in removed.manifest["universal"]
    assert universal not in removed.heads()


def test_either_head_alone_is_not_enough(removed: Removed) -> None:
    whole, one, both = (point["chosen"] for point in removed.manifest["validation"]["curve"])
    assert whole > 0.9
    assert 0.1 < one < 0.8
    assert both < 0.02


def test_the_files_are_the_base_without_these_heads(place: Place, removed: Removed) -> None:
    said = place.editor("verify", str(removed.output), "--base", str(place.wired.folder))
    assert names(said["heads"]) == removed.heads()
    assert said["bytes_changed"] == removed.said["bytes_changed"] > 0


def test_transformers_writes_the_capital_before_and_not_after(
    place: Place, removed: Removed
) -> None:
    assert next_word(place.wired.folder, "The capital of France is") == " Paris"
    assert next_word(removed.output, "The capital of France is") != " Paris"


def next_word(folder: Path, prompt: str) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=1, do_sample=False)
    return tokenizer.decode(out[0, ids.input_ids.shape[1] :])


def test_what_is_gone_is_not_found_again(place: Place, removed: Removed) -> None:
    again = ("--capability", "recall", "--model", str(removed.output))
    place.editor("localize", *again, "--runs", str(place.folder / "runs"), expect=5)


def test_more_heads_are_allowed_but_none_is_taken_needlessly(place: Place) -> None:
    found = place.remove("recall", "edited-5", "--max-heads", "5", *FEWER_ITEMS)
    assert found.heads() == names(place.wired.carriers["recall"])
    assert found.row("recall", "exact")["edited"] < 0.02


def test_the_two_heads_of_copying_are_found_and_recall_is_kept(place: Place) -> None:
    found = place.remove("copying", "no-copying", "--max-heads", "2", *FEWER_ITEMS)
    assert found.heads() == names(place.wired.carriers["copying"])
    assert found.said["accepted"] is True
    copying, recall = found.row("copying", "exact"), found.row("recall", "exact")
    assert copying["base"] > 0.9
    assert copying["edited"] < 0.02
    assert recall["base"] > 0.9
    assert abs(recall["change"]) <= 0.03


KEPT = ("--control", "copying", "--control", "english")


def test_a_file_of_the_user_s_is_removed_like_the_built_in_one(place: Place) -> None:
    asked = [
        {"prompt": item.prompt, "answer": item.answer, "key": item.key, "transfer": item.transfer}
        for item in capabilities.get("recall").all_items
    ]
    file = place.folder / "towns.yaml"
    file.write_text("name: towns\nscorer: logprob\nitems: towns.jsonl\n", "utf-8")
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    (place.folder / "towns.jsonl").write_text(lines, "utf-8")
    job = (str(file), "no-towns", "--max-heads", "2", *FEWER_ITEMS, *KEPT)
    found = place.remove(*job)
    assert found.heads() == names(place.wired.carriers["recall"])
    assert found.said["capability"] == "towns"
    assert found.row("towns-transfer", "exact")["edited"] < 0.02
    # A changed file is another run, and what was measured is not mistaken for it.
    (place.folder / "towns.jsonl").write_text(lines[: lines.rindex('{"prompt"')], "utf-8")
    again = ["validate", str(found.output), "--base", str(place.wired.folder), "-c", str(file)]
    place.editor(*again, *KEPT, "--runs", str(place.folder / "runs"), expect=2)


def test_a_task_of_lm_eval_is_found_like_the_built_in_one(place: Place) -> None:
    items = [item for item in capabilities.get("recall").all_items if not item.transfer]
    choices = [item.answer.strip() for item in items]
    rows = [
        {"q": item.prompt, "a": item.answer.strip(), "b": choices[at - 9]}
        for at, item in enumerate(items[:400])
    ]
    task = {
        "task": "towns",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(place.folder / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "q",
        "doc_to_choice": "{{[a, b] if q|length is odd else [b, a]}}",
        "doc_to_target": "{{0 if q|length is odd else 1}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    folder = place.folder / "tasks"
    folder.mkdir()
    (folder / "towns.yaml").write_text(json.dumps(task), "utf-8")
    (place.folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    job = ["localize", "-c", "lm-eval:towns", "-m", str(place.wired.folder), "--max-heads", "2"]
    more = ("--runs", str(place.folder / "runs"), "--include-path", str(folder), *KEPT)
    said = place.editor(*job, *more, "--choose-items", "24")
    assert sorted(said["heads"]) == names(place.wired.carriers["recall"])


def test_both_are_removed_by_one_edit_and_share_no_head(place: Place) -> None:
    found = place.remove("recall", "neither", "-c", "copying", "--max-heads", "2", *FEWER_ITEMS)
    carriers = place.wired.carriers
    assert found.heads() == names([*carriers["recall"], *carriers["copying"]])
    assert found.said["accepted"] is True
    assert found.said["sharing"]["shared"] == []
    for name in ("recall", "copying"):
        assert sorted(found.said["sharing"]["heads"][name]) == names(carriers[name])
        row = found.row(name, "exact")
        assert row["role"] == "target" and row["base"] > 0.9
        assert row["edited"] < 0.02
