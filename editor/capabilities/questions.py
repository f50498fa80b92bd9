"""Controls of general ability: HellaSwag, BoolQ, ARC-Challenge and MMLU, each by the answer's text.

By text, because a letter in the place of an answer needs heads of its own, which a removal may hit
without any loss of knowledge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from editor.capabilities.base import Capability
from editor.capabilities.choices import Exam, Question, index_of, items_of, lettered
from editor.capabilities.same_text import same_text_key
from editor.capabilities.scorers import ChoiceLikelihood
from editor.records import Item

Row = Mapping[str, Any]
_IN_BRACKETS = re.compile(r"\[.*?\]")


def without_marks(text: str) -> str:
    """A text of HellaSwag without the marks of WikiHow, as lm-eval's task has it."""
    ended = text.strip().replace(" [title]", ". ")
    return _IN_BRACKETS.sub("", ended).replace("  ", " ")


def _ask_hellaswag(row: Row) -> Iterator[Question]:
    context = without_marks(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = [without_marks(ending) for ending in row["endings"]]
    key, right = same_text_key(context), index_of(row["label"])
    yield Question(key, context, endings, right, "ending")
    asked = f"{context}\nWhich of these comes next?"
    yield lettered(key, asked, endings, right, transfer=True)


def _ask_boolq(row: Row) -> Iterator[Question]:
    passage = row["passage"]
    prompt = f"{passage}\nQuestion: {row['question']}?\nAnswer:"
    # Questions about one passage stay together.
    key, right = same_text_key(passage), int(row["answer"])
    yield Question(key, prompt, ("no", "yes"), right, "passage")
    asked = f"{passage}\nSomeone who has read this asks: {row['question']}?  The right answer is"
    yield Question(key, asked, ("no", "yes"), right, "sentence", transfer=True)


def _ask_arc(row: Row) -> Iterator[Question]:
    texts, labels = row["choices"]["text"], row["choices"]["label"]
    right = labels.index(row["answerKey"]) if row["answerKey"] in labels else -1
    prompt = f"Question: {row['question']}\nAnswer:"
    key = same_text_key(row["question"])
    yield Question(key, prompt, texts, right, "by-text")
    yield lettered(key, f"Question: {row['question']}", texts, right, transfer=True)


def exam_of(row: Row, subject: str) -> Exam:
    """A row of MMLU or WMDP."""
    key = same_text_key(row["question"])
    return Exam(subject, row["question"], row["choices"], row["answer"], key)


def _ask_mmlu(row: Row) -> Iterator[Question]:
    exam = exam_of(row, row["subject"].replace("_", " "))
    yield exam.by_text()
    yield exam.by_letter(transfer=True)


def _hellaswag(rows: Sequence[Row]) -> tuple[Item, ...]:
    return items_of("hellaswag", rows, _ask_hellaswag)


def _boolq(rows: Sequence[Row]) -> tuple[Item, ...]:
    return items_of("boolq", rows, _ask_boolq)


def _arc(rows: Sequence[Row]) -> tuple[Item, ...]:
    return items_of("arc_challenge", rows, _ask_arc)


def _mmlu(rows: Sequence[Row]) -> tuple[Item, ...]:
    return items_of("mmlu", rows, _ask_mmlu)


HELLASWAG = Capability(
    name="hellaswag",
    summary="Telling which of four endings a description of an everyday scene has; transfer: by "
    "letter.",
    kind="task",
    # To choose the same place always; the longest and the shortest ending are right less often.
    floor=0.258,
    control_limit=0.05,
    source="HellaSwag, validation split (Hub: Rowan/hellaswag); prompts as in lm-eval's hellaswag",
    licence="MIT",
    make_items=_hellaswag,
    scorer=ChoiceLikelihood(by_length=True),
    default_control=False,
    data=("hellaswag",),
)

BOOLQ = Capability(
    name="boolq",
    summary="Answering yes or no to a question about a passage; transfer: in a sentence.",
    kind="task",
    # To say yes always.
    floor=0.622,
    control_limit=0.05,
    source="BoolQ, validation split (Hub: google/boolq); passages without their titles",
    licence="CC-BY-SA-3.0",
    make_items=_boolq,
    scorer=ChoiceLikelihood(),
    default_control=False,
    data=("boolq",),
)

ARC_CHALLENGE = Capability(
    name="arc_challenge",
    summary="Answering questions of school science, by the text of the answer; transfer: by its "
    "letter.",
    kind="task",
    # To choose the longest answer always.
    floor=0.273,
    control_limit=0.05,
    source="ARC-Challenge, test split (Hub: allenai/ai2_arc); prompts as in lm-eval's "
    "arc_challenge",
    licence="CC-BY-SA-4.0",
    make_items=_arc,
    scorer=ChoiceLikelihood(by_length=True),
    default_control=False,
    data=("arc_challenge",),
)

MMLU = Capability(
    name="mmlu",
    summary="Answering examination questions of 57 subjects, by the text of the answer; "
    "transfer: by its letter.",
    kind="task",
    # To choose the longest answer always; no letter is right more often than 0.269.
    floor=0.279,
    control_limit=0.05,
    source="MMLU, test split (Hub: cais/mmlu); prompts as in lm-eval's mmlu_continuation and mmlu "
    "without worked examples",
    licence="MIT",
    make_items=_mmlu,
    scorer=ChoiceLikelihood(),
    default_control=False,
    data=("mmlu",),
)
