# pyright: standard
"""Which tokens would begin any answer of a class, and how likely a model finds them together.

A model that has lost a capability still answers in the right form; one that has lost the form
answers nothing of the kind.  The answers of a class may all begin alike (with a token for the
space, say), so the form ends with the first token in which they differ:

    log p(right so far) = log p(form) + log p(right | form)
    log p(form) = log p(what all begin with) + log sum over the tokens that then follow in any
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Form(NamedTuple):
    """Where the tokenized answers of a class part."""

    n_shared: int
    """Tokens that all of them begin with."""
    ids: tuple[int, ...]
    """The distinct tokens that come next, ascending: at least two."""

    def fits(self, answer: Sequence[int]) -> bool:
        """Whether an answer of so many tokens goes on with one of these."""
        return len(answer) > self.n_shared and answer[self.n_shared] in self.ids


class Begun(NamedTuple):
    """How likely the beginning of an answer is, up to the token in which the class parts."""

    form: float
    """Log-probability of the form, in nats: never above 0."""
    first: float
    """Log-probability of the right answer's beginning, in nats."""


def parting(answers: Iterable[Sequence[int]]) -> Form | None:
    """The form of a class of tokenized answers.

    Returns:
        None where the answers do not part, so that there is no form apart from the right answer.
    """
    distinct = list(dict.fromkeys(map(tuple, answers)))
    shortest = min(map(len, distinct), default=0)
    shared = 0
    # The shortest answer keeps its last token: every answer has one where they part.
    while shared < shortest - 1 and len({answer[shared] for answer in distinct}) == 1:
        shared += 1
    ids = sorted({answer[shared] for answer in distinct}) if shortest else []
    return Form(shared, tuple(ids)) if len(ids) > 1 else None


def begun(
    logits: Tensor,
    norm: Tensor,
    logprob: Tensor,
    starts: Sequence[int],
    forms: Sequence[Form | None],
    *,
    places: Tensor | None = None,
) -> list[Begun | None]:
    """What the scored places say of the beginning of each row's answer.

    Args:
        logits: (n_places, vocabulary), of any floating type.
        norm: their log-sum-exp over the vocabulary, float32 (n_places,).
        logprob: log-probability of the right tokens, float64 (n_tokens,), on the CPU.
        starts: where in `logprob` each row's answer begins; (n_rows,).
        forms: one a row.
        places: the place at which each token is predicted, (n_tokens,), where the logits are; by
            default each has its own, in order.
    """
    rows_of: defaultdict[Form, list[int]] = defaultdict(list)
    for row, form in enumerate(forms):
        if form is not None:
            rows_of[form].append(row)
    # Row by row: a running sum would carry a score that is no number into the rows after it.
    right = logprob.numpy()
    out: list[Begun | None] = [None] * len(forms)
    for form, rows in rows_of.items():
        start = torch.tensor([starts[row] for row in rows])
        token, ids = (start + form.n_shared).to(logits.device), torch.tensor(form.ids)
        at = token if places is None else places[token]
        # Only the tokens of the class are read: a small part of a row of logits.
        inside = logits[at[:, None], ids.to(logits.device)[None]].float().logsumexp(dim=1)
        mass = (inside - norm[at]).double().cpu().clamp(max=0.0)  # rounding may pass 0
        for row, in_class in zip(rows, mass.tolist(), strict=True):
            parts = starts[row] + form.n_shared
            shared = float(right[starts[row] : parts].sum())
            out[row] = Begun(shared + in_class, shared + float(right[parts]))
    return out
