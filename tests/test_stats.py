"""Paired changes and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from editor import stats
from editor.records import Item, Metric, Scores


def items(n: int, keys: int | None = None) -> tuple[Item, ...]:
    """Items about n things, or about `keys` things in turn."""
    return tuple(
        Item(key=f"k{i % (keys or n)}", prompt=f"{i}", answer=" x", variant="v") for i in range(n)
    )


def scores(values: np.ndarray | list[float], metric: Metric = "exact", n_tokens: int = 1) -> Scores:
    flat = tuple(map(float, values))
    other = (0.0,) * len(flat)
    exact, logprob = (flat, other) if metric == "exact" else (other, flat)
    return Scores(exact=exact, logprob=logprob, n_tokens=(n_tokens,) * len(flat))


class TestValues:
    base = Scores(exact=(1.0, 0.0, 1.0), logprob=(-1.0, -4.0, -10.0), n_tokens=(1, 2, 7))
    edited = Scores(exact=(0.0, 0.0, 1.0), logprob=(-3.0, -4.0, -13.0), n_tokens=(1, 2, 7))

    @pytest.mark.parametrize(
        ("metric", "before", "after"),
        [
            ("exact", 2 / 3, 1 / 3),
            ("logprob", -5.0, -20 / 3),
            # 15 nats over 10 tokens, not the mean of 1/1, 4/2 and 10/7.
            ("nats_per_token", 1.5, 2.0),
        ],
    )
    def test_are_those_by_hand(self, metric: Metric, before: float, after: float) -> None:
        found = stats.paired_change(self.base, self.edited, metric, items(3))
        assert found.base == pytest.approx(before) == stats.mean(self.base, metric)
        assert found.edited == pytest.approx(after) == stats.mean(self.edited, metric)
        assert found.change == pytest.approx(after - before)
        back = stats.paired_change(self.edited, self.base, metric, items(3))
        assert back.change == pytest.approx(before - after)
        assert (back.low, back.high) == pytest.approx((-found.high, -found.low))

    def test_a_loss_is_negative_but_more_nats_are_positive(self) -> None:
        rows = {m: stats.paired_change(self.base, self.edited, m, items(3)) for m in METRICS}
        assert rows["exact"].change < 0 and rows["logprob"].change < 0
        assert rows["nats_per_token"].change > 0

    def test_the_interval_of_a_ratio_weighs_items_by_their_tokens(self) -> None:
        """One long item decides the ratio; so does its presence in a resample."""
        n = 30
        base = Scores(exact=(0.0,) * n, logprob=(0.0,) * n, n_tokens=(*(1,) * (n - 1), 1000))
        worse = (*(-1.0,) * (n - 1), 0.0)
        edited = base.model_copy(update={"logprob": worse})
        found = stats.paired_change(base, edited, "nats_per_token", items(n))
        assert found.change == pytest.approx(29 / 1029)
        assert found.high > 0.9, "a third of the resamples are without the long item"


METRICS: tuple[Metric, ...] = ("exact", "logprob", "nats_per_token")


@pytest.mark.parametrize(("n_right", "n"), [(0, 20), (3, 96), (48, 96), (20, 20), (1, 1)])
def test_wilsons_interval_is_that_of_scipy(n_right: int, n: int) -> None:
    from scipy.stats import binomtest

    wanted = binomtest(n_right, n).proportion_ci(method="wilson")
    assert stats.wilson(n_right / n, n) == pytest.approx((wanted.low, wanted.high), abs=1e-6)


class TestInterval:
    def pair(self, n: int, seed: int = 0) -> tuple[Scores, Scores]:
        rng = np.random.default_rng(seed)
        base = rng.normal(-2, 1, n)
        return scores(base, "logprob"), scores(base + rng.normal(-0.5, 1, n), "logprob")

    @pytest.mark.parametrize("seed", range(20))
    @pytest.mark.parametrize("metric", ["logprob", "nats_per_token"])
    def test_contains_the_change(self, metric: Metric, seed: int) -> None:
        found = stats.paired_change(*self.pair(30, seed), metric, items(30))
        assert found.low < found.change < found.high

    def test_shrinks_as_items_are_added(self) -> None:
        width = []
        for n in (25, 100, 400):
            found = stats.paired_change(*self.pair(n), "logprob", items(n))
            width.append(found.high - found.low)
        assert width[0] / width[2] == pytest.approx(4, rel=0.3)
        assert width[0] > width[1] > width[2]

    @pytest.mark.parametrize("metric", METRICS)
    def test_is_a_point_when_nothing_changes(self, metric: Metric) -> None:
        base, _ = self.pair(20)
        found = stats.paired_change(base, base, metric, items(20))
        # Twenty answers that stay as they are do not show that the next one will.
        width = 1 - 0.025 ** (1 / 20) if metric == "exact" else 0.0
        assert (found.change, found.low, found.high) == pytest.approx((0.0, -width, width))

    @pytest.mark.parametrize("n", [5, 40, 400])
    def test_of_outcomes_that_are_all_alike_ends_where_others_become_unlikely(self, n: int) -> None:
        width = 1 - 0.025 ** (1 / n)
        assert stats.share_interval(np.zeros(n), items(n)) == pytest.approx((0, width))
        assert stats.share_interval(np.ones(n), items(n)) == pytest.approx((1 - width, 1))
        lost = stats.share_interval(-np.ones(n), items(n), least=-1.0)
        assert lost == pytest.approx((-1, width - 1))
        # Had they this probability of being otherwise, all alike were as rare as the tail.
        assert (1 - width) ** n == pytest.approx(0.025)

    def test_is_a_point_when_all_change_alike(self) -> None:
        base, _ = self.pair(20)
        lower = [value - 0.25 for value in base.logprob]
        found = stats.paired_change(base, scores(lower, "logprob"), "logprob", items(20))
        assert (found.low, found.change, found.high) == pytest.approx((-0.25, -0.25, -0.25))

    def test_is_paired(self) -> None:
        """The spread of the items cancels: only that of their changes is left."""
        rng = np.random.default_rng(1)
        base = rng.normal(0, 100, 50)
        found = stats.paired_change(
            scores(base, "logprob"),
            scores(base + rng.normal(0, 0.1, 50), "logprob"),
            "logprob",
            items(50),
        )
        assert found.high - found.low < 0.2

    def test_the_seed_decides(self) -> None:
        pair = self.pair(30)
        draws = [stats.paired_change(*pair, "logprob", items(30), seed=s) for s in (1, 1, 2)]
        assert draws[0] == draws[1] != draws[2]

    def test_items_with_one_key_are_resampled_together(self) -> None:
        rng = np.random.default_rng(2)
        shared = rng.normal(0, 1, 20)  # 20 things, each asked in 8 forms
        edited = scores(np.tile(shared, 8) + rng.normal(0, 0.1, 160), "logprob")
        base = scores(np.zeros(160), "logprob")
        together = stats.paired_change(base, edited, "logprob", items(160, keys=20))
        alone = stats.paired_change(base, edited, "logprob", items(160))
        assert together.change == alone.change
        wider = (together.high - together.low) / (alone.high - alone.low)
        assert wider == pytest.approx(math.sqrt(8), rel=0.25)

    def test_one_key_says_nothing_of_the_spread(self) -> None:
        found = stats.paired_change(*self.pair(9), "logprob", items(9, keys=1))
        assert found.low == pytest.approx(found.change) == found.high

    @pytest.mark.parametrize("n_forms", [1, 3])
    def test_covers_the_truth_as_often_as_it_says(self, n_forms: int) -> None:
        rng = np.random.default_rng(0)
        n_keys, n_runs, hits = 60, 300, 0
        asked = items(n_keys * n_forms, keys=n_keys)
        base = scores(np.zeros(len(asked)))
        for run in range(n_runs):
            thing = np.tile(rng.random(n_keys), n_forms)  # forms of one thing go together
            wrong = -(rng.random(len(asked)) < thing).astype(float)
            found = stats.paired_change(base, scores(wrong), "exact", asked, seed=run)
            hits += found.low <= -0.5 <= found.high
        assert 0.93 <= hits / n_runs <= 0.97


class TestShareInterval:
    def test_covers_the_share_and_is_a_point_where_all_are_alike(self) -> None:
        rng = np.random.default_rng(5)
        whole = rng.uniform(1, 2, 80)
        low, high = stats.ratio_interval(0.3 * whole, whole, items(80))
        assert low == pytest.approx(0.3) and high == pytest.approx(0.3)
        part = whole * rng.uniform(0, 1, 80)
        low, high = stats.ratio_interval(part, whole, items(80))
        assert low < part.sum() / whole.sum() < high < low + 0.3

    def test_resamples_with_nothing_to_share_are_left_out(self) -> None:
        whole = np.array([3.0, 0.0, 0.0])  # in 8 of 27 resamples nothing is left
        assert stats.ratio_interval(whole / 2, whole, items(3)) == (0.5, 0.5)


def test_mean_interval_is_that_of_the_change_from_nothing() -> None:
    rng = np.random.default_rng(0)
    sample = (rng.random(60) < 0.7).astype(float)
    low, high = stats.mean_interval(tuple(sample), items(60))
    assert low < sample.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * sample.std() / math.sqrt(60), rel=0.15)
    assert stats.mean_interval((1.0,) * 8, items(8)) == (1.0, 1.0)
    sample.sort()
    clustered = tuple(Item(key=f"{i // 10}", prompt="", answer="", variant="") for i in range(60))
    low_of_six, high_of_six = stats.mean_interval(tuple(sample), clustered)
    assert high_of_six - low_of_six > 2 * (high - low)
