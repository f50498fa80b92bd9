"""Rhyming: writing a word that rhymes with another one; telling whether two words rhyme.

Any word counts that rhymes by the pronouncing dictionary: `pronunciation` says what that is.  A
model can also find rhymes by their spelling, `light` after `night`.  The transfer form does not
reward that: half of its pairs are spelled alike, and half of either half rhyme.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

from editor.capabilities.base import Capability
from editor.capabilities.pronunciation import Pronunciations, from_rows
from editor.capabilities.scorers import AnyChoice, ByForm, ChoiceLikelihood, Written
from editor.capabilities.stable import stable_number, stable_shuffle
from editor.capabilities.table import in_turn
from editor.errors import UsageError
from editor.records import Item, Split

DATA_SET = "cmudict"
N_COMMON = 8
"""Rhymes among the common words that a word needs to be asked."""
WRITTEN_TOKENS = 8
TURNS: tuple[Split, ...] = (
    *("test", "search", "test", "choose", "test"),
    *("search", "test", "choose", "test", "search"),
)
"""Whose turn it is to get the next family; shares as everywhere."""
YES, NO = " yes", " no"

SHOTS = (("book", "hook"), ("moon", "spoon"), ("page", "cage"), ("dark", "park"))
"""Worked examples; no word that is asked rhymes with any of them."""
PAIR_SHOTS = (
    ("moon", "spoon", YES),
    ("food", "good", NO),
    ("first", "burst", YES),
    ("page", "dark", NO),
)
NOT_ASKED = frozenset(
    (
        *("again", "all", "are", "be", "by", "claim", "do", "few", "get", "he", "it", "lie", "me"),
        *("my", "no", "see", "she", "so", "that", "there", "those", "thing", "through", "today"),
        *("too", "well", "what", "when", "where", "who", "why", "will", "you", "your"),
    )
)
"""Common words that would be read as part of the question; they are right as answers."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
_SPELLED_ENDING = re.compile(r"[aeiouy]+[^aeiouy]*e?$")


class Phrasing(NamedTuple):
    """A way of asking, after which the rhyme follows at once, and then a full stop."""

    variant: str
    template: str

    def prompt(self, word: str) -> str:
        """The worked examples, a line each, then the question about the word."""
        shown = [self.template.format(word=shot, rhyme=rhyme) for shot, rhyme in SHOTS]
        asked = self.template.format(word=word, rhyme="").removesuffix(".").rstrip()
        return "\n".join([*shown, asked])


PHRASINGS = (
    Phrasing("a-word", "A word that rhymes with {word} is {rhyme}."),
    Phrasing("rhymes-with", "The word {word} rhymes with the word {rhyme}."),
    Phrasing("poet", "The poet needed a rhyme for {word} and chose {rhyme}."),
    Phrasing("question", "Question: Which word rhymes with {word}? Answer: {rhyme}."),
)
PAIR_TEMPLATES = (
    'Question: Do "{a}" and "{b}" rhyme? Answer:',
    'Question: Is "{a}" a rhyme for "{b}"? Answer:',
)


CELLS = ((True, True), (True, False), (False, True), (False, False))
"""Rhyme or not, spelled alike or not."""


class Pair(NamedTuple):
    """Two words of which the first is asked about in the usual form too."""

    word: str
    other: str
    rhyme: bool
    alike: bool
    """Whether they are spelled alike from their last vowel on."""

    @property
    def variant(self) -> str:
        return f"pair-{'alike' if self.alike else 'unlike'}-{'yes' if self.rhyme else 'no'}"

    @property
    def both(self) -> frozenset[str]:
        return frozenset((self.word, self.other))


