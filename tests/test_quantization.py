"""What config.json and the tensors' names say of a projection; contradictions are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from editor.errors import ModelError
from editor.quantization import PACKED_SUFFIXES, Stored, logical_shape, storage
from editor.safetensors_header import DTYPE_BITS, TensorEntry

PATH = Path("config.json")
BNB4 = {"quant_method": "bitsandbytes", "load_in_4bit": True}
BNB8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8}
AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "group_size": 8}
AUTO = {"quant_method": "auto-round", "bits": 4, "group_size": 8}

Shapes = dict[str, tuple[str, tuple[int, ...]]]

PLAIN: Shapes = {"weight": ("BF16", (16, 32)), "bias": ("BF16", (16,))}
NF4: Shapes = {
    "weight": ("U8", (256, 1)),
    "weight.absmax": ("F32", (8,)),
    "weight.quant_map": ("F32", (16,)),
    "weight.quant_state.bitsandbytes__nf4": ("U8", (20,)),
}
FP4: Shapes = {
    **{name: at for name, at in NF4.items() if "nf4" not in name},
    "weight.quant_state.bitsandbytes__fp4": ("U8", (20,)),
}
INT8: Shapes = {"weight": ("I8", (16, 32)), "SCB": ("F32", (16,)), "weight_format": ("U8", ())}
QWEIGHT: Shapes = {
    "qweight": ("I32", (4, 16)),
    "qzeros": ("I32", (4, 2)),
    "scales": ("F16", (4, 16)),
    "g_idx": ("I32", (32,)),
}
UNORDERED: Shapes = {name: at for name, at in QWEIGHT.items() if name != "g_idx"}
GEMM: Shapes = {
    "qweight": ("I32", (32, 2)),
    "qzeros": ("I32", (4, 2)),
    "scales": ("F16", (4, 16)),
}
PACKED: Shapes = {
    "weight_packed": ("I32", (16, 4)),
    "weight_scale": ("BF16", (16, 1)),
    "weight_shape": ("I64", (2,)),
}
ASYMMETRIC: Shapes = {**PACKED, "weight_zero_point": ("I32", (2, 1))}
E2M1: Shapes = {
    "weight_packed": ("U8", (16, 16)),
    "weight_scale": ("F8_E4M3", (16, 2)),
    "weight_global_scale": ("F32", (1,)),
}
FLOAT8: Shapes = {"weight": ("F8_E4M3", (16, 32)), "weight_scale_inv": ("F32", (1, 1))}
SCALED8: Shapes = {"weight": ("F8_E4M3", (16, 32)), "weight_scale": ("F32", (16, 1))}
SCALED_INT8: Shapes = {"weight": ("I8", (16, 32)), "weight_scale": ("F32", (16, 1))}


def compressed(layout: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "int", "symmetric": True, **more.pop("weights", {})}
    group = {"weights": weights, "targets": ["Linear"], **more.pop("group", {})}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "config_groups": {"group_0": group},
        **more,
    }


def tensors_of(shapes: Shapes) -> dict[str, tuple[str, TensorEntry]]:
    found: dict[str, tuple[str, TensorEntry]] = {}
    at = 64
    for name, (dtype, shape) in shapes.items():
        size = int(np.prod(shape, dtype=object)) * DTYPE_BITS[dtype] // 8
        found[f"l.0.o.{name}"] = ("a.safetensors", TensorEntry(dtype, shape, at, at + size))
        at += size
    return found


def stored(config: object, shapes: Shapes, field: str = "quantization_config") -> Stored:
    fields = {} if config is None else {field: config}
    return storage(fields, "l.0.o", tensors_of(shapes), PATH)


@pytest.mark.parametrize(
    ("config", "shapes", "tensor", "code", "linear", "logical"),
    [
        (None, PLAIN, "weight", "zero", False, (16, 32)),
        (None, {"weight": ("F8_E4M3", (16, 32))}, "weight", "zero", False, (16, 32)),
        (BNB4, NF4, "weight", "nf4", True, (16, 32)),
        (BNB4, FP4, "weight", "fp4", True, (16, 32)),
        ({"load_in_4bit": True}, NF4, "weight", "nf4", True, (16, 32)),
        (BNB4, PLAIN, "weight", "zero", False, (16, 32)),
        (BNB8, INT8, "weight", "zero", True, (16, 32)),
        (BNB8, PLAIN, "weight", "zero", False, (16, 32)),
        (GPTQ, QWEIGHT, "qweight", "gptq", True, (16, 32)),
        (GPTQ, UNORDERED, "qweight", "gptq", True, (16, 32)),
        (GPTQ, PLAIN, "weight", "zero", False, (16, 32)),
        ({**GPTQ, "checkpoint_format": "gptq"}, QWEIGHT, "qweight", "gptq", True, (16, 32)),
        ({**GPTQ, "format": "GPTQ_V2"}, QWEIGHT, "qweight", "gptq_v2", True, (16, 32)),
        (
            {**GPTQ, "dynamic": {"a": {}}, "bits": 8},
            QWEIGHT,
            *("qweight", "gptq", True, (16, 32)),
        ),
        (
            {**GPTQ, "bits": 8},
            {**QWEIGHT, "qweight": ("I32", (8, 16)), "qzeros": ("I32", (4, 4))},
            *("qweight", "gptq", True, (16, 32)),
        ),
        (AWQ, GEMM, "qweight", "awq", True, (16, 32)),
        ({**AWQ, "version": "GEMM"}, GEMM, "qweight", "awq", True, (16, 32)),
        (AWQ, PLAIN, "weight", "zero", False, (16, 32)),
        (
            {**AUTO, "packing_format": "auto_round:auto_gptq"},
            UNORDERED,
            *("qweight", "gptq", True, (16, 32)),
        ),
        (
            {**AUTO, "packing_format": "auto_round:auto_awq"},
            GEMM,
            *("qweight", "awq", True, (16, 32)),
        ),
        (AUTO, PLAIN, "weight", "zero", False, (16, 32)),
        (compressed(), PACKED, "weight_packed", "offset", False, (16, 32)),
        (compressed("mixed-precision"), PLAIN, "weight", "zero", False, (16, 32)),
        (
            compressed("mixed-precision", group={"format": "pack-quantized"}),
            PACKED,
            *("weight_packed", "offset", False, (16, 32)),
        ),
        (
            compressed(weights={"symmetric": False}),
            ASYMMETRIC,
            *("weight_packed", "offset", False, (16, 32)),
        ),
        (compressed(), PLAIN, "weight", "zero", False, (16, 32)),
        (compressed("int-quantized"), SCALED_INT8, "weight", "zero", False, (16, 32)),
        (compressed("float-quantized"), SCALED8, "weight", "zero", False, (16, 32)),
        (compressed("nvfp4-pack-quantized"), E2M1, "weight_packed", "fp4", False, (16, 32)),
        (compressed("mxfp4-pack-quantized"), E2M1, "weight_packed", "fp4", False, (16, 32)),
        ({"quant_method": "fp8"}, FLOAT8, "weight", "zero", False, (16, 32)),
        ({"quant_method": "fp8"}, PLAIN, "weight", "zero", False, (16, 32)),
        ({"quant_method": "fbgemm_fp8"}, SCALED8, "weight", "zero", False, (16, 32)),
        ({"quant_method": "modelopt"}, SCALED8, "weight", "zero", False, (16, 32)),
        ({"quant_method": "mxfp4"}, PLAIN, "weight", "zero", False, (16, 32)),
    ],
)
def test_finds_the_stored_weight(
    config: object,
    shapes: Shapes,
    tensor: str,
    code: str,
    linear: bool,
    logical: tuple[int, int],
) -> None:
    found = stored(config, shapes)
    assert found == (f"l.0.o.{tensor}", code, linear)
    assert logical_shape(found, tensors_of(shapes), read(shapes), PATH) == logical


def read(shapes: Shapes, **contents: bytes) -> Any:
    tensors = tensors_of(shapes)
    state = json.dumps({"shape": [16, 32]}).encode()
    defaults = {
        "weight.quant_state.bitsandbytes__nf4": state,
        "weight.quant_state.bitsandbytes__fp4": state,
        "weight_shape": np.array([16, 32], "<i8").tobytes(),
    }
    known = {f"l.0.o.{name}": content for name, content in {**defaults, **contents}.items()}
    return lambda name: (tensors[name][1], known[name])


def test_older_names_of_the_config() -> None:
    config = compressed()
    assert stored(config, PACKED, "compression_config").code == "offset"
    assert stored({"quantization_config": config}, PACKED, "compression_config").code == "offset"
    del config["quant_method"]
    assert stored(config, PACKED).code == "offset"


@pytest.mark.parametrize("suffix", PACKED_SUFFIXES)
def test_packed_tensors_need_a_config(suffix: str) -> None:
    with pytest.raises(ModelError, match="expected a quantization_config"):
        stored(None, {**PLAIN, suffix.removeprefix("."): ("I32", (4, 4))})


@pytest.mark.parametrize(
    "method",
    [
        *("aqlm", "hqq", "quanto", "eetq", "vptq", "spqr", "higgs", "torchao", "bitnet", "quark"),
        *("fp_quant", "sinq", "nvfp4", "metal", "gguf", "intel/auto-round", "x\x1b[2J" * 40),
    ],
)
def test_unknown_methods_are_refused_with_the_way_round(method: str) -> None:
    with pytest.raises(ModelError, match="the model is quantized") as caught:
        stored({"quant_method": method}, PLAIN)
    assert method[:8].isprintable() is (method[:8] in caught.value.message)
    assert "\x1b" not in caught.value.message
    assert caught.value.hint == "take the unquantized model, edit it, and quantize the result"


def other(shapes: Shapes, **changes: tuple[str, tuple[int, ...]] | None) -> Shapes:
    found = {**shapes, **changes}
    return {name: at for name, at in found.items() if at is not None}


@pytest.mark.parametrize(
    ("config", "shapes", "match"),
    [
        (None, {}, "no such tensor"),
        (None, {"weight": ("I8", (16, 32))}, "should be one of"),
        ("int4", PLAIN, "JSON object"),
        ([], PLAIN, "JSON object"),
        ({}, PLAIN, "quant_method"),
        ({"quant_method": 4}, PLAIN, "quant_method"),
        ({"quant_method": ["gptq"]}, PLAIN, "quant_method"),
        (BNB4, {}, "hold no"),
        (BNB4, QWEIGHT, "is of GPTQ"),
        (BNB4, INT8, "not I8 of 8 bits"),
        (BNB4, {"weight": ("U8", (256, 1))}, "unknown meaning"),
        (BNB4, {**NF4, **FP4}, "2 quant_states"),
        (BNB4, {name: NF4[name] for name in ("weight", "weight.absmax")}, "0 quant_states"),
        (BNB8, NF4, "1 quant_states"),
        (BNB8, other(INT8, weight=("F16", (16, 32))), "not I8"),
        (BNB8, {"weight": ("I8", (16, 32))}, "unknown meaning"),
        ({**GPTQ, "checkpoint_format": "marlin"}, QWEIGHT, "layout 'marlin'"),
        ({**GPTQ, "is_marlin_format": True}, QWEIGHT, "layout 'marlin'"),
        ({**GPTQ, "checkpoint_format": 7}, QWEIGHT, "layout '7'"),
        ({**GPTQ, "checkpoint_format": "gptq", "format": "gptq_v2"}, QWEIGHT, "contradict"),
        ({**GPTQ, "bits": 3}, QWEIGHT, "bits should be 4"),
        ({**GPTQ, "bits": "4"}, QWEIGHT, "bits should be 4"),
        ({"quant_method": "gptq"}, QWEIGHT, "bits should be 4"),
        ({**GPTQ, "group_size": 16}, UNORDERED, "groups of group_size"),
        ({**GPTQ, "group_size": -1}, UNORDERED, "groups of group_size"),
        ({**GPTQ, "group_size": 0}, UNORDERED, "groups of group_size"),
        ({**GPTQ, "group_size": None}, UNORDERED, "should be a number"),
        ({**GPTQ, "dynamic": {"a": {}}}, UNORDERED, "groups of group_size"),
        ({**GPTQ, "rotation": "hadamard"}, QWEIGHT, "rotation"),
        ({**GPTQ, "adapter": {"rank": 8}}, QWEIGHT, "adapter"),
        (GPTQ, other(QWEIGHT, qzeros=None), "hold no"),
        (GPTQ, other(QWEIGHT, scales=None), "hold no"),
        (GPTQ, other(QWEIGHT, qzeros=("I32", (4, 3))), "2, 4 or 8 bits"),
        (GPTQ, other(QWEIGHT, qzeros=("I32", (8,))), "2, 4 or 8 bits"),
        (GPTQ, other(QWEIGHT, qweight=("I32", (4, 0))), "2, 4 or 8 bits"),
        (GPTQ, {**QWEIGHT, **PLAIN}, "both a weight and a qweight"),
        (GPTQ, PACKED, "is of compressed-tensors"),
        ({**AWQ, "version": "gemv"}, GEMM, "layout 'gemv'"),
        ({**AWQ, "version": "exllama"}, GEMM, "layout 'exllama'"),
        ({**AWQ, "backend": "llm-awq"}, GEMM, "not supported"),
        ({**AWQ, "group_size": 16}, GEMM, "groups of group_size"),
        ({**AWQ, "bits": 8}, GEMM, "bits should be 4"),
        (AWQ, other(GEMM, qweight=("I32", (64,))), "2, 4 or 8 bits"),
        (AUTO, QWEIGHT, "layout 'auto_round:gptq'"),
        ({**AUTO, "packing_format": "auto_round"}, QWEIGHT, "layout 'auto_round'"),
        (compressed("marlin-24"), PACKED, "layout 'marlin-24'"),
        (compressed("sparse-24-bitmask"), PLAIN, "layout 'sparse-24-bitmask'"),
        (compressed("mxfp6-pack-quantized"), E2M1, "layout 'mxfp6-pack-quantized'"),
        (compressed(group={"format": "marlin-24"}), PACKED, "layout 'marlin-24'"),
        (compressed(group={"format": 4}), PACKED, "say how weights are"),
        (compressed(sparsity_config={"format": "sparse-bitmask"}), PLAIN, "sparse-bitmask"),
        (compressed(transform_config={"config_groups": {}}), PACKED, "transform_config"),
        (compressed(config_groups=[]), PACKED, "should be an object"),
        (compressed(config_groups={"a": 4}), PACKED, "say how weights are"),
        (compressed(config_groups={"a": {"weights": None}}), PACKED, "say how weights are"),
        (compressed(weights={"num_bits": 3}), PACKED, "other bits"),
        (compressed(weights={"num_bits": 4.5}), PACKED, "other bits"),
        (compressed(weights={"symmetric": False}), PACKED, "unless symmetric"),
        (compressed(), ASYMMETRIC, "unless symmetric"),
        (compressed("int-quantized"), PACKED, "not I32 of pack-quantized"),
        (compressed(), other(PACKED, weight_packed=("U8", (16, 16))), "is U8, as in"),
        (compressed(), other(PACKED, weight_packed=("I8", (16, 16))), "not I32"),
        (compressed(), other(PACKED, weight_scale=None), "hold no"),
        (compressed(), {**PACKED, **PLAIN}, "both a weight and a weight_packed"),
        (compressed("int-quantized"), {"weight": ("I8", (16, 32))}, "hold no"),
        (compressed("int-quantized"), other(SCALED_INT8, weight=("U8", (16, 32))), "is U8"),
        (
            compressed("int-quantized"),
            {**SCALED_INT8, "weight_zero_point": ("I8", (16, 1))},
            "asymmetric",
        ),
        (
            compressed("nvfp4-pack-quantized"),
            {**E2M1, "weight_zero_point": ("I8", (16, 1))},
            "asymmetric",
        ),
        ({"quant_method": "fp8"}, {"weight": ("I8", (16, 32))}, "unknown meaning"),
        ({"quant_method": "modelopt"}, E2M1, "is of compressed-tensors"),
        ({"quant_method": "modelopt"}, {**SCALED8, "weight_scale_2": ("F32", ())}, "ModelOpt"),
        ({"quant_method": "mxfp4"}, FLOAT8, "block-scaled"),
    ],
)
def test_refuses(config: object, shapes: Shapes, match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        stored(config, shapes)
    assert str(PATH) in caught.value.message and caught.value.hint


def test_refuses_two_configs() -> None:
    fields = {"quantization_config": GPTQ, "compression_config": compressed()}
    with pytest.raises(ModelError, match="the only description"):
        storage(fields, "l.0.o", tensors_of(QWEIGHT), PATH)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
FIELDS = [
    *("quant_method", "bits", "group_size", "format", "checkpoint_format", "version", "backend"),
    *("config_groups", "sparsity_config", "load_in_4bit", "load_in_8bit", "dynamic"),
    *("packing_format", "quantization_config", "w_bit", "transform_config", "extra_config"),
]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_value_of_any_field_is_an_answer_or_one_error(data: st.DataObject) -> None:
    inside = st.dictionaries(st.sampled_from(["num_bits", "type", "symmetric", "format"]), JSON)
    packed = compressed(weights=data.draw(inside), group=data.draw(inside))
    config = data.draw(st.sampled_from([BNB4, BNB8, GPTQ, AWQ, AUTO, compressed(), packed]))
    shapes = data.draw(st.sampled_from([PLAIN, NF4, INT8, QWEIGHT, UNORDERED, GEMM, PACKED, E2M1]))
    changed = data.draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
    name = data.draw(st.sampled_from(sorted(shapes)))
    shape = data.draw(st.lists(st.integers(0, 1 << 20), max_size=3))
    dtype = data.draw(st.sampled_from(["I32", "U8", "F16", "I8"]))
    odd = data.draw(st.sampled_from([shapes, {**shapes, name: (dtype, tuple(shape))}]))
    try:
        found = stored({**config, **changed}, odd)
        rows, columns = logical_shape(found, tensors_of(odd), read(odd), PATH)
    except ModelError:
        return
    assert rows > 0 and columns > 0


@pytest.mark.parametrize(
    ("config", "shapes", "contents"),
    [
        (compressed(), PACKED, {"weight_shape": np.array([16, -32], "<i8").tobytes()}),
        (compressed(), PACKED, {"weight_shape": np.array([17, 32], "<i8").tobytes()}),
        (compressed(), other(PACKED, weight_shape=("I64", (3,))), {}),
        (compressed(), other(PACKED, weight_shape=("F32", (2,))), {}),
        (compressed(), other(PACKED, weight_shape=("I64", (1 << 20,))), {}),
        (compressed(), other(PACKED, weight_shape=None), {}),
        (BNB4, NF4, {"weight.quant_state.bitsandbytes__nf4": b"{"}),
        (
            BNB4,
            {**NF4, "weight.quant_state.bitsandbytes__nf4": ("U8", (1 << 20,))},
            {},
        ),
        (None, other(PLAIN, weight=("F16", (16,))), {}),
        (None, other(PLAIN, weight=("F16", (16, 0))), {}),
    ],
)
def test_refuses_shapes(config: object, shapes: Shapes, contents: dict[str, bytes]) -> None:
    with pytest.raises(ModelError) as caught:
        logical_shape(stored(config, shapes), tensors_of(shapes), read(shapes, **contents), PATH)
    assert str(PATH) in caught.value.message and caught.value.hint
