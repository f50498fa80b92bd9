"""Records to text: the HTML report, and by re-export the model card and the terminal's table.

Whatever a model or a file name says is data here: control characters are dropped, the rest is
escaped by the template engine, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from editor import manifest_text, report_parts, wording
from editor.card import render_card
from editor.charts import curve_of
from editor.records import (
    Estimate,
    Manifest,
    ModelSpec,
    Result,
    Sample,
    UniversalHeads,
)
from editor.wording import results_table, strip_control

__all__ = ["render_card", "render_page", "render_report", "results_table", "strip_control"]

MAX_SAMPLES = 40
MAX_SAMPLE_CHARS = 4_000


class Piece(NamedTuple):
    """A run of text, marked when the other model does not say it."""

    text: str
    differs: bool


class Pair(NamedTuple):
    """A prompt with what both models say to it."""

    task: str
    prompt: str
    answer: str
    base: tuple[Piece, ...]
    edited: tuple[Piece, ...]
    same: bool


def render_report(
    manifest: Manifest,
    estimates: Sequence[Estimate],
    spec: ModelSpec | None = None,
    universal: UniversalHeads | None = None,
) -> str:
    """The run as one HTML page that needs no network and no script.

    Args:
        manifest: What was done and what it measured.
        estimates: Effects of the heads; the last one of a task is the one shown.
        spec: The base model, for the shape of the maps and the number of heads.
        universal: The scan for universal heads, for the map of costs.
    """
    return render_page("report.html.j2", _context(manifest, estimates, spec, universal))


def render_page(template: str, context: Mapping[str, Any]) -> str:
    """A template of an HTML page, everything in it escaped; `clean` drops control characters."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("editor"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template, globals={"clean": strip_control}).render(context)


def marked(base: str, edited: str) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """Both texts in pieces, those words marked that the other one lacks."""
    words = [re.findall(r"\s+|\w+|[^\w\s]", text) for text in (base, edited)]
    matcher = difflib.SequenceMatcher(None, *words, autojunk=False)
    left: list[Piece] = []
    right: list[Piece] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        left.append(Piece("".join(words[0][i1:i2]), tag != "equal"))
        right.append(Piece("".join(words[1][j1:j2]), tag != "equal"))
    return tuple(at for at in left if at.text), tuple(at for at in right if at.text)


def _context(
    manifest: Manifest,
    estimates: Sequence[Estimate],
    spec: ModelSpec | None,
    universal: UniversalHeads | None,
) -> dict[str, Any]:
    validation = manifest.validation
    results = wording.ordered(validation.results) if validation else []
    samples = validation.samples if validation else ()
    heads = spec.heads() if spec else ()
    improve = manifest_text.improves(manifest)
    edited_files = {edit.file for edit in manifest.edits}
    return {
        "manifest": manifest,
        "spec": spec,
        "status": _status(manifest),
        "headline": manifest_text.headline(manifest),
        "removal": manifest_text.removal_text(manifest, len(heads) or None),
        "cost": manifest_text.cost_text(manifest) if validation else None,
        "improve": improve,
        "targets": [_numbers(at) for at in manifest_text.target_results(manifest)],
        "capability": manifest_text.capability_name(manifest),
        "worst": _numbers(_worst(manifest_text.control_results(manifest))),
        "n_heads": len(heads),
        "columns": wording.COLUMNS,
        "rows": [
            (wording.row_of(at), at.role, at.gate, wording.METRIC_NAMES[at.metric])
            for at in results
        ],
        "parts": [_part(one, estimates) for one in manifest.each()],
        "sharing": report_parts.sharing(manifest),
        "maps": report_parts.maps(manifest, estimates, spec, universal),
        "universal": report_parts.universal_part(manifest, universal),
        "foreseen": report_parts.foreseen(manifest),
        "pairs": [_pair(at) for at in samples[:MAX_SAMPLES]],
        "samples_left_out": max(0, len(samples) - MAX_SAMPLES),
        "fits": _fits(estimates),
        "not_shown": manifest_text.not_shown(manifest),
        "commands": manifest_text.commands(manifest),
        "files": [(at, at.name in edited_files) for at in manifest.files],
        "times": [_time(key, value) for key, value in manifest.times.items()],
    }


def _part(one: Manifest, estimates: Sequence[Estimate]) -> dict[str, Any]:
    """What is told of one target."""
    own = [at for at in estimates if one.plan is None or at.task == one.plan.capability]
    validation, improve = one.validation, manifest_text.improves(one)
    return {
        "name": manifest_text.capability_name(one),
        "sure": report_parts.sure(one, own),
        "fits": _fits(own),
        "steps": report_parts.steps(one),
        "form": report_parts.form(one),
        "curve": curve_of(validation.curve) if validation and validation.curve else None,
        "curve_task": validation.curve_task if validation else "",
        "checks": report_parts.checks(one.confirmation, improve=improve),
    }


def _fits(estimates: Sequence[Estimate]) -> list[tuple[str, str]]:
    """How well effects that add up predict masks that were held out."""
    return [(at.task, f"{at.fit_r2:.2f}") for at in estimates if at.fit_r2 is not None]


def _status(manifest: Manifest) -> tuple[str, str]:
    """Class and words of the badge."""
    if manifest.validation is None:
        return "none", "NOT MEASURED"
    if manifest.validation.accepted:
        every = all(at.gate in ("pass", "info") for at in manifest.validation.results)
        return "ok", f"ACCEPTED: {'every check passed' if every else 'no check failed'}"
    return "bad", "NOT VALIDATED"


def _numbers(result: Result | None) -> dict[str, str] | None:
    return None if result is None else wording.row_of(result)._asdict()


def _worst(controls: Sequence[Result]) -> Result | None:
    """The control that used up most of its limit."""
    rated = [(at.change / at.limit, at) for at in controls if at.limit]
    return max(rated, key=lambda pair: pair[0])[1] if rated else None


def _pair(sample: Sample) -> Pair:
    base, edited = (
        text if len(text) <= MAX_SAMPLE_CHARS else text[:MAX_SAMPLE_CHARS] + " […]"
        for text in (strip_control(sample.base), strip_control(sample.edited))
    )
    pieces = marked(base, edited)
    prompt = strip_control(sample.prompt)[-MAX_SAMPLE_CHARS:]
    answer = strip_control(sample.answer)[:MAX_SAMPLE_CHARS]
    return Pair(wording.one_line(sample.task), prompt, answer, *pieces, base == edited)


def _time(key: str, value: object) -> tuple[str, str]:
    """Name and value of one fact; a name that ends in `_s` counts seconds."""
    name = wording.one_line(key.removesuffix("_s").replace("_", " "))
    if isinstance(value, int | float) and key.endswith("_s"):
        return name, f"{value:,.1f} s"
    return name, wording.one_line(str(value))
