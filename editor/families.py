"""The model families that can be edited, as data: where each keeps its attention heads.

A family is listed only after one of its models was built at random, saved and compared: the module
is there, its input is the heads' outputs side by side, and masking it equals zeroing the file.  The
few that could not be built were read in transformers' source; `docs/architectures.md` tells which.
`editor.unsupported` has the types that are refused.

A name in config.json is tried in the order given; those that are there must agree.
"""

from __future__ import annotations

from editor.family import Family, Flag

# Attention that does not look ahead is what makes a model's answers scorable token by token.
_NOT_BIDIRECTIONAL = Flag(
    "use_bidirectional_attention",
    (None, False, "vision"),
    None,
    "its attention looks ahead, so it is no causal language model",
)
_DECODER = Flag(
    "is_decoder",
    (True,),
    False,
    "it is an encoder whose attention looks ahead; only with is_decoder is it a language model",
)
_ALONE = Flag(
    "is_encoder_decoder",
    (False,),
    True,
    "its decoder works on what an encoder read, which no prompt gives it; only a decoder that was "
    "saved alone is a language model",
)


def _sizes(
    heads: int, layers: int, hidden: int, *, kv: int = 0, **more: int
) -> tuple[tuple[str, int], ...]:
    """`Family.defaults`."""
    names = ("num_attention_heads", "num_hidden_layers", "hidden_size", "num_key_value_heads")
    found = zip((*names, *more), (heads, layers, hidden, kv, *more.values()), strict=True)
    return tuple((name, number) for name, number in found if number)


_LLAMA = Family("model.layers.{}.self_attn.o_proj")
_LLAMA_TIED = _LLAMA._replace(tied=True)
_MISTRAL = _LLAMA._replace(kv_required=True)
_MISTRAL_TIED = _MISTRAL._replace(tied=True)
_GEMMA = _MISTRAL_TIED._replace(flags=(_NOT_BIDIRECTIONAL,))
# Latent attention: a head's output is as wide as its value, not as the config's head_dim.
_LATENT = _MISTRAL._replace(head_dim=("v_head_dim",))
_LATENT_TIED = _LATENT._replace(tied=True)
_LATENT_OR_LINEAR = _LATENT._replace(sibling="kv_b_proj.weight")

# The text part of a model that also sees, as the class that transformers loads names it...
_SEEING = _MISTRAL_TIED._replace(
    module="model.language_model.layers.{}.self_attn.o_proj", text=True
)
# ... and where it loads the text part alone.
_READING = _MISTRAL._replace(stored=("model.language_model.layers.{}.self_attn.o_proj",), text=True)
_GEMMA4_TEXT = _GEMMA._replace(
    head_dim=("head_dim", "global_head_dim"), defaults=(("global_head_dim", 512),)
)
_GEMMA4 = _SEEING._replace(
    head_dim=_GEMMA4_TEXT.head_dim,
    flags=(_NOT_BIDIRECTIONAL,),
    defaults=_sizes(8, 30, 2304, kv=4, head_dim=256, global_head_dim=512),
)
_LLAVA_NAMES = (
    "language_model.model.layers.{}.self_attn.o_proj",
    "language_model.layers.{}.self_attn.o_proj",
)

_GPT2 = Family(
    "transformer.h.{}.attn.c_proj",
    axis=0,
    n_heads=("n_head", "num_attention_heads"),
    n_layers=("n_layer", "num_hidden_layers"),
    hidden_size=("n_embd", "hidden_size"),
    n_kv_heads=None,
    tied=True,
)
_GPTJ = _GPT2._replace(module="transformer.h.{}.attn.out_proj", axis=1, tied=False)
_NEOX = Family("gpt_neox.layers.{}.attention.dense", n_kv_heads=None, output=("embed_out.weight",))
_OPT = Family("model.decoder.layers.{}.self_attn.out_proj", n_kv_heads=None, tied=True)
_BART = _OPT._replace(
    n_heads=("decoder_attention_heads",),
    n_layers=("decoder_layers",),
    hidden_size=("d_model",),
    flags=(_DECODER, _ALONE),
)
_BERT = Family(
    "bert.encoder.layer.{}.attention.output.dense",
    n_kv_heads=None,
    tied=True,
    output=("cls.predictions.decoder.weight",),
    flags=(_DECODER,),
)
_ROBERTA = _BERT._replace(
    module="roberta.encoder.layer.{}.attention.output.dense", output=("lm_head.decoder.weight",)
)
_INKLING = Family(
    "model.layers.{}.self_attn.o_proj",
    sliding_heads="swa_num_attention_heads",
    head_dim=("head_dim", "swa_head_dim"),
    kv_required=True,
)
_ZAMBA = Family(
    "model.layers.{}.shared_transf.self_attn.o_proj",
    head_dim=("attention_head_dim",),
    kv_required=True,
    tied=True,
    shared="",
)
_DOTS3 = _LATENT._replace(
    sliding_heads="swa_num_attention_heads", head_dim=("v_head_dim", "swa_v_head_dim")
)

