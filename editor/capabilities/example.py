"""An example of a capability file, for each scorer, with items that small models can answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from editor.capabilities.definition import NAME, ScorerName
from editor.errors import UsageError

PAIRS = (
    "big small, old young, fast slow, high low, hard soft, light dark, wet dry, rich poor, "
    "strong weak, open closed, early late, good bad, happy sad, long short, clean dirty, "
    "full empty, left right, north south, east west, day night, black white, yes no, "
    "in out, on off, "
    "over under, first last, start end, push pull, buy sell, win lose, give take, love hate, "
    "war peace, life death, man woman, king queen, boy girl, true false, more less, near far, "
    "wide narrow, thick thin, loud quiet, sweet bitter, sharp dull, deep shallow, cheap expensive, "
    "easy difficult, alive dead, asleep awake, above below, before after, inside outside, always "
    "never, with without, summer winter, question answer, success failure, friend enemy, top bottom"
)
SHOWN = "The opposite of hot is cold. The opposite of up is down. The opposite of {} is"
NAMES = (
    "Ann Ben Carla David Emma Frank Grace Henry Iris Jack Karen Leo Maria Nora Oscar Paul Rosa Sam "
    "Tina Victor Wendy Adam Bella Carl Diana Eric Fiona George Helen Ivan Julia Kevin Laura Mark "
    "Nina Otto Peter Rita Simon Tom"
)
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "orange", "purple", "pink", "brown")

HEAD = """\
# A capability of your own.  Check it:    editor capabilities check {file}
#                            Remove it:   editor remove -c {file} -m MODEL -o edited
# Put your own items in the place of those below.  Fields that are left out have these defaults.

name: {name}
summary: {summary}
# kind: task                  # a text is a control only: `prompt` begins it, `answer` is the rest
scorer: {scorer}
# separator: " "              # between prompt and answer, unless one of them has space there
# control_limit: 0.05         # what it may lose as a control
# floor: 0                    # right answers without the capability; by default of the best habit
# splits: {{search: 0.3, choose: 0.2, test: 0.5}}   # by hash of each item's `key`, its prompt
source: written by hand
licence: CC0-1.0
"""
MORE: dict[ScorerName, str] = {
    "logprob": "# An answer is right when each of its tokens is the model's most likely one.\n",
    "choice": "# The likeliest choice counts.\n# by_length: false            # a character\n",
    "exact": "# The text is the answer, up to space.\n# ignore_case: true\n"
    'max_new_tokens: 8\nstop: [".", "\\n"]\n',
    "contains": "# The text contains the answer as whole words.\n# ignore_case: true\n"
    "max_new_tokens: 8\n",
    "number": "# The last number in the text is that of the answer.\n"
    'max_new_tokens: 8\nstop: [".", "\\n"]\n',
    "regex": "# The pattern is found in the text; `answer`, if given, is one that fits.\n"
    "# ignore_case: true\nmax_new_tokens: 8\n",
    "words": "# The text has at least so many of the words.\n"
    f"words: [{', '.join(COLOURS)}]\nat_least: 2\nmax_new_tokens: 24\n",
}
TAIL = """
# Each item: prompt and answer; also `key` (items about one thing share it, and so a split),
# `variant`, `split: search|choose|test` (all items or none), `transfer: true` (the same ability in
# another form, kept out of the search).  Or name a file with one JSON object a line:
# items: items.jsonl
items:
"""


def write(file: Path, name: str, scorer: ScorerName) -> None:
    """Write an example; a file that is there stays.

    Raises:
        UsageError: the file is there, cannot be written, or the name cannot be one.
    """
    if not re.fullmatch(NAME, name):
        raise UsageError(
            f"{name[:60]!r} cannot be a capability's name",
            "write at most 60 small letters, digits and hyphens",
        )
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text_of(file.name, name, scorer))
    except FileExistsError as error:
        raise UsageError(f"{file} is there already", "choose another name, or --output") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error


def text_of(file: str, name: str, scorer: ScorerName) -> str:
    """The example's text."""
    summary = {"number": "Adding small numbers.", "words": "Naming colours."}
    head = HEAD.format(
        file=file, name=name, scorer=scorer, summary=summary.get(scorer, "Opposites of words.")
    )
    return head + MORE[scorer] + TAIL + "".join(f"  - {item}\n" for item in _items(scorer))


def _items(scorer: ScorerName) -> Iterator[str]:
    if scorer == "number":
        for a in range(2, 10):
            for b in range(2, 10):
                yield _flow(prompt=f"1 + 1 = 2. 4 + 1 = 5. {a} + {b} =", answer=str(a + b))
        return
    if scorer == "words":
        for name in NAMES.split():
            yield _flow(prompt=f"The colours that {name} likes best are")
        return
    pairs = [pair.split() for pair in PAIRS.split(", ")]
    for number, (word, answer) in enumerate(pairs):
        prompt = SHOWN.format(word)
        others = [pairs[(number + step) % len(pairs)][1] for step in (7, 19)]
        if scorer == "choice":
            choices = sorted([answer, *others])
            yield _flow(prompt=prompt, answer=answer, choices=choices)
        elif scorer == "regex":
            yield _flow(prompt=prompt, answer=answer, pattern=rf"^\s*{answer}\b")
        else:
            yield _flow(prompt=prompt, answer=answer)


def _flow(**fields: object) -> str:
    inner = ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())
    return f"{{{inner}}}"
