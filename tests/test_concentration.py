"""Shares, overlaps and rank correlations against values known from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom, spearmanr

from editor.comparison import N_TOP, Finished, compare, label
from editor.concentration import N_DRAWS, overlap, spearman, tally, told, top_shares
from editor.records import Head
from finished_runs import ALL, Effects, make_estimate, make_run

STEPS: Effects = {"L1H1": (4, 0.4), "L2H2": (3, 0.3), "L3H3": (2, 0.2), "L4H4": (1, 0.1)}
"""Shares of 40, 30, 20 and 10 %."""


def noise(n: int, size: float = 0.1, *, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Heads without an effect, with intervals that hold zero."""
    values = np.random.default_rng(seed).uniform(-size, size, n)
    return {f"L{50 + at // 10}H{at % 10}": (float(x), 2 * size) for at, x in enumerate(values)}


def heads(*names: str) -> list[Head]:
    return [Head.parse(name) for name in names]


class TestShares:
    def test_of_known_effects(self) -> None:
        found = tally(make_estimate(STEPS))
        assert found.total == 10
        assert found.shares.tolist() == pytest.approx([0.4, 0.7, 0.9, 1.0])
        assert found.half()[0] == 2

    def test_noise_does_not_enter_the_total(self) -> None:
        few, many = make_estimate(STEPS), make_estimate({**STEPS, **noise(1000)})
        assert tally(many).shares.tolist() == tally(few).shares.tolist()
        assert sum(one.effect for one in many.effects if one.effect > 0) > 3 * 10
        shares = {one.k: one for one in top_shares(many, tally(many), 1004)}
        positive = 10 + sum(one.effect for one in many.effects[4:] if one.effect > 0)
        assert shares[1].share == pytest.approx(0.4)
        assert shares[1].of_positive == pytest.approx(4 / positive)
        assert shares[1].of_heads == 1 / 1004

    def test_only_heads_above_zero_are_told(self) -> None:
        effects = {"L1H1": (1.0, 0.9), "L1H2": (1.0, 1.0), "L1H3": (-1.0, 0.5), "L1H4": (0.0, 0.0)}
        assert [one.head for one in told(make_estimate(effects))] == heads("L1H1")

    def test_a_likely_head_is_told_whatever_its_interval(self) -> None:
        found = make_estimate({"L0H0": (1.0, 2.0), "L0H1": (1.0, 2.0), "L0H2": (-1.0, 2.0)})
        likely = [one.model_copy(update={"probability": 0.6}) for one in found.effects]
        unlikely = likely[1].model_copy(update={"probability": 0.4})
        effects = (likely[0], unlikely, likely[2])
        assert told(found) == ()
        assert told(found.model_copy(update={"effects": effects})) == (likely[0],)

    def test_exact_effects_have_exact_shares(self) -> None:
        estimate = make_estimate({name: (x, 0.0) for name, (x, _) in STEPS.items()})
        for one in top_shares(estimate, tally(estimate), 100):
            assert one.ci == pytest.approx((one.share, one.share))
        assert tally(estimate).half() == (2, (2, 2))

    def test_interval_is_that_of_error_propagation(self) -> None:
        # a / (a + b) with a = b = 1 and a standard deviation of 0.05 each: 0.05 sqrt(2) / 4.
        estimate = make_estimate({"L1H1": (1.0, 1.96 * 0.05), "L1H2": (1.0, 1.96 * 0.05)})
        (low, high) = top_shares(estimate, tally(estimate), 100)[0].ci
        half = 1.96 * 0.05 * 2**0.5 / 4
        assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.1 * half)

    def test_interval_follows_a_lopsided_one(self) -> None:
        estimate = make_estimate({"L1H1": (1.0, 0.0), "L1H2": (0.9, 0.0)})
        wide = estimate.effects[0].model_copy(update={"high": 3.0})
        estimate = estimate.model_copy(update={"effects": (wide, estimate.effects[1])})
        (low, high) = top_shares(estimate, tally(estimate), 100)[0].ci
        assert low == pytest.approx(1 / 1.9)
        assert high == pytest.approx(3 / 3.9, abs=0.02)

    def test_more_heads_than_are_told_hold_all(self) -> None:
        estimate = make_estimate(STEPS)
        shares = {one.k: one for one in top_shares(estimate, tally(estimate), 12)}
        assert sorted(shares) == [1, 2, 3, 4, 5, 10]
        assert (shares[10].share, shares[10].ci) == (1.0, (1.0, 1.0))

    def test_heads_that_a_limit_kept_out_are_counted_and_told(self) -> None:
        found = compare([make_run(STEPS, universal=("L0H0",), over_limit=("L0H1", "L0H2"))])
        assert found.runs[0].n_left_out == 3
        assert any("2 heads that alone cost a text" in note for note in found.notes)
        assert not any("alone cost" in note for note in compare([make_run(STEPS)]).notes)

    def test_universal_heads_are_left_out(self) -> None:
        universal = ("L0H0", "L0H1", "L0H2")
        effects = {**STEPS, "L0H0": (9.0, 0.1), "L0H1": (0.0, 0.1)}
        found = compare([make_run(STEPS), make_run(effects, universal=universal, seed=1)])
        plain, other = found.runs
        assert [one.share for one in other.shares] == [one.share for one in plain.shares]
        assert [one.of_positive for one in other.shares] == [0.4, 0.7, 0.9, 1, 1, 1, 1]
        assert (other.n_left_out, other.n_measured, other.n_told) == (3, 4, 4)
        assert (found.pairs[0].n_common, found.pairs[0].top.n_b) == (4, 4)

    def test_nothing_told(self) -> None:
        (run,) = compare([make_run(noise(20))]).runs
        assert (run.n_told, run.n_open, run.total, run.shares) == (0, 20, 0.0, ())
        assert run.half is run.half_ci is run.half_of_heads is None

    def test_one_head_alone(self) -> None:
        (run,) = compare([make_run({"L1H1": (1.0, 0.99)})]).runs
        assert (run.half, run.half_ci, run.shares[0].share) == (1, (1, 1), 1.0)

    def test_draws_are_the_runs_own(self) -> None:
        one = make_estimate(STEPS)
        other = make_estimate({name: (x * 1.01, half) for name, (x, half) in STEPS.items()})
        first, again, second = tally(one).draws, tally(one).draws, tally(other).draws
        assert np.array_equal(first, again)
        assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 4 / N_DRAWS**0.5

    @settings(deadline=None, max_examples=50)
    @given(
        st.dictionaries(
            st.sampled_from([str(head) for head in ALL]),
            st.tuples(st.floats(-1e8, 1e8), st.floats(0, 1e8)),
            min_size=1,
        )
    )
    def test_of_any_effects(self, effects: Effects) -> None:
        (run,) = compare([make_run(effects)]).runs
        assert run.n_told + run.n_hindering + run.n_open == run.n_measured == len(effects)
        shares = [one.share for one in run.shares]
        assert shares == sorted(shares)
        for one in run.shares:
            assert 0 <= one.ci[0] <= one.ci[1] <= 1
            assert 0 < one.of_positive <= 1 + 1e-9
        if run.half is not None and run.half_ci is not None:
            assert run.half_ci[0] <= run.half_ci[1] <= run.n_told


