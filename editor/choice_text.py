"""What the choice of heads went by, and what it expected beside what was measured."""

from __future__ import annotations

from typing import NamedTuple

from editor.records import Added, EditPlan, Metric, Validation
from editor.wording import UNITS, change_text, interval_text, one_line

LEAST_TURN = 0.05
"""Difference between what a head adds and what it does alone that is worth a word."""


def step_rows(plan: EditPlan) -> list[tuple[str, str, str, str]]:
    """Head, what it adds with those before it out, what it would alone, how that reads."""
    return [
        (
            str(step.head),
            change_text(step.gain, "logprob"),
            change_text(step.alone, "logprob"),
            "the first" if not place else _READINGS[_turn(step)],
        )
        for place, step in enumerate(plan.steps)
    ]


def step_sentences(plan: EditPlan) -> list[str]:
    """The heads that surely count more, or less, once the others are out."""
    return [
        f"{step.head} adds {'more' if turn > 0 else 'less'} once those before it are out "
        f"({step.gain:.2f} of the target's loss) than alone ({step.alone:.2f}): "
        f"{_REASONS[turn]}"
        for step in plan.steps[1:]
        if (turn := _turn(step))
    ]


def _turn(step: Added) -> int:
    """1 where the head surely counts more with the others out, -1 where less, else 0."""
    at = step.beyond
    if at is None or abs(at.value) < LEAST_TURN:
        return 0
    return int(at.low > 0) - int(at.high < 0)


_READINGS = {1: "more than alone", 0: "not told from alone", -1: "less than alone"}
_REASONS = {
    1: "it stands in for them, or both carry an answer that each alone leaves likely",
    -1: "they do some of the same work, or little was left to lose",
}


class Foreseen(NamedTuple):
    """A change as the choice predicted it and as it was measured."""

    task: str
    metric: Metric
    predicted: float
    measured: float
    ci: tuple[float, float]

    @property
    def differs(self) -> bool:
        """Whether the prediction lies outside the measurement's interval."""
        return not self.ci[0] <= self.predicted <= self.ci[1]


def foreseen(
    plan: EditPlan | None, validation: Validation | None, *, improve: bool = False
) -> list[Foreseen]:
    """Every prediction that has a measurement, the target first.

    Of what is to be removed the choice asks what the base answers, so its loss is taken as a share
    of that: the same share of the base's right answers in the measurement.
    """
    if plan is None or validation is None:
        return []
    measured = {(at.task, at.metric): at for at in validation.results}
    out: list[Foreseen] = []
    for at in plan.predicted:
        found = measured.get((at.task, at.metric))
        if found is None:
            continue
        change = at.edited - at.base
        if at.task == plan.capability and at.base > 0 and not improve:
            change *= found.base / at.base
        out.append(Foreseen(one_line(at.task), at.metric, change, found.change, found.ci))
    return out


def foreseen_sentences(found: list[Foreseen]) -> list[str]:
    """The predictions that the measurement contradicts."""
    return [
        f"{at.task}: {change_text(at.predicted, at.metric)} was predicted, "
        f"{change_text(at.measured, at.metric)} measured "
        f"({interval_text(at.ci, at.metric)}; "
        f"{'points' if at.metric == 'exact' else UNITS[at.metric]})"
        for at in found
        if at.differs
    ]
