"""A comparison as one HTML page: where each mark of its figure goes, and the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from editor import compare_text
from editor.charts import Dot, Tick
from editor.errors import UsageError
from editor.records import Comparison, Concentration, TopShare
from editor.report import render_page
from editor.staging import writing
from editor.store import write_atomic
from editor.wording import last_part, one_line

GENERATOR = "capability-editor, compare"
"""What marks a page as one that may be replaced."""
N_COLOURS = 7
MAX_BANDS = 3
"""Up to how many runs have the bands of their intervals drawn: more would cover each other."""
MAX_K = 40
"""The figure ends here; the page's tables do not."""
MAX_NAME = 34
_GAP, _LETTER = 18, 7.5
"""Least distance of two labels' lines and usual width of a letter, in units of the drawing."""


class Line(NamedTuple):
    """One run: a line with its name at the left end."""

    css: str
    name: str
    title: str
    name_y: float
    dots: tuple[Dot, ...]
    band: str
    """Points of the polygon between the ends of the intervals; "" for none."""


class Shares(NamedTuple):
    """Share of the total over the number of heads, in the units of the drawing (x, y down)."""

    width: int
    height: int
    left: int
    right: int
    bottom: int
    names_end: float
    """Where the names end; the lines begin to the right of it."""
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]


def render_comparison(found: Comparison) -> str:
    """The page; it needs no network and no script."""
    n = len(found.runs)
    return render_page(
        "compare.html.j2",
        {
            "generator": GENERATOR,
            "headline": f"Where capabilities sit: {n} run{'' if n == 1 else 's'}",
            "found": found,
            "drawing": shares_of(found.runs),
            "n_bands": MAX_BANDS,
            "titles": [
                (run.label, compare_text.run_title(run), compare_text.run_facts(run))
                for run in found.runs
            ],
            "facts": compare_text.fact_rows(found),
            "shares": compare_text.share_rows(found),
            "contrasts": compare_text.contrast_rows(found),
            "pairs": compare_text.pair_rows(found),
            "words": compare_text,
        },
    )


def write_page(file: Path, page: str, *, force: bool) -> None:
    """Write the page, in place of an older one.

    Raises:
        UsageError: something else lies there, or nothing can be written there.
        DiskError: the disk is full or fails.
    """
    with writing(file):
        if file.is_symlink() or (file.exists() and not file.is_file()):
            raise UsageError(f"the output {file} exists and is no file", "choose another name")
        if file.exists() and not force:
            with file.open("rb") as stream:
                ours = GENERATOR.encode() in stream.read(1024)
            if not ours:
                raise UsageError(
                    f"{file} was not written by `editor compare`: it is not replaced",
                    "choose another name, or pass --force to replace it",
                )
        write_atomic(file, page)


def shares_of(runs: Sequence[Concentration], *, width: int = 760, height: int = 380) -> Shares:
    """Lay out a line for every run that tells a head from zero.

    The names stand at the lines' beginnings, where they are furthest apart: all end at 100 %.
    """
    drawn = [run for run in runs if run.n_told]
    names = [_name(run, drawn) for run in drawn]
    left, right, top, bottom = 52, 16, 14, 46
    height = max(height, top + bottom + _GAP * len(drawn))
    names_end = left + 14 + _LETTER * max(map(len, names), default=0)
    k_max = max([2, *(min(run.n_told, MAX_K) for run in drawn)])
    first = names_end + 26

    def at_x(k: int) -> float:
        return round(first + (width - right - first) * (k - 1) / (k_max - 1), 1)

    def at_y(share: float) -> float:
        return round(height - bottom - (height - top - bottom) * share, 1)

    def line(place: int, run: Concentration, name_y: float) -> Line:
        points = [one for one in run.shares if one.k <= min(run.n_told, k_max)]
        edges = [(at_x(one.k), at_y(one.ci[1])) for one in points]
        edges += [(at_x(one.k), at_y(one.ci[0])) for one in reversed(points)]
        return Line(
            f"c{place % N_COLOURS} d{place // N_COLOURS % 3}",
            names[place],
            f"{run.label}: {compare_text.run_title(run)}",
            name_y,
            tuple(Dot(at_x(p.k), at_y(p.share), _point_text(run, p)) for p in points),
            " ".join(f"{x},{y}" for x, y in edges) if len(drawn) <= MAX_BANDS else "",
        )

    starts = [at_y(run.shares[0].share) for run in drawn]
    name_ys = spread(starts, _GAP, top + 4.0, height - bottom - 4.0)
    step = 1 if k_max <= 12 else 5
    ks = sorted({1, *range(step, k_max + 1, step)})
    return Shares(
        width,
        height,
        left,
        width - right,
        height - bottom,
        names_end,
        tuple(Tick(at_x(k), str(k)) for k in ks),
        tuple(Tick(at_y(n / 4), f"{25 * n}%") for n in range(5)),
        tuple(line(place, run, name_ys[place]) for place, run in enumerate(drawn)),
    )


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places moved as little as needed to be `gap` apart inside low..high, in the same order."""
    order = sorted(range(len(places)), key=lambda at: places[at])
    out = list(places)
    floor = low
    for at in order:
        out[at] = max(out[at], floor)
        floor = out[at] + gap
    ceiling = high
    for at in reversed(order):
        out[at] = round(min(out[at], ceiling), 1)
        ceiling = out[at] - gap
    return out


def _name(run: Concentration, others: Sequence[Concentration]) -> str:
    """The letter, the capability, and what else tells the runs apart."""
    name = f"{run.label} {one_line(run.capability)}"
    if len({other.method for other in others}) > 1:
        name += f", {one_line(run.method)}"
    if len({other.model for other in others}) > 1:
        name += f", {last_part(run.model)}"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"


def _point_text(run: Concentration, one: TopShare) -> str:
    heads = "1 head" if one.k == 1 else f"{one.k} heads"
    low, high = (f"{100 * end:.0f}" for end in one.ci)
    return (
        f"{run.label}: {heads} ({compare_text.percent(one.of_heads)}% of all) hold "
        f"{100 * one.share:.0f}% ({low} to {high})"
    )
