"""Two workers on the real 135M model: the scores of one process, bit for bit."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from editor import capabilities
from editor.measure import Bench, Task
from editor.progress import Silent
from editor.session import Options, loaded_bench, open_model
from planted import Memory

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_two_workers_give_the_numbers_of_one_and_survive_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    opened = open_model("smollm2-135m", Options(), Silent())
    capability = capabilities.get("recall")
    task = Task(capability, capability.items("search")[:12])
    rng, heads = np.random.default_rng(0), opened.spec.heads()
    masks: Any = [
        (),
        *(tuple(sorted(heads[n] for n in rng.choice(270, 3, False))) for _ in range(30)),
    ]

    class Kills(Memory):
        def append(self, key: str, value_json: str) -> None:
            super().append(key, value_json)
            if len(self.entries) == 10:
                os.kill(two.model._crew._hands.pids()[0], signal.SIGKILL)  # type: ignore

    one = loaded_bench(opened, "float32", Memory(), Options(), Silent())
    with closing(loaded_bench(opened, "float32", Kills(), Options(workers=2), Silent())) as two:
        assert isinstance(one, Bench)
        # Alone, one measures in larger batches, of which the last bits differ.
        for here, there in zip(one.scores(task, masks), two.scores(task, masks), strict=True):
            assert there.exact == here.exact
            assert there.logprob == pytest.approx(here.logprob, abs=1e-3)
        slopes = [bench.gradients(task, masks[1]) for bench in (one, two)]
        assert np.allclose(*slopes, rtol=1e-3, atol=1e-4)
        prompts = [item.prompt for item in task.items[:3]]
        texts = [bench.texts(prompts, masks[2], max_new_tokens=8) for bench in (one, two)]
        assert texts[0] == texts[1]
