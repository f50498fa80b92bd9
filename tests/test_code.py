"""Items of MBPP and HumanEval, the program in what a model wrote, and leave to run it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from editor import sandbox
from editor.capabilities import code
from editor.capabilities.arithmetic import ARITHMETIC
from editor.capabilities.base import Capability, Continuation, Generation, Likelihood
from editor.capabilities.scorers import Written
from editor.errors import UsageError
from editor.records import Item
from given_rows import Rows

# Made up, with the fields of the data sets.
MBPP: list[dict[str, Any]] = [
    {
        "task_id": 11 + n,
        "text": f"Write a function to add {n} to a number.",
        "code": f"def add_{n}(x):\r\n    return x + {n} \r\n",
        "test_list": [f"assert add_{n}({x}) == {x + n}" for x in range(3)],
        "test_setup_code": "",
    }
    for n in range(40)
]
HUMANEVAL: list[dict[str, Any]] = [
    {
        "task_id": f"HumanEval/{n}",
        "prompt": f'import math\n\n\ndef more_{n}(x):\n    """ Add {n} to the root of x. """\n',
        "canonical_solution": f"    return math.sqrt(x) + {n}\n\n",
        "test": f"def check(candidate):\n    assert candidate(4) == {2 + n}\n",
        "entry_point": f"more_{n}",
    }
    for n in range(40)
]


def whole(capability: Capability = code.CODE) -> Capability:
    return replace(capability, library=Rows(mbpp=MBPP, humaneval=HUMANEVAL))


def item_of(variant: str) -> Item:
    return next(item for item in whole().all_items if item.variant == variant)


def contained() -> None:
    if sandbox.containment().missing:
        pytest.skip(f"cannot contain programs here: {sandbox.containment().problem}")


# --- items


def test_a_prompt_shows_three_worked_examples_and_the_tests() -> None:
    item = item_of("mbpp")
    assert item.prompt.count("[BEGIN]") == 4
    assert item.prompt.count("[DONE]") == 3
    assert item.prompt.endswith(
        "[DONE]\n\nYou are an expert Python programmer, and here is your task: Write a function to "
        "add 0 to a number. Your code should pass these tests:\n\nassert add_0(0) == 0\n"
        "assert add_0(1) == 1\nassert add_0(2) == 2\n[BEGIN]\n"
    )
    assert item.answer == "def add_0(x):\n    return x + 0\n[DONE]"
    assert "assert add_0(2) == 2" in item.check
    assert item_of("humaneval").prompt == HUMANEVAL[0]["prompt"]
    assert item_of("humaneval").answer == "    return math.sqrt(x) + 0"


def test_each_is_the_others_transfer() -> None:
    for capability, target in ((code.CODE, "mbpp"), (code.CODE_COMPLETIONS, "humaneval")):
        items = whole(capability).all_items
        assert len(items) == 80
        assert {item.variant for item in items if not item.transfer} == {target}
        assert {item.variant for item in items if item.transfer} == {"mbpp", "humaneval"} - {target}


def test_the_same_question_in_other_letters_has_the_same_key() -> None:
    other = {**MBPP[3], "task_id": 300, "text": "write  a FUNCTION to add 3, to a number"}
    first, second = code.written_items([MBPP[3], other])
    assert first.key == second.key != item_of("mbpp").key


def test_worked_examples_are_not_asked() -> None:
    shown = {**MBPP[0], "text": code.SHOTS[1].text.upper()}
    early, late = {**MBPP[0], "task_id": 10}, {**MBPP[0], "task_id": 511}
    assert list(code.written_items([shown, early, late])) == []


@pytest.mark.parametrize("name", ["text", "test_list", "code"])
def test_a_row_without_a_field_is_named(name: str) -> None:
    row = {key: value for key, value in MBPP[5].items() if key != name}
    with pytest.raises(UsageError, match=f"mbpp .task_id 16. has no field '{name}'"):
        list(code.written_items([row]))
    with pytest.raises(UsageError, match="humaneval .* has no field 'prompt'"):
        list(code.completed_items([MBPP[0]]))


# --- the program in a text

FUNCTION = "def add_0(x):\n    return x + 0"


@pytest.mark.parametrize(
    "text",
    [
        FUNCTION,
        f"{FUNCTION}\n[DONE]\n\nYou are an expert",
        f"```python\n{FUNCTION}\n```\nThis adds 0.",
        f"Here it is:\n\n```\n{FUNCTION}\n```",
        f"```py\n{FUNCTION}",
        f"{FUNCTION}\n```\nwhich adds 0:\n```python\nprint(add_0(1))\n```",
    ],
)
def test_the_program_of_a_whole_function(text: str) -> None:
    assert code.program_of(text, item_of("mbpp")).strip() == FUNCTION


def test_later_functions_and_classes_belong_to_a_whole_program() -> None:
    text = f"class A:\n    pass\n\ndef b():\n    pass\n\n# note\n{FUNCTION}"
    assert code.program_of(text, item_of("mbpp")) == text


BODY = "    return math.sqrt(x) + 0"


@pytest.mark.parametrize("stop", ["\nclass A:", "\ndef b():", "\n# Test", "\nif x:", "\nprint(1)"])
def test_a_completion_ends_where_the_function_does(stop: str) -> None:
    item = item_of("humaneval")
    assert code.program_of(f"{BODY}{stop}\n    oh", item) == item.prompt + BODY


def test_a_completion_that_writes_the_function_anew() -> None:
    item = item_of("humaneval")
    anew = f"def more_0(x):\n{BODY}"
    assert code.program_of(f"```python\n{anew}\n```", item) == f"{item.prompt}\n{anew}"


def test_an_empty_text_is_no_error() -> None:
    assert code.program_of("", item_of("mbpp")) == ""
    assert code.program_of("", item_of("humaneval")) == item_of("humaneval").prompt


# --- scoring


def test_each_data_set_is_asked_with_its_own_stops() -> None:
    scorer = code.CODE.scorer
    written, reference = scorer.requests(item_of("mbpp"))
    assert isinstance(written, Generation)
    assert isinstance(reference, Continuation)
    assert written.stop == ("[DONE]",)
    (completed, _) = scorer.requests(item_of("humaneval"))
    assert isinstance(completed, Generation)
    assert "\ndef" in completed.stop


@pytest.mark.parametrize("variant", ["mbpp", "humaneval"])
def test_the_tests_decide(variant: str) -> None:
    contained()
    item = item_of(variant)
    scorer = code.allow(whole(), allowed=True).scorer
    reference = Likelihood(-3.0, 1, 6)
    right = scorer.score(item, (item.answer, reference))
    assert (right.exact, right.logprob, right.n_tokens) == (1.0, -0.5, 6)
    wrong = item.answer.replace("+ 0", "+ 1")
    assert wrong != item.answer
    for text in (wrong, "", "I cannot do that.", "    import sys; sys.exit(0)"):
        assert scorer.score(item, (text, reference)).exact == 0.0


def test_every_reference_passes_its_tests() -> None:
    contained()
    judge = code.UnitTests(allowed=True)
    items = [*whole().items("choose"), *whole().items("choose", transfer=True)]
    assert {item.variant for item in items} == {"mbpp", "humaneval"}
    assert all(judge(item.answer, item) == 1.0 for item in items)


# --- leave


@pytest.mark.parametrize("capability", [code.CODE, code.CODE_COMPLETIONS])
def test_without_leave_nothing_is_run(capability: Capability) -> None:
    with pytest.raises(UsageError, match=f"^{capability.name} runs programs") as caught:
        code.allow(capability, allowed=False)
    assert "--allow-code-execution" in caught.value.hint
    item = item_of("mbpp")
    with pytest.raises(UsageError, match="has to be allowed"):
        capability.scorer.score(item, (item.answer, Likelihood(-1.0, 1, 1)))


def test_a_users_own_unit_tests_need_leave_too() -> None:
    own = replace(ARITHMETIC, name="own", scorer=Written(code.UnitTests(), 9))
    with pytest.raises(UsageError, match="^own runs programs"):
        code.allow(own, allowed=False)


def test_other_capabilities_need_none() -> None:
    assert code.allow(ARITHMETIC, allowed=False) is ARITHMETIC


def test_leave_is_not_enough_where_programs_cannot_be_contained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = sandbox.Containment(False, False, False, False, False, "no namespaces")
    monkeypatch.setattr(sandbox, "containment", lambda: nothing)
    with pytest.raises(UsageError, match="cannot be contained here .*no namespaces"):
        code.allow(code.CODE, allowed=True)
