"""The errors that a user can cause or must be told of, each with its exit code.

Raised where the fact is known, caught once, in the command line.  A message says in one sentence
what was expected, what was found and where; the hint says what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class EditorError(Exception):
    """A fault that has a cause and a remedy outside of the program."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(EditorError):
    """Wrong flags, a wrong recipe, an unknown name, or a resume whose settings differ."""

    exit_code = 2


class FileFaults(UsageError):
    """What is wrong with a file, one line a fault, each with its place."""

    def __init__(self, faults: tuple[str, ...], hint: str = "") -> None:
        super().__init__("\n".join(faults), hint)
        self.faults = faults


class ModelError(EditorError):
    """The model or checkpoint cannot be used: missing, damaged or unsupported."""

    exit_code = 3


class DiskError(EditorError):
    """The disk cannot be written: full, read-only or broken."""

    exit_code = 3


class CheckFailed(EditorError):
    """The work was done, but a check of it failed."""

    exit_code = 4


class CapabilityAbsent(EditorError):
    """The model does not show the capability, or its heads could not be found."""

    exit_code = 5


class TimeUp(EditorError):
    """`--max-hours` ended the run before it had a result; the same command goes on."""

    exit_code = 6


class WorkersLost(EditorError):
    """Processes or machines that measure died, and the run cannot go on without them."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known names closest to `name`, or all of them when none is close."""
    names = sorted(known)
    close = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
