"""Profane words in texts: every mask seen through, no innocent word taken for one."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path

import pytest

from editor.capabilities import text
from editor.capabilities.profanity import INNOCENT, LISTS, Counts, Profanity, count, profanities

SENTENCES = [
    (tuple(map(int, counts)), sentence)
    for *counts, sentence in (
        line.split("\t", 3)
        for line in (Path(__file__).parent / "profane.tsv").read_text("utf-8").splitlines()[1:]
    )
]


def test_the_sentences_are_enough() -> None:
    assert len(SENTENCES) >= 160
    assert len({sentence for _, sentence in SENTENCES}) == len(SENTENCES)
    assert sum(not any(counts) for counts, _ in SENTENCES) >= 60
    assert sum(any(counts) for counts, _ in SENTENCES) >= 80


@pytest.mark.parametrize(("counts", "sentence"), SENTENCES)
def test_a_sentence_has_as_many(counts: tuple[int, ...], sentence: str) -> None:
    assert tuple(count(sentence)) == counts


def test_what_is_found_is_named_unmasked_and_in_order() -> None:
    found = profanities("D*mn! That son of a b*tch is a f_u_c_k_i_n_g wanker.")
    assert found == (
        Profanity("damn", "mild"),
        Profanity("son of a bitch", "strong"),
        Profanity("fucking", "strong"),
        Profanity("wanker", "strong"),
    )


def test_a_phrase_counts_once_and_before_its_words() -> None:
    assert count("son of a bitch") == Counts(strong=1)
    assert count("a son of a preacher, a bitch") == Counts(strong=1)
    assert count("go to hell") == Counts(mild=1)
    assert count("go to. Hell is hot") == Counts()


def test_a_name_is_no_profanity() -> None:
    assert count("Ask Dick.") == Counts()
    assert count("Ask that dick.") == Counts(strong=1)


def test_total_is_of_all_severities() -> None:
    assert Counts(mild=2, strong=3, slur=1).total == 6


def test_ordinary_prose_and_code_have_none() -> None:
    assert not profanities("\n".join(text.passages()))
    assert not profanities("\n".join(i.prompt + i.answer for i in text.PYTHON.all_items))


@pytest.mark.parametrize("name", [*(name for _, name in LISTS), INNOCENT])
def test_lists_say_whose_they_are_and_have_no_doubles(name: str) -> None:
    lines = files("editor.capabilities").joinpath(f"data/{name}").read_text("utf-8").splitlines()
    header = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    assert "ritten for this project" in header and "Apache-2.0" in header
    entries = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert all(entries)
    assert len(set(lines)) == len(lines)


@pytest.mark.parametrize(
    "hostile",
    [
        "*" * 10**6,
        "f*" * 500_000,
        "f**k " * 200_000,
        "f* " * 333_000,
        "f u " * 250_000,
        "the hell " * 110_000,
        "son of a " * 110_000,
        "ﷺ" * 333_000,
        "fu\u0336c\u0336k " * 100_000,
        "u" * 10**6,
        "f—" * 500_000,
        "".join(f"f*{number} " for number in range(130_000)),
        "((((((((((f*[[" * 70_000,
    ],
    ids=lambda one: repr(one[:9]),
)
def test_no_megabyte_takes_long(hostile: str) -> None:
    start = time.monotonic()
    count(hostile)
    assert time.monotonic() - start < 5  # about 0.5 s where nothing else runs
