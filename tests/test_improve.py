"""Heads without which a capability gets better: limits, checks, and that nothing says "removed"."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import fixtures
from editor import capabilities, tasks
from editor.baking import read_manifest
from editor.card import render_card, split_card
from editor.confirm import confirm, random_sets
from editor.confirm_text import sentences
from editor.display import removal_text, validation_text
from editor.errors import CapabilityAbsent
from editor.manifest_text import headline, not_shown
from editor.measure import Bench
from editor.pipeline import remove, validate
from editor.progress import Silent
from editor.recipe import Recipe
from editor.records import Gate, Head, Manifest, Mask, Removal, Result, Scores
from editor.report import render_report
from editor.session import Options
from editor.tasks import Scope
from editor.validation import Judged, check_headroom, compare, validate_edit, verdict
from fixtures import make_spec
from planted import N_HEADS, N_LAYERS, Memory, PlantedModel, planted_task
from test_validation import N, right
from tiny import Wired

A, B, C = Head(1, 2), Head(4, 0), Head(4, 5)
AGAINST, FOR = Head(1, 1), Head(2, 3)
"""The two heads that know `naming` in the wired model."""
SPEC = make_spec(N_LAYERS, N_HEADS)
TARGET = Judged(planted_task("recall", N), "target", None, rise=True)
CONTROL = Judged(planted_task("copying", N), "control", 0.1)


def rows(base: int, edited: int) -> list[Result]:
    return compare(TARGET, right(base), right(edited), seed=0)


class TestTarget:
    @pytest.mark.parametrize(
        ("base", "edited", "gate"),
        [
            (20, 60, "pass"),
            (0, 30, "pass"),
            (20, 21, "unsure"),
            (20, 20, "fail"),
            (60, 20, "fail"),
            (100, 100, "fail"),
        ],
    )
    def test_must_rise(self, base: int, edited: int, gate: Gate) -> None:
        judged, other = rows(base, edited)
        assert (judged.metric, judged.gate, judged.rise, judged.limit) == ("exact", gate, True, 0)
        assert (other.gate, other.rise, other.limit) == ("info", False, None)
        assert verdict([judged, other])[0] is (gate != "fail")

    @pytest.mark.parametrize(
        ("base", "edited", "said"),
        [(20, 60, ()), (20, 21, ("higher but not surely",)), (60, 20, ("was to rise",))],
    )
    def test_reasons_say_which_way(self, base: int, edited: int, said: Sequence[str]) -> None:
        _, reasons = verdict(rows(base, edited))
        assert len(reasons) == len(said)
        for reason, part in zip(reasons, said, strict=True):
            assert part in reason and "limit" not in reason

    def test_has_no_least_drop(self) -> None:
        control = replace(planted_task("copying").capability, name="copying")
        what = Scope(planted_task("recall").capability, (control,), {"copying": 0.1})
        target, copying = tasks.judged(what, 10, 0.5, improve=True)
        assert (target.rise, target.min_drop) == (True, None)
        assert (copying.rise, copying.limit) == (False, 0.1)
        assert tasks.judged(what, 10, 0.5)[0].min_drop == 0.5


class TestHeadroom:
    capability = planted_task("recall").capability

    @pytest.mark.parametrize("n_right", [0, 3, 50, 99])
    def test_is_there_while_an_answer_is_wrong(self, n_right: int) -> None:
        check_headroom(right(n_right).exact, self.capability, "m", improve=True)

    def test_is_gone_when_all_is_right(self) -> None:
        with pytest.raises(CapabilityAbsent, match="nothing to gain") as caught:
            check_headroom(right(N).exact, self.capability, "some-model", improve=True)
        assert caught.value.exit_code == 5 and "\n" not in caught.value.message
        assert "some-model" in caught.value.message and f"{N} items" in caught.value.message


class Edited(PlantedModel):
    """The same model with heads zeroed for good."""

    heads: Mask = ()

    def loss(self, task: str, mask: Mask) -> float:
        return super().loss(task, (*mask, *self.heads))


class TestMeasured:
    EFFECTS: Mapping[str, Mapping[Head, float]] = {
        "recall": {A: -1.2, B: -0.3, C: 0.4},
        "copying": {},
    }

    def model(self, kind: type[PlantedModel] = PlantedModel) -> PlantedModel:
        return kind(self.EFFECTS, base=-2.0)

    def test_edited_files_that_do_better_are_accepted(self) -> None:
        edited = self.model(Edited)
        assert isinstance(edited, Edited)
        edited.heads = (A, B)
        benches = [Bench(model, Memory()) for model in (self.model(), edited)]
        found = validate_edit(
            *benches,
            [TARGET, replace(CONTROL, task=planted_task("copying", N))],
            (A, B),
            spec=SPEC,
            seed=0,
        )
        assert found.accepted and found.results[0].change == 1.0
        assert found.format_loss is None
        assert [point.chosen for point in found.curve] == [0.0, pytest.approx(0.9, abs=0.1), 1.0]

    def test_checks_count_random_sets_that_do_as_much_good(self) -> None:
        bench = Bench(self.model(), Memory())
        found = confirm(bench, planted_task("recall"), (A, B), SPEC, seed=0, improve=True)
        assert found.interactions == ()
        sets = found.random_sets
        assert sets is not None and sets.chosen < 0
        assert (sets.n_near, sets.n_as_costly) == (0, 0)
        said = " ".join(sentences(found, improve=True))
        assert "none does recall as much good" in said and "at their mean output by" in said
        assert "cost" not in said

    def test_sets_are_compared_by_what_they_give(self) -> None:
        def losing(nats: float) -> Scores:
            return Scores(exact=(0.0,) * 4, logprob=(-2.0 - nats,) * 4, n_tokens=(1,) * 4)

        masks: list[Mask] = [(A,), (B,), (C,), (Head(0, 0),)]
        losses = (-1.0, -1.2, -0.6, 0.9)
        found = dict(zip(masks, map(losing, losses), strict=True)) | {(): losing(0.0)}
        gained = random_sets(found, masks[0], masks[1:], improve=True)
        assert (gained.n_as_costly, gained.n_near) == (1, 2)
        lost = random_sets(found, masks[0], masks[1:])
        assert lost.n_as_costly == 2


def improved(gate: Gate = "pass", *, accepted: bool = True) -> Manifest:
    """A run after which recall does better, surely or not."""
    target, *others = fixtures.make_validation(accepted=accepted).results
    results = [
        row.model_copy(
            update={"base": 0.3, "edited": 0.4, "change": 0.1, "ci": (0.02, 0.18)}
            | ({"limit": 0.0, "rise": True, "gate": gate} if row.limit is not None else {})
        )
        if row.role == "target"
        else row
        for row in (target, *others)
    ]
    validation = fixtures.make_validation(accepted=accepted).model_copy(
        update={"results": tuple(results), "format_loss": None}
    )
    manifest = fixtures.make_manifest(validation=validation)
    assert manifest.settings is not None and manifest.confirmation is not None
    return manifest.model_copy(
        update={
            "settings": manifest.settings.model_copy(update={"improve": True}),
            "format_check": None,
            "confirmation": manifest.confirmation.model_copy(update={"interactions": ()}),
            "confidence": fixtures.make_confidence(),
        }
    )


def removal_of(manifest: Manifest) -> Removal:
    validation = manifest.validation
    assert validation is not None
    return Removal(
        output="out",
        run="run",
        report="report",
        capability="recall",
        model="m",
        heads=manifest.heads,
        evaluations=1,
        scan_evaluations=1,
        accepted=validation.accepted,
        reasons=validation.reasons,
        results=validation.results,
        bytes_changed=1,
        bytes_total=2,
        elapsed_s=1.0,
    )


REMOVED = re.compile(r"\bremoved?\b(?! bytes)|taken out of its weights|lost form", re.I)


class TestWords:
    @pytest.mark.parametrize("accepted", [True, False])
    def test_nothing_claims_that_the_capability_went(self, accepted: bool) -> None:
        manifest = improved("pass" if accepted else "fail", accepted=accepted)
        page = re.sub(r"<style>.*?</style>", "", render_report(manifest, ()), flags=re.S)
        card = render_card(manifest)
        terminal = removal_text(removal_of(manifest), manifest)
        for text in (page, card, terminal, *not_shown(manifest)):
            assert not REMOVED.search(text), REMOVED.search(text)
        for text in (page, card):
            assert "do better at recall" in text or "does better at recall" in text
            assert "without which" in text or "in an attempt to" in text

    def test_headline_is_as_sure_as_the_measurement(self) -> None:
        assert headline(improved()).endswith("that does better at recall")
        assert headline(improved("unsure")).endswith("that may do better at recall")
        assert "edited to do better at recall" in headline(improved("fail", accepted=False))

    def test_card_is_tagged_and_named_for_it(self) -> None:
        card = render_card(improved())
        front, _ = split_card(card)
        assert front["tags"] == ["capability-editor", "capability-gain"]
        assert front["model-index"][0]["name"].endswith("-better-at-recall")
        assert yaml.safe_dump(front)

    def test_limit_and_verdict_in_the_terminal(self) -> None:
        validation = improved("fail", accepted=False).validation
        assert validation is not None
        text = validation_text(validation, "out")
        assert "> +0.0" in text and "did not get better" in text


class TestPipeline:
    def hindered(self, wired: Wired, folder: Path) -> Path:
        """The wired model, in which one head of `naming` works against another that is stronger."""
        from safetensors.torch import load_file, save_file

        shutil.copytree(wired.folder, folder)
        file = folder / "model.safetensors"
        tensors = load_file(file)
        for head, factor in ((AGAINST, -1.0), (FOR, 2.0)):
            weight = tensors[f"model.layers.{head.layer}.self_attn.o_proj.weight"]
            weight[:, head.head * 16 : (head.head + 1) * 16] *= factor
        save_file(tensors, file, metadata={"format": "pt"})
        return folder

    def test_the_head_in_the_way_goes(
        self, wired: Wired, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(capabilities, "get", wired.get)
        monkeypatch.setattr(capabilities, "names", lambda: tuple(wired.capabilities))
        recipe = Recipe(
            model=str(self.hindered(wired, tmp_path / "hindered")),
            capability="naming",
            improve=True,
            max_heads=2,
            search_items=24,
            choose_items=24,
            test_items=40,
        )
        options = Options(runs=tmp_path / "runs", cache=tmp_path / "cache", offline=True)
        removal = remove(recipe, tmp_path / "out", options, Silent())
        assert AGAINST in removal.heads and FOR not in removal.heads
        assert removal.accepted
        target = removal.results[0]
        assert (target.role, target.rise, target.gate) == ("target", True, "pass")
        assert (target.base, target.edited) == (0.0, 1.0)
        manifest = read_manifest(tmp_path / "out")
        assert manifest.format_check is None and manifest.confidence is not None
        assert "hindering" in manifest.confidence.sentence
        card = (tmp_path / "out" / "README.md").read_text()
        assert "does better at naming" in card and not REMOVED.search(card)
        again = validate(tmp_path / "out", str(tmp_path / "hindered"), options, Silent())
        assert again.accepted and again.results[0].rise
