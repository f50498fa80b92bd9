"""Every causal model type of transformers, built tiny and at random, and what is said of each.

python tests/tiny_families.py --write     docs/architectures.md, anew
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from editor.coverage import NO_ATTENTION  # noqa: E402
from editor.families import FAMILIES  # noqa: E402
from editor.family import Family  # noqa: E402
from editor.unsupported import REFUSED  # noqa: E402
from tiny import randomized  # noqa: E402

DOCUMENT = ROOT / "docs" / "architectures.md"

MODEL_TYPES: tuple[str, ...] = tuple(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

HIDDEN, N_LAYERS, N_HEADS, N_KV_HEADS, HEAD_DIM, N_TOKENS = 32, 4, 4, 2, 16, 64


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _each(names: str, value: int) -> dict[str, int]:
    return dict.fromkeys(words(names), value)


# A head is wider than hidden / heads, and two share their keys, wherever the config has a field.
_SMALL: dict[str, int] = {
    **_each(
        "hidden_size d_model n_embd n_embed emb_dim dim backbone_hidden_size embedding_size "
        "hidden_size_global",
        HIDDEN,
    ),
    **_each(
        "intermediate_size ffn_dim d_ff decoder_ffn_dim encoder_ffn_dim n_inner d_inner dff dim_ff "
        "ffn_hidden_size shared_intermediate_size intermediate_size_mlp mlp_dim feed_forward_size "
        "moe_shared_expert_intermediate_size dense_intermediate_size",
        48,
    ),
    **_each("moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size", 24),
    **_each(
        "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers", N_LAYERS
    ),
    **_each("encoder_layers num_encoder_layers depth", 2),
    **_each(
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads attention_heads "
        "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads",
        N_HEADS,
    ),
    **_each("num_key_value_heads num_kv_heads", N_KV_HEADS),
    **_each("head_dim dim_head d_kv d_head", HEAD_DIM),
    **_each("kv_lora_rank q_lora_rank qk_nope_head_dim index_head_dim", 16),
    **_each("qk_rope_head_dim rotary_dim", 8),
    "v_head_dim": 12,
    "index_n_heads": 2,
    "index_topk": 64,
    **_each(
        "vocab_size max_position_embeddings n_positions n_ctx max_seq_len max_target_positions "
        "max_source_positions",
        N_TOKENS,
    ),
    **_each("num_experts num_local_experts n_routed_experts moe_num_experts", 4),
    **_each("num_experts_per_tok num_experts_per_token moe_k moe_topk top_k n_groups", 2),
    **_each("n_group topk_group num_expert_group", 1),
}
_SPECIAL_TOKENS = words("bos eos pad sep cls decoder_start")

_LINEAR = ["linear_attention", "full_attention"] * 2
_GATED_DELTA: dict[str, Any] = {
    "layer_types": _LINEAR,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_expand": 2,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
_KIMI: dict[str, Any] = {"layer_types": _LINEAR, "linear_num_heads": 4, "linear_head_dim": 8}
_LOCAL = ["sliding_attention", "full_attention"] * 2
_GEMMA3N: dict[str, Any] = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": N_TOKENS,
    "activation_sparsity_pattern": [0.0] * 6,
    "intermediate_size": 48,
    "laurel_rank": 8,
}
_GEMMA4: dict[str, Any] = {
    "global_head_dim": 32,
    "layer_types": _LOCAL,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": N_TOKENS,
    "num_kv_shared_layers": 0,
}
_GEMMA4_UNIFIED: dict[str, Any] = {"global_head_dim": 32, "layer_types": _LOCAL}
_DOTS3: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 24,
    "shared_experts_intermediate_size": 24,
    "per_layer_config": None,
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 8,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 12,
}
_QWEN4: dict[str, Any] = {
    **_GATED_DELTA,
    "layer_types": ["linear_attention", "indexed_attention"] * 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 2,
    "hc_lowrank": 8,
}
_INKLING: dict[str, Any] = {
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 8,
    "layer_types": ["hybrid_sliding", "hybrid"] * 2,
}
_ZAMBA: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layers_block_type": ["linear_attention", "hybrid"] * 3,
    "attention_head_dim": 16,
    "attention_hidden_size": 64,
}
_ZAMBA2: dict[str, Any] = {
    **_ZAMBA,
    "kv_channels": 8,
    "n_mamba_heads": 4,
    "mamba_headdim": 16,
    "mamba_ngroups": 1,
    "mamba_d_state": 8,
    "adapter_rank": 4,
    "chunk_size": 8,
    "num_query_groups": 4,
    "num_mem_blocks": 1,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "n_shared_experts": 1}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_DECODERS = words(
    "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart whisper trocr"
)
_ENCODERS = words(
    "bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert "
    "roberta roberta-prelayernorm roc_bert roformer xlm-roberta xlm-roberta-xl xmod"
)

_OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_DECODERS, {"is_decoder": True, "is_encoder_decoder": False}),
    **dict.fromkeys(_ENCODERS, {"is_decoder": True}),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "lara_mini"), _GATED_DELTA
    ),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), {"text_config": _GATED_DELTA}),
    **dict.fromkeys(("kimi_linear", "bailing_hybrid"), _KIMI),
    **dict.fromkeys(("lfm2", "lfm2_moe"), {"layer_types": ["conv", "full_attention"] * 2}),
    "bamba": {"attn_layer_indices": [1, 3], **_MAMBA},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}
    },
    "dbrx": {
        "attn_config": {"clip_qkv": 8.0, "kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": _EXPERTS,
    "dots1": {"n_routed_experts": 4, "moe_intermediate_size": 24, **_EXPERTS},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {
            "pyramid_num_routed": [-1] * 4,
            "adapter_in_dim": HIDDEN,
            "adapter_out_dim": HIDDEN,
        },
        "audio_config": {
            "adapter_input_size": HIDDEN,
            "adapter_out_dim": HIDDEN,
            "downsample_hidden_size": 8,
        },
    },
    "dots3_note_text": _DOTS3,
    "falcon_h1": {"mamba_d_ssm": 64, **_MAMBA},
    "gemma3n_text": _GEMMA3N,
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
    "gemma4_unified": {"text_config": _GEMMA4_UNIFIED},
    "gemma4_unified_text": _GEMMA4_UNIFIED,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": _LINEAR, **_MAMBA},
    "helium": {"head_dim": 8},
    "hrm_text": {"num_hidden_layers": 2},
    "hunyuan_v1_dense": {"head_dim": 16, "num_key_value_heads": 2},
    "hunyuan_v1_moe": {
        "head_dim": 16,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "moe_topk": 2,
        "moe_intermediate_size": 24,
    },
    "inkling_text": _INKLING,
    "inkling2_text": {"unpadded_vocab_size": N_TOKENS, **_INKLING},
    "inkling2_loop_text": {"unpadded_vocab_size": N_TOKENS, **_INKLING},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_dt_rank": 4,
        "mamba_d_state": 8,
    },
    "laguna": {"num_attention_heads_per_layer": [4, 8, 4, 8]},
    "minimax": {"layer_types": _LINEAR, "block_size": 8},
    "ministral": {"head_dim": 16},
    "mllama": {"text_config": {"cross_attention_layers": [1]}},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "moe", "full_attention", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "recurrent_gemma": {
        "block_types": ["recurrent", "attention"],
        "lru_width": 32,
        "attention_window_size": 16,
    },
    "xlm": {"causal": True},
    "xmod": {"is_decoder": True, "default_language": "en_XX"},
    "zamba": {**_ZAMBA, "mamba_dt_rank": 4, "n_mamba_heads": 2},
    "zamba2": _ZAMBA2,
}

# Beside one model a type: the ways a type can be that change where heads lie.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "zamba2 with two blocks": ("zamba2", {**_ZAMBA2, "num_mem_blocks": 2}),
    "gemma4_text with shared keys": (
        "gemma4_text",
        {**_GEMMA4, "num_hidden_layers": 6, "layer_types": _LOCAL + _LOCAL[:2]}
        | {"num_kv_shared_layers": 2},
    ),
    "falcon with new decoder": ("falcon", {"new_decoder_architecture": True}),
    "gpt_bigcode with multi-head attention": ("gpt_bigcode", {"multi_query": False}),
}

NOT_BUILT: dict[str, str] = {
    "gemma3n": "its vision tower needs the package timm",
}
"""Types that are read in transformers' source only, and why."""

