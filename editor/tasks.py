"""Which items of which capabilities each stage asks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from editor import capabilities
from editor.capabilities import Capability, Library, Outside, code
from editor.choose import Control
from editor.errors import UsageError, nearest
from editor.measure import Bench, Task
from editor.recipe import Recipe
from editor.records import Item, Settings, Split
from editor.validation import Judged

SCAN_PASSAGES = 3
"""Passages of each text on which every head is tried alone."""
CONTROL_FACTOR = 1.5
"""A control of right answers gets more items than the target: small losses must show in it."""
TEXT_FACTOR = 2
"""So does a text: with few passages the error of its cost would hide what it really costs."""
ITEMS_PER_PASSAGE = 4
"""A passage holds tens of scored tokens, so texts need fewer items than tasks by this factor."""
FEWEST_PASSAGES = 4
"""With fewer it would not be known how much passages differ."""
OTHER_FORM_ITEMS = 400
"""Of the transfer form, where the model must have that too: asked once."""
CANDIDATES_PER_ITEM = 8
"""How many items are looked through for one that the base model answers."""


@dataclass(frozen=True)
class Scope:
    """The capabilities of a run, checked against the recipe."""

    target: Capability
    controls: tuple[Capability, ...]
    limits: dict[str, float]
    """The most that each control's metric may worsen."""
    also: tuple[Capability, ...] = ()
    """Further targets of the same edit."""

    @property
    def targets(self) -> tuple[Capability, ...]:
        """All capabilities to remove, in the order in which heads are chosen for them."""
        return (self.target, *self.also)


def scope(recipe: Recipe, library: Library | None = None, outside: Outside | None = None) -> Scope:
    """Look the recipe's capabilities up.

    Args:
        library: where data sets are, for capabilities whose items come from one.
        outside: what tasks of lm-eval may be made of, and whether model-written programs may run;
            not given where nothing is going to be measured.

    Raises:
        UsageError: one is unknown or runs programs without leave, a target is a text, or a limit
            names no control.
    """
    target, *also = (_removable(_get(name, library, outside)) for name in recipe.targets)
    targets = [target.name, *(one.name for one in also)]
    names = recipe.controls
    if names is None:
        names = tuple(name for name in capabilities.default_controls() if name not in targets)
    controls = tuple(_get(name, library, outside) for name in names)
    kept = [control.name for control in controls]
    if len({*targets, *kept}) < len(targets) + len(kept):
        given = ", ".join(targets)
        raise UsageError(f"one of {given} and its controls stands twice: {', '.join(kept)}")
    for name in recipe.max_control_drop:
        if name != "default" and name not in kept:
            raise UsageError(f"a limit names {name}, which is no control", nearest(name, kept))
    default = recipe.max_control_drop.get("default")
    limits = {
        control.name: recipe.max_control_drop.get(
            control.name, control.control_limit if default is None else default
        )
        for control in controls
    }
    return Scope(target, controls, limits, tuple(also))


def _removable(found: Capability) -> Capability:
    if found.kind == "text":
        tasks = [one for one in capabilities.names() if capabilities.get(one).kind == "task"]
        raise UsageError(
            f"{found.name} is a control, not a capability that can be removed",
            f"removable: {', '.join(tasks)}",
        )
    return found


def _get(name: str, library: Library | None, outside: Outside | None) -> Capability:
    found = capabilities.get(name, library, outside)
    # Who only looks a name up runs nothing; without leave the judge refuses all the same.
    return found if outside is None else code.allow(found, allowed=outside.allow_code_execution)


def data_of(what: Scope) -> dict[str, str]:
    """By name the sha256 of each data set that items come from; all items are made.

    Raises:
        UsageError: a data set is not there, or its rows are no items.
    """
    found: dict[str, str] = {}
    for one in (*what.targets, *what.controls):
        if one.data:
            found |= one.data_digests
            _ = one.all_items
    return found


def scans(asked: Recipe | Settings) -> bool:
    """Whether every head is tried alone on texts; the published search knows no universal heads."""
    return asked.universal == "scan" and asked.method != "published"


