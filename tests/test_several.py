"""Several capabilities removed by one edit, through the command line: no stage is faked."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import editor
from editor import capabilities
from editor.capabilities import Capability
from editor.choose import LEAST_TAKE, Terms
from editor.cli import main
from editor.measure import Bench, Task
from editor.methods import METHODS, first_masks
from editor.recipe import load
from editor.records import Fingerprint, Head, Localization, Manifest, Settings
from editor.search import Job
from editor.several import choose_each, measure_shared
from planted import HEADS, Memory, PlantedModel, generated_capability, planted_task
from tiny import Wired

ITEMS = ("--search-items", "16", "--choose-items", "20", "--test-items", "90")
A, B, C, D = HEADS[11], HEADS[27], HEADS[42], HEADS[63]


class Place(NamedTuple):
    """Where the commands of this module run."""

    folder: Path
    wired: Wired

    def run(self, *given: str, expect: int = 0, as_json: bool = True) -> Any:
        """What a command prints; the hint and message where it fails as expected."""
        places = ["--cache", str(self.folder / "cache"), "--runs", str(self.folder / "runs")]
        wanted = [*given, *places] if given[0] not in ("runs", "compare") else [*given, *places[2:]]
        done = CliRunner().invoke(main, [*wanted, *(["--json"] if as_json else [])])
        assert done.exit_code == expect, done.output[-3000:]
        if expect:
            return done.output
        return json.loads(done.stdout) if as_json else done.stdout

    def job(self, verb: str, *names: str) -> list[str]:
        wanted = [part for name in names for part in ("-c", name)]
        return [verb, *wanted, "-m", str(self.wired.folder), *ITEMS[: 4 if verb != "remove" else 6]]


@pytest.fixture(scope="module")
def place(wired: Wired, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The wired model with its own capabilities: `pairing` is one head, which helps `naming`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capabilities, "get", wired.get)
        patch.setattr(capabilities, "names", lambda: tuple(wired.capabilities))
        yield Place(tmp_path_factory.mktemp("several"), wired)


@pytest.fixture(scope="module")
def removed(place: Place) -> dict[str, Any]:
    job = place.job("remove", "pairing", "naming")
    return place.run(*job, "-o", str(place.folder / "out"))


@pytest.fixture(scope="module")
def manifest(place: Place, removed: dict[str, Any]) -> Manifest:
    text = (Path(removed["output"]) / "editor.json").read_text("utf-8")
    return Manifest.model_validate_json(text)


def keys_of(journal: Path) -> dict[str, None]:
    """What was measured, in the order in which it was."""
    lines = journal.read_text("utf-8").splitlines()
    return dict.fromkeys(str(json.loads(line)["key"]) for line in lines)


def rows_of(said: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["task"], row["metric"]): row for row in said["results"]}


class TestRemove:
    def test_takes_both_and_keeps_the_control(self, removed: dict[str, Any]) -> None:
        rows = rows_of(removed)
        for name in ("pairing", "naming"):
            row = rows[name, "exact"]
            assert row["role"] == "target" and row["gate"] == "pass"
            assert row["base"] > 0.9 and row["edited"] < 0.1
        assert rows["reading", "nats_per_token"]["gate"] == "pass"
        kept = {row["task"] for row in removed["results"] if row["role"] == "control"}
        assert kept == {"reading"}
        assert removed["accepted"] is True
        assert removed["capability"] == "pairing, naming"

    def test_names_the_head_that_both_need(
        self, place: Place, removed: dict[str, Any], manifest: Manifest
    ) -> None:
        shared = str(place.wired.shared_head)
        assert removed["sharing"]["shared"] == [shared]
        assert shared in removed["sharing"]["heads"]["naming"]
        assert removed["sharing"]["heads"]["pairing"] == [shared]
        # With the shared head out, one of the two others is enough.
        assert len(removed["heads"]) == 2
        assert {*map(Head.parse, removed["heads"])} < {
            place.wired.shared_head,
            *place.wired.target_heads,
        }
        takes = {one["head"]: one for one in removed["sharing"]["takes"]}
        assert list(takes) == removed["heads"]
        assert takes[shared]["alone"]["pairing"]["value"] > 1
        # It is only as the last that it takes something of naming.
        assert takes[shared]["alone"]["naming"]["value"] < LEAST_TAKE
        assert takes[shared]["last"]["naming"]["value"] > 0.1
        (other,) = (head for head in takes if head != shared)
        assert takes[other]["last"]["pairing"]["value"] < LEAST_TAKE
        assert manifest.sharing is not None
        assert manifest.sharing.model_dump(mode="json") == removed["sharing"]

    def test_says_so_everywhere(self, place: Place, removed: dict[str, Any]) -> None:
        out, shared = Path(removed["output"]), str(place.wired.shared_head)
        again = place.job("remove", "pairing", "naming")
        shown = place.run(*again, "-o", str(place.folder / "again"), as_json=False)
        said = f"{shared} serves pairing and naming"
        assert f"shared  {said}" in shown
        assert "for     pairing: 1 head" in shown and "for     naming: 2 heads" in shown
        page, card = ((out / name).read_text("utf-8") for name in ("report.html", "README.md"))
        assert said in page and said in card
        ids = re.findall(r'<h2 id="([^"]*)"', page)
        assert len(ids) == len(set(ids)) and {"curve", "curve-2", "shared"} <= set(ids)
        for name in ("pairing", "naming"):
            assert f"Head by head: {name}" in page
            assert f"What each head does for {name}" in page
            assert f"Right answers on {name} went from" in card
        assert "with pairing and naming removed" in page
        assert "with pairing and naming removed" in card

    def test_one_more_run_finds_all_in_the_journal(
        self, place: Place, removed: dict[str, Any], manifest: Manifest
    ) -> None:
        run = Path(removed["run"])
        assert "pairing+naming" in run.name
        found = (run / "estimate.json").read_bytes()
        journal = shutil.copy(run / "journal.jsonl", place.folder / "journal.jsonl")
        # Half of it is lost, as by a kill.
        lines = journal.read_bytes().splitlines(keepends=True)
        (run / "journal.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]))
        (run / "estimate.json").unlink()
        again = place.run(*place.job("remove", "pairing", "naming"), "-o", str(place.folder / "b"))
        assert again["run"] == removed["run"]
        assert (run / "estimate.json").read_bytes() == found
        assert keys_of(run / "journal.jsonl") == keys_of(journal)
        text = (place.folder / "b" / "editor.json").read_text("utf-8")
        other = Manifest.model_validate_json(text)
        assert other.model_copy(update={"times": manifest.times}) == manifest

    def test_the_first_masks_are_those_of_both(self, removed: dict[str, Any]) -> None:
        """Ten pools of sixteen heads, for both targets before anything else for either."""
        asked: list[tuple[str, str]] = []
        for key in keys_of(Path(removed["run"]) / "journal.jsonl"):
            task, _, rest = key.partition(" ")
            heads = rest.partition(" ")[2]
            if task in ("pairing", "naming") and heads:
                asked.append((task, heads))
        first = [heads for task, heads in asked[:10] if task == "pairing"]
        assert len(first) == 10
        assert asked[10:20] == [("naming", heads) for heads in first]

    def test_each_target_is_judged_alone(self, place: Place, manifest: Manifest) -> None:
        assert manifest.validation is not None and manifest.settings is not None
        assert manifest.settings.targets == ("pairing", "naming")
        assert manifest.validation.curve_task == "pairing"
        (also,) = manifest.validation.also
        assert also.task == "naming" and also.format_loss is not None
        for curve in (manifest.validation.curve, also.curve):
            assert [at.k for at in curve] == [0, 1, 2]
            assert curve[0].chosen > 0.9 and curve[2].chosen < 0.1
        # Pairing is one head and gone with it, naming is not.
        assert manifest.validation.curve[1].chosen < 0.1
        assert also.curve[1].chosen > 0.9
        (part,) = manifest.also
        assert part.plan.capability == "naming" and part.confirmation is not None
        assert part.estimates == ()

    def test_a_target_that_is_not_removed_is_not_accepted(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = choose_each

        def only_pairing(*given: Any) -> Any:
            found = real(*given)
            return found._replace(heads=found.heads[:1])

        monkeypatch.setattr("editor.several.choose_each", only_pairing)
        job = [*place.job("remove", "pairing", "naming"), "--seed", "1"]
        text = place.run(*job, "-o", str(place.folder / "half"), expect=4)
        said = json.loads(text[text.index("{") : text.rindex("}") + 1])
        assert any("naming exact" in reason for reason in said["reasons"])
        assert rows_of(said)["pairing", "exact"]["gate"] == "pass"


class TestOtherCommands:
    def test_validate_judges_both(self, place: Place, removed: dict[str, Any]) -> None:
        base = str(place.wired.folder)
        said = place.run("validate", removed["output"], "--base", base)
        assert rows_of(said) == rows_of(removed)
        assert [one["task"] for one in said["also"]] == ["naming"]
        one = place.run("validate", removed["output"], "--base", base, "-c", "naming")
        assert one["also"] == [] and one["curve_task"] == "naming"

    def test_compare_takes_the_run_for_one_of_each(
        self, place: Place, removed: dict[str, Any]
    ) -> None:
        said = place.run("compare", removed["run"])
        shared = str(place.wired.shared_head)
        assert [one["capability"] for one in said["runs"]] == ["pairing", "naming"]
        assert [len(one["chosen"]) for one in said["runs"]] == [1, 2]
        (pair,) = said["pairs"]
        assert pair["chosen"]["heads"] == [shared]

    def test_runs_show_it(self, place: Place, removed: dict[str, Any]) -> None:
        said = place.run("runs", "show", removed["run"])
        assert said["info"]["capability"] == "pairing, naming"
        assert said["info"]["evaluations"] == removed["evaluations"]
        assert said["heads"] == removed["heads"]
        assert f"{place.wired.shared_head} serves pairing and naming" in said["why"]

    def test_plan_counts_every_target(self, place: Place) -> None:
        one, two = (
            {at["stage"]: at["masks"] for at in place.run(*place.job("plan", *names))["stages"]}
            for names in (["pairing"], ["pairing", "naming"])
        )
        assert two["baseline"] == 2 * one["baseline"] and two["search"] == 2 * one["search"]
        assert two["checks"] > 2 * one["checks"]

    @pytest.mark.parametrize("method", ["adaptive", "published", "scan", "greedy", "gradient"])
    def test_localize_by_every_method(self, place: Place, method: str) -> None:
        said = place.run(*place.job("localize", "naming", "pairing"), "--method", method)
        found = Localization.model_validate(said)
        assert place.wired.shared_head in found.heads
        assert place.wired.target_heads & {*found.heads}
        first, second = found.each()
        assert (first.plan.capability, second.plan.capability) == ("naming", "pairing")
        assert found.evaluations == first.evaluations + second.evaluations
        assert first.estimates[0].task == "naming" and second.estimates[0].task == "pairing"

    def test_a_recipe_may_list_them(self, place: Place, removed: dict[str, Any]) -> None:
        file = place.folder / "recipe.yaml"
        file.write_text(
            f"model: {place.wired.folder}\ncapability: [pairing, naming]\n"
            "search_items: 16\nchoose_items: 20\ntest_items: 90\n"
        )
        said = place.run("run", str(file), "-o", str(place.folder / "by-recipe"))
        assert said["run"] == removed["run"] and said["heads"] == removed["heads"]
        checked = CliRunner().invoke(main, ["recipe", "show", str(file)])
        assert checked.exit_code == 0, checked.output
        assert "pairing" in checked.stdout and "naming" in checked.stdout

    def test_python_takes_a_list(self, place: Place, removed: dict[str, Any]) -> None:
        found = editor.localize(
            model=place.wired.folder,
            capability=["pairing", "naming"],
            search_items=16,
            choose_items=20,
            runs=place.folder / "python",
            cache=place.folder / "cache",
        )
        assert [str(head) for head in found.heads] == removed["heads"]
        assert found.sharing is not None
        assert [*map(str, found.sharing.shared)] == removed["sharing"]["shared"]


class TestRefused:
    def test_one_that_the_model_does_not_have(self, place: Place, monkeypatch: Any) -> None:
        known = place.wired.capabilities
        wrong = tuple(
            item.model_copy(update={"answer": " b-is-0"})
            for item in known["naming"].items("search") + known["naming"].items("choose")
        )
        absent = generated_capability("absent", "task", wrong)
        everything: dict[str, Capability] = {**known, "absent": absent}
        monkeypatch.setattr(
            capabilities, "get", lambda name, library=None, outside=None: everything[name]
        )
        out = place.folder / "none"
        said = place.run(*place.job("remove", "pairing", "absent"), "-o", str(out), expect=5)
        assert "does not show absent" in said and "pairing" not in said.split("does not show")[1]
        assert not out.exists()

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            (["naming", "naming"], "each name once"),
            (["naming", "pairing", "--control", "pairing"], "pairing, which is to be removed"),
            (["naming", "reading"], "reading is a control"),
        ],
        ids=["twice", "its own control", "a text"],
    )
    def test_names_that_do_not_go_together(self, place: Place, given: list[str], said: str) -> None:
        names, more = given[:2], given[2:]
        job = [*place.job("remove", *names), *more, "-o", str(place.folder / "none")]
        assert said in place.run(*job, expect=2)

    def test_a_limit_that_names_a_target(self, place: Place) -> None:
        job = place.job("localize", "naming", "pairing")
        said = place.run(*job, "--max-control-drop", "pairing=0.1", expect=2)
        assert "pairing, which is no control" in said

    def test_estimates_of_other_capabilities_than_the_settings(
        self, place: Place, removed: dict[str, Any]
    ) -> None:
        folder = place.folder / "damaged"
        shutil.copytree(removed["run"], folder)
        found = json.loads((folder / "estimate.json").read_text("utf-8"))
        found["also"] = []
        (folder / "estimate.json").write_text(json.dumps(found))
        assert "other capabilities" in place.run("compare", str(folder), expect=2)


def test_files_in_a_list_lie_beside_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("model: m\ncapability: [recall, own.yaml]\n")
    found = load(tmp_path / "recipe.yaml")
    assert found.targets == ("recall", str(tmp_path / "own.yaml"))


class TestSettings:
    FIELDS: dict[str, Any] = {
        "capability": "recall",
        "controls": ("english",),
        "max_heads": 5,
        "max_control_drop": {},
        "min_target_drop": 0.5,
        "method": "scan",
        "seed": 0,
        "search_items": 8,
        "choose_items": 8,
        "test_items": 8,
        "dtype": "float32",
    }

    def test_one_target_is_written_as_before(self) -> None:
        settings = Settings(**self.FIELDS)
        of_run = Fingerprint(version="1", model="m", checkpoint="c", settings=settings)
        assert "also" not in of_run.canonical() and "also" not in settings.model_dump()
        assert Settings.model_validate(settings.model_dump(mode="json")) == settings

    def test_several_are_told_apart(self) -> None:
        one, two = (Settings(**self.FIELDS, also=also) for also in (("copying",), ("plural",)))
        assert len({one.digest(), two.digest(), Settings(**self.FIELDS).digest()}) == 3
        assert Settings.model_validate_json(one.model_dump_json()) == one


def jobs_of(effects: dict[str, dict[Head, float]], budget: int = 90) -> tuple[Bench, list[Job]]:
    bench = Bench(PlantedModel(effects), Memory())
    return bench, [
        Job(
            bench=bench,
            task=planted_task(name),
            heads=HEADS,
            excluded=frozenset(),
            seed=3,
            budget=budget,
            max_heads=3,
        )
        for name in effects
    ]


class TestPlanted:
    EFFECTS = {"one": {A: 3.0, B: 2.0}, "two": {A: 3.0, C: 2.0}, "three": {D: 4.0}}

    @pytest.mark.parametrize("method", ["adaptive", "published", "scan"])
    def test_shared_masks_cost_no_evaluation_more(self, method: str) -> None:
        bench, jobs = jobs_of(self.EFFECTS)
        alone_bench, alone = jobs_of(self.EFFECTS)
        assert len({tuple(first_masks(method, job)) for job in jobs}) == 1
        measure_shared(method, jobs)
        counted = {bench.evaluations(job.task.name) for job in jobs}
        assert counted == {len(set(first_masks(method, jobs[0])))}
        for job, other in zip(jobs, alone, strict=True):
            found, expected = METHODS[method](job), METHODS[method](other)
            assert found.rank(())[:3] == expected.rank(())[:3]
            name = job.task.name
            assert bench.evaluations(name) == alone_bench.evaluations(name)

    def test_a_head_of_two_is_chosen_once_and_counts_for_both(self) -> None:
        bench, jobs = jobs_of(self.EFFECTS)
        searches = [METHODS["scan"](job) for job in jobs]
        tasks = [planted_task(job.task.name, 30) for job in jobs]
        terms = [Terms(max_heads=3, budget=400) for _ in jobs]
        heads, plans, sharing = choose_each(bench, tasks, [], searches, terms)
        assert {A, D} <= {*heads} and len(heads) == len(set(heads))
        assert sharing is not None and sharing.shared == (A,)
        assert A in plans[1].heads and plans[1].steps[0].head == A
        assert plans[2].heads == (D,)
        # Predictions are of the whole edit, not of the heads that were out at the time.
        assert all(at.edited < 0.1 for plan in plans for at in plan.predicted)

    def test_one_target_is_chosen_as_ever(self) -> None:
        bench, (job, *_) = jobs_of(self.EFFECTS)
        search = METHODS["scan"](job)
        task = Task(job.task.capability, job.task.items[:30])
        heads, plans, sharing = choose_each(bench, [task], [], [search], [Terms(3, 400)])
        assert sharing is None and plans[0].heads == heads
