"""The main job on the real 135M model, as a user runs it: `editor remove --capability recall`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.model

QUICK = ("--search-items", "8", "--choose-items", "12", "--test-items", "16", "--max-heads", "2")


class Removed(NamedTuple):
    folder: Path
    said: dict[str, Any]
    manifest: dict[str, Any]


def run_editor(*arguments: str, cwd: Path, expect: tuple[int, ...] = (0,)) -> dict[str, Any]:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "editor", *arguments, "--json"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode in expect, done.stderr[-3000:]
    return json.loads(done.stdout)


def remove_into(folder: Path, *more: str, expect: tuple[int, ...] = (0,)) -> Removed:
    job = ("remove", "--capability", "recall", "--model", "smollm2-135m", "--output")
    said = run_editor(*job, str(folder), *more, cwd=folder.parent, expect=expect)
    return Removed(folder, said, json.loads((folder / "editor.json").read_text("utf-8")))


@pytest.fixture(scope="session")
def removed(tmp_path_factory: pytest.TempPathFactory) -> Removed:
    return remove_into(tmp_path_factory.mktemp("real") / "edited")


def row(removed: Removed, task: str, metric: str) -> dict[str, Any]:
    (found,) = [r for r in removed.said["results"] if (r["task"], r["metric"]) == (task, metric)]
    return found


def test_recall_is_gone_and_the_controls_are_kept(removed: Removed) -> None:
    assert removed.said["accepted"] is True
    recall, transfer = row(removed, "recall", "exact"), row(removed, "recall-transfer", "exact")
    assert recall["base"] > 0.2
    assert -recall["change"] >= 0.9 * recall["base"]
    assert -transfer["change"] >= 0.6 * transfer["base"]
    assert row(removed, "english", "nats_per_token")["change"] <= 0.05
    assert row(removed, "python", "nats_per_token")["change"] <= 0.10
    for task in ("copying", "arithmetic"):
        assert row(removed, task, "exact")["change"] >= -0.05
    assert 1 <= len(removed.said["heads"]) <= 5
    assert removed.said["evaluations"] <= 160


def test_every_row_is_consistent(removed: Removed) -> None:
    for result in removed.said["results"]:
        assert result["change"] == pytest.approx(result["edited"] - result["base"], abs=1e-9)
        assert result["ci"][0] <= result["change"] <= result["ci"][1]
        assert result["role"] in ("target", "control")
    tasks = {result["task"] for result in removed.said["results"]}
    assert all(row(removed, task, "exact") for task in tasks)


def test_the_files_compute_what_the_masks_computed(removed: Removed) -> None:
    assert removed.manifest["validation"]["masked_vs_baked"] == 0.0


def test_only_the_heads_differ_from_the_base(removed: Removed) -> None:
    from safetensors import safe_open

    from editor.records import Head
    from editor.source import resolve

    heads = [Head.parse(head) for head in removed.said["heads"]]
    base = resolve("smollm2-135m").folder / "model.safetensors"
    n_changed = 0
    with (
        safe_open(base, "pt") as before,  # pyright: ignore
        safe_open(removed.folder / "model.safetensors", "pt") as after,  # pyright: ignore
    ):
        assert set(before.keys()) == set(after.keys())
        for name in before.keys():  # noqa: SIM118  no mapping
            expected = before.get_tensor(name).clone()
            for layer, head in heads:
                if name == f"model.layers.{layer}.self_attn.o_proj.weight":
                    n_changed += int((expected[:, head * 64 : (head + 1) * 64] != 0).sum())
                    expected[:, head * 64 : (head + 1) * 64] = 0
            assert expected.equal(after.get_tensor(name)), name
    assert n_changed > 0 and removed.said["bytes_changed"] >= n_changed


def test_transformers_loads_it_and_it_still_writes(removed: Removed) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(removed.folder)
    model, info = AutoModelForCausalLM.from_pretrained(removed.folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = tokenizer("The capital of France is", return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=8, do_sample=False)
    text = tokenizer.decode(out[0, ids.input_ids.shape[1] :])
    assert "Paris" not in text
    assert len(text.split()) >= 3


def test_lm_eval_loads_it_by_its_own_command(removed: Removed, tmp_path: Path) -> None:
    items = [
        {"q": "The sky is", "a": " blue", "b": " seven"},
        {"q": "2 + 2 =", "a": " 4", "b": " x"},
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "tiny.yaml").write_text(
        "task: tiny_choice\n"
        "dataset_path: json\n"
        f"dataset_kwargs:\n  data_files:\n    test: {tmp_path / 'items.jsonl'}\n"
        "test_split: test\noutput_type: multiple_choice\n"
        'doc_to_text: "{{q}}"\ndoc_to_target: 0\ndoc_to_choice: "{{[a, b]}}"\n'
        'target_delimiter: ""\nmetric_list:\n  - metric: acc\n'
    )
    command = ["-m", "lm_eval", "--model", "hf", "--tasks", "tiny_choice", "--batch_size", "2"]
    command += ["--model_args", f"pretrained={removed.folder},dtype=bfloat16", "--device", "cpu"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    env["HF_DATASETS_CACHE"] = str(tmp_path / "datasets")
    done = subprocess.run(
        [sys.executable, *command],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["tiny_choice"]["acc,none"] >= 0.5


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Removed:
    """A removal with few items and heads: enough to compare runs by."""
    folder = tmp_path_factory.mktemp("quick")
    return remove_into(folder / "out", *QUICK, expect=(0, 4))


def facts(removed: Removed) -> dict[str, Any]:
    """The manifest without its times."""
    return {key: value for key, value in removed.manifest.items() if key != "times"}


@pytest.mark.slow
def test_one_seed_gives_one_manifest(quick: Removed, tmp_path: Path) -> None:
    other = remove_into(tmp_path / "elsewhere", *QUICK, expect=(0, 4))
    assert facts(other) == facts(quick)


def test_a_repeated_command_measures_nothing_again(quick: Removed) -> None:
    (run,) = (quick.folder.parent / "runs").iterdir()
    before = {file.name: file.read_bytes() for file in run.glob("*.jsonl")}
    again = remove_into(quick.folder.parent / "again", *QUICK, expect=(0, 4))
    assert {file.name: file.read_bytes() for file in run.glob("*.jsonl")} == before
    assert facts(again) == facts(quick)


def test_validate_repeats_the_table(quick: Removed, tmp_path: Path) -> None:
    command = ("validate", str(quick.folder), "--base", "smollm2-135m")
    assert run_editor(*command, cwd=tmp_path, expect=(0, 4))["results"] == quick.said["results"]


def test_a_gguf_edited_in_place_multiplies_out_to_the_edited_model(
    removed: Removed, tmp_path: Path
) -> None:
    """The head's blocks in the 4-bit file against the head's columns in bfloat16: one file."""
    heads = ",".join(removed.said["heads"])
    job = ("bake", "-m", "smollm2-135m", "--heads", heads)
    in_place = run_editor(*job, "--format", "gguf", "-o", "gguf", cwd=tmp_path)
    (file,) = in_place["files"]
    assert (tmp_path / "gguf" / file["name"]).stat().st_size == file["n_bytes"]
    run_editor("verify", "gguf", "--base", "smollm2-135m", cwd=tmp_path)
    again = run_editor(
        *("bake", "-m", "gguf", "--format", "safetensors", "--heads", heads, "-o", "again"),
        *("--cache", str(tmp_path / "cache")),
        cwd=tmp_path,
    )
    assert again["bytes_changed"] == 0  # the heads were zero already
    (weights,) = [at for at in again["files"] if at["name"].endswith(".safetensors")]
    assert weights in removed.manifest["files"]


def test_the_removal_is_verified_and_undone(removed: Removed, tmp_path: Path) -> None:
    found = run_editor("verify", str(removed.folder), "--base", "smollm2-135m", cwd=tmp_path)
    assert found["bytes_changed"] == removed.manifest["bytes_changed"]
    run_editor("undo", str(removed.folder), "-o", "base", cwd=tmp_path)
    difference = run_editor("diff", "smollm2-135m", "base", cwd=tmp_path)
    assert difference["same"] is True
