"""Rhyming: what is asked, what counts as right, and that no habit passes for it."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from cmudict_excerpt import excerpt_rows
from editor.capabilities import rhyming
from editor.capabilities.base import Continuation, Generation, Likelihood
from editor.capabilities.pronunciation import from_rows
from editor.capabilities.rhyming import RHYMING, Words, first_word_rhymes, spelled_alike
from editor.capabilities.scorers import AnyChoice, ByForm, ChoiceLikelihood, Written
from editor.errors import UsageError
from editor.records import Item, Split
from given_rows import Rows

SPLITS: tuple[Split, ...] = ("search", "choose", "test")
DICTIONARY = from_rows(excerpt_rows())
WORDS = Words(DICTIONARY)
ITEMS = rhyming.make_items(excerpt_rows())
USUAL = tuple(item for item in ITEMS if not item.transfer)
PAIRS = tuple(item for item in ITEMS if item.transfer)


CAPABILITY = replace(RHYMING, library=Rows(cmudict=excerpt_rows()))


def asked_word(item: Item) -> str:
    (phrasing,) = [one for one in rhyming.PHRASINGS if one.variant == item.variant]
    pattern = re.escape(phrasing.template).replace(r"\{word\}", "(.+)").split(r"\{rhyme\}")[0]
    match = re.fullmatch(pattern.rstrip("\\ "), item.prompt.splitlines()[-1])
    assert match
    return match[1]


def asked_pair(item: Item) -> tuple[str, str]:
    a, b = re.findall('"(.+?)"', item.prompt.splitlines()[-1])
    return a, b


# --- the common words


def test_common_words_stand_once_and_are_words() -> None:
    words = rhyming.common_words()
    assert 300 <= len(words) == len(set(words))
    assert all(re.fullmatch("[a-z]+", word) for word in words)


def test_a_word_is_asked_that_has_enough_common_rhymes() -> None:
    assert len(WORDS.asked) >= 400
    for word in WORDS.asked:
        rhymes = [other for other in WORDS.common if DICTIONARY.rhymes(word, other)]
        assert len(set(rhymes) - rhyming.NOT_ASKED) >= rhyming.N_COMMON
        assert WORDS.rhymes[word] == set(rhymes)
        assert word not in rhyming.NOT_ASKED


def test_what_can_be_said_in_two_ways_is_not_asked() -> None:
    assert not {"read", "lead", "wind", "live", "close", "bow", "dove"} & set(WORDS.asked)


def test_words_that_are_not_asked_are_common_words() -> None:
    assert not rhyming.NOT_ASKED - set(WORDS.common)


def test_a_dictionary_without_the_common_words_is_refused() -> None:
    with pytest.raises(UsageError, match="cmudict lacks 794 of 796 common words, such as 'day'"):
        rhyming.make_items([row for row in excerpt_rows() if row["word"] in ("cat", "hat")])


# --- the items


def test_items_are_the_same_each_time_and_unique() -> None:
    assert rhyming.make_items(excerpt_rows()) == ITEMS == CAPABILITY.all_items
    assert len({item.prompt for item in ITEMS}) == len(ITEMS)


def test_splits_share_no_family_and_no_prompt() -> None:
    splits: defaultdict[str, set[str]] = defaultdict(set)
    for split in SPLITS:
        for transfer in (False, True):
            for item in CAPABILITY.items(split, transfer=transfer):
                splits[item.key].add(split)
                splits[re.sub(r"\W", "", item.prompt.lower())].add(split)
    assert all(len(found) == 1 for found in splits.values())


def test_no_word_is_asked_in_one_split_and_right_in_another() -> None:
    of_word = {asked_word(item): item.split for item in USUAL}
    for item in USUAL:
        assert {of_word.get(word, item.split) for word in item.check.split()} <= {item.split}


def test_splits_have_their_shares_of_words_and_pairs() -> None:
    for transfer, items in ((False, USUAL), (True, PAIRS)):
        for split, share in zip(SPLITS, (0.3, 0.2, 0.5), strict=True):
            found = len(CAPABILITY.items(split, transfer=transfer)) / len(items)
            assert found == pytest.approx(share, abs=0.07), (split, transfer)
    for split, enough in zip(SPLITS, (30, 20, 50), strict=True):
        assert len(CAPABILITY.items(split, transfer=True)) >= enough


def test_every_word_is_asked_in_every_phrasing() -> None:
    asked = {(asked_word(item), item.variant) for item in USUAL}
    assert len(asked) == len(USUAL) == len(WORDS.asked) * len(rhyming.PHRASINGS)


@pytest.mark.parametrize("split", SPLITS)
def test_the_first_items_are_of_different_words_and_all_phrasings(split: Split) -> None:
    items = CAPABILITY.items(split)[:40]
    assert len({asked_word(item) for item in items}) == 40
    assert {item.variant for item in items} == {one.variant for one in rhyming.PHRASINGS}


def test_all_rhymes_are_right_and_the_word_itself_is_not() -> None:
    for item in USUAL:
        word, right = asked_word(item), item.check.split()
        assert item.key == WORDS.family[word]
        assert word not in right
        assert set(right) >= WORDS.rhymes[word]
        assert all(DICTIONARY.rhymes(word, other) for other in right)


def test_choices_are_rhymes_none_the_beginning_of_another() -> None:
    for item in USUAL:
        assert item.answer in item.choices
        assert len(set(item.choices)) == len(item.choices) == rhyming.N_COMMON
        for choice in item.choices:
            assert re.fullmatch(" [a-z]+[.]", choice)
            assert choice.strip(" .") in WORDS.rhymes[asked_word(item)] - rhyming.NOT_ASKED
            assert sum(other.startswith(choice) for other in item.choices) == 1


def test_examples_rhyme_and_do_not_answer() -> None:
    shown = {word for shot in rhyming.SHOTS for word in shot}
    assert all(DICTIONARY.rhymes(*shot) for shot in rhyming.SHOTS)
    for item in USUAL:
        assert not shown & {asked_word(item), *item.check.split()}
        words = set(re.findall("[a-z]+", item.prompt))
        assert not words & {choice.strip(" .") for choice in item.choices}


def test_a_prompt_reads_well() -> None:
    prompts = {item.prompt for item in USUAL}
    assert (
        "A word that rhymes with book is hook.\nA word that rhymes with moon is spoon.\n"
        "A word that rhymes with page is cage.\nA word that rhymes with dark is park.\n"
        "A word that rhymes with night is"
    ) in prompts


# --- pairs


def test_pairs_say_what_the_dictionary_says() -> None:
    for item in PAIRS:
        a, b = asked_pair(item)
        assert item.key in (WORDS.family[a], WORDS.family[b])
        assert item.choices == (" yes", " no")
        assert item.answer == (" yes" if DICTIONARY.rhymes(a, b) else " no")
        assert item.variant.split("-")[1:] == [
            "alike" if spelled_alike(a, b) else "unlike",
            item.answer.strip(),
        ]


def test_neither_yes_nor_spelling_is_right_more_than_half_of_the_time() -> None:
    for split in SPLITS:
        items = CAPABILITY.items(split, transfer=True)
        counts = Counter(item.variant for item in items)
        assert len(counts) == 4 and len(set(counts.values())) == 1


def test_every_pair_is_asked_in_both_orders_and_in_one_way() -> None:
    orders: defaultdict[frozenset[str], list[tuple[str, str]]] = defaultdict(list)
    ways: defaultdict[frozenset[str], set[str]] = defaultdict(set)
    for item in PAIRS:
        a, b = asked_pair(item)
        orders[frozenset((a, b))].append((a, b))
        ways[frozenset((a, b))].add(item.prompt.splitlines()[-1][:12])
    assert all(sorted(found) == sorted((x, x[::-1])) for found in orders.values() for x in found)
    assert all(len(found) == 2 for found in orders.values())
    assert all(len(found) == 1 for found in ways.values())


def test_examples_of_pairs_are_right_and_are_not_asked() -> None:
    shown = {word for a, b, _ in rhyming.PAIR_SHOTS for word in (a, b)}
    for a, b, answer in rhyming.PAIR_SHOTS:
        assert (answer == " yes") == DICTIONARY.rhymes(a, b)
    assert not any(shown & set(asked_pair(item)) for item in PAIRS)
    last = Counter(item.prompt.splitlines()[-2].rpartition(" ")[2] for item in PAIRS)
    assert 0.4 <= last["yes"] / len(PAIRS) <= 0.6


def test_no_pair_depends_on_whether_cot_and_caught_sound_alike() -> None:
    for item in PAIRS:
        if item.answer == " no":
            one, other = (WORDS.family[word].replace("AO", "AA") for word in asked_pair(item))
            assert one != other


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [("love", "move", True), ("cough", "though", True), ("cow", "low", True), ("one", "bone", True)]
    + [("night", "white", False), ("bear", "hair", False), ("fly", "funny", True)]
    + [("bed", "bread", False), ("hmm", "hat", False)],
)
def test_spelled_alike(a: str, b: str, alike: bool) -> None:
    assert spelled_alike(a, b) == spelled_alike(b, a) == alike


# --- what counts

ITEM = Item(key="EY", prompt="p", answer=" say.", variant="v", check="say may don't e-z away")


@pytest.mark.parametrize(
    ("text", "right"),
    [(" say.", 1), (" Say", 1), (' "say"', 1), ("\n\n- may!", 1), (" don\u2019t", 1), ("e-z", 1)]
    + [(" **away**", 1), (" 1. say", 1), (" day", 0), ("", 0), ("...", 0), ("42", 0)]
    + [
        (" says", 0),
        (" sa", 0),
        (" the word say", 0),
        (" I say", 0),
        (" say-so", 0),
        ("s\u00e1y", 0),
    ]
    + [(" sa y", 0), (" saysaysay", 0)],
)
def test_the_first_word_counts(text: str, right: int) -> None:
    assert first_word_rhymes(text, ITEM) == right


def floor_of(items: tuple[Item, ...]) -> float:
    test = [item for item in items if not item.transfer and item.split == "test"]
    others = [item for item in items if not item.transfer and item.split != "test"]
    return max(rhyming.blind_share(test), rhyming.blind_share(others))


def test_the_floor_is_what_one_word_gets() -> None:
    assert RHYMING.floor == pytest.approx(floor_of(ITEMS), abs=0.0005)
    right = [item.check.split() for item in USUAL]
    at_random = sum(word in one for word in WORDS.common for one in right)
    assert at_random / len(WORDS.common) / len(USUAL) == pytest.approx(0.0126, abs=0.0005)


def test_blind_share_takes_the_best_word() -> None:
    def item(check: str) -> Item:
        return Item(key="k", prompt=check, answer="", variant="v", check=check)

    # `zzz` is no common word.
    items = [item("say may"), item("say"), item("zzz cat"), item("zzz"), item("zzz")]
    assert rhyming.blind_share(items) == 2 / 5


# --- scorers


def test_words_are_written_and_pairs_are_chosen() -> None:
    written, reference = RHYMING.scorer.requests(USUAL[0])
    assert written == Generation(USUAL[0].prompt, rhyming.WRITTEN_TOKENS, ("\n",))
    assert reference == Continuation(USUAL[0].prompt, USUAL[0].answer)
    assert RHYMING.scorer.requests(PAIRS[0]) == (
        Continuation(PAIRS[0].prompt, " yes"),
        Continuation(PAIRS[0].prompt, " no"),
    )
    rhyme = WORDS.rhymes[asked_word(USUAL[0])]
    for text, exact in ((f" {min(rhyme)}.", 1.0), (f" {asked_word(USUAL[0])}.", 0.0)):
        outcomes = (text, Likelihood(-3.0, 0, 2))
        assert RHYMING.scorer.score(USUAL[0], outcomes)[:3] == (exact, -1.5, 2)
    right = PAIRS[0].choices.index(PAIRS[0].answer)
    likely = [Likelihood(-1.0 if place == right else -2.0, 0, 1) for place in range(2)]
    assert RHYMING.scorer.score(PAIRS[0], likely).exact == 1
    assert RHYMING.scorer.score(PAIRS[0], likely[::-1]).exact == 0


def test_by_form_asks_each_its_own_scorer() -> None:
    usual, transfer = Written(first_word_rhymes, 3), ChoiceLikelihood()
    scorer = ByForm(usual, transfer)
    assert scorer.requests(USUAL[0]) == usual.requests(USUAL[0])
    assert scorer.requests(PAIRS[0]) == transfer.requests(PAIRS[0])


class TestAnyChoice:
    ITEM = Item(key="k", prompt="p", answer=" a", choices=(" a", " b", " c"), variant="v")

    def test_each_is_asked(self) -> None:
        asked = AnyChoice().requests(self.ITEM)
        assert asked == tuple(Continuation("p", choice) for choice in (" a", " b", " c"))

    def test_probabilities_add_up(self) -> None:
        shares = (0.25, 0.125, 0.5)
        found = [Likelihood(math.log(one), 0, n) for n, one in enumerate(shares, start=1)]
        score = AnyChoice().score(self.ITEM, found)
        assert score.logprob == pytest.approx(math.log(0.875))
        assert (score.exact, score.n_tokens) == (0.0, 3)

    def test_any_greedy_one_is_exact(self) -> None:
        found = [Likelihood(-9.0, 0, 2), Likelihood(-1.0, 2, 2), Likelihood(-9.0, 1, 2)]
        assert AnyChoice().score(self.ITEM, found).exact == 1

    def test_very_unlikely_choices_do_not_vanish(self) -> None:
        found = [Likelihood(-2000.0, 0, 1)] * 3
        score = AnyChoice().score(self.ITEM, found)
        assert score.logprob == pytest.approx(-2000 + math.log(3))

    def test_what_is_no_number_is_no_score(self) -> None:
        found = [Likelihood(-1.0, 0, 1), Likelihood(math.nan, 0, 1), Likelihood(-1.0, 0, 1)]
        assert math.isnan(AnyChoice().score(self.ITEM, found).logprob)
        # Wherever it stands: max() depends on that.
        assert math.isnan(AnyChoice().score(self.ITEM, found[1:] + found[:1]).logprob)


# --- all of CMUdict


@pytest.mark.model
def test_on_all_of_cmudict(data_dir: Path) -> None:
    text = (data_dir / "cmudict/data/cmudict.dict").read_text("utf-8")
    rows = [
        dict(zip(("word", "phones"), line.split(maxsplit=1), strict=True))
        for line in text.splitlines()
    ]
    items = rhyming.make_items(rows)
    # The excerpt asks the same; only rare words are right in addition.
    assert [item.model_copy(update={"check": ""}) for item in items] == [
        item.model_copy(update={"check": ""}) for item in ITEMS
    ]
    for ours, all_ in zip(ITEMS, items, strict=True):
        assert set(ours.check.split()) <= set(all_.check.split())
    assert floor_of(items) == floor_of(ITEMS)
    (night,) = [item for item in items if item.prompt.endswith("A word that rhymes with night is")]
    assert {"acolyte", "white", "appetite"} <= set(night.check.split())
    assert not {"knight", "night", "fortnight", "nite"} & set(night.check.split())
