"""Tasks of lm-eval as capabilities: the same scores as lm-eval's, and no code of strangers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from editor import capabilities, tasks
from editor.capabilities import Continuation, Generation, Outside
from editor.capabilities.lm_eval_source import rendering
from editor.cli import main
from editor.errors import UsageError
from editor.measure import Bench, Task
from editor.recipe import make_recipe
from lm_eval_tasks import ANSWER, CHOICE, WRITE, write_task
from planted import Memory
from tiny import open_tiny


@pytest.fixture(autouse=True)
def offline_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def own(folder: Path, task: dict[str, Any], **changes: Any) -> Outside:
    write_task(folder, task, **changes)
    return Outside(include_path=folder, offline=True)


def refused(name: str, outside: Outside) -> UsageError:
    with pytest.raises(UsageError) as caught:
        capabilities.get(name, outside=outside)
    assert "\n" not in caught.value.message
    return caught.value


def evaluated(checkpoint: Path, folder: Path, task: str) -> list[dict[str, Any]]:
    """What lm-eval itself says to each document."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    lm = HFLM(pretrained=str(checkpoint), dtype="float32", device="cpu", batch_size=16)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(lm, tasks=[task], task_manager=manager, bootstrap_iters=0)
    assert found is not None
    return found["samples"][task]


def theirs(samples: list[dict[str, Any]], metric: str, filter_name: str) -> dict[str, float]:
    """By prompt, without the space at its end."""
    return {
        sample["arguments"][0][0].rstrip(): float(sample[metric])
        for sample in samples
        if sample["filter"] == filter_name
    }


def ours(checkpoint: Path, name: str, outside: Outside) -> dict[str, float]:
    capability = capabilities.get(name, outside=outside)
    bench = Bench(open_tiny(checkpoint, "float32"), Memory())
    (scores,) = bench.scores(Task(capability, capability.all_items), [()])
    prompts = [item.prompt.rstrip() for item in capability.all_items]
    return dict(zip(prompts, scores.exact, strict=True))


