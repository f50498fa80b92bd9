"""Rhymes by the pronouncing dictionary, on an excerpt that stands in tests/cmudict_excerpt.txt."""

from __future__ import annotations

import pytest

from cmudict_excerpt import EXCERPT, excerpt_rows
from editor.capabilities.pronunciation import Ending, Pronunciations, from_rows, parse
from editor.errors import UsageError

DICTIONARY = parse(EXCERPT)

# Both words a line; every line is asked in both orders.
RHYMES = {
    "masculine": """
        cat hat, night white, day weigh, blue through, bear hair, go though, rough stuff, cough off,
        laugh staff, eight late, said bed, friend end, heart art, blood mud, word bird, work jerk,
        one fun, two shoe, choir fire, steak cake, height kite, wait great, buy sky, knight bite,
        debt wet, tongue young, soup loop, queue view, ray pray, eye high, ear near, beer here""",
    "behind an unstressed syllable": """
        delight night, explain rain, today way, alone stone, believe receive, machine green,
        guitar star, hotel bell, prefer occur, control soul, betray ray, generation nation""",
    "feminine": """
        butter cutter, singing ringing, table able, motion ocean, nation station, letter better,
        feather weather, mother brother, honey funny, pocket rocket, apple chapel, daughter water,
        measure treasure, sorrow borrow, yellow fellow, silly hilly, bitten kitten, flower power,
        follow hollow, dinner winner, rabbit habit, candle handle, teacher preacher""",
    "dactylic": """
        vanity sanity, glorious victorious, ability utility, gravity cavity,
        emergency urgency, charity clarity, history mystery""",
    "on secondary stress": "butterfly sky, photograph laugh, rainbow low, appetite night",
    "homographs, in either way": """
        read bed, read seed, lead said, lead need, wind kind, wind pinned, tear bear, tear fear,
        bow cow, bow low, live give, live five, dove love, dove stove, close nose, close dose,
        wound sound, route shout, route boot""",
    "where the dictionary is of two minds": """
        hear near, fear ear, jacket bracket, village pillage, ended mended, sorrow tomorrow,
        singing ringing""",
    "weak forms aside": "for door, and land, them hem, 'em drum",
    "plurals and possessives": "cats hats, boxes foxes, cat's hats, dogs' logs, kite's nights",
    "hyphens": """
        merry-go-round sound, mother-in-law saw, runner-up cup, e-mail snail, x-ray day""",
}
SAME_SOUND = {
    "the word itself": "cat cat, read read, wind wind, for for, butter butter, cat CAT, a A",
    "homophones": """
        pair pear, sea see, night knight, write right, which witch, read reed, read red, two too,
        flower flour, their there, for four, hats hat's""",
    "behind a prefix": """
        light delight, leave believe, new anew, port airport, plane airplane, bow rainbow, law
        mother-in-law""",
}
NO_RHYMES = {
    "unstressed endings": """
        sofa coda, singing running, quickly slowly, happy city, nation option, winter water,
        doctor actor, table little, garden kitten, window yellow, running reading, nation cation,
        letter water, basket ticket""",
    "spelled alike": """
        love move, cough though, bough tough, through though, have gave, come home, said paid,
        bear near, food good, blood mood, word lord, war far, gone bone, was has, pint mint,
        wolf golf, lost post, bush rush, watch catch, laughter daughter, heard beard, bead head,
        sew few, youth south, both cloth, comb tomb, tomb bomb, doll roll, great threat,
        break freak, key they""",
    "nearly": """
        time fine, lady baby, home stone, cat cap, cats cat, cat hats, walk walked, kite nights""",
    "homographs": "read ride, lead lid, wind wand, tear tar, bow boy, live love, dove drive",
    "only in a weak form": "for her, and fund, them drum, was does",
    "stress on other syllables": "butterfly funny, sing singing, ring during",
}
UNKNOWN = ("zxqv", "", " ", "123", "кот", "zxqv's", "mother-in-zxqv", "-", "'", "猫", "s'")


def listed(groups: dict[str, str]) -> list[tuple[str, str]]:
    found = [tuple(pair.split()) for text in groups.values() for pair in text.split(",")]
    assert all(len(pair) == 2 for pair in found)
    return [(a, b) for a, b in found]


@pytest.mark.parametrize(("a", "b"), listed(RHYMES))
def test_they_rhyme(a: str, b: str) -> None:
    assert DICTIONARY.relation(a, b) == DICTIONARY.relation(b, a) == "rhyme"
    assert DICTIONARY.rhymes(a, b)


@pytest.mark.parametrize(("a", "b"), listed(SAME_SOUND))
def test_the_same_sound_is_no_rhyme(a: str, b: str) -> None:
    assert DICTIONARY.relation(a, b) == DICTIONARY.relation(b, a) == "same sound"
    assert not DICTIONARY.rhymes(a, b)


