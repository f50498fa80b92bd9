"""Small sound models of each format, and what can be wrong with one: data for test_hostile.

A fault is a name, the base that it spoils, and a function that spoils it in place.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf_files as gg
from editor.safetensors_header import DTYPE_BITS
from raw_safetensors import write_raw

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
LAST = {"single": SINGLE, "sharded": SHARDS[1], "gptq": SINGLE, "nf4": SINGLE}
"""The file whose header is spoiled."""
TARGET = "model.layers.1.self_attn.o_proj.weight"
STEM = "model.layers.1.self_attn.o_proj"
ESCAPE = "\x1b[31mred\x1b]0;title\x07\r\n\x9b2J\u202e"
"""What a terminal would act on."""
HUGE = 1 << 70
HIDDEN, N_HEADS, N_LAYERS = 32, 4, 2

Header = dict[str, Any]
Spoil = Callable[[Path], None]


class Fault(NamedTuple):
    """One thing that is wrong."""

    name: str
    base: str
    spoil: Spoil


# ---- sound bases --------------------------------------------------------------------------------


def config(**other: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        **other,
    }


QUANTIZED = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}


def noise(n: int) -> bytes:
    # No byte that would make a float of 16 or 32 bits infinite or not a number.
    return bytes(1 + (7 * at) % 100 for at in range(n))


def plain(layer: int) -> dict[str, tuple[str, list[int], bytes]]:
    stem = f"model.layers.{layer}"
    return {
        f"{stem}.self_attn.o_proj.weight": ("F32", [HIDDEN, HIDDEN], noise(4 * HIDDEN**2)),
        f"{stem}.mlp.down_proj.weight": ("F32", [HIDDEN, HIDDEN], noise(4 * HIDDEN**2)),
    }


def gptq(layer: int) -> dict[str, tuple[str, list[int], bytes]]:
    stem = f"model.layers.{layer}.self_attn.o_proj"
    order = struct.pack(f"<{HIDDEN}i", *(at // 16 for at in range(HIDDEN)))
    return {
        f"{stem}.qweight": ("I32", [HIDDEN // 8, HIDDEN], noise(HIDDEN**2 // 2)),
        f"{stem}.qzeros": ("I32", [2, HIDDEN // 8], b"\x77" * HIDDEN),
        f"{stem}.scales": ("F16", [2, HIDDEN], noise(4 * HIDDEN)),
        f"{stem}.g_idx": ("I32", [HIDDEN], order),
    }


def nf4(layer: int) -> dict[str, tuple[str, list[int], bytes]]:
    name = f"model.layers.{layer}.self_attn.o_proj.weight"
    state = json.dumps({"quant_type": "nf4", "shape": [HIDDEN, HIDDEN], "blocksize": 64}).encode()
    table = struct.pack("<16f", *(at - 7 for at in range(16)))
    return {
        name: ("U8", [HIDDEN**2 // 2, 1], noise(HIDDEN**2 // 2)),
        f"{name}.absmax": ("F32", [16], noise(64)),
        f"{name}.quant_map": ("F32", [16], table),
        f"{name}.quant_state.bitsandbytes__nf4": ("U8", [len(state)], state),
    }


def gguf_metadata() -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": N_LAYERS,
        "llama.embedding_length": HIDDEN,
        "llama.attention.head_count": N_HEADS,
        "llama.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": ["a", "b", "c"],
    }


def gguf_tensors() -> dict[str, gg.Tensor]:
    found = {"token_embd.weight": gg.Tensor("F32", (HIDDEN, 4))}
    for layer in range(N_LAYERS):
        shape = (HIDDEN, HIDDEN)
        data = noise(gg.n_bytes("Q8_0", shape))
        found[f"blk.{layer}.attn_output.weight"] = gg.Tensor("Q8_0", shape, data)
    return found


def make_base(kind: str, folder: Path) -> Path:
    """Write a sound model; returns what `-m` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "gguf":
        return gg.write_gguf(folder / "tiny.gguf", gguf_metadata(), gguf_tensors())
    quantized = {"quantization_config": QUANTIZED[kind]} if kind in QUANTIZED else {}
    (folder / "config.json").write_text(json.dumps(config(**quantized)))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "README.md").write_text("# tiny\n")
    make = {"gptq": gptq, "nf4": nf4}.get(kind, plain)
    if kind != "sharded":
        tensors = {name: one for at in range(N_LAYERS) for name, one in make(at).items()}
        write_raw(folder / SINGLE, tensors, format="pt")
        return folder
    for layer, name in enumerate(SHARDS):
        write_raw(folder / name, make(layer), format="pt")
    write_index(folder, weight_map())
    return folder


def weight_map() -> dict[str, Any]:
    return {name: file for layer, file in enumerate(SHARDS) for name in plain(layer)}


def write_index(folder: Path, names: Any, **other: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names, **other}))


# ---- the header of a safetensors file -----------------------------------------------------------


class Parts(NamedTuple):
    """A safetensors file taken apart."""

    header: Header
    text: bytes
    data: bytes
    target: str
    """The tensor that is spoiled: the projection of the last layer."""

    @property
    def entry(self) -> dict[str, Any]:
        return self.header[self.target]

    def with_entry(self, **fields: Any) -> bytes:
        header = {**self.header, self.target: {**self.entry, **fields}}
        return self.whole(json.dumps(header))

    def whole(
        self, text: str | bytes, data: bytes | None = None, length: int | None = None
    ) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        size = len(raw) if length is None else length
        return size.to_bytes(8, "little") + raw + (self.data if data is None else data)


