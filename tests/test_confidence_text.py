"""How sure a search is, and what its choice went by, in words."""

from __future__ import annotations

import pytest

import fixtures
from editor.adaptive import AdaptiveSearch
from editor.choice_text import foreseen, foreseen_sentences, step_rows, step_sentences
from editor.confidence_text import rival_rows, scan_text, sentence, sentences, summary
from editor.records import Confidence, Head, Predicted
from test_adaptive import A, make_job

ONE = Head(3, 1)


class TestSentences:
    def test_the_short_answer(self) -> None:
        found, checks = fixtures.make_confidence(), fixtures.make_confirmation()
        assert sentence(found) == (
            f"3 heads decided at 95 % ({', '.join(map(str, fixtures.CHOSEN[:3]))}), 2 more "
            "undecided (L4H4, L5H5) after 62 masks in 6 rounds"
        )
        assert summary(found, checks) == (
            "3 heads decided, 2 more undecided; of 5 chosen 3 are decided, "
            "2 of the first 3 surely matter alone, "
            "0 of 8 random sets of the same layers come near"
        )
        assert summary(found, None) == "3 heads decided, 2 more undecided"
        assert summary(None, checks) == (
            "this method ranks heads and decides none; "
            "of 5 chosen 2 of the first 3 surely matter alone, "
            "0 of 8 random sets of the same layers come near"
        )
        assert summary(None, None) == ""
        assert "3 hindering heads decided" in summary(found, None, improve=True)

    def test_a_sure_trifle_does_not_matter(self) -> None:
        """What costs less than is worth a word alone is a stand-in, however sure its cost."""
        checks = fixtures.make_confirmation()
        small = [one.model_copy(update={"effect": 0.02, "low": 0.01}) for one in checks.alone]
        trifles = checks.model_copy(update={"alone": tuple(small)})
        assert "0 of the first 3 surely matter alone" in summary(None, trifles)

    def test_of_nothing_and_of_one(self) -> None:
        none = fixtures.make_confidence().model_copy(
            update={"decided": (), "undecided": (), "rounds": 1}
        )
        assert (
            sentence(none) == "no heads decided at 95 %, none undecided after 62 masks in 1 round"
        )
        one = none.model_copy(update={"decided": (ONE,)})
        assert sentence(one).startswith("1 head decided at 95 % (L3H1), none")
        many = none.model_copy(update={"undecided": tuple(Head(0, h) for h in range(20))})
        assert "no heads decided at 95 %, 20 undecided (L0H0" in sentence(many)
        assert "L0H7 and 12 more)" in sentence(many)

    def test_every_kind_of_doubt_is_said(self) -> None:
        said = sentences(fixtures.make_confidence())
        assert "stopped because the budget of 90 evaluations is spent." in said[0]
        assert "z = 3.1 by chance in 19 of 20" in said[1]
        assert "cannot tell the heads of a group apart" in said[2] and "L4H4 or L4H5" in said[2]
        assert said[3] == "L7H7 is decided as well, but the task does better without it."
        assert "the task needs it" in sentences(fixtures.make_confidence(), improve=True)[3]

    def test_what_is_not_there_is_not_said(self) -> None:
        bare = fixtures.make_confidence().model_copy(update={"groups": (), "helped": ()})
        assert len(sentences(bare)) == 2

    def test_many_groups_are_cut(self) -> None:
        groups = tuple((Head(at, 0), Head(at, 1)) for at in range(9))
        many: Confidence = fixtures.make_confidence().model_copy(update={"groups": groups})
        assert "(and 4 more groups)" in sentences(many)[2]

    def test_rivals_are_held_against_what_is_decided(self) -> None:
        (row,) = rival_rows(fixtures.make_fitted())
        assert row == ("lasso", f"{fixtures.CHOSEN[0]}, L0H0", "1 of 2")

    @pytest.mark.parametrize(
        ("heads", "n_scanned", "said"),
        [
            ((ONE,), 270, "Kept out of the search, since all text needs them: L3H1."),
            ((), 270, "None of 270 heads is needed by all text."),
            ((), 0, "Universal heads were not looked for by trying"),
            ((ONE,), 0, "not looked for among all heads. Of those that the search came upon"),
            ((), None, ""),
        ],
    )
    def test_scan(self, heads: tuple[Head, ...], n_scanned: int | None, said: str) -> None:
        text = scan_text(heads, n_scanned)
        assert said in text and bool(said) == bool(text)

    @pytest.mark.parametrize("many", [1, 20])
    def test_heads_that_a_limit_keeps_out_are_named(self, many: int) -> None:
        heads = tuple(Head(1, head) for head in range(many))
        text = scan_text((ONE,), 270, heads)
        assert "L3H1" in text and "L1H0" in text and "than its limit" in text
        assert ("and 12 more" in text) == (many == 20)


def test_universal_heads_that_the_search_came_upon_are_recorded() -> None:
    found = AdaptiveSearch(make_job(is_universal=lambda head: head == A)).confidence()
    assert found.universal == (A,) and A not in found.decided
    assert AdaptiveSearch(make_job()).confidence().universal == ()


class TestChoice:
    STEPS = (
        fixtures.make_step(Head(1, 0), 0.5, 0.5),
        fixtures.make_step(Head(2, 0), 0.3, 0.1),
        fixtures.make_step(Head(3, 0), 0.1, 0.3),
        fixtures.make_step(Head(4, 0), 0.2, 0.15),  # not sure
        fixtures.make_step(Head(5, 0), 0.2, -0.1),
        fixtures.make_step(Head(6, 0), 0.01, 0.001, error=0.001),  # sure, but next to nothing
    )

    def test_stand_ins_are_told_from_those_whose_work_is_done(self) -> None:
        plan = fixtures.make_plan().model_copy(update={"steps": self.STEPS})
        said = step_sentences(plan)
        assert [line.split()[0] for line in said] == ["L2H0", "L3H0", "L5H0"]
        assert (
            "stands in" in said[0] and "some of the same work" in said[1] and "stands in" in said[2]
        )
        readings = [row[3].split(":")[0] for row in step_rows(plan)]
        assert readings == [
            "the first",
            "more than alone",
            "less than alone",
            "not told from alone",
            "more than alone",
            "not told from alone",
        ]
        assert step_rows(plan)[1][:3] == ("L2H0", "+0.300", "+0.100")

    def test_predictions_stand_beside_measurements(self) -> None:
        plan = fixtures.make_plan().model_copy(
            update={
                "predicted": (
                    Predicted(task="recall", metric="exact", base=1.0, edited=0.5),
                    Predicted(task="copying", metric="exact", base=0.9, edited=0.87),
                    Predicted(task="nothing", metric="exact", base=0.9, edited=0.87),
                )
            }
        )
        target, copying = foreseen(plan, fixtures.make_validation())
        # Half of what the base answers here, which is 57.5 %.
        assert target.predicted == pytest.approx(-0.2875)
        assert target.measured == pytest.approx(-0.567) and target.differs
        assert copying.predicted == pytest.approx(-0.03) and not copying.differs
        (line,) = foreseen_sentences([target, copying])
        assert line.startswith("recall:") and "56.7 measured" in line and "points" in line

    def test_a_gain_is_predicted_as_it_is(self) -> None:
        plan = fixtures.make_plan().model_copy(
            update={"predicted": (Predicted(task="recall", metric="exact", base=0.2, edited=0.3),)}
        )
        (found,) = foreseen(plan, fixtures.make_validation(), improve=True)
        assert found.predicted == pytest.approx(0.1)
        assert foreseen(plan, None) == foreseen(None, fixtures.make_validation()) == []
