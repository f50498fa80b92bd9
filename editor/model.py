# pyright: standard
"""A loaded model whose heads can be knocked out, each row of a batch its own set.

The knock-out sets a head's slice of the output projection's *input* to zero, which gives exactly
the logits of zeroing the same slice of the projection's weight.  The slice can be set to its mean
instead, which tells what the head's absence does from what the number zero does.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from editor.answer_form import Begun, Form, begun, parting
from editor.batching import Batches, shape_of
from editor.capabilities.base import Continuation, Likelihood, Request
from editor.chat import load_tokenizer, prompt_ids
from editor.errors import ModelError, UsageError
from editor.generation import Prompt, StopStrings, Writer, before, stop_tokens
from editor.hooks import FillHeads, MeanOfHeads, ScaleHeads, hooked
from editor.prefix_tree import (
    TREE_TOKENS,
    WORTHWHILE,
    Tree,
    reads_trees,
    tree_batch,
    trees,
    trial_tree,
)
from editor.recorded import (
    RecordedLayers,
    Recordings,
    block_index,
    decoder_blocks,
    sparing_is_exact,
    worthwhile,
)
from editor.records import AttentionLayer, Fill, Mask, ModelSpec
from editor.scored_rows import Batch, Encoded, Row, batch_of, shared_rows, whole_rows
from editor.trials import works

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
AUTO = "auto"
"""The device that stands for all of them."""
SCORED_A_CHUNK = 32
"""Positions whose logits are in float32 at once: 32 x 50,000 x 4 bytes stay in a CPU's cache."""
PROBED_TOKENS = 16
"""Length of the rows on which it is tried whether layers can be spared."""


