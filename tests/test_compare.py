"""`editor compare`: which runs it takes, what it refuses, and the page it writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import editor
from editor.cli import main
from editor.compare_page import GENERATOR, render_comparison, shares_of, spread
from editor.comparison import Finished, compare
from editor.records import Comparison
from finished_runs import ALL, Effects, make_run, write_run
from fixtures import make_manifest
from small import change_json, files_of
from test_report import EVIL, Page

STEPS: Effects = {"L1H1": (4, 0.4), "L2H2": (3, 0.3), "L3H3": (2, 0.2), "L4H4": (1, 0.1)}
RECALL, COPYING = "2026-01-31-small-recall-0f3a9c21", "2026-01-31-small-copying-77aa00bb"


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two finished runs below runs/."""
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs", RECALL), make_run(STEPS, chosen=("L1H1", "L2H2")))
    other = make_run({"L2H2": (2, 0.5), "L5H5": (1, 0.5)}, capability="copying", chosen=("L2H2",))
    write_run(Path("runs", COPYING), other)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare", *arguments])


def refused(*arguments: str) -> str:
    found = run(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) <= 2, found.stderr
    assert found.stderr.startswith("error: ")
    assert "Traceback" not in found.stderr
    return found.stderr


def shown(*arguments: str) -> Comparison:
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.stderr
    return Comparison.model_validate_json(found.stdout)


def test_from_python_it_is_the_same_record() -> None:
    assert editor.compare() == shown()
    one = editor.compare(names=[Path("runs", RECALL)])
    assert [side.capability for side in one.runs] == ["recall"]
    assert editor.compare(names=["copying"], runs="runs", output="page.html") == shown("copying")
    assert GENERATOR in Path("page.html").read_text()


def test_every_named_run_that_cannot_be_read_is_told_at_once() -> None:
    Path("runs", RECALL, "estimate.json").unlink()
    Path("runs", COPYING, "estimate.json").write_text("{")
    said = refused("recall", "copying")
    assert RECALL in said and COPYING in said


class TestOutput:
    def test_all_runs_are_compared(self) -> None:
        found = run()
        assert found.exit_code == 0
        for part in (
            *("A  copying in small", "B  recall in small", RECALL),
            *("40 (", "2 (2 to 2) heads, 2% of all", "10.000 nats", "of all positive effects"),
            *("A, B", "L2H2", "told from zero", "1.00"),
        ):
            assert part in found.stdout
        found.stdout.encode("ascii")

    def test_json_is_one_record(self) -> None:
        found = shown(f"runs/{RECALL}", f"runs/{COPYING}")
        assert [one.label for one in found.runs] == ["A", "B"]
        assert [one.capability for one in found.runs] == ["recall", "copying"]
        assert found.runs[0].shares[0].share == pytest.approx(0.4)
        assert [str(head) for head in found.pairs[0].chosen.heads] == ["L2H2"]

    def test_one_run_alone(self) -> None:
        found = run("recall")
        assert found.exit_code == 0
        assert "Heads shared" not in found.stdout
        assert shown("recall").pairs == ()

    def test_a_run_that_tells_nothing(self) -> None:
        write_run(Path("empty"), make_run({"L1H1": (0.1, 1.0)}))
        assert "no head is told from zero" in run("empty").stdout
        assert run("empty", "-o", "page.html").exit_code == 0
        assert "No run tells a head from zero" in Path("page.html").read_text("utf-8")

    def test_two_models(self) -> None:
        flat = {str(head): (1.0, 0.01) for head in ALL[:20]}
        write_run(Path("large"), make_run(flat, model="org/large", n_layers=20))
        found = run("recall", "large")
        assert "A - B  1 of 100, 1 of 200" in found.stdout
        assert "+35" in found.stdout

    def test_scores_that_differ_are_told(self) -> None:
        write_run(Path("exact"), make_run(STEPS, score="exact"))
        found = run("recall", "exact")
        assert found.exit_code == 0
        assert "Different scores: A logprob, B exact. Totals are not comparable" in found.stdout

    def test_the_same_run_twice_is_told(self) -> None:
        write_run(Path("copy"), make_run(STEPS, chosen=("L1H1", "L2H2")))
        assert "A and B are the same run" in run("recall", "copy").stdout
        assert "are the same run" not in run("recall", "copying").stdout

    def test_counts_of_pools_are_logarithms(self) -> None:
        alone = make_run(STEPS, score="exact")
        pools = alone.found.estimates[0].model_copy(update={"solver": "posterior"})
        found = alone.found.model_copy(update={"estimates": (pools,)})
        write_run(Path("alone"), alone)
        write_run(Path("pools"), alone._replace(found=found))
        assert " 10.000 share of right answers" in run("alone").stdout
        assert " 10.000 log share of right answers" in run("pools").stdout

    def test_words_of_strangers_cannot_act(self) -> None:
        evil = EVIL.replace("\ud800", "")  # which no JSON file can hold
        write_run(Path("evil"), make_run(STEPS, capability=evil, model=evil, method=evil))
        found = run("evil", "recall", "-o", "page.html")
        assert found.exit_code == 0
        assert "\x1b" not in found.output
        assert "\u202e" not in found.output


