"""What a job will cost before it is begun: masks, tokens, time, memory, disk.

Counts are those of the stages, so "at most" where a stage may end early.  Time is tokens times what
a token took in a first batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Literal

import numpy as np

from editor import tasks
from editor.capabilities.base import Continuation, Request
from editor.confirm import MAX_ITEMS, expected_masks
from editor.measure import GRADIENT_COST, N_TRIES, Bench, Task, as_mask
from editor.methods import search_budget
from editor.records import ModelSpec, Record, Settings
from editor.tasks import Scope
from editor.validation import CURVE_ITEMS
from editor.wording import duration, size_text

Count = Callable[[Sequence[Request]], int]
Kind = Literal["task", "text"]

CHARS_A_TOKEN = 4
"""Of English in usual vocabularies, where no tokenizer is at hand."""
WORKING_STATES = 16
"""Hidden states of a batch that a layer holds at once, its widened ones counted in."""
BATCH_TOKENS = 1024
SCORE_BYTES, MASK_BYTES = 64, 256
"""Bytes of the journal an item and a mask."""
TIMED_MASKS = N_TRIES + 1
"""As many as the choice tries at once."""
_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}


class StageCost(Record):
    """What one stage measures."""

    stage: str
    masks: int
    """Counted once a task: evaluations of whatever the stage asks."""
    items: int
    """Items under all masks together."""
    tokens: int
    text_tokens: int
    """Of the tokens, those of texts, whose rows are longer."""


class Timing(Record):
    """A first batch of each kind."""

    tokens: int
    seconds: float
    s_per_token: dict[str, float]
    """By kind: task and text."""


def stages(
    what: Scope, settings: Settings, n_heads: int, *, scan: bool, output: bool, count: Count
) -> tuple[StageCost, ...]:
    """The stages of a job with what they measure at most.

    Args:
        scan: the universal heads are not known yet.
        output: an edited checkpoint is written and compared, not only heads found.
        count: tokens of requests.
    """
    found = list[StageCost]()
    dense = settings.score == "logprob"
    budget = settings.budget or 0
    searched = search_budget(settings.method, budget, settings.max_heads, n_heads)
    gradient = GRADIENT_COST * (settings.method == "gradient" or settings.prior == "gradient")
    n_search, n_choose = settings.search_items, settings.choose_items
    factor, n = tasks.CANDIDATES_PER_ITEM, len(what.targets)
    search = [Task(one, one.items("search")[: factor * n_search]) for one in what.targets]
    choose = [Task(one, one.items("choose")[: factor * n_choose]) for one in what.targets]
    controls = [one.task for one in tasks.choose_controls(what, n_choose)]

    def add(stage: str, *asked: tuple[Task, int, int]) -> None:
        """`asked`: a task, how many of its items, under how many masks."""
        found.append(_cost(stage, asked, count))

    forms = [tasks.other_form(one) for one in what.targets if one.both_forms]
    add("baseline", *((one, len(one.items), 1) for one in (*search, *choose, *forms)))
    if scan:
        add("scan", *((text, len(text.items), n_heads + 1) for text in tasks.scan_texts()))
    searching = [replace(one, dense=dense) for one in search]
    choosing = [replace(one, dense=dense) for one in choose]
    add("search", *((one, n_search, searched + gradient) for one in searching))
    most = n * settings.max_heads
    add(
        "choice",
        *((one, n_choose, max(0, budget - searched)) for one in choosing),
        *((one, len(one.items), most + 1) for one in controls),
    )
    masks = expected_masks(settings.max_heads)
    checks = [(one, min(n_choose, MAX_ITEMS), masks) for one in choosing]
    # What each head takes of each target, alone and last.
    add("checks", *checks, *((one, n_choose, 2 * most + 1) for one in choosing if n > 1))
    if output:
        judged = tasks.judged(what, settings.test_items, 0.0)
        rows = [one.task for one in judged]
        asked = [one.task for one in judged if one.min_drop is not None and not one.transfer]
        curves = [(one, min(CURVE_ITEMS, len(one.items)), 4 * most) for one in asked]
        add("validation", *((row, len(row.items), 2) for row in rows), *curves)
    return tuple(found)


def by_characters(requests: Sequence[Request]) -> int:
    """About how many tokens, where no tokenizer is at hand."""
    return sum(
        (len(one.prompt) + len(one.answer)) // CHARS_A_TOKEN
        if isinstance(one, Continuation)
        else len(one.prompt) // CHARS_A_TOKEN + one.max_new_tokens
        for one in requests
    )


def timed(bench: Bench, what: Scope, settings: Settings, spec: ModelSpec) -> Timing:
    """Measure a first batch of the capability and one of a text.

    Args:
        bench: with a journal of its own, or the run would find the masks in it.
    """
    heads, rng = spec.heads(), np.random.default_rng(settings.seed)
    some = rng.choice(len(heads), min(len(heads), TIMED_MASKS), replace=False)
    masks = [as_mask([heads[int(n)]]) for n in some]
    asked: dict[str, Task] = {
        "task": Task(what.target, what.target.items("search")[: settings.search_items])
    }
    asked |= {text.capability.kind: text for text in tasks.scan_texts()[:1]}
    rates: dict[str, float] = {}
    total, seconds = 0, 0.0
    for kind, task in asked.items():
        bench.scores(task, [()])  # what is done once: kernels, tokenization, what may be spared
        n_tokens = bench.count(_requests(task, len(task.items))) * len(masks)
        began = time.monotonic()
        bench.scores(task, masks)
        took = time.monotonic() - began
        rates[kind] = took / max(1, n_tokens)
        total, seconds = total + n_tokens, seconds + took
    return Timing(tokens=total, seconds=round(seconds, 3), s_per_token=rates)


def hours(costs: Sequence[StageCost], s_per_token: Mapping[str, float]) -> float:
    """How long the stages take at these paces; a text is as a task where no text was timed."""
    task = s_per_token["task"]
    text = s_per_token.get("text", task)
    seconds = sum((one.tokens - one.text_tokens) * task + one.text_tokens * text for one in costs)
    return seconds / 3600


def journal_bytes(costs: Sequence[StageCost]) -> int:
    """About the size of a run's journals."""
    return sum(MASK_BYTES * one.masks + SCORE_BYTES * one.items for one in costs)


