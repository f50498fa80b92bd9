# pyright: standard
"""Texts as a tree of tokens: what several begin with alike is read once for all of them.

A tree is one row of a batch.  Each of its tokens sees those before it in its own texts and no
others, by an attention mask, and stands at the position that it has there.  There is no padding,
and the questions of a few-shot prompt, say, share its examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from editor.scored_rows import Batch, Encoded, Row, scored_at, shared_rows
from editor.trials import agree

TREE_TOKENS = 256
"""Tokens of a tree: each is compared with all, so that larger ones take longer a token.  Twice the
longest text's where that is more."""
WORTHWHILE = 0.9
"""A tree is read in place of rows that have at least so many tokens, as a share of theirs."""

TRIAL_BRANCH = 5
"""Tokens of the short texts of a trial."""


class Tree(NamedTuple):
    """Texts that are read at once, every beginning that they share only once."""

    ids: list[int]
    """(n_nodes,): parents stand before their children."""
    parents: list[int]
    """(n_nodes,): the node of the token before, -1 at the start of a text."""
    asked: tuple[Encoded, ...]
    ends: list[int]
    """The node of the last token that is read of each."""

    @property
    def width(self) -> int:
        return len(self.ids)

    @property
    def depth(self) -> int:
        """Tokens of its longest text."""
        return max(len(item.read) for item in self.asked)

    def path(self, number: int) -> list[int]:
        """The nodes of one of the texts, from the first."""
        nodes, node = list[int](), self.ends[number]
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def positions(self) -> list[int]:
        """How many tokens stand before each in its texts; (n_nodes,)."""
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found

    def sees(self) -> Tensor:
        """Which tokens each one sees; bool (n_nodes, n_nodes)."""
        found = torch.eye(self.width, dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[node] |= found[parent]
        return found

    def apart(self) -> list[Row]:
        """The texts as rows of their own."""
        return shared_rows(self.asked)


def trees(encoded: Sequence[Encoded], at_most: int) -> list[Tree]:
    """All requests, in trees of so many tokens; a longer text is a tree of its own."""
    found: list[Tree] = []
    path: list[int] = []  # the nodes of the text that was added last
    # In this order the text before shares the most with the next one.
    for item in sorted(encoded, key=lambda e: (e.read, e.place)):
        read = item.read
        shared = _shared(found[-1], path, read) if found else 0
        if not found or found[-1].width + len(read) - shared > at_most:
            found.append(Tree([], [], (), []))
            shared = 0
        tree, path = found[-1], path[:shared]
        for token in read[shared:]:
            tree.parents.append(path[-1] if path else -1)
            path.append(tree.width)
            tree.ids.append(token)
        found[-1] = tree._replace(asked=(*tree.asked, item), ends=[*tree.ends, path[-1]])
    return found


def _shared(tree: Tree, path: Sequence[int], read: Sequence[int]) -> int:
    pairs = enumerate(zip(path, read, strict=False))
    return next(
        (n for n, (node, token) in pairs if tree.ids[node] != token), min(len(path), len(read))
    )


def tree_batch(tree: Tree, copies: int, device: torch.device, dtype: torch.dtype) -> Batch:
    """Copies of a tree, with what is asked of it and what a model has to be told to read it.

    Args:
        dtype: the model's: some add the mask to what they compute.
    """
    asked = [(0, tree.path(number), item) for number, item in enumerate(tree.asked)]
    batch = scored_at(torch.tensor([tree.ids]), asked, copies, device)
    hidden = torch.zeros((tree.width, tree.width), dtype=dtype)
    hidden.masked_fill_(~tree.sees(), torch.finfo(dtype).min)
    positions = torch.tensor([tree.positions()])
    return batch._replace(
        inputs={
            "attention_mask": hidden.to(device).expand(copies, 1, -1, -1),
            "position_ids": positions.expand(copies, -1).to(device),
        }
    )


def trial_tree(some_ids: Sequence[int], width: int, depth: int) -> Tree:
    """A tree of at least this width, and as deep, on which it is tried whether a model reads trees.

    A long text, and short ones that leave it after its second token, up to the width.
    """
    depth = max(depth, TRIAL_BRANCH + 2)
    parents = list(range(-1, depth - 1))
    ends = [depth - 1]
    while len(parents) < width or len(ends) < 3:
        start = len(parents)
        parents += [1, *range(start, start + TRIAL_BRANCH - 1)]
        ends.append(len(parents) - 1)
    ids = [some_ids[(7 * node) % len(some_ids)] for node in range(len(parents))]
    tree = Tree(ids, parents, (), [ends[0], ends[1], ends[-1]])
    texts = [[ids[node] for node in tree.path(number)] for number in range(3)]
    return tree._replace(asked=tuple(Encoded(n, [*text, 0], 1) for n, text in enumerate(texts)))


def reads_trees(tree: Tree, logits: Callable[[Tree | Row], Tensor], dtype: torch.dtype) -> bool:
    """Whether a model finds in a tree what it finds in its texts one by one.

    It does not where a layer keeps a state, looks at tokens by where they lie in the row, or has
    masks of its own.

    Args:
        logits: where something is asked; (n_places, vocabulary), of several copies.
    """
    alone = [Row(item.read, (item,)) for item in tree.asked]
    # Tokens behind a text change nothing but the shape: attention is causal.
    wider = [Row([*row.ids, *tree.ids][: tree.width], row.asked) for row in alone]
    found = logits(tree)
    wanted, again = (
        torch.stack([logits(row) for row in rows], dim=1).flatten(0, 1) for rows in (alone, wider)
    )
    return agree(found, wanted, again, dtype)
