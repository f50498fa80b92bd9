"""Masked equals baked, bit for bit, on every causal model type of transformers."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import editor.batching
import tiny_families as tiny
from editor.architecture import read_spec
from editor.capabilities.base import Continuation, Likelihood
from editor.checkpoint import apply_edits
from editor.coverage import ranges
from editor.families import FAMILIES
from editor.model import MaskableModel
from editor.plan import compile_edits
from editor.records import Head, Mask, ModelSpec
from editor.unsupported import REFUSED

IDS = torch.tensor([[5, 17, 3, 42, 11, 8, 29, 13]])
OTHER_IDS = torch.tensor([[5, 17, 3, 42, 11, 8, 29, 14]])
EAGER, NAN = "eager_attention_forward", float("nan")
# They do without transformers' attention functions.
OWN_ATTENTION = tiny.words(
    "big_bird bloom falcon git gpt_neo gpt_neox_japanese megatron-bert mpt mvp openai-gpt rembert "
    "roformer trocr xglm xlm"
)
COMMON = tiny.words(
    "gemma gemma2 gemma3_text gpt2 gpt_neox llama mistral mixtral olmo2 phi3 qwen2 qwen2_moe qwen3"
)
# Their experts cannot be told to take each token by itself (see `token_by_token`).
EXPERTS_TOGETHER = ("dbrx",)
BUILT = [name for name in tiny.MODEL_TYPES if name in FAMILIES and name not in tiny.NOT_BUILT]


class Letters:
    """As much of a tokenizer as scoring needs: one token a letter."""

    eos_token_id = pad_token_id = 1
    bos_token_id = None

    def __call__(self, text: str, **_: Any) -> Any:
        class Encoded:
            input_ids = [2 + ord(letter) % 60 for letter in text]

        return Encoded

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [self.decode(row) for row in rows]

    def decode(self, row: Sequence[int], **_: Any) -> str:
        """The numbers of the tokens."""
        return " ".join(map(str, row))


def saved(
    folder: Path, model_type: str, overrides: dict[str, Any] | None, dtype: str
) -> tuple[Path, ModelSpec]:
    torch.manual_seed(0)
    config = tiny.config_of(model_type, overrides)
    tiny.model_of(config, dtype=getattr(torch, dtype)).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    written["model_type"] = model_type  # gpt-sw3 has the config class of gpt2, which writes its own
    (folder / "config.json").write_text(json.dumps(written))
    return folder, read_spec(folder, source=model_type)


def loaded(folder: Path, dtype: str = "float32") -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    return model.eval()


@torch.inference_mode()
def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False).logits


def three_heads(spec: ModelSpec) -> Mask:
    """In the first, a middle and the last attention layer."""
    at = spec.layers
    return tuple(
        dict.fromkeys(
            Head(layer.layer, head % layer.n_heads)
            for layer, head in ((at[0], 1), (at[len(at) // 2], 0), (at[-1], at[-1].n_heads - 1))
        )
    )


def tensors_of(content: bytes | bytearray) -> dict[str, tuple[dict[str, Any], int, int]]:
    """Entry, begin and end of each tensor in a safetensors file."""
    start = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(content[8:start])
    entries.pop("__metadata__", None)
    return {
        name: (entry, *(start + offset for offset in entry["data_offsets"]))
        for name, entry in entries.items()
    }


def changed_tensors(base: Path, edited: Path) -> set[str]:
    """The tensors whose bytes differ, where headers and all other files are the same."""
    found: set[str] = set()
    for path in base.iterdir():
        before, after = path.read_bytes(), (edited / path.name).read_bytes()
        if path.suffix != ".safetensors":
            assert before == after
            continue
        tensors = tensors_of(before)
        assert tensors == tensors_of(after) and len(before) == len(after)
        found |= {name for name, (_, a, b) in tensors.items() if before[a:b] != after[a:b]}
    return found


def zeroed(base: Path, edited: Path, spec: ModelSpec, mask: Mask) -> Path:
    """A copy of the folder with the heads' bytes zeroed: independent of editor.checkpoint."""
    shutil.copytree(base, edited)
    by_layer = {at.layer: at for at in spec.layers}
    for head in mask:
        at = by_layer[head.layer]
        path = edited / at.file
        content = bytearray(path.read_bytes())
        entry, begin, end = tensors_of(content)[at.tensor]
        kind = {"F32": np.uint32, "BF16": np.uint16}[entry["dtype"]]
        weight = np.frombuffer(content[begin:end], kind).reshape(entry["shape"]).copy()
        span = slice(head.head * at.head_dim, (head.head + 1) * at.head_dim)
        weight[(slice(None), span) if at.axis == 1 else span] = 0
        content[begin:end] = weight.tobytes()
        path.write_bytes(content)
    return edited


