# pyright: standard
"""Greedy writing under many masks at once: every row of a batch has its own set of heads out.

Rows are padded on the left and share one cache of keys and values.  A row that wrote a stop token
leaves the batch, so that the others go on in a smaller one.  That needs a cache whose rows can be
taken out.  Whether a model has one is found out once:

* transformers' cache for the model consists of layers of keys and values alone (`DROPPABLE`), and
* a trial of three steps, in which a row leaves, gives the logits of plain passes without a cache.

Models with a state instead of keys and values, or a cache of their own, write through transformers'
`generate`, in batches of prompts of one length: without padding, which a state would take in, and
with finished rows inside.  Where a trial shows that this is not what plain passes say either (some
count positions otherwise when they write), each step is a plain pass over all tokens so far.

Greedy is the most likely token at each step and nothing else: penalties and limits that a
checkpoint's generation_config.json asks for are not applied; its stop tokens are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from editor.hooks import hooked
from editor.records import Mask
from editor.trials import agree, works

DROPPABLE = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers of a cache that hold one row of keys and values a prompt, and nothing else."""
CACHE_NAMES = ("cache", "past_key_values")
"""What models call their cache: transformers changed the name in 5.24."""
TRIED_TOKENS = 12
"""Length of the rows on which it is tried whether rows can leave."""

NO_NUMBER = -1
"""Stands in the place of a token whose logits have no greatest one, or an infinite one."""

Way = Literal["leaving", "staying", "plain"]
"""Rows leave a batch with a cache; or stay in it until all are done; or nothing is cached."""


class Prompt(NamedTuple):
    """A row: what to go on from, under which mask, and for how long."""

    place: int
    ids: list[int]
    mask: Mask
    room: int
    """New tokens, at most: at least one."""
    ends: Callable[[Sequence[int]], bool] | None = None
    """Whether a text ends after these new tokens, though its room is not used up."""

    @property
    def width(self) -> int:
        """Tokens that it may take in all."""
        return len(self.ids) + self.room


class StopStrings:
    """Tells when one of some strings has been written, so that nothing is written behind it.

    Only the last tokens are looked at: what is missed costs time, and `before` cuts it off.
    """

    def __init__(self, tokenizer: Any, strings: tuple[str, ...]) -> None:
        self._tokenizer, self._strings = tokenizer, strings
        # A token holds at least one byte; the last one may hold more than the string's end.
        self._n_last = max(len(one.encode()) for one in strings) + 1

    def __call__(self, wrote: Sequence[int]) -> bool:
        text = self._tokenizer.decode(wrote[-self._n_last :], skip_special_tokens=True)
        return any(one in text for one in self._strings)


def before(text: str, strings: tuple[str, ...]) -> str:
    """The text up to the first of the strings."""
    return text[: min((at for at in map(text.find, strings) if at >= 0), default=len(text))]


