"""The checks on the chosen heads in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from editor.records import Confirmation, Interaction, MeanAblated, Measured
from editor.wording import change_text, interval_text, one_line

KINDS = {
    "needs_both": "more together",
    "redundant": "less together",
    "none": "no more, no less",
    "too_few": "gone either way",
}
"""`Interaction.kind` in a table."""


PAIR_COLUMNS = ("Pair", "First", "Second", "Both", "Beyond the sum", "95% CI", "n", "Reading")


def sentences(found: Confirmation, *, improve: bool = False) -> list[str]:
    """One sentence or two for each check: pairs, means, random sets.

    Args:
        improve: the target was to get better.
    """
    if improve:
        means = gain_text(found.mean_ablated)
        return [*([means] if means else []), random_text(found, improve=True)]
    return [
        *([pairs_text(found)] if found.interactions else []),
        means_text(found.mean_ablated),
        random_text(found),
    ]


def pairs_text(found: Confirmation) -> str:
    """Which pairs cost more, and which less, than the two heads alone."""
    pairs = found.interactions
    by_kind = {kind: [at for at in pairs if at.kind == kind] for kind in KINDS}
    parts: list[str] = []
    if both := by_kind["needs_both"]:
        parts.append(
            f"{_pairs(both)} more together than the two heads alone: each stands in for the "
            f"other, or both carry an answer that each alone leaves likely: {_listed(both)}"
        )
    if less := by_kind["redundant"]:
        parts.append(
            f"{_pairs(less)} less together than the two heads alone, their work overlaps: "
            f"{_listed(less)}"
        )
    if rest := by_kind["none"]:
        others = "the other " if parts else ""
        parts.append(f"{others}{len(rest)} cannot be told from adding up")
    if few := by_kind["too_few"]:
        parts.append(f"for {len(few)} too few questions are not lost either way to tell")
    return f"Of {_count(len(pairs), 'pair')} of chosen heads, {'; '.join(parts)}."


def means_text(found: MeanAblated | None) -> str:
    """Whether the effect is one of the number zero."""
    if found is None:
        return "Means in the place of zeros were not tried: the answers are written, not scored."
    answers = (
        f"right answers change by {_points(found.exact_lost_zero)} with zero and by "
        f"{_points(found.exact_lost_mean)} with means"
    )
    if found.share is None:
        return (
            "With the heads at zero the answers do not surely lose log-probability here, so what "
            f"of it remains with means cannot be told; {answers}."
        )
    verdict = {
        "not_artefact": "The effect is not an artefact of zero",
        "artefact": "The effect is for the most part an artefact of zero",
        "partly": "Whether the effect is one of zero cannot be told surely",
        "unclear": "What zero does cannot be told",
    }[found.verdict]
    share = found.share
    return (
        f"{verdict}: with the heads at their mean output {_percent(share.value)} of the lost "
        f"log-probability stays lost (95% interval {_percent(share.low)} to "
        f"{_percent(share.high)}); {answers}."
    )


def gain_text(found: MeanAblated | None) -> str | None:
    """Whether a gain remains with means in the place of zeros."""
    if found is None:
        return None
    return (
        f"With the heads at zero right answers change by {_points(found.exact_lost_zero)} on these "
        f"questions, with the heads at their mean output by {_points(found.exact_lost_mean)}."
    )


def random_text(found: Confirmation, *, improve: bool = False) -> str:
    """How random heads of the same layers compare."""
    sets = found.random_sets
    if sets is None:
        return "The layers of the chosen heads have no others, so no random sets were tried."
    size = len(sets.sets[0].heads)
    fewer = "" if size == len(found.heads) else " (their layers have no more)"
    if improve:
        best = change_text(-min(at.loss for at in sets.sets), "logprob")
        return (
            f"Of {len(sets.sets)} random sets of {_count(size, 'head')}{fewer} from the same "
            f"layers, {sets.n_as_costly or 'none'} {'do' if sets.n_as_costly > 1 else 'does'} "
            f"{one_line(found.task)} as much good as the chosen heads, or more (at best {best} "
            f"nats an answer against {change_text(-sets.chosen, 'logprob')}; "
            f"p = {sets.p_value:.3f})."
        )
    least, most = (change_text(pick(at.loss for at in sets.sets), "logprob") for pick in (min, max))
    return (
        f"Of {len(sets.sets)} random sets of {_count(size, 'head')}{fewer} from the same layers, "
        f"{sets.n_near or 'none'} {'costs' if sets.n_near == 1 else 'cost'} "
        f"{one_line(found.task)} half of what the chosen heads cost, and "
        f"{sets.n_as_costly or 'none'} as much ({least} to {most} nats an answer against "
        f"{change_text(sets.chosen, 'logprob')}; p = {sets.p_value:.3f})."
    )


def pair_rows(pairs: Sequence[Interaction]) -> list[tuple[str, ...]]:
    """Both heads, each alone, together, beyond the sum, its interval, what it means."""
    return [
        (
            " + ".join(map(str, at.heads)),
            *(change_text(value, "logprob") for value in (*at.alone, at.together)),
            change_text(at.interaction.value, "logprob"),
            interval_text((at.interaction.low, at.interaction.high), "logprob"),
            str(at.n_items),
            KINDS[at.kind],
        )
        for at in pairs
    ]


def _listed(pairs: Sequence[Interaction]) -> str:
    """`L1H2 with L4H0 (+0.10 and +0.20 alone, +1.50 together)`."""
    return ", ".join(
        f"{at.heads[0]} with {at.heads[1]} ({change_text(at.alone[0], 'logprob')} and "
        f"{change_text(at.alone[1], 'logprob')} alone, {change_text(at.together, 'logprob')} "
        "together)"
        for at in pairs
    )


def _pairs(pairs: Sequence[Interaction]) -> str:
    return f"{len(pairs)} {'costs' if len(pairs) == 1 else 'cost'}"


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _points(lost: Measured) -> str:
    ends = interval_text((-lost.high, -lost.low), "exact")
    return f"{change_text(-lost.value, 'exact')} points ({ends})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"
