"""The built-in capabilities: right answers, disjoint splits, nothing given away."""

from __future__ import annotations

import operator
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from editor import capabilities
from editor.capabilities import arithmetic, copying, coreference, inflection, recall, text
from editor.capabilities.stable import stable_shuffle
from editor.cli import remove
from editor.errors import UsageError
from editor.recipe import Recipe
from editor.records import Item, Split
from editor.tasks import scope

SPLITS: tuple[Split, ...] = ("search", "choose", "test")
ENOUGH = {"task": (60, 40, 100), "text": (15, 10, 30)}
ENOUGH_TRANSFER = (30, 20, 50)
# Those made from data sets are tested in test_questions.py.
OWN = tuple(name for name in capabilities.names() if not capabilities.get(name).data)
TASKS = tuple(name for name in OWN if capabilities.get(name).kind == "task")
TEXTS = tuple(name for name in capabilities.names() if capabilities.get(name).kind == "text")

each_capability = pytest.mark.parametrize("name", OWN)
each_task = pytest.mark.parametrize("name", TASKS)
each_text = pytest.mark.parametrize("name", TEXTS)


def items_of(name: str, *, transfer: bool | None = None) -> tuple[Item, ...]:
    items = capabilities.get(name).all_items
    return tuple(item for item in items if transfer is None or item.transfer == transfer)


def normalized(prompt: str) -> str:
    """What is left of a prompt when case, spaces and punctuation do not count; signs do."""
    return re.sub(r"[^\w+-]", "", prompt.lower())


# --- the registry


def test_names() -> None:
    assert (
        *("recall", "arithmetic", "copying", "inflection", "coreference"),
        *("swearing", "swearing-completions"),
    ) == TASKS
    assert (*TASKS, "english", "python") == OWN
    assert capabilities.names()[-2:] == ("english", "python")


def test_the_default_controls_are_those_that_the_help_names() -> None:
    names = capabilities.default_controls()
    assert names == ("recall", "arithmetic", "copying", "english", "python")
    (flag,) = [p for p in remove.params if p.name == "controls"]
    assert ", ".join(names) in str(flag.get_help_record(click.Context(remove)))
    assert f"{', '.join(names[:-1])} and {names[-1]}" in str(Recipe.model_fields["controls"])


@each_capability
def test_a_capability_describes_itself(name: str) -> None:
    capability = capabilities.get(name)
    assert capability.name == name
    assert capability.summary.endswith(".")
    assert capability.source
    assert capability.licence == ("PSF-2.0" if name == "python" else "Apache-2.0")
    assert capability.control_limit == (0.10 if name == "python" else 0.05)


def test_a_run_keeps_the_default_controls_and_others_only_if_named() -> None:
    def kept(capability: str, **fields: tuple[str, ...]) -> tuple[str, ...]:
        recipe = Recipe(model="gpt2", capability=capability, **fields)
        return tuple(control.name for control in scope(recipe).controls)

    assert kept("recall") == ("arithmetic", "copying", "english", "python")
    assert kept("inflection") == capabilities.default_controls()
    assert kept("recall", controls=("english", "coreference")) == ("english", "coreference")


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UsageError, match="'arithmetics'") as caught:
        capabilities.get("arithmetics")
    assert str(caught.value.hint).startswith("did you mean arithmetic")


