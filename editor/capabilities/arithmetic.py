"""Arithmetic: sums and differences after worked examples.

The answer ends with the newline that the examples teach, so that `1` does not pass for `12`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from editor.capabilities.base import AnswerLikelihood, Capability
from editor.capabilities.stable import stable_shuffle
from editor.records import Item

N_SHOTS = 4
N_POOL = 8
"""Families of each number of digits that serve as worked examples only."""
N_DRAWS = 2
"""How often a one-digit problem is asked, each time after other examples: there are few problems,
and which examples precede one changes whether a small model solves it."""
N_TWO_DIGIT = 60
"""Sampled items of two digits in each operation; few, because small models hardly solve any."""


class Problem(NamedTuple):
    """`a + b` or `a - b`; differences are never negative."""

    a: int
    sign: str
    b: int

    @property
    def result(self) -> int:
        return self.a + self.b if self.sign == "+" else self.a - self.b

    @property
    def family(self) -> str:
        """What all problems of one fact share: 3+4, 4+3, 7-3 and 7-4 are the family `3+4`."""
        parts = (self.a, self.b) if self.sign == "+" else (self.b, self.result)
        return f"{min(parts)}+{max(parts)}"

    def __str__(self) -> str:
        return f"{self.a} {self.sign} {self.b}"


class Form(NamedTuple):
    """How a problem is written, up to the result."""

    suffix: str
    """Appended to the variant's name."""
    template: str

    def before(self, problem: Problem) -> str:
        """The text that the result of `problem` follows."""
        word = "plus" if problem.sign == "+" else "minus"
        return self.template.format(a=problem.a, sign=problem.sign, word=word, b=problem.b)


EQUATION = Form("", "{a} {sign} {b} =")
QUESTION = Form("-question", "Question: What is {a} {word} {b}? Answer:")


def problems(sign: str, digits: int) -> list[Problem]:
    """All problems whose two numbers have that many digits, in ascending order."""
    numbers = range(0, 10) if digits == 1 else range(10 ** (digits - 1), 10**digits)
    return [Problem(a, sign, b) for a in numbers for b in numbers if sign == "+" or a >= b]


def shot_families(digits: int) -> frozenset[str]:
    """The families that are only ever shown as worked examples, in either operation.

    Half of them carry into another digit.  Only the other half have differences, whose two numbers
    must have `digits` digits.  Zeros and doubles are left out: other rules explain those as well.
    """
    sums = [p for p in problems("+", digits) if 0 < p.a < p.b]
    plain = [p.family for p in sums if p.result < 10**digits]
    carried = [p.family for p in sums if p.result >= 10**digits]
    seed = f"shots-{digits}"
    return frozenset(
        family for kind in (plain, carried) for family in stable_shuffle(kind, seed)[: N_POOL // 2]
    )


def shot_pool(sign: str, digits: int) -> list[Problem]:
    """The problems that serve as worked examples of one operation."""
    shown = shot_families(digits)
    return [problem for problem in problems(sign, digits) if problem.family in shown]


def _variant(sign: str, digits: int) -> str:
    return f"{'add' if sign == '+' else 'sub'}-{digits}"


def _shots(problem: Problem, pool: list[Problem], seed: str) -> list[Problem]:
    """A draw of worked examples: of different families, none with the result asked for.

    Otherwise, repeating an example's result would sometimes be right.
    """
    drawn: dict[str, Problem] = {}
    for shot in stable_shuffle(pool, seed):
        if shot.result != problem.result:
            drawn.setdefault(shot.family, shot)
    return list(drawn.values())[:N_SHOTS]


def _item(problem: Problem, pool: list[Problem], draw: int, form: Form, variant: str) -> Item:
    """The problem after its own draw of worked examples."""
    shots = _shots(problem, pool, f"{variant} {problem} {draw}")
    shown = "".join(f"{form.before(shot)} {shot.result}\n" for shot in shots)
    return Item(
        key=problem.family,
        prompt=shown + form.before(problem),
        answer=f" {problem.result}\n",
        variant=variant,
        transfer=form is not EQUATION,
    )


def _variant_items(sign: str, digits: int, draws: int, form: Form) -> list[Item]:
    """The items of one operation, number of digits and form."""
    pool, shown = shot_pool(sign, digits), shot_families(digits)
    asked = [problem for problem in problems(sign, digits) if problem.family not in shown]
    if digits > 1:
        asked = stable_shuffle(asked, f"sample{sign}{digits}")[:N_TWO_DIGIT]
    variant = _variant(sign, digits) + form.suffix
    items = [
        _item(problem, pool, draw, form, variant) for problem in asked for draw in range(draws)
    ]
    # Two draws can be the same; one item is enough then.
    return list({item.prompt: item for item in items}.values())


def _items() -> tuple[Item, ...]:
    """All items, mixed so that the first n are like the rest; the transfer form last."""
    usual = [
        item
        for digits, draws in ((1, N_DRAWS), (2, 1))
        for sign in "+-"
        for item in _variant_items(sign, digits, draws, EQUATION)
    ]
    transfer = [item for sign in "+-" for item in _variant_items(sign, 1, 1, QUESTION)]
    return tuple(
        item
        for group in (usual, transfer)
        for item in stable_shuffle(group, "arithmetic", lambda item: item.variant + item.prompt)
    )


def blind_share(items: Iterable[Item]) -> float:
    """The share right without calculating: the best of three habits in each variant.

    The habits are to give one and the same answer always, to repeat the first number of the
    problem, and to repeat the second.

    Args:
        items: In the form of an equation, so not those of transfer.
    """
    right: defaultdict[str, Counter[str]] = defaultdict(Counter)
    total = 0
    for item in items:
        first, _, second = item.prompt.splitlines()[-1].removesuffix("=").split()
        right[item.variant][f"always{item.answer}"] += 1
        right[item.variant]["first"] += item.answer == f" {first}\n"
        right[item.variant]["second"] += item.answer == f" {second}\n"
        total += 1
    return sum(max(habits.values()) for habits in right.values()) / total


FLOOR = 0.123
"""`blind_share` of the items outside of transfer; a test recomputes it."""

ARITHMETIC = Capability(
    name="arithmetic",
    summary="Adding and subtracting numbers of one or two digits after four worked examples.",
    kind="task",
    floor=FLOOR,
    control_limit=0.05,
    source="generated by this project",
    licence="Apache-2.0",
    make_items=_items,
    scorer=AnswerLikelihood(),
)
