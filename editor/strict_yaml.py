"""YAML files that people write: read strictly, every fault with its line.

Repeated keys and aliases are refused, and values are not converted: `true` is no number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from reprlib import Repr
from typing import Any, NamedTuple, cast

import yaml
from pydantic import ValidationError

from editor.errors import UsageError, nearest

MAX_BYTES = 1_000_000

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 3


class Kind(NamedTuple):
    """A kind of file, in the words of its messages."""

    name: str
    """`a recipe`"""
    example: str
    """One of its fields, as it is written."""
    hint: str
    """Where its fields are told."""


class Document(NamedTuple):
    """A file's fields, and where they stand."""

    fields: dict[str, Any]
    node: yaml.Node


def read_document(path: Path, kind: Kind) -> Document:
    """Read a file that holds one mapping.

    Raises:
        UsageError: it cannot be read, or is no YAML mapping; the message names file and line.
    """
    text = read_text(path, kind.name)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        data = None if node is None else loader.construct(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{path}:{mark.line + 1}" if mark else f"{path}"
        raise UsageError(f"{at}: {error.problem or error.context}", kind.hint) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}", kind.hint) from error
    except RecursionError as error:
        raise UsageError(f"{path}: values are nested too deeply", kind.hint) from error
    if node is None or not isinstance(data, dict):
        found = "nothing" if data is None else _SHORT.repr(data)
        message = f"{path}: expected fields such as `{kind.example}`, found {found}"
        raise UsageError(message, kind.hint)
    return Document(cast("dict[str, Any]", data), node)


def read_text(path: Path, what: str, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file.

    Args:
        what: what such a file is called, as `a recipe`.

    Raises:
        UsageError: it is not there, too large, or no UTF-8.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(max_bytes + 1)
    except OSError as error:
        others = [file.name for file in path.parent.glob("*.y*ml")] if not path.exists() else []
        hint = nearest(path.name, others) if others else "give the path of a YAML file"
        raise UsageError(f"{path}: {error.strerror or error}", hint) from error
    if len(raw) > max_bytes:
        raise UsageError(f"{path}: {what} has at most {max_bytes:,} bytes, this has more")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line}: expected UTF-8 text, found other bytes") from error


class Faults(NamedTuple):
    """What is wrong with the values of a file."""

    lines: list[str]
    """Each fault as `file:line: field: expected this, found that`."""
    hint: str


def faults_of(
    error: ValidationError, where: str, node: yaml.Node | None, what: str, known: Iterable[str]
) -> Faults:
    """Tell a validation's faults by their place.

    Args:
        where: the file, or what stands in its place.
        node: the file's YAML, for the lines.
        what: what such a file is called, as `a recipe`.
        known: the names of its fields, for a misspelt one.
    """
    lines: list[str] = []
    hint = ""
    for fault in error.errors(include_url=False):
        loc, found = fault["loc"], _SHORT.repr(fault["input"])
        field = ".".join(str(part) for part in loc if part != "[key]")
        line = line_of(node, loc)
        place = f"{where}:{line}" if line else where
        if fault["type"] == "extra_forbidden":
            hint = nearest(str(loc[-1]), known)
            lines.append(f"{place}: {field}: no field of {what}")
        elif fault["type"] == "missing":
            lines.append(f"{place}: {field}: must be given")
        elif fault["type"] == "value_error":
            lines.append(f"{place}: {fault['msg'].removeprefix('Value error, ')}")
        else:
            expected = fault["msg"].removeprefix("Input should be ")
            lines.append(f"{place}: {field}: expected {expected}, found {found}")
    return Faults(lines, hint)


def line_of(node: yaml.Node | None, loc: Iterable[int | str]) -> int | None:
    """Line of the innermost part of `loc` that stands in the file."""
    line: int | None = None
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == str(part)]
            if not pairs:
                break
            key, node = pairs[0]
            line = _line_of(key)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            item: yaml.Node = node.value[part]
            line, node = _line_of(item), item
        else:
            break
    return line


def _line_of(node: yaml.Node) -> int | None:
    return node.start_mark.line + 1 if node.start_mark else None


class _Loader(yaml.SafeLoader):
    """YAML without repeated keys, which would silently override, and without aliases.

    Aliases are refused because merged ones grow exponentially with the size of the file.
    """

    def construct(self, node: yaml.Node) -> object:
        """The values of a whole document."""
        return cast("object", self.construct_document(node))  # pyright: ignore[reportUnknownMemberType]

    def here(self) -> yaml.Mark:
        """Where the loader stands."""
        return cast("yaml.Mark", self.get_mark())  # pyright: ignore[reportUnknownMemberType]

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One node of the tree."""
        if self.check_event(yaml.AliasEvent):  # pyright: ignore[reportUnknownMemberType]
            raise yaml.MarkedYAMLError(
                problem="YAML aliases are not read", problem_mark=self.here()
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The values of one mapping."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"{key.value} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes 1e-3, without a point, for text.
_Loader.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType]
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)