def take_apart(path: Path) -> Parts:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    target = next(
        n for n in header if n.startswith(STEM) and n.endswith(("proj.weight", "qweight"))
    )
    return Parts(header, raw[8 : 8 + size], raw[8 + size :], target)


def _claims(length: int) -> Callable[[Parts], bytes]:
    return lambda p: p.whole(p.text, length=length)


def _cut(fraction: Callable[[Parts], int]) -> Callable[[Parts], bytes]:
    return lambda p: p.whole(p.text)[: fraction(p)]


def _entry(**fields: Any) -> Callable[[Parts], bytes]:
    return lambda p: p.with_entry(**fields)


def _text(change: Callable[[bytes], bytes]) -> Callable[[Parts], bytes]:
    return lambda p: p.whole(change(p.text))


def _add(name: str, value: Any) -> Callable[[Parts], bytes]:
    return lambda p: p.whole(json.dumps({**p.header, name: value}))


def _offsets(change: Callable[[int, int], Any]) -> Callable[[Parts], bytes]:
    return lambda p: p.with_entry(data_offsets=change(*p.entry["data_offsets"]))


def _without(field: str) -> Callable[[Parts], bytes]:
    def spoiled(p: Parts) -> bytes:
        entry = {key: value for key, value in p.entry.items() if key != field}
        return p.whole(json.dumps({**p.header, p.target: entry}))

    return spoiled


