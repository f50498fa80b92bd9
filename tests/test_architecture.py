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
from editor.coverage import require_coverage
from editor.errors import ModelError
from editor.families import FAMILIES
from editor.records import Head, ModelSpec
from editor.unsupported import REFUSED

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
    assert spec.not_covered == (
        "layer 0: a convolution, no attention (layer_types: 'conv')",
        "layers 2-9: the files hold no model.layers.N.self_attn.o_proj.weight",
    )
    assert spec.n_layers == 11
    assert spec.notes == (
        "layer 12: in the files, but config.json counts 11 layers, so the model does not load them",
    )
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
        ("model_type", "rwkv", "type rwkv cannot be edited: it has no attention heads"),
        ("model_type", "llama5", "'llama5' is not supported yet"),
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
        ("quantization_config", {"quant_method": "hqq"}, "quantized .*'hqq'"),
        ("quantization_config", [], "description of the quantization"),
        ("is_causal", False, "is_causal should be true"),
        ("per_layer_config", [], "per_layer_config should be an object"),
        ("per_layer_config", {"1": 5}, "per_layer_config.1 should be an object"),
        ("per_layer_config", {"1": {"num_attention_heads": 5}}, "should be a divisor of 12"),
        ("per_layer_config", {"1": {"head_dim": 4}}, "per_layer_config.1.head_dim should be 3"),
        ("layer_types", "full", "layer_types should be a list of strings"),
        ("layer_types", [1, 2], "layer_types should be a list of strings"),
        ("layer_types", ["conv"] * 10**5, "layer_types should be a list of strings, at most 65536"),
        ("layer_types", [], "layer_types should be a list of strings"),
        (
            "layer_types",
            ["conv", "mamba"],
            "no layer has heads that can be zeroed; layer 0: a conv",
        ),
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
        ({O_PROJ.format(0): np.ones((8, 12), np.int8)}, "I8"),
        ({O_PROJ.format(0): np.ones(96, np.float16)}, "should be a matrix"),
        ({"model.layers.0.self_attn.o_proj.qweight": np.ones(9, np.int32)}, "GPTQ"),
        (
            {
                O_PROJ.format(0): np.ones((8, 12), np.float16),
                O_PROJ.format(0) + "_scale": np.ones(1, np.float32),
            },
            "weight_scale",
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
        "print({'torch', 'transformers', 'safetensors', 'gguf'} & set(sys.modules))"
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


@pytest.mark.families
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


@pytest.mark.families
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_defaults_are_those_of_transformers(model_type: str) -> None:
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    family, config = FAMILIES[model_type], CONFIG_MAPPING[model_type]()
    assert bool(getattr(config, "tie_word_embeddings", False)) == family.tied
    for flag in family.flags:
        stated = config if hasattr(config, flag.field) else config.get_text_config()
        value = getattr(stated, flag.field, flag.default)
        assert (value in flag.allowed) == (flag.default in flag.allowed)
    language = config.text_config if family.text else config
    fields = language.to_dict()
    for names in (family.n_heads, family.n_layers, family.hidden_size):
        assert any(name in fields or hasattr(language, name) for name in names)
    legacy = ("global_head_dim",)  # an argument, not a field
    wrong = [(k, v) for k, v in family.defaults if k not in legacy and fields[k] != v]
    assert not wrong


def gemma3(folder: Path, **config: Any) -> Path:
    """A model that sees, of two layers, whose text_config leaves its number of heads to the class.

    Values of the top level's config are given; `...` is left out.
    """
    text = {"num_hidden_layers": 2, "hidden_size": 8, "head_dim": 2}
    names = [f"language_model.model.layers.{n}.self_attn.o_proj.weight" for n in (0, 1)]
    tower = "vision_tower.encoder.layers.0.self_attn.out_proj.weight"
    tensors = {name: np.ones((8, 16), np.float32) for name in (*names, tower)}
    fields = {"model_type": "gemma3", "text_config": text, **config}
    folder.mkdir(exist_ok=True)
    text_of = json.dumps({k: v for k, v in fields.items() if v is not ...})
    (folder / "config.json").write_text(text_of)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_of_a_model_that_sees_the_language_part_is_edited(tmp_path: Path) -> None:
    spec = spec_of(gemma3(tmp_path))
    assert [(at.n_heads, at.head_dim) for at in spec.layers] == [(8, 2)] * 2  # gemma3 has 8
    at = spec.layers[1]
    assert at.tensor == "language_model.model.layers.1.self_attn.o_proj.weight"
    assert at.module == "model.language_model.layers.1.self_attn.o_proj"
    assert spec.not_covered == () and "vision_tower: has attention" in spec.notes[0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (..., "text_config should be an object .* found nothing"),
        ("gemma3_text", "text_config should be an object"),
        ([{}], "text_config should be an object"),
        ({"num_hidden_layers": 10**9}, "text_config.num_hidden_layers should be a whole number"),
        ({"hidden_size": 8, "head_dim": "2"}, "text_config.head_dim should be a whole number"),
        ({"hidden_size": 8, "head_dim": 2, "num_attention_heads": [8]}, "num_attention_heads"),
        ({"text_config": {"num_hidden_layers": 2}}, "by hidden_size of config.json"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantized .*hqq"),
        ({"use_bidirectional_attention": True}, "looks ahead"),
        ({"model_type": "bitnet"}, "type bitnet cannot be edited"),
        ({"model_type": "bert"}, "text_config.is_decoder should be True"),
    ],
)
def test_text_config_is_not_believed(tmp_path: Path, value: Any, message: str) -> None:
    gemma3(tmp_path, text_config=value)
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path)


