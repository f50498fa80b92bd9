"""A YAML file -> a `Recipe`: everything that changes the numbers, nothing that does not.

Which capabilities exist is not known here; the names are checked by whoever loads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from editor.errors import UsageError, nearest
from editor.records import Record
from editor.strict_yaml import Kind, faults_of, read_document

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
KIND = Kind("a recipe", "model: gpt2", "`editor recipe schema` prints the fields and their values")

# Strict, because lax parsing would take `true` for 1 and `"3"` for 3.
_Text = Annotated[str, Field(strict=True)]
_Name = Annotated[str, Field(strict=True, min_length=1)]
FEWEST_ITEMS = 4
"""Fewer tell nothing of how much items differ, so there would be no interval."""
_Items = Annotated[int, Field(strict=True, ge=FEWEST_ITEMS)]
_Share = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
_Drop = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Recipe(Record):
    """What to remove from which model, and what counts as removed."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: _Text = ""
    """Short title of the recipe."""
    description: _Text = ""
    """What it is for, and what to expect of it."""
    model: _Name
    """An alias, a Hub id with an optional @revision, a folder, or a .gguf file."""
    capability: _Name | Annotated[tuple[_Name, ...], Field(min_length=1)]
    """The capability to remove, or a list of several that one edit removes: each a name, or a YAML
    file that defines one."""
    controls: tuple[_Name, ...] | None = None
    """Capabilities to keep, by name or file; by default
    recall, arithmetic, copying, english and python, without the one to remove."""
    max_heads: Annotated[int, Field(strict=True, ge=1, le=64)] = 5
    """The most heads to zero."""
    max_control_drop: dict[_Name, _Drop] = {}
    """How much a control may lose, by its name, or `default` for all; else its own limit."""
    min_target_drop: _Share = 0.5
    """Share of the base score above the floor that must be gone."""
    method: Literal["adaptive", "published", "scan", "greedy", "gradient"] = "adaptive"
    """How heads are searched for: pools that follow what earlier pools said, the published design,
    every head alone, every head at every step, or the gradient alone."""
    budget: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    """Evaluations of the target for search and choice together; by default what the method needs,
    for adaptive a third of the heads or fewer."""
    confidence: Annotated[float, Field(strict=True, ge=0.5, lt=1)] = 0.95
    """Probability from which a head counts as decided."""
    score: Literal["logprob", "exact"] = "logprob"
    """What the search looks at: the answers' log-probability, or how many are right."""
    prior: Literal["gradient", "none"] = "gradient"
    """Whether the adaptive search looks at gradients too."""
    universal: Literal["scan", "suspects"] = "scan"
    """How heads are found that all text needs: every head once a model, or only those that the
    search suspects."""
    improve: Annotated[bool, Field(strict=True)] = False
    """Remove heads without which the model does better, instead of a capability."""
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0
    """Seed of every random choice."""
    search_items: _Items = 24
    """Questions a capability for the search."""
    choose_items: _Items = 40
    """Questions a capability for the choice among candidates."""
    test_items: _Items = 160
    """Questions a capability for the final comparison."""
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    """Number type of the computation; auto takes the checkpoint's."""
    chat: Literal["auto", "never", "always"] = "auto"
    """Whether items that are messages are written by the model's chat template: auto where it has
    one, never for plain prompts, always to refuse a model without."""
    output: _Name | None = None
    """Folder for the edited checkpoint."""

    @property
    def targets(self) -> tuple[str, ...]:
        """All capabilities to remove, in the order in which heads are chosen for them."""
        return names_of(self.capability)

    @field_validator("capability", mode="before")
    @classmethod
    def _one_or_several(cls, given: object) -> object:
        """A list of one is that one; a union would report every fault as two."""
        names = cast("Sequence[object]", given if isinstance(given, list | tuple) else [given])
        if not names or not all(isinstance(name, str) and name for name in names):
            found = _SHORT.repr(given)
            raise ValueError(f"capability: expected a name or a list of names, found {found}")
        if len(set(names)) < len(names):
            found = _SHORT.repr(given)
            raise ValueError(f"capability: expected each name once, found {found}")
        return names[0] if len(names) == 1 else tuple(names)

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.controls is None:
            return self
        if not self.controls:
            raise ValueError("controls is empty: leave it out for the usual ones, or name some")
        if len(set(self.controls)) < len(self.controls):
            raise ValueError(f"controls names one twice: {', '.join(self.controls)}")
        for name in self.targets:
            if name in self.controls:
                raise ValueError(f"controls names {name}, which is to be removed")
        known = {*self.controls, "default"}
        # The name of a capability file's capability stands in the file.
        stray = sorted(set(self.max_control_drop) - known)
        if stray and not any(map(is_file, self.controls)):
            raise ValueError(
                f"max_control_drop names {stray[0]}, which is no control "
                f"({nearest(stray[0], known)})"
            )
        return self


