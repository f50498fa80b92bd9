"""Messages as a model's own chat template writes them, and prompts as the model reads them.

The template comes with the model's tokenizer: a program in a small language, by strangers.  It runs
in transformers' sandbox and in a process of its own (`rendering`), never here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from editor.capabilities.base import Capability
from editor.errors import ModelError, UsageError
from editor.records import Chat, Item, Thinking, Turn

OPENS, CLOSES = "<think>", "</think>"
"""What stands around a thought in the text of the models that think aloud."""
SWITCH = "enable_thinking"
"""The variable by which templates are told whether the model is to think."""
CLOSING = "\n" + CLOSES + "\n\n"

_SWITCH = re.compile(rf"\b{SWITCH}\b")
NO_MESSAGES = "no item that is asked has messages"
NO_TEMPLATE = "has no chat template"


class Rendered(NamedTuple):
    """What a model's chat template made of conversations."""

    template: str | None
    """The template itself; None where the model has none, and nothing is rendered."""
    prompts: tuple[str, ...] = ()
    """A text for each conversation, up to where the model's answer begins."""
    gap: str = ""
    """The space that the template puts between that and an answer."""


Render = Callable[[Sequence[tuple[Turn, ...]]], Rendered]
"""Has a model's template write conversations; raises ModelError where it cannot."""


class Spoken(NamedTuple):
    """Capabilities in the form in which a model is asked."""

    capabilities: tuple[Capability, ...]
    used: bool
    """Whether a template wrote prompts."""
    template: str = ""
    """Its sha256; empty where it was not used."""
    thinking: Thinking = "none"
    why: str = NO_MESSAGES

    @property
    def sentence(self) -> str:
        """How messages are put to the model, and what was done about thinking aloud."""
        return self.why + _THINKING[self.thinking]


_THINKING: dict[Thinking, str] = {
    "off": "; thinking is switched off",
    "closed": "; the thought that it begins is ended at once",
    "skipped": f"; what the model writes up to {CLOSES} is not judged",
    "none": "",
}


def speak(asked: Sequence[Capability], mode: Chat, render: Render, model: str) -> Spoken:
    """Put items that are messages into the form in which a model is asked.

    Args:
        asked: all capabilities of a run; those without messages stay as they are.
        mode: what the recipe says of messages.
        render: called once with all conversations, where there are any.
        model: its name, for messages.

    Returns:
        The capabilities, with prompts that the template wrote for items that keep their `turns`, or
        with plain prompts and no turns.

    Raises:
        UsageError: there is no template, or it must not be used, and a capability needs one.
        ModelError: the template cannot be used.
    """
    talks = [tuple(item.turns for item in one.all_items if item.turns) for one in asked]
    if not any(talks):
        return Spoken(tuple(asked), used=False)
    found = Rendered(None)
    if mode != "never":
        found = render([turns for talk in talks for turns in talk])
    if found.template is None:
        why = "--chat never" if mode == "never" else f"{model} {NO_TEMPLATE}"
        _refuse_plain(asked, talks, mode, why)
        plain = tuple(map(_plain, asked, talks))
        return Spoken(plain, used=False, why=f"put as plain prompts: {why}")
    thinking, prompts = settle_thinking(found.template, found.prompts)
    texts = iter(prompts)
    spoken = tuple(
        _templated(one, texts, found.gap) if talk else one
        for one, talk in zip(asked, talks, strict=True)
    )
    return Spoken(
        spoken, True, template_digest(found.template), thinking, "written by the chat template"
    )


def _refuse_plain(
    asked: Sequence[Capability], talks: Sequence[tuple[object, ...]], mode: Chat, why: str
) -> None:
    needs = [one for one, talk in zip(asked, talks, strict=True) if talk]
    if mode == "always":
        raise UsageError(
            f"{why}, and --chat always wants messages written by one",
            "choose an instruct model, or --chat auto for plain prompts where there are any",
        )
    for one in needs:
        if not one.plain_messages:
            raise UsageError(
                f"the items of {one.name} are messages for a chat template, and there is none to "
                f"use: {why}",
                "choose an instruct model, or say `without_template: plain` in the capability's "
                "file",
            )


def _plain(one: Capability, talk: tuple[object, ...]) -> Capability:
    return _with_items(one, [_without_turns(item) for item in one.all_items]) if talk else one


def _without_turns(item: Item) -> Item:
    return item.model_copy(update={"turns": ()}) if item.turns else item


def _templated(one: Capability, texts: Any, gap: str) -> Capability:
    items = [in_template(item, next(texts), gap) if item.turns else item for item in one.all_items]
    return _with_items(one, items)


def _with_items(one: Capability, items: Sequence[Item]) -> Capability:
    return replace(one, make_items=lambda: tuple(items), data=(), library=None)


def in_template(item: Item, prompt: str, gap: str) -> Item:
    """The item with the prompt that a template wrote, and answers as they stand behind it."""

    def behind(answer: str) -> str:
        return gap + answer.lstrip(" ") if answer else ""

    choices = tuple(map(behind, item.choices))
    return item.model_copy(
        update={"prompt": prompt, "answer": behind(item.answer), "choices": choices}
    )


# --- thinking ---


def settle_thinking(template: str, prompts: Sequence[str]) -> tuple[Thinking, tuple[str, ...]]:
    """What is done about thinking aloud, and the prompts with no thought left open."""
    ended = tuple(one + CLOSING if _in_thought(one) else one for one in prompts)
    if ended != tuple(prompts):
        return "closed", ended
    if switches(template):
        return "off", ended
    return ("skipped" if CLOSES in template else "none"), ended


def switches(template: str) -> bool:
    """Whether a template can be told that the model is not to think."""
    return _SWITCH.search(template) is not None


def _in_thought(prompt: str) -> bool:
    # A message may hold the marks too; what counts is how the text ends.
    return prompt.rstrip().endswith(OPENS)


def after_thinking(text: str) -> str:
    """What a model writes after its thoughts; nothing where it is still at them."""
    _, closed, rest = text.rpartition(CLOSES)
    if closed:
        return rest.lstrip("\n")
    return "" if text.lstrip().startswith(OPENS) else text


# --- tokens ---


def template_digest(template: str) -> str:
    """sha256 of a template's text."""
    return hashlib.sha256(template.encode()).hexdigest()


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint.

    Raises:
        OSError, ValueError, KeyError, RuntimeError: as transformers does.
    """
    from transformers import AutoTokenizer

    loader: Any = AutoTokenizer
    return loader.from_pretrained(
        folder, local_files_only=True, trust_remote_code=trust_remote_code
    )


def own_template(tokenizer: Any) -> str | None:
    """The chat template that a tokenizer uses by default; None where it has none.

    Raises:
        ModelError: it has several, and none is the default.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        names = ", ".join(sorted(map(str, tokenizer.chat_template)))[:200]
        raise ModelError(
            f"the model has several chat templates, none of them the default: {names}",
            "leave one in its tokenizer_config.json, or use --chat never",
        ) from error


def prompt_ids(tokenizer: Any, text: str, *, templated: bool = False) -> list[int]:
    """A text's token ids as a model reads them.

    Args:
        templated: a chat template wrote it; its special tokens are all there.
    """
    if templated:
        return list(tokenizer(text, add_special_tokens=False).input_ids)
    ids = list(tokenizer(text).input_ids)
    begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    if begin is not None and ids[:2] == [begin, begin] and text.startswith(tokenizer.bos_token):
        del ids[0]  # the text begins with it already
    if ids and text and ids[-1] == end:
        ids.pop()  # some tokenizers close every text
    return ids