class TestOverlap:
    def test_by_hand(self) -> None:
        a = heads("L1H1", "L2H2", "L3H3")
        found = overlap(a, a, 10)
        assert (found.expected, found.p) == pytest.approx((0.9, 1 / 120))
        assert overlap(a, heads("L4H4", "L5H5"), 10).p == 1.0
        assert overlap(a, [], 10).p == 1.0
        assert overlap([], [], 0).expected == 0.0

    @given(st.integers(1, 60), st.data())
    def test_as_scipy_has_it(self, n: int, data: st.DataObject) -> None:
        sets = st.sets(st.sampled_from(ALL[:n]))
        a, b = sorted(data.draw(sets)), sorted(data.draw(sets))
        found = overlap(a, b, n)
        assert set(found.heads) == set(a) & set(b)
        expected = hypergeom.sf(len(found.heads) - 1, n, len(a), len(b))
        assert found.p == pytest.approx(float(expected))


class TestSpearman:
    @given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=3))
    def test_as_scipy_has_it(self, points: list[tuple[int, int]]) -> None:
        x, y = ([float(point[axis]) for point in points] for axis in (0, 1))
        assume(len(set(x)) > 1 and len(set(y)) > 1)
        assert spearman(x, y) == pytest.approx(float(spearmanr(x, y)[0]))

    def test_where_there_is_none(self) -> None:
        assert spearman([], []) is None
        assert spearman([1.0], [2.0]) is None
        assert spearman([0.0, -0.0, 0.0], [1.0, 2.0, 3.0]) is None


