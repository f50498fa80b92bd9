"""What several capabilities of one edit share, in words."""

from __future__ import annotations

from editor.records import Measured, Sharing
from editor.wording import change_text, interval_text, listed, one_line

TAKEN = (
    "share of answers, plus a tenth for each nat, on the questions of the choice; alone: with "
    "nothing else out, last: with all other chosen heads out before"
)
"""What the numbers of `take_rows` are."""


def shared_sentence(sharing: Sharing) -> str:
    """Which heads serve more than one target, and which each has for itself."""
    shared = frozenset(sharing.shared)
    parts = [
        f"{head} serves {listed(name for name, of in sharing.heads.items() if head in of)}"
        for head in sharing.shared
    ]
    for name, heads in sharing.heads.items():
        own = [str(head) for head in heads if head not in shared]
        parts.append(f"{one_line(name)} alone has {', '.join(own) or 'none'}")
    return ("" if shared else "no head is shared; ") + "; ".join(parts)


def take_columns(sharing: Sharing) -> tuple[str, ...]:
    """Headings of `take_rows`."""
    names = [one_line(name) for name in sharing.heads]
    return ("Head", *(f"{name}, {how}" for name in names for how in ("alone", "last")), "For")


def take_rows(sharing: Sharing, *, intervals: bool = True) -> list[tuple[str, ...]]:
    """A row a head: what it takes of each target alone and last, and for which it counts."""

    def cell(at: Measured) -> str:
        interval = interval_text((at.low, at.high), "logprob")
        return change_text(at.value, "logprob") + (f" ({interval})" if intervals else "")

    return [
        (
            str(one.head),
            *(cell(by[name]) for name in sharing.heads for by in (one.alone, one.last)),
            listed(name for name, heads in sharing.heads.items() if one.head in heads),
        )
        for one in sharing.takes
    ]
