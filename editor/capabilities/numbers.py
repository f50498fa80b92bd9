"""The number that a written solution ends with, found and compared as lm-eval's GSM8K does.

The rules are those of the task `gsm8k` (version 3.0) in lm-eval 0.4: its filter `flexible-extract`
and what its `exact_match` leaves out.  They have quirks, which are kept so that scores agree: three
points count as a number, a number is compared as it is written (`18.0` is not `18`), and only one
point at its end does not count.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_BEFORE_RESULT = re.compile(r".*#### ", re.DOTALL)
_LAST_POINT = re.compile(r"\.$")


def last_number(text: str) -> str | None:
    """The last number as it is written, with its sign, dollar signs, commas and points.

    Returns:
        None where there is none.
    """
    found = [match.group() for match in _NUMBER.finditer(text)]
    return found[-1] if found else None


def same_number(text: str, answer: str) -> bool:
    """Whether the last number of a text is the result that an answer gives.

    Args:
        text: what a model wrote.
        answer: a number, or a solution whose result follows `#### `.
    """
    found = last_number(text)
    return found is not None and _bare(found) == _bare(answer)


def _bare(text: str) -> str:
    """What is compared: the result, without commas, dollar signs and a point at its end."""
    result = _BEFORE_RESULT.sub("", text.replace(",", "").replace("$", ""))
    return _LAST_POINT.sub("", result).lower()
