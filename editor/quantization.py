"""How config.json and the tensors' names say that a projection is stored.

    config.json + names --storage-------> Stored: which tensor holds the weight, in which code

The config tells the method, the file what of it holds for one projection: layers that a method
left alone are plain.  Where the two contradict each other, or the method's zero is not known to be
exact, the model is refused and the hint names the way round.  Both are untrusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, NoReturn, cast

from editor.coded_tensor import DAMAGED, WAY_ROUND
from editor.errors import ModelError
from editor.records import ZeroCode
from editor.safetensors_header import shown
from editor.stored_shape import Stored, Tensors, gptq_bits, logical_shape

__all__ = ["PACKED_SUFFIXES", "Stored", "logical_shape", "storage"]

PACKED_SUFFIXES = MappingProxyType(
    {
        ".qweight": "GPTQ or AWQ",
        ".weight_packed": "compressed-tensors",
        ".weight_scale": "scaled float8 or int8",
        ".weight_scale_inv": "block-scaled float8",
        ".weight_zero_point": "asymmetric compressed-tensors",
        ".weight.absmax": "bitsandbytes 4 bit",
        ".weight_blocks": "MXFP4",
        ".weight_scale_2": "ModelOpt",
        ".SCB": "bitsandbytes 8 bit",
        ".W_q": "HQQ",
    }
)
"""Tensors beside a projection that tell that its weight is packed or scaled, and by what."""

_FLOATS = ("F64", "F32", "F16", "BF16")
_FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_FLOAT_FORMATS = ("nvfp4-pack-quantized", "mxfp4-pack-quantized")
_FORMATS = (
    *("dense", "pack-quantized", "int-quantized", "float-quantized", "naive-quantized"),
    *("mxfp8-quantized", "mixed-precision"),
    *_FLOAT_FORMATS,
)
"""Formats of compressed-tensors that keep a weight's numbers where they stand in the matrix."""


class _Projection(NamedTuple):
    """One projection's names, with the config of its quantization."""

    method: str
    config: Mapping[str, object]
    stem: str
    tensors: Tensors
    path: Path

    def has(self, suffix: str) -> bool:
        return self.stem + suffix in self.tensors

    def dtype(self, suffix: str) -> str:
        found = self.tensors.get(self.stem + suffix)
        return found[1].dtype if found else ""

    def refuse(self, what: str, hint: str = WAY_ROUND) -> NoReturn:
        raise ModelError(f"{self.path}: the model is quantized ({self.method}), {what}", hint)

    def only(self, *suffixes: str) -> None:
        """Require that no other tensors lie beside the weight than those of its method."""
        for suffix, method in PACKED_SUFFIXES.items():
            if suffix not in suffixes and self.has(suffix):
                self.refuse(f"but {shown(self.stem + suffix, 200)} is of {method}", DAMAGED)

    def require(self, *suffixes: str) -> None:
        for suffix in suffixes:
            if not self.has(suffix):
                self.refuse(f"but the files hold no {shown(self.stem + suffix, 200)}", DAMAGED)

    def option(self, *fields: str, default: str) -> str:
        """What all of `fields` that the config has agree on, in lower case."""
        given = [self.config[name] for name in fields if self.config.get(name) is not None]
        names = {value.lower() if isinstance(value, str) else shown(value) for value in given}
        if len(names) > 1:
            self.refuse(f"and its {' and '.join(fields)} contradict each other", DAMAGED)
        return names.pop() if names else default

    def number(self, *fields: str, expected: int | None = None) -> int:
        """The first of `fields` that the config has, which should be a number, or `expected`."""
        value = next((self.config[name] for name in fields if name in self.config), None)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or expected not in (None, value):
            wanted = "a number" if expected is None else expected
            self.refuse(f"and {fields[0]} should be {wanted}, found {shown(value)}")
        return cast("int", value)

    def plain(self) -> Stored:
        """A projection that the method left alone."""
        self.only()
        self.require(".weight")
        dtype = self.dtype(".weight")
        if dtype not in _FLOATS:
            self.refuse(f"and {shown(self.stem, 200)}.weight is {dtype} of an unknown meaning")
        return Stored(f"{self.stem}.weight", "zero")


