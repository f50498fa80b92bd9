"""Numbers and verdicts in words, shared by the terminal, the report and the model card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from editor.records import FormLoss, Mask, Metric, Result

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
UNITS: dict[Metric, str] = {
    "exact": "share of right answers",
    "logprob": "nats",
    "nats_per_token": "nats a token",
}
LOG_SHARE = "log share of right answers"
GATE_WORDS = {
    "pass": "pass",
    "unsure": "unsure",
    "fail": "FAIL",
    "floor": "at floor",
    "info": "no limit",
}
MAX_MASKS = 3
"""Masks that a sentence lists."""
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


def unit_of(score: Metric, solver: str) -> str:
    """The unit of an estimate's effects: counts are fitted as logarithms, see `responses`."""
    return LOG_SHARE if score == "exact" and solver != "each head alone" else UNITS[score]


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


def ascii_text(text: str) -> str:
    """`text` for terminals that know nothing but ASCII."""
    for char, plain in ((MINUS, "-"), ("≤", "<="), ("≥", ">="), ("\N{EN DASH}", "-")):
        text = text.replace(char, plain)
    return text.encode("ascii", "backslashreplace").decode()


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
    """The limit with its direction: a target has to fall below it, a control to stay above.

    A target that is to get better has to rise above it.
    """
    if result.limit is None:
        return "\N{EN DASH}"
    if result.rise:
        return f"> {change_text(result.limit, result.metric)}"
    below = result.role == "target" or result.metric == "nats_per_token"
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
    cells = [[ascii_text(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*cells, strict=True)]
    lines = [_aligned(row, widths) for row in cells]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """`42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size_text(n_bytes: int) -> str:
    """`1.5 GiB`."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def listed(names: Iterable[str]) -> str:
    """`a`, `a and b` or `a, b and c`."""
    *before, last = map(one_line, names)
    return f"{', '.join(before)} and {last}" if before else last


def last_part(model: str) -> str:
    """The last part of a model's name."""
    return one_line(model).rstrip("/").rsplit("/", 1)[-1] or "the model"


FORM_KINDS = {
    "format": "these heads carry the answer format, not the capability",
    "capability": "the rest is the answer itself",
    "undecided": "whether the answer itself is lost is not decided",
}


def not_numbers_text(masks: Sequence[Mask]) -> str:
    """How many masks told nothing, and of which heads; "" where all yielded numbers."""
    if not masks:
        return ""
    shown = "; ".join(", ".join(map(str, mask)) for mask in masks[:MAX_MASKS])
    more = f"; and {len(masks) - MAX_MASKS} more" if len(masks) > MAX_MASKS else ""
    one = len(masks) == 1
    yielded = "mask yielded a score that is" if one else "masks yielded scores that are"
    left = "it is" if one else "they are"
    return f"{len(masks)} {yielded} not a number; {left} left out of the figures: {shown}{more}."


def form_text(loss: FormLoss, heads: str = "the removed heads") -> str:
    """What of a loss is the form of the answers, in one or two sentences."""
    under = f"without {heads}"
    if loss.share is None or loss.share_low is None or loss.share_high is None:
        text = f"The beginning of the answer loses too little {under} to tell what."
    else:
        interval = f"95% interval {100 * loss.share_low:.0f} to {100 * loss.share_high:.0f} %"
        # A share below 0: the other answers gained on what is no answer.
        share = f"{100 * loss.share:.0f} %" if loss.share >= 0 else "nothing"
        text = _minus(
            f"Of the {loss.form + loss.right:.2f} nats that the beginning of the answer loses "
            f"{under}, {share} is lost form ({interval}): {FORM_KINDS[loss.kind]}."
        )
    if abs(loss.after) >= 0.005:
        later = _minus(f"{loss.after:.2f}")
        text += f" Later tokens of the answer, which are not split, lose {later}."
    return text


def _minus(text: str) -> str:
    return text.replace("-", MINUS)


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    # Words to the left, numbers to the right.
    sides = "<>>>>>><"
    cells = (f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True))
    return " | ".join(cells).rstrip()
