"""Where each attention head of a checkpoint lives, from config.json and safetensors headers alone.

    config.json + headers --read_spec--> ModelSpec: one (tensor, axis, n_heads, head_dim) a layer

Loads no weights, torch or transformers.  Nothing in config.json is believed before it was checked
against its type, a sane range and the tensors' shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

from editor.errors import ModelError, nearest
from editor.families import FAMILIES, QUANTIZED_SUFFIXES, Family
from editor.layout import CONFIG, digest_file, read_headers, read_small
from editor.records import AttentionLayer, Head, ModelSpec
from editor.safetensors_header import TensorEntry, parse_json, shown

MAX_CONFIG_BYTES = 16 << 20
MAX_LAYERS = 4096
MAX_HEADS = 65_536
MAX_SIZE = 1 << 24
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")

_LAYER = r"(0|[1-9][0-9]{0,5})"


class _Config(NamedTuple):
    """config.json with the questions one may ask of it."""

    path: Path
    fields: Mapping[str, object]

    def fail(self, field: str, expected: str, hint: str = "") -> NoReturn:
        found = shown(self.fields[field]) if field in self.fields else "nothing"
        raise ModelError(
            f"{self.path}: {field} should be {expected}, found {found}",
            hint or "config.json does not fit the weights or is damaged: download it again",
        )

    def number(self, names: tuple[str, ...], limit: int) -> int:
        """The whole number in 1..limit that all of `names` that are there agree on."""
        there = [name for name in names if self.fields.get(name) is not None]
        if not there:
            self.fail(names[0], f"a whole number from 1 to {limit}")
        for name in there:
            value = self.fields[name]
            # bool is an int to Python.
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 1 <= cast("int", value) <= limit:
                self.fail(name, f"a whole number from 1 to {limit}")
            if value != self.fields[there[0]]:
                self.fail(name, f"equal to {there[0]} ({shown(self.fields[there[0]])})")
        return cast("int", self.fields[there[0]])

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            self.fail(name, "true or false")
        return value


def read_spec(folder: Path, *, source: str, revision: str | None = None) -> ModelSpec:
    """Find the heads of a checkpoint.

    Args:
        folder: A checkpoint with `config.json` and safetensors.
        source: The name that the spec is to carry: a Hub id, or a folder's name.
        revision: The commit of the source, where it has one.

    Returns:
        The spec, with the sha256 of every weight file (all their bytes are read for it).

    Raises:
        ModelError: The checkpoint is missing, damaged, quantized or of a family that is not
            supported, or config.json and the tensors contradict one another.
    """
    headers = read_headers(folder)
    config = _read_config(folder / CONFIG)
    family = _family(config)
    tensors = {
        name: (file, entry)
        for file, header in headers.items()
        for name, entry in header.tensors.items()
    }
    n_layers = config.number(family.n_layers, MAX_LAYERS)
    found = _projections(folder, family, tensors)
    layers = tuple(
        _layer(folder, config, family, layer=at, name=found[at], where=tensors[found[at]])
        for at in sorted(found)
        if at < n_layers
    )
    if not layers:
        _no_layers(folder, family, tensors)
    return ModelSpec(
        source=source,
        revision=revision,
        model_type=cast("str", config.fields["model_type"]),
        dtype=_one_dtype(folder, [tensors[at.tensor][1].dtype for at in layers]),
        hidden_size=config.number(family.hidden_size, MAX_SIZE),
        n_kv_heads=_n_kv_heads(config, family, layers[0].n_heads),
        tied=config.flag("tie_word_embeddings", family.tied) or family.output not in tensors,
        layers=layers,
        files=tuple(digest_file(folder, name) for name in headers),
        not_covered=_not_covered(config, family, found, n_layers),
    )


def check_heads(spec: ModelSpec, heads: Iterable[Head]) -> None:
    """Require that the model has every one of `heads`.

    Raises:
        ModelError: For the first head that it does not have, with the ranges and the nearest heads.
    """
    by_layer = {at.layer: at for at in spec.layers}
    for head in heads:
        at = by_layer.get(head.layer)
        if at is not None and 0 <= head.head < at.n_heads:
            continue
        numbers = sorted(by_layer)
        if at is None:
            fault = f"attention layers are {_ranges(numbers)}"
        else:
            fault = f"layer {head.layer} has heads 0 to {at.n_heads - 1}"
        layers = sorted(numbers, key=lambda n: (abs(n - head.layer), n))[: 1 if at else 2]
        near = [Head(n, min(max(head.head, 0), by_layer[n].n_heads - 1)) for n in layers]
        raise ModelError(
            f"{spec.source} has no head {head}: {fault}",
            f"nearest: {', '.join(str(one) for one in near)}; {_head_ranges(spec)}",
        )


def _read_config(path: Path) -> _Config:
    fields = parse_json(read_small(path, MAX_CONFIG_BYTES), path, what="config.json")
    config = _Config(path, fields)
    for field in ("quantization_config", "compression_config"):
        value = fields.get(field)
        if value is not None:
            name: object = None
            if isinstance(value, dict):
                name = cast("dict[str, object]", value).get("quant_method")
            raise ModelError(
                f"{path}: the model is quantized ({field}: {shown(name or 'of no name')}), "
                "which is not supported yet",
                "take the unquantized model, edit it, and quantize the result",
            )
    if fields.get("transformers_weights") is not None:
        config.fail(
            "transformers_weights",
            "absent, for it makes transformers load other weights than the folder's",
            "remove the field, if the folder's safetensors are the model",
        )
    return config


def _family(config: _Config) -> Family:
    model_type = config.fields.get("model_type")
    if not isinstance(model_type, str):
        config.fail("model_type", "a string")
    family = FAMILIES.get(model_type)
    if family is None:
        raise ModelError(
            f"{config.path}: model_type {shown(model_type)} is not supported yet",
            nearest(model_type[:80], FAMILIES),
        )
    return family


def _patterns(family: Family, suffix: str) -> re.Pattern[str]:
    name = re.escape(family.module.removeprefix(family.optional)).replace(r"\{\}", _LAYER)
    prefix = f"(?:{re.escape(family.optional)})?"
    return re.compile(f"{prefix}{name}{suffix}", re.ASCII)


def _projections(
    folder: Path, family: Family, tensors: Mapping[str, tuple[str, TensorEntry]]
) -> dict[int, str]:
    """Name of the projection's tensor by layer: the number comes from the name, never the order."""
    pattern = _patterns(family, re.escape(".weight"))
    found: dict[int, str] = {}
    for name in tensors:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        layer = int(match[1])
        if layer in found:
            raise ModelError(
                f"{folder}: layer {layer} has two output projections, {found[layer]} and {name}",
                "the checkpoint was put together wrongly: download it again",
            )
        found[layer] = name
        for suffix, quantization in QUANTIZED_SUFFIXES.items():
            if name.removesuffix(".weight") + suffix in tensors:
                _quantized(folder, name, quantization)
    return found


