"""Regular expressions of strangers: refused when they do not compile, and never let run for long.

A pattern such as `(a+)+$` takes time that doubles with every character of the text.  The module
`regex` stops a search after a given time; Python's own `re` cannot be stopped.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from editor.errors import UsageError

PROBE_SECONDS = 0.3
SEARCH_SECONDS = 5.0
MOST_REPEATS = 100_000
"""Product of all counts in braces: `regex` writes such repetitions out."""
_COUNTS = re.compile(r"\{(\d*),?(\d*)\}")
_N_PROBED = 3000
_PROBES = ("a", "0", " ", "ab ", "a1", "\n", "()", ".", "-", ",")


def fault_of(pattern: str, *, ignore_case: bool = False) -> str:
    """What is wrong with a pattern, or "".

    It is tried on texts that repeat, which is where slow patterns are slow.
    """
    try:
        compiled = _compiled(pattern, ignore_case)
    except RecursionError:
        return "it is nested too deeply"
    except UsageError as error:
        return error.message
    own = list(dict.fromkeys(char for char in pattern if char.isalnum()))[:40]
    for probe in (*_PROBES, *own, "".join(own[:8])):
        text = (probe * _N_PROBED)[:_N_PROBED]
        for end in ("", "\x00"):
            try:
                compiled.search(text + end, timeout=PROBE_SECONDS)
            except TimeoutError:
                return (
                    f"takes more than {PROBE_SECONDS:g} s on {_N_PROBED} characters; repeat "
                    "nothing that repeats itself"
                )
    return ""


def found(pattern: str, text: str, *, ignore_case: bool = False) -> bool:
    """Whether a pattern is found in a text.

    Raises:
        UsageError: it does not compile, or the search takes too long: no score is made up.
    """
    try:
        hit = _compiled(pattern, ignore_case).search(text, timeout=SEARCH_SECONDS)
    except TimeoutError as error:
        raise UsageError(
            f"the pattern {pattern!r} took more than {SEARCH_SECONDS:g} s on a text of "
            f"{len(text)} characters",
            "write it so that nothing is repeated that repeats itself",
        ) from error
    return hit is not None


@lru_cache(maxsize=10_000)
def _compiled(pattern: str, ignore_case: bool) -> Any:
    import regex

    try:
        re.compile(pattern)  # what only `regex` knows, such as recursion, is not taken
        counts = [max(int(n or 1) for n in one.groups()) for one in _COUNTS.finditer(pattern)]
    except (re.error, ValueError, OverflowError) as error:
        raise UsageError(str(error).replace("position", "character"), "") from error
    if math.prod(max(n, 1) for n in counts) > MOST_REPEATS:
        raise UsageError(f"its counts in braces multiply to more than {MOST_REPEATS:,}", "")
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise UsageError(str(error), "") from error
