"""The search methods by name, and what each of them costs."""

from __future__ import annotations

from collections.abc import Callable

from editor.adaptive import AdaptiveSearch, first_round
from editor.errors import UsageError
from editor.measure import GRADIENT_COST, N_TRIES
from editor.recipe import Recipe
from editor.records import Mask
from editor.search import (
    GradientSearch,
    GreedySearch,
    Job,
    PublishedSearch,
    ScanSearch,
    Search,
    published_design,
)

METHODS: dict[str, Callable[[Job], Search]] = {
    "adaptive": AdaptiveSearch,
    "published": PublishedSearch,
    "scan": ScanSearch,
    "greedy": GreedySearch,
    "gradient": GradientSearch,
}


def first_masks(method: str, job: Job) -> list[Mask]:
    """The masks with which a search begins whatever they will say; none of greedy and gradient.

    Raises:
        CapabilityAbsent: no head may be removed.
    """
    if method == "adaptive":
        return [job.mask(row) for row in first_round(job).rows]
    if method == "published":
        return [job.mask(row) for row in published_design(job).rows]
    return [job.mask([unit]) for unit in job.units] if method == "scan" else []


CHOICE_A_HEAD = N_TRIES + GRADIENT_COST
"""Evaluations of the target that the choice takes for each head, when the first tries do."""
LEAST_SEARCH = 24
"""Masks below which pools say nothing."""
PUBLISHED_MASKS = 100
_POOLS = 36
_HEADS_A_POOL = 10
"""An adaptive search gets a fixed number of masks and one more for so many heads."""


def budget_of(recipe: Recipe, n_heads: int) -> int:
    """Evaluations of the target that search and choice may take together.

    Raises:
        UsageError: the budget that is asked for is below what the method can use.
    """
    choice = CHOICE_A_HEAD * recipe.max_heads
    if recipe.budget is None:
        return (
            choice
            + {
                "adaptive": _POOLS + n_heads // _HEADS_A_POOL,
                "published": PUBLISHED_MASKS,
                "scan": n_heads,
                "greedy": n_heads * recipe.max_heads,
                "gradient": 0,
            }[recipe.method]
        )
    least = (
        CHOICE_A_HEAD
        + {
            "adaptive": max(LEAST_SEARCH, recipe.max_heads),
            "published": max(LEAST_SEARCH, recipe.max_heads),
            "scan": n_heads,
            "greedy": n_heads,
            "gradient": 0,
        }[recipe.method]
    )
    if recipe.budget < least:
        raise UsageError(
            f"a budget of {recipe.budget} evaluations is too small: {recipe.method} needs at least "
            f"{least} on a model of {n_heads} heads, {CHOICE_A_HEAD} of them to choose one head",
            f"give --budget {least} or more, or leave it out",
        )
    return recipe.budget


def search_budget(method: str, budget: int, max_heads: int, n_heads: int) -> int:
    """What of the budget the search may take; the rest is the choice's."""
    if method == "scan":
        return n_heads
    if method in ("greedy", "gradient"):
        return 0
    return max(LEAST_SEARCH, max_heads, budget - CHOICE_A_HEAD * max_heads)
