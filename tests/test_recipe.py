"""Recipes: what is accepted, and what exactly is said of what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from editor.errors import UsageError
from editor.recipe import Recipe, json_schema, load, override
from editor.strict_yaml import MAX_BYTES

MINIMAL = "model: gpt2\ncapability: swearing\n"


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "recipe.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def refusal(folder: Path, text: str | bytes) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(write(folder, text))
    assert caught.value.exit_code == 2
    assert "recipe.yaml" in caught.value.message
    return caught.value


def test_a_minimal_recipe_has_the_documented_defaults(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, MINIMAL))
    assert recipe.model_dump() == {
        "name": "",
        "description": "",
        "model": "gpt2",
        "capability": "swearing",
        "controls": None,
        "max_heads": 5,
        "max_control_drop": {},
        "min_target_drop": 0.5,
        "method": "adaptive",
        "budget": None,
        "confidence": 0.95,
        "score": "logprob",
        "prior": "gradient",
        "universal": "scan",
        "improve": False,
        "seed": 0,
        "search_items": 24,
        "choose_items": 40,
        "test_items": 160,
        "dtype": "auto",
        "chat": "auto",
        "output": None,
    }


def test_every_field_is_read(tmp_path: Path) -> None:
    text = (
        "\ufeff# a comment\nname: n\ndescription: |\n  two\n  lines\nmodel: org/name@v1\n"
        "capability: recall\ncontrols: [swearing, 'arithmetic']\nmax_heads: 64\n"
        "max_control_drop: {swearing: 0.1, default: 1}\nmin_target_drop: 5e-1\n"
        "method: published\nbudget: 90\nconfidence: 0.9\nscore: exact\nprior: none\n"
        "universal: suspects\nimprove: true\nseed: 3\n"
        "search_items: 4\nchoose_items: 5\ntest_items: 6\ndtype: float32\n"
        "chat: never\noutput: out/edited\n"
    )
    recipe = load(write(tmp_path, text))
    assert recipe.description == "two\nlines\n"
    assert recipe.controls == ("swearing", "arithmetic")
    assert recipe.max_control_drop == {"swearing": 0.1, "default": 1.0}
    assert recipe.min_target_drop == 0.5
    assert (recipe.seed, recipe.max_heads, recipe.output) == (3, 64, "out/edited")
    assert (recipe.method, recipe.budget, recipe.confidence) == ("published", 90, 0.9)
    assert (recipe.score, recipe.prior, recipe.universal) == ("exact", "none", "suspects")
    assert recipe.improve is True
    given = set(Recipe.model_fields) - {field for field in Recipe.model_fields if field in text}
    assert not given, "a field of which this test knows nothing"
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


def test_a_recipe_is_frozen(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, MINIMAL))
    with pytest.raises(ValidationError):
        recipe.seed = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_heads: 0", "recipe.yaml:3: max_heads: expected greater than or equal to 1, found 0"),
        ("max_heads: 65", ":3: max_heads: expected less than or equal to 64, found 65"),
        ("max_heads: true", ":3: max_heads: expected a valid integer, found True"),
        ("max_heads: '5'", ":3: max_heads: expected a valid integer, found '5'"),
        ("max_heads: 2.5", ":3: max_heads: expected a valid integer, found 2.5"),
        ("min_target_drop: 1.1", ":3: min_target_drop: expected less than or equal to 1"),
        ("min_target_drop: .nan", ":3: min_target_drop: expected"),
        ("min_target_drop: true", ":3: min_target_drop: expected a valid number, found True"),
        ("test_items: 0", ":3: test_items: expected greater than or equal to 4"),
        (
            "method: guess",
            ":3: method: expected 'adaptive', 'published', 'scan', 'greedy' or 'gradient', "
            "found 'guess'",
        ),
        ("budget: 0", ":3: budget: expected greater than or equal to 1, found 0"),
        ("budget: 9.5", ":3: budget: expected a valid integer, found 9.5"),
        ("confidence: 0.4", ":3: confidence: expected greater than or equal to 0.5, found 0.4"),
        ("confidence: 1", ":3: confidence: expected less than 1, found 1"),
        ("confidence: .nan", ":3: confidence: expected"),
        ("score: nats", ":3: score: expected 'logprob' or 'exact', found 'nats'"),
        ("prior: flat", ":3: prior: expected 'gradient' or 'none', found 'flat'"),
        ("universal: no", ":3: universal: expected 'scan' or 'suspects', found False"),
        ("improve: 1", ":3: improve: expected a valid boolean, found 1"),
        ("chat: yes", ":3: chat: expected 'auto', 'never' or 'always', found True"),
        ("dtype: int8", ":3: dtype: expected 'auto', 'bfloat16'"),
        ("output: no", ":3: output: expected a valid string, found False"),
        ("controls: recall", ":3: controls: expected a valid tuple, found 'recall'"),
        ("controls:\n- a\n- 7", ":5: controls.1: expected a valid string, found 7"),
        ("controls: [a, b, a]", "controls names one twice"),
        ("controls: []", "controls is empty"),
        ("controls: [swearing]", "controls names swearing, which is to be removed"),
        ("max_control_drop:\n  a: x", ":4: max_control_drop.a: expected a valid number"),
        ("max_control_drop:\n  a: -1", ":4: max_control_drop.a: expected greater than or equal"),
        ("max_control_drop: {a: .inf}", ":3: max_control_drop.a: expected a finite number"),
        ("controls: [recall]\nmax_control_drop: {recal: 1}", "did you mean recall"),
        ("seed: 1\nseed: 2", ":4: seed is given twice"),
        ("max_control_drop:\n  a: 1\n  a: 2", ":5: a is given twice"),
        ("seed: &s 1\nmax_heads: *s", ":4: YAML aliases are not read"),
        ("seed: !!python/object:os.system 1", ":3: could not determine a constructor"),
        ("name: [1", ": "),
        ("name: \x07", "recipe.yaml"),
        ("name: 2024-13-45", "recipe.yaml: month must be in 1..12"),
        ("? [a]\n: 1", "recipe.yaml"),
        ("7: 1", "recipe.yaml"),
        ("--- \nmodel: gpt2", "recipe.yaml:"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, MINIMAL + text + "\n").message


def test_an_unknown_field_names_the_nearest(tmp_path: Path) -> None:
    error = refusal(tmp_path, MINIMAL + "\nmax_head: 3\n")
    assert "recipe.yaml:4: max_head: no field of a recipe" in error.message
    assert "max_heads" in error.hint


def test_all_faults_are_listed(tmp_path: Path) -> None:
    lines = refusal(tmp_path, "seed: x\nmax_heads: 0\n").message.splitlines()
    assert len(lines) == 4
    assert any("model: must be given" in line for line in lines)
    assert any("capability: must be given" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found nothing"),
        ("# only a comment", "found nothing"),
        ("- model", "found ['model']"),
        ("gpt2", "found 'gpt2'"),
        (b"model: \xff\n", "expected UTF-8"),
        ("x: " + "[" * 100_000, "nested too deeply"),
        ("#" * (MAX_BYTES + 1), "at most 1,000,000 bytes"),
        ("model: " + "x" * 5000 + "\ncapability: [" + "y," * 5000 + "]", "capability: expected"),
    ],
)
def test_what_is_no_recipe_at_all(tmp_path: Path, text: str | bytes, said: str) -> None:
    error = refusal(tmp_path, text)
    assert said in error.message
    assert len(error.message) < 1000


def test_a_missing_file_names_a_near_one(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL)
    with pytest.raises(UsageError, match="recipes.yaml") as caught:
        load(tmp_path / "recipes.yaml")
    assert "did you mean recipe.yaml?" in caught.value.hint
    for other in (tmp_path, tmp_path / "no" / "such.yaml"):
        with pytest.raises(UsageError):
            load(other)


def test_overrides_are_checked_like_a_file(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, MINIMAL + "controls: [recall]\nseed: 7\n"))
    changed = override(recipe, max_heads=3, controls=("arithmetic",), seed=None)
    assert (changed.max_heads, changed.controls, changed.seed) == (3, ("arithmetic",), 7)
    assert override(recipe) == recipe
    assert override(recipe).digest() == recipe.digest() != changed.digest()
    with pytest.raises(UsageError, match="option: max_heads: expected") as caught:
        override(recipe, max_heads=0)
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match="maxheads: no field"):
        override(recipe, maxheads=1)
    assert override(recipe, capability="recall").controls is None
    with pytest.raises(UsageError, match="seed: expected"):
        override(recipe, seed=-1)


def test_given_limits_and_controls_win_over_those_of_the_recipe(tmp_path: Path) -> None:
    text = MINIMAL + "controls: [recall, english]\nmax_control_drop: {recall: 0.1, english: 0.2}\n"
    recipe = load(write(tmp_path, text))
    assert override(recipe, max_control_drop={"default": 0.01}).max_control_drop == {
        "default": 0.01
    }
    assert override(recipe, max_control_drop={"english": 0.3}).max_control_drop == {
        "recall": 0.1,
        "english": 0.3,
    }
    only = override(recipe, controls=("english",))
    assert (only.controls, only.max_control_drop) == (("english",), {"english": 0.2})
    other = override(recipe, capability="recall")
    assert (other.controls, other.max_control_drop) == (("english",), {"english": 0.2})


def test_the_schema_describes_every_field() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert set(schema["properties"]) == set(Recipe.model_fields)
    assert schema["required"] == ["model", "capability"]
    assert schema["additionalProperties"] is False
    assert all(field.get("description") for field in schema["properties"].values())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(sorted(Recipe.model_fields)) | st.text(max_size=9), VALUES),
)
def test_any_json_is_a_recipe_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(json.dumps(data))
    try:
        recipe = load(file)
    except UsageError as error:
        assert "any.yaml" in error.message
    else:
        assert recipe.model == data["model"]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_recipe_or_a_usage_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(raw)
    with pytest.raises(UsageError, match="any.yaml"):
        load(file)
