"""When two texts are the same but for case, space and punctuation."""

from __future__ import annotations

import hashlib
import re
import unicodedata

_PARTS = re.compile(r"[^\W\d_]+|\d+|[-+*/^%<>=\u2212\u00d7\u00f7]")


def plain(text: str) -> str:
    """What is left of a text without case, space and punctuation.

    Signs beside a number count, as `2 + 3` and `2 - 3` are different questions, and so does what
    separates two numbers.
    """
    parts = _PARTS.findall(unicodedata.normalize("NFKC", text).casefold())
    kept: list[str] = []
    for at, part in enumerate(parts):
        beside = (*parts[max(0, at - 1) : at], *parts[at + 1 : at + 2])
        if part.isdigit():
            kept.append(f" {part}" if at and parts[at - 1].isdigit() else part)
        elif part[0].isalpha() or any(one.isdigit() for one in beside):
            kept.append(part)
    return "".join(kept) or text


def same_text_key(text: str) -> str:
    """A key that texts share which are the same up to case, space and punctuation."""
    return hashlib.sha256(plain(text).encode()).hexdigest()[:24]