class MaskableModel:
    """A causal language model with its tokenizer and the places of its heads.

    Made by `load`; the weights are never changed.
    """

    def __init__(self, model: Any, tokenizer: Any, spec: ModelSpec) -> None:
        self._model = model
        self._tokenizer = tokenizer
        context = getattr(model.config, "max_position_embeddings", None)
        self._context = context if isinstance(context, int) and context > 0 else None
        self._layers: list[tuple[AttentionLayer, list[torch.nn.Module]]] = []
        for at in spec.layers:
            projection = _submodule(model, at.module)
            _check_width(projection, at)
            self._layers.append((at, _users(model, projection)))
        self._blocks = decoder_blocks(model, [at.module for at in spec.layers])
        self._block_of = {at.layer: block_index(at.module) for at in spec.layers}
        weight_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        self._recorded = Recordings(self._blocks, weight_bytes)
        self._batches = Batches(
            shape_of(model.config, model.dtype.itemsize),
            sorted({p.device for p in model.parameters()} - {torch.device("meta")}, key=str),
            weight_bytes,
            self._recorded_away,
        )
        self._writer = Writer(
            model,
            self.knocked_out,
            stop=stop_tokens(model, tokenizer),
            pad=_first_of(tokenizer.pad_token_id, tokenizer.eos_token_id, 0),
        )
        self._spares: bool | None = None
        self._reads_trees, self._tried = (
            "position_ids" in signature(model.forward).parameters,
            (0, 0),
        )
        self._forms: dict[tuple[tuple[str, ...], str], Form | None] = {}
        self._means: tuple[list[list[int]], dict[int, Tensor]] = ([], {})

    @property
    def device(self) -> torch.device:
        """Where token ids go in: of a model on several devices, that of its first weights."""
        return self._writer.device

    def _recorded_away(self) -> bool:
        """Drop what was recorded, when memory is short."""
        return self._recorded.clear()

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]:
        """Score every request under every mask.

        Args:
            fill: what stands in the place of a head that is out: zero, or the head's mean output.
                The mean is over all tokens of these requests, prompts and answers without padding,
                with nothing knocked out; it takes one more pass over the requests.

        What the requests begin with alike is read once, where the model reads trees.  Rows of one
        batch are padded on the right and causal attention never looks there, so that they need
        neither an attention mask nor position ids.

        Returns:
            One list a mask, in order, with one `Likelihood` a request, in order.  With heads out
            its log-probability may be no number.

        Raises:
            ModelError: a request is longer than the model, or a log-probability is not a number
                with nothing knocked out.
        """
        encoded = [self._encode(index, request) for index, request in enumerate(requests)]
        out: list[list[Likelihood | None]] = [[None] * len(requests) for _ in masks]
        # Neighbours in this order begin at about the same layer.
        order = sorted(range(len(masks)), key=lambda m: (self._first_layer(masks[m]), m))
        means = self._means_of(encoded) if fill == "mean" and any(masks) else None

        def work(group: Sequence[Row | Tree], step: int) -> None:
            places = [item.place for row in group for item in row.asked]
            lower = self._record_lower(group, masks)
            for chunk in (order[at : at + step] for at in range(0, len(order), step)):
                layer = self._first_layer(masks[chunk[0]])
                with lower.starting_at(layer, len(chunk)):
                    found = self._score_batch(group, [masks[m] for m in chunk], means)
                if _any_bad(found):
                    self._require_numbers(group)
                for number, likelihood in enumerate(found):
                    mask, item = divmod(number, len(places))
                    out[chunk[mask]][places[item]] = likelihood

        grown, rows = self._laid_out(encoded)
        for tree in grown:
            self._batches.each("score", [tree], work, copies=len(masks), apart=_rows_of)
        self._batches.each("score", rows, work, copies=len(masks))
        return [[found for found in row if found is not None] for row in out]

    def _laid_out(self, encoded: Sequence[Encoded]) -> tuple[list[Tree], list[Row]]:
        """The requests as trees, where that spares tokens and the model reads them, and as rows."""
        longest = max((len(item.read) for item in encoded), default=0)
        at_most = max(TREE_TOKENS, 2 * longest)
        worthwhile_ones, others = list[Tree](), list[Encoded]()
        for tree in trees(encoded, at_most):
            if tree.width <= WORTHWHILE * sum(row.width for row in tree.apart()):
                worthwhile_ones.append(tree)
            else:
                others += tree.asked
        if worthwhile_ones and not self._may_read_trees(worthwhile_ones):
            return [], shared_rows(encoded)
        return worthwhile_ones, shared_rows(others)

    @torch.inference_mode()
    def _may_read_trees(self, grown: Sequence[Tree]) -> bool:
        """Whether trees may be read that are so wide and so deep; tried again for larger ones."""
        width, depth = (
            max(sizes) for sizes in zip(*((one.width, one.depth) for one in grown), strict=True)
        )
        size = (max(width, self._tried[0]), max(depth, self._tried[1]))
        if self._reads_trees and size != self._tried:
            tree = trial_tree(grown[0].ids, *size)
            found = works(lambda: reads_trees(tree, self._logits_of_two, self._model.dtype))
            if found is None:
                return False  # for want of memory; it is tried again
            self._reads_trees, self._tried = found, size
        return self._reads_trees

    def _logits_of_two(self, one: Row | Tree) -> Tensor:
        return self._logits_at(self._batch([one], 2))

    def _batch(self, group: Sequence[Row | Tree], copies: int) -> Batch:
        """Copies of a tree, or of rows, as the model reads them."""
        if isinstance(group[0], Tree):
            return tree_batch(group[0], copies, self.device, self._model.dtype)
        return batch_of([one for one in group if isinstance(one, Row)], copies, self.device)

    def _require_numbers(self, group: Sequence[Row | Tree]) -> None:
        """Tell a damaged model from one that is fine until some mask's heads are out."""
        if _any_bad(self._score_batch(group, [()])):
            raise self._damaged("a log-probability")

    def _damaged(self, what: str) -> ModelError:
        """That the model as it is yields no numbers, and where that may come from."""
        bad = (n for n, at in self._model.named_parameters() if not bool(at.isfinite().all()))
        tensor = next(bad, None)
        if tensor is not None:
            why, hint = f": {tensor} has weights that are none", "get the checkpoint anew"
        elif self._model.dtype == torch.float32:
            why, hint = "", "the model cannot be used: it overflows in float32"
        else:
            why, hint = f" in {self._model.dtype}", "the dtype may overflow: try --dtype float32"
        return ModelError(f"{what} is not a finite number with nothing knocked out{why}", hint)

    @torch.inference_mode()
    def _means_of(self, encoded: Sequence[Encoded]) -> dict[int, Tensor]:
        """Mean input of each layer's projection, float64 (n_heads * head_dim,).

        The last requests' are kept: masks come in chunks.
        """
        rows = whole_rows(encoded)
        ids = [row.ids for row in rows]
        if self._means[0] != ids:
            listeners = [MeanOfHeads(at) for at, _ in self._layers]
            hooks = [
                (user, one)
                for one, (_, users) in zip(listeners, self._layers, strict=True)
                for user in users
            ]

            def work(group: Sequence[Row], _step: int) -> None:
                real = torch.tensor([[row.width] for row in group])
                for one in listeners:
                    one.expect(torch.arange(group[-1].width) < real)
                self._logits_at(batch_of(group, 1, self.device))
                for one in listeners:
                    one.keep()

            with hooked(hooks):
                self._batches.each("score", rows, work)
            layers = [at.layer for at, _ in self._layers]
            self._means = (ids, {n: one.mean for n, one in zip(layers, listeners, strict=True)})
        return self._means[1]

    def _first_layer(self, mask: Mask) -> int:
        """The lowest block that a mask changes; the number of blocks when it changes none."""
        return min((self._block_of[head.layer] for head in mask), default=len(self._blocks))

    def _may_spare(self, row: Row | Tree) -> bool:
        """Whether layers may be spared: found out once, on the first tokens of a row."""
        if self._spares is None:
            ids = [*row.ids[:PROBED_TOKENS], 0]
            start = Row(ids[:-1], (Encoded(0, ids, 1),))

            def logits(n_rows: int) -> Tensor:
                return self._logits_at(batch_of([start], n_rows, self.device))

            self._spares = bool(self._blocks) and works(
                lambda: sparing_is_exact(self._blocks, logits)
            )
        return bool(self._spares)

    def _record_lower(self, group: Sequence[Row | Tree], masks: Sequence[Mask]) -> RecordedLayers:
        """What the group's layers return with nothing knocked out, where it is worth to know."""
        ids = tuple((*row.ids, *(row.parents if isinstance(row, Tree) else ())) for row in group)
        if not self._may_spare(group[0]):
            return RecordedLayers([])
        if list(masks) == [()] or worthwhile(map(self._first_layer, masks), len(self._blocks)):
            return self._recorded.get(ids, lambda: self._score_batch(group, [()]))
        return self._recorded.peek(ids)

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        """How the answers' log-probability follows each head's output, with some heads out.

        One forward and one backward pass.  Each head's slice of the projection's input is scaled by
        a factor that is 1; the derivative by that factor is, to first order, what the sum of the
        log-probabilities loses when the head is knocked out.

        Returns:
            One list a layer of `ModelSpec.layers`, one sum over the requests a head; it may be no
            number where all scores are.

        Raises:
            ModelError: a request is longer than the model.
        """
        encoded = [self._encode(index, request) for index, request in enumerate(requests)]
        total = [torch.zeros(at.n_heads) for at, _ in self._layers]

        def work(group: Sequence[Row], _step: int) -> None:
            for so_far, more in zip(total, self._gradients_of(group, mask), strict=True):
                so_far.add_(more)

        self._batches.each("gradient", shared_rows(encoded), work)
        return [one.tolist() for one in total]

    def generate(
        self,
        prompts: Sequence[str],
        masks: Sequence[Mask],
        *,
        max_new_tokens: int,
        stop: tuple[str, ...] = (),
        templated: bool = False,
    ) -> list[list[str | None]]:
        """What the model writes after each prompt under each mask, greedily.

        A text ends before a stop token, before the first of the stop strings, after
        `max_new_tokens`, or where the model's context is full.

        Args:
            templated: a chat template wrote the prompts, with all special tokens.

        Returns:
            One list a mask, in order, with one text a prompt, in order, without special tokens.
            None stands where what the next token could be is no number with these heads out.

        Raises:
            ModelError: a prompt is empty or fills the model's context, or what comes next is no
                number with nothing knocked out.
        """
        ids = [self._prompt_to_go_on(n, one, templated) for n, one in enumerate(prompts)]
        rooms = [self._room(one, max_new_tokens) for one in ids]
        ends = StopStrings(self._tokenizer, stop) if stop else None
        rows = [
            Prompt(m * len(ids) + n, one, mask, room, ends)
            for m, mask in enumerate(masks)
            for n, (one, room) in enumerate(zip(ids, rooms, strict=True))
        ]
        rows = [row for row in rows if row.room > 0]
        wrote: list[list[int] | None] = [[] for _ in masks for _ in ids]

        def work(group: Sequence[Prompt], _step: int) -> None:
            for row, new in zip(group, self._writer.write(group), strict=True):
                wrote[row.place] = new

        for alike in self._writer.alike(rows):
            self._batches.each("generate", alike, work)
        for row in rows:
            if wrote[row.place] is None and not row.mask:
                raise self._damaged("what comes next")
        known = [new or [] for new in wrote]
        decoded = self._tokenizer.batch_decode(known, skip_special_tokens=True) if known else []
        texts = [
            None if new is None else before(str(text), stop)
            for new, text in zip(wrote, decoded, strict=True)
        ]
        return [texts[m * len(ids) : (m + 1) * len(ids)] for m in range(len(masks))]

    def _prompt_to_go_on(self, number: int, prompt: str, templated: bool) -> list[int]:
        ids = prompt_ids(self._tokenizer, prompt, templated=templated)
        if not ids:
            raise ModelError(f"prompt {number} is empty: nothing says what to write")
        if self._context is not None and len(ids) >= self._context:
            raise ModelError(
                f"prompt {number} has {len(ids)} tokens, the model takes {self._context} "
                "with what it writes",
                "choose items that are shorter",
            )
        return ids

    def _room(self, ids: Sequence[int], max_new_tokens: int) -> int:
        if self._context is None:
            return max_new_tokens
        return min(max_new_tokens, self._context - len(ids))

    @contextmanager
    def knocked_out(
        self,
        masks: Sequence[Mask],
        *,
        repeat: int = 1,
        means: Mapping[int, Tensor] | None = None,
    ) -> Iterator[None]:
        """Knock heads out in every forward pass of the block.

        Args:
            masks: one a row of the batch, or one for `repeat` neighbouring rows.
            repeat: rows that share a mask.
            means: by layer, what stands in the heads' place, (n_heads * head_dim,); else zero.
        """
        by_layer: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, mask in enumerate(masks):
            for head in mask:
                by_layer[head.layer].append((row, head.head))
        fills = [
            (
                users,
                FillHeads(
                    at,
                    by_layer.pop(at.layer),
                    n_masks=len(masks),
                    repeat=repeat,
                    mean=None if means is None else means[at.layer],
                ),
            )
            for at, users in self._layers
            if at.layer in by_layer
        ]
        if by_layer:
            raise ValueError(f"the model has no heads in layer {min(by_layer)}")
        with hooked([(user, fill) for users, fill in fills for user in users]):
            yield

    def _gradients_of(self, group: Sequence[Row], mask: Mask) -> list[Tensor]:
        """`gradients` of one batch; one float32 (n_heads,) a layer."""
        scales = [
            torch.ones(at.n_heads, device=self.device, requires_grad=True) for at, _ in self._layers
        ]
        hooks = [
            (user, ScaleHeads(at, scale))
            for (at, users), scale in zip(self._layers, scales, strict=True)
            for user in users
        ]
        batch = batch_of(group, 1, self.device)
        masked = self.knocked_out([mask], repeat=len(group))
        with hooked(hooks), masked, torch.enable_grad():
            logits = self._logits_at(batch).float()
            picked = logits[batch.at, batch.targets]
            (picked - logits.logsumexp(dim=1)[batch.at]).sum().backward()
        return [
            torch.zeros(at.n_heads) if s.grad is None else s.grad.float().cpu()
            for s, (at, _) in zip(scales, self._layers, strict=True)
        ]

    @torch.inference_mode()
    def _score_batch(
        self,
        group: Sequence[Row | Tree],
        masks: Sequence[Mask],
        means: Mapping[int, Tensor] | None = None,
    ) -> list[Likelihood]:
        """Likelihoods of masks x what is asked of the group's rows, masks outermost."""
        batch = self._batch(group, len(masks))
        with self.knocked_out(masks, repeat=len(group), means=means):
            logits = self._logits_at(batch)  # (n_places, vocabulary)
        logprob, greedy, norm = _log_likelihood(logits, batch)
        ends = torch.tensor(batch.counts).cumsum(0).tolist()
        forms = [item.form for row in group for item in row.asked] * len(masks)
        starts = [0, *ends[:-1]]
        beginnings = begun(logits, norm, logprob, starts, forms, places=batch.at)
        return _by_answer(batch.counts, logprob, greedy, beginnings)

    def _logits_at(self, batch: Batch) -> Tensor:
        """Logits at a batch's places only; (n_places, vocabulary).

        The states are picked where they enter the output embedding, so that whatever the model does
        to its logits afterwards (scaling, soft capping) still happens.
        """

        def pick(_module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            at = (batch.rows.to(args[0].device), batch.positions.to(args[0].device))
            return (args[0][at][None], *args[1:])

        with hooked([(self._model.get_output_embeddings(), pick)]):
            logits = self._model(input_ids=batch.ids, use_cache=False, **batch.inputs).logits[0]
        return logits.to(self.device)

    def _encode(self, index: int, request: Continuation) -> Encoded:
        prompt = self._ids(request, request.prompt)
        if not prompt:
            raise ModelError(f"request {index} has an empty prompt: nothing predicts its answer")
        answer = self._answer_ids(request, prompt, request.answer)
        whole = prompt + answer
        if self._context is not None and len(whole) > self._context:
            raise ModelError(
                f"request {index} has {len(whole)} tokens, the model takes {self._context}",
                "choose items that are shorter",
            )
        return Encoded(index, whole, len(answer), self._form(request, prompt, answer))

    def _answer_ids(self, request: Continuation, prompt: list[int], answer: str) -> list[int]:
        """An answer's tokens as they are after the request's prompt."""
        whole = self._ids(request, request.prompt + answer)
        if whole[: len(prompt)] != prompt:  # a token spans the border
            return list(self._tokenizer(answer, add_special_tokens=False).input_ids)
        return whole[len(prompt) :]

    def _form(self, request: Continuation, prompt: list[int], answer: list[int]) -> Form | None:
        """What the answers begin with that the request's is one among; None where it is alone."""
        if not request.among:
            return None
        # The class is tokenized once: of a prompt, only its end decides how an answer goes on.
        key = (request.among, request.prompt[-1])
        if key in self._forms:
            known = self._forms[key]
            if known is None or known.fits(answer):
                return known
        others = [self._answer_ids(request, prompt, other) for other in request.among]
        form = parting([answer, *others])
        self._forms.setdefault(key, form)
        return form

    def n_tokens(self, requests: Sequence[Request]) -> int:
        """Tokens of requests: prompts with their answers, or with the most that may be written."""
        return sum(
            len(self._ids(one, one.prompt + one.answer))
            if isinstance(one, Continuation)
            else len(self._ids(one, one.prompt)) + one.max_new_tokens
            for one in requests
        )

    def _ids(self, request: Request, text: str) -> list[int]:
        return prompt_ids(self._tokenizer, text, templated=request.templated)


def load(
    folder: Path, spec: ModelSpec, *, dtype: str, device: str, trust_remote_code: bool = False
) -> MaskableModel:
    """Load a checkpoint for measuring.

    Args:
        dtype: `auto` for the checkpoint's own, or bfloat16, float16, float32.
        device: where to put it, as torch names devices; `auto` spreads it over all GPUs, and over
            the CPU's memory and the disk where they do not suffice (by accelerate).

    Raises:
        ModelError: transformers cannot load it, or parts of it are missing.
    """
    from transformers import AutoModelForCausalLM

    wanted = "auto" if dtype == "auto" else DTYPES[dtype]
    _check_device(device)
    try:
        tokenizer = load_tokenizer(folder, trust_remote_code=trust_remote_code)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=wanted,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
            **({"device_map": "auto"} if device == AUTO else {}),
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"transformers cannot load {folder}: {_first_line(error)}") from error
    model, info = loaded
    if info["missing_keys"] or info["mismatched_keys"]:
        missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise ModelError(f"{folder} lacks weights that its config.json asks for: {missing[0]}")
    if device != AUTO:
        model.to(device)
    return MaskableModel(model.eval().requires_grad_(False), tokenizer, spec)