def load(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        UsageError: The file cannot be read, is no YAML mapping, or a field is unknown, missing or
            wrong; the message names file, line and field.
    """
    fields, node = read_document(path, KIND)
    try:
        return Recipe.model_validate(_beside(path, fields))
    except ValidationError as error:
        raise _usage_error(error, str(path), node) from error


def names_of(given: object) -> tuple[str, ...]:
    """One name or several, as they may be given for what is to be removed."""
    several = cast("Sequence[object]", given if isinstance(given, list | tuple) else [given])
    return tuple(map(str, several))


def is_file(name: str) -> bool:
    """Whether a capability's name is that of a file that defines one."""
    return name.lower().endswith((".yaml", ".yml"))


def _beside(recipe: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, with capability files named from the recipe's folder, not the working one."""

    def found(name: object) -> object:
        if not isinstance(name, str) or not is_file(name):
            return name
        return str(recipe.parent / name)

    given = dict(fields)
    if "capability" in given:
        named = given["capability"]
        several = isinstance(named, list)
        given["capability"] = (
            [*map(found, cast("list[object]", named))] if several else found(named)
        )
    if isinstance(given.get("controls"), list):
        given["controls"] = [found(name) for name in given["controls"]]
    return given


def make_recipe(**fields: object) -> Recipe:
    """A recipe from its fields, as flags or arguments give them.

    Raises:
        UsageError: A field is unknown, missing or wrong.
    """
    try:
        return Recipe.model_validate(fields)
    except ValidationError as error:
        raise _usage_error(error, "option", None) from error


def override(recipe: Recipe, **changes: object) -> Recipe:
    """The recipe with some fields changed; a change to None leaves the field as it is.

    Raises:
        UsageError: A field is unknown or its new value is wrong.
    """
    return refine(recipe.model_dump(), changes)


def refine(recorded: Mapping[str, Any], changes: Mapping[str, object]) -> Recipe:
    """A recipe from recorded fields and those given instead; None means not given.

    A given limit without a name replaces all recorded ones, a named one its own.  Limits of
    controls that are no more are forgotten, and a capability that is now the target is no control.

    Raises:
        UsageError: A field is unknown, missing or wrong.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    fields = dict(recorded)
    limits: dict[str, float] = {**(fields.pop("max_control_drop", None) or {})}
    target = given.get("capability", fields.get("capability"))
    kept_out = frozenset(names_of(target or ()))
    controls = [name for name in fields.get("controls") or () if name not in kept_out]
    fields["controls"] = controls or None
    limits = {name: limit for name, limit in limits.items() if name not in kept_out}
    wanted = cast("dict[str, float]", given.pop("max_control_drop", None) or {})
    limits = wanted if "default" in wanted else {**limits, **wanted}
    if "controls" in given:
        kept = {*cast("Iterable[str]", given["controls"]), *wanted, "default"}
        limits = {name: limit for name, limit in limits.items() if name in kept}
    return make_recipe(**{**fields, **given, "max_control_drop": limits})


def json_schema() -> dict[str, Any]:
    """The JSON schema of a recipe, for editors that complete and check YAML."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Recipe.model_json_schema(),
    }


def _usage_error(error: ValidationError, where: str, node: yaml.Node | None) -> UsageError:
    found = faults_of(error, where, node, KIND.name, Recipe.model_fields)
    general = KIND.hint if node is not None else f"--help shows the flags, {KIND.hint}"
    return UsageError("\n".join(found.lines), found.hint or general)
