"""The lines of CMUdict that tests need; the file that holds them has its licence at the top."""

from __future__ import annotations

from pathlib import Path

EXCERPT = Path(__file__).with_name("cmudict_excerpt.txt").read_text(encoding="utf-8")


def excerpt_rows() -> list[dict[str, str]]:
    """As a library gives them: the words and their phones."""
    lines = [line.split(" #")[0] for line in EXCERPT.splitlines() if not line.startswith(";;;")]
    return [dict(zip(("word", "phones"), line.split(maxsplit=1), strict=True)) for line in lines]