_TABLE: tuple[tuple[str, Family], ...] = (
    (
        "afmoe apertus arcee aria_text doge flex_olmo granite granitemoe granitemoe_swa "
        "granitemoehybrid granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hyperclovax jais2 llama "
        "nanochat olmo olmo2 olmo3 olmo_hybrid olmoe phi3",
        _LLAMA,
    ),
    ("cohere cohere2 cohere2_moe cohere_compass_text", _LLAMA_TIED),
    (
        "bamba beam cwm dots1 exaone4 exaone_moe flint glm glm4 glm4_moe gpt_oss helium hy_v3 "
        "internlm3 iquestcoder jamba kolibri1 mellum minimax minimax_m2 minimax_m3_vl_text "
        "ministral ministral3 mistral mixtral nemotron phi4_multimodal phimoe qwen2 qwen2_moe "
        "qwen3 qwen3_moe qwen3_next seed_oss solar_open stablelm",
        _MISTRAL,
    ),
    (
        "ernie4_5 ernie4_5_moe granite_swa lara_mini lfm3 smollm3 starcoder2 vaultgemma zaya",
        _MISTRAL_TIED,
    ),
    ("gemma gemma2 gemma3_text", _GEMMA),
    ("axk1 axk2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa", _LATENT),
    ("minicpm3 youtu", _LATENT_TIED),
    ("deepseek_v2 hy_v4 sarvam_mla", _LATENT._replace(kv_required=False)),
    ("mimo_v2_flash", _LATENT),
    ("kimi_linear", _LATENT_OR_LINEAR),
    ("bert big_bird megatron-bert", _BERT),
    ("camembert roberta xlm-roberta xlm-roberta-xl xmod", _ROBERTA),
    ("bart bigbird_pegasus blenderbot blenderbot-small mbart mvp pegasus plbart marian", _BART),
    ("gpt2 gpt-sw3 openai-gpt", _GPT2),
    ("codegen gptj", _GPTJ),
    ("qwen3_5_text qwen3_5_moe_text", _READING._replace(text=False)),
)