HEADER: dict[str, Callable[[Parts], bytes]] = {
    **{f"length-{n}": _claims(n) for n in (0, 1, 2**31, 2**32, 2**63, 2**64 - 1, 100_000_001)},
    "length-one-less": lambda p: p.whole(p.text, length=len(p.text) - 1),
    "length-one-more": lambda p: p.whole(p.text, length=len(p.text) + 1),
    "length-to-the-end": lambda p: p.whole(p.text, length=len(p.text) + len(p.data)),
    "length-past-the-end": lambda p: p.whole(p.text, length=len(p.text) + len(p.data) + 1),
    **{f"cut-to-{n}": _cut(lambda _, n=n: n) for n in (0, 1, 7, 8, 9)},
    "cut-in-header": _cut(lambda p: 8 + len(p.text) // 2),
    "cut-after-header": _cut(lambda p: 8 + len(p.text)),
    "cut-in-data": _cut(lambda p: 8 + len(p.text) + len(p.data) // 2),
    "cut-last-byte": _cut(lambda p: 8 + len(p.text) + len(p.data) - 1),
    "padded-byte": lambda p: p.whole(p.text, p.data + b"\0"),
    "padded-page": lambda p: p.whole(p.text, p.data + bytes(4096)),
    "padded-before": lambda p: p.whole(p.text, bytes(8) + p.data),
    "doubled": lambda p: p.whole(p.text) * 2,
    "lfs-pointer": lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    "html": lambda _: b"<!DOCTYPE html><html>404 not found</html>" * 40,
    "pickle": lambda _: b"PK\x03\x04" + bytes(3000),
    "gguf-inside": lambda _: gg.gguf_bytes(gguf_metadata(), gguf_tensors()),
    "all-zeros": lambda p: bytes(len(p.data)),
    "no-utf8": _text(lambda t: t.replace(b'"pt"', b'"\xff"')),
    "utf8-mark": _text(lambda t: b"\xef\xbb\xbf" + t),
    "utf16": lambda p: p.whole(p.text.decode().encode("utf-16")),
    "leading-space": _text(lambda t: b" " + t),
    "trailing-comma": _text(lambda t: t[:-1] + b",}"),
    "trailing-text": _text(lambda t: t + b"{}"),
    "trailing-nul": _text(lambda t: t + b"\0"),
    "unclosed": _text(lambda t: t[:-1] + b" "),
    "comment": _text(lambda t: b"{/* */" + t[1:]),
    "single-quotes": _text(lambda t: t.replace(b'"', b"'")),
    "nul-inside": _text(lambda t: t.replace(b": ", b":\0", 1)),
    **{
        f"header-is-{what[:6]}": lambda p, what=what: p.whole(what)
        for what in ("[]", "null", "1e999", '"text"', "true", "NaN", "")
    },
    "empty-object": lambda p: p.whole("{}"),
    "deep-arrays": lambda p: p.whole('{"a":' + "[" * 100_000 + "]" * 100_000 + "}"),
    "deep-objects": lambda p: p.whole('{"a":' * 50_000 + "1" + "}" * 50_000),
    "long-number": lambda p: p.whole(p.text[:-1] + b',"a":' + b"9" * 5000 + b"}"),
    "tensor-twice": lambda p: p.whole(
        p.text[:-1] + f', "{p.target}": {json.dumps(p.entry)}}}'.encode()
    ),
    "tensor-twice-escaped": lambda p: p.whole(
        p.text[:-1] + f', "\\u{ord(p.target[0]):04x}{p.target[1:]}": 1}}'.encode()
    ),
    "field-twice": _text(lambda t: t.replace(b'"dtype": ', b'"dtype": "F16", "dtype": ', 1)),
    "metadata-twice": _text(lambda t: b'{"__metadata__": {}, ' + t[1:]),
    "metadata-key-twice": _text(lambda t: t.replace(b'{"format"', b'{"format": "a", "format"')),
    "metadata-null": _add("__metadata__", None),
    "metadata-list": _add("__metadata__", ["a"]),
    "metadata-number": _add("__metadata__", {"a": 1}),
    "metadata-nested": _add("__metadata__", {"a": {"b": "c"}}),
    "metadata-escape": _add("__metadata__", {ESCAPE: 1}),
    "entry-null": _add("x", None),
    "entry-list": _add("x", ["F32", [1], [0, 4]]),
    "entry-text": _add("x", ESCAPE),
    "entry-unknown-name": _add(ESCAPE, {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "entry-name-surrogate": _add("\ud800", {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}),
    "entry-extra-field": _entry(strides=[1]),
    "entry-escape-field": _entry(**{ESCAPE: 1}),
    **{f"no-{field}": _without(field) for field in ("dtype", "shape", "data_offsets")},
    **{
        f"dtype-{shown}": _entry(dtype=dtype)
        for shown, dtype in {
            **{"null": None, "number": 32, "list": ["F32"], "empty": "", "lower": "f32"},
            **{"unknown": "Q4", "long": "F" * 5000, "escape": ESCAPE, "wide": "F64"},
            **{"narrow": "F8_E4M3", "nibble": "F4", "true": True},
        }.items()
    },
    **{
        f"shape-{shown}": _entry(shape=shape)
        for shown, shape in {
            **{"null": None, "text": "32", "object": {}, "nested": [[32, 32]], "empty": []},
            **{"negative": [-32, -32], "float": [32.0, 32.0], "true": [True, 1024]},
            **{"small": [16, 16], "large": [64, 64], "huge": [HUGE, 1], "zero": [0, 32]},
            **{"overflow": [1 << 32, 1 << 32], "wraps": [1 << 61, 1 << 61, 16]},
            **{"rank-17": [1] * 17, "rank-100000": [1] * 100_000, "infinite": [float("inf"), 1]},
        }.items()
    },
    **{
        f"offsets-{shown}": _offsets(change)
        for shown, change in {
            "null": lambda a, b: None,
            "one": lambda a, b: [a],
            "three": lambda a, b: [a, b, b],
            "object": lambda a, b: {"start": a, "stop": b},
            "reversed": lambda a, b: [b, a],
            "negative": lambda a, b: [a - b, 0],
            "float": lambda a, b: [float(a), float(b)],
            "text": lambda a, b: [str(a), str(b)],
            "true": lambda a, b: [True, b],
            "empty": lambda a, b: [a, a],
            "overlap": lambda a, b: [a - 4, b - 4],
            "gap": lambda a, b: [a + 4, b + 4],
            "longer": lambda a, b: [a, b + 4],
            "shorter": lambda a, b: [a, b - 4],
            "past-the-end": lambda a, b: [a + (1 << 40), b + (1 << 40)],
            "overflow-63": lambda a, b: [(1 << 63) - 8, (1 << 63) - 8 + b - a],
            "overflow-64": lambda a, b: [(1 << 64) - 8, (1 << 64) - 8 + b - a],
            "huge": lambda a, b: [HUGE, HUGE + b - a],
        }.items()
    },
    "all-at-one-place": lambda p: p.whole(json.dumps({**p.header, "twin": p.entry})),
}

QUANTIZED_HEADER = (
    *("length-2147483648", "cut-in-header", "cut-in-data", "padded-byte", "tensor-twice"),
    *("dtype-wide", "dtype-unknown", "shape-small", "shape-overflow", "offsets-overlap"),
    *("offsets-gap", "offsets-past-the-end"),
)
"""Those of them that are tried on quantized models, too: the reader is the same."""


def spoil_header(kind: str, change: Callable[[Parts], bytes]) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / LAST[kind]
        path.write_bytes(change(take_apart(path)))

    return spoil


def header_faults() -> Iterator[Fault]:
    for kind in ("single", "sharded"):
        for name, change in HEADER.items():
            yield Fault(f"header-{name}", kind, spoil_header(kind, change))
    for kind in QUANTIZED:
        for name in QUANTIZED_HEADER:
            yield Fault(f"header-{name}", kind, spoil_header(kind, HEADER[name]))


# ---- the index and the files that it names -------------------------------------------------------


def _index(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    return lambda folder: write_index(folder, change(weight_map()))


def _file_of_target(file: Any) -> Spoil:
    return _index(lambda names: {**names, TARGET: file})


def _index_text(text: str | bytes) -> Spoil:
    raw = text.encode() if isinstance(text, str) else text
    return lambda folder: _write(folder / INDEX, raw)


def _write(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)


def _outside(folder: Path) -> None:
    """A shard outside of the folder, sound in itself, that the index leads to."""
    os.replace(folder / SHARDS[1], folder.parent / "x.safetensors")
    _file_of_target("../x.safetensors")(folder)


def _absolute(folder: Path) -> None:
    os.replace(folder / SHARDS[1], folder.parent / "x.safetensors")
    _file_of_target(str(folder.parent / "x.safetensors"))(folder)


def _swap(folder: Path) -> None:
    first, second = ((folder / name).read_bytes() for name in SHARDS)
    (folder / SHARDS[0]).write_bytes(second)
    (folder / SHARDS[1]).write_bytes(first)


def _replace_with(make: Callable[[Path], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / SHARDS[1]).unlink()
        make(folder / SHARDS[1])

    return spoil


def _foreign(folder: Path) -> None:
    """The second shard of another model: its tensors have other names."""
    write_raw(folder / SHARDS[1], {f"other.{n}": t for n, t in plain(1).items()}, format="pt")


SHARDED: dict[str, Spoil] = {
    **{
        f"names-{shown}": _file_of_target(file)
        for shown, file in {
            **{"up-up": "../../x", "up": "../x.safetensors", "dot": "./x.safetensors"},
            **{
                "passwd": "/etc/passwd",
                "absolute": "/tmp/x.safetensors",
                "home": "~/x.safetensors",
            },
            **{
                "drive": "C:\\x.safetensors",
                "stream": "a:b.safetensors",
                "unc": "\\\\a\\x.safetensors",
            },
            **{"inside": "sub/x.safetensors", "url": "https://a/x.safetensors", "empty": ""},
            **{"hidden": ".safetensors", "bin": "pytorch_model.bin", "config": "config.json"},
            **{"newline": "a\nb.safetensors", "escape": f"{ESCAPE}.safetensors"},
            **{"nul": "a\0.safetensors", "surrogate": "\udcff.safetensors", "space": " "},
            **{"long": "a" * 5000 + ".safetensors", "number": 1, "null": None, "list": [SHARDS[1]]},
            **{"missing": "model-00003-of-00002.safetensors", "own-index": INDEX},
        }.items()
    },
    "names-file-outside": _outside,
    "names-absolute-file": _absolute,
    "no-map": lambda folder: _write(folder / INDEX, b'{"metadata": {}}'),
    "map-null": lambda folder: write_index(folder, None),
    "map-empty": lambda folder: write_index(folder, {}),
    "map-list": lambda folder: write_index(folder, [SHARDS[0]]),
    "map-text": lambda folder: write_index(folder, SHARDS[0]),
    "map-of-maps": _index(lambda names: {name: {"file": file} for name, file in names.items()}),
    "tensor-left-out": _index(lambda names: {n: f for n, f in names.items() if n != TARGET}),
    "tensor-in-the-other-file": _file_of_target(SHARDS[0]),
    "tensor-nowhere": _index(lambda names: {**names, "ghost": SHARDS[0]}),
    "tensor-escape": _index(lambda names: {**names, ESCAPE: SHARDS[0]}),
    "all-in-one": _index(lambda names: dict.fromkeys(names, SHARDS[0])),
    "swapped": _swap,
    "foreign-shard": _foreign,
    "not-utf8": _index_text(b"\xff\xfe{}"),
    "not-json": _index_text("{'weight_map': {}}"),
    "empty-file": _index_text(""),
    "array": _index_text("[]"),
    "deep": _index_text('{"weight_map":' + "[" * 200_000),
    "key-twice": _index_text('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}'),
    "map-twice": _index_text('{"weight_map": {}, "weight_map": {}}'),
    "shard-missing": _replace_with(lambda path: None),
    "shard-empty": _replace_with(lambda path: path.touch()),
    "shard-is-a-folder": _replace_with(lambda path: path.mkdir()),
    "shard-is-a-pipe": _replace_with(os.mkfifo),
    "shard-link-outside": _replace_with(lambda path: path.symlink_to("../secret")),
    "shard-link-absolute": _replace_with(lambda path: path.symlink_to("/etc/passwd")),
    "shard-link-loop": _replace_with(lambda path: path.symlink_to(path.name)),
    "shard-link-nowhere": _replace_with(lambda path: path.symlink_to("gone")),
    "shard-link-folder": _replace_with(lambda path: path.symlink_to(".")),
    "shard-link-device": _replace_with(lambda path: path.symlink_to("/dev/zero")),
    "index-is-a-folder": lambda folder: ((folder / INDEX).unlink(), (folder / INDEX).mkdir())[1],
    "index-is-a-pipe": lambda folder: ((folder / INDEX).unlink(), os.mkfifo(folder / INDEX))[1],
    "index-link-nowhere": lambda folder: (
        (folder / INDEX).unlink(),
        (folder / INDEX).symlink_to("gone"),
    )[1],
    "index-link-device": lambda folder: (
        (folder / INDEX).unlink(),
        (folder / INDEX).symlink_to("/dev/zero"),
    )[1],
    "two-sets": lambda folder: write_raw(folder / SINGLE, plain(0), format="pt"),
    "index-missing": lambda folder: (folder / INDEX).unlink(),
}


# ---- config.json ---------------------------------------------------------------------------------


def _config(**fields: Any) -> Spoil:
    return lambda folder: _write(folder / "config.json", json.dumps(config(**fields)).encode())


def _config_text(text: str | bytes) -> Spoil:
    raw = text.encode() if isinstance(text, str) else text
    return lambda folder: _write(folder / "config.json", raw)


def _config_is(make: Callable[[Path], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / "config.json").unlink()
        make(folder / "config.json")

    return spoil


def _numbers(field: str) -> dict[str, Spoil]:
    values = {
        **{"null": None, "zero": 0, "negative": -1, "text": "4", "float": 4.0, "true": True},
        **{"list": [4], "huge": HUGE, "billion": 10**9, "infinite": float("inf")},
        **{"not-a-number": float("nan"), "object": {}},
    }
    return {f"{field}-{shown}": _config(**{field: value}) for shown, value in values.items()}


CONFIG: dict[str, Spoil] = {
    **_numbers("num_hidden_layers"),
    **_numbers("num_attention_heads"),
    **_numbers("hidden_size"),
    **{n: s for n, s in _numbers("num_key_value_heads").items() if not n.endswith("null")},
    **{n: s for n, s in _numbers("head_dim").items() if not n.endswith("null")},
    "heads-that-do-not-divide": _config(num_attention_heads=5),
    "more-heads-than-width": _config(num_attention_heads=64),
    "kv-heads-that-do-not-divide": _config(num_key_value_heads=3),
    "other-hidden-size": _config(hidden_size=64),
    "other-head-dim": _config(head_dim=16),
    "tied-text": _config(tie_word_embeddings="yes"),
    "type-unknown": _config(model_type="unheard-of"),
    "type-escape": _config(model_type=ESCAPE),
    "type-newline": _config(model_type="a\nb"),
    "type-long": _config(model_type="a" * 1_000_000),
    "type-null": _config(model_type=None),
    "type-list": _config(model_type=["llama"]),
    "type-object": _config(model_type={"a": 1}),
    "type-surrogate": _config(model_type="\ud800"),
    "other-type": _config(model_type="gpt2", n_embd=HIDDEN, n_head=4, n_layer=2),
    "quantized-by-nobody": _config(quantization_config={}),
    "quantized-escape": _config(quantization_config={"quant_method": ESCAPE}),
    "quantized-list": _config(quantization_config=[]),
    "quantized-gptq-but-plain": _config(quantization_config={"quant_method": 4}),
    "other-weights": _config(transformers_weights="evil.safetensors"),
    "not-json": _config_text("model_type: llama"),
    "not-utf8": _config_text(b"\xff\xfe"),
    "empty": _config_text(""),
    "array": _config_text("[1]"),
    "number": _config_text("9" * 4000),
    "long-number": _config_text('{"model_type": ' + "9" * 5000 + "}"),
    "deep": _config_text("[" * 500_000),
    "key-twice": _config_text('{"model_type": "llama", "model_type": "gpt2"}'),
    "cut": _config_text('{"model_type": "llama", "hidden'),
    "missing": _config_is(lambda path: None),
    "is-a-folder": _config_is(lambda path: path.mkdir()),
    "is-a-pipe": _config_is(os.mkfifo),
    "link-outside": _config_is(lambda path: path.symlink_to("../secret")),
    "link-loop": _config_is(lambda path: path.symlink_to("config.json")),
    "link-device": _config_is(lambda path: path.symlink_to("/dev/zero")),
    "link-good-but-outside": _config_is(
        lambda path: (
            (path.parent.parent / "c.json").write_text(json.dumps(config())),
            path.symlink_to("../c.json"),
        )
    ),
}


# ---- quantized weights ---------------------------------------------------------------------------


def _tensors(folder: Path) -> dict[str, tuple[str, list[int], bytes]]:
    header, _, data, _ = take_apart(folder / SINGLE)
    found: dict[str, tuple[str, list[int], bytes]] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            a, b = entry["data_offsets"]
            found[name] = (entry["dtype"], entry["shape"], data[a:b])
    return found


def _beside(suffix: str, new: tuple[str, list[int], bytes] | None) -> Spoil:
    """Another tensor, or none, in the place of one of the last layer's."""

    def spoil(folder: Path) -> None:
        tensors = _tensors(folder)
        tensors.pop(STEM + suffix, None)
        if new is not None:
            tensors[STEM + suffix] = new
        write_raw(folder / SINGLE, tensors, format="pt")

    return spoil


def _ints(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def _zeros(dtype: str, *shape: int) -> tuple[str, list[int], bytes]:
    size = 1
    for n in shape:
        size *= n
    return (dtype, list(shape), bytes(size * DTYPE_BITS[dtype] // 8))


def _quantized(kind: str, **fields: Any) -> Spoil:
    return _config(quantization_config={**QUANTIZED[kind], **fields})


def _state(text: str | bytes) -> tuple[str, list[int], bytes]:
    raw = text.encode() if isinstance(text, str) else text
    return ("U8", [len(raw)], raw)


_NF4_STATE = ".weight.quant_state.bitsandbytes__nf4"

GPTQ: dict[str, Spoil] = {
    "zeros-missing": _beside(".qzeros", None),
    "scales-missing": _beside(".scales", None),
    "zeros-float": _beside(".qzeros", _zeros("F32", 2, 4)),
    "zeros-flat": _beside(".qzeros", _zeros("I32", 8)),
    "zeros-narrow": _beside(".qzeros", _zeros("I32", 2, 3)),
    "zeros-no-groups": _beside(".qzeros", _zeros("I32", 0, 4)),
    "zeros-full": _beside(".qzeros", ("I32", [2, 4], b"\xff" * 32)),
    "order-negative": _beside(".g_idx", ("I32", [32], _ints(-1, *([0] * 31)))),
    "order-too-large": _beside(".g_idx", ("I32", [32], _ints(2, *([0] * 31)))),
    "order-largest": _beside(".g_idx", ("I32", [32], _ints((1 << 31) - 1, *([0] * 31)))),
    "order-uneven": _beside(".g_idx", ("I32", [32], _ints(*([0] * 12), *([1] * 20)))),
    "order-short": _beside(".g_idx", _zeros("I32", 16)),
    "order-wide-type": _beside(".g_idx", _zeros("I64", 32)),
    "weight-too": _beside(".weight", _zeros("F16", 32, 32)),
    "weight-flat": _beside(".qweight", _zeros("I32", 128)),
    "weight-float": _beside(".qweight", _zeros("F32", 4, 32)),
    "weight-narrow": _beside(".qweight", _zeros("I32", 3, 32)),
    "of-another-method": _beside(".SCB", _zeros("F32", 32)),
    "other-bits": _quantized("gptq", bits=8),
    "bits-text": _quantized("gptq", bits="4"),
    "bits-huge": _quantized("gptq", bits=HUGE),
    "layout-unknown": _quantized("gptq", checkpoint_format=ESCAPE),
    "layout-contradicts": _quantized("gptq", checkpoint_format="gptq", format="gptq_v2"),
    "marlin": _quantized("gptq", is_marlin_format=True),
    "method-unknown": _quantized("gptq", quant_method="unheard-of"),
}
NF4: dict[str, Spoil] = {
    "state-missing": _beside(_NF4_STATE, None),
    "state-twice": _beside(".weight.quant_state.bitsandbytes__fp4", _state('{"shape": [32, 32]}')),
    "state-empty": _beside(_NF4_STATE, _zeros("U8", 0)),
    "state-large": _beside(_NF4_STATE, _zeros("U8", 70_000)),
    "state-no-json": _beside(_NF4_STATE, _state(b"\xff" * 32)),
    "state-deep": _beside(_NF4_STATE, _state("[" * 60_000)),
    "state-array": _beside(_NF4_STATE, _state("[32, 32]")),
    "state-no-shape": _beside(_NF4_STATE, _state("{}")),
    "state-key-twice": _beside(_NF4_STATE, _state('{"shape": [32, 32], "shape": [32, 32]}')),
    "state-shape-one": _beside(_NF4_STATE, _state('{"shape": [1024]}')),
    "state-shape-negative": _beside(_NF4_STATE, _state('{"shape": [-32, -32]}')),
    "state-shape-huge": _beside(_NF4_STATE, _state(f'{{"shape": [{HUGE}, 1]}}')),
    "state-shape-float": _beside(_NF4_STATE, _state('{"shape": [32.0, 32.0]}')),
    "state-shape-larger": _beside(_NF4_STATE, _state('{"shape": [64, 32]}')),
    "state-shape-true": _beside(_NF4_STATE, _state('{"shape": [true, 1024]}')),
    "state-float": _beside(_NF4_STATE, _zeros("F32", 16)),
    "weight-missing": _beside(".weight", None),
    "weight-cut": _beside(".weight", _zeros("U8", 256, 1)),
    "weight-two-columns": _beside(".weight", _zeros("U8", 256, 2)),
    "weight-wide-type": _beside(".weight", _zeros("I64", 64, 1)),
    "map-without-zero": _beside(".weight.quant_map", ("F32", [16], struct.pack("<16f", *[1] * 16))),
    "map-short": _beside(".weight.quant_map", _zeros("F32", 15)),
    "map-long": _beside(".weight.quant_map", _zeros("F32", 256)),
    "of-another-method": _beside(".qweight", _zeros("I32", 4, 32)),
    "eight-bits": _quantized("nf4", load_in_4bit=False, load_in_8bit=True),
}


# ---- GGUF ----------------------------------------------------------------------------------------


def _gguf(
    values: Callable[[dict[str, Any]], Any] = dict, tensors: Callable[[Any], Any] = dict
) -> Spoil:
    def spoil(path: Path) -> None:
        gg.write_gguf(path, values(gguf_metadata()), tensors(gguf_tensors()))

    return spoil


def _set(key: str, value: Any) -> Spoil:
    return _gguf(lambda metadata: {**metadata, key: value})


def _unset(key: str) -> Spoil:
    return _gguf(lambda metadata: {k: v for k, v in metadata.items() if k != key})


def _bytes_of(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda path: _write(path, change(path.read_bytes()))


def _patch(at: int, raw: bytes) -> Spoil:
    return _bytes_of(lambda old: old[:at] + raw + old[at + len(raw) :])


def _values(*raw: bytes, n_values: int | None = None) -> Spoil:
    """Metadata written by hand before the sound ones; the tensors stay."""

    def spoil(path: Path) -> None:
        metadata, tensors = gguf_metadata(), gguf_tensors()
        sound = gg.gguf_bytes(metadata, tensors)
        listed = [*raw, *(gg.packed(key, what) for key, what in metadata.items())]
        table = sound[len(gg.header([gg.packed(k, w) for k, w in metadata.items()])) :]
        head = gg.header(listed, n_values=n_values, n_tensors=len(tensors))
        path.write_bytes(head + table)

    return spoil


def _table(
    *, shape: Any = (HIDDEN, HIDDEN), kind: int = 8, offset: int = 0, name: Any = "a"
) -> Spoil:
    """One tensor, written by hand."""

    def spoil(path: Path) -> None:
        values = [gg.packed(key, what) for key, what in gguf_metadata().items()]
        head = gg.header(values, [gg.tensor(name, shape, kind, offset)])
        path.write_bytes(head + bytes(-len(head) % 32) + bytes(2048))

    return spoil


def _u64(number: int) -> bytes:
    return struct.pack("<Q", number)


def _output(tensor: gg.Tensor | None, layer: int = 1) -> Spoil:
    name = f"blk.{layer}.attn_output.weight"

    def changed(tensors: dict[str, gg.Tensor]) -> dict[str, gg.Tensor]:
        kept = {n: t for n, t in tensors.items() if n != name}
        return kept if tensor is None else {**kept, name: tensor}

    return _gguf(tensors=changed)


def _nested(depth: int) -> bytes:
    return gg.value("a", gg.ARRAY, gg.array(gg.ARRAY, 1) * depth + gg.array(gg.U8, 0))


GGUF: dict[str, Spoil] = {
    **{f"cut-to-{n}": _bytes_of(lambda old, n=n: old[:n]) for n in (0, 3, 4, 8, 23, 24, 100, 300)},
    "cut-last-byte": _bytes_of(lambda old: old[:-1]),
    "cut-half": _bytes_of(lambda old: old[: len(old) // 2]),
    "padded": _bytes_of(lambda old: old + bytes(64)),
    "doubled": _bytes_of(lambda old: old * 2),
    "lfs-pointer": _bytes_of(lambda _: b"version https://git-lfs.github.com/spec/v1\n"),
    "html": _bytes_of(lambda _: b"<html>" * 100),
    "zeros": _bytes_of(lambda old: bytes(len(old))),
    "other-magic": _patch(0, b"GGML"),
    "escape-magic": _patch(0, b"\x1b[2J"),
    **{f"version-{n}": _patch(4, struct.pack("<I", n)) for n in (0, 1, 4, 2**31, 2**32 - 1)},
    "big-endian": _patch(4, struct.pack(">I", 3)),
    **{f"tensors-{n}": _patch(8, _u64(n)) for n in (0, 2, 4, 10**6, 2**60, 2**64 - 1)},
    **{f"values-{n}": _patch(16, _u64(n)) for n in (0, 6, 8, 10**6, 2**60, 2**64 - 1)},
    "key-long": _values(gg.value("k" * 2000, gg.U8, b"\0")),
    "key-claims-much": _values(_u64(2**60) + b"key"),
    "key-not-utf8": _values(gg.value(b"\xff\xfe", gg.U8, b"\0")),
    "key-twice": _values(gg.value("a", gg.U8, b"\0"), gg.value("a", gg.U8, b"\0")),
    "key-twice-escape": _values(gg.value(ESCAPE, gg.U8, b"\0"), gg.value(ESCAPE, gg.U8, b"\0")),
    "key-architecture-twice": _values(gg.packed("general.architecture", "gpt2")),
    "value-of-type-13": _values(gg.value(ESCAPE, 13, b"\0" * 8)),
    "value-of-type-2e32": _values(gg.value("a", 2**32 - 1, b"\0" * 8)),
    "text-claims-much": _values(gg.value("a", gg.STRING, _u64(2**60))),
    "text-claims-all": _values(gg.value("a", gg.STRING, _u64(2**64 - 1))),
    "array-of-2e60-bytes": _values(gg.value("a", gg.ARRAY, gg.array(gg.U8, 2**60))),
    "array-of-2e61-words": _values(gg.value("a", gg.ARRAY, gg.array(gg.U64, 2**61))),
    "array-of-2e64-words": _values(gg.value("a", gg.ARRAY, gg.array(gg.U64, 2**64 - 1))),
    "array-of-2e60-strings": _values(gg.value("a", gg.ARRAY, gg.array(gg.STRING, 2**60))),
    "array-of-2e61-strings": _values(gg.value("a", gg.ARRAY, gg.array(gg.STRING, 2**61))),
    "array-of-arrays": _values(_nested(1)),
    "array-of-arrays-deep": _values(_nested(10_000)),
    "array-of-unknown": _values(gg.value("a", gg.ARRAY, gg.array(99, 1, b"\0" * 8))),
    "array-string-past-the-end": _values(
        gg.value("a", gg.ARRAY, gg.array(gg.STRING, 2, _u64(2**40)))
    ),
    "heads-array-long": _values(
        gg.value("llama.attention.head_count", gg.ARRAY, gg.array(gg.I32, 5000, bytes(20_000)))
    ),
    "alignment-0": _values(gg.packed("general.alignment", 0)),
    "alignment-3": _values(gg.packed("general.alignment", 3)),
    "alignment-text": _values(gg.packed("general.alignment", "32")),
    "alignment-2e31": _values(gg.packed("general.alignment", 1 << 31)),
    "alignment-other": _values(gg.packed("general.alignment", 64)),
    "split": _values(gg.packed("split.count", 3)),
    "split-text": _values(gg.packed("split.count", "3")),
    "architecture-missing": _unset("general.architecture"),
    "architecture-number": _gguf(lambda m: {**m, "general.architecture": 3}),
    "architecture-unknown": _set("general.architecture", "unheard-of"),
    "architecture-escape": _set("general.architecture", ESCAPE),
    "architecture-long": _set("general.architecture", "a" * 100_000),
    "architecture-mamba": _set("general.architecture", "mamba"),
    "type-adapter": _set("general.type", "adapter"),
    "type-escape": _set("general.type", ESCAPE),
    **{
        f"{key}-{shown}": _set(f"llama.{key}", value)
        for key in ("block_count", "attention.head_count", "embedding_length")
        for shown, value in {"zero": 0, "billion": 10**9, "text": "2", "float": 2.0}.items()
    },
    "blocks-missing": _unset("llama.block_count"),
    "heads-missing": _unset("llama.attention.head_count"),
    "width-missing": _unset("llama.embedding_length"),
    "heads-true": _set("llama.attention.head_count", True),
    "heads-5": _set("llama.attention.head_count", 5),
    "heads-listed-short": _set("llama.attention.head_count", [4]),
    "heads-listed-negative": _set("llama.attention.head_count", [4, -4]),
    "heads-listed-zero": _set("llama.attention.head_count", [0, 0]),
    "kv-heads-text": _set("llama.attention.head_count_kv", ESCAPE),
    "value-length-other": _set("llama.attention.value_length", 16),
    "value-length-zero": _set("llama.attention.value_length", 0),
    "width-other": _set("llama.embedding_length", 64),
    "tensor-outside-heads": _output(gg.Tensor("Q8_0", (64, 16))),
    "tensor-flat": _output(gg.Tensor("Q8_0", (1024,))),
    "tensor-of-rank-3": _output(gg.Tensor("Q8_0", (32, 32, 1))),
    "no-outputs": _gguf(tensors=lambda t: {"token_embd.weight": t["token_embd.weight"]}),
    "no-projection": _table(),
    "name-long": _table(name="n" * 2000),
    "name-not-utf8": _table(name=b"\xff"),
    "name-escape": _table(name=ESCAPE),
    "rank-5": _table(shape=(2, 2, 2, 2, 2)),
    "rank-2e32": _bytes_of(lambda old: old.replace(struct.pack("<I", 2) + _u64(32), b"\xff" * 12)),
    "size-0": _table(shape=(0, 32)),
    "size-2e63": _table(shape=(1 << 63, 1)),
    "sizes-overflow": _table(shape=(1 << 32, 1 << 32)),
    "sizes-wrap": _table(shape=(1 << 62, 4, 4, 4)),
    "size-no-block": _table(shape=(33, 32)),
    "kind-unknown": _table(kind=99),
    "kind-2e32": _table(kind=2**32 - 1),
    "offset-odd": _table(offset=4),
    "offset-past-the-end": _table(offset=1 << 40),
    "offset-2e63": _table(offset=1 << 63),
    "offset-2e64": _table(offset=2**64 - 32),
    "is-a-pipe": lambda path: (path.unlink(), os.mkfifo(path))[1],
    "is-a-folder": lambda path: (path.unlink(), path.mkdir())[1],
    "link-to-device": lambda path: (path.unlink(), path.symlink_to("/dev/zero"))[1],
}


# ---- the folder ----------------------------------------------------------------------------------


def _link(name: str, target: str) -> Spoil:
    def spoil(folder: Path) -> None:
        path = folder / name
        if path.exists():
            path.unlink()
        path.symlink_to(target)

    return spoil


def _deep_folders(folder: Path) -> None:
    # A path as long as the system takes it cannot be made at once.
    here = os.open(folder, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def _named(name: str | bytes) -> Spoil:
    def spoil(folder: Path) -> None:
        path = os.fsencode(folder) + b"/" + (name.encode() if isinstance(name, str) else name)
        with open(path, "wb") as file:
            file.write(b"x")

    return spoil


def _folder_instead(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        if (folder / name).exists():
            (folder / name).unlink()
        (folder / name).mkdir()
        (folder / name / "inside.txt").write_text("x")

    return spoil


FOLDER: dict[str, Spoil] = {
    "link-file-outside": _link("vocab.txt", "../secret"),
    "link-passwd": _link("vocab.txt", "/etc/passwd"),
    "link-folder-outside": _link("extra", "../private"),
    "link-folder-inside": _link("extra", "."),
    "link-up": _link("extra", ".."),
    "link-loop": _link("vocab.txt", "vocab.txt"),
    "link-nowhere": _link("vocab.txt", "gone"),
    "link-device": _link("vocab.txt", "/dev/zero"),
    "link-card-outside": _link("README.md", "../secret"),
    "link-manifest-outside": _link("editor.json", "../secret"),
    "link-report-outside": _link("report.html", "../secret"),
    "link-signature-outside": _link("model.sig", "../secret"),
    "link-weights-outside": lambda folder: (
        os.replace(folder / SINGLE, folder.parent / "w.safetensors"),
        (folder / SINGLE).symlink_to("../w.safetensors"),
    )[1],
    "pipe": lambda folder: os.mkfifo(folder / "tokenizer.model"),
    "pipe-below": lambda folder: ((folder / "sub").mkdir(), os.mkfifo(folder / "sub" / "p"))[1],
    "link-below": lambda folder: (
        (folder / "sub").mkdir(),
        (folder / "sub" / "p").symlink_to("../../secret"),
    )[1],
    "deep-folders": _deep_folders,
    "name-newline": _named("a\nb.txt"),
    "name-escape": _named(ESCAPE + ".json"),
    "name-not-utf8": _named(b"\xff\xfe.txt"),
    "name-turns": _named("\u202etxt.exe"),
    "folder-newline": _folder_instead("a\nb"),
    "card-is-a-folder": _folder_instead("README.md"),
    "manifest-is-a-folder": _folder_instead("editor.json"),
    "report-is-a-folder": _folder_instead("report.html"),
    "weights-missing": lambda folder: (folder / SINGLE).unlink(),
    "weights-are-a-folder": _folder_instead(SINGLE),
    "weights-are-a-pipe": lambda folder: ((folder / SINGLE).unlink(), os.mkfifo(folder / SINGLE))[
        1
    ],
    "weights-of-another-name": lambda folder: os.replace(
        folder / SINGLE, folder / f"{ESCAPE}.safetensors"
    ),
    "pickled-only": lambda folder: os.replace(folder / SINGLE, folder / f"{ESCAPE}.bin"),
    "manifest-not-ours-anymore": lambda folder: _write(
        folder / "editor.json", b'{"tool": "capability-editor 9", "schema_version": 99}'
    ),
    "manifest-deep": lambda folder: _write(
        folder / "editor.json",
        b'{"tool": "capability-editor 9", "schema_version": 2, "base": 1}',
    ),
}


def all_faults() -> list[Fault]:
    """Every fault of a model, each with a name of its own."""
    found = [*header_faults()]
    for kind, table in (
        ("sharded", SHARDED),
        ("single", CONFIG),
        ("gptq", GPTQ),
        ("nf4", NF4),
        ("gguf", GGUF),
        ("single", FOLDER),
    ):
        part = {id(SHARDED): "index", id(CONFIG): "config", id(FOLDER): "folder"}.get(id(table), "")
        found += [Fault(f"{part}-{n}" if part else n, kind, spoil) for n, spoil in table.items()]
    return found
