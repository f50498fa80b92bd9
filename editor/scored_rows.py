# pyright: standard
"""Rows of token ids that a model reads, and the places in them at which answers are scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from editor.answer_form import Form


class Encoded(NamedTuple):
    """A tokenized continuation."""

    place: int
    """Where it stands among the requests."""
    ids: list[int]
    n_answer: int
    """How many of the last ids are the answer."""
    form: Form | None = None
    """What the answers begin with that it is one among."""

    @property
    def read(self) -> list[int]:
        """What the model has to read: what it says after the answer's last token is not asked."""
        return self.ids[:-1] if self.n_answer else self.ids


class Row(NamedTuple):
    """What the model reads at once, and all that is asked of it."""

    ids: list[int]
    asked: tuple[Encoded, ...]

    @property
    def width(self) -> int:
        return len(self.ids)


class Batch(NamedTuple):
    """A batch of rows, and where in it something is scored."""

    ids: Tensor
    """(n_rows, width), padded on the right with any token."""
    rows: Tensor
    """(n_places,): the row of each position whose logits are needed, each once."""
    positions: Tensor
    """(n_places,): the logits there predict the next token."""
    at: Tensor
    """(n_scored,): the place at which each token of each answer is predicted."""
    targets: Tensor
    """(n_scored,): that token."""
    counts: list[int]
    """How many tokens each answer has; copy by copy, row by row."""
    inputs: dict[str, Tensor] = {}
    """What the model is given beside the ids."""


def shared_rows(encoded: Sequence[Encoded]) -> list[Row]:
    """As few rows as answer all requests, from the shortest to the longest.

    A request whose ids begin another's is read there: attention is causal, so that what comes after
    its tokens changes nothing.  Choices of one token thus share the row of their context.
    """
    rows: list[Row] = []
    # In this order whatever begins with some ids follows them immediately.
    for item in sorted(encoded, key=lambda e: (e.read, e.place)):
        if rows and item.read[: rows[-1].width] == rows[-1].ids:
            rows[-1] = Row(item.read, (*rows[-1].asked, item))
        else:
            rows.append(Row(item.read, (item,)))
    return sorted(rows, key=lambda row: (row.width, row.asked[0].place))


def whole_rows(encoded: Sequence[Encoded]) -> list[Row]:
    """One row a request, with the last token of its answer, from the shortest to the longest."""
    ordered = sorted(encoded, key=lambda e: (len(e.ids), e.place))
    return [Row(item.ids, (item,)) for item in ordered]


def batch_of(group: Sequence[Row], copies: int, device: torch.device) -> Batch:
    """Copies of the rows, one after the other, with what is asked of each."""
    width = max(row.width for row in group)
    ids = torch.zeros((len(group), width), dtype=torch.long)
    for number, row in enumerate(group):
        ids[number, : row.width] = torch.tensor(row.ids)
    asked = [
        (number, range(row.width), item) for number, row in enumerate(group) for item in row.asked
    ]
    return scored_at(ids, asked, copies, device)


def scored_at(
    ids: Tensor,
    asked: Sequence[tuple[int, Sequence[int], Encoded]],
    copies: int,
    device: torch.device,
) -> Batch:
    """Copies of some rows of ids, and where in them something is scored.

    Args:
        ids: (n_rows, width).
        asked: row by row: its number, where in it each token lies that is read, and what is asked.
    """
    places: dict[tuple[int, int], int] = {}
    at, targets, counts = [], [], []
    for number, path, item in asked:
        first = len(item.ids) - item.n_answer
        counts.append(item.n_answer)
        targets += item.ids[first:]
        for position in path[first - 1 : len(item.ids) - 1]:
            at.append(places.setdefault((number, position), len(places)))
    rows, positions = torch.tensor(list(places), dtype=torch.long).reshape(-1, 2).unbind(dim=1)
    copy = torch.arange(copies)[:, None]
    return Batch(
        ids.repeat(copies, 1).to(device),
        (rows + copy * len(ids)).flatten().to(device),
        positions.repeat(copies).to(device),
        (torch.tensor(at, dtype=torch.long) + copy * len(places)).flatten().to(device),
        torch.tensor(targets, dtype=torch.long).repeat(copies).to(device),
        counts * copies,
    )