class Attentions:
    """The n-th attention of a forward pass returns NaN for head 1; all are counted.

    It enters where transformers' attention functions are called, and for the types that do without
    them (`deep`), where torch is asked for attention or for the weights of one.
    """

    def __init__(self, poisoned: int, *, deep: bool) -> None:
        self.n, self._poisoned, self._deep = 0, poisoned, deep

    @contextmanager
    def watched(self) -> Iterator[None]:
        if self._deep:
            with _Torch(self.next):
                yield
            return
        with pytest.MonkeyPatch.context() as patch:
            for name, module in list(sys.modules.items()):
                if name.startswith("transformers.models.") and hasattr(module, EAGER):
                    patch.setattr(module, EAGER, self._wrapped(getattr(module, EAGER)))
            sdpa = self._wrapped(ALL_ATTENTION_FUNCTIONS["sdpa"])
            patch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", sdpa)
            yield

    def next(self, out: torch.Tensor, axis: int) -> torch.Tensor:
        self.n += 1
        return out.index_fill(axis, torch.tensor([1]), NAN) if self.n - 1 == self._poisoned else out

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def attention(*args: Any, **kwargs: Any) -> Any:
            out, *rest = original(*args, **kwargs)  # (n_rows, n_tokens, n_heads, head_dim)
            return (self.next(out, 2), *rest)

        return attention


