"""From a checkpoint on disk to an edited, measured one: no stage is faked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from editor import baking, capabilities, display, formats, pipeline, several
from editor.baking import read_manifest
from editor.errors import CapabilityAbsent, CheckFailed, EditorError, ModelError, TimeUp, UsageError
from editor.methods import METHODS
from editor.model import MaskableModel
from editor.pipeline import localize, remove, validate
from editor.progress import Silent
from editor.recipe import Recipe
from editor.records import Head, Manifest
from editor.session import Options
from tiny import Wired, open_tiny, spec_of

HEADS = (Head(1, 1), Head(0, 3), Head(3, 2))
QUIET = Silent()


class Lines(Silent):
    """Keeps what it is told, the masks by stage."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stages: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)

    def stage(self, title: str, total: int) -> None:
        self.stages.append(title)


def bake(*given: Any, **flags: Any) -> Manifest:
    return baking.bake(*given, **flags).manifest


def options(tmp_path: Path, **changes: Any) -> Options:
    return Options(runs=tmp_path / "runs", cache=tmp_path / "cache", offline=True, **changes)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same_but_for_times(one: Manifest, other: Manifest) -> bool:
    return one.model_copy(update={"times": {}}) == other.model_copy(update={"times": {}})


class TestBake:
    def test_writes_the_base_with_slices_zero_and_says_what_it_did(
        self, tiny_checkpoint: Path, tmp_path: Path
    ) -> None:
        before = files_of(tiny_checkpoint)
        out = tmp_path / "out"
        manifest = bake(str(tiny_checkpoint), HEADS, out, options(tmp_path), QUIET)
        written = files_of(out)
        assert files_of(tiny_checkpoint) == before
        assert set(written) == set(before) | {"editor.json", "README.md"}
        other = set(before) - {"model.safetensors"}
        assert all(written[name] == before[name] for name in other)
        pairs = zip(written["model.safetensors"], before["model.safetensors"], strict=True)
        changed = [now for now, old in pairs if now != old]
        assert changed and not any(changed)
        assert len(changed) == manifest.bytes_changed
        assert manifest.heads == tuple(sorted(HEADS))
        assert manifest.validation is manifest.plan is manifest.settings is None
        assert read_manifest(out) == manifest
        assert all(str(head) in written["README.md"].decode() for head in HEADS)
        assert not (tmp_path / "runs").exists()
        assert str(tmp_path) not in written["editor.json"].decode() + written["README.md"].decode()

    def test_is_what_masking_computes(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        bake(str(tiny_checkpoint), HEADS, tmp_path / "out", options(tmp_path), QUIET)
        base, baked = open_tiny(tiny_checkpoint), open_tiny(tmp_path / "out")
        prompts = ["one two", "The capital"]
        assert base.generate(prompts, [HEADS], max_new_tokens=6) == baked.generate(
            prompts, [()], max_new_tokens=6
        )

    def test_two_bakes_differ_only_in_their_times(
        self, tiny_checkpoint: Path, tmp_path: Path
    ) -> None:
        model = str(tiny_checkpoint)
        one = bake(model, HEADS, tmp_path / "a", options(tmp_path), QUIET)
        two = bake(model, [*HEADS[::-1], HEADS[0]], tmp_path / "b", options(tmp_path), QUIET)
        assert same_but_for_times(one, two)
        here, there = files_of(tmp_path / "a"), files_of(tmp_path / "b")
        assert {name for name in here if here[name] != there[name]} <= {"editor.json"}

    def test_replaces_only_its_own_folder_and_only_by_force(
        self, tiny_checkpoint: Path, tmp_path: Path
    ) -> None:
        out, model = tmp_path / "out", str(tiny_checkpoint)
        bake(model, HEADS, out, options(tmp_path), QUIET)
        first = files_of(out)
        with pytest.raises(UsageError, match="exists"):
            bake(model, HEADS[:1], out, options(tmp_path), QUIET)
        assert files_of(out) == first
        bake(model, HEADS[:1], out, options(tmp_path, force=True), QUIET)
        assert read_manifest(out).heads == HEADS[:1]
        (out / "editor.json").unlink()
        with pytest.raises(UsageError, match="not written by the editor"):
            bake(model, HEADS, out, options(tmp_path, force=True), QUIET)

    def test_refuses_before_it_writes(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        out, model = tmp_path / "out", str(tiny_checkpoint)
        with pytest.raises(UsageError, match="no heads"):
            bake(model, [], out, options(tmp_path), QUIET)
        with pytest.raises(ModelError, match="L9H0"):
            bake(model, [Head(9, 0)], out, options(tmp_path), QUIET)
        with pytest.raises(UsageError, match="inside one another"):
            bake(model, HEADS, tiny_checkpoint / "out", options(tmp_path), QUIET)
        assert list(tmp_path.iterdir()) == []


def test_a_random_model_has_no_capability_to_remove(tiny_checkpoint: Path, tmp_path: Path) -> None:
    recipe = Recipe(model=str(tiny_checkpoint), capability="recall", search_items=4, choose_items=4)
    with pytest.raises(CapabilityAbsent) as caught:
        remove(recipe, tmp_path / "out", options(tmp_path), QUIET)
    assert caught.value.exit_code == 5
    assert tiny_checkpoint.name in caught.value.message and "recall" in caught.value.message
    assert not list(tmp_path.glob("out*"))


@pytest.fixture
def known(wired: Wired, monkeypatch: pytest.MonkeyPatch) -> Wired:
    """The wired model, with its capabilities instead of the built-in ones."""
    monkeypatch.setattr(capabilities, "get", wired.get)
    monkeypatch.setattr(capabilities, "names", lambda: tuple(wired.capabilities))
    return wired


def recipe_of(wired: Wired, **changes: Any) -> Recipe:
    fields = {"search_items": 16, "choose_items": 20, "test_items": 90, **changes}
    return Recipe(model=str(wired.folder), capability="naming", **fields)


class TestRemove:
    def test_finds_the_wired_heads_and_proves_that_they_are_gone(
        self, known: Wired, tmp_path: Path
    ) -> None:
        out, lines = tmp_path / "out", Lines()
        found = remove(recipe_of(known), out, options(tmp_path), lines)
        assert set(found.heads) == known.target_heads
        assert found.accepted, found.reasons
        rows = {(row.task, row.metric): row for row in found.results}
        assert rows["naming", "exact"].base > 0.9 and rows["naming", "exact"].edited < 0.1
        assert rows["naming", "exact"].gate == rows["pairing", "exact"].gate == "pass"
        assert rows["pairing", "exact"].change == 0
        assert rows["reading", "nats_per_token"].gate == "pass"
        assert found.evaluations <= 160
        assert found.scan_evaluations == 16
        manifest = read_manifest(out)
        check = manifest.format_check
        assert check is not None and check.heads == found.heads
        assert check.whole.kind == "capability"
        assert check.sentence in lines.said
        assert manifest.universal == (known.universal_head,)
        assert manifest.heads == found.heads and manifest.evaluations == found.evaluations
        assert manifest.validation is not None and manifest.validation.masked_vs_baked < 1e-4
        assert {"editor.json", "README.md", "report.html", "config.json"} <= set(files_of(out))
        assert (Path(found.run) / "report.html").read_text() == (out / "report.html").read_text()
        for line in ("->", "run folder", "universal heads", "chosen"):
            assert any(line in said for said in lines.said)
        checks = manifest.confirmation
        assert (
            checks is not None and checks.heads == found.heads and checks.mean_ablated is not None
        )
        assert checks.random_sets is not None and checks.random_sets.n_near == 0
        assert "checks on the chosen heads" in lines.stages
        assert len(lines.stages) == len(set(lines.stages)) >= 5

        # A fresh load of what was written, with nothing of the editor's masks.
        base, edited = open_tiny(known.folder), open_tiny(out)
        prompts = [item.prompt for item in known.capabilities["naming"].items("test")[:5]]
        answers = [item.answer.strip() for item in known.capabilities["naming"].items("test")[:5]]
        assert [t.strip() for t in base.generate(prompts, [()], max_new_tokens=1)[0]] == answers
        wrote = [t.strip() for t in edited.generate(prompts, [()], max_new_tokens=1)[0]]
        assert not set(wrote) & set(answers)

        # Measured again from the files, it says the same.
        again = validate(out, str(known.folder), options(tmp_path), QUIET)
        assert again == manifest.validation
        elsewhere = options(tmp_path / "elsewhere")
        assert validate(out, str(known.folder), elsewhere, QUIET) == manifest.validation

    @pytest.mark.parametrize("method", METHODS)
    def test_localizing_twice_gives_one_plan_and_measures_nothing_new(
        self, known: Wired, tmp_path: Path, method: str
    ) -> None:
        recipe = recipe_of(known, method=method)
        first = localize(recipe, options(tmp_path), QUIET)
        assert set(first.heads) == known.target_heads
        journal = Path(first.run) / "journal.jsonl"
        before = journal.read_bytes()
        assert localize(recipe, options(tmp_path), QUIET) == first
        assert journal.read_bytes() == before
        fresh = localize(recipe, options(tmp_path / "other"), QUIET)
        assert fresh.plan == first.plan and fresh.run != first.run
        assert (first.confidence is not None) == (method == "adaptive")
        assert [step.head for step in first.plan.steps] == list(first.heads)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_budget_holds_for_search_and_choice(
        self, known: Wired, tmp_path: Path, method: str
    ) -> None:
        least = {"adaptive": 37, "published": 37, "scan": 29, "greedy": 29, "gradient": 13}[method]
        recipe = recipe_of(known, method=method, budget=least)
        found = localize(recipe, options(tmp_path), QUIET)
        assert found.heads and set(found.heads) <= known.target_heads | {known.shared_head}
        assert found.evaluations <= least
        with pytest.raises(UsageError, match=f"at least {least} on a model of 16 heads") as caught:
            localize(recipe_of(known, method=method, budget=least - 1), options(tmp_path), QUIET)
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize("prior", ["gradient", "none"])
    def test_universal_heads_are_found_among_suspects_without_a_scan(
        self, known: Wired, tmp_path: Path, prior: str
    ) -> None:
        lines = Lines()
        recipe = recipe_of(known, universal="suspects", prior=prior)
        found = localize(recipe, options(tmp_path), lines)
        assert set(found.heads) == known.target_heads
        assert found.scan_evaluations == 0 and found.universal.heads == ()
        assert not any("scan" in stage for stage in lines.stages)
        assert not (tmp_path / "cache" / "universal").exists()

    def test_the_confidence_is_said_and_kept(self, known: Wired, tmp_path: Path) -> None:
        lines = Lines()
        found = localize(recipe_of(known, budget=200), options(tmp_path), lines)
        sure = found.confidence
        assert sure is not None and sure.sentence in lines.said
        assert known.target_heads <= {*sure.decided, *sure.undecided}
        assert found.estimates[0].rivals
        stored = json.loads((Path(found.run) / "estimate.json").read_text())
        assert stored["confidence"] == sure.model_dump(mode="json")

    def test_two_workers_find_what_one_finds(self, known: Wired, tmp_path: Path) -> None:
        lines = Lines()
        found = localize(recipe_of(known), options(tmp_path, workers=2), lines)
        assert set(found.heads) == known.target_heads
        assert any(line.startswith("ahead: ") and " 0 tokens" not in line for line in lines.said)

    def test_when_the_time_is_up_it_is_said_and_the_next_run_goes_on(
        self, known: Wired, tmp_path: Path
    ) -> None:
        recipe = recipe_of(known)
        with pytest.raises(TimeUp, match="the time was up") as caught:
            localize(recipe, options(tmp_path, max_hours=1e-9), QUIET)
        assert "--max-hours" in caught.value.hint and caught.value.exit_code == 6
        with pytest.raises(UsageError, match="seed 0 -> 9"):  # it is broken off, not at its end
            localize(recipe_of(known, seed=9), options(tmp_path), QUIET)
        lines = Lines()
        assert set(localize(recipe, options(tmp_path), lines).heads) == known.target_heads
        assert any("going on" in line for line in lines.said)

    def test_a_cache_that_cannot_be_written_is_missed_before_the_scan(
        self, known: Wired, tmp_path: Path
    ) -> None:
        (tmp_path / "cache").write_text("no folder")
        with pytest.raises(UsageError, match="the cache folder .* cannot be used") as caught:
            localize(recipe_of(known), options(tmp_path), QUIET)
        assert "--cache" in caught.value.hint
        (folder,) = (tmp_path / "runs").iterdir()
        said = (folder / "journal.jsonl").read_text()
        assert said and '"key":"english' not in said

    def test_heads_without_which_nothing_is_a_number_are_told(
        self, known: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told = {*known.target_heads, known.shared_head, known.universal_head}
        bad = next(head for head in spec_of(known.folder).heads() if head not in told)
        score = MaskableModel._score_batch

        def overflows(self: Any, group: Any, masks: Any, means: Any = None) -> Any:
            found = score(self, group, masks, means)
            n_rows = len(found) // len(masks)  # of a group of rows or of a tree of them
            out = [bad in masks[at // n_rows] for at in range(len(found))]
            return [
                one._replace(logprob=float("nan")) if now else one
                for one, now in zip(found, out, strict=True)
            ]

        monkeypatch.setattr(MaskableModel, "_score_batch", overflows)
        out = tmp_path / "out"
        removal = remove(recipe_of(known), out, options(tmp_path), QUIET)
        assert set(removal.heads) == known.target_heads
        manifest = read_manifest(out)
        assert manifest.not_numbers and all(
            masks == ((bad,),) for masks in manifest.not_numbers.values()
        )
        said = (
            f"Kept out as well, since without it the model's scores on text are not numbers: {bad}."
        )
        texts = [display.removal_text(removal, manifest), (out / "README.md").read_text()]
        for text in (*texts, Path(removal.report).read_text()):
            assert said in " ".join(text.replace("&#39;", "'").split())
            assert f"since all text needs them: {bad}" not in text

    def test_a_model_that_no_head_holds_back_has_nothing_to_improve(
        self, known: Wired, tmp_path: Path
    ) -> None:
        with pytest.raises(CapabilityAbsent, match="nothing to gain"):
            localize(recipe_of(known, improve=True), options(tmp_path), QUIET)

    def test_telling_the_form_takes_no_evaluations(
        self, known: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[tuple[int, int]] = []

        def counted(bench: Any, task: Any, *heads: Any) -> Any:
            before = bench.evaluations(task.name)
            found = formats.check_format(bench, task, *heads)
            taken.append((before, bench.evaluations(task.name)))
            return found

        monkeypatch.setattr(pipeline, "check_format", counted)
        found = localize(recipe_of(known), options(tmp_path), QUIET)
        assert taken == [(found.evaluations, found.evaluations)]

    def test_the_scan_is_done_once_a_model(self, known: Wired, tmp_path: Path) -> None:
        first, second = Lines(), Lines()
        localize(recipe_of(known), options(tmp_path), first)
        found = localize(recipe_of(known, seed=1), options(tmp_path), second)
        assert any("scan" in stage for stage in first.stages)
        assert not any("scan" in stage for stage in second.stages)
        assert found.universal.heads == (known.universal_head,)

    def test_a_head_that_a_control_needs_stays(self, known: Wired, tmp_path: Path) -> None:
        kept = localize(recipe_of(known, max_heads=16), options(tmp_path), QUIET)
        assert known.shared_head not in kept.heads
        assert known.universal_head not in kept.heads
        recipe = recipe_of(known).model_copy(update={"capability": "pairing"})
        assert localize(recipe, options(tmp_path), QUIET).heads[0] == known.shared_head

    def test_an_edit_that_misses_its_limits_is_written_and_says_so(
        self, known: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = several.choose

        def choose_wrongly(*args: Any) -> Any:
            return real(*args).model_copy(update={"heads": (known.shared_head,)})

        monkeypatch.setattr(several, "choose", choose_wrongly)
        out = tmp_path / "out"
        found = remove(recipe_of(known), out, options(tmp_path), QUIET)
        assert not found.accepted
        assert any("naming" in reason for reason in found.reasons)
        assert any("pairing" in reason for reason in found.reasons)
        validation = read_manifest(out).validation
        assert validation is not None and not validation.accepted
        assert validation.reasons == found.reasons

    @pytest.mark.parametrize(
        ("fault", "seen"),
        [
            (KeyboardInterrupt(), KeyboardInterrupt),
            (CheckFailed("injected"), CheckFailed),
            (OSError(28, "No space left"), EditorError),
        ],
        ids=["interrupt", "check", "disk"],
    )
    def test_an_interruption_leaves_no_output_and_the_next_run_goes_on(
        self,
        known: Wired,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        fault: BaseException,
        seen: type[BaseException],
    ) -> None:
        def stop(*_: object, **__: object) -> None:
            raise fault

        out = tmp_path / "out"
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, "validate_edit", stop)
            with pytest.raises(seen):
                remove(recipe_of(known), out, options(tmp_path), QUIET)
        assert not list(tmp_path.glob("out*"))
        lines = Lines()
        found = remove(recipe_of(known), out, options(tmp_path), lines)
        assert found.accepted
        assert any("going on" in line for line in lines.said)

    def test_an_edited_file_that_was_damaged_is_noticed(
        self, known: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = baking.apply_edits

        def damaged(base: Path, folder: Path, edits: Any, **given: Any) -> Any:
            found = real(base, folder, edits, **given)
            with (folder / "model.safetensors").open("r+b") as file:
                file.seek(-1, 2)
                file.write(b"\x7f")
            return found

        monkeypatch.setattr(baking, "apply_edits", damaged)
        with pytest.raises(CheckFailed):
            remove(recipe_of(known), tmp_path / "out", options(tmp_path), QUIET)
        assert not list(tmp_path.glob("out*"))

    def test_an_output_that_is_in_the_way_is_refused_before_any_work(
        self, known: Wired, tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        with pytest.raises(UsageError, match="exists"):
            remove(recipe_of(known), tmp_path / "out", options(tmp_path), QUIET)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


class TestValidate:
    def test_a_baked_folder_needs_to_be_told_what_to_measure(
        self, known: Wired, tmp_path: Path
    ) -> None:
        out, base = tmp_path / "out", str(known.folder)
        bake(base, sorted(known.target_heads), out, options(tmp_path), QUIET)
        with pytest.raises(UsageError, match="capability") as caught:
            validate(out, base, options(tmp_path), QUIET)
        assert "--capability" in caught.value.hint
        found = validate(out, base, options(tmp_path), QUIET, capability="naming", test_items=40)
        assert found.accepted
        other = validate(out, base, options(tmp_path), QUIET, capability="pairing", test_items=40)
        assert not other.accepted

    def test_refuses_a_folder_that_is_not_the_recorded_edit(
        self, known: Wired, tmp_path: Path
    ) -> None:
        out, base = tmp_path / "out", str(known.folder)
        bake(base, sorted(known.target_heads), out, options(tmp_path), QUIET)
        text = (out / "editor.json").read_text()
        manifest = json.loads(text)
        manifest["heads"] = [str(known.shared_head)]
        (out / "editor.json").write_text(json.dumps(manifest))
        with pytest.raises(CheckFailed, match="not those of its heads"):
            validate(out, base, options(tmp_path), QUIET, capability="naming", test_items=20)

    def test_refuses_weights_that_were_changed_after_the_edit(
        self, known: Wired, tmp_path: Path
    ) -> None:
        out, base = tmp_path / "out", str(known.folder)
        bake(base, sorted(known.target_heads), out, options(tmp_path), QUIET)
        weights = bytearray((out / "model.safetensors").read_bytes())
        weights[-1] ^= 1
        (out / "model.safetensors").write_bytes(weights)
        with pytest.raises(CheckFailed, match="model.safetensors"):
            validate(out, base, options(tmp_path), QUIET, capability="naming", test_items=20)

    def test_refuses_itself_as_the_base(self, known: Wired, tmp_path: Path) -> None:
        out = tmp_path / "out"
        bake(str(known.folder), [Head(1, 1)], out, options(tmp_path), QUIET)
        with pytest.raises(UsageError, match="base"):
            validate(out, str(out), options(tmp_path), QUIET, capability="naming")

    @pytest.mark.parametrize("text", [None, "{", "[]", '{"heads": 1}', "\xff"])
    def test_refuses_a_folder_without_a_record_of_its_own(
        self, wired: Wired, tmp_path: Path, text: str | None
    ) -> None:
        out = tmp_path / "out"
        bake(str(wired.folder), HEADS, out, options(tmp_path), QUIET)
        (out / "editor.json").unlink()
        if text is not None:
            (out / "editor.json").write_bytes(text.encode("latin-1"))
        with pytest.raises(ModelError, match="editor.json"):
            validate(out, str(wired.folder), options(tmp_path), QUIET)


class TestChangedSettings:
    """A run that was broken off, and the same command with another setting."""

    def test_are_refused_until_a_new_run_is_asked_for(
        self, known: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recipe = recipe_of(known)

        def broken_off(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("editor.several.choose", broken_off)
            with pytest.raises(KeyboardInterrupt):
                localize(recipe, options(tmp_path), QUIET)
        changed = recipe_of(known, seed=9)
        with pytest.raises(UsageError, match="seed 0 -> 9"):
            localize(changed, options(tmp_path), QUIET)
        assert len(list((tmp_path / "runs").iterdir())) == 1, "what is refused leaves no folder"
        assert localize(changed, options(tmp_path, new_run=True), QUIET).heads
        assert localize(recipe, options(tmp_path), QUIET).heads, "it goes on"
        assert localize(recipe_of(known, seed=10), options(tmp_path), QUIET).heads

    def test_do_not_matter_after_a_run_that_found_nothing(
        self, known: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def finds_nothing(*_: object, **__: object) -> None:
            raise CapabilityAbsent("no head that naming needs can be removed")

        with monkeypatch.context() as patch:
            patch.setattr("editor.several.choose", finds_nothing)
            with pytest.raises(CapabilityAbsent):
                localize(recipe_of(known, seed=9), options(tmp_path), QUIET)
        (folder,) = (tmp_path / "runs").iterdir()
        assert "naming" in (folder / "ended.txt").read_text()
        assert localize(recipe_of(known), options(tmp_path), QUIET).heads