class TestNames:
    def test_a_part_of_a_name_is_enough(self) -> None:
        assert shown("recall-0f3a").runs[0].run == f"runs/{RECALL}"
        Path("runs").rename("others")
        assert shown("recall", "--runs", "others").runs[0].run == f"others/{RECALL}"

    def test_a_part_of_several_names(self) -> None:
        said = refused("2026-01-31")
        assert RECALL in said
        assert COPYING in said

    def test_a_name_of_nothing(self) -> None:
        assert f"did you mean {RECALL}" in refused("2026-01-31-small-recal-0f3a9c22")

    @pytest.mark.parametrize("again", [f"runs/{RECALL}", "recall", f"runs/../runs/{RECALL}/"])
    def test_the_same_run_twice(self, again: str) -> None:
        assert "is named twice" in refused(f"runs/{RECALL}", again)

    def test_unfinished_runs_are_left_out_aloud(self) -> None:
        Path("runs", COPYING, "estimate.json").unlink()
        assert f"Left out: runs/{COPYING} is not finished" in run().stdout
        assert [one.capability for one in shown().runs] == ["recall"]

    def test_no_run_at_all(self) -> None:
        assert "there is no folder nowhere" in refused("--runs", "nowhere")
        Path("empty").mkdir()
        assert "no finished run below empty" in refused("--runs", "empty")


def _edited(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "editor.json").write_text(make_manifest().model_dump_json())


def _model(folder: Path) -> None:
    _edited(folder)
    (folder / "editor.json").unlink()


