"""Limits, verdicts and the comparison of base and edited files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from editor import stats
from editor.capabilities.base import Continuation, Likelihood
from editor.errors import CapabilityAbsent, CheckFailed
from editor.measure import Bench, Task
from editor.records import Fill, Gate, Head, Mask, Result, Scores
from editor.validation import (
    HowLost,
    Judged,
    check_headroom,
    compare,
    k_curve,
    one_form,
    samples,
    validate_edit,
    verdict,
)
from fixtures import make_spec
from planted import N_HEADS, N_LAYERS, Effects, Memory, OverflowingModel, PlantedModel, planted_task

A, B, C = Head(1, 2), Head(4, 0), Head(4, 5)
SPEC = make_spec(N_LAYERS, N_HEADS)
N = 100


def right(n_right: int, n: int = N) -> Scores:
    """Of n items the first n_right are answered."""
    exact = (*(1.0,) * n_right, *(0.0,) * (n - n_right))
    return Scores(exact=exact, logprob=tuple(e - 2 for e in exact), n_tokens=(1,) * n)


def worse_by(*nats: float) -> Scores:
    """A text whose items in turn cost so many nats more than 2 a token."""
    each = tuple(-2.0 - nats[i % len(nats)] for i in range(N))
    return Scores(exact=(0.5,) * N, logprob=each, n_tokens=(1,) * N)


TARGET = Judged(planted_task("recall", N), "target", None, min_drop=0.5)
CONTROL = Judged(planted_task("copying", N), "control", 0.1)
TEXT = Judged(planted_task("english", N, "text"), "control", 0.1)
REPORTED = Judged(planted_task("recall", N), "target", None)


def gated(judged: Judged, base: Scores, edited: Scores) -> Result:
    """The row that has the gate; the others are only reported."""
    first, *others = compare(judged, base, edited, seed=0)
    assert all(row.gate == "info" and row.limit is None for row in others)
    assert all(row.task == judged.task.name and row.role == judged.role for row in others)
    assert all(row.n == N and row.change == row.edited - row.base for row in (first, *others))
    return first


class TestGates:
    @pytest.mark.parametrize(
        ("base", "edited", "gate"),
        [
            (80, 0, "pass"),
            (80, 20, "pass"),
            (80, 37, "unsure"),  # the limit is 40 points; 43 are gone, some resamples lose less
            (80, 45, "fail"),
            (80, 80, "fail"),
            (80, 90, "fail"),
            (5, 0, "floor"),
            (0, 0, "floor"),
        ],
    )
    def test_of_the_target(self, base: int, edited: int, gate: Gate) -> None:
        row = gated(TARGET, right(base), right(edited))
        assert (row.metric, row.gate) == ("exact", gate)
        assert row.limit == pytest.approx(-0.5 * base / N)

    def test_of_the_target_asks_for_a_share_of_what_lies_above_the_floor(self) -> None:
        capability = replace(TARGET.task.capability, floor=0.2)
        judged = replace(TARGET, task=replace(TARGET.task, capability=capability))
        assert gated(judged, right(80), right(10)).limit == pytest.approx(-0.3)
        assert gated(judged, right(80), right(45)).gate in ("pass", "unsure")
        assert gated(judged, right(80), right(55)).gate == "fail"
        assert gated(judged, right(25), right(0)).gate == "floor"
        assert gated(judged, right(10), right(0)).limit == 0.0

    @pytest.mark.parametrize(
        ("base", "edited", "gate"),
        [
            (80, 80, "pass"),
            (80, 100, "pass"),
            (80, 78, "pass"),
            (80, 73, "unsure"),
            (80, 69, "fail"),
            (80, 0, "fail"),
            (4, 0, "floor"),
        ],
    )
    def test_of_a_control_of_right_answers(self, base: int, edited: int, gate: Gate) -> None:
        row = gated(CONTROL, right(base), right(edited))
        assert (row.metric, row.gate, row.limit) == ("exact", gate, -0.1)

    @pytest.mark.parametrize(
        ("nats", "gate"),
        [
            ((0.0,), "pass"),
            ((-1.0,), "pass"),
            ((0.04, 0.06), "pass"),
            ((-0.5, 0.66), "unsure"),
            ((0.11, 0.12), "fail"),
            ((-2.0, 3.0), "fail"),
        ],
    )
    def test_of_a_control_of_text(self, nats: tuple[float, ...], gate: Gate) -> None:
        row = gated(TEXT, worse_by(0.0), worse_by(*nats))
        assert (row.metric, row.gate, row.limit) == ("nats_per_token", gate, 0.1)
        assert row.change == pytest.approx(np.mean(nats))

    def test_what_has_no_limit_is_only_reported(self) -> None:
        for edited in (0, 80):
            assert gated(REPORTED, right(80), right(edited)).gate == "info"

    def test_a_limit_reached_but_not_passed_is_no_failure(self) -> None:
        assert gated(TARGET, right(100), right(50)).gate != "fail"


class TestVerdict:
    @pytest.mark.parametrize(
        ("rows", "accepted", "said"),
        [
            ([(TARGET, right(80), right(0)), (CONTROL, right(80), right(80))], True, []),
            (
                [(TARGET, right(80), right(0)), (CONTROL, right(80), right(73))],
                True,
                ["not surely: copying exact"],
            ),
            (
                [(TARGET, right(80), right(0)), (CONTROL, right(3), right(0))],
                True,
                ["not tested: copying exact"],
            ),
            (
                [(TARGET, right(80), right(0)), (CONTROL, right(80), right(50))],
                False,
                ["copying exact changed by -0.300, the limit is -0.100"],
            ),
            ([(TARGET, right(80), right(70))], False, ["recall exact changed by -0.100"]),
            ([(TARGET, right(2), right(0))], False, ["too near the floor to tell"]),
            (
                [(TARGET, right(80), right(37)), (TEXT, worse_by(0), worse_by(0.5))],
                False,
                ["not surely: recall", "english nats_per_token changed by +0.500"],
            ),
            ([(REPORTED, right(80), right(80))], True, []),
        ],
    )
    def test_names_what_stands_against_it(
        self, rows: list[tuple[Judged, Scores, Scores]], accepted: bool, said: list[str]
    ) -> None:
        results = [row for one in rows for row in compare(*one, seed=0)]
        verdict_, reasons = verdict(results)
        assert verdict_ is accepted
        assert len(reasons) == len(said)
        for reason, part in zip(reasons, said, strict=True):
            assert part in reason


class TestHeadroom:
    capability = planted_task("recall").capability

    @pytest.mark.parametrize(("n_right", "n"), [(100, 100), (20, 20), (30, 100), (600, 1000)])
    def test_is_met_well_above_the_floor(self, n_right: int, n: int) -> None:
        check_headroom(right(n_right, n).exact, self.capability, "m")

    @pytest.mark.parametrize(("n_right", "n"), [(0, 100), (3, 100), (1, 1), (1, 2), (0, 1)])
    def test_is_missing_near_the_floor(self, n_right: int, n: int) -> None:
        with pytest.raises(CapabilityAbsent) as caught:
            check_headroom(right(n_right, n).exact, self.capability, "some-model")
        assert caught.value.exit_code == 5
        low, high = stats.wilson(n_right / n, n)
        shown = f"{n_right / n:.3f} [{low:.3f}, {high:.3f}] on {n} items"
        for part in ("some-model", "recall", shown, "floor 0.000"):
            assert part in caught.value.message

    def test_counts_from_the_floor(self) -> None:
        chance = replace(self.capability, floor=0.5)
        check_headroom(right(80).exact, chance, "m")
        for n_right in (20, 50, 60):
            with pytest.raises(CapabilityAbsent):
                check_headroom(right(n_right).exact, chance, "m")


class Noting(PlantedModel):
    """Remembers every mask."""

    def __init__(self, effects: Effects) -> None:
        super().__init__(effects)
        self.masks: list[Mask] = []

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]:
        self.masks += masks
        return super().likelihoods(requests, masks, fill=fill)


class Edited(PlantedModel):
    """A planted model with heads zeroed for good."""

    def __init__(self, effects: Effects, heads: Sequence[Head]) -> None:
        super().__init__(effects)
        self.heads = heads

    def loss(self, task: str, mask: Mask) -> float:
        return super().loss(task, (*mask, *self.heads))

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        more = [(*mask, *self.heads) for mask in masks]
        return super().generate(prompts, more, max_new_tokens=max_new_tokens, stop=stop)


class TestBothForms:
    """A capability of which an edit must take the transfer form too."""

    KNOWN = replace(
        planted_task("recall", N).capability, floor=0.1, both_forms="the form, not the thing"
    )
    USUAL = Judged(Task(KNOWN, planted_task("recall", N).items), "target", None, 0.5)
    OTHER = replace(
        USUAL, task=Task(KNOWN, planted_task("recall", N).items, "recall-transfer"), transfer=True
    )

    def verdict(self, usual: int, other: int, base: int = 80) -> tuple[bool, tuple[str, ...]]:
        rows = [
            *compare(self.USUAL, right(80), right(usual), seed=0),
            *compare(self.OTHER, right(base), right(other), seed=0),
        ]
        return verdict(rows, [HowLost("", one_form=one_form(self.USUAL, rows))])

    def test_accepted_where_both_fall(self) -> None:
        accepted, reasons = self.verdict(10, 12)
        assert accepted and not any("the form" in one for one in reasons)

    @pytest.mark.parametrize(("base", "other", "more"), [(80, 78, ""), (14, 5, "hardly above")])
    def test_refused_with_the_reason_where_one_does(self, base: int, other: int, more: str) -> None:
        accepted, reasons = self.verdict(10, other, base)
        assert not accepted
        assert reasons[0].startswith("the form, not the thing: recall changed by -0.700 [")
        assert "recall-transfer by -0.0" in reasons[0] and more in reasons[0]

    def test_refused_without_it_where_neither_does(self) -> None:
        accepted, reasons = self.verdict(79, 79)
        assert not accepted and not any("the form" in one for one in reasons)

    def test_counts_as_one_target(self) -> None:
        effects = {"recall": {A: 2.0}, "recall-transfer": {}}
        base, edited = (
            Bench(model, Memory()) for model in (PlantedModel(effects), Edited(effects, (A,)))
        )
        found = validate_edit(base, edited, [self.USUAL, self.OTHER], [A], spec=SPEC, seed=0)
        assert found.also == () and found.curve_task == "recall"


class TestCurve:
    @pytest.mark.parametrize("seed", range(5))
    def test_compares_with_other_heads_of_the_same_layers(self, seed: int) -> None:
        model = Noting({"recall": {A: 0.6, B: 0.6}})
        chosen = (B, A, C)
        curve = k_curve(Bench(model, Memory()), TARGET.task, SPEC, chosen, seed=seed)
        assert [point.k for point in curve] == [0, 1, 2, 3]
        assert (curve[0].chosen, curve[0].random) == (1.0, ())
        assert curve[1].chosen == 1.0 and curve[2].chosen < 0.5
        for point in curve[1:]:
            assert point.random and set(point.random) == {1.0}
            assert point.chosen_ci[0] <= point.chosen <= point.chosen_ci[1]
        peers = [mask for mask in model.masks if mask and not set(mask) & set(chosen)]
        others = [mask for mask in model.masks if set(mask) & set(chosen)]
        assert all(set(mask) <= set(chosen) for mask in others), "never mixed"
        for mask in peers:
            layers = sorted(head.layer for head in mask)
            assert layers == sorted(head.layer for head in chosen[: len(mask)])
            assert len(set(mask)) == len(mask)
        assert len({mask for mask in peers if len(mask) == 3}) > 1

    def test_grows_by_the_order_of_choice(self) -> None:
        model = Noting({"recall": {}})
        k_curve(Bench(model, Memory()), TARGET.task, SPEC, (C, A), seed=0)
        assert [mask for mask in model.masks if mask in [(C,), (A, C), (A,)]] == [(C,), (A, C)]

    def test_heads_without_which_nothing_is_a_number_leave_no_answer(self) -> None:
        model = OverflowingModel({"recall": {A: 0.1}}, A)
        curve = k_curve(Bench(model, Memory()), TARGET.task, SPEC, (C, A), seed=0)
        assert [point.chosen for point in curve] == [1.0, 1.0, 0.0]
        assert curve[2].chosen_ci == (0.0, 0.0)

    def test_a_layer_without_other_heads_has_no_peers(self) -> None:
        chosen = [Head(0, head) for head in range(N_HEADS - 1)]
        model = Noting({"recall": {}})
        curve = k_curve(Bench(model, Memory()), TARGET.task, SPEC, chosen, seed=0)
        assert len(curve) == len(chosen) + 1
        peers = {mask for mask in model.masks if mask and not set(mask) & set(chosen)}
        assert peers == {(Head(0, N_HEADS - 1),)}

    def test_the_seed_decides(self) -> None:
        masks = []
        for seed in (0, 0, 1):
            model = Noting({"recall": {}})
            k_curve(Bench(model, Memory()), TARGET.task, SPEC, (A, B), seed=seed)
            masks.append(model.masks)
        assert masks[0] == masks[1] != masks[2]


class TestValidateEdit:
    EFFECTS: Mapping[str, Mapping[Head, float]] = {
        "recall": {A: 2.0, B: 1.0},
        "copying": {C: 2.0},
        "english": {A: 0.01},
    }
    ROWS = (TARGET, CONTROL, TEXT)

    def validate(self, zeroed: Sequence[Head], plan: Sequence[Head] = (A, B), **how):
        base = Bench(PlantedModel(self.EFFECTS), Memory())
        edited = Bench(Edited(how.get("effects", self.EFFECTS), zeroed), Memory())
        return validate_edit(base, edited, self.ROWS, plan, spec=SPEC, seed=0)

    def test_accepts_what_keeps_its_limits(self) -> None:
        found = self.validate((A, B))
        assert found.accepted and found.reasons == ()
        assert found.masked_vs_baked == 0.0
        assert found.curve_task == "recall"
        assert [point.k for point in found.curve] == [0, 1, 2]
        rows = {(row.task, row.metric): row for row in found.results}
        assert list(rows)[0][0] == "recall"
        assert rows["recall", "exact"].change == -1.0
        assert rows["copying", "exact"].change == 0.0
        assert rows["english", "nats_per_token"].change == pytest.approx(0.01, rel=0.05)

    def test_does_not_accept_what_breaks_one(self) -> None:
        found = self.validate((A, C), plan=(A, C))
        assert not found.accepted
        assert any("copying" in reason for reason in found.reasons)

    @pytest.mark.parametrize("zeroed", [(A,), (), (A, Head(4, 1)), (C,)])
    def test_refuses_files_that_are_not_the_base_with_the_heads_removed(
        self, zeroed: Sequence[Head]
    ) -> None:
        with pytest.raises(CheckFailed, match="L1H2, L4H0") as caught:
            self.validate(zeroed)
        assert caught.value.exit_code == 4

    def test_refuses_files_of_another_model(self) -> None:
        with pytest.raises(CheckFailed):
            self.validate((A, B), effects={**self.EFFECTS, "recall": {A: 2.5, B: 1.0}})

    def test_forgives_rounding(self) -> None:
        found = self.validate((A, B), effects={**self.EFFECTS, "recall": {A: 2.001, B: 1.0}})
        assert 0 < found.masked_vs_baked < 0.01

    def test_shows_what_both_say_to_the_same_prompts(self) -> None:
        found = self.validate((A, B)).samples
        assert [one.task for one in found] == sorted(
            (one.task for one in found), key=["recall", "copying", "english"].index
        )
        for one in found:
            assert one.base == f"<script>{one.prompt} 0" and one.edited.endswith(" 2")
        bench = Bench(PlantedModel(self.EFFECTS), Memory())
        assert [(one.prompt, one.answer) for one in found] == [
            (one.prompt, one.answer)
            for one in samples(bench, bench, [row.task for row in self.ROWS])
        ]