def test_text_config_that_is_nested_deeply(tmp_path: Path) -> None:
    gemma3(tmp_path)
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    (tmp_path / "config.json").write_text(f'{{"model_type": "gemma3", "text_config": {deep}}}')
    with pytest.raises(ModelError, match="config.json"):
        spec_of(tmp_path)


def laguna(folder: Path, heads: object) -> Path:
    tensors = {O_PROJ.format(n): np.ones((8, 12 * (n + 1)), np.float32) for n in (0, 1)}
    config = {"model_type": "laguna", "num_attention_heads_per_layer": heads, "head_dim": 3}
    return write_model(folder, tensors, **config)


def test_a_number_of_heads_for_each_layer(tmp_path: Path) -> None:
    spec = spec_of(laguna(tmp_path, [4, 8]))
    assert [(at.n_heads, at.head_dim) for at in spec.layers] == [(4, 3), (8, 3)]


@pytest.mark.parametrize("heads", [[4], [4, 8, 8], "48", [4, 8.0], [4, True], [4, 0], {"0": 4}, []])
def test_a_list_of_heads_that_does_not_fit(tmp_path: Path, heads: object) -> None:
    laguna(tmp_path, heads)
    with pytest.raises(ModelError, match="num_attention_heads_per_layer should be a list of 2"):
        spec_of(tmp_path)


@pytest.mark.parametrize("heads", [[8, 4], [4, 4], [6, 8], [4, 10**9]])
def test_a_list_of_heads_that_does_not_fit_the_tensors(tmp_path: Path, heads: object) -> None:
    laguna(tmp_path, heads)
    with pytest.raises(ModelError, match="num_attention_heads_per_layer|head_dim"):
        spec_of(tmp_path)


def test_per_layer_config_overrides_a_layer(tmp_path: Path) -> None:
    own = {"1": {"num_attention_heads": 2, "head_dim": 6}}
    spec = spec_of(write_model(tmp_path, per_layer_config=own))
    assert [(at.n_heads, at.head_dim) for at in spec.layers] == [(4, 3), (2, 6)]


def test_sliding_layers_with_heads_of_their_own(tmp_path: Path) -> None:
    sizes = {"model_type": "inkling_text", "swa_num_attention_heads": 6, "swa_head_dim": 2}
    kinds = ["hybrid_sliding", "hybrid"]
    spec = spec_of(write_model(tmp_path, **sizes, head_dim=3, layer_types=kinds))
    assert [(at.n_heads, at.head_dim) for at in spec.layers] == [(6, 2), (4, 3)]
    write_model(tmp_path, **sizes, head_dim=3)
    with pytest.raises(ModelError, match="layer_types should be a list of what each of 2 layers"):
        spec_of(tmp_path)


def kimi(folder: Path, *, siblings: tuple[int, ...], **config: Any) -> Path:
    """Linear attention has a projection of the same name and, here, of the same shape."""
    tensors = {O_PROJ.format(n): np.ones((8, 12), np.float32) for n in range(4)}
    for n in siblings:
        tensors[f"model.layers.{n}.self_attn.kv_b_proj.weight"] = np.ones((4, 4), np.float32)
    sizes = {"model_type": "kimi_linear", "num_hidden_layers": 4, "v_head_dim": 3}
    return write_model(folder, tensors, **sizes, num_key_value_heads=4, **config)


