"""Checks of a recipe beyond its form: are there such capabilities, could there be such a model?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import yaml

from editor import tasks
from editor.errors import UsageError
from editor.preview import check_model_name
from editor.recipe import Recipe, load


def check(file: Path) -> Recipe:
    """Read a recipe, check its names, and fill in what depends on them.

    Returns:
        The recipe with controls and limits as a run would have them.

    Raises:
        UsageError: something is wrong; the message names file and line.
    """
    recipe = load(file)
    unlimited = recipe.model_copy(update={"max_control_drop": dict[str, float]()})
    alone = unlimited.model_copy(update={"controls": ()})
    # One field more each time, so that a fault is known to be the last field's.
    for field, step in (
        ("model", lambda: check_model_name(recipe.model)),
        ("capability", lambda: tasks.scope(alone)),
        ("controls", lambda: tasks.scope(unlimited)),
        ("max_control_drop", lambda: tasks.scope(recipe)),
    ):
        _at(file, field, step)
    what = tasks.scope(recipe)
    return recipe.model_copy(
        update={
            "controls": tuple(control.name for control in what.controls),
            "max_control_drop": what.limits,
        }
    )


def as_yaml(recipe: Recipe) -> str:
    """The recipe as a file that `load` reads."""
    fields = recipe.model_dump(mode="json", exclude_none=True)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100).rstrip()


def _at(file: Path, field: str, step: Callable[[], object]) -> None:
    """Run a step; its error gets the place of the field."""
    try:
        step()
    except UsageError as error:
        place = f"{file}:{_line(file, field)}"
        raise UsageError(f"{place}: {field}: {error.message}", error.hint) from error


def _line(file: Path, field: str) -> int:
    """Line of a field of the recipe, or 1."""
    text = file.read_text(encoding="utf-8-sig")
    node = cast("yaml.MappingNode", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    for key, _ in node.value:
        if key.value == field and key.start_mark:
            return key.start_mark.line + 1
    return 1
