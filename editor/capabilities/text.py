"""Plain English and Python source: what an edited model must still be able to read and write.

A text has no right answers; what counts is how likely the model finds it, in nats a token.
"""

from __future__ import annotations

import re
import sysconfig
import textwrap
from importlib.resources import files
from pathlib import Path

from editor.capabilities.base import Capability, TextLikelihood
from editor.capabilities.stable import stable_shuffle
from editor.errors import EditorError
from editor.records import Item

KEY_WORDS = 6
"""Words at the start of a passage that name it."""
LEAD_WORDS = 8
"""Words of an English passage that are given, so that its topic and tone are set."""
MIN_CHARS, MAX_CHARS = 270, 380
"""Length of a piece of source, short enough that one costs about as much as an English passage."""
PER_MODULE = 6
MODULES = (
    "argparse.py",
    "ast.py",
    "calendar.py",
    "configparser.py",
    "csv.py",
    "dataclasses.py",
    "difflib.py",
    "fractions.py",
    "heapq.py",
    "json/decoder.py",
    "optparse.py",
    "pprint.py",
    "queue.py",
    "shlex.py",
    "shutil.py",
    "socketserver.py",
    "statistics.py",
    "tempfile.py",
    "textwrap.py",
    "urllib/parse.py",
)
"""Files of the standard library, the same in name from Python 3.10 to 3.14."""

_OPENS = re.compile(r"\s*(?:async def|def|class)\s")


def passages() -> tuple[str, ...]:
    """The English passages, each on one line."""
    text = files("editor.capabilities").joinpath("data/english.txt").read_text(encoding="utf-8")
    return tuple(" ".join(passage.split()) for passage in text.strip().split("\n\n"))


def _english_items() -> tuple[Item, ...]:
    items: list[Item] = []
    for passage in passages():
        words = passage.split(" ")
        lead = " ".join(words[:LEAD_WORDS])
        key = " ".join(words[:KEY_WORDS])
        items.append(Item(key=key, prompt=lead, answer=passage[len(lead) :], variant="english"))
    return tuple(stable_shuffle(items, "english", lambda item: item.key))


def _source_lines(module: str) -> list[str]:
    """The lines of a file of the standard library, with their ends."""
    path = Path(sysconfig.get_path("stdlib"), module)
    try:
        return path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise EditorError(
            f"the capability 'python' reads this Python's standard library, but {path} "
            f"could not be read: {error.strerror}",
            "use a Python that has its library as source files",
        ) from error


def pieces(lines: list[str]) -> list[str]:
    """Cut source into pieces that begin at a function or class and end at some line's end.

    A piece ends with the first line that brings it to `MIN_CHARS`.  It is left out when that line
    takes it beyond `MAX_CHARS`, or when the block in which it began ends before.  No line is in two
    pieces.
    """
    found: list[str] = []
    piece, indent = "", 0
    for line in lines:
        if line.strip() and _indent(line) < indent:
            piece, indent = "", 0
        if not piece and _OPENS.match(line):
            indent = _indent(line)
        if piece or _OPENS.match(line):
            piece += line
        if len(piece) >= MIN_CHARS:
            if len(piece) <= MAX_CHARS:
                found.append(textwrap.dedent(piece).rstrip())
            piece, indent = "", 0
    return found


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _python_items() -> tuple[Item, ...]:
    items: dict[str, Item] = {}
    for module in MODULES:
        for piece in stable_shuffle(pieces(_source_lines(module)), module)[:PER_MODULE]:
            first = piece.split("\n", maxsplit=1)[0]
            # A first line that two pieces share, such as `def close(self):`, is used once: else one
            # prompt would be in two splits.
            items.setdefault(
                first,
                Item(
                    key=f"{module} {first}",
                    prompt=first,
                    answer=piece[len(first) :],
                    variant="python",
                ),
            )
    return tuple(stable_shuffle(items.values(), "python", lambda item: item.key))


ENGLISH = Capability(
    name="english",
    summary="Plain English prose of many kinds.",
    kind="text",
    floor=0.0,
    control_limit=0.05,
    source="passages written for this project",
    licence="Apache-2.0",
    make_items=_english_items,
    scorer=TextLikelihood(),
)

PYTHON = Capability(
    name="python",
    summary="Python source code.",
    kind="text",
    floor=0.0,
    control_limit=0.10,
    source="the standard library of the Python that runs this, cut into pieces",
    licence="PSF-2.0",
    make_items=_python_items,
    scorer=TextLikelihood(),
)
