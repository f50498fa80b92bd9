"""Checkpoints of a few kilobytes that transformers loads: random ones, and one wired by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import decoders as tokenizers_decoders
from tokenizers import models as tokenizers_models
from transformers import (
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from editor.architecture import read_spec
from editor.capabilities import Capability
from editor.model import MaskableModel, load
from editor.records import Head, Item, Mask, ModelSpec
from planted import generated_capability

N_LAYERS, N_HEADS = 4, 4
MASK: Mask = (Head(1, 2), Head(2, 0), Head(2, 3))
EOS = "<eos>"


def save_random(folder: Path, architecture: str, *, dtype: str = "float32", seed: int = 0) -> Path:
    """A model of random weights, whose heads matter, with a byte-level tokenizer."""
    tokenizer = byte_tokenizer()
    model = _random_model(_config(architecture, len(tokenizer), tokenizer), seed)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def spec_of(folder: Path) -> ModelSpec:
    return read_spec(folder, source=folder.name)


def open_tiny(folder: Path, dtype: str = "auto") -> MaskableModel:
    return load(folder, spec_of(folder), dtype=dtype, device="cpu")


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and `th`, so that a token may span the border of prompt and answer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: place for place, token in enumerate([EOS, *letters, "th"])}
    tokenizer = Tokenizer(tokenizers_models.BPE(vocabulary, [("t", "h")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = tokenizers_decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def _config(architecture: str, n_tokens: int, tokenizer: PreTrainedTokenizerFast) -> Any:
    common: dict[str, Any] = {
        "vocab_size": n_tokens,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    usual: dict[str, Any] = {
        "hidden_size": 24,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "intermediate_size": 40,
        "max_position_embeddings": 1024,
        **common,
    }
    # Two heads share keys and values, and a head is wider than hidden size / heads.
    grouped = {"num_key_value_heads": 2, "head_dim": 16, **usual}
    if architecture == "llama":
        return LlamaConfig(tie_word_embeddings=False, **grouped)
    if architecture == "qwen3":
        return Qwen3Config(tie_word_embeddings=True, **grouped)
    if architecture == "gpt_neox":
        return GPTNeoXConfig(tie_word_embeddings=False, rotary_pct=0.5, **usual)
    assert architecture == "gpt2"
    return GPT2Config(n_embd=24, n_layer=N_LAYERS, n_head=N_HEADS, n_positions=1024, **common)


def _random_model(config: Any, seed: int) -> Any:
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return randomized(model, seed)


def randomized(model: Any, seed: int) -> Any:
    """The model with random weights under which its heads matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            # Far wider than an initialization, or all heads would add nearly nothing.
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.25 * noise)
            else:
                parameter.add_(0.1 * noise)
    return model.eval()


@dataclass(frozen=True)
class Wired:
    """A checkpoint whose heads do what is written here, and the capabilities it has."""

    folder: Path
    target_heads: frozenset[Head]
    """Each alone is too weak to answer `naming`; both together do."""
    shared_head: Head
    """Helps `naming` but is all that `pairing` has."""
    universal_head: Head
    """Every text needs it."""
    capabilities: dict[str, Capability]

    def get(self, name: str, library: object = None, outside: object = None) -> Capability:
        """In the place of `capabilities.get`."""
        return self.capabilities[name]


N_CLASSES, N_KEYS = 8, 400
TEXT = tuple(f"w{n}" for n in range(12))
_KEYS = {name: tuple(f"{name}{n}" for n in range(N_KEYS)) for name in ("a", "b")}
_ANSWERS = {name: tuple(f"{name}-is-{n}" for n in range(N_CLASSES)) for name in ("a", "b")}
_ASKED = {"a": ("name", "say"), "b": ("pair", "join")}


