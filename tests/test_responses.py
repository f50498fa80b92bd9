"""What masks cost, from scores made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from editor.errors import CapabilityAbsent
from editor.records import Item, Scores
from editor.responses import (
    DEEPEST_LOSS,
    Response,
    at_fitted,
    item_losses,
    require_signal,
    respond,
)

N = 20
ITEMS = tuple(Item(key=f"k{n // 2}", prompt="p", answer=" a", variant="v") for n in range(N))


def scores(logprob: float | list[float] = -0.5, right: int = N) -> Scores:
    """`right` answers in front, all with one log-probability or one each."""
    each = logprob if isinstance(logprob, list) else [logprob] * N
    exact = [1.0] * right + [0.0] * (N - right)
    return Scores(exact=tuple(exact), logprob=tuple(each), n_tokens=(1,) * N)


def test_losses_are_means_over_items_and_cut_where_an_answer_is_gone() -> None:
    fell = [-0.5 - 0.1 * n for n in range(N)]
    found = respond(scores(), [scores(fell), scores(-100.0), scores(-0.2)], ITEMS)
    assert found.losses == pytest.approx([0.1 * (N - 1) / 2, DEEPEST_LOSS, -0.3])
    assert found.items[0] == pytest.approx([0.1 * n for n in range(N)])
    assert found.losses == pytest.approx(found.items.mean(axis=1))
    assert not found.known.any()
    assert found.deepest == DEEPEST_LOSS
    assert list(item_losses(scores(), scores(-100.0))) == [DEEPEST_LOSS] * N


def test_questions_about_one_thing_tell_nothing_of_how_they_differ() -> None:
    alike = tuple(item.model_copy(update={"key": "one"}) for item in ITEMS)
    with pytest.raises(CapabilityAbsent, match="about the same") as caught:
        require_signal(respond(scores(), [scores(-1.0), scores(-2.0)], alike), "recall")
    assert caught.value.exit_code == 5


def test_items_with_one_key_are_one_cluster() -> None:
    found = respond(scores(), [scores(-1.0)], ITEMS)
    assert list(found.clusters) == [n // 2 for n in range(N)]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_no_capability_and_the_mask_is_named(value: float) -> None:
    bad = scores([value, *[-0.5] * (N - 1)])
    with pytest.raises(CapabilityAbsent, match="mask 2 of 3") as caught:
        respond(scores(), [scores(), bad, scores()], ITEMS)
    assert caught.value.exit_code == 5 and "float32" in caught.value.hint
    with pytest.raises(CapabilityAbsent, match="the model as it is"):
        respond(bad, [scores()], ITEMS)


def test_only_the_view_that_is_looked_at_must_be_numbers() -> None:
    bad = scores([np.nan] * N)
    assert np.isfinite(respond(bad, [bad, scores(right=10)], ITEMS, "exact").losses).all()


class TestExact:
    def test_losses_are_on_a_log_scale(self) -> None:
        found = respond(scores(), [scores(right=n) for n in (20, 10, 0)], ITEMS, "exact")
        assert found.losses[0] == 0
        assert found.losses[1] == pytest.approx(np.log(20.5 / 10.5))
        assert found.losses[2] == pytest.approx(found.deepest) == pytest.approx(np.log(41))
        assert found.items.mean(axis=1) == pytest.approx(found.losses)

    def test_halving_twice_costs_about_twice_a_half(self) -> None:
        found = respond(scores(), [scores(right=10), scores(right=5)], ITEMS, "exact")
        assert found.losses[1] == pytest.approx(2 * found.losses[0], rel=0.05)

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
    def test_the_known_variance_is_that_of_counting(self, share: float) -> None:
        n = 100
        items = tuple(Item(key=str(k), prompt="p", answer="a", variant="v") for k in range(n))
        rng = np.random.default_rng(0)
        flat, ones = (0.0,) * n, (1,) * n
        drawn = [
            Scores(exact=tuple((rng.random(n) < share) * 1.0), logprob=flat, n_tokens=ones)
            for _ in range(2000)
        ]
        base = Scores(exact=(1.0,) * n, logprob=flat, n_tokens=ones)
        found = respond(base, drawn, items, "exact")
        assert found.known.mean() == pytest.approx((1 - share) / (n * share), rel=0.15)
        assert found.losses.var() == pytest.approx(found.known.mean(), rel=0.15)
        by_items = found.items.var(axis=1).mean() / n
        assert by_items == pytest.approx(found.known.mean(), rel=0.15)

    def test_no_count_has_no_variance(self) -> None:
        found = respond(scores(), [scores(right=n) for n in (20, 0)], ITEMS, "exact")
        assert (found.known > 0).all() and np.isfinite(found.known).all()

    def test_the_variance_at_a_fitted_loss_is_that_of_its_share(self) -> None:
        found = respond(scores(), [scores(right=n) for n in (20, 5)], ITEMS, "exact")
        half = np.full(2, np.log(2.0))
        assert at_fitted(found, half).known == pytest.approx([1 / N, 1 / N])
        assert (at_fitted(found, half).losses == found.losses).all()
        far = at_fitted(found, np.array([-5.0, 50.0])).known
        assert (far > 0).all() and np.isfinite(far).all(), "beyond all and none"

    def test_paired_losses_have_none(self) -> None:
        found = respond(scores(), [scores(-1.0), scores(-2.0)], ITEMS)
        assert at_fitted(found, np.zeros(2)) is found


class TestSignal:
    def test_masks_that_differ_pass(self) -> None:
        require_signal(respond(scores(), [scores(-1.0), scores(-1.1)], ITEMS), "recall")

    def test_one_dead_mask_is_no_fault(self) -> None:
        require_signal(respond(scores(), [scores(-100.0), scores(-0.6)], ITEMS), "recall")

    @pytest.mark.parametrize("logprob", [-0.5, -2.0])
    def test_a_constant_score_is_an_absent_capability(self, logprob: float) -> None:
        found = respond(scores(), [scores(logprob)] * 4, ITEMS)
        with pytest.raises(CapabilityAbsent, match="the same under all 4 masks") as caught:
            require_signal(found, "recall")
        assert caught.value.exit_code == 5 and "recall" in caught.value.message

    @pytest.mark.parametrize("view", ["logprob", "exact"])
    def test_all_dead_is_said_as_such(self, view: str) -> None:
        dead = [scores(-50.0 - n, right=0) for n in range(3)]
        found: Response = respond(scores(), dead, ITEMS, "exact" if view == "exact" else "logprob")
        with pytest.raises(CapabilityAbsent, match="nothing is left of recall under any of 3"):
            require_signal(found, "recall")