@pytest.mark.parametrize(("a", "b"), listed(NO_RHYMES))
def test_they_do_not_rhyme(a: str, b: str) -> None:
    assert DICTIONARY.relation(a, b) == DICTIONARY.relation(b, a) == "none"
    assert not DICTIONARY.rhymes(a, b)


@pytest.mark.parametrize("word", UNKNOWN)
def test_unknown_words_rhyme_with_nothing_and_are_known_to_be_unknown(word: str) -> None:
    assert not DICTIONARY.knows(word)
    assert DICTIONARY.of(word) == ()
    for other in ("cat", word):
        assert DICTIONARY.relation(word, other) == DICTIONARY.relation(other, word) == "unknown"
        assert not DICTIONARY.rhymes(word, other)


def test_there_are_enough_pairs() -> None:
    pairs = [*listed(RHYMES), *listed(SAME_SOUND), *listed(NO_RHYMES)]
    assert len({frozenset(pair) for pair in pairs}) >= 170


@pytest.mark.parametrize(
    "written",
    ["Cat", "CAT", " cat\n", "cat.", '"cat"', "\u201ccat\u201d", "(cat)", "'cat'", "cat,", "ｃａｔ"]
    + ["c\u00e1t", "c\u00ada\u200bt", "cat!?", "*cat*", "\u2018cat\u2019"],
)
def test_how_a_word_is_written_does_not_matter(written: str) -> None:
    assert DICTIONARY.of(written) == (("K", "AE1", "T"),)
    assert DICTIONARY.rhymes(written, "hat")
    assert DICTIONARY.relation(written, "cat") == "same sound"


@pytest.mark.parametrize(
    ("written", "same"),
    [
        ("don\u2019t", "don't"),
        ("na\u00efve", "naive"),
        ("caf\u00e9", "cafe"),
        ("e\u2011mail", "e-mail"),
    ]
    + [
        ("cafe\u0301", "cafe"),
        ("\u2019em", "'em"),
        ("Butter-", "butter"),
        ("kite\u2019s", "kite's"),
    ],
)
def test_typography(written: str, same: str) -> None:
    assert DICTIONARY.of(written) == DICTIONARY.of(same) != ()


def test_an_apostrophe_that_belongs_to_the_word_stays() -> None:
    assert DICTIONARY.of("'em") == (("AH0", "M"),)
    assert DICTIONARY.of("em") == (("EH1", "M"),)


class TestPossessives:
    DICTIONARY = parse("bus B AH1 S\nkite K AY1 T\nbee B IY1\ndog D AO1 G\ntooth T UW1 TH")

    @pytest.mark.parametrize(
        ("word", "ending"),
        [("bus's", ["IH0", "Z"]), ("kite's", ["S"]), ("bee's", ["Z"]), ("dog's", ["Z"])]
        + [("tooth's", ["S"])],
    )
    def test_by_the_rule_where_the_dictionary_has_none(self, word: str, ending: list[str]) -> None:
        (owner,) = self.DICTIONARY.of(word.removesuffix("'s"))
        assert self.DICTIONARY.of(word) == ((*owner, *ending),)

    def test_of_a_plural_like_the_plural(self) -> None:
        assert self.DICTIONARY.of("bus'") == self.DICTIONARY.of("bus")

    def test_a_plural_is_not_guessed(self) -> None:
        assert not self.DICTIONARY.knows("kites")

    def test_what_the_dictionary_says_goes_first(self) -> None:
        assert parse("bee B IY1\nbee's B EY1 Z").of("bee's") == (("B", "EY1", "Z"),)


class TestHyphens:
    DICTIONARY = parse("in IH1 N\nlaw L AO1\nsay S EY1\nsay(2) S AY1\nxray EH1 K S R EY2")

    def test_as_without_them(self) -> None:
        assert self.DICTIONARY.of("X-ray") == self.DICTIONARY.of("xray")

    def test_part_by_part(self) -> None:
        assert self.DICTIONARY.of("law-in-say") == (
            ("L", "AO1", "IH1", "N", "S", "EY1"),
            ("L", "AO1", "IH1", "N", "S", "AY1"),
        )
        assert self.DICTIONARY.of("say-in") == (("S", "EY1", "IH1", "N"),)

    @pytest.mark.parametrize("word", ["law--in", "law-in-court", "court-law"])
    def test_every_part_must_be_known(self, word: str) -> None:
        assert not self.DICTIONARY.knows(word)