def save_wired(folder: Path) -> Wired:
    """A llama of 4 layers x 4 heads, every head of which looks at all tokens alike.

    A key's class stands in its embedding; a head that knows a task turns it into the answer.
    """
    words = [EOS, "=", *TEXT]
    for name in ("a", "b"):
        words += [*_ASKED[name], *_ANSWERS[name], *_KEYS[name]]
    place = {word: n for n, word in enumerate(words)}
    # Residual stream: what the token is (classes, text, other), then the logits of what may follow.
    inputs = [*(f"{name}{n}" for name in ("a", "b") for n in range(N_CLASSES)), *TEXT, "=", "other"]
    outputs = [*_ANSWERS["a"], *_ANSWERS["b"], *TEXT]
    into = {what: n for n, what in enumerate(inputs)}
    out = {what: n + len(inputs) for n, what in enumerate(outputs)}
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=-(-(len(inputs) + len(outputs)) // N_HEADS) * N_HEADS,
        head_dim=16,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS,
        intermediate_size=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = _random_model(config, seed=1)
    target, shared, universal = {Head(1, 1), Head(2, 3)}, Head(2, 1), Head(0, 2)
    strength = {
        "a": {**dict.fromkeys(target, 1.8), shared: 0.6},
        "b": {shared: 4.5},
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if "norm" in name else 0.0)
            if "v_proj" in name or "o_proj" in name:
                parameter.normal_(0, 0.01, generator=torch.Generator().manual_seed(len(name)))
        embedding, unembedding = model.model.embed_tokens.weight, model.lm_head.weight
        for word, n in place.items():
            embedding[n, into[_input_of(word)]] = 4.0
            if word in out:
                unembedding[n, out[word]] = 3.0
        # Without a head's help the answer to any question is the first word of the texts.
        unembedding[place[TEXT[0]], into["="]] = 4.8
        for before, after in zip(TEXT, (*TEXT[1:], TEXT[0]), strict=True):
            unembedding[place[after], into[before]] = 1.0
        for name, heads in strength.items():
            for head, size in heads.items():
                base = 8 if (name, head) == ("b", shared) else 0  # the half of the head it uses
                for n in range(N_CLASSES):
                    source, answer = into[f"{name}{n}"], out[_ANSWERS[name][n]]
                    _connect(model, head, base + n, source, [answer], size)
        for n, word in enumerate(TEXT):
            _connect(model, universal, n, into[word], [out[other] for other in TEXT], 0.15)
        model.save_pretrained(folder)
    tokenizer = Tokenizer(tokenizers_models.WordLevel(place, unk_token=EOS))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    capabilities = [_asking("naming", "a"), _asking("pairing", "b"), _reading()]
    return Wired(
        folder, frozenset(target), shared, universal, {one.name: one for one in capabilities}
    )


def _input_of(word: str) -> str:
    """What a word's embedding says of it."""
    for name in ("a", "b"):
        if word in _KEYS[name]:
            return f"{name}{_KEYS[name].index(word) % N_CLASSES}"
    return word if word in (*TEXT, "=") else "other"


def _connect(
    model: Any, head: Head, unit: int, source: int, targets: list[int], size: float
) -> None:
    """Let one unit of a head write `size` to `targets` when it sees `source`."""
    attention = model.model.layers[head.layer].self_attn
    row = head.head * 16 + unit
    attention.v_proj.weight[row, source] = 1.0
    for target in targets:
        attention.o_proj.weight[target, row] += size


def _asking(name: str, letter: str) -> Capability:
    items = tuple(
        Item(
            key=key,
            prompt=f"{_ASKED[letter][n % 2]} {key} =",
            answer=f" {_ANSWERS[letter][n % N_CLASSES]}",
            variant=_ASKED[letter][n % 2],
        )
        for n, key in enumerate(_KEYS[letter])
    )
    return generated_capability(name, "task", items)


def _reading() -> Capability:
    """Texts that go through the words in their order from different starts."""
    items = []
    for n in range(100):
        words = [TEXT[(n + i) % len(TEXT)] for i in range(10 + n // len(TEXT))]
        items.append(
            Item(key=f"t{n}", prompt=words[0], answer=" " + " ".join(words[1:]), variant="text")
        )
    return generated_capability("reading", "text", tuple(items))
