"""Code: writing Python functions that pass their tests (MBPP), completing them (HumanEval).

A program counts when its data set's own tests pass in the sandbox.  The floor is 0: no program
passes three tests of a function by chance, and an empty one passes none.  Programs can use Python's
standard library only; none of the reference solutions needs more.

Prompts are those of the benchmarks' usual runners: MBPP with three worked examples and the tests in
sight, HumanEval as it is, from nothing but the head of the function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from editor import sandbox
from editor.capabilities.base import Capability, ItemScore, Outcome, Request
from editor.capabilities.same_text import same_text_key
from editor.capabilities.scorers import Reference, Written
from editor.errors import UsageError
from editor.records import Item

FLAG = "--allow-code-execution"
WRITTEN, COMPLETED = "mbpp", "humaneval"
"""Data sets, and the variants of their items."""
FIRST_TEST, LAST_TEST = 11, 510
"""Task ids of MBPP's test split; those before it are for worked examples."""
DONE = "[DONE]"
STOPS = {WRITTEN: (DONE,), COMPLETED: ("\nclass", "\ndef", "\n#", "\nif", "\nprint")}
MAX_TOKENS = 384
"""With SmolLM2's vocabulary one of the 664 reference solutions has more, and half have under 60."""

Row = Mapping[str, Any]

_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)


class Shot(NamedTuple):
    """A worked example."""

    text: str
    tests: tuple[str, str, str]
    code: str


# Tasks 2 to 4 of MBPP (Austin et al. 2021, "Program Synthesis with Large Language Models",
# CC BY 4.0), the ones that are always shown.
SHOTS = (
    Shot(
        "Write a function to find the similar elements from the given two tuple lists.",
        (
            "assert similar_elements((3, 4, 5, 6),(5, 7, 4, 10)) == (4, 5)",
            "assert similar_elements((1, 2, 3, 4),(5, 4, 3, 7)) == (3, 4)",
            "assert similar_elements((11, 12, 14, 13),(17, 15, 14, 13)) == (13, 14)",
        ),
        "def similar_elements(test_tup1, test_tup2):\n"
        "  res = tuple(set(test_tup1) & set(test_tup2))\n"
        "  return (res) ",
    ),
    Shot(
        "Write a python function to identify non-prime numbers.",
        (
            "assert is_not_prime(2) == False",
            "assert is_not_prime(10) == True",
            "assert is_not_prime(35) == True",
        ),
        "import math\n"
        "def is_not_prime(n):\n"
        "    result = False\n"
        "    for i in range(2,int(math.sqrt(n)) + 1):\n"
        "        if n % i == 0:\n"
        "            result = True\n"
        "    return result",
    ),
    Shot(
        "Write a function to find the largest integers from a given list of numbers using heap "
        "queue algorithm.",
        (
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],3)==[85, 75, 65] ",
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],2)==[85, 75] ",
            "assert heap_queue_largest( [25, 35, 22, 85, 14, 65, 75, 22, 58],5)"
            "==[85, 75, 65, 58, 35]",
        ),
        "import heapq as hq\n"
        "def heap_queue_largest(nums,n):\n"
        "  largest_nums = hq.nlargest(n, nums)\n"
        "  return largest_nums",
    ),
)


# --- items


def written_items(rows: Iterable[Row], *, transfer: bool = False) -> Iterable[Item]:
    """Items of MBPP's test split, from rows with the fields of the Hub's data set.

    Raises:
        UsageError: a row lacks a field.
    """
    shown = {same_text_key(shot.text) for shot in SHOTS}
    for row in rows:
        task, text, code = (_field(row, name, WRITTEN) for name in ("task_id", "text", "code"))
        tests = [str(test) for test in _field(row, "test_list", WRITTEN)]
        key = same_text_key(text)
        if FIRST_TEST <= int(task) <= LAST_TEST and key not in shown:
            yield Item(
                key=key,
                prompt=_prompt(text, tests),
                answer=_lines(code).rstrip() + f"\n{DONE}",
                variant=WRITTEN,
                transfer=transfer,
                check="\n".join([_lines(row.get("test_setup_code") or ""), *tests]),
            )


def completed_items(rows: Iterable[Row], *, transfer: bool = False) -> Iterable[Item]:
    """Items of HumanEval, from rows with the fields of the Hub's data set.

    Raises:
        UsageError: a row lacks a field.
    """
    names = ("prompt", "canonical_solution", "test", "entry_point")
    for row in rows:
        prompt, solution, test, entry = (str(_field(row, name, COMPLETED)) for name in names)
        yield Item(
            key=same_text_key(prompt),
            prompt=prompt,
            answer=solution.rstrip(),
            variant=COMPLETED,
            transfer=transfer,
            check=f"{test}\ncheck({entry})",
        )


