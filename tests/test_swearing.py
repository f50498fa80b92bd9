"""Both capabilities about swearing: what they ask, and what counts."""

from __future__ import annotations

import re

import pytest

from editor import capabilities
from editor.capabilities import Continuation, Generation, swearing
from editor.capabilities.profanity import count
from editor.capabilities.scorers import ChoiceLikelihood, Written
from editor.capabilities.text_faults import fault
from editor.records import Split

NAMES = ("swearing", "swearing-completions")
SPLITS: tuple[Split, ...] = ("search", "choose", "test")
each_name = pytest.mark.parametrize("name", NAMES)


def test_scenes_differ_in_everything() -> None:
    scenes = swearing.scenes()
    assert len(scenes) >= 80
    for column in range(3):
        assert len({scene[column].lower() for scene in scenes}) == len(scenes)
    for scene in scenes:
        assert not count(" ".join(scene)).total
        assert scene.scene[-1].isalpha() and not scene.who[0].isupper()


@pytest.mark.parametrize("opening,choices", [*swearing.outbursts(), *swearing.replies()])
def test_of_the_choices_the_first_alone_is_profane(opening: str, choices: tuple[str, ...]) -> None:
    assert len(set(choices)) == len(choices) == 4
    profane, *clean = (count(opening + one).total for one in choices)
    assert profane >= 1
    assert clean == [0, 0, 0]


@pytest.mark.parametrize("opening,choices", [*swearing.outbursts(), *swearing.replies()])
def test_choices_are_about_as_long(opening: str, choices: tuple[str, ...]) -> None:
    words = [len(one.split()) for one in choices]
    assert max(words) - min(words) <= 2


@each_name
def test_enough_items_of_each_form(name: str) -> None:
    capability = capabilities.get(name)
    for transfer in (False, True):
        items = [item for item in capability.all_items if item.transfer == transfer]
        assert len(items) >= 160
        assert len({item.prompt for item in items}) == len(items)


@each_name
def test_splits_share_no_scene(name: str) -> None:
    capability = capabilities.get(name)
    told: dict[Split, str] = {
        split: "\n".join(
            re.sub(r"\W", "", item.prompt.lower())
            for transfer in (False, True)
            for item in capability.items(split, transfer=transfer)
        )
        for split in SPLITS
    }
    for scene in swearing.scenes():
        flat = re.sub(r"\W", "", scene.scene.lower())
        assert sum(flat in prompts for prompts in told.values()) == 1


def test_each_form_is_the_transfer_of_the_other() -> None:
    one, other = (capabilities.get(name).all_items for name in NAMES)
    flipped = {item.model_copy(update={"transfer": not item.transfer}) for item in other}
    assert set(one) == flipped


def test_requests_are_written_and_completions_chosen() -> None:
    requested, completed = map(capabilities.get, NAMES)
    assert isinstance(requested.scorer, Written) and requested.scorer.max_new_tokens >= 150
    assert isinstance(requested.dense, ChoiceLikelihood)
    assert isinstance(completed.scorer, ChoiceLikelihood) and completed.dense is None
    item = requested.all_items[0]
    assert [type(one) for one in requested.scorer.requests(item)] == [Generation, Continuation]
    assert len(completed.scorer.requests(item)) == 4


def test_no_request_is_profane_itself() -> None:
    for item in capabilities.get("swearing").all_items:
        if not item.transfer:
            assert not count(item.prompt).total


def test_no_curse_has_a_word_of_the_answer() -> None:
    for item in capabilities.get("swearing-completions").all_items:
        if not item.transfer:
            assert count(item.prompt).total
            heard = item.prompt.lower()
            before = heard[: heard.rindex("!")]
            for stem in swearing.STEMS:
                assert not (stem in item.answer and re.search(rf"\b{stem}", before))


def test_the_floor_of_requests_is_what_ordinary_texts_have() -> None:
    texts = [item.prompt + item.answer for item in capabilities.get("english").all_items]
    scored = [swearing.swears(text, capabilities.get("swearing").all_items[0]) for text in texts]
    assert sum(scored) == capabilities.get("swearing").floor == 0


def test_the_floor_of_completions_is_one_of_four() -> None:
    capability = capabilities.get("swearing-completions")
    shares = {1 / len(item.choices) for item in capability.all_items}
    assert shares == {capability.floor}


def test_an_answer_to_a_request_would_count() -> None:
    capability = capabilities.get("swearing")
    for item in capability.all_items:
        assert fault(item.answer) is None
        if not item.transfer:
            assert swearing.swears(item.answer, item) == 1
