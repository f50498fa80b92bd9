"""Numbers and verdicts in words, shared by the terminal, the report and the model card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from editor.records import Manifest, Metric, Result

# CSI and OSC sequences first, so that their parameters go with them; then what is left of controls.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[@-_]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")

METRIC_NAMES: dict[Metric, str] = {
    "exact": "right answers",
    "logprob": "log-probability of the answer, nats",
    "nats_per_token": "loss on text, nats a token",
}
GATE_WORDS = {
    "pass": "pass",
    "unsure": "unsure",
    "fail": "FAIL",
    "floor": "at floor",
    "info": "no limit",
}
MINUS = "\N{MINUS SIGN}"
COLUMNS = ("Task", "n", "Base", "Edited", "Change", "95% CI", "Limit", "Gate")


class Row(NamedTuple):
    """One result as text; the fields stand in the order of `COLUMNS`."""

    task: str
    n: str
    base: str
    edited: str
    change: str
    ci: str
    limit: str
    gate: str


def strip_control(text: str) -> str:
    """`text` without what would act on a terminal or reorder what is read.

    Escape sequences go whole, then all control characters but newline and tab, then marks that
    turn the reading direction.  A lone surrogate, which no file could hold, becomes U+FFFD.
    """
    text = _CONTROLS.sub("", _ESCAPES.sub("", text))
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


def one_line(text: str) -> str:
    """`text` made harmless and put on one line."""
    return " ".join(strip_control(text).split())


def value_text(value: float, metric: Metric) -> str:
    """A score: a share as a percentage, nats as they are."""
    return _minus(f"{100 * value:.1f}%" if metric == "exact" else f"{value:.3f}")


def change_text(change: float, metric: Metric) -> str:
    """A change with its sign: percentage points, or nats."""
    text = f"{100 * change:+.1f}" if metric == "exact" else f"{change:+.3f}"
    # "-0.0" would claim a direction that the digits do not show.
    return _minus(text if float(text) else text.replace("-", "+"))


def interval_text(ci: tuple[float, float], metric: Metric) -> str:
    """Both ends of the interval of a change."""
    return f"{change_text(ci[0], metric)} to {change_text(ci[1], metric)}"


def limit_text(result: Result) -> str:
    """The limit with its direction: a target has to fall below it, a control to stay above."""
    if result.limit is None:
        return "\N{EN DASH}"
    below = result.role == "target" or result.limit > 0
    return f"{'≤' if below else '≥'} {change_text(result.limit, result.metric)}"


def ordered(results: Sequence[Result]) -> list[Result]:
    """Target rows first, otherwise in the order given."""
    return sorted(results, key=lambda result: result.role != "target")


def row_of(result: Result) -> Row:
    """One result as the texts of a table row."""
    metric = result.metric
    return Row(
        one_line(result.task),
        str(result.n),
        value_text(result.base, metric),
        value_text(result.edited, metric),
        change_text(result.change, metric),
        interval_text(result.ci, metric),
        limit_text(result),
        GATE_WORDS[result.gate],
    )


def results_table(results: Sequence[Result]) -> str:
    """The results as an aligned table of ASCII characters, target rows first.

    Shares are percentages and their changes percentage points; the metric stands with the task.
    """
    rows = [Row(*COLUMNS)]
    for result in ordered(results):
        row = row_of(result)
        rows.append(row._replace(task=f"{row.task} ({result.metric})"))
    cells = [[_ascii(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = [_aligned(row, widths) for row in cells]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def model_name(manifest: Manifest) -> str:
    """The last part of the base's name."""
    return one_line(manifest.base).rstrip("/").rsplit("/", 1)[-1] or "the model"


def capability_name(manifest: Manifest) -> str | None:
    """What was removed, or None when heads were given without a purpose."""
    if manifest.settings is not None:
        return one_line(manifest.settings.capability)
    return None if manifest.plan is None else one_line(manifest.plan.capability)


def headline(manifest: Manifest) -> str:
    """What was done, as a title."""
    model, capability = model_name(manifest), capability_name(manifest)
    if capability is None:
        return f"{model} with {_heads(manifest)} zeroed, not measured"
    if manifest.validation is None:
        return f"NOT VALIDATED: {model} with {_heads(manifest)} zeroed to remove {capability}"
    if not manifest.validation.accepted:
        return f"NOT VALIDATED: {model} edited to remove {capability}"
    target = target_result(manifest)
    lost = 1.0 if target is None or not target.base else -target.change / target.base
    how = "removed" if lost >= 0.9 else f"reduced by {100 * lost:.0f} %"
    return f"{model} with {capability} {how}"


