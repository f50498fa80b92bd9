"""Math: word problems solved step by step, GSM8K, with five worked examples.

The examples are rows of the data set that are asked in no split; benchmarks take them from its
training split, so scores are close to theirs, not the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from editor.capabilities.arithmetic import ARITHMETIC
from editor.capabilities.base import Capability
from editor.capabilities.numbers import same_number
from editor.capabilities.same_text import same_text_key
from editor.capabilities.scorers import ByForm, Reference, Written
from editor.capabilities.stable import stable_shuffle
from editor.errors import UsageError
from editor.records import Item

Row = Mapping[str, Any]

N_SHOTS = 5
LONGEST_SHOT = 450
"""Characters of a worked example, question and solution: five are in front of every question."""
STOP = ("Question:", "</s>", "<|im_end|>")
WRITTEN_TOKENS = 256
"""As lm-eval's task has it."""
ONE_LINE_TOKENS = 32

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?: \([^;]*\))?")


def asked_as(question: str) -> str:
    """How a problem is put, as in lm-eval's gsm8k."""
    return f"Question: {question}\nAnswer:"


def shots(rows: Sequence[Row]) -> list[Row]:
    """The worked examples of GSM8K.

    Raises:
        UsageError: there are not enough rows for examples and questions.
    """
    short = [row for row in rows if len(row["question"]) + len(row["answer"]) <= LONGEST_SHOT]
    found = stable_shuffle(short, "math shots", lambda row: row["question"])[:N_SHOTS]
    if len(found) < N_SHOTS or len(rows) <= N_SHOTS:
        raise UsageError(
            f"gsm8k has {len(rows)} rows, of which {len(short)} are short enough for a worked "
            f"example; {N_SHOTS} of these are needed, and others to ask",
            "get the whole set: `editor capabilities fetch gsm8k`",
        )
    return found


def _solved(rows: Sequence[Row]) -> Iterator[Item]:
    examples = shots(rows)
    shown = "".join(f"{asked_as(row['question'])} {row['answer']}\n\n" for row in examples)
    used = {same_text_key(row["question"]) for row in examples}
    for number, row in enumerate(rows, start=1):
        if "#### " not in row["answer"]:
            raise UsageError(f"row {number} of gsm8k: the answer has no result after `#### `")
        key = same_text_key(row["question"])
        if key not in used:
            yield Item(
                key=key,
                prompt=shown + asked_as(row["question"]),
                answer=f" {row['answer']}",
                variant="solution",
            )


def _in_one_line(row: Row) -> str:
    return f"Question: {row['body'].strip()} {row['question'].strip()}\nAnswer:"


def _direct(rows: Sequence[Row]) -> list[Item]:
    """ASDiv, for those problems whose answer is one number."""
    numeric = [row for row in rows if _NUMBER.fullmatch(row["answer"])]
    results = {id(row): row["answer"].partition(" ")[0] for row in numeric}
    drawn = stable_shuffle(numeric, "math", _in_one_line)
    examples = drawn[:N_SHOTS]
    shown = "".join(f"{_in_one_line(row)} {results[id(row)]}\n\n" for row in examples)
    used = {same_text_key(_in_one_line(row)) for row in examples}
    return [
        Item(
            key=same_text_key(_in_one_line(row)),
            prompt=shown + _in_one_line(row),
            answer=f" {results[id(row)]}",
            variant="result-only",
            transfer=True,
        )
        for row in drawn
        if same_text_key(_in_one_line(row)) not in used
    ]


def _equations() -> list[Item]:
    """The project's own arithmetic."""
    return [
        item.model_copy(update={"transfer": True, "variant": f"equation-{item.variant}"})
        for item in ARITHMETIC.make_items()
        if not item.transfer
    ]


def _right(text: str, item: Item) -> float:
    """Whether the last number that was written is the result."""
    return float(same_number(text, item.answer.strip()))


def make_items(gsm8k: Sequence[Row], asdiv: Sequence[Row]) -> tuple[Item, ...]:
    """The items, the transfer form last.

    Args:
        gsm8k: its rows.
        asdiv: its rows; none where it is not to be had: then equations are the transfer form.

    Raises:
        UsageError: there are too few rows, or one has no result.
    """
    usual = stable_shuffle(_solved(gsm8k), "math", lambda item: item.key)
    transfer = _direct(asdiv) if asdiv else _equations()
    return (*usual, *transfer)


MATH = Capability(
    name="math",
    summary="Solving word problems step by step after five worked examples; transfer: the result "
    "at once.",
    kind="task",
    # The commonest result, 5, is that of 40 in 1,319 problems; the last number of the question, of
    # 28.
    floor=0.031,
    control_limit=0.05,
    source="GSM8K, test split (Hub: openai/gsm8k), in the form of lm-eval's gsm8k with worked "
    "examples from the same split; transfer: ASDiv (Hub: EleutherAI/asdiv), else this project's "
    "arithmetic",
    licence="MIT; ASDiv CC-BY-NC-4.0",
    make_items=make_items,
    scorer=ByForm(
        Written(_right, WRITTEN_TOKENS, STOP),
        Written(_right, ONE_LINE_TOKENS, ("\n",)),
    ),
    dense=Reference(),
    default_control=False,
    data=("gsm8k", ("asdiv", "")),
)
