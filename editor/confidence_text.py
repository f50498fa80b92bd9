"""How sure a search is of its heads, in plain sentences and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from editor.records import Confidence, Confirmation, Estimate, Head, Mask
from editor.responses import RELEVANT_NATS
from editor.wording import one_line

MAX_NAMES = 8
MAX_GROUPS = 5
RIVAL_COLUMNS = ("Estimator", "Its first heads", "Of these decided")


def sentence(found: Confidence, *, improve: bool = False) -> str:
    """`5 heads decided at 95 % (L1H2, ...), 2 more undecided (...) after 62 masks in 6 rounds`."""
    decided = f"{_decided(found, improve)} at {_level(found)}{_bracketed(found.decided)}"
    undecided = f"{_undecided(found)}{_bracketed(found.undecided)}"
    rounds = f"{found.rounds} round{'' if found.rounds == 1 else 's'}"
    return f"{decided}, {undecided} after {found.evaluations} masks in {rounds}"


def summary(
    found: Confidence | None, confirmation: Confirmation | None, *, improve: bool = False
) -> str:
    """How sure the search was, then how sure the chosen heads are: two sets of heads.

    `5 heads decided, 2 more undecided; of 4 chosen 4 are decided, 3 surely matter alone, 0 of 20
    random sets of the same layers come near`.  Empty where neither is known.
    """
    if found is None and confirmation is None:
        return ""
    said = (
        "this method ranks heads and decides none"
        if found is None
        else f"{_decided(found, improve)}, {_undecided(found)}"
    )
    parts = _of_chosen(found, confirmation, improve) if confirmation else []
    sets = confirmation.random_sets if confirmation else None
    if sets is not None:
        come = "comes" if sets.n_near == 1 else "come"
        parts.append(
            f"{sets.n_near} of {len(sets.sets)} random sets of the same layers {come} near"
        )
    return "; ".join([said, ", ".join(parts)]) if parts else said


def _of_chosen(found: Confidence | None, checks: Confirmation, improve: bool) -> list[str]:
    """How many of the chosen heads are decided, and how many cost something alone."""
    said: list[str] = []
    if found is not None:
        n = len(set(checks.heads) & set(found.decided))
        said.append(f"{n} {'is' if n == 1 else 'are'} decided")
    if checks.alone and not improve:
        sure = sum(one.low > 0 and one.effect >= RELEVANT_NATS for one in checks.alone)
        cut = len(checks.alone) < len(checks.heads)
        first = f" of the first {len(checks.alone)}" if cut else ""
        said.append(f"{sure}{first} surely {'matters' if sure == 1 else 'matter'} alone")
    return [f"of {len(checks.heads)} chosen {said[0]}", *said[1:]] if said else []


def sentences(found: Confidence, *, improve: bool = False) -> list[str]:
    """All that is known of a search's certainty: one sentence for each kind of doubt."""
    first = found.sentence[:1].upper() + found.sentence[1:]
    said = [
        f"{first}. The search stopped because {one_line(found.stopped)}.",
        f"No head passes z = {found.chance_z:.1f} by chance in 19 of 20 searches; a head is "
        f"decided when it does, and matters with a probability of at least {_level(found)}.",
    ]
    if found.not_ruled_out:
        one = found.not_ruled_out == 1
        said.append(
            f"{found.not_ruled_out} other head{'' if one else 's'} could, by "
            f"{'its interval' if one else 'their intervals'}, matter as much as the least of those "
            "decided."
        )
    if found.groups:
        listed = "; ".join(" or ".join(map(str, group)) for group in found.groups[:MAX_GROUPS])
        more = len(found.groups) - MAX_GROUPS
        said.append(
            f"The masks cannot tell the heads of a group apart: {listed}"
            f"{f' (and {more} more groups)' if more > 0 else ''}."
        )
    if found.helped:
        heads, verb = names(found.helped), "is" if len(found.helped) == 1 else "are"
        said.append(
            f"{heads} {verb} decided as well, but the task needs {_them(found.helped)}."
            if improve
            else f"{heads} {verb} decided as well, but the task does better without "
            f"{_them(found.helped)}."
        )
    return said


def rival_rows(estimate: Estimate) -> list[tuple[str, str, str]]:
    """Estimator, its first heads, how many of them are decided."""
    decided = {one.head for one in estimate.effects if one.decided}
    return [
        (
            one_line(one.solver),
            ", ".join(map(str, one.heads)) or "none",
            f"{sum(head in decided for head in one.heads)} of {len(one.heads)}",
        )
        for one in estimate.rivals
    ]


def scan_text(
    heads: Sequence[Head],
    n_scanned: int | None,
    over_limit: Sequence[Head] = (),
    not_numbers: Mapping[str, Sequence[Mask]] | None = None,
) -> str:
    """Which heads all text needs, or that nobody looked; and those that were kept out besides.

    Args:
        n_scanned: heads that were tried alone on every text; None where nothing was searched.
        over_limit: other heads that alone cost a text more than its limit.
        not_numbers: by task the masks under which a score is not a number.
    """
    if n_scanned is None:
        return ""
    untold = {mask[0] for masks in (not_numbers or {}).values() for mask in masks if len(mask) == 1}
    said = _universal_text([head for head in heads if head not in untold], n_scanned)
    if kept_out := [head for head in heads if head in untold]:
        said += (
            " Kept out as well, since without "
            f"{'it' if len(kept_out) == 1 else 'any of them'} the model's scores on text are not "
            f"numbers: {names(kept_out)}."
        )
    if over_limit:
        one = len(over_limit) == 1
        said += (
            f" Kept out as well, since {'it' if one else 'each of them'} alone costs a text more "
            f"than its limit, so whether the capability needs {'it' if one else 'them'} is not "
            f"known: {names(over_limit)}."
        )
    return said


def _universal_text(heads: Sequence[Head], n_scanned: int) -> str:
    if n_scanned:
        if not heads:
            return f"None of {n_scanned} heads is needed by all text."
        return f"Kept out of the search, since all text needs them: {', '.join(map(str, heads))}."
    if not heads:
        return (
            "Universal heads were not looked for by trying every head on text, so heads that all "
            "text needs may be among those that were found."
        )
    return (
        "Universal heads were not looked for among all heads. Of those that the search came upon, "
        f"all text needs {', '.join(map(str, heads))}; they were set apart."
    )


def names(heads: Sequence[Head]) -> str:
    """The first heads by name, and how many there are beside them."""
    shown = ", ".join(map(str, heads[:MAX_NAMES]))
    return shown + (f" and {len(heads) - MAX_NAMES} more" if len(heads) > MAX_NAMES else "")


def _decided(found: Confidence, improve: bool) -> str:
    n = len(found.decided)
    kind = "hindering head" if improve else "head"
    return f"{n or 'no'} {kind}{'' if n == 1 else 's'} decided"


def _undecided(found: Confidence) -> str:
    more = " more" if found.decided else ""
    return f"{len(found.undecided)}{more} undecided" if found.undecided else "none undecided"


def _bracketed(heads: Sequence[Head]) -> str:
    return f" ({names(heads)})" if heads else ""


def _them(heads: Sequence[Head]) -> str:
    return "it" if len(heads) == 1 else "them"


def _level(found: Confidence) -> str:
    return f"{100 * found.level:.12g} %"