class TestEndings:
    @pytest.mark.parametrize(
        ("phones", "onset", "rhyme"),
        [
            ("K AE1 T", "K", "AE T"),
            ("S T R IY1 T", "S T R", "IY T"),
            ("AY1", "", "AY"),
            ("M UW0 N L AY2 T", "L", "AY T"),  # no syllable begins with NL
            ("IH0 K S P L EY1 N", "S P L", "EY N"),
            ("S IH0 NG IH2 NG", "", "IH NG"),  # nor with NG
            ("NG UW1 Y EH0 N", "NG", "UW Y EH N"),  # but words do, and then with all of it
            ("M B EH1 K IY0", "M B", "EH K IY"),
            ("DH AH0", "DH", "AH"),
            ("HH IY1 R", "HH", "IH R"),
            ("W IY1 R IY0", "W", "IH R IY"),
            ("JH AE1 K IH0 T", "JH", "AE K AH T"),
        ],
    )
    def test_of_a_word(self, phones: str, onset: str, rhyme: str) -> None:
        expected = Ending(tuple(onset.split()), tuple(rhyme.split()))
        assert parse(f"word {phones}").endings("word") == {expected}

    @pytest.mark.parametrize("phones", ["SH", "HH M", "B IH0 K AH0 Z"])
    def test_none_without_a_stress(self, phones: str) -> None:
        dictionary = parse(f"word {phones}\ncat K AE1 T")
        assert dictionary.knows("word")
        assert dictionary.endings("word") == frozenset()
        assert dictionary.relation("word", "cat") == "none"
        assert dictionary.rhymes_of("word") == ()

    def test_the_last_stress_counts_beside_the_main_one(self) -> None:
        dictionary = parse("motorcade M OW1 T ER0 K EY2 D\nmade M EY1 D\ncade K EY1 D")
        assert {one.rhyme for one in dictionary.endings("motorcade")} == {
            ("EY", "D"),
            ("OW", "T", "ER", "K", "EY", "D"),
        }
        assert dictionary.rhymes("motorcade", "made")
        assert dictionary.relation("motorcade", "cade") == "same sound"

    def test_one_way_to_say_the_same_is_enough_to_be_the_same(self) -> None:
        dictionary = parse("new N UW1\nnew(2) N Y UW1\nknew N UW1\nyou Y UW1")
        assert dictionary.relation("new", "knew") == "same sound"
        assert dictionary.relation("new", "you") == "rhyme"


@pytest.mark.parametrize(
    "word", ["cat", "read", "night", "borrow", "new", "bow", "for", "'em", "rainbow"]
)
def test_all_rhymes_of_a_word_are_those_that_rhyme_with_it(word: str) -> None:
    every = {str(row["word"]) for row in excerpt_rows()}
    assert set(DICTIONARY.rhymes_of(word)) == {w for w in every if DICTIONARY.rhymes(word, w)}
    assert list(DICTIONARY.rhymes_of(word)) == sorted(DICTIONARY.rhymes_of(word))


def test_nothing_rhymes_with_an_unknown_word() -> None:
    assert DICTIONARY.rhymes_of("zxqv") == ()


class TestReading:
    TEXT = (
        ";;; an older heading\n# a comment\n\ncat K AE1 T\nCAT(1) K AA1 T # said so nowhere\n"
        "bow B AW1\nbow(2) B OW1\nbow(3) B OW1\n"
    )

    def test_all_pronunciations_once_in_their_order(self) -> None:
        dictionary = parse(self.TEXT)
        assert len(dictionary) == 2
        assert dictionary.of("cat") == (("K", "AE1", "T"), ("K", "AA1", "T"))
        assert dictionary.of("bow") == (("B", "AW1"), ("B", "OW1"))

    def test_other_line_ends(self) -> None:
        assert parse(self.TEXT.replace("\n", "\r\n")).of("bow") == (("B", "AW1"), ("B", "OW1"))

    def test_an_empty_file_knows_nothing(self) -> None:
        assert len(parse("")) == 0

    @pytest.mark.parametrize(
        "line", ["cat", "cat k ae1 t", "cat K AE1 T, hat", "<html>", "cat K A\u00c91 T", "cat K 1"]
    )
    def test_a_line_that_is_no_entry(self, line: str) -> None:
        with pytest.raises(UsageError, match="line 2 of the pronouncing dictionary"):
            parse(f"hat HH AE1 T\n{line}\n")

    def test_a_long_line_is_not_shown_whole(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse("x" * 100_000)
        assert len(caught.value.message) < 300

    def test_rows(self) -> None:
        rows = [
            {"word": "bow", "phones": "B AW1"},
            {"word": "bow(2)", "phones": "B OW1 # noun"},
            {"word": "Cat", "phones": "K AE1 T"},
        ]
        dictionary = from_rows(rows)
        assert dictionary.of("bow") == (("B", "AW1"), ("B", "OW1"))
        assert dictionary.knows("cat")

    @pytest.mark.parametrize(
        "row", [{}, {"word": "cat"}, {"word": "", "phones": "K"}, {"word": "cat", "phones": "k"}]
    )
    def test_a_row_that_is_no_entry(self, row: dict[str, str]) -> None:
        with pytest.raises(UsageError, match="row 2 of the pronouncing dictionary"):
            from_rows([{"word": "hat", "phones": "HH AE1 T"}, row])

    def test_rows_and_file_say_the_same(self) -> None:
        ours = from_rows(excerpt_rows())
        for word in ("read", "cat's", "merry-go-round", "for"):
            assert ours.of(word) == DICTIONARY.of(word) != ()
        assert isinstance(ours, Pronunciations) and len(ours) == len(DICTIONARY)
