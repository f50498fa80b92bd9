"""Fakes of a model: every head takes a known amount off every task's log-probability."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from editor.capabilities import Capability
from editor.capabilities.base import AnswerLikelihood, Continuation, Likelihood, TextLikelihood
from editor.measure import CHUNK_REQUESTS, Bench, Task
from editor.records import Fill, Head, Item, Mask

N_LAYERS, N_HEADS = 10, 8
HEADS = tuple(Head(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS))
CHUNK = CHUNK_REQUESTS // 40
"""Masks of a `planted_task` between two looks at the clock."""
Effects = Mapping[str, Mapping[Head, float]]
"""By task and head: nats that its removal takes off a typical item."""


class Memory:
    """A journal that forgets when it is gone."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def get(self, key: str) -> str | None:
        return self.entries.get(key)

    def place(self, key: str) -> str:
        return f"memory:{list(self.entries).index(key) + 1}"

    def append(self, key: str, value_json: str) -> None:
        assert key not in self.entries
        self.entries[key] = value_json


class PlantedModel:
    """Log-probability of an item = base - the sum of the effects of the heads that are out."""

    def __init__(self, effects: Effects, base: float = -0.5, mean_share: float = 1.0) -> None:
        self.effects, self.base, self.n_calls = effects, base, 0
        self.n_gradients = 0
        self.mean_share = mean_share
        """What remains of every effect when a head's mean stands in its place."""

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]:
        self.n_calls += len(masks)
        share = self.mean_share if fill == "mean" else 1.0
        return [[self._one(request, mask, share) for request in requests] for mask in masks]

    def _one(self, request: Continuation, mask: Mask, share: float) -> Likelihood:
        task, number = request.prompt.split()
        logprob = self.base - spread_of(number) * share * self.loss(task, mask)
        return Likelihood(logprob, int(logprob > -1.5), 1)

    def loss(self, task: str, mask: Mask) -> float:
        """What the mask costs a task's typical item."""
        return sum(self.effects[task].get(head, 0.0) for head in set(mask))

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        """What each head's knock-out adds to the loss, which is exact here; zero for those out."""
        self.n_gradients += 1
        found = [[0.0] * N_HEADS for _ in range(N_LAYERS)]
        for request in requests:
            task, number = request.prompt.split()
            now = self.loss(task, mask)
            for head in HEADS:
                added = self.loss(task, (*mask, head)) - now
                found[head.layer][head.head] += spread_of(number) * added
        return found

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str]]:
        return [[f"<script>{prompt} {len(mask)}" for prompt in prompts] for mask in masks]


class BackupModel(PlantedModel):
    """Some heads cost something only when others are out: they stand in for them."""

    def __init__(self, effects: Effects, backups: Mapping[Head, Head]) -> None:
        super().__init__(effects)
        self.backups = backups

    def loss(self, task: str, mask: Mask) -> float:
        effective = [h for h in mask if h not in self.backups or self.backups[h] in mask]
        return super().loss(task, tuple(effective))


def spread_of(number: str) -> float:
    """Items differ in how much they lose."""
    return 0.8 + 0.4 * (int(number) % 7) / 6


def planted_task(name: str, n_items: int = 40, kind: str = "task") -> Task:
    """A task whose items a `PlantedModel` understands."""
    items = tuple(
        Item(key=f"{name}-{n}", prompt=f"{name} {n}", answer=" x", variant="v")
        for n in range(n_items)
    )
    return Task(generated_capability(name, kind, items), items)


def generated_capability(name: str, kind: str, items: tuple[Item, ...]) -> Capability:
    """A capability of the tests: no floor, the usual limit, and the scorer of its kind."""
    return Capability(
        name=name,
        summary="generated",
        kind="text" if kind == "text" else "task",
        floor=0.0,
        control_limit=0.05,
        source="generated",
        licence="Apache-2.0",
        make_items=lambda: items,
        scorer=TextLikelihood() if kind == "text" else AnswerLikelihood(),
    )


def planted_bench(effects: Effects) -> Bench:
    return Bench(PlantedModel(effects), Memory())


class OverflowingModel(PlantedModel):
    """Nothing that it says is a number while a certain head is out."""

    def __init__(self, effects: Effects, overflows: Head) -> None:
        super().__init__(effects)
        self.overflows = overflows

    def loss(self, task: str, mask: Mask) -> float:
        return float("nan") if self.overflows in mask else super().loss(task, mask)

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        """To first order nothing overflows."""
        return PlantedModel(self.effects, self.base).gradients(requests, mask)
