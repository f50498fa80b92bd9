"""The causal model types of transformers that are refused, each with its reason."""

from __future__ import annotations

_NO_HEADS = "it has no attention heads: {} takes the place of attention"
_DRAFT = "it is a draft model, which works on the keys and values of the model that it drafts for"
_MUSIC = "it writes codes of audio, not text"

REFUSED: dict[str, str] = {
    "bitnet": "a norm over all heads stands between attention and projection: zeroing one head "
    "changes how much every other one counts",
    "blt": "it reads bytes in patches, through three models with attention of their own: a head "
    "has no one layer number, and a token's score no one position",
    "cpmant": "its attention looks ahead, so it is no causal language model",
    "deepseek_v4": "the heads are mixed in groups by a product of two matrices: no slice of one "
    "weight is one head",
    "diffllama": "its heads are pairs whose attentions are subtracted and normed together: a slice "
    "of the projection is no head",
    "dory": "a norm over all heads stands between attention and projection: zeroing one head "
    "changes how much every other one counts",
    "emu3": "transformers does not find the language model's weights in its files when it loads "
    "that part alone, so nothing could be measured",
    "falcon_mamba": _NO_HEADS.format("a state space"),
    "gemma4_assistant": _DRAFT,
    "gemma4_unified_assistant": _DRAFT,
    "jetmoe": "each token takes its heads from experts: the projection is a stack of matrices",
    "mamba": _NO_HEADS.format("a state space"),
    "mamba2": _NO_HEADS.format("a state space"),
    "musicgen": _MUSIC,
    "musicgen_melody": _MUSIC,
    "prophetnet": "its n-gram attention lets the score of a token depend on later ones",
    "reformer": "its hashing attention draws random numbers: two runs of one model differ",
    "rwkv": _NO_HEADS.format("a recurrence"),
    "xlnet": "it predicts words in any order, and its projection is a tensor of three axes",
    "xlstm": _NO_HEADS.format("a recurrence"),
}
"""By `model_type` of config.json."""
