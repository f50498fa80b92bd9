"""Several tasks fitted together, on losses whose heads are known."""

from __future__ import annotations

import numpy as np
import pytest

from editor import design, shared


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-3, 0.1])
@pytest.mark.parametrize("n_out", [12, 40])
def test_heads_are_found_whatever_the_noise_and_the_heads_never_out(
    noise: float, n_out: int
) -> None:
    X = design.matrix(
        [design.stratified(range(n_out), n_units=40, n_masks=60, size=n_out // 6, seed=0)]
    )
    Y = X[:, [3, 5]] + noise * np.random.default_rng(0).normal(size=(60, 2))
    found = shared.fit(X, Y)
    assert list(np.flatnonzero(found.inclusion > 0.9)) == [3, 5]
    assert found.effects[[3, 5]] == pytest.approx(np.eye(2), abs=0.1)


@pytest.mark.parametrize(
    ("X", "Y"),
    [
        (np.ones((0, 3)), np.ones((0, 2))),
        (np.ones((4, 0)), np.ones((4, 2))),
        (np.ones((4, 3)), np.ones((4, 0))),
        (np.ones((4, 3)), np.ones(4)),
        (np.ones((4, 3)), np.full((4, 2), np.nan)),
    ],
)
def test_what_does_not_fit_is_refused(X: np.ndarray, Y: np.ndarray) -> None:
    with pytest.raises(ValueError, match="found shape"):
        shared.fit(X, Y)