class TestPairs:
    def test_what_two_capabilities_share(self) -> None:
        one = make_run({**STEPS, **noise(20)}, chosen=("L1H1", "L2H2"))
        effects = {"L2H2": (5.0, 1.0), "L4H4": (1.0, 0.5), "L9H9": (3.0, 1.0), **noise(20, seed=1)}
        two = make_run(effects, capability="copying", chosen=("L9H9", "L2H2"))
        (pair,) = compare([one, two]).pairs
        # L1H1, L3H3 and L9H9 were measured in one run only.
        assert pair.n_common == 22
        assert pair.chosen.heads == tuple(heads("L2H2"))
        assert (pair.chosen.n_a, pair.chosen.n_b) == (1, 1)
        assert pair.chosen.p == pytest.approx(1 / 22)
        assert pair.top.heads == tuple(heads("L2H2", "L4H4"))
        assert pair.top.p == pytest.approx(1 / 231)

    def test_heads_that_tie_at_zero_are_not_shared(self) -> None:
        zeros = {f"L{n}H0": (0.0, 0.0) for n in range(10)}
        (pair,) = compare([make_run(zeros), make_run(zeros, capability="copying")]).pairs
        assert (pair.top.heads, pair.top.p, pair.rank_correlation) == ((), 1.0, None)

    def test_top_is_bounded(self) -> None:
        effects = {str(head): (1.0 + head.layer, 0.1) for head in ALL}
        (pair,) = compare([make_run(effects), make_run(effects, capability="copying")]).pairs
        assert (pair.top.n_a, pair.rank_correlation) == (N_TOP, pytest.approx(1.0))

    def test_other_models_share_no_heads(self) -> None:
        found = compare([make_run(STEPS), make_run(STEPS, model="org/large")])
        assert found.pairs == ()

    def test_the_same_capability_in_two_models(self) -> None:
        flat = {str(head): (1.0, 0.01) for head in ALL[:20]}
        small, large = make_run(STEPS), make_run(flat, model="org/large", n_layers=20)
        (one, two) = compare([small, large]).contrasts
        # A tells 4 heads only: 5 of them would be all.
        assert (one.k_a, one.k_b) == (1, 1)
        assert one.difference == pytest.approx(0.4 - 0.05)
        assert one.ci[0] < 0.35 < one.ci[1] < 0.4
        # One head of 100 is as much as two of 200.
        assert (two.k_a, two.k_b, two.difference) == (1, 2, pytest.approx(0.4 - 0.1))

    @pytest.mark.parametrize(
        "other",
        [
            make_run(STEPS, model="org/large", capability="copying"),
            make_run(STEPS, model="org/large", score="exact"),
            make_run(noise(5), model="org/large"),
            make_run({"L1H1": (1.0, 0.5)}, model="org/large"),
            make_run(STEPS, method="published"),
        ],
        ids=["capability", "score", "nothing told", "one told", "same model"],
    )
    def test_what_is_not_contrasted(self, other: Finished) -> None:
        assert compare([make_run(STEPS), other]).contrasts == ()


class TestNotes:
    def test_like_runs_need_no_warning(self) -> None:
        found = compare([make_run(STEPS), make_run(STEPS, capability="copying")], ["Left out: x."])
        assert not [note for note in found.notes if note.startswith("Different")]
        assert found.notes[-1] == "Left out: x."

    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (make_run(STEPS, score="exact"), "Different scores: A logprob, B exact."),
            (make_run(STEPS, method="published"), "Different method: A adaptive, B published."),
            (make_run(STEPS, search_items=48), "Different search items: A 24, B 48."),
        ],
    )
    def test_unlike_runs_are_told(self, other: Finished, said: str) -> None:
        notes = compare([make_run(STEPS), other]).notes
        assert any(said in note for note in notes)

    def test_same_name_and_other_files(self) -> None:
        run = make_run(STEPS)
        moved = run.fingerprint.model_copy(update={"checkpoint": "another"})
        notes = compare([run, run._replace(fingerprint=moved)]).notes
        assert "A and B name the same model, but its files differ." in notes

    def test_labels(self) -> None:
        assert [label(n) for n in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]
