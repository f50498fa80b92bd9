"""What baking costs: against `cp`, and against loading, zeroing and saving the model.

    .venv/bin/python benchmarks/baking.py --quick     2 GB, under a minute
    .venv/bin/python benchmarks/baking.py             16 GB: needs 50 GB of disk and 20 GB of memory
    .venv/bin/python benchmarks/baking.py --json      one object with all figures

A checkpoint of Llama-3.1-8B's shape in 4 shards is filled with random bfloat16, five heads are
zeroed with `editor bake`, and the same is timed with `cp -r`, with `cp` of the touched shards
against `--link`, and with transformers.  The programs run one after the other, each alone; every
time is the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCABULARY = 4096, 32, 8, 128, 14336, 128256
SHARDS = 4
SPREAD = (0.05, 0.3, 0.5, 0.7, 0.95)
"""Where the five heads lie, as shares of the depth: they touch every shard."""


class Cost(NamedTuple):
    """What a program took."""

    seconds: float
    peak_mib: float


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="4 layers instead of 32")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-reference", action="store_true", help="leave transformers out")
    parser.add_argument(
        "--folder", type=Path, help="where the files go  [default: a temporary one]"
    )
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        n_layers = 4 if given.quick else 32
        figures = measure(Path(folder), n_layers, given.repeats, reference=not given.no_reference)
    if given.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:<44} {value if isinstance(value, str) else round(value, 3)}")


def measure(
    folder: Path, n_layers: int, repeats: int, *, reference: bool
) -> dict[str, float | str]:
    """All figures, by name; times in seconds, sizes in MiB."""
    base, out = folder / "base", folder / "out"
    # In its own process: a child begins with the peak memory of its parent.
    subprocess.run([sys.executable, __file__, "write", str(base), str(n_layers)], check=True)
    shard_of = shards_of_projections(base, n_layers)
    size = sum(file.stat().st_size for file in base.iterdir())
    spread = [f"L{int(share * n_layers)}H{h}" for h, share in enumerate(SPREAD, 3)]
    one_shard = [f"L{n_layers // 2}H{h}" for h in (1, 5, 9, 13, 21)]
    every = [f"L{layer}H{h}" for layer in range(n_layers) for h in range(HEADS)]
    touched = {shard_of[n_layers // 2]}
    figures: dict[str, float | str] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "checkpoint GiB": size / (1 << 30),
        "touched shards with --link": float(len(touched)),
    }

    def best(run: Callable[[], Cost]) -> Cost:
        costs: list[Cost] = []
        for _ in range(repeats):
            clear(folder)
            costs.append(run())
        return min(costs)

    def bake(heads: list[str], *flags: str) -> Cost:
        command = ["bake", "-m", str(base), "--heads", ",".join(heads), "-o", str(out), *flags]
        return timed([sys.executable, "-m", "editor", *command, "-q"])

    copied = best(lambda: timed(["cp", "-r", str(base), str(out)]))
    few = best(lambda: copy_files(base, folder / "out-touched", touched, to_disk=False))
    kept = best(lambda: copy_files(base, folder / "out-touched", touched, to_disk=True))
    hashed_one = best(lambda: timed([sys.executable, __file__, "hash", str(base / min(touched))]))
    baked = best(lambda: bake(spread))
    linked = best(lambda: bake(one_shard, "--link"))
    all_heads = best(lambda: bake(every))
    figures |= {
        "cp -r, s": copied.seconds,
        "cp of the touched shard, s": few.seconds,
        "bake, 5 heads in all shards, s": baked.seconds,
        "bake / cp -r": baked.seconds / copied.seconds,
        "bake --link, 5 heads in one shard, s": linked.seconds,
        "cp of the touched shard and sync, s": kept.seconds,
        "sha256 of the touched shard (hashlib), s": hashed_one.seconds,
        "bake --link / cp of the touched shard": linked.seconds / few.seconds,
        "bake --link / cp and sync": linked.seconds / kept.seconds,
        "bake --link / sha256 of the shard": linked.seconds / hashed_one.seconds,
        f"bake, all {len(every)} heads, s": all_heads.seconds,
        "all heads / 5 heads, time": all_heads.seconds / baked.seconds,
        "bake, peak MiB": baked.peak_mib,
        "bake, all heads, peak MiB": all_heads.peak_mib,
    }
    clear(folder)
    bake(spread)
    check = [sys.executable, "-m", "editor", "verify", str(out), "-q"]
    shards = sorted(map(str, out.glob("*.safetensors")))
    hashed = [timed([sys.executable, __file__, "hash", shard]).seconds for shard in shards]
    alone, against = timed(check), timed([*check, "--base", str(base)])
    figures |= {
        "sha256 of the output (hashlib), s": sum(hashed),
        "verify without the base, s": alone.seconds,
        "verify --base, s": against.seconds,
        "verify / sha256 of the output": alone.seconds / sum(hashed),
        "verify --base / sha256 of both": against.seconds / sum(hashed) / 2,
        "verify --base, peak MiB": against.peak_mib,
    }
    if reference:
        clear(folder)
        saved = timed([sys.executable, __file__, "reference", str(base), str(out), *spread])
        figures |= {
            "load, zero, save_pretrained, s": saved.seconds,
            "load, zero, save_pretrained, peak MiB": saved.peak_mib,
            "transformers / bake, time": saved.seconds / baked.seconds,
            "transformers / bake, memory": saved.peak_mib / baked.peak_mib,
        }
    return figures


def clear(folder: Path) -> None:
    """Remove what the last program wrote, and let the disk come to rest."""
    for path in folder.glob("out*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()


def timed(command: Sequence[str]) -> Cost:
    """Run a program in its own process."""
    before = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - before
    if status:
        raise SystemExit(
            f"{' '.join(command)[:200]} ended with {os.waitstatus_to_exitcode(status)}"
        )
    process.returncode = 0
    return Cost(seconds, usage.ru_maxrss / 1024)


def copy_files(base: Path, out: Path, names: set[str], *, to_disk: bool) -> Cost:
    out.mkdir()
    copy = shlex.join(["cp", *(str(base / name) for name in sorted(names)), str(out)])
    flush = f" && sync {shlex.quote(str(out))}/*" if to_disk else ""
    return timed(["sh", "-c", copy + flush])


def shards_of_projections(folder: Path, n_layers: int) -> list[str]:
    """The shard of each layer's output projection."""
    index = json.loads((folder / "model.safetensors.index.json").read_text("utf-8"))
    names = (f"model.layers.{layer}.self_attn.o_proj.weight" for layer in range(n_layers))
    return [index["weight_map"][name] for name in names]