def scan_texts() -> list[Task]:
    """The texts on which universal heads are found."""
    return [
        Task(capability, capability.items("search")[:SCAN_PASSAGES])
        for capability in map(capabilities.get, capabilities.names())
        if capability.kind == "text"
    ]


@dataclass(frozen=True)
class Known:
    """Items that the base model answers: the others have nothing to lose."""

    searching: Task
    choosing: Task
    base_exact: tuple[float, ...]
    """`exact` of everything that was looked through, answered or not."""


def known(
    bench: Bench,
    capability: Capability,
    n_search: int,
    n_choose: int,
    *,
    selected: bool = True,
    dense: bool = False,
) -> Known:
    """Of the search and the choose split, the first items that the base model answers.

    Where too few are answered, those that it comes closest to fill up.  Where what is looked for
    may win answers (`selected` is False), the first items, answered or not.

    Args:
        dense: search and choice ask by the capability's dense scorer.  The answer of an item that
            comes without one is what the base model writes.
    """
    tasks: list[Task] = []
    seen: list[float] = []
    counts: dict[Split, int] = {"search": n_search, "choose": n_choose}
    for split, count in counts.items():
        pool = Task(capability, capability.items(split)[: CANDIDATES_PER_ITEM * count])
        (base,) = bench.scores(pool, [()])
        order = list(range(len(pool.items)))
        if selected:
            order.sort(key=lambda i: (-base.exact[i], i if base.exact[i] else -base.logprob[i]))
        items = tuple(pool.items[i] for i in sorted(order[:count]))
        if dense and capability.dense is not None:
            items = _with_answers(bench, Task(capability, items))
        tasks.append(Task(capability, items, dense=dense))
        seen += base.exact
    searching, choosing = tasks
    return Known(searching, choosing, tuple(seen))


def _with_answers(bench: Bench, task: Task) -> tuple[Item, ...]:
    """The items, those without an answer with what the model writes; none that it leaves empty."""
    lacking = replace(task, items=tuple(item for item in task.items if not item.answer))
    if not lacking.items:
        return task.items
    wrote = dict(zip(lacking.items, bench.written(lacking), strict=True))
    filled = (item.model_copy(update={"answer": item.answer or wrote[item]}) for item in task.items)
    return tuple(item for item in filled if item.answer)


def choose_controls(what: Scope, count: int) -> list[Control]:
    """The controls on the choose split."""
    factor = {"task": CONTROL_FACTOR, "text": TEXT_FACTOR}
    return [
        Control(
            Task(one, _take(one, "choose", int(count * factor[one.kind]))), what.limits[one.name]
        )
        for one in what.controls
    ]


def other_form(target: Capability) -> Task:
    """The transfer form, of items that are not for the test."""
    items = (*target.items("search", transfer=True), *target.items("choose", transfer=True))
    return Task(target, items[:OTHER_FORM_ITEMS], f"{target.name}-transfer")


def judged(what: Scope, count: int, min_drop: float, *, improve: bool = False) -> list[Judged]:
    """What validation asks of the test split: targets, each with its transfer form, and controls.

    Args:
        improve: the targets must get better; `min_drop` does not count.
    """
    rows: list[Judged] = []
    for target in what.targets:
        asked = Task(target, _take(target, "test", count))
        rows.append(Judged(asked, "target", None, None if improve else min_drop, rise=improve))
        transfer = target.items("test", transfer=True)[:count]
        if transfer:
            other, both = Task(target, transfer, f"{target.name}-transfer"), bool(target.both_forms)
            drop = min_drop if both and not improve else None
            rows.append(Judged(other, "target", None, drop, transfer=True))
    for one in what.controls:
        rows.append(Judged(Task(one, _take(one, "test", count)), "control", what.limits[one.name]))
    return rows


def _take(capability: Capability, split: Split, count: int) -> tuple[Item, ...]:
    if capability.kind == "text":
        count = max(FEWEST_PASSAGES, count // ITEMS_PER_PASSAGE)
    return capability.items(split)[:count]