def _check_device(device: str) -> None:
    if device == AUTO:
        if find_spec("accelerate") is None:
            raise UsageError(
                "--device auto spreads a model by the package accelerate, which is missing",
                "pip install accelerate",
            )
        return
    try:
        # Asked for a value: on `meta` there is none.
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"the device {device!r} cannot be used: {_first_line(error)[:200]}",
            "--device takes what this torch has, such as cpu or cuda, or auto for several GPUs",
        ) from error


def _rows_of(one: Row | Tree) -> list[Row]:
    return one.apart() if isinstance(one, Tree) else []


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _submodule(model: Any, path: str) -> torch.nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError as error:
        raise ModelError(f"the loaded model has no module {path}") from error


def _users(model: Any, projection: Any) -> list[torch.nn.Module]:
    """The modules that multiply by a projection's weight: several where layers share a block."""
    return [one for one in model.modules() if getattr(one, "weight", None) is projection.weight]


def _check_width(projection: Any, at: AttentionLayer) -> None:
    # A quantized weight has another shape than the module.
    width = getattr(projection, "in_features", None) or projection.weight.shape[at.axis]
    if width != at.n_heads * at.head_dim:
        raise ModelError(
            f"{at.module}: expected {at.n_heads} heads x {at.head_dim} inputs, found {width}"
        )