class Words:
    """The common words, and what the dictionary says about them.

    Raises:
        UsageError: the dictionary lacks some of them.
    """

    def __init__(self, dictionary: Pronunciations) -> None:
        self.dictionary, self.common = dictionary, common_words()
        missing = [word for word in self.common if not dictionary.knows(word)]
        if missing:
            raise UsageError(
                f"the data set {DATA_SET} lacks {len(missing)} of {len(self.common)} common words, "
                f"such as {missing[0]!r}",
                "fetch it again: it is not the whole of CMUdict",
            )

    @cached_property
    def rhymes(self) -> Mapping[str, frozenset[str]]:
        """Of each common word, the common words that rhyme with it."""
        common = frozenset(self.common)
        return {word: frozenset(self.dictionary.rhymes_of(word)) & common for word in self.common}

    @cached_property
    def family(self) -> Mapping[str, str]:
        """Of each common word that ends in one way however it is said, the phones of its rhymes.

        Words like `read` are left out.  One family falls into one split.
        """
        parts = {
            word: {ending.rhyme for ending in self.dictionary.endings(word)} for word in self.common
        }
        return {word: " ".join(*one) for word, one in parts.items() if len(one) == 1}

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Words of one family, with enough common rhymes."""
        enough = {w for w in self.family if len(self.rhymes[w] - NOT_ASKED) >= N_COMMON}
        return tuple(stable_shuffle(enough - NOT_ASKED, "rhyming"))


def common_words() -> tuple[str, ...]:
    """The common words that come with the package, in the order of their file."""
    text = files("editor.capabilities").joinpath("data/rhyme-words.txt").read_text("utf-8")
    return tuple(text.split())


def first_word_rhymes(text: str, item: Item) -> float:
    """Whether the first word of a text is among the rhymes, which the item's `check` lists."""
    found = _WORD.search(text)
    word = found.group().lower().replace("\u2019", "'") if found else ""
    return float(word in item.check.split())


def spelled_alike(a: str, b: str) -> bool:
    """Whether two words have the same letters from their last vowel letters on, as `love`, `move`.

    An e at the end belongs to the letters before it.
    """
    endings = [_SPELLED_ENDING.search(word) for word in (a, b)]
    return len({ending.group() if ending else "" for ending in endings}) == 1


def pairs(words: Words) -> list[tuple[Pair, ...]]:
    """Pairs in groups of four about one word: rhyme or not, spelled alike or not.

    No pair is in two groups, in either order.  A word is left out that lacks one of the four.
    """
    used: set[frozenset[str]] = set()
    times: Counter[str] = Counter()
    found: list[tuple[Pair, ...]] = []
    for word in words.asked:
        fresh = [pair for pair in _partners(words, word) if pair.both not in used]
        cells = [[pair for pair in fresh if pair[2:] == cell] for cell in CELLS]
        if all(cells):
            # Partners that stand in few pairs so far go first: there are few of some kinds.
            group = tuple(min(cell, key=lambda pair: times[pair.other]) for cell in cells)
            found.append(group)
            used.update(pair.both for pair in group)
            times.update(pair.other for pair in group)
    return found


def _partners(words: Words, word: str) -> Iterator[Pair]:
    """A word with every common word that does or clearly does not rhyme, in a stable order."""
    shown = {shot for one, other, _ in PAIR_SHOTS for shot in (one, other)}
    others = words.family.keys() - NOT_ASKED - shown - {word}
    for other in stable_shuffle(others, f"pair {word}"):
        rhyme = other in words.rhymes[word]
        if rhyme or _clearly_apart(words, word, other):
            yield Pair(word, other, rhyme, spelled_alike(word, other))


def _clearly_apart(words: Words, a: str, b: str) -> bool:
    """Whether no accent makes the two rhyme that has one vowel for AA and AO, as many have."""
    one, other = (words.family[word].replace("AO", "AA") for word in (a, b))
    return one != other


def split_of_families(words: Words, groups: Sequence[tuple[Pair, ...]]) -> dict[str, Split]:
    """The split of each family, dealt out in turn: they are too few for a hash to divide them well.

    Those that the pairs are about go first, so that pairs are divided as well as words.
    """
    paired = Counter(words.family[group[0].word] for group in groups)
    families = stable_shuffle({words.family[word] for word in words.asked}, "families")
    families.sort(key=lambda family: -paired[family])
    return {family: TURNS[place % len(TURNS)] for place, family in enumerate(families)}