def make_items(
    written: Sequence[Row], completed: Sequence[Row], *, target: str = WRITTEN
) -> tuple[Item, ...]:
    """The items of both data sets; those that are not of `target` are the transfer form."""
    return (
        *written_items(written, transfer=target != WRITTEN),
        *completed_items(completed, transfer=target != COMPLETED),
    )


def _prompt(text: str, tests: Sequence[str]) -> str:
    asked = [_question(shot.text, shot.tests) + f"{shot.code}\n{DONE}" for shot in SHOTS]
    return "\n\n".join([*asked, _question(text, tests)])


def _question(text: str, tests: Sequence[str]) -> str:
    lines = "\n".join(tests[:3])
    return (
        f"You are an expert Python programmer, and here is your task: {text} "
        f"Your code should pass these tests:\n\n{lines}\n[BEGIN]\n"
    )


def _field(row: Row, name: str, data_set: str) -> Any:
    if row.get(name) is None:
        raise UsageError(
            f"a row of {data_set} (task_id {row.get('task_id')!r}) has no field {name!r}",
            "it is not the data set of that name",
        )
    return row[name]


def _lines(code: str) -> str:
    return code.replace("\r\n", "\n")


# --- scoring


def program_of(text: str, item: Item) -> str:
    """The program in what a model wrote: in a code fence, or all up to where it should stop."""
    fenced = _FENCED.search(text)
    if fenced is not None and "def " not in text[: fenced.start()]:
        code = fenced[1]
    else:
        stops = ("\n```", *STOPS.get(item.variant, ()))
        ends = [at for at in map(text.find, stops) if at >= 0]
        code = text[: min(ends, default=len(text))]
    if item.variant != COMPLETED:
        return code
    # The head ends with its description, so a function that is written anew can follow it too.
    return f"{item.prompt}\n{code}" if _is_whole(code) else item.prompt + code


def _is_whole(code: str) -> bool:
    """Whether it does not go on inside of a function but begins at the margin."""
    first = next((line for line in code.splitlines() if line.strip()), "")
    return first[:1] not in ("", " ", "\t")


@dataclass(frozen=True)
class UnitTests:
    """Judges a text by running the program in it, then the item's `check`."""

    allowed: bool = False
    """The user has agreed to run what a model writes."""
    limits: sandbox.Limits = sandbox.LIMITS

    def __call__(self, text: str, item: Item) -> float:
        """1 when the tests pass, else 0.

        Raises:
            UsageError: nobody allowed it, or programs cannot be contained here.
        """
        if not self.allowed:
            raise _not_allowed(item.variant)
        verdict = sandbox.run_tests(program_of(text, item), item.check, limits=self.limits)
        return float(verdict.passed)


@dataclass(frozen=True)
class Programs:
    """What the model writes, up to where programs of the item's data set end, judged by tests."""

    judge: UnitTests = UnitTests()
    max_new_tokens: int = MAX_TOKENS

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return self._written(item).requests(item, among)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        return self._written(item).score(item, outcomes)

    def _written(self, item: Item) -> Written:
        return Written(self.judge, self.max_new_tokens, STOPS.get(item.variant, ()))


def allow(capability: Capability, *, allowed: bool) -> Capability:
    """The capability, with leave to run what a model writes where its scorer does that.

    To be called for every capability of a run before a model is loaded.

    Args:
        allowed: the user gave `--allow-code-execution`.

    Raises:
        UsageError: it runs programs and that is not allowed, or they cannot be contained here.
    """
    scorer = capability.scorer
    if not isinstance(scorer, Programs | Written) or not isinstance(scorer.judge, UnitTests):
        return capability
    if not allowed:
        raise _not_allowed(capability.name)
    sandbox.require_containment()
    judge = replace(scorer.judge, allowed=True)
    return replace(capability, scorer=replace(scorer, judge=judge))


def _not_allowed(name: str) -> UsageError:
    return UsageError(
        f"{name} runs programs that the model writes, which has to be allowed",
        f"add {FLAG}: they run without network, in a folder of their own, within limits",
    )


# --- capabilities


def _capability(name: str, summary: str, target: str) -> Capability:
    return Capability(
        name=name,
        summary=summary,
        kind="task",
        floor=0.0,
        control_limit=0.05,
        source="MBPP (Google Research); HumanEval (OpenAI)",
        licence="MBPP CC-BY-4.0; HumanEval MIT",
        make_items=partial(make_items, target=target),
        scorer=Programs(),
        dense=Reference(),
        default_control=False,
        data=(WRITTEN, COMPLETED),
    )


CODE = _capability(
    "code", "Writing a Python function from a sentence and three tests, which it passes.", WRITTEN
)
CODE_COMPLETIONS = _capability(
    "code-completions", "Completing a Python function from its description.", COMPLETED
)
