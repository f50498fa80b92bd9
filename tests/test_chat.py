"""Messages in chat templates: texts, token ids, thinking, templates that are broken or hostile."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from editor import capabilities, chat, rendering
from editor.capabilities import Capability, custom
from editor.capabilities.messages import plain_form
from editor.chat import Rendered, Spoken, after_thinking, in_template, prompt_ids, speak
from editor.cli import main
from editor.errors import ModelError, UsageError
from editor.measure import Task
from editor.records import Item, Turn
from editor.rendering import Talks, rendered
from planted import PlantedModel, generated_capability
from tiny import byte_tokenizer, open_tiny, save_random
from wired import write_wired

CHATML = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
BEGINS = "{{ bos_token }}" + CHATML
THINKS = CHATML.replace(
    "'<|assistant|>' }}",
    "'<|assistant|>' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}",
)
OPENED = CHATML.replace("'<|assistant|>' }}", "'<|assistant|><think>\n' }}")
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
ASKED = (Turn(role="system", content="Be brief."), Turn(role="user", content="Capital of France?"))
LATER = (Turn(role="assistant", content="Paris."), Turn(role="user", content=" Why?\n"))


def tokenizer_with(template: Any, *, bos: bool = False) -> Any:
    """A byte tokenizer, if wanted with a token that it puts before each text."""
    from tokenizers.processors import TemplateProcessing

    found: Any = byte_tokenizer()
    if bos:
        found.add_special_tokens({"bos_token": "<s>"})
        processor = TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", found.bos_token_id)])
        found.backend_tokenizer.post_processor = processor
    found.chat_template = template
    return found


def dumped(*conversations: tuple[Turn, ...]) -> list[list[dict[str, str]]]:
    return [[turn.model_dump() for turn in one] for one in conversations or (ASKED,)]


def item(n: int, **more: Any) -> Item:
    turns = (Turn(role="user", content=f"Question {n}?"),)
    given = {"key": f"q{n}", "prompt": f"Q{n}", "answer": f" a{n}", "variant": "v", "turns": turns}
    return Item(**(given | more))


def talking(n: int = 3, **more: Any) -> Capability:
    """A capability of messages; `naming` made from them."""
    made = tuple(map(item, range(n)))
    return replace(generated_capability("own", "task", made), **more)


def no_render(_: Any) -> Rendered:
    raise AssertionError("nothing is to be rendered")


def has_none(_: Any) -> Rendered:
    return Rendered(None)


class TestIds:
    def test_are_those_of_the_template_itself(self) -> None:
        for bos in (False, True):
            for template in (CHATML, BEGINS, THINKS, INST):
                tokenizer = tokenizer_with(template, bos=bos)
                turns = dumped((ASKED[1],))
                (text,) = rendered(tokenizer, turns).prompts
                wanted = tokenizer.apply_chat_template(
                    turns[0],
                    tokenize=True,
                    add_generation_prompt=True,
                    return_dict=False,
                    enable_thinking=False,
                )
                assert prompt_ids(tokenizer, text, templated=True) == wanted

    def test_beginning_of_text_is_never_doubled(self) -> None:
        tokenizer = tokenizer_with(BEGINS, bos=True)
        (text,) = rendered(tokenizer, dumped()).prompts
        begin = tokenizer.bos_token_id
        assert text.startswith("<s>") and tokenizer(text).input_ids[:2] == [begin, begin]
        for templated in (True, False):
            assert prompt_ids(tokenizer, text, templated=templated).count(begin) == 1

    def test_of_plain_prompts_are_as_before(self) -> None:
        tokenizer = tokenizer_with(BEGINS, bos=True)
        assert prompt_ids(tokenizer, "ab") == tokenizer("ab").input_ids
        assert prompt_ids(tokenizer, "") == [tokenizer.bos_token_id]

    def test_the_model_reads_the_same(self, tmp_path: Path) -> None:
        model: Any = open_tiny(save_random(tmp_path / "m", "llama"))
        model._tokenizer = tokenizer_with(CHATML, bos=True)
        one = in_template(item(1), "<|user|>Q\n<|assistant|>", "")
        (request,) = Task(talking(), (one,)).requests()[0]
        assert request.templated
        read = model._encode(0, request)
        begin = model._tokenizer.bos_token_id
        assert begin not in read.ids and len(read.ids) == len("<|user|>Q\n<|assistant|>a1")
        plain = model._encode(0, request._replace(templated=False))
        assert plain.ids == [begin, *read.ids]
        assert model.n_tokens([request]) == len(read.ids)


class TestThinking:
    def test_is_switched_off_where_the_template_can_be_told(self) -> None:
        found = rendered(tokenizer_with(THINKS), dumped())
        assert found.prompts[0].endswith("<think>\n\n</think>\n\n")
        assert chat.settle_thinking(THINKS, found.prompts) == ("off", found.prompts)

    def test_a_thought_that_the_template_begins_is_ended(self) -> None:
        found = rendered(tokenizer_with(OPENED), dumped())
        how, (prompt,) = chat.settle_thinking(OPENED, found.prompts)
        assert how == "closed" and prompt == found.prompts[0] + "\n</think>\n\n"

    def test_is_skipped_where_it_cannot_be_told(self) -> None:
        template = CHATML + "{# content.split('</think>') #}"
        found = rendered(tokenizer_with(template), dumped())
        assert chat.settle_thinking(template, found.prompts)[0] == "skipped"
        assert chat.settle_thinking(CHATML, found.prompts)[0] == "none"

    @pytest.mark.parametrize(
        ("written", "judged"),
        [
            ("Paris", "Paris"),
            ("<think>London?</think>\n\nParis", "Paris"),
            ("London?\n</think>\n\nParis", "Paris"),
            ("<think>a</think>b<think>c</think> d", " d"),
            ("<think>London? It is", ""),
            ("\n<think>", ""),
            ("", ""),
        ],
    )
    def test_what_is_thought_is_not_judged(self, written: str, judged: str) -> None:
        assert after_thinking(written) == judged

    def test_only_answers_to_messages_are_cut(self) -> None:
        from editor.capabilities import judges
        from editor.capabilities.scorers import Written
        from editor.measure import Bench
        from planted import Memory

        class Thinks(PlantedModel):
            def generate(self, prompts: Any, masks: Any, **_: Any) -> Any:
                return [["<think>a1</think>x" for _ in prompts] for _ in masks]

        judge = judges.contains(ignore_case=False)
        own = replace(talking(), scorer=Written(judge, 8))
        bench = Bench(Thinks({"own": {}}), Memory())
        scores = [
            bench.scores(Task(own, (one,)), [()])[0].exact
            for one in (item(1, prompt="own 1"), item(1, prompt="own 1", turns=()))
        ]
        assert scores == [(0.0,), (1.0,)]


class TestSpeak:
    def test_prompts_and_answers_stand_as_the_template_puts_them(self) -> None:
        found = speak(
            [talking(), capabilities.get("recall")],
            "auto",
            lambda talks: rendered(tokenizer_with(INST), dumped(*talks)),
            "m",
        )
        own, recall = found.capabilities
        assert found.used and found.thinking == "none"
        assert found.template == chat.template_digest(INST)
        assert own.all_items[2].prompt == "[INST] Question 2? [/INST]"
        assert own.all_items[2].answer == " a2", "with the template's space"
        assert own.answers == (" a0", " a1", " a2")
        assert recall.all_items == capabilities.get("recall").all_items

    def test_space_of_a_plain_prompt_is_not_the_templates(self) -> None:
        one = item(1, choices=(" a1", " b"))
        assert in_template(one, "P", "").choices == ("a1", "b")
        assert in_template(one, "P", " ").answer == " a1"
        assert in_template(item(1, answer=""), "P", " ").answer == ""

    def test_without_messages_no_template_is_asked_for(self) -> None:
        plain = [capabilities.get("recall"), capabilities.get("english")]
        found = speak(plain, "always", no_render, "m")
        assert found == Spoken(tuple(plain), used=False)

    def test_a_model_without_a_template_gets_plain_prompts(self) -> None:
        for mode, render in (("auto", has_none), ("never", no_render)):
            found = speak([talking()], mode, render, "m")  # type: ignore[arg-type]
            assert not found.used and not found.template
            assert {one.turns for one in found.capabilities[0].all_items} == {()}
            assert found.capabilities[0].all_items[1].prompt == "Q1"
            assert "plain prompts" in found.sentence

    def test_or_is_refused_where_there_are_none(self) -> None:
        for mode, render, said in (
            ("auto", has_none, "m has no chat template"),
            ("never", no_render, "--chat never"),
        ):
            with pytest.raises(UsageError, match=said):
                speak([talking(plain_messages=False)], mode, render, "m")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="--chat always"):
            speak([talking()], "always", has_none, "m")

    def test_messages_are_part_of_an_items_digest_and_nothing_else_changes(self) -> None:
        one = item(1)
        assert one.canonical() != one.model_copy(update={"turns": ()}).canonical()
        assert "turns" not in item(1, turns=()).canonical()


class TestTemplates:
    def test_a_base_model_has_none(self) -> None:
        assert rendered(tokenizer_with(None), dumped()) == Rendered(None)

    def test_of_several_the_default_counts(self) -> None:
        both = {"default": CHATML, "tool_use": INST}
        assert rendered(tokenizer_with(both), dumped()).template == CHATML
        with pytest.raises(ModelError, match="none of them the default: rag, tool_use"):
            rendered(tokenizer_with({"rag": CHATML, "tool_use": INST}), dumped())

    def test_one_that_says_nothing_of_the_messages_is_refused(self) -> None:
        with pytest.raises(ModelError, match="the last message is not in what it writes"):
            rendered(tokenizer_with("hello"), dumped())

    def test_one_that_says_far_too_much_is_refused(self) -> None:
        template = CHATML + "{{ 'x' * 300000 }}"
        with pytest.raises(ModelError, match="makes 300,"):
            rendered(tokenizer_with(template), dumped())

    def test_gap_is_only_ever_space(self) -> None:
        for template, gap in (
            (INST, " "),
            (CHATML, ""),
            (
                CHATML.replace(
                    "'|>' + m", "'|>' + ('said: ' if m.role == 'assistant' else '') + m"
                ),
                "",
            ),
        ):
            assert rendered(tokenizer_with(template), dumped((ASKED[1],))).gap == gap


@pytest.mark.slow  # each starts a process that imports transformers
class TestProcess:
    """Real processes, each of which loads transformers: seconds."""

    def folder(self, tmp_path: Path, template: str) -> Path:
        tokenizer_with(template).save_pretrained(tmp_path / "m")
        return tmp_path / "m"

    def test_renders(self, tmp_path: Path) -> None:
        found = Talks(self.folder(tmp_path, INST), "m")([(ASKED[1],)] * 2)
        assert found == Rendered(INST, ("[INST] Capital of France? [/INST]",) * 2, " ")

    @pytest.mark.parametrize(
        ("template", "said"),
        [
            ("{% if %}", "TemplateSyntaxError"),
            ("{{ raise_exception('no system here') }}", "no system here"),
            ("{{ messages.__class__.__mro__ }}", "SecurityError"),
            ("{{ 'x' * 30000000000 }}", "takes more than 2 GiB"),
        ],
    )
    def test_what_fails_is_one_line(self, tmp_path: Path, template: str, said: str) -> None:
        if "GiB" in said and sys.platform != "linux":
            pytest.skip("no limit on memory here")
        with pytest.raises(ModelError, match=said) as caught:
            Talks(self.folder(tmp_path, template), "m")([ASKED])
        assert caught.value.message.startswith("the chat template of m cannot be used: ")
        assert "\n" not in caught.value.message and "--chat never" in caught.value.hint

    def test_what_does_not_end_is_ended(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        monkeypatch.setattr(rendering, "RENDER_S", 10.0)
        with pytest.raises(ModelError, match="took more than 10 s"):
            Talks(self.folder(tmp_path, loops), "m")([ASKED])


# --- files ---


def write(given: list[Any], more: str = "") -> Path:
    lines = [f"  - {json.dumps(one)}" for one in given]
    file = Path("own.yaml")
    file.write_text(f"name: own\n{more}items:\n" + "\n".join(lines) + "\n", "utf-8")
    return file


def said(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def questions(n: int = 60) -> list[dict[str, Any]]:
    return [
        {"messages": said(("user", f"What is the capital of place {n}?")), "answer": f"city {n}"}
        for n in range(n)
    ]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
class TestFiles:
    def test_messages_make_items(self) -> None:
        (first, *_) = sorted(custom.load(write(questions())).all_items, key=lambda one: one.key)
        assert first.turns == (Turn(role="user", content="What is the capital of place 0?"),)
        assert first.prompt == "User: What is the capital of place 0?\nAssistant:"
        assert first.answer == " city 0"

    def test_in_lines_of_json_too(self) -> None:
        inline = custom.load(write(questions())).all_items
        Path("i.jsonl").write_text("\n".join(map(json.dumps, questions())), "utf-8")
        Path("own.yaml").write_text("name: own\nitems: i.jsonl\n", "utf-8")
        assert custom.load(Path("own.yaml")).all_items == inline

    def test_plain_form(self) -> None:
        turns = (*ASKED, *LATER)
        assert plain_form(turns) == (
            "Be brief.\nUser: Capital of France?\nAssistant: Paris.\nUser:  Why?\n\nAssistant:"
        )

    def test_plain_prompts_only_where_the_file_says_so(self) -> None:
        assert not custom.load(write(questions())).plain_messages
        assert custom.load(write(questions(), "without_template: plain\n")).plain_messages

    def test_files_without_messages_keep_their_digest(self) -> None:
        plain = [{"prompt": f"Question {n}:", "answer": f"a {n}"} for n in range(60)]
        found = custom.load(write(plain))
        # As the version before messages wrote it.
        assert found.definition == (
            "5df808ad663297fbbb717eaad98773c023df52aeb714cbd4fff82f2909dcb73f"
        )

    @pytest.mark.parametrize(
        ("item", "fault"),
        [
            (
                {"messages": said(("user", "a")), "prompt": "b"},
                "of the two, found both",
            ),
            ({"messages": []}, "prompt: must be given, or messages"),
            ({"messages": said(("usr", "a"))}, "messages.0.role: expected 'system', 'user' or"),
            ({"messages": said(("user", " \n"))}, "messages.0.content: expected some text"),
            ({"messages": said(("user", "a"), ("assistant", "b"))}, "the last must be of user"),
            (
                {"messages": said(("user", "a"), ("system", "b"), ("user", "c"))},
                "messages.1.role: system can only be the first",
            ),
            ({"messages": said(("user", "a" * 100_001))}, "messages: have 100,001 characters"),
            ({"messages": [{"role": "user"}]}, "messages.0.content: must be given"),
            ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content: expected"),
            ({"messages": "hello"}, "messages: expected"),
            ({"messages": [{"role": "user", "content": "a", "name": "b"}]}, "messages.0.name: no"),
        ],
    )
    def test_faults_have_their_line(self, item: dict[str, Any], fault: str) -> None:
        given = questions()
        given[7] = {"answer": "x", **item}
        with pytest.raises(UsageError) as caught:
            custom.load(write(given))
        (line,) = caught.value.message.splitlines()
        assert line.startswith("own.yaml:10: ") and fault in line

    def test_the_same_conversation_twice_and_in_two_splits(self) -> None:
        given = [
            {**one, "split": ("search", "choose", "test")[n % 3]}
            for n, one in enumerate(questions())
        ]
        again = {**given[0], "messages": said(("user", "what is the capital of PLACE 0"))}
        with pytest.raises(UsageError, match="own.yaml:63: the same item stands at own.yaml:3"):
            custom.load(write([*given, again]))
        with pytest.raises(UsageError, match="split test overlaps search"):
            custom.load(write([*given, {**again, "split": "test", "answer": "other"}]))

    def test_a_text_has_no_messages(self) -> None:
        with pytest.raises(UsageError, match="messages: belong to a task"):
            custom.load(write(questions(), "kind: text\n"))

    @pytest.mark.parametrize(
        "head",
        [
            "scorer: exact\n",
            "scorer: words\nwords: [city]\n",
            "scorer: contains\nmax_new_tokens: 20\n",
        ],
    )
    def test_any_scorer_takes_them(self, head: str) -> None:
        assert len(custom.load(write(questions(), head)).all_items) == 60

    def test_the_example_of_the_docs_works(self) -> None:
        docs = Path(__file__).parent.parent / "docs" / "capabilities.md"
        text = docs.read_text("utf-8").split("## Chat messages")[1]
        example = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
        (shown,) = example.pop("items")
        given = [
            json.loads(
                json.dumps(shown).replace("France", f"place {n}").replace("Paris", f"city {n}")
            )
            for n in range(60)
        ]
        head = "".join(f"{key}: {json.dumps(value)}\n" for key, value in example.items())
        found = custom.load(write(given, head.replace('name: "capitals-in-chat"\n', "")))
        assert found.plain_messages and found.all_items[0].turns[0].role == "system"
        assert found.all_items[0].prompt == plain_form(found.all_items[0].turns)
        assert plain_form([Turn(**one) for one in shown["messages"]]) in text.replace(
            "\n    ", "\n"
        )


# --- whole runs ---

GAP = (
    "{% for m in messages %}{{ ' ' + m['content'] if m['role'] == 'assistant' else m['content'] }}"
    "{% endfor %}"
)
"""Writes what the wired model was made to read: a question, a space, and the answer."""


def job(folder: Path, *arguments: str, expect: int = 0) -> tuple[dict[str, Any], str]:
    places = ("--runs", str(folder / "runs"), "--cache", str(folder / "cache"))
    done = CliRunner().invoke(main, [*arguments, *places, "--offline", "--json"])
    assert done.exit_code == expect, done.output[-3000:]
    return ({} if expect else json.loads(done.stdout)), done.stderr


def capitals(**more: Any) -> list[dict[str, Any]]:
    """The items of recall, as messages."""
    return [
        {
            "messages": said(("user", one.prompt)),
            "answer": one.answer.strip(),
            "key": one.key,
            "transfer": one.transfer,
            **more,
        }
        for one in capabilities.get("recall").all_items
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_run_with_messages_from_the_command_line(here: Path) -> None:
    wired = write_wired(here / "model")
    model, edited = str(wired.folder), here / "edited"
    file = str(write(capitals()))
    remove = ("remove", "-c", file, "-m", model, "-o", str(edited), "--control", "copying")
    small = ("--max-heads", "2", "--choose-items", "24", "--test-items", "48")
    _, why = job(here, *remove, *small, expect=2)
    assert "there is none to use: model has no chat template" in why
    _, why = job(here, *remove, *small, "--dry-run", expect=2)
    assert "no chat template" in why

    template = wired.folder / "chat_template.jinja"
    template.write_text(GAP, "utf-8")
    found, told = job(here, *remove, *small)
    assert sorted(found["heads"]) == sorted(map(str, wired.carriers["recall"]))
    assert found["accepted"] is True
    assert "messages: written by the chat template" in told
    manifest = json.loads((edited / "editor.json").read_text("utf-8"))
    assert manifest["chat"] == found["chat"]
    assert manifest["settings"]["chat_template"] == chat.template_digest(GAP)
    assert (found["chat"]["template"], found["chat"]["used"], found["chat"]["thinking"]) == (
        chat.template_digest(GAP),
        True,
        "none",
    )
    tokenizer = chat.load_tokenizer(wired.folder)
    prompt = manifest["validation"]["samples"][0]["prompt"]
    assert prompt in [one.prompt for one in capabilities.get("recall").all_items]
    first = tokenizer.decode(found["chat"]["first_prompt"])
    assert first in [one.prompt for one in capabilities.get("recall").all_items]

    again, _ = job(here, "validate", str(edited), "--base", model, "-c", file)
    assert again["accepted"] is True
    template.write_text(GAP + "{# another #}", "utf-8")
    _, why = job(here, "validate", str(edited), "--base", model, "-c", file, expect=2)
    assert "the chat template of the base is not the one that the edit was measured with" in why
    template.write_text(GAP, "utf-8")
    (edited / "chat_template.jinja").write_text("{{ messages }}", "utf-8")
    _, why = job(here, "validate", str(edited), "--base", model, "-c", file, expect=2)
    assert "the chat template of edited is not the one" in why

    template.write_text("{{ raise_exception('broken on purpose') }}", "utf-8")
    _, why = job(here, *remove, *small, "--force", expect=3)
    assert "the chat template of model cannot be used" in why and "broken on purpose" in why


def test_plain_prompts_are_recorded_too(here: Path) -> None:
    wired = write_wired(here / "model")
    edited = here / "edited"
    remove = ("remove", "-c", "recall", "-m", str(wired.folder), "-o", str(edited))
    small = ("--max-heads", "2", "--choose-items", "24", "--test-items", "48")
    found, told = job(here, *remove, "--control", "copying", *small)
    assert "messages" not in told
    assert found["chat"]["template"] is None and not found["chat"]["used"]
    assert found["chat"]["why"] == (
        "no item that is asked has messages; the model has no chat template"
    )
    tokenizer = chat.load_tokenizer(wired.folder)
    first = capabilities.get("recall").items("search")[0].prompt
    assert found["chat"]["first_prompt"] == tokenizer(first).input_ids
    settings = json.loads((edited / "editor.json").read_text("utf-8"))["settings"]
    assert not {"chat", "chat_template"} & settings.keys()


# --- the real model ---


@pytest.mark.model
class TestReal:
    def test_ids_are_those_of_the_tokenizer(self) -> None:
        from editor.progress import Silent
        from editor.session import Options, open_model

        opened = open_model("smollm2-135m", Options(), Silent())
        tokenizer = chat.load_tokenizer(opened.source.folder)
        talks = [
            (Turn(role="user", content="What is the capital of France?"),),
            ASKED,
            (*ASKED, *LATER),
        ]
        found = Talks(opened.source.folder, "smollm2")(talks)
        assert found.template is not None and "<|im_start|>" in found.template
        assert found.gap == ""
        for (turns,), prompt in zip([dumped(talk) for talk in talks], found.prompts, strict=True):
            wanted = tokenizer.apply_chat_template(
                turns, tokenize=True, add_generation_prompt=True, return_dict=False
            )
            assert prompt_ids(tokenizer, prompt, templated=True) == wanted
            assert tokenizer.bos_token_id == wanted[0] and wanted[0] != wanted[1]
