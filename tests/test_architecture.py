"""The spec says where the heads are, and refuses a config that does not fit the tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from editor.architecture import check_heads, read_spec
from editor.errors import ModelError
from editor.families import FAMILIES
from editor.records import Head, ModelSpec

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 8,
    "tie_word_embeddings": False,
}
O_PROJ = "model.layers.{}.self_attn.o_proj.weight"


def write_model(folder: Path, tensors: dict[str, Any] | None = None, **config: Any) -> Path:
    """A llama of two layers with four heads of three; a config value of `...` is left out."""
    folder.mkdir(exist_ok=True)
    fields = {**CONFIG, **config}
    text = json.dumps({k: v for k, v in fields.items() if v is not ...})
    (folder / "config.json").write_text(text)
    if tensors is None:
        tensors = {O_PROJ.format(n): np.ones((8, 12), np.float16) for n in (0, 1)}
        tensors["lm_head.weight"] = np.ones((5, 8), np.float16)
    save_file(tensors, folder / "model.safetensors")
    return folder


def spec_of(folder: Path) -> ModelSpec:
    return read_spec(folder, source="test/model", revision="abc")


def test_reads_what_the_files_say(tmp_path: Path) -> None:
    spec = spec_of(write_model(tmp_path))
    assert (spec.source, spec.revision, spec.model_type) == ("test/model", "abc", "llama")
    assert (spec.dtype, spec.hidden_size, spec.n_kv_heads, spec.tied) == ("F16", 8, 2, False)
    assert [at.layer for at in spec.layers] == [0, 1] and spec.not_covered == ()
    at = spec.layers[1]
    assert (at.n_heads, at.head_dim, at.axis, at.file) == (4, 3, 1, "model.safetensors")
    assert at.tensor == at.module + ".weight" == O_PROJ.format(1)
    assert spec.files[0].n_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_layers_without_attention_are_listed(tmp_path: Path) -> None:
    tensors = {O_PROJ.format(n): np.ones((8, 12), np.float32) for n in (1, 10, 12)}
    tensors["model.vision.layers.0.self_attn.o_proj.weight"] = np.ones((8, 12), np.float32)
    tensors["model.layers.02.self_attn.o_proj.weight"] = np.ones((8, 12), np.float32)
    kinds = ["conv", "full_attention"]
    spec = spec_of(write_model(tmp_path, tensors, num_hidden_layers=11, layer_types=kinds))
    assert [at.layer for at in spec.layers] == [1, 10]
    assert len(spec.not_covered) == 10
    assert spec.not_covered[0].startswith("layer 0 (layer_types: 'conv')")
    assert "layers 12: in the files" in spec.not_covered[-1]
    assert spec.tied  # there is no lm_head


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_with_and_without_prefix(tmp_path: Path, prefix: str) -> None:
    tensors = {
        f"{prefix}h.{n}.{name}.weight": np.ones((8, 8), np.float32)
        for n in (0, 1)
        for name in ("attn.c_proj", "crossattention.c_proj")
    }
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    spec = spec_of(tmp_path)
    assert [at.tensor for at in spec.layers] == [
        f"{prefix}h.{n}.attn.c_proj.weight" for n in (0, 1)
    ]
    assert [at.module for at in spec.layers] == [f"transformer.h.{n}.attn.c_proj" for n in (0, 1)]
    assert spec.layers[0].axis == 0 and spec.n_kv_heads == 4 and spec.tied


def test_one_layer_under_two_names_is_refused(tmp_path: Path) -> None:
    names = ("h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.weight")
    tensors = {name: np.ones((8, 8), np.float32) for name in names}
    write_model(tmp_path, tensors, model_type="gpt2")
    with pytest.raises(ModelError, match="two output projections"):
        spec_of(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_type", ..., "model_type should be a string, found nothing"),
        ("model_type", ["llama"], "model_type should be a string"),
        ("model_type", "rwkv", "'rwkv' is not supported yet"),
        ("model_type", "x" * 10**6, "is not supported yet"),
        ("num_hidden_layers", 10**9, "num_hidden_layers should be .* found 1000000000"),
        ("num_hidden_layers", 10**400, "found a number of 1329 bits"),
        ("num_hidden_layers", -1, "num_hidden_layers"),
        ("num_hidden_layers", 2.0, "num_hidden_layers"),
        ("num_hidden_layers", True, "num_hidden_layers"),
        ("num_hidden_layers", ..., "num_hidden_layers .* found nothing"),
        ("num_hidden_layers", None, "num_hidden_layers .* found None"),
        ("num_attention_heads", [4, 4], "num_attention_heads .* a JSON array"),
        ("num_attention_heads", "4", "num_attention_heads"),
        ("num_attention_heads", 5, "num_attention_heads should be a divisor of 12"),
        ("num_attention_heads", 24, "num_attention_heads should be a divisor of 12"),
        ("num_key_value_heads", 3, "num_key_value_heads should be a divisor of the 4 heads"),
        ("num_key_value_heads", 0, "num_key_value_heads"),
        ("hidden_size", 16, r"should have the shape \[16, heads\]"),
        ("hidden_size", {}, "hidden_size"),
        ("head_dim", 2, "head_dim should be 3"),
        ("head_dim", "3", "head_dim"),
        ("tie_word_embeddings", "no", "tie_word_embeddings should be true or false"),
        ("quantization_config", {"quant_method": "gptq"}, "quantized .*'gptq'"),
        ("quantization_config", [], "quantized"),
        ("transformers_weights", "other.safetensors", "transformers_weights"),
    ],
)
def test_config_is_not_believed(tmp_path: Path, field: str, value: Any, message: str) -> None:
    write_model(tmp_path, **{field: value})
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(tmp_path)
    assert str(tmp_path) in caught.value.message and caught.value.hint
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a":1,"a":2}', "\ufeff{}", "5"])
def test_config_that_is_no_object(tmp_path: Path, text: str) -> None:
    write_model(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="config.json"):
        spec_of(tmp_path)


def test_config_that_is_huge(tmp_path: Path) -> None:
    write_model(tmp_path)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match="at most"):
        spec_of(tmp_path)


@pytest.mark.parametrize("value", [..., None])
def test_every_head_has_its_own_keys_where_the_config_says_nothing(
    tmp_path: Path, value: object
) -> None:
    assert spec_of(write_model(tmp_path, num_key_value_heads=value)).n_kv_heads == 4
    write_model(tmp_path, num_key_value_heads=value, model_type="mistral")
    with pytest.raises(ModelError, match="num_key_value_heads"):
        spec_of(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({O_PROJ.format(0): np.ones((8, 12), np.int8)}, r"quantized \(I8\)"),
        ({O_PROJ.format(0): np.ones(96, np.float16)}, "should have the shape"),
        ({"model.layers.0.self_attn.o_proj.qweight": np.ones(9, np.int32)}, "GPTQ"),
        (
            {
                O_PROJ.format(0): np.ones((8, 12), np.float16),
                O_PROJ.format(0) + "_scale": np.ones(1, np.float32),
            },
            "scaled float8",
        ),
        (
            {
                O_PROJ.format(0): np.ones((8, 12), np.float16),
                O_PROJ.format(1): np.ones((8, 12), np.float32),
            },
            "one dtype, found F16, F32",
        ),
        ({"x": np.ones(1, np.int8)}, "expected tensors named .* such as 'x'"),
        ({}, "found none among 0"),
    ],
)
def test_tensors_that_cannot_be_edited(
    tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    write_model(tmp_path, tensors)
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path)


def test_check_heads(tmp_path: Path) -> None:
    tensors = {O_PROJ.format(n): np.ones((8, 12), np.float32) for n in (0, 1, 3)}
    spec = spec_of(write_model(tmp_path, tensors, num_hidden_layers=4))
    check_heads(spec, spec.heads())
    with pytest.raises(ModelError, match="no head L99H0: attention layers are 0-1, 3") as caught:
        check_heads(spec, [Head(0, 0), Head(99, 0)])
    assert caught.value.exit_code == 3
    assert caught.value.hint == "nearest: L3H0, L1H0; layers 0-1, 3 have heads 0-3"
    with pytest.raises(ModelError, match="layer 1 has heads 0 to 3") as caught:
        check_heads(spec, [Head(1, 7)])
    assert caught.value.hint.startswith("nearest: L1H3;")


def test_needs_no_heavy_import() -> None:
    code = (
        "import sys, editor.architecture, editor.checkpoint; "
        "print({'torch', 'transformers', 'numpy', 'safetensors'} & set(sys.modules))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


TINY: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 16, "num_key_value_heads": 2},
    "qwen3": {"head_dim": 16, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "gpt_neox": {},
    "gpt2": {},
    "lfm2": {"num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]},
}


@pytest.mark.model
@pytest.mark.parametrize("model_type", sorted(TINY))
def test_agrees_with_the_loaded_module(tmp_path: Path, model_type: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    if model_type == "gpt2":
        sizes = {"n_embd": 48, "n_layer": 2, "n_head": 4}
    config = transformers.AutoConfig.for_model(
        model_type, **sizes, vocab_size=64, intermediate_size=64, bos_token_id=1, eos_token_id=2,
        **TINY[model_type],
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    spec = spec_of(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert [at.layer for at in spec.layers] == ([1] if model_type == "lfm2" else [0, 1])
    for at in spec.layers:
        projection = model.get_submodule(at.module)
        assert projection.weight.shape[at.axis] == at.n_heads * at.head_dim
        assert (type(projection).__name__ == "Conv1D") == (at.axis == 0)
        assert torch.equal(projection.weight, torch.from_numpy(stored[at.tensor]))
        assert at.head_dim == (16 if "head_dim" in TINY[model_type] else 12)
    assert spec.n_kv_heads == getattr(config, "num_key_value_heads", 4)
    assert spec.tied == config.tie_word_embeddings


@pytest.mark.model
def test_defaults_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    for model_type, family in FAMILIES.items():
        config = transformers.AutoConfig.for_model(model_type)
        assert config.tie_word_embeddings == family.tied, model_type
        assert hasattr(config, family.n_heads[0]) and hasattr(config, family.n_layers[0])
