"""From Python: the same names, defaults and records as on the command line."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import editor
from editor import pipeline
from editor.api import read_heads
from editor.cli import main
from editor.errors import CheckFailed, ModelError, UsageError
from editor.progress import Silent
from editor.recipe import Recipe
from editor.records import Difference, Head, Manifest, Undone, Verified
from editor.session import Options
from fixtures import make_validation
from small import files_of, flip, make_base
from test_cli import make_model, removal_of

ROOT = Path(__file__).resolve().parent.parent
VERBS = ("remove", "localize", "bake", "validate", "verify", "undo", "diff", "compare")


def defaults_of(name: str) -> dict[str, Any]:
    found = inspect.signature(getattr(editor, name)).parameters
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in found.values())
    return {key: one.default for key, one in found.items()}


def test_importing_is_cheap() -> None:
    program = (
        "import sys; before = set(sys.modules); import editor; new = set(sys.modules) - before\n"
        "assert not new & {'pydantic', 'numpy', 'click', 'torch', 'editor.api'}, new"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=60)


def test_no_module_hides_a_function_of_its_name() -> None:
    modules = {path.stem for path in (ROOT / "editor").glob("*.py")}
    assert modules.isdisjoint(VERBS)


def test_names_are_listed_and_others_refused() -> None:
    assert {*VERBS, "__version__"} <= set(dir(editor))
    with pytest.raises(AttributeError, match="nonsense"):
        editor.nonsense  # noqa: B018


@pytest.mark.parametrize("name", VERBS)
def test_the_arguments_are_the_flags(name: str) -> None:
    here = set(defaults_of(name)) - {"progress"}
    if name == "verify":  # one verb, two functions
        here |= set(defaults_of("verify_derivative")) - {"progress", "derived"}
    # On the command line validate's folder is no flag, and every flag that only speaks is apart.
    flags = {param.name for param in main.commands[name].params if param.expose_value}
    if name != "undo":
        flags = {"output" if flag == "edited" else flag for flag in flags}
    # A domain is part of a capability's name.
    flags -= {"dry_run", "derivative", "domain"}
    # A file's heads are a record's `heads` in Python.
    assert here == flags - {"plan"}


@pytest.mark.parametrize("name", ["remove", "localize", "bake"])
def test_the_defaults_are_those_of_recipe_and_options(name: str) -> None:
    recipe, options = Recipe(model="m", capability="c"), Options()
    for key, default in defaults_of(name).items():
        if default is inspect.Parameter.empty or key in ("progress", "max_control_drop", "form"):
            continue
        assert default == getattr(recipe if key in Recipe.model_fields else options, key), key


class TestRemove:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def fake(recipe: Recipe, output: Path, options: Options, progress: object) -> object:
            asked.update(recipe=recipe, output=output, options=options, progress=progress)
            return removal_of(output, accepted=True)

        monkeypatch.setattr(pipeline, "remove", fake)
        return asked

    def test_passes_on_what_is_given(self, asked: dict[str, Any], tmp_path: Path) -> None:
        out = tmp_path / "out"
        found = editor.remove(model="gpt2", capability="recall", output=str(out), device="cuda")
        assert found.accepted
        assert asked["recipe"] == Recipe(model="gpt2", capability="recall")
        assert (asked["output"], asked["options"]) == (out, Options(device="cuda"))
        assert isinstance(asked["progress"], Silent)

    def test_passes_on_how_to_search(self, asked: dict[str, Any], tmp_path: Path) -> None:
        how: dict[str, Any] = {
            "method": "scan",
            "budget": 400,
            "confidence": 0.9,
            "score": "exact",
            "prior": "none",
            "universal": "suspects",
            "improve": True,
            "seed": 3,
            "chat": "never",
        }
        out = tmp_path / "out"
        editor.remove(model="gpt2", capability="recall", output=out, max_hours=2, **how)
        assert asked["recipe"] == Recipe(model="gpt2", capability="recall", **how)
        assert asked["options"] == Options(max_hours=2)

    @pytest.mark.parametrize(
        ("limits", "expected"),
        [
            (None, {}),
            (0.1, {"default": 0.1}),
            (1, {"default": 1.0}),
            ({"english": 0}, {"english": 0.0}),
        ],
    )
    def test_limits_are_one_or_by_name(
        self, asked: dict[str, Any], tmp_path: Path, limits: Any, expected: dict[str, float]
    ) -> None:
        editor.remove(
            model=tmp_path,
            capability="recall",
            output=tmp_path / "out",
            controls="english",
            max_control_drop=limits,
            min_target_drop=1,
        )
        assert asked["recipe"].max_control_drop == expected
        assert asked["recipe"].controls == ("english",)
        assert asked["recipe"].model == str(tmp_path)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"max_heads": 0},
            {"max_heads": True},
            {"seed": "1"},
            {"method": "best"},
            {"budget": 0},
            {"confidence": 1},
            {"score": "nats"},
            {"prior": None},
            {"universal": "none"},
            {"improve": 1},
            {"max_hours": 0},
            {"max_hours": float("nan")},
            {"max_hours": float("inf")},
            {"budget": 1_000_001},
            {"max_hours": True},
            {"workers": 0},
            {"workers": True},
            {"workers": 2.0},
            {"max_control_drop": float("nan")},
            {"max_control_drop": "0.1"},
            {"min_target_drop": True},
        ],
    )
    def test_wrong_values_are_refused(self, tmp_path: Path, wrong: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            editor.remove(model="m", capability="recall", output=tmp_path / "out", **wrong)


def test_validate_takes_what_is_recorded_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}

    def fake(edited: Path, base: str | None, options: Options, *_: object, **changes: Any) -> Any:
        asked.update(changes, edited=edited, base=base, options=options)
        return make_validation()

    monkeypatch.setattr(pipeline, "validate", fake)
    assert editor.validate(output="out", test_items=9, max_control_drop=0.1).accepted
    assert (asked["edited"], asked["base"], asked["options"]) == (Path("out"), None, Options())
    assert (asked["test_items"], asked["max_control_drop"]) == (9, {"default": 0.1})
    assert asked["capability"] is asked["seed"] is asked["controls"] is None


def test_bake_from_files_to_files(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    found = editor.bake(model=model, heads=["L0H1", Head(1, 2)], output=tmp_path / "out")
    assert isinstance(found, Manifest)
    assert found.heads == (Head(0, 1), Head(1, 2))
    assert (tmp_path / "out" / "editor.json").exists()
    with pytest.raises(ModelError, match="L7H0"):
        editor.bake(model=model, heads="L7H0", output=tmp_path / "other")
    with pytest.raises(UsageError, match="exists"):
        editor.bake(model=model, heads="L0H0", output=tmp_path / "out")


class TestProof:
    @pytest.fixture(autouse=True)
    def edited(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        editor.bake(model=make_base(Path("base")), heads="L0H1,L1H2", output="out")

    def test_verify(self) -> None:
        found = editor.verify(output="out", base=Path("base"))
        assert isinstance(found, Verified)
        assert found.heads == (Head(0, 1), Head(1, 2))
        assert editor.verify(output=Path("out")).base is None
        flip(Path("out/config.json"))
        with pytest.raises(CheckFailed, match=r"config\.json") as caught:
            editor.verify(output="out")
        assert caught.value.exit_code == 4

    def test_verify_derivative(self) -> None:
        every = editor.verify_derivative(derived="out")
        assert every.heads == (Head(0, 1), Head(1, 2))
        one = editor.verify_derivative(derived=Path("out"), heads=["L1H2"])
        assert one.heads == (Head(1, 2),)
        with pytest.raises(CheckFailed, match=r"layers\.0.*not as in the base"):
            editor.verify_derivative(derived="out", heads=["L1H2"], base="base")
        named = editor.verify_derivative(derived="out", manifest="out/editor.json")
        assert named.heads == every.heads
        with pytest.raises(UsageError, match=r"editor\.json"):
            editor.verify_derivative(derived="base")
        with pytest.raises(CheckFailed, match="should be zero"):
            editor.verify_derivative(derived="base", heads="L0H1")

    def test_undo(self) -> None:
        found = editor.undo(edited="out", output=Path("restored"))
        assert isinstance(found, Undone)
        assert files_of(Path("restored")) == files_of(Path("base"))
        with pytest.raises(UsageError, match="exists"):
            editor.undo(edited="out", output="restored")
        patch = Path("out.restore.zip").rename("p.zip")
        assert editor.undo(edited="out", output="again", restore=patch).files == found.files

    def test_diff(self) -> None:
        found = editor.diff(a="base", b=Path("out"))
        assert isinstance(found, Difference)
        assert [at.zeroed for at in found.tensors] == [(Head(0, 1),), (Head(1, 2),)]
        assert editor.diff(a="base", b="base").same


def test_heads_in_every_form() -> None:
    expected = (Head(16, 21), Head(1, 2))
    assert read_heads("L16H21, L1H2,") == expected
    assert read_heads(["L16H21", (1, 2)]) == expected  # type: ignore[list-item]
    for wrong in ("L1", "L1H2;L1H3", "l1h2", "L-1H0"):
        with pytest.raises(UsageError, match="L16H21"):
            read_heads(wrong)
    with pytest.raises(UsageError):
        read_heads([3])  # type: ignore[list-item]