def _unlink(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _text(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def _fields(name: str, change: Callable[[Any], object]) -> Callable[[Path], object]:
    return lambda folder: change_json(folder / name, change)


def _effect(**fields: Any) -> Callable[[Path], object]:
    return _fields("estimate.json", lambda at: at["estimates"][0]["effects"][0].update(fields))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "an edited checkpoint": (_edited, "is an edited checkpoint, not a run"),
    "a model": (_model, "is no run"),
    "no config": (_unlink("config.json"), "is no run"),
    "not finished": (_unlink("estimate.json"), "is not finished: it has no estimate.json"),
    "cut off": (_text("estimate.json", '{"run": "x", "hea'), "cannot be read"),
    "no object": (_text("estimate.json", "[1]"), "should be a JSON object"),
    "nested": (_text("config.json", "[" * 100_000), "cannot be read"),
    "binary": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), "cannot be read"),
    "an old schema": (
        _fields("estimate.json", lambda at: at["universal"].pop("checkpoint")),
        "universal.checkpoint: Field required; it is damaged, or of another version",
    ),
    "a field of the future": (
        _fields("config.json", lambda at: at.update(wings=2)),
        "wings: Extra inputs are not permitted",
    ),
    "no estimates": (_fields("estimate.json", lambda at: at.update(estimates=[])), "found none"),
    "no effects": (
        _fields("estimate.json", lambda at: at["estimates"][0].update(effects=[])),
        "found none",
    ),
    "a head twice": (_effect(head="L2H2"), "a head has two effects"),
    "not a number": (_effect(effect=float("nan")), "L1H1 should be a finite number"),
    "infinite": (_effect(high=float("inf")), "L1H1 should be a finite number"),
    "beyond sense": (_effect(effect=1e300), "L1H1 should be a finite number"),
    "no head": (_effect(head="L1H1\x1b[31m"), "a head is written like L16H21"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_finished_run(name: str) -> None:
    spoil, said = BAD[name]
    spoil(Path("runs", RECALL))
    found = refused(f"runs/{RECALL}")
    assert said in found
    assert "\x1b" not in found
    # Among others it is left out, and that is said.
    assert "Left out: " in run().stdout


def test_a_file_is_no_run() -> None:
    assert "is a file" in refused(f"runs/{RECALL}/estimate.json")


class TestPage:
    def test_loads_nothing_and_says_all(self) -> None:
        before = files_of(Path("runs"))
        found = run("-o", "page.html")
        assert found.exit_code == 0
        assert "page  page.html" in found.stdout
        assert files_of(Path("runs")) == before
        html = Path("page.html").read_text("utf-8")
        assert html.startswith("<!doctype html>")
        page = Page(html)
        assert not {"script", "img", "iframe", "object", "form"} & {tag for tag, _ in page.tags}
        for _, attributes in page.tags:
            for name in ("src", "href", "action", "data"):
                assert (attributes.get(name) or "data:").startswith(("data:", "#"))
        assert not re.search(r"@import|url\((?!#)", html)
        assert [tag for tag, _ in page.tags].count("polyline") == 2
        for part in (">A copying<", ">B recall<", "B: 2 heads (2% of all) hold 70% (", "L2H2"):
            assert part in html

    def test_is_escaped(self) -> None:
        evil = make_run(STEPS, capability=EVIL, model=EVIL, method=EVIL)._replace(folder=EVIL)
        html = render_comparison(compare([evil, make_run(STEPS)], [EVIL]))
        page = Page(html)
        assert not {"script", "img"} & {tag for tag, _ in page.tags}
        assert not any(name.startswith("on") for _, found in page.tags for name in found)
        assert not re.search("[\x00-\x08\x1b\x9b\u202e\ud800]", html)

    def test_replaces_its_own_pages_only(self) -> None:
        assert run("-o", "page.html").exit_code == 0
        assert run("recall", "-o", "page.html").exit_code == 0
        assert ": 1 run" in Path("page.html").read_text("utf-8")
        Path("notes.html").write_text("mine")
        assert "was not written by `editor compare`" in refused("-o", "notes.html")
        assert Path("notes.html").read_text() == "mine"
        assert run("-o", "notes.html", "--force").exit_code == 0
        assert GENERATOR in Path("notes.html").read_text("utf-8")

    @pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
    def test_where_no_page_may_be(self, force: tuple[str, ...]) -> None:
        Path("mine").write_text("mine")
        Path("link").symlink_to("mine")
        assert "is no file" in refused("-o", "runs", *force)
        assert "is no file" in refused("-o", "link", *force)
        assert "cannot write" in refused("-o", "nowhere/page.html", *force)
        assert Path("mine").read_text() == "mine"
        assert not Path("nowhere").exists()


class TestDrawing:
    def drawn(self, n: int) -> Any:
        runs = [make_run(STEPS, model=f"org/m{at}") for at in range(n)]
        return shares_of(compare(runs).runs)

    def test_points_are_where_the_shares_are(self) -> None:
        drawing = shares_of(compare([make_run(STEPS)]).runs)
        (line,) = drawing.lines
        zero, whole = drawing.y_ticks[0].at, drawing.y_ticks[-1].at
        shares = [(zero - dot.y) / (zero - whole) for dot in line.dots]
        assert shares == pytest.approx([0.4, 0.7, 0.9, 1.0], abs=0.001)
        assert [dot.x for dot in line.dots] == [tick.at for tick in drawing.x_ticks]

    @pytest.mark.parametrize("n", [1, 2, 3, 8, 60])
    def test_names_keep_apart_and_inside(self, n: int) -> None:
        drawing = self.drawn(n)
        places = sorted(line.name_y for line in drawing.lines)
        assert all(b - a > 17 for a, b in zip(places, places[1:], strict=False))
        assert places[0] > 0
        assert places[-1] < drawing.bottom
        assert drawing.names_end < min(line.dots[0].x for line in drawing.lines)
        # Bands of many runs would hide each other.
        assert all(bool(line.band) == (n <= 3) for line in drawing.lines)

    def test_spread_moves_no_more_than_needed(self) -> None:
        assert spread([50.0, 10.0], 18, 0, 100) == [50.0, 10.0]
        assert spread([50.0, 50.0], 18, 0, 100) == [50.0, 68.0]
        assert spread([99.0, 100.0], 18, 0, 100) == [82.0, 100.0]

    def test_a_run_of_many_heads_is_cut(self) -> None:
        many: Finished = make_run({str(head): (1.0, 0.1) for head in ALL})
        (line,) = shares_of(compare([many]).runs).lines
        assert len(line.dots) == 40
