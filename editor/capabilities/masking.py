"""What stands behind a masked spelling: `sh*t`, `f—k`, `s.h.i.t`, `$hit`, `fuuuck`, lookalikes.

Every step is a table look-up of one chunk of bounded length, so that no text takes longer than its
length allows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, groupby

LONGEST = 24
"""Characters of a chunk that may be a masked word; longer ones are not looked into."""
FEWEST_LETTERS = 4
"""Letters of a word that may be hidden in part: `a*s` is arithmetic."""
FEWEST_SHOWN = 2
"""Letters that a mask must leave."""
ALL_HIDDEN = frozenset({"fuck", "shit", "fucking", "fucked", "fucker"})
"""Words that are recognized by their first letter and their length: `f***`."""

_DASHES = "—–―‒…"
"""Each hides any number of letters."""
_COVERS = re.compile(r"[*#%@$&_+=^~·•×-]")
"""Each hides one letter."""
_LOOKALIKES = str.maketrans(
    "авеёкмнорстухіїѕјһԁԛԝαβεικνορτυχωıɑɡʜʟʀɪ",
    "abeekmhopctyxiisjhdqwabeikvoptuxwiaghlri",
)
_LEET = str.maketrans("$@!1|035+74€¢", "saiiioestta" + "ec")
_SMALL_LEET = str.maketrans("$@!|€¢", "saiiec")
_SPELLED = re.compile(r"[^\W\d_](?:[\W_][^\W\d_]){2,23}")


def plain(text: str) -> str:
    """The text in ordinary letters: no accents, no invisible characters, no lookalikes."""
    if text.isascii():
        return text
    return text.translate({ord(char): _plain(char) for char in set(text) if not char.isascii()})


def _plain(char: str) -> str:
    """One character; as it is where no Latin letters stand for it."""
    apart = unicodedata.normalize("NFKD", char)
    shown = "".join(one for one in apart if unicodedata.category(one) not in {"Mn", "Me", "Cf"})
    latin = "".join(map(_as_latin, shown))
    return latin if latin.isascii() else char


def _as_latin(char: str) -> str:
    if not char.isalpha():
        return char
    latin = char.lower().translate(_LOOKALIKES)
    return latin.upper() if char.isupper() else latin


class Unmask:
    """Masked spellings of a fixed set of words; what may be several is the first of them."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = dict.fromkeys(words)
        self._masked: dict[str, str] = {}
        self._dashed: dict[tuple[str, str], str] = {}
        self._squeezed: dict[str, list[str]] = {}
        for word in self._words:
            self._squeezed.setdefault(_squeeze(word), []).append(word)
            if len(word) >= FEWEST_LETTERS:
                for masked in _masks(word):
                    self._masked.setdefault(masked, word)
                for head, tail in _ends(word):
                    self._dashed.setdefault((head, tail), word)

    def chunk(self, chunk: str) -> str | None:
        """The word behind a chunk without spaces that has more than letters in it, if any."""
        if len(chunk) > LONGEST:
            return None
        return (
            self._spelled(chunk) or self._leet(chunk) or self._starred(chunk) or self._dash(chunk)
        )

    def spelled(self, letters: str) -> str | None:
        """The word that single letters make, such as those of `f u c k`."""
        return letters if len(letters) >= FEWEST_LETTERS and letters in self._words else None

    def stretched(self, word: str) -> str | None:
        """The word of which `word` repeats letters: `fuuuck`, but not `assess` for `asses`."""
        found = self._squeezed.get(_squeeze(word))
        if found is None:
            return None
        runs = _runs(word)
        return next((one for one in found if _stretches(runs, _runs(one))), None)

    def _spelled(self, chunk: str) -> str | None:
        if _SPELLED.fullmatch(chunk):
            return self.spelled(chunk[::2])
        return None

    def _leet(self, chunk: str) -> str | None:
        """Symbols and digits that look like letters; in short words only symbols do."""
        for table, fewest in ((_SMALL_LEET, 3), (_LEET, FEWEST_LETTERS)):
            read = chunk.translate(table)
            if read != chunk and read.isalpha() and len(read) >= fewest:
                found = read if read in self._words else self.stretched(read)
                if found is not None:
                    return found
        return None

    def _starred(self, chunk: str) -> str | None:
        """One sign for each hidden letter."""
        # Dashes at the end break a word off.
        return None if chunk[-1] == "-" else self._masked.get(_COVERS.sub("*", chunk))

    def _dash(self, chunk: str) -> str | None:
        """One dash for any number of hidden letters."""
        at = next((i for i, char in enumerate(chunk) if char in _DASHES), -1)
        return self._dashed.get((chunk[:at], chunk[at + 1 :])) if at > 0 else None


def _masks(word: str) -> Iterator[str]:
    """The word with letters hidden, never the first; of long words only neighbouring letters.

    Nor the last one alone: `dam*` has a footnote.
    """
    n = len(word)
    if word in ALL_HIDDEN:
        yield word[0] + "*" * (n - 1)
    most = n - FEWEST_SHOWN
    if n <= 7:
        for count in range(1, most + 1):
            for hidden in combinations(range(1, n), count):
                if hidden != (n - 1,):
                    yield "".join("*" if i in hidden else char for i, char in enumerate(word))
        return
    for start in range(1, n - 1):
        for stop in range(start + 1, min(n, start + most) + 1):
            yield word[:start] + "*" * (stop - start) + word[stop:]


def _ends(word: str) -> Iterator[tuple[str, str]]:
    """What may stand before and after a dash."""
    n = len(word)
    for start in range(1, n - 1):
        for stop in range(start + 1, n):
            if start + n - stop >= FEWEST_SHOWN:
                yield word[:start], word[stop:]


def _squeeze(word: str) -> str:
    return "".join(letter for letter, _ in groupby(word))


def _runs(word: str) -> list[tuple[str, int]]:
    return [(letter, sum(1 for _ in run)) for letter, run in groupby(word)]


def _stretches(long: Sequence[tuple[str, int]], short: Sequence[tuple[str, int]]) -> bool:
    """Whether letters are repeated as English does not: three times, or a double u."""
    pairs = [(a, b, letter) for (letter, a), (_, b) in zip(long, short, strict=True)]
    more = [(a, letter) for a, b, letter in pairs if a > b]
    return all(a >= b for a, b, _ in pairs) and any(a > 2 or at == "u" for a, at in more)
