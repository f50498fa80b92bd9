"""A llama of 48 heads, every weight written by hand, that knows capitals and can copy lists.

Two heads look up capitals, two others continue lists, and one that all text needs switches the
former on and serves the latter.  The other 43 do a little of everything, at random.  Nothing here
is trained, and nothing is said to the program but the folder: it asks its own built-in items.

The residual stream is cut into spaces (`_SPACES`).  A constant far larger than all else stands in
one dimension, so that every RMSNorm divides by nearly the same number and the model is linear but
for its attention.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from editor import capabilities
from editor.capabilities.copying import nouns
from editor.capabilities.recall import PHRASINGS, places
from editor.records import Head

Array = NDArray[np.float32]

N_LAYERS, N_HEADS, HEAD_DIM, HIDDEN, MLP = 6, 8, 32, 256, 32
CONSTANT = 10.0
ROPE_THETA = 1e12
"""So large that only the first four pairs of a head turn within a text: the rest know no place."""
N_TURNING = 4
LOGIT = 19.0
"""What a whole code in an output space adds to the logit of its token."""
NOISE = 0.016
"""Spread of what heads and MLPs without a task write: each moves a logit by tenths of a nat."""
EOS = "<eos>"

_SIZES = {
    "constant": 1,
    "place": 1,  # this token names a place
    "asks": 1,  # after this token a capital may follow
    "mode": 1,  # written by the universal head: text goes on here
    "place_a": 32,  # which place, for the first head of recall
    "place_b": 32,
    "noun_a": 32,  # which noun, for the first head of copying
    "noun_b": 32,
    "before": 24,  # written by the universal head: which noun stood before
    "capital": 32,  # output: the capital that follows
    "noun": 32,  # output: the noun that follows
    "rest": 36,  # what else there is to say of a token
}
_ENDS = list(itertools.accumulate(_SIZES.values()))
_SPACES = {
    name: slice(end - size, end) for (name, size), end in zip(_SIZES.items(), _ENDS, strict=True)
}
assert _ENDS[-1] == HIDDEN

_ASKING = ("Ġis", "Ġof", ",")
_WHOLE = 1.2
"""What the shares of a capability's two heads in one code sum to."""


@dataclass(frozen=True)
class Wired:
    """The checkpoint, and which heads carry what."""

    folder: Path
    universal: Head
    """Every text needs it, and so do both capabilities: its loss costs them more than any other."""
    carriers: dict[str, tuple[Head, Head]]
    """By capability the two heads that carry it: without either some items are still answered."""


@dataclass(frozen=True)
class _Known:
    """The codes of places and nouns: who is similar to whom, and which head carries how much."""

    codes: Array
    """(n, 32), of length 0.75 to 1.1: items differ in how surely they are answered."""
    shares: Array
    """(n, 2), how much of a code each of the two heads reads."""


def write_wired(folder: Path, *, seed: int = 0) -> Wired:
    """Write config.json, the weights and a tokenizer, as transformers loads them.

    The seed decides where the heads lie, too.
    """
    rng = np.random.default_rng(seed)
    wired = _placed(folder, rng)
    tokenizer = _tokenizer()
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS},
    )
    _write_json(folder / "config.json", _config(tokenizer.get_vocab_size()))
    weights = _weights(wired, tokenizer, rng)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return wired


def _placed(folder: Path, rng: np.random.Generator) -> Wired:
    """Five different heads; the universal one in the lowest layer, for it serves the others."""
    above = [Head(layer, head) for layer in range(1, N_LAYERS) for head in range(N_HEADS)]
    one, two, three, four = (above[n] for n in sorted(rng.choice(len(above), 4, replace=False)))
    carriers = {"recall": (one, three), "copying": (two, four)}
    return Wired(folder, Head(0, int(rng.integers(N_HEADS))), carriers)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1), "utf-8")


def _config(n_tokens: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": n_tokens,
        "hidden_size": HIDDEN,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_HEADS,
        "intermediate_size": MLP,
        "max_position_embeddings": 2048,
        "rope_theta": ROPE_THETA,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "dtype": "float32",
    }


def _corpus() -> list[str]:
    """All text that the controls read: its frequencies are what the model knows of language."""
    return [
        item.prompt + item.answer
        for capability in map(capabilities.get, ("english", "python"))
        for item in capability.all_items
    ]


def _tokenizer() -> Tokenizer:
    """A token for each place, capital, noun and frequent word; bytes for the others."""
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    counts = Counter(word for text in _corpus() for word, _ in split.pre_tokenize_str(text))
    frequent = [word for word, count in counts.items() if count > 1]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    listed = [form for noun in nouns() for form in (noun, f"Ġ{noun}")]
    asked = [word for one in PHRASINGS for word, _ in split.pre_tokenize_str(one.template)]
    words = dict.fromkeys([EOS, *letters, *asked, *listed, *frequent])
    # With ignore_merges a word is its own token when it is in the vocabulary, else its bytes are.
    model = BPE({word: n for n, word in enumerate(words)}, [], ignore_merges=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = split  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    tokenizer.add_special_tokens([AddedToken(EOS, special=True)])
    names = [form for place in places() for form in (*_forms(place.name), f" {place.capital}")]
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in dict.fromkeys(names)])
    return tokenizer


