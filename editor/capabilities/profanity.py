"""Profane words in a text, with how strong they are.

Words count as whole words, in any inflection that English has for them, however they are masked;
entries of several words count once, before their parts do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal, NamedTuple

from editor.capabilities.masking import LONGEST, Unmask, plain

Severity = Literal["mild", "strong", "slur"]
LISTS: tuple[tuple[Severity, str], ...] = (
    ("strong", "profanity-strong.txt"),
    ("mild", "profanity-mild.txt"),
    ("slur", "profanity-slurs.txt"),
)
INNOCENT = "profanity-innocent.txt"

LONGEST_CHUNK = 4 * LONGEST
"""Characters between two spaces that are looked at as one word with signs in it."""

_INSIDE = re.compile(r"fuck|bullshit|asshole|cocksuck|dickhead|goddam|motherf[ua]")
"""What no innocent word contains: found in any word, as in `absofuckinglutely`."""
_CHUNK = re.compile(r"\S+")
_WORD = re.compile(r"[^\W\d_]")
_PART = re.compile(r"[^\W\d_]+|[.,;:!?\"“”()\[\]{}]+")
_TWICE = re.compile(r"(.)\1", re.IGNORECASE)
_EDGE = ".,;:!?\"'“”‘’`()[]{}<>*_~-#/\\"
_BEFORE = "\"'“‘("
_AFTER = ".,;:?\"'”’)"


class Profanity(NamedTuple):
    """One profane word or phrase of a text."""

    entry: str
    """As the lists have it, or the inflected form; unmasked."""
    severity: Severity


class Counts(NamedTuple):
    """How many profane words a text has."""

    mild: int = 0
    strong: int = 0
    slur: int = 0

    @property
    def total(self) -> int:
        return sum(self)


def count(text: str) -> Counts:
    """How many profane words and phrases of each severity a text has."""
    found = [one.severity for one in profanities(text)]
    return Counts(*(found.count(name) for name in ("mild", "strong", "slur")))


def profanities(text: str) -> tuple[Profanity, ...]:
    """The profane words and phrases of a text, in their order."""
    return tuple(_found(list(_words(plain(text)))))


class _Node:
    """What phrases go on with after the words so far."""

    def __init__(self) -> None:
        self.after: dict[str, _Node] = {}
        self.ends: Severity | Literal["innocent"] | None = None
        """What the phrase is that ends here, if one does."""


@dataclass(frozen=True)
class _Lists:
    """The word lists with all their inflections."""

    words: dict[str, Severity]
    phrases: _Node
    not_names: frozenset[str]
    unmask: Unmask


def _found(words: Sequence[str]) -> Iterator[Profanity]:
    """Phrases first, the longest; then single words."""
    small, at = [word.lower() for word in words], 0
    while at < len(words):
        length, what = _phrase(small, at)
        if length:
            if what != "innocent" and what is not None:
                yield Profanity(" ".join(small[at : at + length]), what)
            at += length
            continue
        entry = _single(words[at])
        if entry is not None:
            yield Profanity(entry, _lists().words.get(entry, "strong"))
        at += 1


def _phrase(words: Sequence[str], at: int) -> tuple[int, Severity | Literal["innocent"] | None]:
    """Length and kind of the longest phrase that begins there; 0 where none does."""
    node: _Node | None = _lists().phrases
    length, what, n = 0, None, 0
    while at + n < len(words) and (node := node.after.get(words[at + n])) is not None:
        n += 1
        if node.ends is not None:
            length, what = n, node.ends
    return length, what


@lru_cache(maxsize=2**14)
def _single(written: str) -> str | None:
    """The entry that a word is a form of."""
    lists, word = _lists(), written.lower()
    if word in lists.words:
        # Written like a name: Dick, but not DICK.
        return None if word in lists.not_names and written.istitle() else word
    inside = _INSIDE.search(word)
    return inside[0] if inside else None


def _words(text: str) -> Iterator[str]:
    """The words of a text, masked ones as they are meant; "" between sentences and clauses."""
    unmask, letters = _lists().unmask, ""
    # Not the whole list of chunks at once: they are many times larger than the text.
    for chunk in (match[0] for match in _CHUNK.finditer(text)):
        if len(chunk) == 1 and chunk.isalpha():
            letters = (letters + chunk)[-LONGEST:]
            continue
        if letters:
            yield unmask.spelled(letters.lower()) or letters
            letters = ""
        yield from _words_of(chunk)
    if letters:
        yield unmask.spelled(letters.lower()) or letters


def _words_of(chunk: str) -> Iterable[str]:
    """The words of what stands between two spaces."""
    if chunk.isalpha():
        return (_unstretched(chunk),)
    if len(chunk) <= LONGEST_CHUNK:
        return _words_of_short(chunk)
    return map(_unstretched, _PART.findall(chunk))


@lru_cache(maxsize=2**14)
def _words_of_short(chunk: str) -> tuple[str, ...]:
    hidden = _hidden(chunk)
    return (hidden,) if hidden else tuple(map(_unstretched, _PART.findall(chunk)))


def _unstretched(part: str) -> str:
    """A word without the letters that are repeated for effect; "" for a sign."""
    if not part[0].isalpha():
        return ""
    if len(part) > LONGEST_CHUNK or not _TWICE.search(part):
        return part
    word = part.lower()
    return part if word in _lists().words else _lists().unmask.stretched(word) or part


def _hidden(chunk: str) -> str | None:
    """What a chunk of letters and signs hides, with or without the signs around it."""
    small = chunk.lower()
    inner = small.strip(_EDGE)
    if inner.isalpha() and (inner in _lists().words or small[0] in "*_~"):
        return None  # a plain word between signs
    ahead = small.lstrip(_BEFORE).rstrip(_AFTER)
    for one in dict.fromkeys((inner, ahead, ahead.rstrip("!" + _AFTER))):
        if one and not one.isalpha() and (_WORD.search(one) or "$" in one):
            found = _lists().unmask.chunk(one)
            if found is not None:
                return found
    return None


@cache
def _lists() -> _Lists:
    words: dict[str, Severity] = {}
    phrases = _Node()
    masked: list[str] = []
    not_names: set[str] = set()
    for severity, name in LISTS:
        for entry, kind, *rest in map(_entry, _lines(name)):
            forms = _forms(entry, kind, {one[1:] for one in rest if one[0] == "!"})
            if " " in entry:
                for form in forms:
                    _add(phrases, form, severity)
                continue
            masked += forms
            if kind != "?":
                words.update(dict.fromkeys(forms, severity))
            if "^" in rest:
                not_names.update(forms)
    for line in _lines(INNOCENT):
        _add(phrases, line, "innocent")
    return _Lists(words, phrases, frozenset(not_names), Unmask(masked))


def _add(phrases: _Node, phrase: str, what: Severity | Literal["innocent"]) -> None:
    node = phrases
    for word in phrase.split():
        node = node.after.setdefault(word, _Node())
    node.ends = what


def _lines(name: str) -> list[str]:
    text = files("editor.capabilities").joinpath(f"data/{name}").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _entry(line: str) -> list[str]:
    """`entry of words`, its kind, and what else is said of it."""
    parts = line.split()
    at = max(i for i, part in enumerate(parts) if part in {"v", "n", "a", "-", "?"})
    return [" ".join(parts[:at]), *parts[at:]]


def _forms(entry: str, kind: str, innocent: set[str]) -> list[str]:
    """All inflections of an entry, itself the first; its last word's where it has several."""
    endings = {"v": ("s", "ed", "ing", "in", "er", "ers"), "n": ("s",), "a": ("er", "est")}
    forms = [entry, *(_inflected(entry, ending) for ending in endings.get(kind, ()))]
    return [form for form in dict.fromkeys(forms) if form not in innocent]


def _inflected(word: str, ending: str) -> str:
    """By the rules of English spelling: shit, shitting; whore, whores; bitchy, bitchier."""
    if ending == "s":
        return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) else "s")
    if word.endswith("y"):
        return word[:-1] + "i" + ending
    if word.endswith("e"):
        word = word[:-1]
    elif re.search(r"[^aeiou][aiou][bdgkmnprt]$", word):
        word += word[-1]
    return word + ending