def _layer(
    folder: Path,
    config: _Config,
    family: Family,
    *,
    layer: int,
    name: str,
    where: tuple[str, TensorEntry],
) -> AttentionLayer:
    file, entry = where
    if entry.dtype not in FLOAT_DTYPES:
        _quantized(folder / file, name, entry.dtype)
    hidden = config.number(family.hidden_size, MAX_SIZE)
    n_heads = config.number(family.n_heads, MAX_HEADS)
    if len(entry.shape) != 2 or entry.shape[1 - family.axis] != hidden:
        expected = f"[{hidden}, heads]" if family.axis == 1 else f"[heads, {hidden}]"
        raise ModelError(
            f"{folder / file}: tensor {name} should have the shape {expected} by "
            f"{'/'.join(family.hidden_size)} of config.json, found {list(entry.shape)}",
            "config.json does not fit the weights: download both again",
        )
    width = entry.shape[family.axis]
    if width < n_heads or width % n_heads:
        config.fail(family.n_heads[0], f"a divisor of {width}, the width of tensor {name}")
    head_dim = width // n_heads
    if config.fields.get("head_dim") is not None:
        stated = config.number(("head_dim",), MAX_SIZE)
        if stated != head_dim:
            config.fail(
                "head_dim", f"{head_dim}, as tensor {name} is {width} wide for {n_heads} heads"
            )
    return AttentionLayer(
        layer=layer,
        module=family.module.format(layer),
        tensor=name,
        file=file,
        n_heads=n_heads,
        head_dim=head_dim,
        axis=family.axis,
    )


