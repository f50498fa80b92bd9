"""Choices that look random but are the same on every machine and in every Python.

The order that `random.Random(seed)` yields may change between Python versions; a hash does not.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def stable_number(text: str) -> int:
    """A number of 64 bits that depends on `text` only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def same_text_key(text: str) -> str:
    """A key that texts share which are the same up to case, spaces and punctuation."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    bare = "".join(letter for letter in folded if letter.isalnum())
    # A formula may be all punctuation, and then that is what it says.
    return hashlib.sha256((bare or text).encode()).hexdigest()[:24]


def stable_shuffle(values: Iterable[T], seed: str, text_of: Callable[[T], str] = str) -> list[T]:
    """The values in an order that depends on `seed` and on each value's text only.

    A value that is added later finds its place among the others without moving them, so a prefix
    of the order changes little when the data grow.
    """
    return sorted(values, key=lambda value: stable_number(f"{seed}\n{text_of(value)}"))