def test_linear_attention_under_the_same_name_is_not_edited(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention"] * 2
    by_name = spec_of(kimi(tmp_path, siblings=(1, 3)))
    assert [at.layer for at in by_name.layers] == [1, 3]
    assert len(by_name.not_covered) == 2 and "layer 0: linear attention" in by_name.not_covered[0]
    by_config = spec_of(kimi(tmp_path, siblings=(0, 1, 2, 3), layer_types=kinds))
    assert by_config.not_covered == (
        "layers 0, 2: linear attention, no heads that can be zeroed "
        "(layer_types: 'linear_attention')",
    )


def test_the_list_of_layers_counts_them(tmp_path: Path) -> None:
    name = "backbone.layers.1.mixer.o_proj.weight"
    tensors = {name: np.ones((8, 12), np.float32)}
    sizes: dict[str, Any] = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-E"}
    spec = spec_of(write_model(tmp_path, tensors, **sizes, num_hidden_layers=...))
    assert spec.layers[0].tensor == name and spec.layers[0].module == "model.layers.1.mixer.o_proj"
    assert len(spec.not_covered) == 3 and spec.n_layers == 4
    write_model(tmp_path, tensors, **sizes, num_hidden_layers=5)
    with pytest.raises(ModelError, match="num_hidden_layers should be 4"):
        spec_of(tmp_path)
    sizes["hybrid_override_pattern"] = "M*-X"
    write_model(tmp_path, tensors, **sizes, num_hidden_layers=...)
    with pytest.raises(ModelError, match="hybrid_override_pattern should be made of"):
        spec_of(tmp_path)
    sizes["hybrid_override_pattern"] = "M*" * 10**6
    write_model(tmp_path, tensors, **sizes, num_hidden_layers=...)
    with pytest.raises(ModelError, match="at most 65536 letters"):
        spec_of(tmp_path)
    sizes["hybrid_override_pattern"] = "M*" * 10_000
    write_model(tmp_path, tensors, **sizes, num_hidden_layers=...)
    with pytest.raises(ModelError, match="at most 4096"):
        spec_of(tmp_path)


def test_two_attentions_a_layer_are_counted_through(tmp_path: Path) -> None:
    names = [f"model.layers.{n}.self_attn.{part}.o_proj.weight" for n in (0, 1) for part in (0, 1)]
    tensors = {name: np.ones((8, 12), np.float32) for name in names}
    tensors["model.layers.2.self_attn.0.o_proj.weight"] = np.ones((8, 12), np.float32)
    config = {"model_type": "longcat_flash", "num_layers": 2, "v_head_dim": 3}
    spec = spec_of(write_model(tmp_path, tensors, **config))
    assert [(at.layer, at.tensor) for at in spec.layers] == list(enumerate(names))
    assert "layer 2: in the files" in spec.notes[0] and spec.n_layers == 4


def zamba(folder: Path, saved: tuple[int, ...], **config: Any) -> Path:
    name = "model.layers.{}.shared_transformer.self_attn.o_proj.weight"
    tensors = {name.format(n): np.ones((8, 12), np.float32) for n in saved}
    kinds = ["mamba", "hybrid", "hybrid", "mamba", "hybrid"]
    fields = {"model_type": "zamba2", "num_hidden_layers": 5, "layers_block_type": kinds, **config}
    return write_model(folder, tensors, **fields)


def test_a_block_that_layers_share(tmp_path: Path) -> None:
    spec = spec_of(zamba(tmp_path, (1,)))
    assert [at.layer for at in spec.layers] == [1]
    assert spec.notes == ("layer 1: saved once, serves layers 1-2, 4",)
    assert spec.not_covered == ("layers 0, 3: a state space, no attention (layer_types: 'mamba')",)
    spec = spec_of(zamba(tmp_path, (1, 2), num_mem_blocks=2))
    assert [at.layer for at in spec.layers] == [1, 2]
    assert spec.notes == ("layer 1: saved once, serves layers 1, 4",)


@pytest.mark.parametrize("saved", [(), (2,), (1, 4)])
def test_a_shared_block_that_is_saved_otherwise_is_refused(
    tmp_path: Path, saved: tuple[int, ...]
) -> None:
    zamba(tmp_path, saved)
    with pytest.raises(ModelError, match="should be saved once, at layer 1; found"):
        spec_of(tmp_path)


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_refusals_tell_why(tmp_path: Path, model_type: str) -> None:
    write_model(tmp_path, model_type=model_type)
    with pytest.raises(ModelError) as caught:
        spec_of(tmp_path)
    assert REFUSED[model_type] in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert"}, "is_decoder should be True .*encoder.* found nothing"),
        ({"model_type": "bert", "is_decoder": 1}, "is_decoder should be True"),
        ({"model_type": "bart", "is_decoder": True}, "is_encoder_decoder should be False"),
        ({"model_type": "bloom", "slow_but_exact": True}, "slow_but_exact should be False"),
        ({"model_type": "gemma4_text", "use_bidirectional_attention": "all"}, "looks ahead"),
    ],
)
def test_a_config_under_which_heads_are_not_clean(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    write_model(tmp_path, **config)
    with pytest.raises(ModelError, match=message):
        spec_of(tmp_path)


def test_partial_coverage_has_to_be_allowed(tmp_path: Path) -> None:
    require_coverage(spec_of(write_model(tmp_path)), allow_partial=False)
    kinds = ["conv", "full_attention", "mamba", "mlp", "recurrent", "linear_attention"]
    tensors = {O_PROJ.format(1): np.ones((8, 12), np.float32)}
    spec = spec_of(write_model(tmp_path, tensors, num_hidden_layers=6, layer_types=kinds))
    require_coverage(spec, allow_partial=True)
    with pytest.raises(ModelError) as caught:
        require_coverage(spec, allow_partial=False)
    assert caught.value.exit_code == 3 and "--allow-partial" in caught.value.hint
    assert "1 of 6 layers have heads of their own to zero; layer 0: a conv" in caught.value.message
    assert caught.value.message.endswith("; and 2 more reasons")
    assert "\n" not in caught.value.message
