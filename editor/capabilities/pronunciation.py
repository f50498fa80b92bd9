"""How English words are pronounced, and which of them rhyme, by a pronouncing dictionary.

The dictionary is CMUdict: phones of ARPAbet, where each vowel ends with its stress: 1 primary, 2
secondary, 0 none.

Two words rhyme when a pronunciation of each is the same from its last stressed vowel on, and the
consonants right before that vowel differ: what dictionaries of rhyme call a perfect rhyme.

* Primary and secondary stress count: a verse may end on either (`butterfly`, `sky`).  Where the
  last is a secondary one, words may rhyme from it or from the primary one on, because the
  dictionary marks it in some words of a kind only (`borrow`, not `sorrow`).  An unstressed vowel
  does not count (`sofa`, `coda`).
* A word of one syllable is stressed when it is said alone, so one that the dictionary has only
  without stress rhymes on its vowel.  One that has a stressed pronunciation too (`for`) has a weak
  one besides, which no verse ends on: that one does not count.
* Where the same consonants stand before the vowel, it is the same sound again, a rich or identical
  rhyme: `pair` and `pear`, `light` and `delight`, `bow` and `rainbow`.  It does not count: a model
  that only repeats the word, in another spelling or behind a prefix, shows no ability to rhyme.
  A consonant that the syllable takes from the one before it hides this (`room`, `bedroom`).
* The dictionary writes two signs for one sound in two places, and there they are one: IY and IH
  before R (`hear`, `near`), unstressed IH and AH (`jacket`, `bracket`).
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from editor.errors import UsageError

Phones = tuple[str, ...]
Relation = Literal["rhyme", "same sound", "none", "unknown"]
"""`same sound`: from the last stressed vowel on, and before it.  `unknown`: one of the two words is
not in the dictionary."""

_PHONE = re.compile(r"[A-Z]{1,2}[012]?")
_NUMBERED = re.compile(r"\(\d+\)$")
_SAME_CHARACTER = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u02bc\u00b4`", "'"),
        **dict.fromkeys("\u2010\u2011\u2212", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\ufeff", None),  # seen by nobody
    }
)
_SIBILANTS = frozenset({"S", "Z", "SH", "ZH", "CH", "JH"})
_VOICELESS = frozenset({"P", "T", "K", "F", "TH"})
_CLUSTERS = frozenset(
    tuple(cluster.split())
    for cluster in (
        *("P L", "P R", "P Y", "B L", "B R", "B Y", "T R", "T W", "D R", "D W", "K L", "K R"),
        *("K W", "K Y", "G L", "G R", "G W", "F L", "F R", "F Y", "V Y", "TH R", "TH W", "SH R"),
        *("HH W", "HH Y", "M Y", "N Y", "S F", "S K", "S L", "S M", "S N", "S P", "S T", "S W"),
        *("S K L", "S K R", "S K W", "S K Y", "S P L", "S P R", "S P Y", "S T R"),
    )
)
"""Two or three consonants with which an English syllable begins."""


class Ending(NamedTuple):
    """What decides about rhymes in one pronunciation."""

    onset: Phones
    """The consonants with which the stressed syllable begins."""
    rhyme: Phones
    """From its vowel on, without stress; signs that mean one sound are one."""


class Pronunciations:
    """A pronouncing dictionary.

    Args:
        entries: by word in small letters, all its pronunciations.
    """

    def __init__(self, entries: Mapping[str, tuple[Phones, ...]]) -> None:
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, word: str) -> tuple[Phones, ...]:
        """All pronunciations of a word in any case; none where it is unknown.

        Quotation marks and punctuation around the word, accents that the dictionary leaves out and
        the typographer's apostrophes and hyphens do not matter.  A possessive is pronounced by the
        rule where the dictionary lacks it.  A word with hyphens is pronounced as it is without
        them, or else as its parts one after the other; each must be known, and all but the last
        are taken in their first pronunciation.
        """
        for form in _forms(word):
            found = self._entries.get(form) or self._possessive(form) or self._joined(form)
            if found:
                return found
        return ()

    def knows(self, word: str) -> bool:
        return bool(self.of(word))

    def endings(self, word: str) -> frozenset[Ending]:
        """What may rhyme in a word, of all its pronunciations; nothing where it is unknown."""
        return _endings(self.of(word))

    def relation(self, a: str, b: str) -> Relation:
        """How two words stand to each other; a word is always of the same sound as itself.

        Two words of which some pronunciations sound the same do not rhyme on that ending, though
        others may differ in the consonants before it: `which`, said with or without an h, is no
        rhyme for `witch`.
        """
        if not (self.knows(a) and self.knows(b)):
            return "unknown"
        if _same_word(a, b):
            return "same sound"
        ours, theirs = _by_rhyme(self.endings(a)), _by_rhyme(self.endings(b))
        shared = ours.keys() & theirs.keys()
        if any(not ours[rhyme] & theirs[rhyme] for rhyme in shared):
            return "rhyme"
        return "same sound" if shared else "none"

    def rhymes(self, a: str, b: str) -> bool:
        """Whether two words rhyme; False where one is unknown, which `relation` tells."""
        return self.relation(a, b) == "rhyme"

    def rhymes_of(self, word: str) -> tuple[str, ...]:
        """All words of the dictionary that rhyme with a word, in alphabetical order."""
        found = {
            other
            for rhyme, ours in _by_rhyme(self.endings(word)).items()
            for other, theirs in self._by_rhyme.get(rhyme, {}).items()
            if not ours & theirs and not _same_word(word, other)
        }
        return tuple(sorted(found))

    @cached_property
    def _by_rhyme(self) -> Mapping[Phones, Mapping[str, frozenset[Phones]]]:
        """Of each rhyme, the words that end with it and the consonants before it."""
        found: defaultdict[Phones, dict[str, frozenset[Phones]]] = defaultdict(dict)
        for word, pronunciations in self._entries.items():
            for rhyme, onsets in _by_rhyme(_endings(pronunciations)).items():
                found[rhyme][word] = onsets
        return found

    def _possessive(self, form: str) -> tuple[Phones, ...]:
        if form.endswith("s'"):
            return self._entries.get(form.removesuffix("'"), ())
        owners = self._entries.get(form.removesuffix("'s"), ()) if form.endswith("'s") else ()
        return tuple((*phones, *_s_after(phones[-1])) for phones in owners)

    def _joined(self, form: str) -> tuple[Phones, ...]:
        if "-" not in form:
            return ()
        whole = self._entries.get(form.replace("-", ""))
        if whole:
            return whole
        *parts, last = (self._entries.get(part, ()) for part in form.split("-"))
        if not all(parts):
            return ()
        before = tuple(phone for part in parts for phone in part[0])
        return tuple((*before, *phones) for phones in last)


def parse(text: str) -> Pronunciations:
    """Read a file of CMUdict: `word P R O N`, other pronunciations as `word(2)`, `#` comments.

    Lines that begin with `;;;` are comments too, as in versions up to 0.7.

    Raises:
        UsageError: a line is no entry; the message has its number.
    """
    entries: defaultdict[str, list[Phones]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), start=1):
        content = "" if line.startswith(";;;") else re.split(r"(?:^|\s)#", line, maxsplit=1)[0]
        if content.strip():
            word, *phones = content.split()
            _add(entries, word, phones, f"line {number} of the pronouncing dictionary")
    return _dictionary(entries)


def from_rows(rows: Iterable[Mapping[str, Any]]) -> Pronunciations:
    """A dictionary from rows of `word` and `phones`, the phones in one string with spaces between.

    Raises:
        UsageError: a row is no entry; the message has its number, from 1.
    """
    entries: defaultdict[str, list[Phones]] = defaultdict(list)
    for number, row in enumerate(rows, start=1):
        phones = str(row.get("phones", "")).split("#", maxsplit=1)[0]
        place = f"row {number} of the pronouncing dictionary"
        _add(entries, str(row.get("word", "")), phones.split(), place)
    return _dictionary(entries)


def _add(entries: defaultdict[str, list[Phones]], word: str, phones: list[str], place: str) -> None:
    if not word or not phones or not all(map(_PHONE.fullmatch, phones)):
        raise UsageError(
            f"{place} should be a word and its phones in ARPAbet; it is "
            f"{' '.join((word, *phones))[:80]!r}",
            "give the file cmudict.dict as CMUdict has it",
        )
    entries[_NUMBERED.sub("", word).lower()].append(tuple(phones))


def _dictionary(entries: Mapping[str, list[Phones]]) -> Pronunciations:
    return Pronunciations({word: tuple(dict.fromkeys(all_)) for word, all_ in entries.items()})


@lru_cache(maxsize=1 << 16)
def _forms(word: str) -> tuple[str, ...]:
    """The spellings under which a word is looked up, the closest to how it is written first."""
    written = unicodedata.normalize("NFKC", word).translate(_SAME_CHARACTER).lower().strip()
    marked = unicodedata.normalize("NFKD", written)
    plain = "".join(character for character in marked if not unicodedata.combining(character))
    inner = re.sub(r"^[^\w']+|[^\w']+$", "", plain)
    return tuple(dict.fromkeys((written, plain, inner, inner.strip("'"))))


def _same_word(a: str, b: str) -> bool:
    return _forms(a)[-1] == _forms(b)[-1]


def _endings(pronunciations: tuple[Phones, ...]) -> frozenset[Ending]:
    stressed = {one for phones in pronunciations for one in _stressed_endings(phones)}
    return frozenset(stressed or filter(None, map(_weak_ending, pronunciations)))


def _stressed_endings(phones: Phones) -> Iterator[Ending]:
    """From the last stressed vowel on, and from the last of primary stress if that is another."""
    for stress in ("1", "12"):
        places = [place for place, phone in enumerate(phones) if phone[-1] in stress]
        if places:
            yield _ending_at(phones, places[-1])


def _weak_ending(phones: Phones) -> Ending | None:
    """From the only vowel."""
    places = [place for place, phone in enumerate(phones) if phone[-1].isdigit()]
    return _ending_at(phones, places[0]) if len(places) == 1 else None


def _ending_at(phones: Phones, place: int) -> Ending:
    first = place
    while first and not phones[first - 1][-1].isdigit():
        first -= 1
    onset = phones[first:place]
    # Inside a word, its syllable takes as many consonants as one can begin with; the rest end the
    # syllable before.
    while first and onset and not _begins_syllable(onset):
        onset = onset[1:]
    return Ending(onset, _sounds(phones[place:]))


def _sounds(phones: Phones) -> Phones:
    """The phones without stress, and with one sign for what the dictionary writes with two."""
    found = ["AH" if phone == "IH0" else phone.rstrip("012") for phone in phones]
    for place, (phone, after) in enumerate(pairwise(found)):
        if (phone, after) == ("IY", "R"):
            found[place] = "IH"
    return tuple(found)


def _begins_syllable(onset: Phones) -> bool:
    return onset in _CLUSTERS if len(onset) > 1 else onset != ("NG",)


def _by_rhyme(endings: Iterable[Ending]) -> Mapping[Phones, frozenset[Phones]]:
    found: defaultdict[Phones, set[Phones]] = defaultdict(set)
    for onset, rhyme in endings:
        found[rhyme].add(onset)
    return {rhyme: frozenset(onsets) for rhyme, onsets in found.items()}


def _s_after(phone: str) -> Phones:
    """How the English ending s is pronounced."""
    if phone in _SIBILANTS:
        return ("IH0", "Z")
    return ("S",) if phone in _VOICELESS else ("Z",)