def removal_text(manifest: Manifest, n_heads: int | None = None) -> str:
    """What was removed and how well, in one or two sentences; `n_heads` is the model's number."""
    of_all = "" if n_heads is None else f" of the model's {n_heads:,}"
    done = f"{_heads(manifest)}{of_all} {_were(len(manifest.heads))} set to zero"
    target = target_result(manifest)
    if target is None:
        return f"{done}. Nothing was measured: what this removed, and what it cost, is not known."
    return (
        f"{done}. {_subject(target)} went from {value_text(target.base, target.metric)} to "
        f"{value_text(target.edited, target.metric)} on {target.n} questions that the search had "
        f"not seen ({_change_phrase(target)})."
    )


def cost_text(manifest: Manifest) -> str:
    """What the edit cost, in a few sentences: controls that broke their limit come first."""
    judged = control_results(manifest)
    if not judged:
        return "No other ability was measured against a limit, so what else it cost is not known."
    passed = sum(result.gate == "pass" for result in judged)
    text = f"Of {len(judged)} other measurements with a limit, {passed} stayed within it" + (
        " with their whole interval." if passed else "."
    )
    worst = [result for result in judged if result.gate != "pass"]
    for result in worst or judged[:4]:
        reading = {"fail": "outside its limit", "unsure": "not certain", "floor": "cannot be told"}
        note = reading.get(result.gate)
        text += f" {one_line(result.task)}: {_change_phrase(result)}{f', {note}' if note else ''}."
    return text


def target_result(manifest: Manifest) -> Result | None:
    """The row that the verdict rests on: the first target with a limit, or the first target."""
    results = () if manifest.validation is None else manifest.validation.results
    targets = [result for result in results if result.role == "target"]
    return next((at for at in targets if at.limit is not None), next(iter(targets), None))


def control_results(manifest: Manifest) -> list[Result]:
    """The controls that have a limit."""
    results = () if manifest.validation is None else manifest.validation.results
    return [at for at in results if at.role == "control" and at.limit is not None]


def not_shown(manifest: Manifest) -> list[str]:
    """What the numbers must not be taken for, as sentences."""
    lines = [
        "Zeroed heads can be trained again. Whether fine-tuning brings the ability back was not "
        "tested.",
        "Requantizing, merging and adapters change the weights again; what is said here holds for "
        "these files only.",
    ]
    if manifest.validation is None:
        return ["Nothing was measured, so nothing is known of what the edit does.", *lines]
    return [
        "It is a measurement on the tasks listed, not a guarantee: another wording, language or "
        "task may still bring out what was removed.",
        "An ability that is not in the table may have changed unnoticed.",
        "The intervals cover the choice of questions, not the choice of tasks or of the seed.",
        *lines,
    ]


def commands(manifest: Manifest) -> list[tuple[str, str]]:
    """What to type to check and to repeat the edit: pairs of a purpose and a command."""
    base = one_line(manifest.model)
    if manifest.model == manifest.base and "/" not in base:
        base = f"PATH/TO/{base}"  # a local folder, of which only the name is recorded
    if manifest.revision and "/" in base and "@" not in base:
        base += f"@{one_line(manifest.revision)}"
    base = shlex.quote(base)
    heads = ",".join(map(str, manifest.heads))
    return [
        ("Compare every byte with the base", f"editor verify . --base {base}"),
        (
            "Measure it again, against the base",
            f"editor validate . --base {base}"
            + ("" if manifest.settings else " --capability CAPABILITY"),
        ),
        (
            "Write the same files again",
            f"editor bake --model {base} --heads {heads} --output again",
        ),
    ]


def _heads(manifest: Manifest) -> str:
    n = len(manifest.heads)
    return f"{n} attention head{'' if n == 1 else 's'}"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def _subject(result: Result) -> str:
    task = one_line(result.task)
    if result.metric == "exact":
        return f"Right answers on {task}"
    return f"The log-probability of {task} ({METRIC_NAMES[result.metric].split(', ')[1]})"


def _change_phrase(result: Result) -> str:
    unit = {"exact": "points", "logprob": "nats", "nats_per_token": "nats a token"}[result.metric]
    change = change_text(result.change, result.metric)
    return f"{change} {unit}, 95% interval {interval_text(result.ci, result.metric)}"


def _minus(text: str) -> str:
    return text.replace("-", MINUS)


def _ascii(text: str) -> str:
    for char, plain in ((MINUS, "-"), ("≤", "<="), ("≥", ">="), ("\N{EN DASH}", "-")):
        text = text.replace(char, plain)
    return text.encode("ascii", "backslashreplace").decode()


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    # Words to the left, numbers to the right.
    sides = "<>>>>>><"
    cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
    return " | ".join(cells).rstrip()
