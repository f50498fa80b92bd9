"""A library of rows that a test gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Rows:
    """A library of given rows; a data set that has none is not there."""

    def __init__(self, **rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = {
            name.replace("_", "-") if "wmdp" in name else name: of for name, of in rows.items()
        }

    def rows(self, name: str) -> Sequence[Mapping[str, Any]]:
        return self._rows[name]

    def first(self, names: tuple[str, ...]) -> str:
        return next(name for name in names if not name or name in self._rows)

    def digest(self, name: str) -> str:
        return f"digest of {name}"