def _usual_items(words: Words, splits: Mapping[str, Split]) -> list[Item]:
    """Every word in every phrasing, in turn."""
    checks = {word: " ".join(words.dictionary.rhymes_of(word)) for word in words.asked}
    items: list[Item] = []
    for word, phrasing in in_turn(words.asked, PHRASINGS):
        common = stable_shuffle(words.rhymes[word] - NOT_ASKED, f"rhymes {word}")[:N_COMMON]
        choices = tuple(f" {rhyme}." for rhyme in common)
        family = words.family[word]
        items.append(
            Item(
                key=family,
                split=splits[family],
                prompt=phrasing.prompt(word),
                answer=choices[0],
                choices=choices,
                check=checks[word],
                variant=phrasing.variant,
            )
        )
    return items


def _pair_items(
    words: Words, groups: Sequence[tuple[Pair, ...]], splits: Mapping[str, Split]
) -> list[Item]:
    """Both orders of every pair, in turn; a group is asked in one way."""
    ways = [(cell, turned) for turned in (False, True) for cell in range(4)]
    items: list[Item] = []
    for (number, group), (cell, turned) in in_turn(tuple(enumerate(groups)), ways):
        pair, template = group[cell], PAIR_TEMPLATES[number % len(PAIR_TEMPLATES)]
        family = words.family[pair.word]
        items.append(
            Item(
                key=family,
                split=splits[family],
                prompt=_pair_prompt(template, *((pair.other, pair.word) if turned else pair[:2])),
                answer=YES if pair.rhyme else NO,
                choices=(YES, NO),
                variant=pair.variant,
                transfer=True,
            )
        )
    return items


def _pair_prompt(template: str, a: str, b: str) -> str:
    """Worked examples, turned around so that the last is a yes as often as a no; the question."""
    asked = template.format(a=a, b=b)
    turn = stable_number(asked) % len(PAIR_SHOTS)
    shots = PAIR_SHOTS[turn:] + PAIR_SHOTS[:turn]
    shown = [f"{template.format(a=one, b=other)}{answer}" for one, other, answer in shots]
    return "\n".join([*shown, asked])


def make_items(rows: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    """All items, the pairs last.

    Args:
        rows: CMUdict, as `pronunciation.from_rows` takes it.

    Raises:
        UsageError: a row is no entry, or common words are missing.
    """
    words = Words(from_rows(rows))
    groups = pairs(words)
    splits = split_of_families(words, groups)
    return (*_usual_items(words, splits), *_pair_items(words, groups, splits))


def blind_share(items: Iterable[Item]) -> float:
    """The share right of the best habit without rhyming: always writing the same common word.

    Words of the worked examples and the word asked for are never right, so that repeating is no
    better.  A common word drawn anew each time is right less often than the best of them.

    Args:
        items: Of the usual form.
    """
    common = frozenset(common_words())
    right: Counter[str] = Counter()
    total = 0
    for item in items:
        right.update(common.intersection(item.check.split()))
        total += 1
    return max(right.values()) / total


FLOOR = 0.088
"""The most that `blind_share` is of the test split, or of the other two together, as runs use them.
A split holds few families, so that one word is right for more of it than for all items: a common
word drawn at random is right for 0.013 of them.  A test recomputes both."""

RHYMING = Capability(
    name="rhyming",
    summary="Writing a word that rhymes with another one, and telling whether two words rhyme.",
    kind="task",
    floor=FLOOR,
    control_limit=0.05,
    source="words chosen for this project; pronunciations of CMUdict (Carnegie Mellon University)",
    licence="Apache-2.0; CMUdict BSD-2-Clause",
    make_items=make_items,
    scorer=ByForm(Written(first_word_rhymes, WRITTEN_TOKENS, stop=("\n",)), ChoiceLikelihood()),
    dense=AnyChoice(),
    default_control=False,
    data=(DATA_SET,),
)
