"""What is wrong with the texts of an edited model: an edit that breaks them has removed nothing."""

from __future__ import annotations

from collections.abc import Sequence

from editor.records import FaultCounts, Scores, WrittenFaults

MOST = 0.5
"""Share from which answers are mostly broken."""
BROKEN = ("loop", "gibberish", "empty")


def written_faults(base: Scores, edited: Scores) -> WrittenFaults | None:
    """The faults of both models' texts, paired by item.

    Returns:
        None where the task asks for no texts, or a journal is from before faults were looked for.
    """
    if base.faults is None or edited.faults is None:
        return None
    pairs = zip(base.exact, edited.exact, base.faults, edited.faults, strict=True)
    lost = [(before, after) for b, e, before, after in pairs if e < b]
    return WrittenFaults(
        n=len(base.faults),
        base=_counts(base.faults),
        edited=_counts(edited.faults),
        lost=len(lost),
        lost_faulty=sum(bool(after) and not before for before, after in lost),
    )


def objection(found: WrittenFaults | None) -> str | None:
    """Why a removal is none by the texts, if so.

    A model that wrote no better before the edit is not said to be broken by it.
    """
    if found is None:
        return None
    if found.edited.broken > max(MOST * found.n, found.base.broken):
        return (
            f"{found.edited.broken} of {found.n} answers after the edit are loops, gibberish or "
            f"empty ({found.base.broken} before): the model no longer writes"
        )
    if found.lost_faulty > MOST * found.lost:
        return (
            f"{found.lost_faulty} of the {found.lost} answers that are lost have become refusals, "
            "loops, gibberish or empty: the capability may be there still"
        )
    return None


def sentence(found: WrittenFaults) -> str:
    """All counts, before and after."""
    return (
        f"Of {found.n} written answers, before and after the edit: "
        f"{found.base.refusal} and {found.edited.refusal} refusals, "
        f"{found.base.loop} and {found.edited.loop} loops, "
        f"{found.base.gibberish} and {found.edited.gibberish} gibberish, "
        f"{found.base.empty} and {found.edited.empty} empty."
    )


def _counts(faults: Sequence[str]) -> FaultCounts:
    return FaultCounts(**{name: faults.count(name) for name in FaultCounts.model_fields})
