"""Finished runs side by side: the same capability in two models, two capabilities in one model.

Only the first estimate of a run is used, the one with nothing else out, and of that no universal
heads: every text needs them, and only some searches measure them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from editor.concentration import Tally, is_told, overlap, spearman, tally, top_shares
from editor.records import (
    Comparison,
    Concentration,
    Contrast,
    Estimate,
    Fingerprint,
    Localization,
    SharedHeads,
)

N_TOP = 10
"""The most heads of a run that are looked for among those of another."""
CONTRAST_KS = (1, 5)
"""Numbers of heads for which two models are compared."""
CONTRAST_PART = 0.01
"""Part of all heads for which two models are compared, whatever their sizes."""
DECIDING = ("method", "improve", "dtype", "search_items", "choose_items")
"""Settings that change how large an effect comes out, or how well it is told from zero."""


class Finished(NamedTuple):
    """A run that has found its heads."""

    folder: str
    fingerprint: Fingerprint
    found: Localization

    def each(self) -> list[Finished]:
        """The run as it would be for each of its targets alone."""
        of_run = self.fingerprint.settings
        settings = [
            of_run.model_copy(update={"capability": name, "also": ()}) for name in of_run.targets
        ]
        return [
            Finished(self.folder, self.fingerprint.model_copy(update={"settings": at}), found)
            for at, found in zip(settings, self.found.each(), strict=True)
        ]


class Side(NamedTuple):
    """One run of a comparison."""

    label: str
    run: Finished
    estimate: Estimate
    """The effects with nothing else out, without universal heads."""
    tally: Tally

    @property
    def capability(self) -> str:
        """What was searched for."""
        return self.run.fingerprint.settings.capability

    @property
    def checkpoint(self) -> str:
        """The model, by its content."""
        return self.run.fingerprint.checkpoint

    def n_heads(self) -> int:
        """All heads of the model: the scan for universal heads looks at every one."""
        seen = {one.head for at in self.run.found.universal.effects for one in at.effects}
        return len(seen.union(one.head for one in self.run.found.estimates[0].effects))


def compare(runs: Sequence[Finished], notes: Sequence[str] = ()) -> Comparison:
    """Compare runs: each by itself, the same capability across models, capabilities of one model.

    Args:
        runs: at least one.
        notes: what the caller has to say of runs that are not among them.
    """
    estimates = [_specific(run.found) for run in runs]
    sides = [
        Side(label(place), run, estimate, tally(estimate))
        for place, (run, estimate) in enumerate(zip(runs, estimates, strict=True))
    ]
    pairs = list(combinations(sides, 2))
    shared = tuple(shared_heads(a, b) for a, b in pairs if a.checkpoint == b.checkpoint)
    return Comparison(
        runs=tuple(map(concentration, sides)),
        contrasts=tuple(one for a, b in pairs for one in contrasts(a, b)),
        pairs=shared,
        notes=(*_method_notes(len(shared)), *_warnings(sides), *notes),
    )


def label(place: int) -> str:
    """A, B, ..., Z, AA, AB, ... for 0, 1, ..."""
    text, place = "", place + 1
    while place:
        place, letter = divmod(place - 1, 26)
        text = chr(ord("A") + letter) + text
    return text


def _specific(found: Localization) -> Estimate:
    universal = frozenset(found.universal.heads)
    first = found.estimates[0]
    kept = tuple(one for one in first.effects if one.head not in universal)
    return first.model_copy(update={"effects": kept})


def concentration(side: Side) -> Concentration:
    """How few heads hold the capability of one run."""
    estimate, fingerprint, n_heads = side.estimate, side.run.fingerprint, side.n_heads()
    n_told, n_measured = len(side.tally.heads), len(estimate.effects)
    n_hindering = sum(one.effect < 0 and is_told(one) for one in estimate.effects)
    half, half_ci = side.tally.half() if n_told else (None, None)
    return Concentration(
        label=side.label,
        run=side.run.folder,
        model=fingerprint.model,
        checkpoint=fingerprint.checkpoint,
        capability=side.capability,
        method=fingerprint.settings.method,
        score=estimate.score,
        solver=estimate.solver,
        n_heads=n_heads,
        n_left_out=len({*side.run.found.universal.heads, *side.run.found.over_limit}),
        n_measured=n_measured,
        n_told=n_told,
        n_hindering=n_hindering,
        n_open=n_measured - n_told - n_hindering,
        total=side.tally.total,
        shares=top_shares(estimate, side.tally, n_heads),
        half=half,
        half_ci=half_ci,
        half_of_heads=None if half is None else half / n_heads,
        chosen=side.run.found.heads,
    )


def shared_heads(a: Side, b: Side) -> SharedHeads:
    """What two runs on one model have in common; heads that one did not measure are left out."""
    effects = [{one.head: one.effect for one in side.estimate.effects} for side in (a, b)]
    common = sorted(effects[0].keys() & effects[1].keys())
    inside = frozenset(common)
    # Those not told from zero have no order: where they tie at 0, it would be the same in both.
    strongest = [[one.head for one in side.tally.heads if one.head in inside] for side in (a, b)]
    chosen = [[head for head in side.run.found.heads if head in inside] for side in (a, b)]
    return SharedHeads(
        a=a.label,
        b=b.label,
        n_common=len(common),
        chosen=overlap(chosen[0], chosen[1], len(common)),
        top=overlap(strongest[0][:N_TOP], strongest[1][:N_TOP], len(common)),
        rank_correlation=spearman(
            [effects[0][head] for head in common], [effects[1][head] for head in common]
        ),
    )


def contrasts(a: Side, b: Side) -> list[Contrast]:
    """The same capability and score on two models; none where a run tells too few heads."""
    if a.checkpoint == b.checkpoint or a.capability != b.capability:
        return []
    if a.estimate.score != b.estimate.score:
        return []
    part_a, part_b = (max(1, round(CONTRAST_PART * side.n_heads())) for side in (a, b))
    found: list[Contrast] = []
    for k_a, k_b in dict.fromkeys([*((k, k) for k in CONTRAST_KS), (part_a, part_b)]):
        # All heads that are told hold all of the total: that would compare nothing.
        if k_a < len(a.tally.heads) and k_b < len(b.tally.heads):
            found.append(_contrast(a, b, k_a, k_b))
    return found


def _contrast(a: Side, b: Side, k_a: int, k_b: int) -> Contrast:
    (share_a, draws_a), (share_b, draws_b) = a.tally.top(k_a), b.tally.top(k_b)
    low, high = np.percentile(draws_a - draws_b, [2.5, 97.5])
    return Contrast(
        a=a.label,
        b=b.label,
        k_a=k_a,
        k_b=k_b,
        difference=share_a - share_b,
        ci=(float(low), float(high)),
    )


def _method_notes(n_pairs: int) -> list[str]:
    notes = [
        "Shares are of the sum of the effects that are told from zero: those whose 95 % interval "
        "lies above it, and in an adaptive search also those of heads that more likely than not "
        "are among the few that matter. Effects too small to tell are missing from the sum, so the "
        "true shares are smaller; 'of all positive' counts every positive effect, noise among "
        "them. How many heads are told depends on the search, which measures few of them alone, as "
        "on the model. "
        "Universal heads, which every text needs, are left out wherever a search measured them.",
        "Intervals of shares are drawn from the heads' own intervals, for the same heads in every "
        "draw. They do not cover that heads are ranked by the effects they are summed by, which "
        "overrates the first few, nor the choice of masks.",
    ]
    if n_pairs:
        notes.append(
            "p is the probability that as many or more heads are shared by random sets of these "
            "sizes among the heads measured in both runs; it is not corrected for the number of "
            f"pairs ({n_pairs}). Shared heads may serve many tasks, not only these. Rank "
            "correlations are over all effects, and heads that a regression set to 0 tie."
        )
    return notes


def _warnings(sides: Sequence[Side]) -> list[str]:
    """What makes these runs less comparable than they look."""
    notes: list[str] = []
    if len({side.estimate.score for side in sides}) > 1:
        listed = ", ".join(f"{side.label} {side.estimate.score}" for side in sides)
        notes.append(f"Different scores: {listed}. Totals are not comparable, shares hardly.")
    for field in DECIDING:
        values = [str(getattr(side.run.fingerprint.settings, field)) for side in sides]
        if len(set(values)) > 1:
            listed = ", ".join(
                f"{side.label} {value}" for side, value in zip(sides, values, strict=True)
            )
            notes.append(f"Different {field.replace('_', ' ')}: {listed}. Shares depend on it.")
    if len({side.run.fingerprint.version for side in sides}) > 1:
        notes.append("The runs were made by different versions of the editor.")
    for side in sides:
        if n := len(side.run.found.over_limit):
            notes.append(
                f"{side.label}: {n} head{'' if n == 1 else 's'} that alone cost a text more than "
                "its limit were not searched: what they hold of the capability is in no total."
            )
    for a, b in combinations(sides, 2):
        same_run = a.run.fingerprint == b.run.fingerprint
        if same_run and a.run.found.estimates == b.run.found.estimates:
            notes.append(f"{a.label} and {b.label} are the same run: they agree by necessity.")
        same_name = a.run.fingerprint.model == b.run.fingerprint.model
        if same_name and a.checkpoint != b.checkpoint:
            notes.append(f"{a.label} and {b.label} name the same model, but its files differ.")
    return notes