def _log_likelihood(logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target, whether it is the most likely token, and the log-sum-exp.

    Returns:
        float64 (n_scored,) and bool (n_scored,) on the CPU, float32 (n_places,) where the logits
        are.
    """
    norms, best = [], []
    for start in range(0, len(logits), SCORED_A_CHUNK):
        part = logits[start : start + SCORED_A_CHUNK].float()
        norms.append(part.logsumexp(dim=1))
        best.append(part.argmax(dim=1))
    norm = torch.cat(norms) if norms else logits.new_zeros(0, dtype=torch.float32)
    likeliest = torch.cat(best) if best else batch.targets
    picked = logits[batch.at, batch.targets].float()
    greedy = likeliest[batch.at] == batch.targets
    return (picked - norm[batch.at]).double().cpu(), greedy.cpu(), norm


def _any_bad(found: Sequence[Likelihood]) -> bool:
    """Whether a log-probability is not a finite number."""
    return not all(math.isfinite(one.logprob) for one in found)


def _by_answer(
    counts: Sequence[int], logprob: Tensor, greedy: Tensor, beginnings: Sequence[Begun | None]
) -> list[Likelihood]:
    n = len(counts)
    answer = torch.arange(n).repeat_interleave(torch.tensor(counts))
    total = torch.zeros(n, dtype=torch.double).index_add_(0, answer, logprob)
    right = torch.zeros(n, dtype=torch.long).index_add_(0, answer, greedy.long())
    return [
        Likelihood(float(t), int(r), c, *(b or (None, None)))
        for t, r, c, b in zip(total.tolist(), right.tolist(), counts, beginnings, strict=True)
    ]


def _first_of(*ids: int | None) -> int:
    return next(one for one in ids if one is not None)
