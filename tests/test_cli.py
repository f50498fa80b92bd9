"""The command line: what it says where, its exit codes, and how fast its help is."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from safetensors.numpy import save_file

from editor import flags, gguf, meters, pipeline, session, source
from editor.cli import main
from editor.console import Console
from editor.errors import CapabilityAbsent, ModelError
from editor.progress import Silent
from editor.recipe import Recipe
from editor.records import EditPlan, Head, Localization, Removal
from editor.session import Options
from fixtures import (
    CHOSEN,
    make_confirmation,
    make_estimates,
    make_format_check,
    make_manifest,
    make_universal,
    make_validation,
)
from small import CONFIG, change_json, files_of, flip, make_base, make_gguf

ROOT = Path(__file__).resolve().parent.parent
VERBS = (
    [],
    ["remove"],
    ["localize"],
    ["bake"],
    ["validate"],
    ["verify"],
    ["undo"],
    ["diff"],
    ["inspect"],
    ["sign"],
    ["compare"],
    ["plan"],
    ["runs"],
    ["runs", "show"],
    ["runs", "remove"],
    ["capabilities"],
    ["capabilities", "show"],
    ["run"],
    ["recipe"],
    ["recipe", "check"],
    ["recipe", "schema"],
    ["recipe", "show"],
)


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in an empty folder, with an empty cache and an environment that is put back."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    os.environ["EDITOR_CACHE"] = str(tmp_path / "cache")
    yield
    os.environ.clear()
    os.environ.update(before)


def make_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    weights = {
        f"model.layers.{n}.self_attn.o_proj.weight": np.ones((16, 16), np.float32) for n in (0, 1)
    }
    save_file(weights, folder / "model.safetensors")
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def removal_of(output: Path, *, accepted: bool) -> Removal:
    """What the faked pipeline returns, its editor.json written."""
    output.mkdir()
    manifest = make_manifest(accepted=accepted)
    (output / "editor.json").write_text(manifest.model_dump_json())
    validation = make_validation(accepted=accepted)
    return Removal(
        output=str(output),
        run="runs/one",
        report=str(output / "report.html"),
        capability="recall",
        model="a/b\x1b[31m",
        heads=CHOSEN,
        evaluations=112,
        scan_evaluations=270,
        accepted=accepted,
        reasons=() if accepted else ("addition exact changed by -0.120\x1b[2J, the limit is -0.1",),
        results=validation.results,
        bytes_changed=manifest.bytes_changed,
        bytes_total=manifest.bytes_total,
        elapsed_s=151.0,
    )


class Faked:
    """A pipeline that returns or raises what it is told, and remembers what it was asked."""

    def __init__(self, outcome: BaseException | bool) -> None:
        self.outcome = outcome
        self.recipe: Recipe | None = None
        self.options: Options | None = None

    def remove(self, recipe: Recipe, output: Path, options: Options, progress: Any) -> Removal:
        self.recipe, self.options = recipe, options
        progress.say("hello \x1b[31mred")
        progress.stage("search", 10)
        progress.advance(12)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return removal_of(output, accepted=self.outcome)


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(outcome: BaseException | bool) -> Faked:
        fake = Faked(outcome)
        monkeypatch.setattr(pipeline, "remove", fake.remove)
        return fake

    return install


REMOVE = ("remove", "-c", "recall", "-m", "smollm2-135m", "-o", "out")


class TestHelp:
    @pytest.mark.parametrize("verb", VERBS, ids=" ".join)
    def test_every_verb_has_help_with_examples(self, verb: list[str]) -> None:
        found = run(*verb, "--help")
        assert found.exit_code == 0
        assert "Usage" in found.stdout
        lines = [line for line in found.stdout.splitlines() if line.startswith("  ")]
        assert sum(line.strip().startswith("editor ") for line in lines) >= 3

    @pytest.mark.parametrize("verb", VERBS, ids=" ".join)
    def test_help_loads_nothing_that_takes_time(self, verb: list[str]) -> None:
        program = (
            "import sys; from editor.cli import main\n"
            "try: main(sys.argv[1:])\n"
            "finally: print('LOADED', *sys.modules, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, *verb, "--help"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            timeout=60,
        )
        loaded = set(done.stderr.partition("LOADED")[2].split())
        assert not loaded & {"torch", "transformers", "pydantic", "numpy", "yaml", "rich", "jinja2"}

    def test_dangerous_flags_stand_apart(self) -> None:
        text = run("remove", "--help").stdout
        assert text.index("Dangerous:") < text.index("--trust-remote-code")
        assert text.index("Dangerous:") < text.index("--force")

    def test_the_stated_defaults_are_those_of_recipe_and_options(self) -> None:
        checked = set()
        for name in ("remove", "localize", "run"):
            for param in main.commands[name].params:
                says = getattr(param, "says", "")
                if param.name in Recipe.model_fields:
                    default = Recipe.model_fields[param.name].default
                    expected = default if isinstance(default, int | float | str) else None
                else:
                    expected = getattr(Options(), param.name or "", None)
                if isinstance(expected, bool) or expected is None:
                    continue
                assert says == str(expected), param.name
                checked.add(param.name)
        assert {"max_heads", "seed", "min_target_drop", "test_items", "device", "runs"} <= checked

    def test_choices_are_those_of_the_recipe(self) -> None:
        schema = Recipe.model_json_schema()["properties"]
        for param in main.commands["remove"].params:
            if isinstance(param.type, click.Choice) and param.name != "domain":
                assert list(param.type.choices) == schema[param.name]["enum"]

    def test_version(self) -> None:
        assert run("--version").stdout == "editor 0.1.0\n"


class TestRemove:
    def test_prints_table_verdict_and_what_changed(self, faked: Any) -> None:
        faked(True)
        found = run(*REMOVE)
        assert found.exit_code == 0
        for part in (
            "recall (exact)",
            "95% CI",
            "ACCEPTED",
            "368,011 of",
            "c3c3",
            "runs/one",
            "check   ",
        ):
            assert part in found.stdout
        assert "hello red" in found.stderr
        assert "\x1b" not in found.output
        found.stdout.encode("ascii")

    def test_json_is_one_object_with_the_promised_names(self, faked: Any) -> None:
        faked(True)
        found = run(*REMOVE, "--json")
        shown = json.loads(found.stdout)
        assert shown["output"] == "out"
        assert shown["heads"][0] == "L23H4"
        assert (shown["evaluations"], shown["accepted"]) == (112, True)
        row = next(row for row in shown["results"] if row["task"] == "recall")
        assert {"task", "role", "metric", "base", "edited", "change", "ci", "n"} <= set(row)
        assert row["change"] == pytest.approx(row["edited"] - row["base"])
        assert shown["bytes_changed"] == 368_011
        assert shown["changed"][0]["name"] == "model.safetensors"
        assert "hello" in found.stderr

    @pytest.mark.parametrize("extra", [[], ["--json"], ["-q"]], ids=str)
    def test_a_broken_limit_is_exit_4_and_the_output_stays(
        self, faked: Any, extra: list[str]
    ) -> None:
        faked(False)
        found = run(*REMOVE, *extra)
        assert found.exit_code == 4
        assert Path("out/editor.json").exists()
        assert "NOT VALIDATED" in found.stderr
        assert "\x1b" not in found.output
        if extra == ["--json"]:
            assert json.loads(found.stdout)["accepted"] is False
        else:
            assert "NOT VALIDATED" in found.stdout

    @pytest.mark.parametrize("hours", ["nan", "inf", "-inf", "0", "-1", "x"])
    def test_hours_that_are_none_are_exit_2(self, hours: str) -> None:
        found = run(*REMOVE, f"--max-hours={hours}")
        assert found.exit_code == 2
        assert "is no number above 0" in found.stderr

    def test_flags_become_the_recipe_and_the_options(self, faked: Any) -> None:
        fake = faked(True)
        given = "--control english --control python --max-control-drop 0.2 --max-control-drop"
        given += " english=0.05 --min-target-drop 0.9 --max-heads 3 --method published --seed 7"
        given += " --search-items 5 --choose-items 6 --test-items 8 --dtype float32 --chat never"
        given += " --budget 90 --confidence 0.9 --score exact --prior none --universal suspects"
        given += " --device cuda --improve --max-hours 1.5 --workers 3 --ray auto"
        given += (
            " --runs r --cache c --data-dir d --new-run --force --trust-remote-code --offline --yes"
        )
        assert run(*REMOVE, *given.split()).exit_code == 0
        assert fake.recipe == Recipe(
            model="smollm2-135m",
            capability="recall",
            controls=("english", "python"),
            max_control_drop={"default": 0.2, "english": 0.05},
            min_target_drop=0.9,
            max_heads=3,
            method="published",
            budget=90,
            confidence=0.9,
            score="exact",
            prior="none",
            universal="suspects",
            improve=True,
            seed=7,
            search_items=5,
            choose_items=6,
            test_items=8,
            dtype="float32",
            chat="never",
        )
        assert fake.options == Options(
            runs=Path("r"),
            cache=Path("c"),
            data_dir=Path("d"),
            device="cuda",
            force=True,
            new_run=True,
            offline=True,
            trust_remote_code=True,
            max_hours=1.5,
            workers=3,
            ray="auto",
        )
        assert os.environ["HF_HUB_OFFLINE"] == "1"

    def test_without_flags_the_defaults_are_those_of_the_records(self, faked: Any) -> None:
        fake = faked(True)
        run(*REMOVE)
        assert fake.recipe == Recipe(model="smollm2-135m", capability="recall")
        assert fake.options == Options()

    def test_quiet_leaves_only_the_result(self, faked: Any) -> None:
        faked(True)
        found = run(*REMOVE, "-q")
        assert found.stderr == ""
        assert "ACCEPTED" in found.stdout

    def test_the_log_file_gets_all_of_it(self, faked: Any) -> None:
        faked(RuntimeError("boom"))
        run(*REMOVE, "-q", "--log-file", "log.txt")
        text = Path("log.txt").read_text()
        assert "hello red" in text
        assert "Traceback" in text
        assert "\x1b" not in text


class TestErrors:
    @pytest.mark.parametrize(
        ("fault", "code", "said"),
        [
            (
                ModelError("a \x1b[31mred shard", "fetch it"),
                3,
                "error: a red shard\nhint: fetch it",
            ),
            (CapabilityAbsent("exact 0.010, floor 0.000"), 5, "exact 0.010"),
            (KeyboardInterrupt(), 130, "interrupted; run the same command again to go on"),
            (OSError(errno.ENOSPC, "No space left", "runs/x"), 3, "runs/x: the disk is full"),
            (OSError(errno.EFBIG, "File too large", "runs/x"), 3, "runs/x: the disk cannot"),
            (
                RuntimeError("boom\nsecond"),
                1,
                "error: RuntimeError: boom\nhint: run again with -vv",
            ),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_each_has_its_exit_code_and_words(
        self, faked: Any, fault: BaseException, code: int, said: str
    ) -> None:
        faked(fault)
        found = run(*REMOVE)
        assert found.exit_code == code
        assert said in found.stderr
        assert found.stdout == ""
        assert "Traceback" not in found.stderr
        assert "\x1b" not in found.stderr
        shown = json.loads(run(*REMOVE, "--json").stdout)
        assert shown["error"]["exit_code"] == code

    def test_vv_shows_the_traceback(self, faked: Any) -> None:
        faked(RuntimeError("boom"))
        assert "Traceback" not in run(*REMOVE, "-v").stderr
        assert "Traceback" in run(*REMOVE, "-vv").stderr

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["remove", "-c", "recall", "-m", "gpt2"], "--output"),
            (["remove", "-m", "gpt2", "-o", "x"], "--capability"),
            (["bake", "-m", "gpt2", "--heads", "L1H1"], "--output"),
            ([*REMOVE, "--max-hed", "3"], "--max-heads"),
            ([*REMOVE, "--max-control-drop", "english"], "CONTROL=X"),
            ([*REMOVE, "--max-control-drop", "nan"], "CONTROL=X"),
            ([*REMOVE, "--max-control-drop", "=3"], "CONTROL=X"),
            ([*REMOVE, "--max-heads", "0"], "max_heads"),
            ([*REMOVE, "--dtype", "bf16"], "bfloat16"),
            ([*REMOVE, "--control", "recall"], "recall, which is to be removed"),
            ([*REMOVE, "--log-file", "/nowhere/log"], "/nowhere/log"),
            (["remove", "-c", "recal", "-m", "gpt2", "-o", "x"], "did you mean recall?"),
            (["localize", "-c", "english", "-m", "gpt2"], "english is a control"),
            (["capabilities", "show", "recal"], "did you mean recall?"),
            (["bake", "-m", "smollm", "--heads", "L1H1", "-o", "x"], "did you mean smollm2-135m?"),
            (["bake", "-m", "gpt2", "--heads", "16.21", "-o", "x"], "L16H21"),
            (["bake", "-m", "gpt2", "--heads", ",", "-o", "x"], "no heads"),
            (["nonsense"], "No such command"),
            (["run", "nothing.yaml", "-o", "x"], "nothing.yaml"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_wrong_usage_is_exit_2(self, arguments: list[str], said: str) -> None:
        found = run(*arguments)
        assert (found.exit_code, found.stdout) == (2, "")
        assert said in found.stderr
        assert len(found.stderr.strip().splitlines()) <= 2
        shown = json.loads(run(*arguments, "--json").stdout)
        assert shown["error"]["exit_code"] == 2

    def test_a_damaged_model_is_exit_3_and_nothing_is_written(self) -> None:
        model = make_model(Path("model"))
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        for arguments in (["inspect", "model"], ["bake", "-m", "model", "--heads", "L0H0"]):
            extra = [] if arguments[0] == "inspect" else ["-o", "out"]
            found = run(*arguments, *extra)
            assert found.exit_code == 3
            assert "model.safetensors" in found.stderr
        assert not Path("out").exists()

    def test_hostile_names_reach_no_terminal(self) -> None:
        for name in ("\x1b[2J", "\x9b31m", "a\u202eb", "\x1b]0;title\x07", "\udcff"):
            for arguments in (
                ["inspect", name],
                ["capabilities", "show", name],
                ["bake", "-m", name, "--heads", name, "-o", name],
                ["remove", "-c", name, "-m", name, "-o", name],
                ["recipe", "check", name],
                [name],
            ):
                found = run(*arguments)
                assert found.exit_code in (2, 3), arguments
                assert not any(c in found.output for c in "\x1b\x9b\x07\u202e\udcff")
                json.loads(run(*arguments, "--json").stdout)


class TestBake:
    def test_writes_and_says_what_changed(self) -> None:
        make_model(Path("model"))
        found = run("bake", "-m", "model", "--heads", "L0H1,L1H3", "--heads", "L1H0", "-o", "out")
        assert found.exit_code == 0
        assert "3 heads (L0H1, L1H0, L1H3)" in found.stdout
        assert "384 of" in found.stdout  # 3 heads x 16 rows x 4 columns, 2 of 4 bytes not zero
        assert run("bake", "-m", "model", "--heads", "L0H1", "-o", "out").exit_code == 2
        again = run("bake", "-m", "model", "--heads", "L0H1", "-o", "out", "--force", "--json")
        shown = json.loads(again.stdout)
        assert (shown["output"], shown["heads"], shown["validation"]) == ("out", ["L0H1"], None)

    def test_a_head_that_is_not_there_is_exit_3(self) -> None:
        make_model(Path("model"))
        found = run("bake", "-m", "model", "--heads", "L9H0", "-o", "out")
        assert found.exit_code == 3
        assert "nearest: L1H0" in found.stderr
        assert not Path("out").exists()

    def test_takes_the_heads_of_a_file(self) -> None:
        make_model(Path("model"))
        Path("plan.json").write_text('{"heads": ["L0H1", "L1H3"], "run": "runs/one"}')
        assert run("bake", "-m", "model", "--plan", "plan.json", "-o", "out").exit_code == 0
        also = ("--plan", "out/editor.json", "--heads", "L1H0", "-o", "more", "--json")
        shown = json.loads(run("bake", "-m", "model", *also).stdout)
        assert shown["heads"] == ["L0H1", "L1H0", "L1H3"]
        assert shown["restore_patch"] == "more.restore.zip"
        assert Path("more.restore.zip").is_file()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"heads": []}', "heads should be a list"),
            ('{"heads": ["16.21"]}', "L16H21"),
            ('{"heads": [5]}', "L16H21"),
            ('{"heads": "L1H1"}', "heads should be a list"),
            ("[]", "plan.json"),
            ("{", "plan.json"),
            (None, "plan.json"),
        ],
    )
    def test_a_plan_without_heads_is_exit_2(self, text: str | None, said: str) -> None:
        make_model(Path("model"))
        if text is not None:
            Path("plan.json").write_text(text)
        found = run("bake", "-m", "model", "--plan", "plan.json", "-o", "out")
        assert (found.exit_code, found.stdout) == (2, "")
        assert said in found.stderr
        assert not Path("out").exists()

    def test_a_gguf_file_is_edited_as_it_is(self) -> None:
        make_gguf(Path("m.gguf"))
        for form in ([], ["--format", "gguf"]):
            arguments = ("bake", "-m", "m.gguf", "--heads", "L0H1", "-o", "out", "--force", *form)
            shown = json.loads(run(*arguments, "--json").stdout)
            assert shown["base_files"][0]["name"] == "m.gguf"
            assert shown["edits"][0]["code"] == "ggml"
        make_model(Path("model"))
        found = run("bake", "-m", "model", "--heads", "L0H1", "-o", "o", "--format", "gguf")
        assert found.exit_code == 2
        assert "is no GGUF file" in found.stderr

    def test_links_are_said(self) -> None:
        make_base(Path("base"))
        found = run("bake", "-m", "base", "--heads", "L0H1", "-o", "out", "--link", "--json")
        assert json.loads(found.stdout)["linked"] == ["model-2-of-2.safetensors"]
        assert "linked, not copied" in found.stderr

    def test_a_partly_covered_model_needs_a_word(self) -> None:
        model = make_model(Path("model"))
        config = {**CONFIG, "num_hidden_layers": 3}
        (model / "config.json").write_text(json.dumps(config))
        found = run("bake", "-m", "model", "--heads", "L0H1", "-o", "out")
        assert found.exit_code == 3
        assert "--allow-partial" in found.stderr
        arguments = ("bake", "-m", "model", "--heads", "L0H1", "-o", "out", "--allow-partial")
        assert json.loads(run(*arguments, "--json").stdout)["not_covered"]


class TestProof:
    @pytest.fixture(autouse=True)
    def edited(self) -> None:
        make_base(Path("base"))
        assert run("bake", "-m", "base", "--heads", "L0H1,L1H2", "-o", "out").exit_code == 0

    def test_verify_says_what_holds_and_what_it_cannot_tell(self) -> None:
        found = run("verify", "out", "--base", "base")
        assert found.exit_code == 0
        for part in ("VERIFIED: out", "2 heads (L0H1, L1H2)", "NOT checked", "no signature"):
            assert part in found.stdout
        alone = run("verify", "out")
        assert "VERIFIED, without the base: out" in alone.stdout
        assert "--base" in alone.stdout
        shown = json.loads(run("verify", "out", "--base", "base", "--json").stdout)
        assert (shown["base"], shown["heads"]) == ("base", ["L0H1", "L1H2"])
        assert shown["bytes_changed"] > 0 and len(shown["not_checked"]) == 1

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
    def test_a_full_stdout_is_one_line(self) -> None:
        command = [sys.executable, "-m", "editor", "verify", "out", "--json"]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                command,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": path},
            )
        assert done.returncode == 3 and "Traceback" not in done.stderr
        assert "disk is full" in done.stderr

    @pytest.mark.parametrize("base", [[], ["--base", "base"]], ids=["alone", "base"])
    def test_a_failed_check_is_exit_4_and_names_the_file(self, base: list[str]) -> None:
        flip(Path("out/tokenizer.json"), 3)
        found = run("verify", "out", *base)
        assert (found.exit_code, found.stdout) == (4, "")
        assert "out/tokenizer.json" in found.stderr
        shown = json.loads(run("verify", "out", *base, "--json").stdout)
        assert shown["error"]["exit_code"] == 4

    def test_a_derivative_is_checked_for_its_heads(self) -> None:
        change_json(Path("out/config.json"), lambda config: config.update(note="of another tool"))
        assert run("verify", "out").exit_code == 4
        found = run("verify", "out", "--derivative", "--base", "base")
        assert found.exit_code == 0, found.stderr
        assert "who made these files" in found.stdout
        Path("out/editor.json").rename("editor.json")
        assert run("verify", "out", "--manifest", "editor.json").exit_code == 0
        shown = json.loads(run("verify", "out", "--heads", "L1H2", "--json").stdout)
        assert shown["heads"] == ["L1H2"]
        other = run("verify", "out", "--heads", "L1H2,L1H3")
        assert other.exit_code == 4
        assert "should be zero" in other.stderr

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["verify", "base"], 3, "editor.json"),
            (["verify", "nowhere"], 2, "--heads"),
            (["verify", "base", "--derivative"], 2, "--manifest"),
            (["verify", "out", "--heads", "1.2"], 2, "L16H21"),
            (["verify", "out", "--derivative", "--public-key", "k"], 2, "--public-key"),
            (["verify", "out", "--base", "out"], 2, "itself"),
            (["verify", "out", "--base", "smollm"], 2, "did you mean"),
            (["undo", "out", "-o", "base"], 2, "exists"),
            (["undo", "out"], 2, "--output"),
            (["undo", "base", "-o", "x"], 3, "editor.json"),
            (["undo", "out", "-o", "x", "--restore", "nowhere.zip"], 3, "--restore"),
            (["diff", "base"], 2, "Missing argument"),
            (["diff", "base", "smollm"], 2, "did you mean"),
        ],
    )
    def test_wrong_usage_is_told(self, arguments: list[str], code: int, said: str) -> None:
        found = run(*arguments)
        assert (found.exit_code, found.stdout) == (code, "")
        assert said in found.stderr
        assert json.loads(run(*arguments, "--json").stdout)["error"]["exit_code"] == code

    def test_undo_gives_the_base_back(self) -> None:
        found = run("undo", "out", "-o", "restored")
        assert found.exit_code == 0
        assert "base restored" in found.stdout and "tokenizer.json" in found.stdout
        assert files_of(Path("restored")) == files_of(Path("base"))
        shown = json.loads(run("undo", "out", "-o", "again", "--json").stdout)
        assert (shown["output"], len(shown["files"])) == ("again", 8)
        Path("out.restore.zip").rename("elsewhere.zip")
        moved = run("undo", "out", "-o", "third", "--restore", "elsewhere.zip")
        assert moved.exit_code == 0

    def test_undo_of_changed_files_is_exit_4(self) -> None:
        flip(Path("out/model-1-of-2.safetensors"))
        found = run("undo", "out", "-o", "restored")
        assert found.exit_code == 4
        assert "model-1-of-2.safetensors" in found.stderr
        assert not Path("restored").exists()

    def test_diff_shows_heads(self) -> None:
        found = run("diff", "base", "out")
        assert found.exit_code == 0
        for part in ("2 tensors differ, 2 are equal", "L0H1 zero in B", "README.md"):
            assert part in found.stdout
        shown = json.loads(run("diff", "base", "out", "--json").stdout)
        assert [at["heads"] for at in shown["tensors"]] == [["L0H1"], ["L1H2"]]
        assert "the same: 4 tensors" in run("diff", "base", "base").stdout

    def test_a_gguf_file_from_end_to_end(self) -> None:
        before = make_gguf(Path("m.gguf")).read_bytes()
        assert run("bake", "-m", "m.gguf", "--heads", "L1H3", "-o", "g").exit_code == 0
        assert run("verify", "g", "--base", "m.gguf").exit_code == 0
        assert run("verify", "g").exit_code == 0
        assert run("verify", "g/m.gguf").exit_code == 0  # as a derivative, by g/editor.json
        assert "L1H3 zero in B" in run("diff", "m.gguf", "g/m.gguf").stdout
        assert run("undo", "g", "-o", "back").exit_code == 0
        assert files_of(Path("back")) == {"m.gguf": before}

    def test_names_of_files_reach_no_terminal(self) -> None:
        Path("out/\x1b[2J.py").write_text("")
        found = run("verify", "out")
        assert found.exit_code == 3
        assert "\x1b" not in found.output
        assert "\x1b" not in run("diff", "base", "out").output


class TestInspect:
    def test_shows_where_the_heads_are(self) -> None:
        make_model(Path("model"))
        found = run("inspect", "model")
        assert found.exit_code == 0
        for part in ("llama", "model.layers.N.self_attn.o_proj.weight", "F32", "NOT covered"):
            assert part in found.stdout
        assert json.loads(run("inspect", "model", "--json").stdout)["n_kv_heads"] == 2


class TestValidate:
    def test_exit_4_when_a_limit_is_broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: dict[str, Any] = {}

        def fake(edited: Path, base: str | None, *_: object, **changes: object) -> object:
            asked.update(changes, edited=edited, base=base)
            return make_validation(accepted=bool(base))

        monkeypatch.setattr(pipeline, "validate", fake)
        found = run("validate", "out", "-c", "recall", "--test-items", "9")
        assert found.exit_code == 4
        assert "NOT VALIDATED" in found.stdout
        assert asked == {
            "edited": Path("out"),
            "base": None,
            "capability": "recall",
            "test_items": 9,
        }
        good = run("validate", "out", "--base", "model", "--json")
        assert good.exit_code == 0
        assert json.loads(good.stdout)["output"] == "out"

    def test_a_folder_of_another_kind_is_exit_3(self) -> None:
        assert run("validate", "nowhere").exit_code == 3


def test_localize_shows_the_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = EditPlan(capability="recall", heads=CHOSEN, predicted=(), evaluations=1, why="w")
    record = Localization(
        run="runs/one",
        heads=CHOSEN,
        evaluations=112,
        scan_evaluations=270,
        universal=make_universal(),
        estimates=tuple(
            one.model_copy(update={"not_numbers": ((Head(3, 1), Head(4, 2)),)})
            for one in make_estimates()
        ),
        plan=plan,
        format_check=make_format_check("Of the 3.2 nats 9 % is form.\x1b[2J"),
        confirmation=make_confirmation(),
    )
    monkeypatch.setattr(pipeline, "localize", lambda *_: record)
    found = run("localize", "-c", "recall", "-m", "gpt2")
    assert found.exit_code == 0
    assert "--heads L23H4,L21H7" in found.stdout
    assert "form    Of the 3.2 nats 9 % is form.\n" in found.stdout
    assert "1 mask yielded a score that is not a number; it is left out" in found.stdout
    assert "figures: L3H1, L4H2.\n" in found.stdout
    assert "112 evaluations, and 270 of the once-a-model scan" in found.stdout
    assert found.stdout.count("\ncheck   ") == 3 and found.stdout.isascii()
    shown = json.loads(run("localize", "-c", "recall", "-m", "gpt2", "--json").stdout)
    assert shown["heads"][0] == "L23H4"
    assert shown["confirmation"]["interactions"][1]["kind"] == "needs_both"


def test_every_chosen_head_stands_first_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = make_estimates()
    last = tuple(one.head for one in found.effects[-2:])
    plan = EditPlan(capability="recall", heads=last, predicted=(), evaluations=1, why="w")
    record = Localization(
        run="runs/one",
        heads=last,
        evaluations=112,
        scan_evaluations=270,
        universal=make_universal(),
        estimates=(found,),
        plan=plan,
    )
    monkeypatch.setattr(pipeline, "localize", lambda *_: record)
    lines = run("localize", "-c", "recall", "-m", "gpt2").stdout.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("Head ")) + 2
    assert {line.split()[0] for line in lines[start : start + 2]} == set(map(str, last))
    assert lines[start + 2].split()[0] not in set(map(str, last))


class TestDomain:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (("-c", "hazardous-knowledge"), "goes by domain"),
            (("-c", "recall", "--domain", "bio"), "not for recall"),
            (("-c", "hazardous-knowledge", "--domain", "physics"), "not one of"),
        ],
    )
    def test_is_one_of_hazardous_knowledge_alone(self, given: tuple[str, ...], said: str) -> None:
        found = run("remove", *given, "-m", "gpt2", "-o", "out")
        assert found.exit_code == 2 and said in found.stderr

    def test_names_the_capability(self) -> None:
        found = run("capabilities", "show", "hazardous-knowledge", "--domain", "chem", "--offline")
        assert found.exit_code == 2 and "wmdp-chem" in found.stderr


class TestCapabilities:
    def test_lists_and_shows(self) -> None:
        found = run("capabilities")
        assert found.exit_code == 0
        assert {"recall", "english"} <= {
            line.split()[0] for line in found.stdout.split("\n") if line
        }
        rows = json.loads(run("capabilities", "--json").stdout)["capabilities"]
        # Nothing is read from data sets for a list, so their items are not counted.
        assert all((row["items"] is None) == bool(row["data"]) for row in rows)
        assert all(row["items"]["test"] > 0 for row in rows if row["items"])
        named_only = {row["name"] for row in rows if not row["default_control"]}
        assert {row["name"] for row in rows if row["data"]} < named_only
        assert {"inflection", "coreference", "swearing", "swearing-completions"} == {
            row["name"] for row in rows if row["name"] in named_only and not row["data"]
        }
        lines = {
            row["name"]: line
            for row in rows
            for line in found.stdout.splitlines()
            if line.startswith(f"{row['name']} ")
        }
        assert {name for name, line in lines.items() if "if named" in line} == named_only
        assert {name for name, line in lines.items() if " default " in line} == set(
            lines
        ) - named_only
        assert len(lines) == len(rows)
        assert "if named with --control" in run("capabilities", "show", "coreference").stdout
        shown = json.loads(run("capabilities", "show", "recall", "--json").stdout)
        assert shown["metric"] == "exact"
        assert {"prompt", "answer", "variant", "transfer"} == set(shown["examples"][0])
        assert "licence" in run("capabilities", "show", "english").stdout


class TestRecipeVerbs:
    def write(self, text: str) -> str:
        Path("recipe.yaml").write_text(text)
        return "recipe.yaml"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("model: smollm2\ncapability: recall\n", "recipe.yaml:1: model:"),
            ("model: org/name@\ncapability: recall\n", "recipe.yaml:1: model:"),
            ("model: gpt2\n\ncapability: recal\n", "recipe.yaml:3: capability:"),
            ("model: gpt2\ncapability: recall\ncontrols: [englis]\n", "recipe.yaml:3: controls:"),
            (
                "model: gpt2\ncapability: recall\nmax_control_drop:\n  englis: 1.0\n",
                "recipe.yaml:3: max_control_drop:",
            ),
            ("model: gpt2\ncapability: recall\nseed: x\n", "recipe.yaml:3: seed:"),
            ("model: [", "recipe.yaml:1"),
        ],
    )
    def test_check_names_file_and_line(self, text: str, said: str) -> None:
        file = self.write(text)
        found = run("recipe", "check", file)
        assert found.exit_code == 2
        assert said in found.stderr
        shown = json.loads(run("recipe", "check", file, "--json").stdout)
        assert shown["files"][0]["ok"] is False

    def test_check_goes_through_all_files(self) -> None:
        good = self.write("model: ./anywhere\ncapability: recall\n")
        found = run("recipe", "check", "nothing.yaml", good)
        assert found.exit_code == 2
        assert "nothing.yaml" in found.stderr
        assert found.stdout == "recipe.yaml: ok\n"
        assert run("recipe", "check", good).exit_code == 0

    def test_show_fills_in_and_can_be_read_again(self) -> None:
        file = self.write("model: gpt2\ncapability: recall\nmax_control_drop: {default: 0.2}\n")
        shown = run("recipe", "show", file).stdout
        assert "english: 0.2" in shown
        Path("full.yaml").write_text(shown)
        assert run("recipe", "show", "full.yaml").stdout == shown
        assert json.loads(run("recipe", "show", file, "--json").stdout)["max_heads"] == 5

    def test_schema(self) -> None:
        assert json.loads(run("recipe", "schema").stdout)["properties"]["seed"]
        assert json.loads(run("recipe", "schema", "--json").stdout)["$schema"]

    def test_run_takes_fields_of_the_recipe_unless_a_flag_replaces_them(self, faked: Any) -> None:
        fake = faked(True)
        file = self.write(
            "model: gpt2\ncapability: recall\nseed: 3\noutput: from-recipe\n"
            "max_control_drop: {english: 0.1, python: 0.2}\n"
        )
        assert run("run", file, "--max-control-drop", "english=0.3").exit_code == 0
        assert fake.recipe.max_control_drop == {"english": 0.3, "python": 0.2}
        assert (fake.recipe.seed, fake.recipe.model) == (3, "gpt2")
        assert Path("from-recipe").exists()
        assert run("run", file, "-o", "out", "--seed", "4", "-m", "smollm2-135m").exit_code == 0
        assert (fake.recipe.seed, fake.recipe.model) == (4, "smollm2-135m")
        assert Path("out").exists()

    def test_run_without_an_output_is_exit_2(self) -> None:
        found = run("run", self.write("model: gpt2\ncapability: recall\n"))
        assert found.exit_code == 2
        assert "--output" in found.stderr


class TestDryRun:
    def files(self) -> set[str]:
        return {str(path) for path in Path().rglob("*")}

    def test_says_what_would_be_done_and_writes_nothing(self) -> None:
        make_model(Path("model"))
        before = self.files()
        arguments = ("remove", "-c", "recall", "-m", "model", "-o", "out", "--dry-run")
        found = run(*arguments)
        assert found.exit_code == 0
        for part in ("2 layers, 8 heads", "9 masks x 2 texts", "report.html", "MiB free needed"):
            assert part in found.stdout
        shown = json.loads(run(*arguments, "--json").stdout)
        assert (shown["dry_run"], shown["scan_masks"]) == (True, 9)
        assert shown["settings"]["dtype"] == "float32"
        assert self.files() == before
        assert run("localize", "-c", "recall", "-m", "model", "--dry-run").exit_code == 0

    def test_says_method_and_budget(self) -> None:
        make_model(Path("model"))
        dry = ("remove", "-c", "recall", "-m", "model", "-o", "out", "--dry-run")
        text = run(*dry, "--method", "published", "--budget", "90", "--improve").stdout
        for part in (
            "published, at most 5 heads",
            "at most 90 evaluations of recall",
            "not looked",
        ):
            assert part in text
        assert "recall, to get better" in text
        shown = json.loads(run(*dry, "--method", "scan", "--json").stdout)
        assert (shown["method"], shown["improve"], shown["max_heads"]) == ("scan", False, 5)
        assert shown["evaluations"] == shown["settings"]["budget"]

    def test_refuses_what_a_real_run_would(self) -> None:
        make_model(Path("model"))
        dry = ("-c", "recall", "--dry-run")
        assert run("remove", "-m", "model", "-o", "model", *dry).exit_code == 2
        assert run("remove", "-m", "model", "-o", "model/out", *dry).exit_code == 2
        assert run("remove", "-m", "smollm", "-o", "out", *dry).exit_code == 2
        Path("model/config.json").unlink()
        assert run("remove", "-m", "model", "-o", "out", *dry).exit_code == 3

    def test_a_model_that_is_not_here_is_said_and_not_fetched(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", "hub")
        monkeypatch.setenv("HF_HUB_OFFLINE", "")  # which --offline sets
        given = ("-c", "recall", "-m", "no/such", "-o", "out", "--offline")
        found = run("remove", *given, "--dry-run")
        assert found.exit_code == 0
        assert "not ready" in found.stdout and "None" not in found.stdout
        assert self.files() == set()

    def test_a_conversion_is_announced_and_not_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Path] = []

        def convert(_file: Path, target: Path) -> None:
            made.append(target)
            make_model(target)

        monkeypatch.setattr(gguf, "check_file", lambda _: None)
        monkeypatch.setattr(gguf, "convert", convert)
        Path("m.gguf").write_bytes(b"GGUF")
        Path("cache").mkdir()
        found = run("remove", "-c", "recall", "-m", "m.gguf", "-o", "out", "--dry-run", "--json")
        assert made == []
        announced = json.loads(found.stdout)["not_ready"]
        source.resolve("m.gguf")
        assert str(made[0]) in announced  # the preview knows the name that the source gives
        found = run("remove", "-c", "recall", "-m", "m.gguf", "-o", "out", "--dry-run", "--json")
        assert json.loads(found.stdout)["n_heads"] == 8

    def test_a_known_scan_is_not_counted(self) -> None:
        make_model(Path("model"))
        arguments = ("remove", "-c", "recall", "-m", "model", "-o", "out", "--dry-run", "--json")
        assert json.loads(run(*arguments).stdout)["scan_masks"] > 0
        opened = session.open_model("model", session.Options(), Silent())
        file = session.universal_file(opened, "float32", None)
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        assert json.loads(run(*arguments).stdout)["scan_masks"] == 0


class TestProgress:
    def test_plain_lines_come_every_ten_seconds(self) -> None:
        now, lines = [0.0], list[str]()
        with meters.Lines(lines.append, clock=lambda: now[0]) as progress:
            progress.stage("search", 100)
            for _ in range(30):
                now[0] += 1.0
                progress.advance(1)
            progress.stage("write", 0)
            progress.say("a fact")
        assert lines[0] == "search: about 100 masks"
        assert "10/100 masks, 1 min 30 s left, peak " in lines[1]
        assert lines[1].endswith(" GiB, 10 s elapsed, 1.00 s/mask")
        assert [line.split(":")[0] for line in lines[1:4]] == ["search"] * 3
        assert lines[4:] == ["search: 30 masks in 30 s", "write ...", "a fact"]

    def test_more_masks_than_expected_and_no_total(self) -> None:
        pace = meters.Pace(lambda: 0.0)
        pace.begin(3)
        pace.advance(5)
        assert pace.text().startswith("5 masks, ")
        pace.begin(0)
        assert "masks" not in pace.text()
        assert pace.left_s is None

    def test_masks_from_the_journal_do_not_count_for_the_pace(self) -> None:
        now = [0.0]
        pace = meters.Pace(lambda: now[0])
        pace.begin(1000)
        pace.advance(500)
        for _ in range(meters.RECENT):
            now[0] += 2.0
            pace.advance(1)
        assert pace.s_per_mask == pytest.approx(2.0)

    def test_best_heads_and_tokens_a_second_are_shown(self) -> None:
        now, lines = [0.0], list[str]()
        with meters.Lines(lines.append, clock=lambda: now[0]) as progress:
            progress.stage("search", 10)
            progress.advance(4)  # from the journal: no tokens, no time
            for _ in range(2):
                now[0] += 6.0
                progress.tokens(3000)
                progress.advance(1)
            assert "best" not in lines[-1] and "500 tokens/s" in lines[-1]
            progress.best(["L1H1", "L2H2", "L3H3", "L4H4"])
            now[0] += 10.0
            progress.advance(1)
        assert "best L1H1 L2H2 L3H3," in lines[2] and "L4H4" not in lines[2]

    def test_a_new_stage_forgets_the_tokens_but_not_the_heads(self) -> None:
        pace = meters.Pace(lambda: 0.0)
        pace.best = ("L1H1",)
        pace.begin(5)
        assert pace.tokens_per_s is None and "best L1H1" in pace.text()

    def test_a_bar_is_drawn_without_what_a_model_says_to_terminals(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        heard: list[str] = []
        with meters.Bar(lambda text: text.replace("\x1b", ""), heard.append) as bar:
            bar.say("fact [bold]\x1b[2J")
            bar.stage("stage [red]", 3)
            bar.advance(5)
            bar.stage("unknown", 0)
            bar.advance(1)
        assert "fact [bold][2J" in capsys.readouterr().err
        assert heard == ["fact [bold]\x1b[2J", "stage [red]", "unknown"]

    @pytest.mark.parametrize(
        ("seconds", "said"), [(0.4, "0 s"), (65, "1 min 05 s"), (7500, "2 h 05 min")]
    )
    def test_durations(self, seconds: float, said: str) -> None:
        assert meters.duration(seconds) == said


class TestStreams:
    def call(self, shell: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", shell.replace("editor ", f"{sys.executable} -m editor ")],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
            timeout=60,
        )

    @pytest.mark.parametrize(
        "shell",
        [
            "editor recipe schema | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}",
            "editor recipe schema >&-",
            "editor recipe schema >/dev/null 2>&-",
            "editor capabilities show recall --log-file /dev/full",
        ],
    )
    def test_a_closed_stream_is_no_fault(self, shell: str) -> None:
        done = self.call(shell)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr

    def test_a_full_disk_under_stdout_is_one_line(self) -> None:
        done = self.call("editor recipe schema >/dev/full")
        assert done.returncode == 3
        assert "the disk is full" in done.stderr
        assert "Traceback" not in done.stderr

    def test_utf8_whatever_the_locale(self) -> None:
        done = self.call("LC_ALL=C PYTHONIOENCODING=ascii editor inspect 'é/é/é'")
        assert done.returncode == 2
        assert "é/é/é" in done.stderr


def test_a_terminal_is_needed_for_a_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    console = Console()
    assert console.live
    console.quiet = True
    assert not console.live
    console.quiet = False
    monkeypatch.setenv("TERM", "dumb")
    assert not console.live


def test_limits_are_read() -> None:
    limit = flags.Limit()
    assert limit.convert("0.05", None, None) == ("default", 0.05)
    assert limit.convert("english=1e-2", None, None) == ("english", 0.01)
