"""The model families that can be edited, as data: where each keeps its attention heads.

A family is listed only after one of its models was built at random, saved and compared: the module
is there, its input is the heads' outputs side by side, and masking it equals zeroing the file.
A name in config.json is tried in the order given; those that are there must agree.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Family(NamedTuple):
    """How one architecture names its parts."""

    module: str
    """Dotted path of the output projection; `{}` stands for the layer. The tensor adds `.weight`.
    """
    optional: str = ""
    """Beginning of `module` that files on the Hub may leave out."""
    axis: Literal[0, 1] = 1
    """Axis of the weight along which the heads lie: 1 of a Linear, 0 of a Conv1D."""
    n_heads: tuple[str, ...] = ("num_attention_heads",)
    n_layers: tuple[str, ...] = ("num_hidden_layers",)
    hidden_size: tuple[str, ...] = ("hidden_size",)
    n_kv_heads: str | None = "num_key_value_heads"
    """None where every head has its own keys and values, or `multi_query` alone decides."""
    kv_required: bool = False
    """Whether the family's default for a missing `n_kv_heads` is another number than `n_heads`."""
    multi_query: bool | None = None
    """The default of the `multi_query` flag, or None where there is no such flag."""
    output: str = "lm_head.weight"
    """Name of the output embedding's tensor."""
    tied: bool = False
    """The default of `tie_word_embeddings`."""


_LLAMA = Family("model.layers.{}.self_attn.o_proj")
_MISTRAL = _LLAMA._replace(kv_required=True)
_GEMMA2 = _MISTRAL._replace(tied=True)
_GPT2 = Family(
    "transformer.h.{}.attn.c_proj",
    optional="transformer.",
    axis=0,
    n_heads=("n_head", "num_attention_heads"),
    n_layers=("n_layer", "num_hidden_layers"),
    hidden_size=("n_embd", "hidden_size"),
    n_kv_heads=None,
    tied=True,
)
_GPTJ = _GPT2._replace(module="transformer.h.{}.attn.out_proj", optional="", axis=1, tied=False)
_NEOX = Family("gpt_neox.layers.{}.attention.dense", n_kv_heads=None, output="embed_out.weight")

FAMILIES: dict[str, Family] = {
    "apertus": _LLAMA,
    "arcee": _LLAMA,
    "bloom": Family(
        "transformer.h.{}.self_attention.dense",
        optional="transformer.",
        n_heads=("n_head", "num_attention_heads"),
        n_layers=("n_layer", "num_hidden_layers"),
        hidden_size=("n_embed", "hidden_size"),
        n_kv_heads=None,
        tied=True,
    ),
    "codegen": _GPTJ,
    "cohere": _LLAMA._replace(tied=True),
    "cohere2": _LLAMA._replace(tied=True),
    "ernie4_5": _GEMMA2,
    "exaone4": _LLAMA,
    "falcon": Family(
        "transformer.h.{}.self_attention.dense",
        n_kv_heads="num_kv_heads",
        multi_query=True,
        tied=True,
    ),
    "gemma": _LLAMA._replace(tied=True),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
    "glm": _MISTRAL,
    "glm4": _MISTRAL,
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2._replace(optional="", axis=1, multi_query=True),
    "gpt_neo": Family(
        "transformer.h.{}.attn.attention.out_proj",
        n_heads=("num_heads", "num_attention_heads"),
        n_layers=("num_layers", "num_hidden_layers"),
        n_kv_heads=None,
        tied=True,
    ),
    "gpt_neox": _NEOX,
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granitemoe": _LLAMA,
    "hunyuan_v1_dense": _LLAMA,
    "lfm2": Family("model.layers.{}.self_attn.out_proj", kv_required=True, tied=True),
    "llama": _LLAMA,
    "ministral": _MISTRAL,
    "mistral": _MISTRAL,
    "mixtral": _MISTRAL,
    "mpt": Family(
        "transformer.blocks.{}.attn.out_proj",
        n_heads=("n_heads",),
        n_layers=("n_layers",),
        hidden_size=("d_model",),
        n_kv_heads=None,
        tied=True,
    ),
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": _LLAMA,
    "olmoe": _LLAMA,
    "opt": Family(
        "model.decoder.layers.{}.self_attn.out_proj",
        optional="model.",
        n_kv_heads=None,
        tied=True,
    ),
    "persimmon": Family("model.layers.{}.self_attn.dense", n_kv_heads=None),
    "phi": Family("model.layers.{}.self_attn.dense"),
    "phi3": _LLAMA,
    "phimoe": _MISTRAL,
    "qwen2": _LLAMA,
    "qwen2_moe": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": _MISTRAL,
    "seed_oss": _MISTRAL,
    "smollm3": _GEMMA2,
    "stablelm": _LLAMA,
    "starcoder2": _GEMMA2,
}
"""By `model_type` of config.json."""

QUANTIZED_SUFFIXES = {
    ".qweight": "GPTQ or AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "scaled float8 or int8",
    ".weight_scale_inv": "block-scaled float8",
    ".weight.absmax": "bitsandbytes 4 bit",
    ".weight_blocks": "MXFP4",
    ".SCB": "bitsandbytes 8 bit",
}
"""Tensors beside a projection that tell that its weight is packed, and as what."""
