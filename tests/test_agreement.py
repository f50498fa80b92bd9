"""The same items, asked by lm-eval in this process: same requests, and the same scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from editor import capabilities
from editor.capabilities import Capability, word_problems
from editor.library import Library
from editor.measure import Bench, Task
from editor.progress import Silent
from editor.records import Item, Scores
from editor.session import Opened, Options, loaded_bench, open_model
from editor.store import Journal

pytestmark = [pytest.mark.model, pytest.mark.slow]

N_CHOICE, N_WRITTEN = 30, 5


class Here(NamedTuple):
    """The real model in float32, opened by the editor."""

    opened: Opened
    bench: Bench


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    options, progress = Options(offline=True), Silent()
    folder = tmp_path_factory.mktemp("journal")
    opened = open_model("smollm2-135m", options, progress)
    with (
        Journal.open(folder / "journal.jsonl") as journal,
        closing(loaded_bench(opened, "float32", journal, options, progress)) as bench,
    ):
        yield Here(opened, bench)


@pytest.fixture(scope="module")
def theirs(here: Here) -> Any:
    from lm_eval.models.huggingface import HFLM

    folder = str(here.opened.source.folder)
    return HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1)


@pytest.fixture(scope="module")
def library(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(data_dir, tmp_path_factory.mktemp("cache"), offline=True)


def evaluated(
    lm: Any, yaml: str, rows: Sequence[Mapping[str, Any]], **changes: Any
) -> list[dict[str, Any]]:
    """What lm-eval says to each row, by one of its own task files."""
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks._yaml_loader import load_yaml

    config = dict(load_yaml(Path(lm_eval.__file__).parent / "tasks" / yaml)) | changes
    split = config.get("test_split") or config["validation_split"]
    found = datasets.Dataset.from_list([dict(row) for row in rows])
    for name in ("training_split", "validation_split", "test_split", "fewshot_split"):
        config.pop(name, None)
    config |= {"custom_dataset": lambda **_given: {split: found}, "test_split": split}
    config.pop("tag", None)
    config["metadata"] = {}
    name = config["task"]
    result: Any = evaluate(
        lm, {"tasks": {name: ConfigurableTask(config=config)}, "groups": {}, "group_map": {}}
    )
    return sorted(result["samples"][name], key=lambda sample: sample["doc_id"])


def our_scores(here: Here, one: Capability, items: Sequence[Item]) -> dict[str, float]:
    """`exact` of each item by its prompt."""
    (scores,) = here.bench.scores(Task(one, tuple(items)), [()])
    assert isinstance(scores, Scores)
    return {item.prompt: exact for item, exact in zip(items, scores.exact, strict=True)}


def arguments(sample: dict[str, Any]) -> list[tuple[str, str]]:
    """Prompt and continuation of each request."""
    return (
        [tuple(one.values())[:2] for one in sample["arguments"].values()]
        if isinstance(sample["arguments"], dict)
        else [tuple(one)[:2] for one in sample["arguments"]]
    )


@pytest.mark.parametrize(
    ("name", "yaml", "metric"),
    [
        ("arc_challenge", "arc/arc_challenge.yaml", "acc_norm"),
        ("hellaswag", "hellaswag/hellaswag.yaml", "acc_norm"),
        ("mmlu", "mmlu/continuation/mmlu_virology.yaml", "acc"),
        ("mmlu", "mmlu/default/mmlu_virology.yaml", "acc"),
    ],
)
def test_choices(
    here: Here, theirs: Any, library: Library, name: str, yaml: str, metric: str
) -> None:
    one = capabilities.get(name, library)
    rows = [row for row in library.rows(name) if row.get("subject", "virology") == "virology"]
    rows = rows[:N_CHOICE]
    by_letter = "default" in yaml
    # In the order of the rows no more: lm-eval's samples are found by their prompts.
    items = [item for item in one.make_items(rows) if item.transfer == by_letter]
    assert len(items) == N_CHOICE
    samples = evaluated(theirs, yaml, rows)
    asked = {item.prompt: item for item in items}
    ours = our_scores(here, one, items)
    right = {True: 0, False: 0}
    for sample in samples:
        requests = arguments(sample)
        prompt = requests[0][0]
        assert requests == [(prompt, choice) for choice in asked[prompt].choices]
        assert ours[prompt] == sample[metric], prompt
        right[bool(sample[metric])] += 1
    # Neither all right nor all wrong, where agreement would mean little.
    assert min(right.values()) >= 3, right


def test_gsm8k(here: Here, theirs: Any, library: Library) -> None:
    one = capabilities.get("math", library)
    shots = word_problems.shots(library.rows("gsm8k"))
    items = one.items("test")[:N_WRITTEN]
    by_question = {row["question"]: row for row in library.rows("gsm8k")}
    rows = [
        by_question[item.prompt.rpartition("Question: ")[2].removesuffix("\nAnswer:")]
        for item in items
    ]
    given = {"sampler": "first_n", "samples": [dict(row) for row in shots]}
    samples = evaluated(
        theirs, "gsm8k/gsm8k.yaml", rows, num_fewshot=len(shots), fewshot_config=given
    )
    flexible = [sample for sample in samples if sample["filter"] == "flexible-extract"]
    ours = our_scores(here, one, items)
    assert [arguments(sample)[0][0] for sample in flexible] == [item.prompt for item in items]
    written = here.bench.written(Task(one, tuple(items)))
    assert list(written) == [sample["resps"][0][0] for sample in flexible]
    assert list(ours.values()) == [sample["exact_match"] for sample in flexible]