def test_import_loads_nothing_heavy() -> None:
    program = (
        "import sys, editor.capabilities as c; "
        "assert not {'torch', 'transformers', 'lm_eval', 'numpy'} & set(sys.modules); "
        "assert all('all_items' not in vars(c.get(name)) for name in c.names())"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- what holds for all


@each_capability
def test_items_are_the_same_each_time(name: str) -> None:
    capability = capabilities.get(name)
    assert capability.make_items() == capability.make_items() == capability.all_items


@each_capability
def test_items_are_unique(name: str) -> None:
    prompts = [item.prompt for item in items_of(name)]
    assert len(prompts) == len(set(prompts))


@each_capability
def test_splits_share_no_key_and_no_prompt(name: str) -> None:
    capability = capabilities.get(name)
    splits_of_key: dict[str, set[str]] = defaultdict(set)
    splits_of_prompt: dict[str, set[str]] = defaultdict(set)
    for split in SPLITS:
        for transfer in (False, True):
            for item in capability.items(split, transfer=transfer):
                splits_of_key[item.key].add(split)
                splits_of_prompt[normalized(item.prompt)].add(split)
    assert all(len(splits) == 1 for splits in splits_of_key.values())
    assert all(len(splits) == 1 for splits in splits_of_prompt.values())


@each_capability
def test_splits_are_large_enough(name: str) -> None:
    capability = capabilities.get(name)
    for split, enough in zip(SPLITS, ENOUGH[capability.kind], strict=True):
        assert len(capability.items(split)) >= enough


@each_task
def test_every_task_has_another_form(name: str) -> None:
    capability = capabilities.get(name)
    for split, enough in zip(SPLITS, ENOUGH_TRANSFER, strict=True):
        assert len(capability.items(split, transfer=True)) >= enough
    usual = {item.variant for item in items_of(name, transfer=False)}
    assert not usual & {item.variant for item in items_of(name, transfer=True)}


@each_task
def test_answers_follow_the_prompt_after_a_space(name: str) -> None:
    for item in items_of(name):
        assert item.prompt == item.prompt.rstrip()
        assert re.match(r" \S", item.answer)


@each_task
def test_the_first_items_have_all_variants(name: str) -> None:
    for split in SPLITS:
        items = capabilities.get(name).items(split)
        assert {item.variant for item in items[:40]} == {item.variant for item in items}


def test_shuffle_keeps_the_order_of_the_others() -> None:
    before = stable_shuffle("abcdefgh", "seed")
    after = stable_shuffle("abcdefghi", "seed")
    assert sorted(before) == list("abcdefgh") != before
    assert [value for value in after if value != "i"] == before


# --- recall


def test_the_table_has_no_doubles() -> None:
    places = recall.places()
    assert len(places) >= 240
    assert len({place.name for place in places}) == len(places)
    # One capital, one place: what the model was tested on is not what heads were found with.
    assert len({place.capital for place in places}) == len(places)
    kinds = {place.kind for place in places}
    assert kinds == {"country", "state", "province", "region", "territory"}


def test_the_table_is_clean() -> None:
    for place in recall.places():
        assert all(value == value.strip() and value for value in place)
        assert place.capital.lower() not in place.name.lower()
        assert place.name.lower() not in place.capital.lower()


def test_recall_prompts_do_not_show_the_answer() -> None:
    for item in items_of("recall"):
        assert not re.search(rf"\b{re.escape(item.answer.strip())}\b", item.prompt)


def test_recall_shots_are_not_asked() -> None:
    shown = "".join(phrasing.template for phrasing in recall.PHRASINGS)
    assert "Portugal is Lisbon" in shown
    for place in recall.places():
        assert place.name not in shown and place.capital not in shown


def test_every_place_is_asked_in_every_phrasing() -> None:
    asked = {(item.key, item.variant) for item in items_of("recall")}
    assert len(asked) == len(items_of("recall")) == len(recall.places()) * len(recall.PHRASINGS)
    assert sum(not phrasing.transfer for phrasing in recall.PHRASINGS) >= 4


@pytest.mark.parametrize("transfer", [False, True])
def test_the_first_recall_items_are_of_different_places(transfer: bool) -> None:
    for split in SPLITS:
        items = capabilities.get("recall").items(split, transfer=transfer)
        n_places = len({item.key for item in items})
        assert len({item.key for item in items[:n_places]}) == n_places


def test_recall_phrasings_read_well() -> None:
    prompts = {item.prompt for item in items_of("recall")}
    assert "The capital of the Netherlands is" in prompts
    assert "The Netherlands' capital city is" in prompts
    assert "France's capital city is" in prompts


# --- arithmetic

SOLVE = {"+": operator.add, "-": operator.sub, "plus": operator.add, "minus": operator.sub}
PROBLEM = re.compile(r"(?:Question: What is )?(\d+) (\+|-|plus|minus) (\d+)(?: =|\? Answer:)(.*)")


def solved(prompt: str) -> Iterator[tuple[str, int, int, str]]:
    """Of each line of a prompt: the sign, the numbers' fact, the result, what is written."""
    for line in prompt.splitlines():
        match = PROBLEM.fullmatch(line)
        assert match
        a, sign, b = int(match[1]), match[2], int(match[3])
        result = SOLVE[sign](a, b)
        fact = sorted((a, b) if SOLVE[sign] is operator.add else (b, result))
        yield f"{fact[0]}+{fact[1]}", result, sign in {"+", "plus"}, match[4]


def test_arithmetic_is_right() -> None:
    for item in items_of("arithmetic"):
        *shots, asked = solved(item.prompt)
        assert len(shots) == arithmetic.N_SHOTS
        assert all(written == f" {result}" for _, result, _, written in shots)
        assert (asked[3], item.answer) == ("", f" {asked[1]}\n")
        assert asked[1] >= 0
        assert item.variant.startswith("add" if asked[2] else "sub")


def test_problems_of_one_fact_share_a_key() -> None:
    for item in items_of("arithmetic"):
        *_, (fact, *_) = solved(item.prompt)
        assert item.key == fact


def test_worked_examples_are_never_asked() -> None:
    asked = {item.key for item in items_of("arithmetic")}
    shown: set[str] = set()
    for item in items_of("arithmetic"):
        *shots, (_, result, is_sum, _) = solved(item.prompt)
        facts = {fact for fact, *_ in shots}
        assert len(facts) == len(shots)
        assert all(shot[1] != result and shot[2] == is_sum for shot in shots)
        shown |= facts
    assert not shown & asked


def test_one_digit_problems_are_complete_and_the_most() -> None:
    items = items_of("arithmetic", transfer=False)
    one_digit = [item for item in items if item.variant.endswith("-1")]
    assert 300 <= len(items) <= 600
    assert len(one_digit) >= 0.6 * len(items)
    keys = {item.key for item in one_digit} | arithmetic.shot_families(1)
    assert keys == {f"{a}+{b}" for a in range(10) for b in range(a, 10)}


def test_the_floor_of_arithmetic_is_what_guessing_gets() -> None:
    blind = arithmetic.blind_share(items_of("arithmetic", transfer=False))
    assert capabilities.get("arithmetic").floor == pytest.approx(blind, abs=0.0005)


def test_blind_share_takes_the_best_habit_of_each_variant() -> None:
    def item(prompt: str, answer: str, variant: str) -> Item:
        return Item(key=prompt, prompt=f"1 + 1 = 2\n{prompt}", answer=answer, variant=variant)

    items = [
        item("3 + 4 =", " 7\n", "add"),
        item("2 + 5 =", " 7\n", "add"),
        item("1 + 0 =", " 1\n", "add"),
        item("6 - 0 =", " 6\n", "sub"),
        item("8 - 0 =", " 8\n", "sub"),
    ]
    assert arithmetic.blind_share(items) == 4 / 5


# --- copying


def lists_of(item: Item) -> tuple[list[str], list[str]]:
    """The list of an item and what is repeated of it."""
    first, second = re.split(r"\n\n|\n(?=[a-z])", item.prompt)
    return re.findall("[a-z]+", first), re.findall("[a-z]+", second)


def test_the_next_word_is_the_answer() -> None:
    for item in items_of("copying"):
        words, repeated = lists_of(item)
        assert len(words) == int(item.variant.rsplit("-")[-1])
        assert len(set(words)) == len(words)
        assert copying.MIN_REPEATED <= len(repeated) < len(words)
        assert words[: len(repeated)] == repeated
        assert item.answer == f" {words[len(repeated)]}"


def test_no_list_occurs_twice() -> None:
    lists = {tuple(lists_of(item)[0]) for item in items_of("copying")}
    assert len(lists) == len(items_of("copying"))


def test_all_positions_are_asked() -> None:
    for form in copying.FORMS:
        items = [item for item in items_of("copying") if item.variant == form.variant]
        positions = {len(lists_of(item)[1]) for item in items}
        assert positions == set(range(copying.MIN_REPEATED, form.length))


def test_no_noun_begins_another() -> None:
    nouns = sorted(copying.nouns())
    assert len(nouns) == len(set(nouns)) >= 240
    # In sorted order, a word that begins others stands right before one of them.
    assert not any(b.startswith(a) for a, b in zip(nouns, nouns[1:], strict=False))


def test_the_floor_of_copying_is_any_word_of_the_list() -> None:
    items = items_of("copying", transfer=False)
    chance = sum(1 / len(lists_of(item)[0]) for item in items) / len(items)
    assert capabilities.get("copying").floor == pytest.approx(chance, abs=0.0005)


# --- inflection


def test_the_verbs_have_one_past_form_of_their_own() -> None:
    verbs = inflection.verbs()
    assert len({verb.present for verb in verbs}) == len({verb.past for verb in verbs}) == len(verbs)
    # Else copying the present would do, or the answer would stand in another question.
    assert not {verb.present for verb in verbs} & {verb.past for verb in verbs}
    for kind in ("regular", "irregular"):
        assert sum(verb.kind == kind for verb in verbs) >= 70
    for verb in verbs:
        assert verb.past.endswith("ed") or verb.kind == "irregular"
        assert re.fullmatch("[a-z]+", verb.present + verb.past)


def test_no_verb_is_made_from_another() -> None:
    verbs = inflection.verbs()
    for one in verbs:
        made_from = [
            other
            for other in verbs
            if one.present.endswith(other.present) and one.past.endswith(other.past)
        ]
        assert made_from == [one]


def test_every_verb_is_asked_in_every_phrasing() -> None:
    verbs, items = inflection.verbs(), items_of("inflection")
    asked = {(item.key, item.variant) for item in items}
    assert len(asked) == len(items) == len(verbs) * len(inflection.PHRASINGS)
    past = {verb.present: verb.past for verb in verbs}
    for item in items:
        assert item.answer == f" {past[item.key]}"
        assert re.search(rf"\b{item.key}\b", item.prompt)


def test_inflection_does_not_show_the_answer() -> None:
    shown = {word for shot in inflection.SHOTS for word in shot}
    for verb in inflection.verbs():
        assert verb.present not in shown and verb.past not in shown
    for item in items_of("inflection"):
        assert not re.search(rf"\b{item.answer.strip()}\b", item.prompt)


# --- coreference


def test_no_scene_shares_a_name_a_place_or_a_thing_with_another() -> None:
    scenes = coreference.scenes()
    assert len(scenes) >= 60
    names = sorted(name for scene in scenes for name in scene[:2])
    assert len(set(names)) == len(names)
    # In sorted order, a name that begins others stands right before one of them.
    assert not any(b.startswith(a) for a, b in zip(names, names[1:], strict=False))
    for column in ("place", "thing"):
        assert len({getattr(scene, column) for scene in scenes}) == len(scenes)


def test_the_answer_is_the_one_who_did_not_act() -> None:
    scenes = {" and ".join(scene[:2]): scene for scene in coreference.scenes()}
    for item in items_of("coreference"):
        scene = scenes[item.key]
        answer = item.answer.strip()
        (actor,) = {scene.first, scene.second} - {answer}
        assert len(re.findall(rf"\b{answer}\b", item.prompt)) == 1
        assert len(re.findall(rf"\b{actor}\b", item.prompt)) == 2
        assert scene.place in item.prompt and scene.thing in item.prompt


def test_every_scene_has_every_frame_with_both_answers() -> None:
    items = items_of("coreference")
    asked = {(item.key, item.variant, item.answer) for item in items}
    n_scenes = len(coreference.scenes())
    assert len(asked) == len(items) == 2 * n_scenes * len(coreference.FRAMES)
    usual = [frame for frame in coreference.FRAMES if not frame.transfer]
    assert len(usual) >= 4


@pytest.mark.parametrize("transfer", [False, True])
def test_the_floor_of_coreference_is_either_name(transfer: bool) -> None:
    """Always the first name, or always the second, is right in half of the items of each frame."""
    items = items_of("coreference", transfer=transfer)
    for some, tolerance in ((items, 0.05), (items[:160], 0.1)):
        share = sum(answer_leads(item) for item in some) / len(some)
        assert share == pytest.approx(capabilities.get("coreference").floor, abs=tolerance)


def answer_leads(item: Item) -> bool:
    """Whether the answer is the name that stands first in the prompt."""
    names = re.findall(rf"\b(?:{item.key.replace(' and ', '|')})\b", item.prompt)
    return f" {names[0]}" == item.answer


# --- texts


@each_text
def test_a_text_is_cut_in_two(name: str) -> None:
    for item in items_of(name):
        assert not item.transfer
        assert item.prompt == item.prompt.strip()
        assert item.answer[0] == ("\n" if name == "python" else " ")
        assert item.answer == item.answer.rstrip()


def test_english_passages() -> None:
    passages = text.passages()
    assert len(passages) >= 72
    assert len({passage[:20] for passage in passages}) == len(passages)
    for passage in passages:
        assert 55 <= len(passage.split()) <= 85
        assert passage[-1] in '.!?"'
        assert passage.isascii()


def test_english_items_are_whole_passages() -> None:
    rebuilt = {item.prompt + item.answer for item in items_of("english")}
    assert rebuilt == set(text.passages())


def test_english_does_not_mention_what_the_tasks_ask() -> None:
    prose = "\n".join(text.passages())
    for place in recall.places():
        assert not re.search(rf"\b{re.escape(place.capital)}\b", prose)


def test_python_pieces() -> None:
    items = items_of("python")
    assert 80 <= len(items) <= 130
    # Another Python may have no piece of a small module, but not lack many.
    assert len({item.key.split(" ")[0] for item in items} & set(text.MODULES)) >= 15
    for item in items:
        assert re.match("(async def|def|class) ", item.prompt)
        assert len(item.prompt + item.answer) <= text.MAX_CHARS


def test_pieces_begin_at_a_definition_and_share_no_line() -> None:
    body = "".join(f"        line_{n} = {'x' * 40}\n" for n in range(12))
    lines = f"import os\n    def one(self):\n{body}    def two(self):\n{body}".splitlines(
        keepends=True
    )
    one, two = text.pieces(lines)
    assert one.startswith("def one(self):\n    line_0 = x")
    assert two.startswith("def two(self):\n    line_0 = x")
    assert text.pieces(["def f():\n", f"    {'y' * text.MAX_CHARS}\n"]) == []


def test_a_library_without_sources_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "MODULES", ("no_such_module.py",))
    with pytest.raises(text.EditorError, match="no_such_module.py"):
        text.PYTHON.make_items()