class Writer:
    """Writes greedily with a model.

    Args:
        model: a causal language model of transformers.
        masked: knocks heads out in the passes of a block; takes one mask a row.
        stop: token ids that end a text.
        pad: any token id, for places that nothing looks at.
    """

    def __init__(
        self,
        model: Any,
        masked: Callable[[Sequence[Mask]], AbstractContextManager[None]],
        *,
        stop: frozenset[int],
        pad: int,
    ) -> None:
        self._model, self._masked, self._stop, self._pad = model, masked, stop, pad
        self._takes = inspect.signature(model.forward).parameters
        self._cache_name = next((name for name in CACHE_NAMES if name in self._takes), None)
        self._way: Way | None = None

    def way(self, ids: Sequence[int]) -> Way:
        """How this model can write: found out once, on the tokens of a prompt."""
        if self._way is None:
            long = (list(ids) * 3)[:TRIED_TOKENS]
            leaving = self._has_droppable_cache() and self._agrees(self._try_leaving, long)
            staying = not leaving and self._agrees(self._try_staying, long)
            if leaving is None or staying is None:
                return "plain"  # for want of memory; it is tried again
            self._way = "leaving" if leaving else "staying" if staying else "plain"
        return self._way

    def alike(self, rows: Sequence[Prompt]) -> list[list[Prompt]]:
        """The rows, sorted by width, cut where they must not share a batch."""
        ordered = sorted(rows, key=lambda row: (row.width, len(row.ids), row.place))
        if not ordered or self.way(ordered[0].ids) == "leaving":
            return [ordered] if ordered else []
        by_size: dict[tuple[int, int], list[Prompt]] = {}
        for row in ordered:
            by_size.setdefault((len(row.ids), row.room), []).append(row)
        return list(by_size.values())

    @torch.inference_mode()
    def write(self, rows: Sequence[Prompt]) -> list[list[int] | None]:
        """The new tokens of every row, without the stop token; rows as `alike` returns them.

        None stands for a row whose logits stopped being numbers.
        """
        way = self.way(rows[0].ids)
        if way == "staying":
            return self._generate(rows)
        return self._decode(rows, _Batch if way == "leaving" else _PlainBatch)

    def _decode(
        self, rows: Sequence[Prompt], kind: type[_Batch | _PlainBatch]
    ) -> list[list[int] | None]:
        wrote: list[list[int]] = [[] for _ in rows]
        left = list(range(len(rows)))
        batch = kind(self, [rows[number].ids for number in left])
        while left:
            with self._masked([rows[number].mask for number in left]):
                ended: list[bool] = []
                while not any(ended):
                    tokens = batch.step()
                    ended = [
                        self._ends(rows[n], wrote[n], t) for n, t in zip(left, tokens, strict=True)
                    ]
            stay = [at for at, out in enumerate(ended) if not out]
            left = [left[at] for at in stay]
            if left:
                batch.keep(stay)
        return [None if NO_NUMBER in new else new for new in wrote]

    def _ends(self, row: Prompt, wrote: list[int], token: int) -> bool:
        """Take a token in; whether it was the row's last."""
        if token in self._stop:
            return True
        wrote.append(token)
        if token == NO_NUMBER or len(wrote) >= row.room:
            return True
        return row.ends is not None and row.ends(wrote)

    def _generate(self, rows: Sequence[Prompt]) -> list[list[int] | None]:
        """With transformers' own loop; all prompts have one length."""
        ids = self._tensor([row.ids for row in rows])
        chosen: list[list[int]] = []

        def watch(_ids: Tensor, scores: Tensor) -> Tensor:
            chosen.append(_likeliest(scores))
            return scores

        with self._masked([row.mask for row in rows]), self._plain_config(rows[0].room):
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                logits_processor=LogitsProcessorList([watch]),
            )
        wrote = [self._cut(list(new)) for new in zip(*chosen, strict=True)]
        return [None if NO_NUMBER in new else new for new in wrote]

    def _cut(self, new: list[int]) -> list[int]:
        end = next((at for at, token in enumerate(new) if token in self._stop), len(new))
        return new[:end]

    @contextmanager
    def _plain_config(self, room: int) -> Iterator[None]:
        """Greedy and nothing else, whatever the checkpoint's generation_config.json asks for."""
        before = self._model.generation_config
        self._model.generation_config = GenerationConfig(
            do_sample=False,
            max_new_tokens=room,
            eos_token_id=sorted(self._stop) or None,
            pad_token_id=self._pad,
        )
        try:
            yield
        finally:
            self._model.generation_config = before

    @property
    def device(self) -> torch.device:
        return next(p.device for p in self._model.parameters() if p.device.type != "meta")

    @property
    def pad(self) -> int:
        return self._pad

    def new_cache(self) -> DynamicCache:
        """The cache that transformers makes for such a model."""
        return DynamicCache(config=self._model.config)

    def next_logits(self, ids: Tensor, real: Tensor, cache: DynamicCache) -> Tensor:
        """Logits of the token after the last; (n_rows, vocabulary).

        Args:
            ids: (n_rows, n), the tokens that the cache does not hold.
            real: (n_rows, n_all), which of all tokens so far are no padding.
        """
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        inputs = {"attention_mask": real, "position_ids": positions, "use_cache": True}
        given = {name: value for name, value in inputs.items() if name in self._takes}
        assert self._cache_name is not None
        with hooked([self._only(-1)]):
            out = self._model(input_ids=ids, **given, **{self._cache_name: cache})
        if out[self._cache_name] is not cache:
            raise TypeError("the model has a cache of its own")
        return out.logits[:, -1]

    def _has_droppable_cache(self) -> bool:
        if self._cache_name is None or "attention_mask" not in self._takes:
            return False
        # A config that transformers' cache does not understand makes it fail.
        return bool(works(lambda: all(type(one) in DROPPABLE for one in self.new_cache().layers)))

    def _agrees(self, trial: _Trial, long: list[int]) -> bool | None:
        """Whether a way to write gives the logits of plain passes without a cache; see `works`."""

        def as_plain_passes() -> bool:
            texts, found = trial(long)
            wanted = torch.cat([self.plain_logits(self._tensor([text])) for text in texts])
            # Tokens behind a text change nothing but the shape: attention is causal.
            wider = [(self._tensor([text + long]), len(text) - 1) for text in texts]
            again = torch.cat([self.plain_logits(ids, at) for ids, at in wider])
            return agree(found, wanted, again, self._model.dtype)

        return works(as_plain_passes)

    @torch.inference_mode()
    def _try_leaving(self, long: list[int]) -> tuple[list[list[int]], Tensor]:
        """Rows of several lengths, of which the first leaves; texts and logits after them."""
        texts = [long, long[: len(long) // 2], long[1:]]
        batch = _Batch(self, texts)
        texts = [[*text, token] for text, token in zip(texts, batch.step(), strict=True)][1:]
        batch.keep([1, 2])
        texts = [[*text, token] for text, token in zip(texts, batch.step(), strict=True)]
        batch.step()
        return texts, batch.logits

    @torch.inference_mode()
    def _try_staying(self, long: list[int]) -> tuple[list[list[int]], Tensor]:
        ids = self._tensor([long, [*long[1:], long[0]]])
        with self._plain_config(3):
            self._model.generation_config.eos_token_id = None
            out = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                return_dict_in_generate=True,
                output_logits=True,
            )
        return out.sequences[:, :-1].tolist(), out.logits[-1]

    def plain_logits(self, ids: Tensor, at: int = -1) -> Tensor:
        """Logits of the token after the one at `at`, by one pass; (n_rows, vocabulary)."""
        with hooked([self._only(at)]):
            return self._model(input_ids=ids, use_cache=False).logits[:, -1]

    def _only(self, at: int) -> tuple[Any, Callable[..., Any]]:
        output = self._model.get_output_embeddings()
        return output, lambda _, args: (args[0][:, [at]], *args[1:])

    def _tensor(self, ids: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(ids, device=self.device)


_Trial = Callable[[list[int]], tuple[list[list[int]], Tensor]]


class _Batch:
    """Rows with their cache, which take in the token that they wrote last."""

    def __init__(self, writer: Writer, prompts: Sequence[Sequence[int]]) -> None:
        width = max(map(len, prompts), default=0)
        self._writer, self._cache = writer, writer.new_cache()
        self._ids = torch.full((len(prompts), width), writer.pad)
        self._real = torch.zeros((len(prompts), width), dtype=torch.long)
        for row, ids in enumerate(prompts):
            self._ids[row, width - len(ids) :] = torch.tensor(ids)
            self._real[row, width - len(ids) :] = 1
        self._ids, self._real = self._ids.to(writer.device), self._real.to(writer.device)
        self.logits = torch.empty(0)
        """Of the last step; (n_rows, vocabulary)."""

    def step(self) -> list[int]:
        """The most likely next token of each row."""
        self.logits = self._writer.next_logits(self._ids, self._real, self._cache)
        tokens = _likeliest(self.logits)
        self._ids = torch.tensor(tokens, device=self._real.device)[:, None].clamp(min=0)
        self._real = torch.cat([self._real, torch.ones_like(self._ids)], dim=1)
        return tokens

    def keep(self, rows: Sequence[int]) -> None:
        """Let all other rows leave."""
        at = torch.tensor(rows)  # on the CPU: layers of the cache may lie on several devices
        self._ids, self._real = self._ids[at], self._real[at]
        self._cache.batch_select_indices(at)


class _PlainBatch:
    """Rows of one length that are read again from the start at each step."""

    def __init__(self, writer: Writer, prompts: Sequence[Sequence[int]]) -> None:
        self._writer = writer
        self._ids = torch.tensor(prompts, device=writer.device)

    def step(self) -> list[int]:
        """The most likely next token of each row."""
        tokens = _likeliest(self._writer.plain_logits(self._ids))
        new = torch.tensor(tokens).to(self._ids)[:, None].clamp(min=0)
        self._ids = torch.cat([self._ids, new], dim=1)
        return tokens

    def keep(self, rows: Sequence[int]) -> None:
        """Let all other rows leave."""
        self._ids = self._ids[torch.tensor(rows)]


def _likeliest(logits: Tensor) -> list[int]:
    """The most likely token of each row, `NO_NUMBER` where there is none."""
    most, tokens = logits.max(dim=1)  # NaN counts as the greatest
    return tokens.masked_fill(~torch.isfinite(most), NO_NUMBER).tolist()


def stop_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end a text, by generation_config.json; else the tokenizer's end of text."""
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)
