"""Checkpoints of a few kilobytes that are written by hand: nothing loads them, all is bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from editor import baking, verification
from editor.baking import Baked
from editor.ggml_types import BLOCKS
from editor.progress import Silent
from editor.records import Head, Undone, Verified
from editor.session import Options
from gguf_files import Tensor, write_gguf

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
HEADS = (Head(0, 1), Head(1, 2))
ONE, TWO = "model-1-of-2.safetensors", "model-2-of-2.safetensors"
PROJECTION = "model.layers.{}.self_attn.o_proj.weight"
QUIET = Silent()


def tensors_of(seed: int = 0) -> dict[str, Any]:
    """Weights of 2 layers of 4 heads of 4 elements, none of them zero."""
    rng = np.random.default_rng(seed)
    shapes = {"model.embed_tokens.weight": (7, 16), "model.norm.weight": (16,)}
    shapes |= {PROJECTION.format(n): (16, 16) for n in (0, 1)}
    return {name: rng.uniform(1, 2, shape).astype(np.float32) for name, shape in shapes.items()}


def make_base(folder: Path, *, sharded: bool = True) -> Path:
    """A model with all that may lie in a folder: card, tokenizer, folders, a report of others."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# The base\n")
    (folder / "report.html").write_text("<p>of another program</p>")
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}")
    tensors = tensors_of()
    if not sharded:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    files = {name: TWO if "layers.1" in name else ONE for name in tensors}
    for file in (ONE, TWO):
        held = {name: tensors[name] for name in tensors if files[name] == file}
        save_file(held, folder / file, metadata={"format": "pt"})
    index = json.dumps({"metadata": {}, "weight_map": files})
    (folder / "model.safetensors.index.json").write_text(index)
    return folder


GGUF_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}


def make_gguf(path: Path, kind: str = "Q4_K") -> Path:
    """A llama of 2 layers of 4 heads of 64 elements, with random bytes and finite scales."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    _, block, n_bytes = BLOCKS[kind]

    def rows() -> bytes:
        blocks = rng.integers(1, 127, (256 * 256 // block, n_bytes), np.uint8)
        blocks[:, :4] = np.full(2, 0.5, np.float16).view(np.uint8)
        return blocks.tobytes()

    tensors = {
        "token_embd.weight": Tensor("F16", (256, 7), rng.integers(1, 99, 3584, np.uint8).tobytes()),
        **{f"blk.{n}.attn_output.weight": Tensor(kind, (256, 256), rows()) for n in (0, 1)},
    }
    return write_gguf(path, GGUF_METADATA, tensors)


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def bake(base: Path, output: Path, heads: tuple[Head, ...] = HEADS, **options: Any) -> Baked:
    return baking.bake(str(base), heads, output, Options(**options), QUIET)


def verify(output: Path, base: Path | None = None) -> Verified:
    return verification.verify(output, None if base is None else str(base), Options(), QUIET)


def undo(output: Path, folder: Path, patch: Path | None = None) -> Undone:
    return verification.undo(output, folder, patch, QUIET)


def flip(path: Path, at: int = -1) -> None:
    """Change one bit."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def change_json(path: Path, change: Any) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
