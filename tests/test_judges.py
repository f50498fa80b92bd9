"""What is found right of a written text; numbers as lm-eval's GSM8K finds them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.capabilities.judges import last_number, same_number

WRITTEN = [
    form.replace("{}", number)
    for number in ("12", "-5", "1,234.50", "$3", "3.", "0.5", "1/2", "18.0", "...", "007", "$.50")
    for form in (
        "{}",
        "The answer is {}.",
        "#### {}",
        "So 4 + 8 = {} apples.\n",
        "first {} then 99 and last {}",
        "{} is what is left of 100%",
        "**{}**",
        "she has {} dollars, he none",
        "It is {}\n\nQuestion: How many?",
        "{}km",
        "no number",
        "",
        "x={}, y={}",
        "({})",
        "answer:{}!",
        "#### {}\n#### 77",
        "{},",
        "about {}-13",
        "{} {} {}",
    )
]


def by_lm_eval(text: str, answer: str) -> bool:
    """With its own filter and metric, and the settings of its task file."""
    from importlib.resources import files

    import yaml
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    task = yaml.safe_load((files("lm_eval") / "tasks/gsm8k/gsm8k.yaml").read_text("utf-8"))
    (steps,) = (one["filter"] for one in task["filter_list"] if one["name"] == "flexible-extract")
    found = {name: value for name, value in steps[0].items() if name != "function"}
    ((extracted,),) = RegexFilter(**found).apply([[text]], [{}])
    (metric,) = task["metric_list"]
    ignored = {name: metric[name] for name in ("regexes_to_ignore", "ignore_case")}
    return bool(exact_match_hf_evaluate([extracted], [answer], **ignored)["exact_match"])


@pytest.mark.parametrize("answer", ["He sold 7.\n#### 12", "#### 1,234.50", "-5", "3", "#### 77"])
def test_numbers_are_compared_as_lm_eval_does(answer: str) -> None:
    assert len(WRITTEN) > 200
    for text in WRITTEN:
        assert same_number(text, answer) == by_lm_eval(text, answer), (text, answer)


@given(
    st.text(alphabet="0123456789.,$-# \nax", max_size=20), st.sampled_from(["1", "#### 2", "-3"])
)
def test_of_any_text_too(text: str, answer: str) -> None:
    assert same_number(text, answer) == by_lm_eval(text, answer)


def test_the_last_number_is_as_it_is_written() -> None:
    assert last_number("1, then $2,500.75 and nothing") == "$2,500.75"
    assert last_number("none") is None
    assert re.fullmatch(r"-?\d+", str(last_number("a -7 b")))