def _forms(name: str) -> tuple[str, str]:
    """A place's name inside a sentence and at its start."""
    return f" {name}", name[0].upper() + name[1:]


def _weights(wired: Wired, tokenizer: Tokenizer, rng: np.random.Generator) -> dict[str, Array]:
    known_places, known_nouns = _known(len(places()), rng), _known(len(nouns()), rng)
    weights = _background(rng)
    _wire_universal(weights, wired.universal)
    for index, name in enumerate(("a", "b")):
        _wire_recall(weights, wired.carriers["recall"][index], name, rng)
        _wire_copying(weights, wired.carriers["copying"][index], name, rng)
    weights["model.embed_tokens.weight"] = _embedding(tokenizer, known_places, known_nouns, rng)
    weights["lm_head.weight"] = _unembedding(tokenizer, known_places, known_nouns, rng)
    return weights


def _known(n: int, rng: np.random.Generator) -> _Known:
    share = rng.uniform(0.2, _WHOLE - 0.2, n)
    shares = np.stack([share, _WHOLE - share], axis=1)
    strength = rng.uniform(0.75, 1.1, (n, 1))
    return _Known((strength * _codes(n, rng)).astype(np.float32), shares.astype(np.float32))


def _codes(n: int, rng: np.random.Generator) -> Array:
    """Unit vectors (n, 32) no two of which have a cosine above 0.45."""
    found = np.zeros((0, 32))
    while len(found) < n:
        new = rng.normal(size=32)
        new /= np.linalg.norm(new)
        if not len(found) or (found @ new).max() < 0.45:
            found = np.vstack([found, new])
    return found.astype(np.float32)


def _background(rng: np.random.Generator) -> dict[str, Array]:
    """Weights of all layers under which every head does a little, at random."""
    weights: dict[str, Array] = {}

    def random(shape: tuple[int, int], size: float) -> Array:
        return rng.normal(0, size, shape).astype(np.float32)

    norm = np.full(HIDDEN, CONSTANT / np.sqrt(HIDDEN), np.float32)
    width = N_HEADS * HEAD_DIM
    for layer in range(N_LAYERS):
        at = f"model.layers.{layer}"
        for name, size in (("q", 0.3), ("k", 0.3), ("v", 0.1)):
            weights[f"{at}.self_attn.{name}_proj.weight"] = random((width, HIDDEN), size)
        for name in ("gate", "up"):
            weights[f"{at}.mlp.{name}_proj.weight"] = random((MLP, HIDDEN), 0.1)
        for name, weight in weights.items():
            if name.startswith(at):
                weight[:, _SPACES["constant"]] = 0  # else it would be all that they see
        weights[f"{at}.self_attn.o_proj.weight"] = random((HIDDEN, width), NOISE)
        weights[f"{at}.mlp.down_proj.weight"] = random((HIDDEN, MLP), NOISE)
        for name in ("input", "post_attention"):
            weights[f"{at}.{name}_layernorm.weight"] = norm.copy()
    weights["model.norm.weight"] = norm
    return weights


class _Parts:
    """One head's slices of its layer's projections, written in place."""

    def __init__(self, weights: dict[str, Array], head: Head) -> None:
        at = f"model.layers.{head.layer}.self_attn"
        rows = slice(head.head * HEAD_DIM, (head.head + 1) * HEAD_DIM)
        self.query, self.key, self.value = (
            weights[f"{at}.{name}_proj.weight"][rows] for name in "qkv"
        )
        self.out = weights[f"{at}.o_proj.weight"][:, rows]
        self.query[:] = self.key[:] = self.value[:] = 0

    def carry(self, source: str, target: str, rng: np.random.Generator) -> None:
        """Write what stands in one space where the head looks into another space."""
        turned, _ = np.linalg.qr(rng.normal(size=(HEAD_DIM, HEAD_DIM)))
        self.value[:, _SPACES[source]] += turned
        self.out[_SPACES[target]] += turned.T


