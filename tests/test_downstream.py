"""An edited GGUF file where such files are used: in llama.cpp, and in transformers.

llama.cpp multiplies with activations rounded to 8 bits, transformers with the weights expanded to
float32, so their logits differ in the first decimal.  Tokens are compared where the best one leads
by more than 3, which no rounding turns over; where it leads by less, the logits are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from editor.baking import bake
from editor.progress import Silent
from editor.records import Head
from editor.session import Options
from editor.source import PACKAGED

pytestmark = [pytest.mark.model, pytest.mark.downstream]

PACKAGE = PACKAGED["smollm2-135m"]
HEADS = [Head.parse(text) for text in ("L23H4", "L23H5", "L23H1", "L21H7")]
HEAD_DIM = 64
CAPITAL = "The capital of France is"
SURE = ("1, 2, 3, 4, 5, 6,", "def add(a, b):\n    return", "Once upon a time")
"""Prompts after which both files leave no doubt: the next token leads by 3 or more."""


class Answer(NamedTuple):
    """What an engine makes of a prompt."""

    tokens: list[int]
    logits: Any
    """Of the first new token, float (n_vocabulary,)."""


@pytest.fixture(scope="session")
def base() -> Path:
    found = find_spec(PACKAGE.module)
    assert found and found.submodule_search_locations, f"{PACKAGE.distribution} is not installed"
    return Path(found.submodule_search_locations[0]) / PACKAGE.file


@pytest.fixture(scope="session")
def edited(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("downstream") / "edited"
    bake(str(base), HEADS, output, Options(), Silent())
    return output / base.name


class Llama:
    """One file in llama.cpp."""

    def __init__(self, file: Path) -> None:
        # No importorskip: whoever asks for these tests must not be told that all is well.
        assert find_spec("llama_cpp"), "llama_cpp is not installed: run `make test-downstream`"
        import llama_cpp

        # One thread: several would spin while they wait for one another on a busy machine.
        threads = {"n_threads": 1, "n_threads_batch": 1}
        self.model = llama_cpp.Llama(
            str(file), n_ctx=64, logits_all=True, verbose=False, seed=0, **threads
        )

    def encode(self, text: str) -> list[int]:
        return self.model.tokenize(text.encode(), add_bos=False)

    def decode(self, tokens: list[int]) -> str:
        return self.model.detokenize(tokens).decode("utf-8", errors="replace")

    def answer(self, text: str, n_tokens: int) -> Answer:
        ids = self.encode(text)
        self.model.reset()
        self.model.eval(ids)
        logits = np.array(self.model.scores[len(ids) - 1])
        self.model.reset()
        new = self.model.generate(ids, temp=0.0, top_k=1)
        return Answer([token for token, _ in zip(new, range(n_tokens), strict=False)], logits)


class Transformers:
    """One file in transformers, fed with the token ids of llama.cpp."""

    def __init__(self, file: Path, encode: Callable[[str], list[int]]) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.encode = encode
        self.model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        ).eval()

    def answer(self, text: str, n_tokens: int) -> Answer:
        import torch

        ids = torch.tensor([self.encode(text)])
        with torch.inference_mode():
            new = self.model.generate(
                ids,
                max_new_tokens=n_tokens,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            )
        return Answer(new.sequences[0, ids.shape[1] :].tolist(), new.logits[0][0].numpy())


class Engines(NamedTuple):
    llama: Llama
    transformers: Transformers


def engines(file: Path) -> Engines:
    llama = Llama(file)
    return Engines(llama, Transformers(file, llama.encode))


@pytest.fixture(scope="session")
def on_base(base: Path) -> Engines:
    return engines(base)


@pytest.fixture(scope="session")
def on_edited(edited: Path) -> Engines:
    return engines(edited)


def tensors(file: Path) -> dict[str, Any]:
    import gguf

    return {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}


def columns(name: str) -> list[slice]:
    """The columns of a projection that belong to the removed heads."""
    return [
        slice(at.head * HEAD_DIM, (at.head + 1) * HEAD_DIM)
        for at in HEADS
        if name == f"blk.{at.layer}.attn_output.weight"
    ]


def test_only_the_heads_are_zero(base: Path, edited: Path) -> None:
    from gguf.quants import dequantize

    before, after = tensors(base), tensors(edited)
    assert list(before) == list(after)
    n_zeroed = 0
    for name, tensor in before.items():
        if not columns(name):
            assert np.array_equal(tensor.data, after[name].data), name
            continue
        assert after[name].tensor_type == tensor.tensor_type
        expected = dequantize(tensor.data, tensor.tensor_type)
        for zeroed in columns(name):
            n_zeroed += int((expected[:, zeroed] != 0).sum())
            expected[:, zeroed] = 0
        found = dequantize(after[name].data, after[name].tensor_type)
        assert np.array_equal(found, expected), name
    assert n_zeroed > 0.9 * len(HEADS) * HEAD_DIM * 9 * HEAD_DIM


def test_every_other_byte_is_the_base_s(base: Path, edited: Path) -> None:
    """Header, names, padding and the other blocks; a block of 32 numbers is 20 bytes here."""
    old, new = (np.fromfile(file, np.uint8) for file in (base, edited))
    assert len(old) == len(new)
    for name, tensor in tensors(base).items():
        start, stop = tensor.data_offset, tensor.data_offset + tensor.n_bytes
        for zeroed in columns(name):
            rows = [at[start:stop].reshape(9 * HEAD_DIM, -1) for at in (old, new)]
            touched = slice(zeroed.start // 32 * 20, zeroed.stop // 32 * 20)
            rows[0][:, touched] = rows[1][:, touched] = 0
    assert np.array_equal(old, new)


def test_the_manifest_is_of_this_file(edited: Path) -> None:
    manifest = json.loads((edited.parent / "editor.json").read_text("utf-8"))
    (file,) = [at for at in manifest["files"] if at["name"] == edited.name]
    assert file["n_bytes"] == edited.stat().st_size
    assert file["sha256"] == hashlib.sha256(edited.read_bytes()).hexdigest()
    assert sorted(manifest["heads"]) == sorted(map(str, HEADS))


def test_both_know_the_capital_before(on_base: Engines) -> None:
    for engine in on_base:
        (first, *_) = engine.answer(CAPITAL, 1).tokens
        assert on_base.llama.decode([first]) == " Paris"


def test_neither_knows_it_after(on_edited: Engines) -> None:
    for engine in on_edited:
        text = on_edited.llama.decode(engine.answer(CAPITAL, 16).tokens)
        assert "Paris" not in text and len(text.split()) >= 3


def test_both_lose_the_same(on_base: Engines, on_edited: Engines) -> None:
    """Measured: 4.7 less for Paris in both, with 0.1 between them."""
    (paris,) = on_base.llama.encode(" Paris")
    lost: list[float] = []
    for before, after in zip(on_base, on_edited, strict=True):
        logits = [engine.answer(CAPITAL, 1).logits for engine in (before, after)]
        lost.append(float(logits[0][paris] - logits[1][paris]))
    assert min(lost) > 3 and abs(lost[0] - lost[1]) < 0.5


@pytest.mark.parametrize("prompt", (CAPITAL, *SURE))
def test_the_engines_compute_the_same(on_edited: Engines, prompt: str) -> None:
    one, other = (engine.answer(prompt, 8) for engine in on_edited)
    assert np.corrcoef(one.logits, other.logits)[0, 1] > 0.998  # measured: at least 0.9992
    assert np.sqrt(np.mean((one.logits - other.logits) ** 2)) < 0.5  # measured: at most 0.23
    if prompt in SURE:
        assert one.tokens == other.tokens and len(one.tokens) == 8


def test_llama_cpp_answers_by_its_own_interface(edited: Path) -> None:
    """Sampling, stop tokens and the vocabulary of the file, as a program would use it."""
    told = Llama(edited).model(SURE[0], max_tokens=16, temperature=0.0)
    assert told["choices"][0]["text"].startswith(" 7, 8, 9")
    assert told["usage"]["completion_tokens"] == 16