FAMILIES: dict[str, Family] = {
    **{name: family for names, family in _TABLE for name in names.split()},
    "apertus1p5_text": _LLAMA._replace(stored=_READING.stored),
    "bailing_hybrid": _LATENT_OR_LINEAR._replace(stored=("model.layers.{}.attention.dense",)),
    "bert-generation": _BERT._replace(output=("lm_head.decoder.weight",)),
    "biogpt": Family(
        "biogpt.layers.{}.self_attn.out_proj",
        n_kv_heads=None,
        tied=True,
        output=("output_projection.weight",),
    ),
    "bloom": Family(
        "transformer.h.{}.self_attention.dense",
        n_heads=("n_head", "num_attention_heads"),
        n_layers=("n_layer", "num_hidden_layers"),
        hidden_size=("n_embed", "hidden_size"),
        n_kv_heads=None,
        tied=True,
        flags=(
            Flag(
                "slow_but_exact",
                (False,),
                False,
                "with pretraining_tp it multiplies slices of the projection's weight itself, where "
                "heads cannot be masked",
            ),
        ),
    ),
    "ctrl": _GPT2._replace(module="transformer.h.{}.multi_head_attention.dense", axis=1),
    "data2vec-text": _ROBERTA._replace(
        module="data2vec_text.encoder.layer.{}.attention.output.dense"
    ),
    "dbrx": Family(
        "transformer.blocks.{}.norm_attn_norm.attn.out_proj",
        n_heads=("n_heads", "num_attention_heads"),
        n_layers=("n_layers", "num_hidden_layers"),
        hidden_size=("d_model", "hidden_size"),
        n_kv_heads=None,
    ),
    "dots3_note": _DOTS3._replace(
        text=True,
        defaults=_sizes(128, 46, 5120, kv=128, v_head_dim=128),
    ),
    "dots3_note_text": _DOTS3,
    "electra": _BERT._replace(
        module="electra.encoder.layer.{}.attention.output.dense",
        output=("generator_lm_head.weight",),
    ),
    "ernie": _BERT._replace(module="ernie.encoder.layer.{}.attention.output.dense"),
    "exaone": _MISTRAL._replace(
        stored=("transformer.h.{}.attn.attention.out_proj",),
        n_layers=("num_hidden_layers", "num_layers"),
    ),
    "falcon": Family(
        "transformer.h.{}.self_attention.dense",
        n_kv_heads="num_kv_heads",
        multi_query=True,
        tied=True,
    ),
    "falcon_h1": _MISTRAL._replace(
        note="every layer has a Mamba mixer beside its attention, which stays as it is"
    ),
    "fuyu": Family(
        "model.language_model.layers.{}.self_attn.dense",
        stored=("language_model.model.layers.{}.self_attn.dense",),
        text=True,
        n_kv_heads=None,
        defaults=_sizes(64, 36, 4096),
    ),
    "gemma3": _SEEING._replace(
        stored=_LLAVA_NAMES,
        flags=(_NOT_BIDIRECTIONAL,),
        defaults=_sizes(8, 26, 2304, kv=4, head_dim=256),
    ),
    "gemma3n": _SEEING._replace(defaults=_sizes(8, 35, 2048, kv=2, head_dim=256)),
    "gemma3n_text": _MISTRAL_TIED._replace(stored=_READING.stored),
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4_TEXT,
    "gemma4_unified": _GEMMA4,
    "gemma4_unified_text": _GEMMA4_TEXT,
    "git": Family(
        "git.encoder.layer.{}.attention.output.dense",
        n_kv_heads=None,
        output=("output.weight",),
    ),
    "got_ocr2": _SEEING._replace(stored=_LLAVA_NAMES, defaults=_sizes(16, 24, 1024, kv=16)),
    "gpt_bigcode": _GPT2._replace(axis=1, multi_query=True),
    "gpt_neo": Family(
        "transformer.h.{}.attn.attention.out_proj",
        n_heads=("num_heads", "num_attention_heads"),
        n_layers=("num_layers", "num_hidden_layers"),
        n_kv_heads=None,
        tied=True,
    ),
    "gpt_neox": _NEOX._replace(output=("embed_out.weight", "lm_head.weight")),
    "gpt_neox_japanese": _NEOX._replace(
        module="gpt_neox_japanese.layers.{}.attention.dense", tied=True
    ),
    "hrm_text": Family(
        "model.{part}_module.layers.{}.self_attn.o_proj",
        stored=("model.{part}_module.layers.{}.attn.o_proj",),
        parts=("L", "H"),
        stacked=True,
        n_layers=("num_layers_per_stack",),
        n_layers_else="num_hidden_layers",
        n_kv_heads=None,
        note="the layers of both stacks run several times a token",
    ),
    "inkling_text": _INKLING,
    "inkling2_text": _INKLING._replace(
        module="model.layers.{}.self_attn.o_proj.linear",
        stored=("model.llm.layers.{}.attn.wo_ud",),
    ),
    "inkling2_loop_text": _INKLING._replace(
        module="model.layers.{}.self_attn.o_proj.linear",
        stored=("model.llm.layers.{}.attn.wo_ud",),
        note="some layers run several times a token",
    ),
    "laguna": _MISTRAL._replace(heads_by_layer="num_attention_heads_per_layer"),
    "lfm2": Family("model.layers.{}.self_attn.out_proj", kv_required=True, tied=True),
    "lfm2_moe": Family("model.layers.{}.self_attn.out_proj", kv_required=True, tied=True),
    "llama4": _MISTRAL._replace(
        bare=False,
        text=True,
        stored=("language_model.model.layers.{}.self_attn.o_proj",),
        defaults=_sizes(40, 48, 5120, kv=8, head_dim=128),
    ),
    "llama4_text": _MISTRAL._replace(
        bare=False, stored=("language_model.model.layers.{}.self_attn.o_proj",)
    ),
    "longcat_flash": _LATENT._replace(
        module="model.layers.{}.self_attn.{part}.o_proj",
        parts=("0", "1"),
        n_layers=("num_layers",),
        kv_required=False,
    ),
    "mllama": _MISTRAL._replace(
        bare=False,
        text=True,
        stored=("language_model.model.layers.{}.self_attn.o_proj",),
        defaults=_sizes(32, 40, 4096, kv=8),
    ),
    "modernbert-decoder": Family(
        "model.layers.{}.attn.Wo", n_kv_heads=None, tied=True, output=("decoder.weight",)
    ),
    "moshi": _LLAMA._replace(module="model.layers.{}.self_attn.o_proj.linear"),
    "moss_transcribe_diarize": _SEEING._replace(defaults=_sizes(16, 28, 1024, kv=8, head_dim=128)),
    "mpt": Family(
        "transformer.blocks.{}.attn.out_proj",
        n_heads=("n_heads", "num_attention_heads"),
        n_layers=("n_layers", "num_hidden_layers"),
        hidden_size=("d_model", "hidden_size"),
        n_kv_heads=None,
        tied=True,
    ),
    "nemotron_h": _MISTRAL._replace(
        module="model.layers.{}.mixer.o_proj",
        stored=("backbone.layers.{}.mixer.o_proj",),
        listed=True,
    ),
    "opt": _OPT,
    "persimmon": Family("model.layers.{}.self_attn.dense", n_kv_heads=None),
    "phi": Family("model.layers.{}.self_attn.dense"),
    "qwen3_5": _READING._replace(defaults=_sizes(16, 32, 4096, kv=4, head_dim=256)),
    "qwen3_5_moe": _READING._replace(defaults=_sizes(16, 40, 2048, kv=2, head_dim=256)),
    "qwen4_exp": _READING._replace(defaults=_sizes(16, 40, 2048, kv=2, head_dim=256)),
    "qwen4_exp_text": _MISTRAL,
    "recurrent_gemma": _LLAMA_TIED._replace(module="model.layers.{}.temporal_block.o_proj"),
    "rembert": _BERT._replace(module="rembert.encoder.layer.{}.attention.output.dense", tied=False),
    "roberta-prelayernorm": _ROBERTA._replace(
        module="roberta_prelayernorm.encoder.layer.{}.attention.output.dense"
    ),
    "roc_bert": _BERT._replace(module="roc_bert.encoder.layer.{}.attention.output.dense"),
    "roformer": _BERT._replace(module="roformer.encoder.layer.{}.attention.output.dense"),
    "sarvam_moe": _MISTRAL._replace(stored=("model.layers.{}.attention.dense",)),
    "trocr": _BART._replace(output=("output_projection.weight",), flags=(_DECODER,)),
    "whisper": _BART._replace(output=("proj_out.weight",)),
    "xglm": Family(
        "model.layers.{}.self_attn.out_proj",
        n_heads=("attention_heads", "num_attention_heads"),
        n_layers=("num_layers", "num_hidden_layers"),
        hidden_size=("d_model", "hidden_size"),
        n_kv_heads=None,
        tied=True,
    ),
    "xlm": Family(
        "transformer.attentions.{}.out_lin",
        n_heads=("n_heads",),
        n_layers=("n_layers",),
        hidden_size=("emb_dim",),
        n_kv_heads=None,
        tied=True,
        output=("pred_layer.proj.weight",),
        flags=(Flag("causal", (True,), False, "its attention looks ahead unless causal is set"),),
    ),
    "zamba": _ZAMBA,
    "zamba2": _ZAMBA._replace(
        module="model.layers.{}.shared_transformer.self_attn.o_proj", shared="num_mem_blocks"
    ),
}
"""By `model_type` of config.json."""
