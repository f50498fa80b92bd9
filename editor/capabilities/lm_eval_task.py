"""A task of lm-eval -> a `Capability`: its prompts, its answers, its way of scoring them.

`lm-eval:TASK` takes the task's first metric that can be had, `lm-eval:TASK@METRIC` a named one; of
a task that lets the model write, what stands behind the @ may also be one of its filters.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, cast

from editor.capabilities.base import (
    AnswerLikelihood,
    Capability,
    Continuation,
    ItemScore,
    Likelihood,
    Outcome,
    Outside,
    Request,
    Scorer,
    split_of,
)
from editor.capabilities.definition_checks import plain, too_few
from editor.capabilities.lm_eval_source import PREFIX, Found, find, rendering
from editor.capabilities.scorers import Judge, Reference, Written, log_sum
from editor.capabilities.stable import stable_shuffle
from editor.errors import UsageError, nearest
from editor.records import Item
from editor.wording import one_line

MOST_DOCS = 20_000
"""Documents that are looked at: a run asks a thousandth of them."""
FEWSHOT_SEED = 1234
"""What `lm_eval.simple_evaluate` draws worked examples with."""
MAX_NEW_TOKENS = 256
"""What lm-eval lets a model write where the task does not say."""
_TOKENS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class Asked(NamedTuple):
    """One document as lm-eval asks it."""

    number: int
    doc: Any
    arguments: Any
    """Contexts with continuations, or a context with how to write on."""


@dataclass(frozen=True)
class TaskChoice:
    """Which choice is the likeliest, as lm-eval's `acc`, or a character, as its `acc_norm`.

    `check` of an item is the index of the right choice, for of two equal ones only the first can
    win, and how many characters stand before a choice that are no part of its length.
    """

    unit: str
    """The metric: acc, acc_norm or acc_bytes."""

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return tuple(Continuation(item.prompt, choice) for choice in item.choices)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        found = [outcome for outcome in outcomes if isinstance(outcome, Likelihood)]
        sums = [one.logprob for one in found]
        right, start = map(int, item.check.split())
        lengths = [self._length(choice[start:]) for choice in item.choices]
        ranked = [one / length for one, length in zip(sums, lengths, strict=True)]
        known = all(map(math.isfinite, ranked))
        exact = float(ranked.index(max(ranked)) == right) if known else math.nan
        return ItemScore(exact, sums[right] - log_sum(sums), found[right].n_tokens)

    def _length(self, text: str) -> float:
        if self.unit == "acc":
            return 1.0
        return float(max(1, len(text.encode() if self.unit == "acc_bytes" else text)))


def load(name: str, outside: Outside) -> Capability:
    """The capability that a task measures.

    Args:
        name: `lm-eval:TASK` or `lm-eval:TASK@METRIC`.

    Raises:
        UsageError: there is no such task, or it measures in a way that is not taken.
    """
    task_name, _, wanted = name.removeprefix(PREFIX).strip().partition("@")
    if not task_name:
        raise UsageError("lm-eval: names no task", "write lm-eval:TASK, as lm-eval:arc_easy")
    found = find(task_name, outside)
    found.task.set_fewshot_seed(seed=FEWSHOT_SEED)
    with rendering(found.trusted):
        try:
            return _capability(f"{PREFIX}{task_name}" + (f"@{wanted}" if wanted else ""), found)
        except UsageError:
            raise
        except Exception as error:  # a task's own functions and templates may raise anything
            said = (str(error).strip().splitlines() or [""])[0][:300]
            raise UsageError(
                one_line(f"{PREFIX}{task_name} cannot be asked: {type(error).__name__}: {said}"),
                "see the task's YAML file and its data",
            ) from error


def _capability(name: str, found: Found) -> Capability:
    task = found.task
    if task.config.doc_to_image or task.config.doc_to_audio:
        raise UsageError(f"{name} shows images or sound", "choose a task of text")
    make: Callable[[str, Found], tuple[list[Item], Scorer, Scorer | None]] = {
        "multiple_choice": _choices,
        "loglikelihood": _answers,
        "generate_until": _writings,
    }[task.OUTPUT_TYPE]
    items, scorer, dense = make(name, found)
    mixed = tuple(stable_shuffle(items, name, lambda item: item.prompt + item.answer))
    floor = _floor(mixed)
    if short := list(too_few(name, mixed, floor)):
        raise UsageError("; ".join(short), "choose a task with more documents")
    return Capability(
        name=name,
        summary=f"The task {task.config.task} of lm-eval.",
        kind="task",
        floor=floor,
        control_limit=0.05,
        source=_source(task),
        licence="that of the data set",
        make_items=lambda: mixed,
        scorer=scorer,
        dense=dense,
        default_control=False,
        definition=_digest(task, scorer, mixed),
    )


def _asked(task: Any) -> Iterator[Asked]:
    """The documents in their order, with the worked examples that lm-eval draws for each."""
    shots = task.config.num_fewshot or 0
    for number, doc in islice(task.doc_iterator(rank=0, limit=None, world_size=1), MOST_DOCS):
        context = task.fewshot_context(
            doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc), apply_chat_template=False
        )
        made = task.construct_requests(
            doc=doc, ctx=context, metadata=(task.config.task, number, 1), apply_chat_template=False
        )
        arguments = [one.args for one in made] if isinstance(made, list) else made.args
        yield Asked(number, doc, arguments)


# --- the three kinds of tasks


def _choices(name: str, found: Found) -> tuple[list[Item], Scorer, None]:
    task = found.task
    if task.multiple_input:
        raise UsageError(
            f"{name} asks another prompt with each choice, which is not taken",
            "choose a task whose choices follow one prompt",
        )
    metric = _one_of(name, task, ("acc", "acc_norm", "acc_bytes"))
    items: list[Item] = []
    for asked in _asked(task):
        texts = list(task.doc_to_choice(asked.doc))
        pairs = [_moved(*pair[:2]) for pair in asked.arguments[: len(texts)]]
        right = _index_of(name, task, asked)
        if right is None:
            continue  # lm-eval counts it as wrong whatever is said: it shows no ability
        choices = tuple(continuation for _, continuation in pairs)
        check = f"{right} {len(choices[0]) - len(texts[0])}"
        items.append(_item(name, task, asked, pairs[0][0], choices[right], choices, check))
    return items, TaskChoice(metric), None


def _index_of(name: str, task: Any, asked: Asked) -> int | None:
    """Which choice is right; None where none is."""
    gold, choices = task.doc_to_target(asked.doc), list(task.doc_to_choice(asked.doc))
    if isinstance(gold, list):
        raise UsageError(
            f"{name} has documents with several right answers, which are not taken",
            "choose a task with one right answer",
        )
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else None
    return int(gold) if 0 <= int(gold) < len(choices) else None


def _answers(name: str, found: Found) -> tuple[list[Item], Scorer, None]:
    task = found.task
    _one_of(name, task, ("acc",))
    items: list[Item] = []
    for asked in _asked(task):
        context, target = cast("tuple[str, str]", asked.arguments[:2])
        prompt, answer = _moved(context, str(target))
        items.append(_item(name, task, asked, prompt, answer))
    return items, AnswerLikelihood(), None


def _writings(name: str, found: Found) -> tuple[list[Item], Scorer, Scorer]:
    task = found.task
    chosen = _filter(name, task)
    items: list[Item] = []
    docs: dict[str, Any] = {}
    ways: dict[tuple[int, tuple[str, ...]], None] = {}
    for asked in _asked(task):
        context, how = cast("tuple[str, Mapping[str, Any]]", asked.arguments[:2])
        ways[_way(name, how)] = None
        answer = _target(task, asked.doc)
        items.append(_item(name, task, asked, context, answer, check=str(asked.number)))
        docs[str(asked.number)] = asked.doc
    if len(ways) != 1:
        raise UsageError(f"{name} lets the model write in {len(ways)} ways", "choose another task")
    ((tokens, stop),) = ways
    judge = _judge(name, found, chosen, docs)
    return items, Written(judge, tokens, stop), Reference()


def _way(name: str, how: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How much is written and where it ends; greedily, as lm-eval does without temperature."""
    warm = (how.get("temperature") or 0) > 0
    cold = how.get("do_sample") is False or how.get("temperature") == 0
    if (how.get("do_sample") and not cold) or (warm and not cold) or how.get("num_beams", 1) != 1:
        raise UsageError(
            f"{name} draws what is written at random or from several beams, which is not taken",
            "choose a task that writes greedily",
        )
    until = how.get("until") or ()
    stop = (until,) if isinstance(until, str) else tuple(str(one) for one in until)
    tokens = next((how[one] for one in _TOKENS if how.get(one)), MAX_NEW_TOKENS)
    return int(tokens), tuple(one for one in stop if one)


