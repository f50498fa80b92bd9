"""Where each attention head of a checkpoint lives, from config.json and safetensors headers alone.

    config.json + headers --read_spec--> ModelSpec: one (tensor, axis, n_heads, head_dim) a layer

Loads no weights, torch or transformers.  Nothing in config.json is believed before it was checked
against its type, a sane range and the tensors' shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from editor.coverage import grouped, layers_text, ranges
from editor.errors import ModelError, nearest
from editor.families import FAMILIES
from editor.family import Family
from editor.layout import CONFIG, read_headers, read_tensor
from editor.model_config import Config, read_config
from editor.projections import (
    MAX_LAYERS,
    Model,
    Place,
    Tensors,
    places_of,
    shared_blocks,
    sorted_out,
)
from editor.quantization import quantized, storage
from editor.records import AttentionLayer, FileSize, Head, ModelSpec
from editor.safetensors_header import TensorEntry, shown
from editor.stored_shape import logical_shape
from editor.unsupported import REFUSED

MAX_HEADS = 4096
MAX_SIZE = 1 << 24


def read_spec(folder: Path, *, source: str, revision: str | None = None) -> ModelSpec:
    """Find the heads of a checkpoint.

    Args:
        folder: A checkpoint with `config.json` and safetensors.
        source: The name that the spec is to carry: a Hub id, or a folder's name.
        revision: The commit of the source, where it has one.

    Returns:
        The spec; of the weight files only the headers are read.

    Raises:
        ModelError: The checkpoint is missing, damaged, quantized or of a family that is not
            supported, or config.json and the tensors contradict one another.
    """
    headers = read_headers(folder)
    outer = read_config(folder / CONFIG)
    model_type, family = _family(outer)
    config = _language_part(outer, family)
    _check_flags(outer, config, family)
    tensors = {
        name: (file, entry)
        for file, header in headers.items()
        for name, entry in header.tensors.items()
    }
    model = _model(folder, outer, config, family)
    places = places_of(model, tensors)
    found, uncovered = sorted_out(model, places, tensors)
    layers = tuple(_layer(model, at, found[at], tensors) for at in sorted(found))
    if not layers:
        _no_layers(model, tensors, uncovered if places else {})
    tied = (outer if outer.has("tie_word_embeddings") else config).flag(
        "tie_word_embeddings", family.tied
    )
    return ModelSpec(
        source=source,
        revision=revision,
        model_type=model_type,
        dtype=", ".join(sorted({tensors[at.tensor][1].dtype for at in layers})),
        hidden_size=config.number(family.hidden_size, MAX_SIZE),
        n_kv_heads=_n_kv_heads(config, family, layers[0].n_heads),
        tied=tied or not any(name in tensors for name in family.output),
        layers=layers,
        files=tuple(FileSize(name=name, n_bytes=at.file_bytes) for name, at in headers.items()),
        not_covered=grouped(uncovered),
        notes=(*_notes(model, places, found, tensors), *([family.note] if family.note else [])),
        n_layers=model.n_layers * model.n_parts,
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
            fault = f"attention layers are {ranges(numbers)}"
        else:
            fault = f"layer {head.layer} has heads 0 to {at.n_heads - 1}"
        layers = sorted(numbers, key=lambda n: (abs(n - head.layer), n))[: 1 if at else 2]
        near = [Head(n, min(max(head.head, 0), by_layer[n].n_heads - 1)) for n in layers]
        raise ModelError(
            f"{spec.source} has no head {head}: {fault}",
            f"nearest: {', '.join(str(one) for one in near)}; {_head_ranges(spec)}",
        )


def _family(config: Config) -> tuple[str, Family]:
    model_type = config.fields.get("model_type")
    if not isinstance(model_type, str):
        config.fail("model_type", "a string")
    _check_not_refused(config, model_type)
    family = FAMILIES.get(model_type)
    if family is None:
        raise ModelError(
            f"{config.path}: model_type {shown(model_type)} is not supported yet",
            nearest(model_type[:80], FAMILIES),
        )
    return model_type, family


def _check_not_refused(config: Config, model_type: str) -> None:
    if model_type in REFUSED:
        raise ModelError(
            f"{config.path}: a model of type {model_type} cannot be edited: {REFUSED[model_type]}",
            "choose a model with attention heads of its own",
        )


def _language_part(outer: Config, family: Family) -> Config:
    defaults = dict(family.defaults)
    if not family.text:
        return outer._replace(fields={**defaults, **outer.fields})
    config = outer.inner("text_config", defaults)
    if isinstance(inner := config.fields.get("model_type"), str):
        _check_not_refused(config, inner)  # some models take any language model as their part
    return config


def _check_flags(outer: Config, config: Config, family: Family) -> None:
    for at in (outer, config) if family.text else (config,):
        if not at.flag("is_causal", True):
            at.fail("is_causal", "true", "a model whose attention looks ahead cannot be edited")
    inner = FAMILIES.get(str(config.fields.get("model_type")), family)
    for flag in dict.fromkeys((*family.flags, *inner.flags)):
        value = config.fields.get(flag.field, flag.default)
        # 1 == True and 0 == False to Python, but not to transformers' checks of types.
        if not any(type(value) is type(one) and value == one for one in flag.allowed):
            expected = " or ".join(shown(one) for one in flag.allowed)
            config.fail(flag.field, f"{expected} ({flag.reason})", "choose another model")


def _model(folder: Path, outer: Config, config: Config, family: Family) -> Model:
    names = family.n_layers
    if family.n_layers_else is not None and not any(config.has(name) for name in names):
        names = (family.n_layers_else,)
    kinds = config.kinds(None) if family.listed else ()
    if kinds:
        if len(kinds) > MAX_LAYERS:
            config.fail("layers_block_type", f"at most {MAX_LAYERS} layers long")
        if config.has(names[0]) and config.number(names, MAX_LAYERS) != len(kinds):
            config.fail(names[0], f"{len(kinds)}, the number of layers that are listed")
        return Model(folder, outer, config, family, len(kinds), kinds)
    n_layers = config.number(names, MAX_LAYERS)
    return Model(folder, outer, config, family, n_layers, config.kinds(n_layers))


def _layer(model: Model, number: int, stem: str, tensors: Tensors) -> AttentionLayer:
    config, family = model.config, model.family
    stored = storage(_quantization(model), stem, tensors, model.outer.path)
    file = tensors[stored.tensor][0]

    def read(name: str) -> tuple[TensorEntry, bytes]:
        where, entry = tensors[name]
        return entry, read_tensor(model.folder / where, name, entry)

    shape = logical_shape(stored, tensors, read, model.folder)
    axis = 1 if stored.linear else family.axis
    hidden = config.number(family.hidden_size, MAX_SIZE)
    if shape[1 - axis] != hidden:
        expected = f"[{hidden}, heads]" if axis == 1 else f"[heads, {hidden}]"
        raise ModelError(
            f"{model.folder / file}: tensor {stored.tensor} should have the shape {expected} by "
            f"{'/'.join(family.hidden_size)} of config.json, found {list(shape)}",
            "config.json does not fit the weights: download both again",
        )
    field, n_heads = _n_heads(model, number)
    width = shape[axis]
    why = f"tensor {stored.tensor} is {width} wide"
    if width < n_heads or width % n_heads:
        config.fail(field, f"a divisor of {width}, as {why}")
    _check_head_dim(model, number, width // n_heads, f"{why} for {n_heads} heads")
    return AttentionLayer(
        layer=number,
        module=model.named(family.module, number),
        tensor=stored.tensor,
        file=file,
        n_heads=n_heads,
        head_dim=width // n_heads,
        axis=axis,
        code=stored.code,
    )


def _quantization(model: Model) -> Mapping[str, object]:
    """The config that says how weights are stored: the model's, or its language part's own."""
    inner = quantized(model.config.fields) and not quantized(model.outer.fields)
    return model.config.fields if inner else model.outer.fields


def _n_heads(model: Model, number: int) -> tuple[str, int]:
    """How many heads a layer has, and the field that says so."""
    config, family = model.config, model.family
    own = config.of_layer(number)
    if own is not None and any(own.has(name) for name in family.n_heads):
        return family.n_heads[0], own.number(family.n_heads, MAX_HEADS)
    field = family.heads_by_layer
    if field is not None and config.has(field):
        return field, config.numbers(field, n=model.n_layers, limit=MAX_HEADS)[number]
    n_heads = config.number(family.n_heads, MAX_HEADS)
    field = family.sliding_heads
    if field is None or config.has("per_layer_config"):
        return family.n_heads[0], n_heads
    sliding = config.number((field,), MAX_HEADS)
    if not model.kind(number) and sliding != n_heads:
        config.fail("layer_types", f"a list of what each of {model.n_layers} layers is")
    if "sliding" in model.kind(number):
        return field, sliding
    return family.n_heads[0], n_heads


def _check_head_dim(model: Model, number: int, head_dim: int, why: str) -> None:
    own = model.config.of_layer(number)
    for config in (own, model.config):
        names = [name for name in model.family.head_dim if config is not None and config.has(name)]
        if config is None or not names:
            continue
        if head_dim not in [config.number((name,), MAX_SIZE) for name in names]:
            config.fail(names[0], f"{head_dim}, as {why}")
        return


def _n_kv_heads(config: Config, family: Family, n_heads: int) -> int:
    field, n_kv_heads = family.n_kv_heads, n_heads
    grouped_ = config.flag("new_decoder_architecture", False)
    if family.multi_query is not None and not grouped_:
        return 1 if config.flag("multi_query", family.multi_query) else n_heads
    if field is not None and (family.kv_required or config.has(field)):
        n_kv_heads = config.number((field,), MAX_HEADS)
        simple = family.sliding_heads is None and family.heads_by_layer is None
        if simple and n_heads % n_kv_heads:
            config.fail(field, f"a divisor of the {n_heads} heads")
    return n_kv_heads


def _notes(
    model: Model, places: list[Place], found: Mapping[int, str], tensors: Tensors
) -> Iterator[str]:
    beyond = sorted({at.layer for at in places if at.layer >= model.n_layers})
    if beyond:
        yield (
            f"{layers_text(beyond)}: in the files, but config.json counts {model.n_layers} layers, "
            "so the model does not load them"
        )
    served = shared_blocks(model, found)
    for source in found:
        users = [layer for layer in served if served[layer] == source]
        if len(users) > 1:
            yield f"layer {source}: saved once, serves {layers_text(users)}"
    if model.family.text:
        yield from _not_language(found, tensors)


def _not_language(found: Mapping[int, str], tensors: Tensors) -> Iterator[str]:
    """The parts of a model with attention that is not the language model's."""
    first = next(iter(found.values()), "")
    language = first[: first.find(".layers.") + 1]
    others = {
        ".".join(name.split(".")[: 2 if name.startswith("model.") else 1])
        for name in tensors
        if "attn" in name or "attention" in name
        if not name.startswith(language)
    }
    for part in sorted(others):
        yield f"{part}: has attention that is not the language model's, and stays as it is"


def _no_layers(model: Model, tensors: Tensors, uncovered: Mapping[int, str]) -> NoReturn:
    if uncovered:
        raise ModelError(
            f"{model.folder}: no layer has heads that can be zeroed; {grouped(uncovered)[0]}",
            "choose a model with attention heads",
        )
    example = next(iter(tensors), None)
    raise ModelError(
        f"{model.folder}: expected tensors named {model.family.module.format('N', part='P')}"
        f".weight, found none among {len(tensors)}, such as {shown(example)}",
        "the files belong to another model than config.json says, or to an adapter",
    )


def _head_ranges(spec: ModelSpec) -> str:
    by_count: dict[int, list[int]] = {}
    for at in spec.layers:
        by_count.setdefault(at.n_heads, []).append(at.layer)
    return "; ".join(
        f"layers {ranges(layers)} have heads 0-{n_heads - 1}"
        for n_heads, layers in by_count.items()
    )
