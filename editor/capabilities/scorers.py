"""Ways to ask an item and to score what comes back, for capabilities of any kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from editor.capabilities.base import (
    Continuation,
    Generation,
    ItemScore,
    Likelihood,
    Outcome,
    Request,
    Scorer,
)
from editor.capabilities.text_faults import fault
from editor.records import Item

Judge = Callable[[str, Item], float]
"""How right a written text is as an answer to an item: 0 to 1."""


@dataclass(frozen=True)
class ChoiceLikelihood:
    """Which of an item's choices is the likeliest.

    `logprob` is that of the right one among the choices: what makes all of them less likely alike
    does not change it.
    """

    by_length: bool = False
    """Compare log-probability a character, so that a long choice is not at a disadvantage."""

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return tuple(Continuation(item.prompt, choice) for choice in item.choices)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        found = [outcome for outcome in outcomes if isinstance(outcome, Likelihood)]
        right = item.choices.index(item.answer)
        sums = [one.logprob for one in found]
        # Without the one space that separates it from the prompt, as benchmarks count it.
        bare = [choice.removeprefix(" ") for choice in item.choices]
        lengths = [len(choice) if self.by_length else 1 for choice in bare]
        ranked = [one / length for one, length in zip(sums, lengths, strict=True)]
        exact = float(ranked.index(max(ranked)) == right) if _numbers(ranked) else math.nan
        return ItemScore(exact, sums[right] - log_sum(sums), found[right].n_tokens)


@dataclass(frozen=True)
class Written:
    """What the model writes, greedily, and a judge of it.

    `logprob` is that of the item's answer, a token of it on average; 0 where it has none.
    """

    judge: Judge
    max_new_tokens: int
    stop: tuple[str, ...] = ()

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        written = Generation(item.prompt, self.max_new_tokens, self.stop)
        if not item.answer:
            return (written,)
        return (written, Continuation(item.prompt, item.answer))

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        text = next(outcome for outcome in outcomes if isinstance(outcome, str))
        scored = ItemScore(self.judge(text, item), 0.0, 1, fault=fault(text) or "")
        for outcome in outcomes:
            if isinstance(outcome, Likelihood):
                per_token = outcome.logprob / outcome.n_tokens
                return scored._replace(logprob=per_token, n_tokens=outcome.n_tokens)
        return scored


@dataclass(frozen=True)
class Reference:
    """How likely a reference answer of many tokens is, in nats a token.

    `exact` is the share of its tokens that are the model's own choice: hardly any long answer is so
    as a whole.
    """

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return (Continuation(item.prompt, item.answer),)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        (outcome,) = outcomes
        assert isinstance(outcome, Likelihood)
        n_tokens = outcome.n_tokens
        return ItemScore(outcome.n_greedy / n_tokens, outcome.logprob / n_tokens, n_tokens)


@dataclass(frozen=True)
class AnyChoice:
    """How likely it is that the answer is one of an item's choices, all of which are right.

    The choices are different texts, none the beginning of another, so that their probabilities add
    up.  `exact` tells whether one of them is what greedy decoding writes.
    """

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return tuple(Continuation(item.prompt, choice) for choice in item.choices)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        found = [outcome for outcome in outcomes if isinstance(outcome, Likelihood)]
        exact = any(one.n_greedy == one.n_tokens for one in found)
        likeliest = max(found, key=lambda one: one.logprob)
        logprob = log_sum([one.logprob for one in found])
        return ItemScore(float(exact), logprob, likeliest.n_tokens)


@dataclass(frozen=True)
class ByForm:
    """One scorer for the usual items, another for those of the transfer form."""

    usual: Scorer
    transfer: Scorer

    def requests(self, item: Item, among: tuple[str, ...] = ()) -> tuple[Request, ...]:
        return self._of(item).requests(item, among)

    def score(self, item: Item, outcomes: Sequence[Outcome]) -> ItemScore:
        return self._of(item).score(item, outcomes)

    def _of(self, item: Item) -> Scorer:
        return self.transfer if item.transfer else self.usual


def _numbers(values: Sequence[float]) -> bool:
    return all(map(math.isfinite, values))


def log_sum(values: Sequence[float]) -> float:
    """Logarithm of the sum of the exponentials."""
    most = max(values)
    if not math.isfinite(most):
        return math.nan
    return most + math.log(sum(math.exp(value - most) for value in values))