def _judge(name: str, found: Found, chosen: Any, docs: Mapping[str, Any]) -> Judge:
    """What lm-eval says to a written text: its filter, then its `exact_match`."""
    from lm_eval.api.instance import Instance

    task = found.task

    def judge(text: str, item: Item) -> float:
        doc = docs[item.check]
        one = Instance("generate_until", doc, (item.prompt, {}), 0, (name, 0, 1), resps=[text])
        with rendering(found.trusted):
            chosen.apply([one])
            scores = task.process_results(doc, [one.filtered_resps[chosen.name]])
        if "exact_match" not in scores:
            raise UsageError(f"{name} says no exact_match", "choose another task")
        return float(scores["exact_match"])

    return judge


def _filter(name: str, task: Any) -> Any:
    """The filter of a task that is asked for, or its first one."""
    wanted = name.partition("@")[2]
    filters = {one.name: one for one in task._filters}
    if "exact_match" not in task._metric_fn_list:
        metrics = ", ".join(task._metric_fn_list)
        raise UsageError(
            f"{name} is scored by {one_line(metrics)}; of written answers only exact_match is",
            "choose another task",
        )
    if wanted in ("", "exact_match"):
        return next(iter(filters.values()))
    if wanted not in filters:
        raise UsageError(f"{name}: no filter of the task", nearest(wanted, filters))
    return filters[wanted]


