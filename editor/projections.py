"""The output projections that a checkpoint holds, told by their names, and which can be edited."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from editor.coverage import NO_ATTENTION, layers_text
from editor.errors import ModelError
from editor.family import Family
from editor.model_config import Config
from editor.safetensors_header import TensorEntry, shown

MAX_LAYERS = 4096
_SUFFIXES = (".weight", ".qweight", ".weight_packed")
"""Ends of the names under which files store a projection's weight."""

_LAYER = r"(?P<layer>0|[1-9][0-9]{0,5})"

Tensors = Mapping[str, tuple[str, TensorEntry]]
"""File and entry of each tensor by its name."""


class Place(NamedTuple):
    """A projection that the files hold."""

    layer: int
    """As the name counts: of a family with parts, several projections have one."""
    part: int
    stem: str
    """The projection's name in the files, without `.weight`."""


class Model(NamedTuple):
    """What is known of the model before its tensors are looked at."""

    folder: Path
    outer: Config
    """All of config.json."""
    config: Config
    """The language model's part."""
    family: Family
    n_layers: int
    """As the names count."""
    kinds: tuple[str, ...]

    @property
    def n_parts(self) -> int:
        return len(self.family.parts) or 1

    def number(self, place: Place) -> int:
        """The layer that a user means: attentions counted through."""
        if self.family.stacked:
            return place.part * self.n_layers + place.layer
        return place.layer * self.n_parts + place.part

    def kind(self, number: int) -> str:
        layer = number % self.n_layers if self.family.stacked else number // self.n_parts
        return self.kinds[layer] if layer < len(self.kinds) else ""

    def named(self, template: str, number: int) -> str:
        if self.family.stacked:
            part, layer = divmod(number, self.n_layers)
        else:
            layer, part = divmod(number, self.n_parts)
        return template.format(layer, part=self.family.parts[part] if self.family.parts else "")


def _patterns(family: Family) -> Iterator[re.Pattern[str]]:
    parts = "|".join(re.escape(part) for part in family.parts)
    for template in family.names():
        name = re.escape(template).replace(r"\{\}", _LAYER)
        name = name.replace(r"\{part\}", f"(?P<part>{parts})")
        yield re.compile(name, re.ASCII)


def _matches(family: Family, tensors: Iterable[str]) -> Iterator[Place]:
    """The projections among the tensors, however their weights are stored."""
    patterns = list(_patterns(family))
    stems: dict[str, None] = {}
    for name in tensors:
        suffix = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), None)
        if suffix is not None:
            stems[name.removesuffix(suffix)] = None
    for stem in stems:
        match = next((at for pattern in patterns if (at := pattern.fullmatch(stem))), None)
        if match is not None:
            part = family.parts.index(match["part"]) if family.parts else 0
            yield Place(int(match["layer"]), part, stem)


def places_of(model: Model, tensors: Tensors) -> list[Place]:
    """The projections in the files: the number comes from the name, never from the order."""
    found: dict[tuple[int, int], Place] = {}
    for place in _matches(model.family, tensors):
        key = (place.layer, place.part)
        if key in found:
            raise ModelError(
                f"{model.folder}: layer {place.layer} has two output projections, "
                f"{found[key].stem} and {place.stem}",
                "the checkpoint was put together wrongly: download it again",
            )
        found[key] = place
    return list(found.values())


def sorted_out(
    model: Model, places: list[Place], tensors: Tensors
) -> tuple[dict[int, str], dict[int, str]]:
    """The projections that can be edited, by layer, and why the other layers have none."""
    names = {model.number(at): at.stem for at in places if at.layer < model.n_layers}
    served = shared_blocks(model, names)
    found: dict[int, str] = {}
    uncovered: dict[int, str] = {}
    for number in range(model.n_layers * model.n_parts):
        name, kind = names.get(number), model.kind(number)
        if number in served:
            if served[number] == number:
                found[number] = cast("str", name)
        elif kind in NO_ATTENTION:
            uncovered[number] = f"{NO_ATTENTION[kind]} (layer_types: {shown(kind)})"
        elif name is None:
            uncovered[number] = _missing(model, number, kind)
        elif (sibling := _sibling(model.family, name)) and not _stored(sibling, tensors):
            uncovered[number] = f"{NO_ATTENTION['linear_attention']} (there is no {sibling})"
        else:
            found[number] = name
    return found, uncovered


def _sibling(family: Family, stem: str) -> str:
    """The tensor that must stand beside a projection, where the family has such a tensor."""
    return f"{stem.rpartition('.')[0]}.{family.sibling}" if family.sibling else ""


def _stored(name: str, tensors: Tensors) -> bool:
    """Whether a weight is there, quantized or not."""
    stem = name.removesuffix(".weight")
    return name in tensors or any(stem + suffix in tensors for suffix in _SUFFIXES)


def _missing(model: Model, number: int, kind: str) -> str:
    cross = model.config.fields.get("cross_attention_layers")
    if isinstance(cross, list) and number in cast("list[object]", cross):
        return "cross-attention to images, not to the text"
    # Of several such layers one line tells, so the tensor is named without its number.
    name = model.family.module.format("N", part="P") + ".weight"
    return f"the files hold no {name}{f' (layer_types: {shown(kind)})' if kind else ''}"


def shared_blocks(model: Model, names: Mapping[int, str]) -> dict[int, int]:
    """By layer that uses a shared attention block: the layer at which the block is saved."""
    field = model.family.shared
    if field is None:
        return {}
    hybrid = [layer for layer in range(model.n_layers) if model.kind(layer) == "hybrid"]
    n_blocks = model.config.number((field,), MAX_LAYERS) if model.config.has(field) else 1
    if not hybrid:
        model.config.fail("layers_block_type", "a list of layer types, some of them 'hybrid'")
    sources = hybrid[:n_blocks]
    if sorted(names) != sources:
        raise ModelError(
            f"{model.folder}: the attention blocks that layers share should be saved once, at "
            f"{layers_text(sources)}; found {layers_text(names) if names else 'none'}",
            "save the model once more with this version of transformers",
        )
    return {layer: sources[at % len(sources)] for at, layer in enumerate(hybrid)}