def storage(config_fields: Mapping[str, object], stem: str, tensors: Tensors, path: Path) -> Stored:
    """Find the tensor that holds one projection's weight, and how it writes the number zero.

    Args:
        config_fields: config.json, untrusted.
        stem: The projection's name in the files, without `.weight`.
        tensors: All tensors of the checkpoint.
        path: config.json, for messages.

    Returns:
        The stored tensor and its code.

    Raises:
        ModelError: The method is unknown or has no exact zero, a field of it has a wrong type, or
            the files do not hold what it says.
    """
    config = _config(config_fields, path)
    if config is None:
        return _unquantized(stem, tensors, path)
    method = _method(config, path)
    projection = _Projection(method, config, stem, tensors, path)
    find = _METHODS.get(method)
    if find is None:
        projection.refuse("a method in which zero is not known to be exact")
    for field in ("transform_config", "rotation", "adapter"):
        # Rotated inputs are sums over heads, and an adapter adds to what the weight gives.
        if config.get(field):
            projection.refuse(f"with {field}, so that its weight's columns are not the heads alone")
    return find(projection)


def quantized(config_fields: Mapping[str, object]) -> bool:
    """Whether a config says that weights are quantized."""
    return any(config_fields.get(name) is not None for name in _FIELDS)


_FIELDS = ("quantization_config", "compression_config")


def _config(fields: Mapping[str, object], path: Path) -> Mapping[str, object] | None:
    """The quantization's own fields, or None."""
    given = [name for name in _FIELDS if fields.get(name) is not None]
    if not given:
        return None
    value: object = fields[given[0]]
    if len(given) > 1 or not isinstance(value, dict):
        found = " and ".join(given) if len(given) > 1 else shown(fields[given[0]])
        raise ModelError(
            f"{path}: {given[0]} should be the only description of the quantization and a JSON "
            f"object, found {found}",
            DAMAGED,
        )
    config = cast("dict[str, object]", value)
    nested = config.get("quantization_config")
    return cast("dict[str, object]", nested) if isinstance(nested, dict) else config


def _method(config: Mapping[str, object], path: Path) -> str:
    if config.get("load_in_4bit") is True or config.get("load_in_8bit") is True:
        return "bitsandbytes"
    method = config.get("quant_method")
    if method is None and isinstance(config.get("config_groups"), dict):
        return "compressed-tensors"
    if not isinstance(method, str):
        raise ModelError(
            f"{path}: the model is quantized, and quant_method should be its method, "
            f"found {shown(method)}",
            WAY_ROUND,
        )
    return method if method in _METHODS else shown(method)


def _unquantized(stem: str, tensors: Tensors, path: Path) -> Stored:
    for suffix, method in PACKED_SUFFIXES.items():
        if stem + suffix in tensors:
            raise ModelError(
                f"{path}: expected a quantization_config, for {shown(stem + suffix, 200)} is of "
                f"{method}, found none",
                "config.json is of another model: download it again, or " + WAY_ROUND,
            )
    found = tensors.get(f"{stem}.weight")
    if found is None or found[1].dtype not in (*_FLOATS, *_FLOAT8):
        dtype = found[1].dtype if found else "no such tensor"
        raise ModelError(
            f"{path}: tensor {shown(stem, 200)}.weight should be one of "
            f"{', '.join((*_FLOATS, *_FLOAT8))}, found {dtype}",
            WAY_ROUND,
        )
    return Stored(f"{stem}.weight", "zero")