def _target(task: Any, doc: Any) -> str:
    """The right answer as it would follow the prompt, or "" where there are several or none."""
    gold = task.doc_to_target(doc)
    if task.config.doc_to_choice is not None and isinstance(gold, int):
        gold = task.doc_to_choice(doc)[gold]
    if isinstance(gold, list) or gold is None or not str(gold).strip():
        return ""
    return f"{task.config.target_delimiter}{gold}"


# --- what they share


def _one_of(name: str, task: Any, taken: Sequence[str]) -> str:
    """The metric that is asked for, or the first of those taken that the task has."""
    wanted, metrics = name.partition("@")[2], list(task._metric_fn_list)
    have = [one for one in taken if one in metrics]
    if wanted and wanted not in have:
        raise UsageError(f"{name}: no metric that is taken", nearest(wanted, have or taken))
    if not have or task.config.process_results is not None:
        raise UsageError(
            f"{name} is scored by {one_line(', '.join(map(str, metrics)))} in a way of its own; "
            f"of such tasks only {', '.join(taken)} are taken",
            "choose another task",
        )
    return wanted or have[0]


def _item(
    name: str,
    task: Any,
    asked: Asked,
    prompt: str,
    answer: str,
    choices: tuple[str, ...] = (),
    check: str = "",
) -> Item:
    if not prompt:
        raise UsageError(
            f"{name}: document {asked.number} has an empty prompt: nothing predicts its answer",
            "choose another task",
        )
    if not (answer or check):
        raise UsageError(f"{name}: document {asked.number} has no answer", "choose another task")
    question = task.doc_to_text(asked.doc)
    about = plain(question) if isinstance(question, str) and question.strip() else plain(prompt)
    return Item(
        key=about,
        prompt=prompt,
        answer=answer,
        variant=str(task.config.task),
        choices=choices,
        check=check,
        split=split_of(name, about),
    )


def _moved(context: str, continuation: str) -> tuple[str, str]:
    """Space at a context's end goes before the continuation, as lm-eval moves it."""
    bare = context.rstrip()
    return bare, context[len(bare) :] + continuation


def _floor(items: Sequence[Item]) -> float:
    """The best of two habits: a choice at random, one and the same answer or place always."""
    places = Counter(
        item.check.split()[0] if item.choices else plain(item.answer)
        for item in items
        if item.answer
    )
    most = max(places.values(), default=0)
    always = most / len(items) if most > 1 else 0.0
    by_chance = [1 / len(item.choices) for item in items if item.choices]
    return max(always, sum(by_chance) / len(items)) if by_chance else always


def _source(task: Any) -> str:
    from importlib.metadata import version

    data = [str(one) for one in (task.DATASET_PATH, task.DATASET_NAME) if one]
    # A path of this machine says nothing elsewhere, and should not be in a report.
    shown = "/".join(
        one.rstrip("/").rpartition("/")[2] if one[:1] in "/.~" else one for one in data
    )
    return one_line(
        f"lm-eval {version('lm_eval')}, task {task.config.task} (version {task.VERSION}), "
        f"data {shown}"
    )


def _digest(task: Any, scorer: Scorer, items: Sequence[Item]) -> str:
    """sha256 of the items and of what decides about a written answer."""
    from importlib.metadata import version

    config = task.dump_config()
    fields = ("filter_list", "metric_list", "process_results", "generation_kwargs", "doc_to_target")
    rules = {name: config.get(name) for name in fields}
    head = json.dumps([version("lm_eval"), rules], sort_keys=True, default=_name_of)
    kind = repr(scorer) if isinstance(scorer, TaskChoice) else type(scorer).__name__
    lines = (head, kind, *(item.canonical() for item in items))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _name_of(value: object) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))
