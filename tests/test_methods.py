"""What each method costs, and what a budget that is too small is told."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from editor.errors import UsageError
from editor.methods import CHOICE_A_HEAD, LEAST_SEARCH, METHODS, budget_of, search_budget
from editor.recipe import Recipe

NAMES = tuple(METHODS)
LEAST = {"adaptive": 37, "published": 37, "scan": 283, "greedy": 283, "gradient": 13}
"""On 270 heads, for up to 24 heads to remove."""


def recipe(method: str, budget: int | None = None, max_heads: int = 5) -> Recipe:
    return Recipe.model_validate(
        {
            "model": "m",
            "capability": "c",
            "method": method,
            "budget": budget,
            "max_heads": max_heads,
        }
    )


def test_every_method_of_a_recipe_has_a_search() -> None:
    assert get_args(Recipe.model_fields["method"].annotation) == NAMES


@pytest.mark.parametrize(
    ("method", "n_heads", "max_heads", "budget"),
    [
        ("adaptive", 270, 5, 128),
        ("adaptive", 1024, 5, 203),
        ("adaptive", 270, 1, 76),
        ("published", 270, 5, 165),
        ("scan", 270, 5, 335),
        ("greedy", 270, 5, 1415),
        ("gradient", 270, 5, 65),
    ],
)
def test_the_default_of_each_method(method: str, n_heads: int, max_heads: int, budget: int) -> None:
    assert budget_of(recipe(method, max_heads=max_heads), n_heads) == budget


@pytest.mark.parametrize("method", NAMES)
def test_a_budget_that_is_too_small_names_the_least(method: str) -> None:
    least = LEAST[method]
    assert budget_of(recipe(method, least), 270) == least
    with pytest.raises(UsageError) as caught:
        budget_of(recipe(method, least - 1), 270)
    assert caught.value.exit_code == 2
    for part in (f"a budget of {least - 1} ", method, f"at least {least} ", "270 heads"):
        assert part in caught.value.message
    assert f"--budget {least} " in caught.value.hint


@given(st.sampled_from(NAMES), st.integers(1, 2000), st.integers(1, 64))
def test_search_and_one_choice_fit_into_every_budget_that_is_allowed(
    method: str, n_heads: int, max_heads: int
) -> None:
    default = budget_of(recipe(method, max_heads=max_heads), n_heads)
    try:
        budget_of(recipe(method, 1, max_heads), n_heads)
    except UsageError as error:
        least = int(error.hint.split("--budget ")[1].split()[0])
    else:
        pytest.fail("a budget of 1 is no budget")
    assert least <= default
    # A recipe takes no budget above a million; that is refused elsewhere.
    for budget in (least, (least + default) // 2, default, min(10 * default, 1_000_000)):
        assert budget_of(recipe(method, budget, max_heads), n_heads) == budget
        assert search_budget(method, budget, max_heads, n_heads) + CHOICE_A_HEAD <= budget


@pytest.mark.parametrize(
    ("method", "budget", "search"),
    [
        ("adaptive", 128, 63),
        ("adaptive", 37, LEAST_SEARCH),
        ("published", 165, 100),
        ("scan", 335, 270),
        ("greedy", 1415, 0),
        ("gradient", 65, 0),
    ],
)
def test_what_the_search_gets_of_it(method: str, budget: int, search: int) -> None:
    assert search_budget(method, budget, 5, 270) == search