def _bitsandbytes(at: _Projection) -> Stored:
    weight = f"{at.stem}.weight"
    if at.has(".weight.absmax"):
        at.only(".weight.absmax")
        at.require(".weight")
        codes: tuple[ZeroCode, ...] = ("nf4", "fp4")
        found: list[ZeroCode] = [
            code for code in codes if at.has(f".weight.quant_state.bitsandbytes__{code}")
        ]
        if len(found) != 1 or at.config.get("load_in_4bit") is not True:
            at.refuse(f"but {shown(weight, 200)} has {len(found)} quant_states of 4 bits", DAMAGED)
        return Stored(weight, found[0], linear=True)
    if at.has(".SCB"):
        at.only(".SCB")
        if at.dtype(".weight") != "I8" or at.config.get("load_in_4bit") is True:
            at.refuse(f"but {shown(weight, 200)} beside SCB is not I8 of 8 bits", DAMAGED)
        return Stored(weight, "zero", linear=True)
    return at.plain()


def _gptq(at: _Projection) -> Stored:
    layout = at.option("checkpoint_format", "format", default="gptq")
    if not at.has(".qweight"):
        return at.plain()
    if at.config.get("is_marlin_format"):
        layout = "marlin"
    codes: dict[str, ZeroCode] = {"gptq": "gptq", "gptq_v2": "gptq_v2"}
    if layout not in codes:
        at.refuse(f"in the layout {shown(layout)}, which is not supported; gptq and gptq_v2 are")
    return _packed(at, codes[layout])


def _awq(at: _Projection) -> Stored:
    layout = at.option("version", "format", "checkpoint_format", default="gemm")
    if not at.has(".qweight"):
        return at.plain()
    if layout != "gemm" or at.config.get("backend") == "llm-awq":
        at.refuse(f"in the layout {shown(layout)}, which is not supported; gemm is")
    return _packed(at, "awq")


def _auto_round(at: _Projection) -> Stored:
    if not at.has(".qweight"):
        return at.plain()
    layout = at.option("packing_format", default="auto_round:gptq")
    codes: dict[str, ZeroCode] = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
    if layout not in codes:
        # Its versions read auto_round:gptq with and without the 1 that is taken from the zeros.
        at.refuse(f"in the layout {shown(layout)}; {' and '.join(codes)} are supported")
    return _packed(at, codes[layout])


def _packed(at: _Projection, code: ZeroCode) -> Stored:
    at.only(".qweight")
    at.require(".qzeros", ".scales")
    if at.has(".weight"):
        at.refuse(f"but {shown(at.stem, 200)} has both a weight and a qweight", DAMAGED)
    stored = Stored(f"{at.stem}.qweight", code, linear=True)
    weight, zeros = at.tensors[stored.tensor][1].shape, at.tensors[f"{at.stem}.qzeros"][1].shape
    found = 4 if code == "awq" else gptq_bits(stored, at.tensors)
    if not found or len(weight) != 2 or len(zeros) != 2:
        shapes = f"{list(weight)} and {list(zeros)}"
        at.refuse(f"and its qweight and qzeros {shapes} should fit 2, 4 or 8 bits")
    width = weight[0] if code == "awq" else weight[0] * 32 // found
    own = any(at.config.get(field) for field in ("dynamic", "extra_config"))
    if not own:
        at.number("bits", "w_bit", expected=found)
    # What lies in which group is told by g_idx, or else by a size that must divide the width: two
    # groups of 96 inputs may be of 64 and 32.
    if code == "awq" or not at.has(".g_idx"):
        size = at.number("group_size", "q_group_size")
        size = width if size == -1 else size
        if own or size < 1 or size * zeros[0] != width:
            at.refuse(f"and {zeros[0]} groups of group_size should be {width} inputs, found {size}")
    return stored


