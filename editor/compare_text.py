"""What `compare` shows: rows for the terminal's tables and for the page's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from editor.concentration import KS
from editor.display import heads_text, table
from editor.records import Comparison, Concentration, Overlap, SharedHeads
from editor.wording import last_part, one_line, unit_of

MAX_SHOWN = 40
"""The most rows of pairs that a terminal is shown."""
Rows = list[tuple[str, ...]]


def comparison_text(found: Comparison) -> str:
    """The tables, then what they must not be taken for."""
    lines: list[str] = []
    for run in found.runs:
        lines.append(f"{run.label}  {run_title(run)}")
        lines += [f"   {name:<7} {value}" for name, value in run_facts(run)]
    lines += ["", *table(fact_rows(found), "<" + ">" * 7 + "<"), ""]
    shares = share_rows(found)
    lines += [SHARES_TITLE, *table(shares, "<<" + ">" * len(KS))]
    if found.contrasts:
        lines += ["", CONTRASTS_TITLE, *table(contrast_rows(found), "<<>>")]
    if found.pairs:
        lines += ["", PAIRS_TITLE, *_cut(table(pair_rows(found), "<<>>>>><"))]
    return "\n".join([*lines, "", *(f"note  {one_line(note)}" for note in found.notes)])


SHARES_TITLE = "Percent of the total that the k strongest heads hold (95% interval)"
CONTRASTS_TITLE = (
    "The same capability in two models: share of the strongest heads, first minus second"
)
PAIRS_TITLE = "Heads shared on the same model, against chance"


def run_title(run: Concentration) -> str:
    """`recall in SmolLM2-135M-Instruct`."""
    return f"{one_line(run.capability)} in {last_part(run.model)}"


def run_facts(run: Concentration) -> list[tuple[str, str]]:
    """Where a run lies, how its effects were found, and what it chose."""
    return [
        ("run", one_line(run.run)),
        ("search", one_line(f"{run.method}: {run.solver}")),
        ("chosen", heads_text(run.chosen)),
    ]


def fact_rows(found: Comparison) -> Rows:
    """What each run told from zero, and how many heads hold half of that."""
    rows: Rows = [
        (
            "Run",
            "Heads",
            "Left out",
            "Measured",
            "Told",
            "Not told",
            "Hinder",
            "Total",
            "Half of the total in",
        )
    ]
    for run in found.runs:
        parts = run.n_measured, run.n_told, run.n_open, run.n_hindering
        counts = map(str, (run.n_heads, run.n_left_out, *parts))
        total = f"{run.total:.3f} {unit_of(run.score, run.solver)}" if run.n_told else "-"
        rows.append((run.label, *counts, total, half_text(run)))
    return rows


def half_text(run: Concentration) -> str:
    """`2 (2 to 3) heads, 0.74% of all`."""
    if run.half is None or run.half_ci is None or run.half_of_heads is None:
        return "no head is told from zero"
    low, high = run.half_ci
    heads = "head" if run.half == high == 1 else "heads"
    return f"{run.half} ({low} to {high}) {heads}, {percent(run.half_of_heads)}% of all"


def share_rows(found: Comparison) -> Rows:
    """Three lines a run: share, the same of all positive effects, and k as a part of all heads."""
    rows: Rows = [("Run", "", *(f"k={k}" for k in KS))]
    for run in found.runs:
        at = {one.k: one for one in run.shares}
        shown = [at.get(k) for k in KS]
        shares = [
            "-" if one is None else "all" if one.k >= run.n_told else _share(one.share, one.ci)
            for one in shown
        ]
        positive = ["-" if one is None else percent(one.of_positive) for one in shown]
        parts = [percent(k / run.n_heads) if k <= run.n_heads else "-" for k in KS]
        rows += [
            (run.label, "of the total", *shares),
            ("", "of all positive effects", *positive),
            ("", "k in % of the model's heads", *parts),
        ]
    return rows


def contrast_rows(found: Comparison) -> Rows:
    """One line a pair of runs and number of heads."""
    n_heads = {run.label: run.n_heads for run in found.runs}
    rows: Rows = [("Runs", "Strongest heads", "Difference in points", "95% interval")]
    for one in found.contrasts:
        heads = f"{one.k_a} of {n_heads[one.a]}, {one.k_b} of {n_heads[one.b]}"
        low, high = (f"{100 * end:+.0f}" for end in one.ci)
        difference = f"{100 * one.difference:+.0f}"
        rows.append((f"{one.a} - {one.b}", heads, difference, f"{low} to {high}"))
    return rows


def pair_rows(found: Comparison) -> Rows:
    """Two lines a pair: the chosen heads, and the largest effects."""
    rows: Rows = [
        ("Runs", "Heads", "Sizes", "Shared", "By chance", "p", "Rank correlation", "Which")
    ]
    rows += chain.from_iterable(map(_pair, found.pairs))
    return rows


def percent(share: float) -> str:
    """Without the sign; two digits below ten."""
    return f"{100 * share:.2g}" if share < 0.0995 else f"{100 * share:.0f}"


def _pair(pair: SharedHeads) -> Rows:
    correlation = pair.rank_correlation
    rank = "-" if correlation is None else f"{correlation:+.2f} ({pair.n_common} heads)"
    return [
        (f"{pair.a}, {pair.b}", "chosen", *_overlap(pair.chosen, "")),
        ("", "largest told", *_overlap(pair.top, rank)),
    ]


def _overlap(one: Overlap, rank: str) -> tuple[str, ...]:
    p = f"{one.p:.3f}" if one.p >= 0.001 else f"{one.p:.0e}"
    heads = ", ".join(map(str, one.heads))
    sizes = f"{one.n_a}, {one.n_b}"
    return sizes, str(len(one.heads)), f"{one.expected:.2f}", p, rank, heads


def _share(share: float, ci: tuple[float, float]) -> str:
    return f"{100 * share:.0f} ({100 * ci[0]:.0f}-{100 * ci[1]:.0f})"


def _cut(lines: Sequence[str]) -> list[str]:
    shown = list(lines[: MAX_SHOWN + 2])
    left = len(lines) - len(shown)
    return [*shown, f"and {left} more lines; --json lists all"] if left else shown
