"""Where each attention head of a GGUF file lives, from its header alone.

    header --read_gguf_spec--> ModelSpec: one blk.N.attn_output.weight a layer, heads along ne0

llama.cpp gives every architecture the same names.  An architecture is listed where the row of
`attn_output` is the heads' outputs side by side, in order, and nothing mixes them before it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, NoReturn

from editor.errors import ModelError, nearest
from editor.ggml_codes import obstacle
from editor.gguf_header import MAX_PER_LAYER, GgufHeader, read_gguf_header
from editor.records import AttentionLayer, FileSize, ModelSpec
from editor.safetensors_header import TensorEntry, shown

MAX_HEADS = 4096
MAX_SIZE = 1 << 24
MAX_WIDTH = 1 << 20
"""Of a projection's row: masks of that length are made."""

ARCHITECTURES = frozenset(
    {
        *("afmoe", "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bloom"),
        *("chatglm", "codeshell", "cohere2", "command-r", "dbrx", "deci", "deepseek", "deepseek2"),
        *("dots1", "dream", "ernie4_5", "ernie4_5-moe", "exaone", "exaone-moe", "exaone4"),
        *("falcon", "falcon-h1", "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "glm4"),
        *("glm4moe", "gpt-oss", "gpt2", "gptneox", "granite", "granitehybrid", "granitemoe"),
        *("grok", "grovemoe", "hunyuan-dense", "hunyuan-moe", "internlm2", "jais", "jais2"),
        *("jamba", "lfm2", "lfm2moe", "llada", "llada-moe", "llama", "llama4", "maincoder"),
        *("mimo2", "minicpm", "minicpm3", "minimax-m2", "mistral3", "mistral4", "mpt"),
        *("nemotron", "nemotron_h", "nemotron_h_moe", "olmo", "olmo2", "olmoe", "openelm"),
        *("orion", "pangu-embedded", "phi2", "phi3", "phimoe", "plm", "qwen", "qwen2"),
        *("qwen2moe", "qwen2vl", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next"),
        *("qwen3vl", "qwen3vlmoe", "refact", "rnd1", "seed_oss", "smallthinker", "smollm3"),
        *("stablelm", "starcoder", "starcoder2", "step35", "xverse"),
    }
)
"""Values of `general.architecture` that can be edited."""

_RECURRENT = "it has no attention heads"
_ENCODER = "it writes no text"
REFUSED = {
    **dict.fromkeys(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"), _RECURRENT),
    **dict.fromkeys(
        (
            *("bert", "clip", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3"),
            *("llama-embed", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe"),
            *("t5encoder", "wavtokenizer-dec"),
        ),
        _ENCODER,
    ),
    "bitnet": "it normalizes all heads together before the output projection",
    "cogvlm": "images and text have output projections of their own",
    "plamo": "its file orders the heads otherwise than the model that it was made from",
    "t5": "encoder and decoder have heads of their own",
}
"""Architectures that are known and cannot be edited, each with the reason."""

_OUTPUT = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.attn_output\.weight", re.ASCII)


class _Fields(NamedTuple):
    """The metadata with the questions one may ask of it."""

    path: Path
    header: GgufHeader
    architecture: str

    def fail(self, key: str, expected: str) -> NoReturn:
        there = self.header.metadata
        found = shown(there[key]) if key in there else "nothing"
        raise ModelError(
            f"{self.path}: {key} should be {expected}, found {found}",
            "the file's metadata do not fit its tensors: download it or convert it again",
        )

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def optional(self, name: str, limit: int, least: int = 1) -> int | None:
        key = self.key(name)
        value = self.header.metadata.get(key)
        if value is None:
            return None
        # bool is an int to Python.
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= limit:
            self.fail(key, f"a whole number from {least} to {limit}")
        return value

    def number(self, name: str, limit: int) -> int:
        value = self.optional(name, limit)
        if value is None:
            self.fail(self.key(name), f"a whole number from 1 to {limit}")
        return value

    def per_layer(self, name: str, n_layers: int) -> tuple[int, ...] | None:
        """One number for all layers, or an array of them; 0 where a layer has no such thing."""
        key = self.key(name)
        value = self.header.metadata.get(key)
        if isinstance(value, tuple):
            if len(value) != n_layers or not all(0 <= one <= MAX_HEADS for one in value):
                self.fail(key, f"{n_layers} numbers from 0 to {MAX_HEADS}, one a layer")
            return value
        number = self.optional(name, MAX_HEADS, least=0)
        return None if number is None else (number,) * n_layers


def read_gguf_spec(file: Path, *, source: str) -> ModelSpec:
    """Find the heads of a GGUF file.

    Args:
        file: The file.
        source: The name that the spec is to carry.

    Returns:
        The spec; of the file only the header is read.  Layers whose type, or whose heads' size in
        that type, cannot be edited are among `not_covered`.

    Raises:
        ModelError: The file is missing, damaged or of an architecture that is not supported, its
            metadata contradict its tensors, or none of its layers can be edited.
    """
    header = read_gguf_header(file)
    fields = _Fields(file, header, _architecture(file, header))
    n_layers = fields.number("block_count", MAX_PER_LAYER)
    n_run = n_layers - (fields.optional("nextn_predict_layers", n_layers - 1, least=0) or 0)
    n_heads = fields.per_layer("attention.head_count", n_layers)
    if n_heads is None:
        fields.fail(fields.key("attention.head_count"), "a whole number, or one a layer")
    n_kv_heads = fields.per_layer("attention.head_count_kv", n_layers) or n_heads
    found = _projections(header)
    if not found:
        _no_layers(file, header)
    layers: list[AttentionLayer] = []
    not_covered: list[str] = []
    for layer in range(n_run):
        reason = _reason(header, layer, n_heads[layer], n_kv_heads[layer])
        if not reason:
            at = _layer(fields, layer, n_heads[layer], header.tensors[found[layer]])
            reason = obstacle(header.tensors[at.tensor].dtype, at.head_dim)
            if not reason:
                layers.append(at)
        if reason:
            not_covered.append(f"layer {layer}: {reason}")
    if not layers:
        raise ModelError(
            f"{file}: no layer has heads that can be edited; {not_covered[0]}",
            "take another quantization of the model, such as Q8_0 or Q4_K_M",
        )
    return ModelSpec(
        source=source,
        revision=None,
        model_type=fields.architecture,
        dtype=", ".join(sorted({header.tensors[at.tensor].dtype for at in layers})),
        hidden_size=fields.number("embedding_length", MAX_SIZE),
        n_kv_heads=n_kv_heads[layers[0].layer],
        tied="output.weight" not in header.tensors,
        layers=tuple(layers),
        files=(FileSize(name=file.name, n_bytes=header.file_bytes),),
        not_covered=tuple(not_covered),
        notes=_notes(found, n_run),
    )


def _architecture(file: Path, header: GgufHeader) -> str:
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        found = "nothing" if name is None else shown(name)
        raise ModelError(
            f"{file}: general.architecture should be a text, found {found}",
            "the file is no model, or damaged: download it again",
        )
    if name in REFUSED:
        raise ModelError(f"{file}: the architecture {name} cannot be edited: {REFUSED[name]}")
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(
            f"{file}: general.type should be 'model', found {shown(kind)}",
            "name the file of the model itself",
        )
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file}: the architecture {shown(name)} is not supported yet",
            nearest(name[:80], ARCHITECTURES),
        )
    return name


def _projections(header: GgufHeader) -> dict[int, str]:
    matches = (_OUTPUT.fullmatch(name) for name in header.tensors)
    return {int(match[1]): match[0] for match in matches if match is not None}


def _reason(header: GgufHeader, layer: int, n_heads: int, n_kv_heads: int) -> str:
    """Why a layer has no heads; "" if it has."""
    name = f"blk.{layer}.attn_output.weight"
    if name not in header.tensors:
        return f"the file holds no {name}"
    # A linear map, or a recurrence, whose output projection has the same name.
    if not n_heads or not n_kv_heads:
        return f"the file counts {n_heads} heads and {n_kv_heads} of keys and values"
    if f"blk.{layer}.attn_sub_norm.weight" in header.tensors:
        return "all heads are normalized together before the output projection"
    return ""


def _layer(fields: _Fields, layer: int, n_heads: int, entry: TensorEntry) -> AttentionLayer:
    stem = f"blk.{layer}.attn_output"
    hidden = fields.number("embedding_length", MAX_SIZE)
    if len(entry.shape) != 2 or entry.shape[1] != hidden:
        raise ModelError(
            f"{fields.path}: tensor {stem}.weight should have the shape [heads, {hidden}] by "
            f"{fields.key('embedding_length')}, found {list(entry.shape)}",
            "the file's metadata do not fit its tensors: download it or convert it again",
        )
    width = entry.shape[0]
    if width > MAX_WIDTH:
        raise ModelError(
            f"{fields.path}: tensor {stem}.weight should have rows of at most {MAX_WIDTH} numbers, "
            f"found {width}",
            "the file is damaged: download it again",
        )
    if width % n_heads:
        fields.fail(
            fields.key("attention.head_count"),
            f"a divisor of {width}, the width of tensor {stem}.weight",
        )
    head_dim = width // n_heads
    _check_head_dim(fields, f"{stem}.weight", head_dim, hidden // n_heads)
    return AttentionLayer(
        layer=layer,
        module=stem,
        tensor=f"{stem}.weight",
        file=fields.path.name,
        n_heads=n_heads,
        head_dim=head_dim,
        axis=1,
        code="ggml",
    )


def _check_head_dim(fields: _Fields, tensor: str, head_dim: int, default: int) -> None:
    """Hold a head's size against what the file states of it."""
    # Layers with a sliding window, and multi-head latent attention, may have a size of their own.
    names = ("value_length", "value_length_swa", "value_length_mla")
    stated = [fields.optional(f"attention.{name}", MAX_SIZE) for name in names]
    sizes = {size for size in stated if size is not None} or {default}
    if head_dim not in sizes:
        raise ModelError(
            f"{fields.path}: heads of tensor {tensor} have {head_dim} elements, but the metadata "
            f"say {' or '.join(str(size) for size in sorted(sizes))}",
            "the file's metadata do not fit its tensors: download it or convert it again",
        )


def _notes(found: dict[int, str], n_run: int) -> tuple[str, ...]:
    beyond = sorted(layer for layer in found if layer >= n_run)
    if not beyond:
        return ()
    return (
        f"layers {', '.join(str(layer) for layer in beyond)}: in the file, but no part of the "
        f"{n_run} layers that a token passes through",
    )


def _no_layers(file: Path, header: GgufHeader) -> NoReturn:
    example = next(iter(header.tensors))
    raise ModelError(
        f"{file}: expected tensors named blk.N.attn_output.weight, found none among "
        f"{len(header.tensors)}, such as {shown(example)}",
        "the file belongs to another model than its metadata say, or to an adapter",
    )