def _compressed(at: _Projection) -> Stored:
    groups, formats = _weight_groups(at)
    formats.add(at.option("format", default="dense"))
    sparsity = at.config.get("sparsity_config")
    if isinstance(sparsity, dict):
        layout = cast("dict[str, object]", sparsity).get("format") or "dense"
        formats.add(layout if isinstance(layout, str) else shown(layout))
    other = sorted(formats - set(_FORMATS))
    if other:
        at.refuse(f"in the layout {shown(other[0])}, which is not supported")
    if at.has(".weight_packed"):
        return _compressed_packed(at, groups, formats)
    if at.dtype(".weight") in _FLOATS:
        at.only(".weight_scale")
        return Stored(f"{at.stem}.weight", "zero")
    at.only(".weight_scale")
    at.require(".weight", ".weight_scale")
    if at.dtype(".weight") not in ("I8", *_FLOAT8):
        at.refuse(f"and {shown(at.stem, 200)}.weight is {at.dtype('.weight')}")
    return Stored(f"{at.stem}.weight", "zero")


def _compressed_packed(
    at: _Projection, groups: list[Mapping[str, object]], formats: set[str]
) -> Stored:
    packed = f"{at.stem}.weight_packed"
    if at.has(".weight"):
        at.refuse(f"but {shown(at.stem, 200)} has both a weight and a weight_packed", DAMAGED)
    at.require(".weight_scale")
    if at.dtype(".weight_packed") == "U8":
        at.only(".weight_packed", ".weight_scale")
        if not formats & set(_FLOAT_FORMATS):
            at.refuse(f"but {shown(packed, 200)} is U8, as in {' and '.join(_FLOAT_FORMATS)}")
        return Stored(packed, "fp4")
    at.only(".weight_packed", ".weight_scale", ".weight_zero_point")
    if at.dtype(".weight_packed") != "I32" or "pack-quantized" not in formats:
        at.refuse(f"but {shown(packed, 200)} is not I32 of pack-quantized", DAMAGED)
    integers = [group for group in groups if group.get("type", "int") == "int"]
    if not integers or any(group.get("num_bits") not in (4, 8) for group in integers):
        at.refuse("with other bits than 4 and 8")
    symmetric = all(group.get("symmetric", True) is True for group in integers)
    # The loader goes by the config: a zero point that it does not look at would be none.
    if at.has(".weight_zero_point") == symmetric:
        at.refuse("and weight_zero_point should be there unless symmetric is true", DAMAGED)
    return Stored(packed, "offset")


def _weight_groups(at: _Projection) -> tuple[list[Mapping[str, object]], set[str]]:
    """How compressed-tensors quantizes the weights of each group of layers, and their formats."""
    raw = at.config.get("config_groups")
    if not isinstance(raw, dict):
        at.refuse(f"and config_groups should be an object, found {shown(raw)}", DAMAGED)
    found: list[Mapping[str, object]] = []
    formats: set[str] = set()
    for name, group in cast("dict[str, object]", raw).items():
        fields = cast("dict[str, object]", group) if isinstance(group, dict) else {}
        weights, layout = fields.get("weights"), fields.get("format")
        if not isinstance(weights, dict) or not isinstance(layout, str | None):
            at.refuse(f"and config_groups {shown(name)} should say how weights are", DAMAGED)
        found.append(cast("dict[str, object]", weights))
        formats |= {layout} if layout else set()
    return found, formats


def _float8(at: _Projection) -> Stored:
    if at.dtype(".weight") not in _FLOAT8:
        return at.plain()
    at.only(".weight_scale", ".weight_scale_inv")
    return Stored(f"{at.stem}.weight", "zero")


_METHODS: Mapping[str, Callable[[_Projection], Stored]] = MappingProxyType(
    {
        "bitsandbytes": _bitsandbytes,
        "gptq": _gptq,
        "awq": _awq,
        "auto-round": _auto_round,
        "compressed-tensors": _compressed,
        "fp8": _float8,
        "fbgemm_fp8": _float8,
        "mxfp8": _float8,
        "modelopt": _float8,
        "mxfp4": _Projection.plain,
    }
)
"""By `quant_method`.  mxfp4 quantizes only experts; of modelopt, float8 weights are plain."""
