"""Capability files: what they define, and that every fault is told with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner, Result

from editor import capabilities, pipeline, tasks
from editor.baking import read_manifest
from editor.capabilities import Capability, Continuation, Generation, custom, judges
from editor.capabilities.definition import MAX_CHARS, ScorerName
from editor.capabilities.scorers import ChoiceLikelihood, Reference, Written
from editor.cli import main
from editor.errors import UsageError
from editor.lookups import SCORERS
from editor.progress import Silent
from editor.recipe import Recipe, load
from editor.records import Item
from editor.session import Options, settle
from tiny import Wired

HEAD = "name: own\nscorer: {}\nitems:\n"


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def items(n: int = 40, **more: Any) -> list[dict[str, Any]]:
    return [{"prompt": f"Question {n}:", "answer": f"answer {n}", **more} for n in range(n)]


def write(given: list[Any], *, head: str = HEAD.format("logprob"), more: str = "") -> Path:
    """A file with these items, one a line from the fourth line on."""
    lines = [one if isinstance(one, str) else f"  - {json.dumps(one)}" for one in given]
    file = Path("own.yaml")
    file.write_text(head + "\n".join(lines) + "\n" + more, encoding="utf-8")
    return file


def faults(file: Path) -> list[str]:
    with pytest.raises(UsageError) as caught:
        custom.load(file, taken=capabilities.names())
    return caught.value.message.splitlines()


def as_written(found: Capability, given: list[Any]) -> list[Item]:
    """The items in the order of the file; they are asked in one of their own."""
    prompts = [one["prompt"] for one in given]
    return sorted(found.all_items, key=lambda item: prompts.index(item.prompt))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


class TestRead:
    def test_items_and_splits(self) -> None:
        found = custom.load(write(items()))
        assert (found.name, found.kind, found.floor, found.control_limit) == (
            "own",
            "task",
            0,
            0.05,
        )
        assert len(found.all_items) == 40
        sizes = [len(found.items(split)) for split in ("search", "choose", "test")]
        assert sum(sizes) == 40 and min(sizes) >= 4
        assert as_written(found, items())[3].answer == " answer 3", (
            "with the space that separates it"
        )
        assert not found.default_control

    def test_items_in_a_file_of_their_own_are_the_same(self) -> None:
        inline = custom.load(write(items())).all_items
        Path("i.jsonl").write_text("\n\n".join(map(json.dumps, items())), encoding="utf-8")
        beside = custom.load(write([], head="name: own\nitems: i.jsonl\n"))
        assert beside.all_items == inline

    def test_space_is_put_between_only_where_there_is_none(self) -> None:
        given = [
            {"prompt": "a:", "answer": "b"},
            {"prompt": "c: ", "answer": "d"},
            {"prompt": "e", "answer": "\nf"},
            *items(),
        ]
        found = as_written(custom.load(write(given)), given)
        assert [one.answer for one in found[:3]] == [" b", "d", "\nf"]
        none = custom.load(write(given, head='separator: ""\n' + HEAD.format("logprob")))
        assert as_written(none, given)[0].answer == "b"

    def test_items_are_asked_in_an_order_of_their_own(self) -> None:
        found = custom.load(write(items(200))).items("test")
        numbers = [int(item.prompt.split()[1].rstrip(":")) for item in found]
        assert 60 < sum(numbers[:30]) / 30 < 140, "the first ones are not those of the file"
        assert custom.load(write(items(200)[::-1])).items("test") == found

    def test_signs_between_numbers_count(self) -> None:
        splits = ("search", "choose", "test")
        given = [
            {"prompt": f"{a} {sign} {b} =", "answer": str(a), "split": splits[(a + n) % 3]}
            for a in range(2, 9)
            for b in range(2, 9)
            for n, sign in enumerate("+-*")
        ]
        assert len(custom.load(write(given)).all_items) == 147

    def test_splits_of_the_file_count(self) -> None:
        names = ["search", "choose", "test"]
        given = [{**one, "split": names[n % 3]} for n, one in enumerate(items())]
        found = custom.load(write(given))
        assert {item.split for item in found.items("choose")} == {"choose"}
        assert len(found.items("search")) == 14

    def test_shares_of_the_file_count(self) -> None:
        more = "splits: {search: 0.1, choose: 0.1, test: 0.8}\n"
        found = custom.load(write(items(300), more=more))
        assert 210 < len(found.items("test")) < 270

    def test_prompts_that_differ_in_case_and_punctuation_share_a_split(self) -> None:
        given = items(60) + [
            {"prompt": f"question  {n} ?", "answer": f"reply {n}"} for n in range(60)
        ]
        found = as_written(custom.load(write(given)), given)
        assert all(a.split == b.split for a, b in zip(found[:60], found[60:], strict=True))

    def test_a_changed_item_or_setting_is_another_definition(self) -> None:
        digests = [
            custom.load(write(given, more=more)).definition
            for given, more in (
                (items(), ""),
                (items(), "summary: else\n"),
                (items(41), ""),
                (items(), "control_limit: 0.06\n"),
            )
        ]
        assert len(set(digests)) == 4
        assert custom.load(write(items())).definition == digests[0]

    def test_a_text_is_a_control(self) -> None:
        found = custom.load(write(items(), head="kind: text\n" + HEAD.format("logprob")))
        assert found.kind == "text"
        with pytest.raises(UsageError, match="is a control"):
            tasks.scope(Recipe(model="m", capability="own.yaml"))


class TestScorers:
    def test_the_command_line_knows_all(self) -> None:
        assert get_args(ScorerName) == SCORERS

    def test_choice(self) -> None:
        given = [{**one, "choices": [one["answer"], "none", "all of them"]} for one in items()]
        found = custom.load(write(given, head=HEAD.format("choice")))
        assert found.floor == pytest.approx(1 / 3) and isinstance(found.scorer, ChoiceLikelihood)
        asked = found.scorer.requests(as_written(found, given)[0])
        assert asked[1] == Continuation("Question 0:", " none")

    @pytest.mark.parametrize(
        ("scorer", "more", "item", "right", "wrong"),
        [
            ("exact", "", {"answer": "Paris"}, " paris\n", "Paris, France"),
            ("exact", "ignore_case: false\n", {"answer": "Paris"}, "Paris", "paris"),
            ("contains", "", {"answer": "Paris"}, "It is PARIS.", "It is comparison."),
            ("number", "", {"answer": "12"}, "so 3 and 12.", "so 12 and 3"),
            ("regex", "", {"pattern": r"\bno+\b"}, "Nooo way", "nothing"),
            (
                "words",
                "words: [red, dark blue]\nat_least: 2\n",
                {},
                "Red, dark  blue",
                "redder blue",
            ),
        ],
    )
    def test_of_what_is_written(
        self, scorer: str, more: str, item: dict[str, str], right: str, wrong: str
    ) -> None:
        given = [{"prompt": f"Say {n}:", **item} for n in range(40)]
        found = custom.load(write(given, head=HEAD.format(scorer), more="floor: 0\n" + more))
        assert isinstance(found.scorer, Written) and isinstance(found.dense, Reference)
        one = as_written(found, given)[0]
        assert found.scorer.requests(one)[0] == Generation("Say 0:", 32, ())
        assert found.scorer.judge(right, one) == 1
        assert found.scorer.judge(wrong, one) == 0

    def test_a_pattern_that_does_not_end_is_an_error_and_not_a_wrong_answer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("editor.capabilities.patterns.SEARCH_SECONDS", 0.05)
        judge = judges.pattern(ignore_case=True)
        item = Item(key="k", prompt="p", answer="", variant="v", check="^(a|aa)+$")
        with pytest.raises(UsageError, match="took more than"):
            judge("a" * 60 + "!", item)

    @pytest.mark.parametrize(
        ("pattern", "said"),
        [
            ("(a+)+$", "takes more than"),
            (r"(\w+\s?)*$", "takes more than"),
            ("(xy|x|y)+$", "takes more than"),
            ("((a{1000}){1000}){1000}", "its counts in braces multiply to more than 100,000"),
            ("(", "missing )"),
            ("(a)(?R)?", "unknown extension"),
            ("(" * 900 + ")" * 900, "nested too deeply"),
        ],
    )
    def test_patterns_that_are_refused(self, pattern: str, said: str) -> None:
        given = [{"prompt": "Say:", "pattern": pattern}]
        (fault,) = faults(write(given, head=HEAD.format("regex")))
        assert fault.startswith("own.yaml:4: pattern: ")
        assert said in fault

    @pytest.mark.parametrize("scorer", SCORERS)
    def test_examples_work_as_they_are(self, scorer: str) -> None:
        assert run("capabilities", "new", "mine", "--scorer", scorer).exit_code == 0
        checked = run("capabilities", "check", "mine.yaml", "--json")
        assert checked.exit_code == 0, checked.stderr
        assert run("capabilities", "show", "mine.yaml").stdout.startswith("mine: ")
        for item in custom.load(Path("mine.yaml")).all_items:
            found = custom.load(Path("mine.yaml"))
            if item.answer and isinstance(found.scorer, Written):
                assert found.scorer.judge(item.answer, item) == 1
            break


class TestFaults:
    @pytest.mark.parametrize(
        ("broken", "said"),
        [
            ('{"prompt": "a", "answer": }', "no JSON"),
            ('{"prompt": "a", "answer": "b"', "no JSON"),
            ('{"prompt": "a", "prompt": "b", "answer": "c"}', "given twice"),
            ('{"prompt": "a", "answer": NaN}', "NaN is no number"),
            ("[1, 2]", "expected an item"),
            ('{"prompt": "a"}', "answer: must be given"),
            ('{"answer": "a"}', "prompt: must be given"),
            ('{"prompt": "", "answer": "a"}', "prompt: "),
            ('{"prompt": "a", "answer": 3}', "answer: expected a valid string, found 3"),
            ('{"prompt": "a", "answer": "b", "anwser": "c"}', "anwser: no field"),
            ('{"prompt": "a", "answer": "b", "split": "train"}', "split: expected 'search'"),
            ('{"prompt": "a", "answer": "b", "split": "test"}', "split: must be given here too"),
            ('{"prompt": "a", "answer": "b", "choices": ["b", "c"]}', "choices: belong"),
            ('{"prompt": "a", "answer": "b", "pattern": "b"}', "pattern: belongs"),
            ('{"prompt": "QUESTION 4", "answer": "answer 4"}', "the same item stands at"),
            ("[" * 100_000, "no JSON"),
            (json.dumps({"prompt": "p" * (MAX_CHARS + 1), "answer": "a"}), "100,001 characters"),
        ],
    )
    def test_of_a_line_are_told_by_its_number(self, broken: str, said: str) -> None:
        lines = [json.dumps(one) for one in items()]
        lines.insert(11, broken)
        Path("i.jsonl").write_text("\n".join(lines), encoding="utf-8")
        found = faults(write([], head="name: own\nitems: i.jsonl\n"))
        line = 1 if "must be given here too" in said else 12
        assert any(f"i.jsonl:{line}: " in one and said in one for one in found), found
        if line == 12:
            assert len(found) == 1, found
            assert len(found[0]) < 300

    def test_of_an_item_in_the_file_itself_have_its_line(self) -> None:
        given: list[Any] = [*items(5), {"prompt": "a", "answer": ""}, *items()[5:]]
        assert faults(write(given)) == ["own.yaml:9: answer: must be given (the scorer is logprob)"]

    def test_are_all_told_at_once(self) -> None:
        given: list[Any] = [*items(), {"prompt": "x"}, {"answer": "y"}]
        found = faults(write(given, head="name: Own\nscorer: logprob\nitems:\n", more="flor: 1\n"))
        assert len(found) == 3
        text = "\n".join(found)
        assert "own.yaml:1: name" in text and "own.yaml:46: flor: no field" in text
        assert "own.yaml:45: prompt: must be given" in text

    def test_many_are_cut_off(self) -> None:
        found = faults(write([{"prompt": f"{n}"} for n in range(500)]))
        assert len(found) == 21 and found[-1] == "and 480 more"

    @pytest.mark.parametrize(
        ("field", "said"),
        [
            ("floor: .nan", "floor"),
            ("floor: 1.0", "floor"),
            ("floor: '0'", "floor"),
            ("scorer: judge", "scorer: expected 'logprob'"),
            ("kind: texts", "kind: expected"),
            ("max_new_tokens: 0", "max_new_tokens"),
            ("words: [a]", "words: belongs to the scorer words"),
            ("splits: {search: 0.5, choose: 0.5, test: 0.5}", "add up to 1"),
            ("name: recall", "recall is built in"),
            ("name: ../up", "name"),
            ("items: 3", "expected a list of items"),
            ("items: no.jsonl", "there is no file no.jsonl"),
            ("items: ../own.jsonl", "lies outside"),
            ("items: /etc/passwd", "lies outside"),
            ("kind: text\nscorer: exact", "a text is measured by logprob"),
            ("x: &a [1]\ny: *a", "aliases"),
        ],
    )
    def test_of_the_file(self, field: str, said: str) -> None:
        fields = {"name": "own", "scorer": "logprob"}
        given = "\n".join(f"  - {json.dumps(one)}" for one in items())
        names = {line.partition(":")[0] for line in field.splitlines()}
        head = "".join(f"{key}: {value}\n" for key, value in fields.items() if key not in names)
        body = "" if "items" in names else f"items:\n{given}\n"
        Path("own.yaml").write_text(f"{head}{field}\n{body}")
        found = faults(Path("own.yaml"))
        assert any(said in one and "own.yaml:" in one for one in found), found

    def test_a_link_out_of_the_folder_is_not_followed(self, tmp_path: Path) -> None:
        outside = tmp_path.parent / f"{tmp_path.name}-outside.jsonl"
        outside.write_text("secret")
        Path("i.jsonl").symlink_to(outside)
        found = faults(write([], head="name: own\nitems: i.jsonl\n"))
        assert "lies outside" in found[0] and "secret" not in found[0]

    def test_wrong_encoding(self) -> None:
        lines = [json.dumps(one).encode() for one in items()]
        lines[6] = '{"prompt": "café", "answer": "b"}'.encode("latin-1")
        Path("i.jsonl").write_bytes(b"\n".join(lines))
        found = faults(write([], head="name: own\nitems: i.jsonl\n"))
        assert "i.jsonl:7: expected UTF-8" in found[0]
        Path("own.yaml").write_bytes("name: own\nsummary: café\n".encode("latin-1"))
        assert "own.yaml:2: expected UTF-8" in faults(Path("own.yaml"))[0]

    def test_a_huge_prompt_is_refused(self) -> None:
        Path("i.jsonl").write_text(json.dumps({"prompt": "p" * 100_000_000, "answer": "a"}))
        found = faults(write([], head="name: own\nitems: i.jsonl\n"))
        assert "has at most 64,000,000 bytes" in found[0]

    @pytest.mark.parametrize(
        ("scorer", "item", "said"),
        [
            ("choice", {"answer": "a", "choices": ["b", "c"]}, "one of the choices, found 'a'"),
            ("choice", {"answer": "a", "choices": ["a", "a"]}, "at least two, all different"),
            ("choice", {"answer": "a"}, "at least two"),
            ("number", {"answer": "many"}, "expected a number, found 'many'"),
            ("regex", {"pattern": "(a"}, "pattern: "),
            ("regex", {"answer": "a"}, "pattern: must be given"),
            ("words", {}, "words: must be given"),
        ],
    )
    def test_a_scorer_that_does_not_fit(self, scorer: str, item: dict[str, Any], said: str) -> None:
        given = [{"prompt": f"Say {n}:", **item} for n in range(40)]
        assert said in faults(write(given, head=HEAD.format(scorer)))[0]

    def test_splits_that_overlap(self) -> None:
        names = ["search", "choose", "test"]
        given = [{**one, "split": names[n % 3]} for n, one in enumerate(items())]
        given.append({"prompt": "question 3", "answer": "else", "split": "test"})  # is in search
        given.append({"prompt": "new", "answer": "b", "split": "test", "key": "k"})
        given.append({"prompt": "newer", "answer": "b", "split": "choose", "key": "k"})
        found = faults(write(given))
        assert found == [
            "own.yaml:44: split test overlaps search: the same prompt stands at own.yaml:7",
            "own.yaml:46: split choose overlaps test: the same key stands at own.yaml:45",
        ]

    def test_too_few_items_are_told_with_how_many_are_needed(self) -> None:
        names = ["search", "choose", "test"]
        given = [{**one, "split": names[n % 3]} for n, one in enumerate(items(9))]
        found = faults(write(given))
        assert "split search has 3 items, at least 4 are needed" in found[0]
        assert "split test has 3 items, at least 5 are needed" in found[2]
        high = faults(write([{**one} for one in items(40)], more="floor: 0.95\n"))
        assert "standard errors above the floor 0.95" in high[0]


class TestUse:
    def test_check_tells_files_apart(self) -> None:
        write(items())
        Path("bad.yaml").write_text("name: bad\n")
        found = run("capabilities", "check", "own.yaml", "bad.yaml")
        assert found.exit_code == 2
        assert "own.yaml: ok: own, a task with" in found.stdout
        assert "bad.yaml:1: items: expected a list" in found.stderr
        as_json = json.loads(run("capabilities", "check", "bad.yaml", "--json").stdout)
        assert as_json["files"][0]["ok"] is False

    def test_new_does_not_overwrite(self) -> None:
        write(items())
        found = run("capabilities", "new", "mine", "-o", "own.yaml")
        assert found.exit_code == 2 and "is there already" in found.stderr
        assert run("capabilities", "new", "My Own").exit_code == 2
        assert run("capabilities", "new", "mine", "-o", "no/where.yaml").exit_code == 2

    def test_a_faulty_file_ends_a_run_before_a_model_is_looked_for(self) -> None:
        Path("bad.yaml").write_text("name: bad\n")
        found = run("remove", "-c", "bad.yaml", "-m", "no/such", "-o", "out")
        assert found.exit_code == 2 and "bad.yaml:1: items" in found.stderr
        assert "no/such" not in found.stderr

    def test_a_recipe_names_files_from_its_own_folder(self) -> None:
        Path("sub").mkdir()
        write(items()).rename("sub/own.yaml")
        recipe = Path("sub/r.yaml")
        recipe.write_text(
            "model: m\ncapability: recall\ncontrols: [own.yaml, english]\n"
            "max_control_drop: {own: 0.2}\n"
        )
        what = tasks.scope(load(recipe))
        assert [one.name for one in what.controls] == ["own", "english"]
        assert what.limits["own"] == 0.2
        recipe.write_text("model: m\ncapability: own.yaml\ncontrols: [own.yaml]\n")
        with pytest.raises(UsageError):
            tasks.scope(load(recipe))

    def test_a_changed_file_is_another_run(self, wired: Wired) -> None:
        from editor.architecture import read_spec

        spec = read_spec(wired.folder, source="w")
        write(items())
        recipe = Recipe(model="m", capability="own.yaml", controls=("english",))
        one = settle(recipe, tasks.scope(recipe), spec)
        write(items(41))
        other = settle(recipe, tasks.scope(recipe), spec)
        assert one.definitions.keys() == {"own"} and one != other
        plain = Recipe(model="m", capability="recall", controls=("english",))
        assert "definitions" not in settle(plain, tasks.scope(plain), spec).model_dump()


def test_a_run_finds_the_heads_of_a_capability_from_a_file(
    wired: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = wired.get("naming")
    given = [
        {"prompt": item.prompt, "answer": item.answer, "key": item.key, "transfer": item.transfer}
        for item in built_in.all_items
    ]
    file = write(given)
    get = capabilities.get
    monkeypatch.setattr(
        capabilities,
        "get",
        lambda name, library=None, outside=None: (
            get(name) if name == str(file) else wired.get(name)
        ),
    )
    monkeypatch.setattr(capabilities, "names", lambda: tuple(wired.capabilities))
    recipe = Recipe(
        model=str(wired.folder),
        capability=str(file),
        controls=("pairing", "reading"),
        search_items=16,
        choose_items=20,
        test_items=90,
    )
    options = Options(runs=tmp_path / "runs", cache=tmp_path / "cache", offline=True)
    found = pipeline.remove(recipe, tmp_path / "out", options, Silent())
    assert set(found.heads) == wired.target_heads and found.accepted
    assert found.capability == "own"
    assert "-own-" in Path(found.run).name
    manifest = read_manifest(tmp_path / "out")
    assert manifest.settings is not None
    assert manifest.settings.definitions == {"own": get(str(file)).definition}
    base = str(wired.folder)
    with pytest.raises(UsageError, match="own is defined in a file of its own"):
        pipeline.validate(tmp_path / "out", base, options, Silent())
    again = pipeline.validate(tmp_path / "out", base, options, Silent(), capability=str(file))
    assert again.accepted
    write(given[:-1])
    with pytest.raises(UsageError, match="is not what the edit was measured with"):
        pipeline.validate(tmp_path / "out", base, options, Silent(), capability=str(file))
