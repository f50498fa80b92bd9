"""config.json with the questions one may ask of it.  No answer is believed before it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn, cast

from editor.errors import ModelError
from editor.layout import read_small
from editor.safetensors_header import parse_json, shown

MAX_CONFIG_BYTES = 16 << 20
MAX_LISTED = 65_536
"""Entries of a list with one for each layer."""

KINDS = ("layer_types", "layers_block_type", "block_types")
"""Fields that tell what each layer is made of."""
_PATTERN = "hybrid_override_pattern"
_PATTERN_KINDS = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}


class Config(NamedTuple):
    """config.json, or the part of it that is about the language model."""

    path: Path
    fields: Mapping[str, object]
    part: str = ""
    """The field that this part is, with a dot behind it."""

    def fail(self, field: str, expected: str, hint: str = "") -> NoReturn:
        found = shown(self.fields[field]) if field in self.fields else "nothing"
        raise ModelError(
            f"{self.path}: {self.part}{field} should be {expected}, found {found}",
            hint or "config.json does not fit the weights or is damaged: download it again",
        )

    def has(self, field: str) -> bool:
        return self.fields.get(field) is not None

    def number(self, names: tuple[str, ...], limit: int) -> int:
        """The whole number in 1..limit that all of `names` that are there agree on."""
        there = [name for name in names if self.has(name)]
        if not there:
            self.fail(names[0], f"a whole number from 1 to {limit}")
        for name in there:
            value = self.fields[name]
            if not _is_number(value, limit):
                self.fail(name, f"a whole number from 1 to {limit}")
            if value != self.fields[there[0]]:
                self.fail(name, f"equal to {there[0]} ({shown(self.fields[there[0]])})")
        return cast("int", self.fields[there[0]])

    def numbers(self, name: str, *, n: int, limit: int) -> list[int]:
        """A list of `n` whole numbers in 1..limit."""
        value = self.fields.get(name)
        listed = cast("list[object]", value) if isinstance(value, list) else []
        if len(listed) != n or not all(_is_number(one, limit) for one in listed):
            self.fail(name, f"a list of {n} whole numbers from 1 to {limit}")
        return cast("list[int]", listed)

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name, default)
        if not isinstance(value, bool):
            self.fail(name, "true or false")
        return value

    def inner(self, name: str, defaults: Mapping[str, int]) -> Config:
        """The object that the field `name` is, completed by `defaults`."""
        value = self.fields.get(name)
        if not isinstance(value, dict):
            self.fail(name, "an object with the language model's config")
        fields = cast("dict[str, object]", value)
        completed = {field: fields[field] for field in fields if fields[field] is not None}
        return Config(self.path, {**defaults, **completed}, f"{self.part}{name}.")

    def of_layer(self, layer: int) -> Config | None:
        """What `per_layer_config` says of a layer, or None where it says nothing."""
        table = self.fields.get("per_layer_config")
        if table is None:
            return None
        if not isinstance(table, dict):
            self.fail("per_layer_config", "an object of objects")
        entry = cast("dict[str, object]", table).get(str(layer))
        if entry is None:
            return None
        name = f"{self.part}per_layer_config."
        return Config(self.path, cast("dict[str, object]", table), name).inner(str(layer), {})

    def kinds(self, n_layers: int | None) -> tuple[str, ...]:
        """What each layer is made of, or () where the config does not tell.

        A list of `block_types` is a pattern that is repeated, up to `n_layers`.
        """
        if isinstance(pattern := self.fields.get(_PATTERN), str):
            if len(pattern) > MAX_LISTED:
                self.fail(_PATTERN, f"at most {MAX_LISTED} letters long")
            if not set(pattern) <= set(_PATTERN_KINDS):
                self.fail(_PATTERN, f"made of {' '.join(_PATTERN_KINDS)}")
            return tuple(_PATTERN_KINDS[letter] for letter in pattern)
        field = next((name for name in KINDS if self.has(name)), None)
        if field is None:
            return ()
        value = self.fields[field]
        listed = cast("list[object]", value) if isinstance(value, list) else []
        if not 0 < len(listed) <= MAX_LISTED or not all(isinstance(kind, str) for kind in listed):
            self.fail(field, f"a list of strings, at most {MAX_LISTED}")
        found = cast("list[str]", listed)
        if field == "block_types" and n_layers is not None:
            found = [found[layer % len(found)] for layer in range(n_layers)]
        return tuple(found)


def read_config(path: Path) -> Config:
    """Read config.json.

    Raises:
        ModelError: It is no JSON object, or tells of weights that lie elsewhere.
    """
    config = Config(path, parse_json(read_small(path, MAX_CONFIG_BYTES), path, what="config.json"))
    if config.has("transformers_weights"):
        config.fail(
            "transformers_weights",
            "absent, for it makes transformers load other weights than the folder's",
            "remove the field, if the folder's safetensors are the model",
        )
    return config


def _is_number(value: object, limit: int) -> bool:
    # bool is an int to Python.
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 1 <= cast("int", value) <= limit