BFLOAT16 = ("deepseek_v3", "gemma4_text", "gpt2", "llama", "zamba2")


def config_of(model_type: str, overrides: dict[str, Any] | None = None) -> Any:
    """The type's default config with every size shrunk."""
    given = _OVERRIDES.get(model_type, {}) if overrides is None else overrides
    config_class = CONFIG_MAPPING[model_type]
    return config_class(**_merged(_shrunk(config_class()), given))


def _merged(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`fields` overridden by `given`; what is given as None is left to the class."""
    out = dict(fields)
    for name, value in given.items():
        inside = isinstance(value, dict) and isinstance(out.get(name), dict)
        out[name] = _merged(out[name], value) if inside else value
        if value is None:
            del out[name]
    return out


def model_of(config: Any, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A model whose heads matter, of the class that a checkpoint of this type is saved by."""
    return randomized(_class_of(config)(config), seed).to(dtype).eval()


def _class_of(config: Any) -> Any:
    """Where only the text part is loaded, checkpoints still hold the whole model."""
    name = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]
    found: Any = getattr(transformers, name)
    if found.config_class is not type(config):
        whole = (
            modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
            modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        )
        other = next((names[config.model_type] for names in whole if config.model_type in names), 0)
        if other:
            return getattr(transformers, other)
        return AutoModelForCausalLM.from_config
    return found