def _one_dtype(folder: Path, dtypes: list[str]) -> str:
    names = sorted(set(dtypes))
    if len(names) > 1:
        raise ModelError(
            f"{folder}: the output projections should have one dtype, found {', '.join(names)}",
            "save the model in one dtype",
        )
    return names[0]


def _n_kv_heads(config: _Config, family: Family, n_heads: int) -> int:
    field, n_kv_heads = family.n_kv_heads, n_heads
    grouped = config.flag("new_decoder_architecture", False)
    if family.multi_query is not None and not grouped:
        return 1 if config.flag("multi_query", family.multi_query) else n_heads
    if field is not None and (family.kv_required or config.fields.get(field) is not None):
        n_kv_heads = config.number((field,), MAX_HEADS)
        if n_heads % n_kv_heads:
            config.fail(field, f"a divisor of the {n_heads} heads")
    return n_kv_heads


def _not_covered(
    config: _Config, family: Family, found: Mapping[int, str], n_layers: int
) -> tuple[str, ...]:
    kinds = config.fields.get("layer_types")
    kind_of = cast("list[object]", kinds) if isinstance(kinds, list) else []
    tensor = family.module + ".weight"
    notes: list[str] = []
    for layer in sorted(set(range(n_layers)) - set(found)):
        kind = f" (layer_types: {shown(kind_of[layer])})" if layer < len(kind_of) else ""
        notes.append(f"layer {layer}{kind}: the files hold no {tensor.format(layer)}")
    beyond = sorted(layer for layer in found if layer >= n_layers)
    if beyond:
        notes.append(
            f"layers {_ranges(beyond)}: in the files, but config.json counts {n_layers} layers, "
            "so the model does not load them"
        )
    return tuple(notes)


def _no_layers(
    folder: Path, family: Family, tensors: Mapping[str, tuple[str, TensorEntry]]
) -> NoReturn:
    for suffix, quantization in QUANTIZED_SUFFIXES.items():
        pattern = _patterns(family, re.escape(suffix))
        name = next((name for name in tensors if pattern.fullmatch(name)), None)
        if name is not None:
            _quantized(folder, name, quantization)
    example = next(iter(tensors), None)
    raise ModelError(
        f"{folder}: expected tensors named {family.module.format('N')}.weight, found none "
        f"among {len(tensors)}, such as {shown(example)}",
        "the files belong to another model than config.json says, or to an adapter",
    )


def _quantized(path: Path, name: str, quantization: str) -> NoReturn:
    raise ModelError(
        f"{path}: tensor {name} is quantized ({quantization}), which is not supported yet; "
        f"expected one of {', '.join(FLOAT_DTYPES)}",
        "take the unquantized model, edit it, and quantize the result",
    )


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers as text: 0-3, 7, 9-10."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _head_ranges(spec: ModelSpec) -> str:
    by_count: dict[int, list[int]] = {}
    for at in spec.layers:
        by_count.setdefault(at.n_heads, []).append(at.layer)
    return "; ".join(
        f"layers {_ranges(layers)} have heads 0-{n_heads - 1}"
        for n_heads, layers in by_count.items()
    )