def write_model(folder: Path, n_layers: int) -> None:
    """Write the checkpoint."""
    folder.mkdir()
    tensors = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(n_layers):
        at = f"model.layers.{layer}"
        tensors |= {
            f"{at}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{at}.mlp.gate_proj.weight": (MLP, HIDDEN),
            f"{at}.mlp.up_proj.weight": (MLP, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, MLP),
            f"{at}.input_layernorm.weight": (HIDDEN, 1),
            f"{at}.post_attention_layernorm.weight": (HIDDEN, 1),
        }
    tensors |= {"model.norm.weight": (HIDDEN, 1), "lm_head.weight": (VOCABULARY, HIDDEN)}
    total = sum(2 * rows * columns for rows, columns in tensors.values())
    shards: list[dict[str, tuple[int, int]]] = [{}]
    filled = 0
    for name, (rows, columns) in tensors.items():
        size = 2 * rows * columns
        if filled + size > total / SHARDS * 1.01 and shards[-1] and len(shards) < SHARDS:
            shards.append({})
            filled = 0
        shards[-1][name] = (rows, columns)
        filled += size
    names = [f"model-{n:05}-of-{SHARDS:05}.safetensors" for n in range(1, SHARDS + 1)]
    noise = _noise()
    weight_map: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, noise)
        weight_map |= dict.fromkeys(shard, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    )
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": HIDDEN,
                "intermediate_size": MLP,
                "num_hidden_layers": n_layers,
                "num_attention_heads": HEADS,
                "num_key_value_heads": KV_HEADS,
                "vocab_size": VOCABULARY,
                "tie_word_embeddings": False,
                "dtype": "bfloat16",
            }
        )
    )
    os.sync()


def hash_file(stream: BinaryIO) -> None:
    sha = hashlib.sha256()
    while piece := stream.read(1 << 20):
        sha.update(piece)


def _noise() -> memoryview:
    """64 MiB of finite bfloat16 numbers around zero."""
    import numpy as np

    rng = np.random.default_rng(0)
    numbers = rng.standard_normal(32 << 20, np.float32).view(np.uint32) >> 16
    return memoryview(numbers.astype(np.uint16).tobytes())


def _write_shard(path: Path, shard: dict[str, tuple[int, int]], noise: memoryview) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (rows, columns) in shard.items():
        size = 2 * rows * columns
        shape = [rows] if columns == 1 else [rows, columns]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while end > 0:
            end -= file.write(noise[: min(end, len(noise))])


def reference(base: str, out: str, *heads: str) -> None:
    """What people do without this tool."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    with torch.no_grad():
        for head in heads:
            layer, number = map(int, head[1:].split("H"))
            columns = slice(number * HEAD_DIM, (number + 1) * HEAD_DIM)
            model.model.layers[layer].self_attn.o_proj.weight[:, columns] = 0
    model.save_pretrained(out)


if __name__ == "__main__":
    if sys.argv[1:2] == ["reference"]:
        reference(*sys.argv[2:])
    elif sys.argv[1:2] == ["hash"]:
        with open(sys.argv[2], "rb") as stream:
            hash_file(stream)
    elif sys.argv[1:2] == ["write"]:
        write_model(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