class _Torch(TorchFunctionMode):
    def __init__(self, found: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            out = function(*args, **(kwargs or {}))
        name = getattr(function, "__name__", "")
        square = isinstance(out, torch.Tensor) and out.shape[-2:] == (IDS.shape[1],) * 2
        if name == "scaled_dot_product_attention" or (name == "softmax" and square):
            return self._found(out, out.dim() - 3)  # (..., n_heads, n_tokens, n_tokens)
        return out


def first_nan(model: Any, call: int, *, deep: bool) -> tuple[str, list[int]] | None:
    """The module that sees head 1 of the n-th attention first, and in which of its inputs."""
    names = {module: name for name, module in model.named_modules()}
    seen: list[tuple[str, list[int]]] = []

    def look(module: Any, args: Any) -> None:
        if not seen and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            nan = torch.isnan(args[0]).reshape(-1, args[0].shape[-1]).any(0)
            if nan.any():
                seen.append((names[module], nan.nonzero().flatten().tolist()))

    hooks = [
        module.register_forward_pre_hook(look)
        for module in names
        if getattr(module, "weight", None) is not None
    ]
    try:
        with Attentions(call, deep=deep).watched():
            logits(model)
    finally:
        for hook in hooks:
            hook.remove()
    return seen[0] if seen else None


def check_heads_are_where_attention_puts_them(model: Any, spec: ModelSpec) -> None:
    """What head 1 computes reaches the projection, and it alone, in the columns of head 1."""
    deep = spec.model_type in OWN_ATTENTION
    attentions = Attentions(-1, deep=deep)
    with attentions.watched():
        logits(model)
    found = [first_nan(model, call, deep=deep) for call in range(attentions.n)]
    for at in spec.layers:
        columns = list(range(at.head_dim, 2 * at.head_dim))
        assert (at.module, columns) in found, (at, found)


@contextmanager
def token_by_token(raw: Any) -> Iterator[None]:
    """Let each token have its own product with an expert's weight.

    As a rule one product takes the tokens of all rows that an expert gets, and the number of
    tokens decides how it is rounded: masks that send another row's tokens elsewhere then change the
    last bits of this row.
    """
    before = raw.get_experts_implementation()
    if raw._can_set_experts_implementation():
        raw.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        if raw._can_set_experts_implementation():
            raw.set_experts_implementation(before)


def check_rows_do_not_touch(model: MaskableModel, raw: Any, masks: Sequence[Mask]) -> None:
    two = IDS.repeat(2, 1)
    with model.knocked_out(masks):
        both = logits(raw, two)
    for row, mask in enumerate(masks):
        with model.knocked_out([mask], repeat=2):
            alone = logits(raw, two)[row]
        if raw.config.model_type in EXPERTS_TOGETHER:
            assert torch.allclose(both[row], alone, atol=1e-5)
        else:
            assert torch.equal(both[row], alone)


def check_layers_are_spared_rightly(
    model: MaskableModel, raw: Any, spec: ModelSpec, patch: pytest.MonkeyPatch
) -> None:
    """Starting from recorded layers changes no number, with zeros and with means."""
    masks: list[Mask] = [(Head(at.layer, 0),) for at in spec.layers] * 6
    # The longer one is read as eight tokens: of other numbers of rows, the last bits of a product
    # depend on how many there are, and layers are recorded for fewer than they then serve.
    requests = [Continuation("abcde", "fgh"), Continuation("hgfdeb", "cab")]
    plain = MaskableModel(raw, Letters(), spec)
    plain._blocks = []
    patch.setattr(editor.batching, "BATCH_TOKENS", 6 * 2 * 8)  # the masks of a layer are a batch
    for fill in ("zero", "mean"):
        found, wanted = (one.likelihoods(requests, masks, fill=fill) for one in (model, plain))
        same_likelihoods(raw, found, wanted)


def check_trees(model: MaskableModel, raw: Any, masks: Sequence[Mask]) -> None:
    """Texts that begin alike have the numbers that each has by itself, whoever reads trees."""
    ends = ["j", "jk", "jkl", "mno", "mnp", "q", "rstuv", "w", "xyz", "yz"]
    requests = [Continuation("abcdefghi" + end[:-1], end[-1:]) for end in ends]
    requests.append(Continuation("abcd" * 5, "efg"))
    found = model.likelihoods(requests, masks)
    for mask, row in zip(masks, found, strict=True):
        for request, one in zip(requests, row, strict=True):
            assert abs(one.logprob - alone(model, raw, request, mask)) < 1e-3
    if raw.config.model_type in COMMON:
        assert model._reads_trees


def alone(model: MaskableModel, raw: Any, request: Continuation, mask: Mask) -> float:
    """The answer's log-probability by a whole pass over one text."""
    prompt, answer = (model._tokenizer(text).input_ids for text in (request.prompt, request.answer))
    with model.knocked_out([mask]):
        found = logits(raw, torch.tensor([prompt + answer]))[0].float().log_softmax(dim=1)
    return float(sum(found[len(prompt) - 1 + n, token] for n, token in enumerate(answer)))


def same_likelihoods(
    raw: Any, found: list[list[Likelihood]], wanted: list[list[Likelihood]]
) -> None:
    """That they are equal, to the last bit where the model allows."""
    if rounds_by_rows(raw):
        pairs = (
            (a, b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True)
        )
        assert all(abs(a.logprob - b.logprob) < 1e-5 for a, b in pairs)
    else:
        assert found == wanted


def rounds_by_rows(raw: Any) -> bool:
    """Whether the number of rows of a batch decides the last bits of each.

    So it is of a Linear with one output, such as a gate of shared experts, and where a product
    takes all rows' tokens of an expert; layers are recorded for fewer rows than they then serve.
    """
    narrow = any(getattr(one, "out_features", 0) == 1 for one in raw.modules())
    return narrow or raw.config.model_type in EXPERTS_TOGETHER


def check_writing(model: MaskableModel, masks: Sequence[Mask]) -> None:
    """Many masks at once write what plain passes say, one prompt and one token at a time."""
    model._writer._stop = frozenset({5, 17, 23})
    prompts = ["abcde fghij", "q", "hello wo"]
    found = model.generate(prompts, masks, max_new_tokens=6)
    for mask, texts in zip(masks, found, strict=True):
        for prompt, text in zip(prompts, texts, strict=True):
            assert_written_plainly(model, prompt, mask, [int(token) for token in text.split()], 6)


def assert_written_plainly(
    model: MaskableModel, prompt: str, mask: Mask, wrote: list[int], n_new: int
) -> None:
    """Each token is the likeliest after those before it, by whole passes without cache or padding.

    One that is as likely to the last bits of a batch may stand in its place.
    """
    ids, stop = list(model._tokenizer(prompt).input_ids), model._writer._stop
    with model.knocked_out([mask]):
        for place in range(min(len(wrote) + 1, n_new)):
            (last,) = logits(model._model, torch.tensor([ids + wrote[:place]]))[:, -1].float()
            ended = place == len(wrote)
            chosen = last[list(stop)].max() if ended else last[wrote[place]]
            assert ended or wrote[place] not in stop
            assert last.max() - chosen <= 1e-4 * last.std()


def check_names(raw: Any, spec: ModelSpec) -> None:
    """transformers renames each name that is accepted to the module that is masked."""
    family = FAMILIES[spec.model_type]
    transforms = get_model_conversion_mapping(raw)
    renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    at, shapes = spec.layers[-1], raw.state_dict()
    part = family.parts[-1] if family.parts else ""
    layer = next(int(word) for word in at.module.split(".") if word.isdigit())
    for template in family.names():
        name = template.format(layer, part=part) + ".weight"
        found, converter = rename_source_key(
            name, renamings, converters, raw.base_model_prefix, shapes
        )
        assert converter is None and found == at.module + ".weight", (name, found)


def check_coverage(spec: ModelSpec) -> None:
    """Every layer has heads, is served by another layer's, or is listed with the reason."""
    lines = "; ".join((*spec.not_covered, *(n for n in spec.notes if "serves" in n)))
    listed: set[int] = {at.layer for at in spec.layers}
    for first, last in re.findall(r"(?<=[ ,])(\d+)(?:-(\d+))?(?=[,:;]|$)", lines):
        listed.update(range(int(first), int(last or first) + 1))
    assert listed == set(range(spec.n_layers or 0)), ranges(sorted(listed))


def check(tmp: Path, model_type: str, overrides: dict[str, Any] | None, dtype: str) -> None:
    base, spec = saved(tmp / "base", model_type, overrides, dtype)
    assert spec.model_type == model_type
    check_coverage(spec)
    raw = loaded(base, dtype)
    model = MaskableModel(raw, Letters(), spec)
    mask = three_heads(spec)
    plain = logits(raw)
    assert torch.isfinite(plain).all() and torch.equal(plain, logits(raw))
    edited = zeroed(base, tmp / "edited", spec, mask)
    (tmp / "written").mkdir()
    apply_edits(base, tmp / "written", compile_edits(spec, mask))
    assert not changed_tensors(edited, tmp / "written")  # the tool writes the same, byte for byte
    baked = logits(loaded(edited, dtype))
    with model.knocked_out([mask]):
        masked = logits(raw)
    assert torch.equal(masked, baked)
    assert changed_tensors(base, tmp / "edited") == {
        at.tensor for at in spec.layers if at.layer in {head.layer for head in mask}
    }
    for head in mask:
        with model.knocked_out([(head,)]):
            assert not torch.equal(logits(raw), plain), head
    assert torch.allclose(plain[:, :-1], logits(raw, OTHER_IDS)[:, :-1], atol=1e-3)
    with token_by_token(raw), pytest.MonkeyPatch.context() as patch:
        check_rows_do_not_touch(model, raw, [mask, mask[:1]])
        check_layers_are_spared_rightly(model, raw, spec, patch)
        if dtype == "float32":  # else the last bits of a batch decide between likely tokens
            check_writing(model, [(), mask])
            check_trees(model, raw, [(), mask])
    check_names(raw, spec)
    check_heads_are_where_attention_puts_them(raw, spec)


@pytest.mark.families
@pytest.mark.parametrize("model_type", BUILT)
def test_masked_equals_baked(tmp_path: Path, model_type: str) -> None:
    check(tmp_path, model_type, None, "float32")


@pytest.mark.families
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_masked_equals_baked_in_other_forms(tmp_path: Path, name: str) -> None:
    model_type, overrides = tiny.VARIANTS[name]
    check(tmp_path, model_type, overrides, "float32")


@pytest.mark.families
@pytest.mark.parametrize("model_type", tiny.BFLOAT16)
def test_masked_equals_baked_in_bfloat16(tmp_path: Path, model_type: str) -> None:
    check(tmp_path, model_type, None, "bfloat16")


def test_every_type_is_decided() -> None:
    assert set(FAMILIES) | set(REFUSED) == set(tiny.MODEL_TYPES)
    assert not set(FAMILIES) & set(REFUSED)
    assert set(tiny.NOT_BUILT) <= set(FAMILIES)


@pytest.mark.families
def test_the_document_is_up_to_date() -> None:
    written = tiny.DOCUMENT.read_text("utf-8")
    assert written == tiny.document(), "run: python tests/tiny_families.py --write"
