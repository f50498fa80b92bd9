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
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from editor.answer_form import Begun, Form, begun, parting
from editor.capabilities.base import Continuation, Likelihood
from editor.errors import CapabilityAbsent, ModelError, UsageError
from editor.hooks import FillHeads, MeanOfHeads, ScaleHeads, hooked
from editor.recorded import (
    RecordedLayers,
    Recordings,
    block_index,
    decoder_blocks,
    sparing_is_exact,
    worthwhile,
)
from editor.records import AttentionLayer, Fill, Mask, ModelSpec

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
BATCH_TOKENS = 1024
"""Tokens of one forward pass: on two CPU cores larger batches are slower."""
MIN_ITEMS = 16
"""Items that share one padded length; more where few masks leave room for them."""
SCORED_A_CHUNK = 32
"""Positions whose logits are in float32 at once: 32 x 50,000 x 4 bytes stay in a CPU's cache."""
PROBED_TOKENS = 16
"""Length of the rows on which it is tried whether layers can be spared."""

_DAMAGED = "the model is damaged, or its dtype overflows: try --dtype float32"


class Encoded(NamedTuple):
    """A tokenized continuation."""

    place: int
    """Where it stands among the requests."""
    ids: list[int]
    n_answer: int
    """How many of the last ids are the answer."""
    form: Form | None = None
    """What the answers begin with that it is one among."""


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
        self._recorded = Recordings(self._blocks)
        self._spares: bool | None = None
        self._forms: dict[tuple[tuple[str, ...], str], Form | None] = {}
        self._means: tuple[list[list[int]], dict[int, Tensor]] = ([], {})

    @property
    def device(self) -> torch.device:
        return next(self._model.parameters()).device

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], *, fill: Fill = "zero"
    ) -> list[list[Likelihood]]:
        """Score every request under every mask.

        Args:
            fill: what stands in the place of a head that is out: zero, or the head's mean output.
                The mean is over all tokens of these requests, prompts and answers without padding,
                with nothing knocked out; it takes one more pass over the requests.

        Rows of one batch are padded on the right and causal attention never looks there, so
        neither an attention mask nor position ids are needed.

        Returns:
            One list a mask, in order, with one `Likelihood` a request, in order.

        Raises:
            ModelError: a log-probability is not a number with nothing knocked out, or a request is
                longer than the model.
            CapabilityAbsent: a log-probability is not a number, but only with heads out.
        """
        encoded = sorted(
            (self._encode(index, request) for index, request in enumerate(requests)),
            key=lambda e: (len(e.ids), e.place),
        )
        out: list[list[Likelihood | None]] = [[None] * len(requests) for _ in masks]
        # Neighbours in this order begin at about the same layer.
        order = sorted(range(len(masks)), key=lambda m: (self._first_layer(masks[m]), m))
        means = self._means_of(encoded) if fill == "mean" and any(masks) else None
        for group in _groups(encoded, len(masks)):
            lower = self._record_lower(group, masks)
            step = max(1, BATCH_TOKENS // (len(group[-1].ids) * len(group)))
            for chunk in (order[at : at + step] for at in range(0, len(order), step)):
                layer = self._first_layer(masks[chunk[0]])
                with lower.starting_at(layer, len(chunk)):
                    found = self._score_batch(group, [masks[m] for m in chunk], means)
                if (bad := _first_bad(found)) is not None:
                    self._refuse(group, masks[chunk[bad // len(group)]])
                for row, likelihood in enumerate(found):
                    mask, item = divmod(row, len(group))
                    out[chunk[mask]][group[item].place] = likelihood
        return [[found for found in row if found is not None] for row in out]

    def _refuse(self, group: Sequence[Encoded], mask: Mask) -> NoReturn:
        """Tell a damaged model from one that is fine until the mask's heads are out."""
        if mask and _first_bad(self._score_batch(group, [()])) is None:
            heads = ", ".join(map(str, mask))
            raise CapabilityAbsent(
                f"a log-probability is not a finite number without {heads}",
                "its dtype may overflow without them: try --dtype float32",
            )
        raise ModelError("a log-probability is not a finite number", _DAMAGED)

    @torch.inference_mode()
    def _means_of(self, encoded: Sequence[Encoded]) -> dict[int, Tensor]:
        """Mean input of each layer's projection, float64 (n_heads * head_dim,).

        The last requests' are kept: masks come in chunks.
        """
        ids = [item.ids for item in encoded]
        if self._means[0] != ids:
            listeners = [(MeanOfHeads(at), users) for at, users in self._layers]
            with hooked([(user, one) for one, users in listeners for user in users]):
                for group in _groups(encoded, 1):
                    lengths = torch.tensor([[len(item.ids)] for item in group])
                    real = torch.arange(len(group[-1].ids)) < lengths
                    for one, _ in listeners:
                        one.real = real
                    self._logits_at(*self._batch(group, 1))
            layers = [at.layer for at, _ in self._layers]
            found = {n: one.mean for n, (one, _) in zip(layers, listeners, strict=True)}
            self._means = (ids, found)
        return self._means[1]

    def _first_layer(self, mask: Mask) -> int:
        """The lowest block that a mask changes; the number of blocks when it changes none."""
        return min((self._block_of[head.layer] for head in mask), default=len(self._blocks))

    def _may_spare(self, item: Encoded) -> bool:
        """Whether layers may be spared: found out once, on the first tokens of an item."""
        if self._spares is None:
            start = item._replace(ids=item.ids[:PROBED_TOKENS], n_answer=1)
            self._spares = bool(self._blocks) and sparing_is_exact(
                self._blocks, lambda n_rows: self._logits_at(*self._batch([start], n_rows))
            )
        return self._spares

    def _record_lower(self, group: Sequence[Encoded], masks: Sequence[Mask]) -> RecordedLayers:
        """What the group's layers return with nothing knocked out, where it is worth to know."""
        ids = tuple(tuple(item.ids) for item in group)
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
            One list a layer of `ModelSpec.layers`, one sum over the requests a head.

        Raises:
            ModelError: a derivative is not a number, or a request is longer than the model.
        """
        encoded = sorted(
            (self._encode(index, request) for index, request in enumerate(requests)),
            key=lambda e: (len(e.ids), e.place),
        )
        total = [torch.zeros(at.n_heads) for at, _ in self._layers]
        for group in _groups(encoded, 1):
            found = self._gradients_of(group, mask)
            total = [before + more for before, more in zip(total, found, strict=True)]
        _check_finite(torch.cat(total), "the gradient by a head")
        return [one.tolist() for one in total]

    @torch.inference_mode()
    def generate(self, prompts: Sequence[str], mask: Mask, *, max_new_tokens: int) -> list[str]:
        """What the model writes after each prompt, greedily, without special tokens."""
        encoded = [self._prompt_ids(prompt) for prompt in prompts]
        width, n = max(map(len, encoded), default=0), len(prompts)
        pad = self._tokenizer.pad_token_id
        pad = (self._tokenizer.eos_token_id or 0) if pad is None else pad
        ids = torch.full((n, width), pad)
        real = torch.zeros((n, width), dtype=torch.long)
        for row, prompt in enumerate(
            encoded
        ):  # padded on the left, where generation does not go on
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            real[row, width - len(prompt) :] = 1
        with self.knocked_out([mask], repeat=n):
            out = self._model.generate(
                ids.to(self.device),
                attention_mask=real.to(self.device),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                pad_token_id=pad,
            )
        return [
            str(t) for t in self._tokenizer.batch_decode(out[:, width:], skip_special_tokens=True)
        ]

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

    def _gradients_of(self, group: Sequence[Encoded], mask: Mask) -> list[Tensor]:
        """`gradients` of one batch; one float32 (n_heads,) a layer."""
        scales = [
            torch.ones(at.n_heads, device=self.device, requires_grad=True) for at, _ in self._layers
        ]
        hooks = [
            (user, ScaleHeads(at, scale))
            for (at, users), scale in zip(self._layers, scales, strict=True)
            for user in users
        ]
        ids, rows, positions = self._batch(group, 1)
        masked = self.knocked_out([mask], repeat=len(group))
        with hooked(hooks), masked, torch.enable_grad():
            logits = self._logits_at(ids, rows, positions).float()
            target = ids[rows, positions + 1]
            picked = logits.gather(1, target[:, None])[:, 0]
            (picked - logits.logsumexp(dim=1)).sum().backward()
        return [
            torch.zeros(at.n_heads) if s.grad is None else s.grad.float().cpu()
            for s, (at, _) in zip(scales, self._layers, strict=True)
        ]

    @torch.inference_mode()
    def _score_batch(
        self,
        group: Sequence[Encoded],
        masks: Sequence[Mask],
        means: Mapping[int, Tensor] | None = None,
    ) -> list[Likelihood]:
        """Likelihoods of the rows masks x group, masks outermost."""
        ids, rows, positions = self._batch(group, len(masks))
        with self.knocked_out(masks, repeat=len(group), means=means):
            logits = self._logits_at(ids, rows, positions)  # (n_places, vocabulary)
        logprob, greedy, norm = _log_likelihood(logits, ids[rows, positions + 1])
        ends = torch.tensor([item.n_answer for item in group] * len(masks)).cumsum(0).tolist()
        forms = [item.form for item in group] * len(masks)
        beginnings = begun(logits, norm, logprob, [0, *ends[:-1]], forms)
        return _by_row(rows.cpu(), logprob, greedy, beginnings)

    def _batch(self, group: Sequence[Encoded], copies: int) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids (copies * n_items, width), and row and position of every scored logit.

        The logits at position p predict token p + 1.
        """
        width = len(group[-1].ids)
        ids = torch.zeros((len(group), width), dtype=torch.long)  # padding: any token will do
        for row, item in enumerate(group):
            ids[row, : len(item.ids)] = torch.tensor(item.ids)
        places = [
            (copy * len(group) + row, p)
            for copy in range(copies)
            for row, item in enumerate(group)
            for p in range(len(item.ids) - item.n_answer - 1, len(item.ids) - 1)
        ]
        rows, positions = torch.tensor(places, device=self.device).unbind(dim=1)
        return ids.repeat(copies, 1).to(self.device), rows, positions

    def _logits_at(self, ids: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Logits at the given places only; (n_places, vocabulary).

        The states are picked where they enter the output embedding, so that whatever the model does
        to its logits afterwards (scaling, soft capping) still happens.
        """

        def pick(_module: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (args[0][rows, positions][None], *args[1:])

        with hooked([(self._model.get_output_embeddings(), pick)]):
            return self._model(input_ids=ids, use_cache=False).logits[0]

    def _encode(self, index: int, request: Continuation) -> Encoded:
        prompt = self._prompt_ids(request.prompt)
        if not prompt:
            raise ModelError(f"request {index} has an empty prompt: nothing predicts its answer")
        answer = self._answer_ids(request.prompt, prompt, request.answer)
        whole = prompt + answer
        if self._context is not None and len(whole) > self._context:
            raise ModelError(
                f"request {index} has {len(whole)} tokens, the model takes {self._context}",
                "choose items that are shorter",
            )
        return Encoded(index, whole, len(answer), self._form(request, prompt, answer))

    def _answer_ids(self, prompt: str, prompt_ids: list[int], answer: str) -> list[int]:
        """The answer's tokens as they are after the prompt."""
        whole = self._prompt_ids(prompt + answer)
        if whole[: len(prompt_ids)] != prompt_ids:  # a token spans the border
            return list(self._tokenizer(answer, add_special_tokens=False).input_ids)
        return whole[len(prompt_ids) :]

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
        others = [self._answer_ids(request.prompt, prompt, other) for other in request.among]
        form = parting([answer, *others])
        self._forms.setdefault(key, form)
        return form

    def _prompt_ids(self, text: str) -> list[int]:
        ids = list(self._tokenizer(text).input_ids)
        if ids and text and ids[-1] == self._tokenizer.eos_token_id:
            ids.pop()  # some tokenizers close every text
        return ids


def _groups(encoded: Sequence[Encoded], n_masks: int) -> Iterator[list[Encoded]]:
    """Neighbours in length that fill a batch together, or `MIN_ITEMS` of them."""
    group: list[Encoded] = []
    for item in encoded:
        full = (len(group) + 1) * len(item.ids) * n_masks > BATCH_TOKENS
        if full and len(group) >= MIN_ITEMS:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def load(
    folder: Path, spec: ModelSpec, *, dtype: str, device: str, trust_remote_code: bool = False
) -> MaskableModel:
    """Load a checkpoint for measuring.

    Args:
        dtype: `auto` for the checkpoint's own, or bfloat16, float16, float32.
        device: where to put it, as torch names devices.

    Raises:
        ModelError: transformers cannot load it, or parts of it are missing.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wanted = "auto" if dtype == "auto" else DTYPES[dtype]
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"the device {device!r} cannot be used: {_first_line(error)}",
            "--device takes what this torch has, such as cpu or cuda",
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=wanted,
            local_files_only=True,
            output_loading_info=True,
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"transformers cannot load {folder}: {_first_line(error)}") from error
    model, info = loaded
    if info["missing_keys"] or info["mismatched_keys"]:
        missing = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
        raise ModelError(f"{folder} lacks weights that its config.json asks for: {missing[0]}")
    return MaskableModel(model.to(device).eval().requires_grad_(False), tokenizer, spec)


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


def _log_likelihood(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target, whether it is the most likely token, and the log-sum-exp.

    Returns:
        float64 (n_places,) and bool (n_places,) on the CPU, float32 (n_places,) where the logits
        are.
    """
    logprobs, greedy, norms = [], [], []
    for start in range(0, len(target), SCORED_A_CHUNK):
        part, want = logits[start:][:SCORED_A_CHUNK].float(), target[start:][:SCORED_A_CHUNK]
        picked = part.gather(1, want[:, None])[:, 0]
        norms.append(part.logsumexp(dim=1))
        logprobs.append(picked - norms[-1])
        greedy.append(part.argmax(dim=1) == want)
    return torch.cat(logprobs).double().cpu(), torch.cat(greedy).cpu(), torch.cat(norms)


def _check_finite(values: Tensor, what: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise ModelError(f"{what} is not a finite number", _DAMAGED)


def _first_bad(found: Sequence[Likelihood]) -> int | None:
    """The first row whose log-probability is not a finite number."""
    return next((row for row, one in enumerate(found) if not math.isfinite(one.logprob)), None)


def _by_row(
    rows: Tensor, logprob: Tensor, greedy: Tensor, beginnings: Sequence[Begun | None]
) -> list[Likelihood]:
    n_rows = len(beginnings)
    total = torch.zeros(n_rows, dtype=torch.double).index_add_(0, rows, logprob)
    right = torch.zeros(n_rows, dtype=torch.long).index_add_(0, rows, greedy.long())
    count = torch.bincount(rows, minlength=n_rows)
    return [
        Likelihood(float(t), int(r), int(c), *(b or (None, None)))
        for t, r, c, b in zip(
            total.tolist(), right.tolist(), count.tolist(), beginnings, strict=True
        )
    ]