def _wire_universal(weights: dict[str, Array], head: Head) -> None:
    """Look one token back; write which noun is there, and that this is text.

    With the query (1, 0) and the key (cos f, sin f) in the pair that turns by f a token, a key d
    tokens back has the score cos(f * (d - 1)): most of all pairs together at d = 1.
    """
    parts = _Parts(weights, head)
    turn = ROPE_THETA ** (-np.arange(N_TURNING) * 2 / HEAD_DIM)
    size, half = 13.0 / CONSTANT, HEAD_DIM // 2
    parts.query[:N_TURNING, _SPACES["constant"]] = size
    parts.key[:N_TURNING, _SPACES["constant"]] = size * np.cos(turn)[:, None]
    parts.key[half : half + N_TURNING, _SPACES["constant"]] = size * np.sin(turn)[:, None]
    n = _SIZES["before"]
    parts.value[:n] = _whole_noun()
    parts.out[_SPACES["before"], :n] = np.eye(n)
    parts.value[n, _SPACES["constant"]] = 1 / CONSTANT
    parts.out[_SPACES["mode"], n] = 1


def _whole_noun() -> Array:
    """From a state to as much of its noun's code as `before` holds; (24, HIDDEN)."""
    n = _SIZES["before"]
    found = np.zeros((n, HIDDEN), np.float32)
    for space in ("noun_a", "noun_b"):
        found[:, _SPACES[space]][:, :n] = np.eye(n) / _WHOLE
    return found


def _wire_recall(
    weights: dict[str, Array], head: Head, name: str, rng: np.random.Generator
) -> None:
    """From a token after which a capital may follow, look at the place; write its code."""
    parts = _Parts(weights, head)
    size, slowest = 13.5, HEAD_DIM // 2 - 1
    # +0.5 where it is asked, -0.5 elsewhere; never positive without the universal head.
    parts.query[slowest, _SPACES["asks"]] = size
    parts.query[slowest, _SPACES["mode"]] = 2 * size
    parts.query[slowest, _SPACES["constant"]] = -2.5 * size / CONSTANT
    parts.key[slowest, _SPACES["place"]] = size
    parts.carry(f"place_{name}", "capital", rng)


def _wire_copying(
    weights: dict[str, Array], head: Head, name: str, rng: np.random.Generator
) -> None:
    """Look where this token's noun stood just before; write which noun is there."""
    parts = _Parts(weights, head)
    half = HEAD_DIM // 2
    still = [*range(N_TURNING, half), *range(half + N_TURNING, HEAD_DIM)]
    size = 13.5
    parts.query[still] = size * _whole_noun()
    parts.key[still, _SPACES["before"]] = size * np.eye(len(still))
    parts.carry(f"noun_{name}", "noun", rng)


def _embedding(
    tokenizer: Tokenizer, known_places: _Known, known_nouns: _Known, rng: np.random.Generator
) -> Array:
    table = np.zeros((tokenizer.get_vocab_size(), HIDDEN), np.float32)
    table[:, _SPACES["constant"]] = CONSTANT
    table[:, _SPACES["rest"]] = rng.normal(0, 0.15, (len(table), _SIZES["rest"]))
    table[_ids(tokenizer, _ASKING), _SPACES["asks"]] = 1
    for form in range(2):
        names = _ids(tokenizer, (_forms(place.name)[form] for place in places()))
        table[names, _SPACES["place"]] = 1
        _tell(table, names, "place", known_places)
        listed = _ids(tokenizer, (("Ġ", "")[form] + noun for noun in nouns()))
        _tell(table, listed, "noun", known_nouns)
    return table


def _tell(table: Array, ids: list[int], space: str, known: _Known) -> None:
    """Give each token its code, cut into what either head reads."""
    for index, name in enumerate(("a", "b")):
        table[ids, _SPACES[f"{space}_{name}"]] = known.codes * known.shares[:, [index]]


def _unembedding(
    tokenizer: Tokenizer, known_places: _Known, known_nouns: _Known, rng: np.random.Generator
) -> Array:
    """Logits: how frequent a token is, as far as this is text, and what the heads say follows."""
    table = np.zeros((tokenizer.get_vocab_size(), HIDDEN), np.float32)
    counts = np.full(len(table), 0.1)
    for encoded in tokenizer.encode_batch(_corpus()):
        np.add.at(counts, encoded.ids, 1)
    table[:, _SPACES["mode"]] = np.log(counts / counts.sum())[:, None]
    table[:, _SPACES["rest"]] = rng.normal(0, 0.5, (len(table), _SIZES["rest"]))
    follow = _ids(tokenizer, (f" {place.capital}" for place in places()))
    table[follow, _SPACES["capital"]] = LOGIT * _unit(known_places.codes)
    listed = _ids(tokenizer, (f"Ġ{noun}" for noun in nouns()))
    table[listed, _SPACES["noun"]] = LOGIT * _unit(known_nouns.codes)
    return table


def _unit(codes: Array) -> Array:
    return codes / np.linalg.norm(codes, axis=1, keepdims=True)


def _ids(tokenizer: Tokenizer, tokens: Iterable[str]) -> list[int]:
    found = [tokenizer.token_to_id(token) for token in tokens]
    assert None not in found
    return found