def _shrunk(default: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    known = default.to_dict()
    for name, value in known.items():
        part = vars(default).get(name) if name in default.sub_configs else None
        number = isinstance(value, int) and not isinstance(value, bool)
        if part is not None:
            out[name] = _shrunk(part)
        elif name.removesuffix("_token_id") in _SPECIAL_TOKENS:
            out[name] = 1 if isinstance(value, int) else None
        elif name in _SMALL and number and (value > _SMALL[name] or name == "head_dim"):
            out[name] = _SMALL[name]
    if "kv_lora_rank" in known:  # latent attention: every head has keys and values of its own
        out["num_key_value_heads"] = N_HEADS
        if "head_dim" in known:
            out["head_dim"] = _SMALL["qk_rope_head_dim"]
    out.pop("model_type", None)
    return out


_HEAD = """\
# Architectures

Which causal language models of transformers {version} can be edited, and where their heads lie.
Head h of a layer is the slice [h x head_dim, (h + 1) x head_dim) of its attention's output
projection: columns of a Linear's weight, rows of a Conv1D's. `{{}}` stands for the layer.

*Checked* means: a model of the type was built tiny and at random and saved; then the logits with
three heads masked at the projection's input were, bit for bit, those of the files with the heads'
bytes zeroed; each head mattered; rows with masks of their own did not touch one another; a token's
logits did not depend on later ones; and what a head computes reached its slice of the projection
before any other weight.

{n_checked} types are checked, {n_by_rule} follow the same rule but were not built, and {n_refused}
are refused. A type that is not listed is refused too. This file is written by
`python tests/tiny_families.py --write`.

| model_type | tensor in the files | heads are | heads of a layer | status |
|---|---|---|---|---|
"""


def document() -> str:
    """docs/architectures.md, from the data alone: no model is built."""
    head = _HEAD.format(
        version=transformers.__version__,
        n_checked=len(FAMILIES) - len(NOT_BUILT),
        n_by_rule=len(NOT_BUILT),
        n_refused=len(REFUSED),
    )
    return head + "".join(f"| {' | '.join(_row(name))} |\n" for name in sorted(MODEL_TYPES))


def _row(model_type: str) -> tuple[str, ...]:
    name = f"`{model_type}`"
    if model_type in REFUSED:
        return (name, "", "", "", f"refused: {REFUSED[model_type]}")
    family = FAMILIES[model_type]
    status = "checked bit for bit"
    if model_type in NOT_BUILT:
        status = f"by rule, not built: {NOT_BUILT[model_type]}"
    stored = (*family.stored, family.module)[0].replace("{part}", f"{{{','.join(family.parts)}}}")
    notes = "; ".join(_notes(model_type, family))
    return (name, f"`{stored}.weight`", ("rows", "columns")[family.axis], notes, status)


def _notes(model_type: str, family: Family) -> Iterator[str]:
    if family.text:
        yield "the language part only; its numbers are in `text_config`"
    for flag in family.flags:
        yield f"only where `{flag.field}` is {' or '.join(map(str, flag.allowed))}"
    if family.head_dim[0] == "v_head_dim":
        yield "latent attention: a head is `v_head_dim` wide"
    if family.heads_by_layer:
        yield f"a number of heads for each layer, `{family.heads_by_layer}`"
    if family.sliding_heads:
        yield f"`{family.sliding_heads}` of them in sliding layers"
    if family.parts:
        yield f"{len(family.parts)} attentions a layer, counted through"
    if family.shared is not None:
        yield "layers share attention blocks, which are saved once"
    if family.note:
        yield family.note
    kinds = set(getattr(config_of(model_type).get_text_config(), "layer_types", None) or ())
    for kind in sorted(kinds & set(NO_ATTENTION)):
        yield f"partial: {kind} layers have none"


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(document(), "utf-8")
