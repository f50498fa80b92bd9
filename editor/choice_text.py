"""What the choice of heads went by, and what it expected beside what was measured."""

from __future__ import annotations

from typing import NamedTuple

from editor.records import Added, EditPlan, Metric, Validation
from editor.wording import UNITS, change_text, interval_text, one_line

APART = 2.0
"""How many times as much a head must add as alone, or the reverse, to be worth a word."""


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
    """The heads that the others' absence makes count much more, or much less."""
    said: list[str] = []
    for step in plan.steps[1:]:
        turn = _turn(step)
        if turn:
            more = "more than twice" if turn > 0 else "less than half of"
            why = "it stands in for them" if turn > 0 else "they do the same work"
            said.append(
                f"{step.head} adds {more} what it does alone once those before it are out "
                f"({step.gain:.2f} against {step.alone:.2f}): {why}"
            )
    return said


def _turn(step: Added) -> int:
    """1 where the head counts more with the others out, -1 where less, else 0."""
    return int(step.gain > APART * step.alone) - int(step.alone > APART * step.gain)


_READINGS = {
    1: "more than alone: it stands in for those before it",
    0: "about as alone",
    -1: "less than alone: those before it do the same work",
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