class TestAgreement:
    @pytest.mark.parametrize(
        "changes",
        [{"num_fewshot": 1}, {"target_delimiter": "", "doc_to_text": "{{place}}: "}],
        ids=["usual", "space in the prompt"],
    )
    def test_choices(self, tiny_checkpoint: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
        outside = own(tmp_path / "own", CHOICE, **{"num_fewshot": 0, **changes})
        samples = evaluated(tiny_checkpoint, tmp_path / "own", "own_choice")
        found = {
            metric: ours(tiny_checkpoint, f"lm-eval:own_choice@{metric}", outside)
            for metric in ("acc", "acc_norm")
        }
        assert found["acc"] == theirs(samples, "acc", "none")
        assert found["acc_norm"] == theirs(samples, "acc_norm", "none")
        assert len(found["acc"]) == 36
        assert 0 < sum(found["acc"].values()) < 36
        assert found["acc"] != found["acc_norm"]

    def test_answers(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        # One letter, which a random model gets right now and then.
        outside = own(tmp_path / "own", ANSWER, doc_to_target="{{place[-1]}}", num_fewshot=0)
        found = ours(tiny_checkpoint, "lm-eval:own_answer", outside)
        expected = theirs(evaluated(tiny_checkpoint, tmp_path / "own", "own_answer"), "acc", "none")
        assert found == expected

    def test_written(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        # A random model may write a capital, and mostly does not.
        capital = {"function": "regex", "regex_pattern": "([A-Z])"}
        rule = {"name": "letters", "filter": [capital, {"function": "take_first"}]}
        outside = own(
            tmp_path / "own",
            WRITE,
            num_fewshot=0,
            doc_to_target="{{'[invalid]' if right < 2 else place}}",
            generation_kwargs={"until": ["e", "\n"], "do_sample": False, "max_gen_toks": 8},
            filter_list=[rule],
        )
        found = ours(tiny_checkpoint, "lm-eval:own_write@letters", outside)
        samples = evaluated(tiny_checkpoint, tmp_path / "own", "own_write")
        assert found == theirs(samples, "exact_match", "letters")
        assert 0 < sum(found.values()) < 36


class TestItems:
    def test_choices(self, tmp_path: Path) -> None:
        found = capabilities.get("lm-eval:own_choice", outside=own(tmp_path / "own", CHOICE))
        assert (found.name, found.kind) == ("lm-eval:own_choice", "task")
        assert found.floor == pytest.approx(0.25)
        one = next(item for item in found.all_items if "Nepal" in item.prompt.splitlines()[-2])
        assert one.prompt.count("What is the capital of") == 3  # two worked examples
        assert one.prompt.endswith("What is the capital of Nepal?\nAnswer:")
        assert one.answer == " Kathmandu"
        assert one.answer in one.choices
        assert len(one.choices) == 4
        splits = {split: len(found.items(split)) for split in ("search", "choose", "test")}
        assert sum(splits.values()) == 36
        assert min(splits.values()) >= 4
        assert "lm-eval" in found.source
        assert str(tmp_path) not in found.source

    def test_written(self, tmp_path: Path) -> None:
        found = capabilities.get("lm-eval:own_write", outside=own(tmp_path / "own", WRITE))
        item = found.all_items[0]
        (asked, reference) = found.scorer.requests(item)
        assert isinstance(asked, Generation)
        assert (asked.max_new_tokens, asked.stop) == (6, ("\n", "."))
        assert reference == Continuation(item.prompt, item.answer)
        # The first filter takes the first word; exact_match does not look at case.
        capital = item.answer.strip()
        assert judged(found, item, f"42 {capital.lower()} or so") == 1.0
        assert judged(found, item, "atlantis") == 0.0
        whole = capabilities.get("lm-eval:own_write@whole", outside=own(tmp_path / "own", WRITE))
        same = next(one for one in whole.all_items if one.check == item.check)
        assert judged(whole, same, f"42 {capital.lower()} or so") == 0.0
        assert judged(whole, same, capital.upper()) == 1.0

    def test_a_changed_task_has_another_definition(self, tmp_path: Path) -> None:
        def definition(**changes: Any) -> str:
            outside = own(tmp_path / "own", WRITE, **changes)
            return capabilities.get("lm-eval:own_write", outside=outside).definition

        first = definition()
        assert first == definition()
        rule = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
        assert len({first, definition(metric_list=rule), definition(num_fewshot=1)}) == 3

    def test_settings_tell_the_definition(self, tmp_path: Path) -> None:
        outside = own(tmp_path / "own", CHOICE)
        recipe = make_recipe(model="-", capability="lm-eval:own_choice", controls=["recall"])
        what = tasks.scope(recipe, outside=outside)
        assert what.target.definition
        assert what.controls[0].definition == ""


def judged(capability: Any, item: Any, text: str) -> float:
    return capability.scorer.score(item, [text]).exact


class TestRefused:
    def test_output_type(self, tmp_path: Path) -> None:
        changes = {"output_type": "loglikelihood_rolling", "metric_list": []}
        error = refused("lm-eval:own_answer", own(tmp_path / "own", ANSWER, **changes))
        assert "output type loglikelihood_rolling, which is not taken" in error.message
        assert "multiple_choice, loglikelihood, generate_until" in error.hint

    def test_metric(self, tmp_path: Path) -> None:
        metrics = [{"metric": "bleu", "aggregation": "bleu", "higher_is_better": True}]
        error = refused("lm-eval:own_write", own(tmp_path / "own", WRITE, metric_list=metrics))
        assert "is scored by bleu; of written answers only exact_match" in error.message
        error = refused("lm-eval:own_choice@f1", own(tmp_path / "two", CHOICE))
        assert "no metric that is taken" in error.message

    def test_filter(self, tmp_path: Path) -> None:
        error = refused("lm-eval:own_write@frist-word", own(tmp_path / "own", WRITE))
        assert "no filter of the task" in error.message
        assert "did you mean first-word?" in error.hint

    def test_sampling(self, tmp_path: Path) -> None:
        how = {"until": ["\n"], "do_sample": True, "temperature": 0.7}
        error = refused("lm-eval:own_write", own(tmp_path / "own", WRITE, generation_kwargs=how))
        assert "draws what is written at random" in error.message

    def test_several_right_answers(self, tmp_path: Path) -> None:
        target = "{{[0, 1]}}"
        changes = {"doc_to_target": target, "num_fewshot": 0}
        error = refused("lm-eval:own_choice", own(tmp_path / "own", CHOICE, **changes))
        assert "several right answers" in error.message

    def test_empty_prompt(self, tmp_path: Path) -> None:
        changes = {"doc_to_text": "", "num_fewshot": 0}
        error = refused("lm-eval:own_answer", own(tmp_path / "own", ANSWER, **changes))
        assert "has an empty prompt" in error.message

    def test_too_few_documents(self, tmp_path: Path) -> None:
        outside = own(tmp_path / "own", CHOICE)
        data = tmp_path / "own" / "test.jsonl"
        data.write_text("".join(data.read_text("utf-8").splitlines(keepends=True)[:9]), "utf-8")
        error = refused("lm-eval:own_choice", outside)
        assert "at least" in error.message

    def test_unknown_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import lm_eval.tasks

        write_task(tmp_path / "packaged", CHOICE)
        monkeypatch.setattr(lm_eval.tasks, "__file__", str(tmp_path / "packaged" / "__init__.py"))
        error = refused("lm-eval:own_choise", Outside(offline=True))
        assert "lm-eval has no task named 'own_choise'" in error.message
        assert "did you mean own_choice?" in error.hint
        assert "--include-path" in error.hint
        assert "names no task" in refused("lm-eval:", Outside()).message

    def test_a_group(self, tmp_path: Path) -> None:
        outside = own(tmp_path / "own", CHOICE)
        group = {"group": "all_own", "task": ["own_choice"]}
        (tmp_path / "own" / "all.yaml").write_text(json.dumps(group), "utf-8")
        error = refused("lm-eval:all_own", outside)
        assert "is a group of 1 tasks" in error.message
        assert "own_choice" in error.hint

    def test_data_that_is_not_here(self, tmp_path: Path) -> None:
        outside = own(
            tmp_path / "own", CHOICE, dataset_path="no-such-org/no-such-set", dataset_kwargs={}
        )
        error = refused("lm-eval:own_choice", outside)
        assert "its data set no-such-org/no-such-set is not here" in error.message
        assert "run once without --offline" in error.hint
        assert "datasets.load_dataset('no-such-org/no-such-set')" in error.hint

    def test_no_folder(self, tmp_path: Path) -> None:
        outside = Outside(include_path=tmp_path / "nowhere")
        assert "is no folder of tasks" in refused("lm-eval:own_choice", outside).message


MARK = "import pathlib\npathlib.Path({!r}).touch()\ndef rows(docs):\n    return docs\n"


class TestCode:
    """Nothing that a task of the user's folder holds is run."""

    def python(self, folder: Path, place: str = "") -> Path:
        """A task that names a function, in its own file or in one that it includes."""
        outside = own(folder, CHOICE)
        ran = folder / "ran"
        (folder / "code.py").write_text(MARK.format(str(ran)), "utf-8")
        file = folder / "own_choice.yaml"
        line = "process_docs: !function code.rows\n"
        lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in self.fields(file).items())
        if place:
            (folder / place).write_text(line, "utf-8")
            line = f"include: {place}\n"
        file.write_text(lines + line, "utf-8")
        assert outside.include_path == folder
        return ran

    def fields(self, file: Path) -> dict[str, Any]:
        return json.loads(file.read_text("utf-8"))

    @pytest.mark.parametrize("place", ["", "part.inc"])
    def test_functions(self, tmp_path: Path, place: str) -> None:
        folder = tmp_path / "own"
        ran = self.python(folder, place)
        error = refused("lm-eval:own_choice", Outside(folder, offline=True))
        assert f"{place or 'own_choice.yaml'}:" in error.message
        assert "runs Python code (!function)" in error.message
        assert "--trust-remote-code" in error.hint
        assert not ran.exists()
        trusted = Outside(folder, trust_remote_code=True, offline=True)
        assert len(capabilities.get("lm-eval:own_choice", outside=trusted).all_items) == 36
        assert ran.exists()

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"custom_dataset": "x"}, "has custom_dataset, which runs code"),
            ({"use_prompt": "promptsource:all"}, "has use_prompt, which runs code"),
            ({"dataset_path": "pandas"}, "reading the data pandas runs code"),
            ({"dataset_path": "./rows.py"}, "reading the data ./rows.py runs code"),
            ({"metric_list": [{"metric": "some-org/m"}]}, "some-org/m is none of lm-eval's own"),
            ({"metric_list": [{"metric": "acc", "hf_evaluate": True}]}, "acc is none of lm-eval's"),
        ],
    )
    def test_other_ways_to_run_code(
        self, tmp_path: Path, changes: dict[str, Any], said: str
    ) -> None:
        error = refused("lm-eval:own_choice", own(tmp_path / "own", CHOICE, **changes))
        assert said in error.message

    def test_templates(self, tmp_path: Path) -> None:
        ran = tmp_path / "ran"
        code = f"cycler.__init__.__globals__.os.mkdir({str(ran)!r})"
        text = "{{ " + code + " }}{{place}}"
        error = refused("lm-eval:own_choice", own(tmp_path / "own", CHOICE, doc_to_text=text))
        assert "unsafe" in error.message
        assert not ran.exists()

    def test_the_sandbox_ends(self) -> None:
        from lm_eval import utils

        before = utils.env
        with rendering(False):
            assert utils.env is not before
            assert utils.apply_template("{{ a | regex_replace('b', 'c') }}", {"a": "ab"}) == "ac"
        assert utils.env is before


def test_the_command_shows_a_task(tmp_path: Path) -> None:
    own(tmp_path / "own", CHOICE)
    job = ["capabilities", "show", "lm-eval:own_choice", "--include-path", str(tmp_path / "own")]
    done = CliRunner().invoke(main, [*job, "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["items"]["search"] >= 4
    assert shown["floor"] == pytest.approx(0.25)


def test_a_fault_ends_a_run_before_the_model_is_looked_for(tmp_path: Path) -> None:
    own(tmp_path / "own", CHOICE, output_type="loglikelihood_rolling")
    job = ["remove", "-c", "lm-eval:own_choice", "-m", "no/such-model", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(main, [*job, "--include-path", str(tmp_path / "own"), "--offline"])
    assert done.exit_code == 2
    assert "output type loglikelihood_rolling" in done.output
