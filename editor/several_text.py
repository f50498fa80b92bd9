"""What several capabilities of one edit share, in words."""

from __future__ import annotations

from editor.records import Sharing
from editor.wording import change_text, interval_text, listed, one_line


def shared_sentence(sharing: Sharing) -> str:
    """Which heads serve more than one target, and which each has for itself."""
    shared = frozenset(sharing.shared)
    parts: list[str] = []
    for head in sharing.shared:
        parts.append(
            f"{head} serves {listed(name for name, of in sharing.heads.items() if head in of)}"
        )
    for name, heads in sharing.heads.items():
        own = [str(head) for head in heads if head not in shared]
        parts.append(f"{one_line(name)} alone has {', '.join(own) or 'none'}")
    start = "" if sharing.shared else "no head is shared; "
    return start + "; ".join(parts)


def take_columns(sharing: Sharing) -> tuple[str, ...]:
    """Headings of `take_rows`."""
    return ("Head", *(part for name in sharing.heads for part in (one_line(name), "95% CI")), "For")


def take_rows(sharing: Sharing) -> list[tuple[str, ...]]:
    """A row a head: what it takes of each target alone, and for which targets it counts."""
    return [
        (
            str(one.head),
            *(
                cell
                for name in sharing.heads
                for cell in (
                    change_text(one.alone[name].value, "logprob"),
                    interval_text((one.alone[name].low, one.alone[name].high), "logprob"),
                )
            ),
            listed(name for name, heads in sharing.heads.items() if one.head in heads),
        )
        for one in sharing.takes
    ]
