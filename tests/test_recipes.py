"""Every recipe that ships can be run: it loads, its names exist, its header says what it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from editor import capabilities
from editor.recipe import load
from editor.recipe_check import check
from editor.tasks import scope

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "recipes").rglob("*.y*ml"))


def test_finds_the_recipes() -> None:
    own = [capabilities.get(name) for name in capabilities.names()]
    tasks = [one.name for one in own if one.kind == "task" and not one.data]
    assert {f"{name}-smollm2-135m.yaml" for name in tasks} <= {path.name for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
class TestEach:
    def test_loads_and_its_names_exist(self, path: Path) -> None:
        recipe = load(path)
        what = scope(recipe)
        assert recipe.name
        assert recipe.description
        assert recipe.output
        assert set(recipe.max_control_drop) <= {control.name for control in what.controls}
        full = check(path)
        assert full.max_control_drop == what.limits
        assert path.name.startswith(recipe.capability)

    def test_the_header_says_what_a_reader_needs(self, path: Path) -> None:
        header = path.read_text("utf-8").partition("\n\n")[0]
        assert all(line.startswith("#") for line in header.splitlines())
        for part in ("Command:", "Hardware:", "Expected:", "Does not show:"):
            assert part in header
        assert "Minutes:" in header or ("Hours:" in header and "Published:" in header)
        assert f"editor run {path.relative_to(ROOT).as_posix()}" in header


@pytest.mark.parametrize(
    ("name", "drop", "limits"),
    [
        ("recall", 0.9, {"english": 0.05, "python": 0.1, "copying": 0.05, "arithmetic": 0.05}),
        ("copying", 0.85, {"english": 0.05}),
        ("arithmetic", 0.75, {"english": 0.1}),
        ("inflection", 0.5, {"english": 0.05}),
        ("coreference", 0.5, {"english": 0.05}),
        ("swearing", 0.5, {"english": 0.05}),
        ("swearing-completions", 0.5, {"copying": 0.1, "english": 0.1}),
    ],
)
def test_the_limits_are_the_promised_ones(name: str, drop: float, limits: dict[str, float]) -> None:
    recipe = load(ROOT / "recipes" / f"{name}-smollm2-135m.yaml")
    assert recipe.min_target_drop == drop
    assert recipe.max_control_drop == limits
    assert recipe.max_heads == 5