def batch_bytes(spec: ModelSpec, dtype: str) -> int:
    """About what one batch takes: recorded states of every layer, and those at work."""
    n_layers = spec.n_layers or len(spec.layers)
    return BATCH_TOKENS * spec.hidden_size * (n_layers + WORKING_STATES) * _WIDTH.get(dtype, 4)


def sentence(costs: Sequence[StageCost], spec: ModelSpec, dtype: str, output_bytes: int) -> str:
    """What a job will take, in one line."""
    masks, tokens = sum(one.masks for one in costs), sum(one.tokens for one in costs)
    stored = sum(file.n_bytes for file in spec.files)
    return (
        f"ahead: at most {masks:,} evaluations, {tokens:,} tokens; memory "
        f"{size_text(weights_bytes(spec, dtype, stored))} of weights and about "
        f"{size_text(batch_bytes(spec, dtype))} a batch; disk "
        f"{size_text(output_bytes + journal_bytes(costs))}; nothing more is downloaded"
    )


def pace_sentence(costs: Sequence[StageCost], tokens: int, seconds: float) -> str:
    """How long a job will take at the pace of its first batches, the baseline."""
    rate = tokens / seconds
    left = sum(one.tokens for one in costs if one.stage != "baseline") / rate
    return f"the first {tokens:,} tokens took {seconds:.1f} s: at most about {duration(left)} left"


def weights_bytes(spec: ModelSpec, dtype: str, stored: int) -> int:
    """About the memory of the weights, which a wider number type doubles."""
    wide = dtype == "float32" and spec.dtype in ("BF16", "F16")
    return stored * (2 if wide else 1)


def _cost(stage: str, asked: Sequence[tuple[Task, int, int]], count: Count) -> StageCost:
    masks = items = tokens = text = 0
    for task, n_items, n_masks in asked:
        some = count(_requests(task, n_items)) * n_masks
        masks, tokens = masks + n_masks, tokens + some
        items += min(n_items, len(task.items)) * n_masks
        text += some if task.capability.kind == "text" else 0
    return StageCost(stage=stage, masks=masks, items=items, tokens=tokens, text_tokens=text)


def _requests(task: Task, n_items: int) -> list[Request]:
    return list(chain(*task.requests()[:n_items]))
