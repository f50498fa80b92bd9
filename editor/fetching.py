"""What `editor capabilities fetch` gets, and what it says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from editor import capabilities, datasets
from editor.capabilities.hazards import FAMILY, HAZARDS
from editor.display import table
from editor.errors import UsageError, nearest
from editor.library import Library, Missing
from editor.wording import size_text


def wanted(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The data sets that names of data sets and capabilities stand for, each once.

    Returns:
        Of each the names that may stand in for it too, as in `Capability.data`.

    Raises:
        UsageError: a name is neither, or a capability needs no data set.
    """
    found: dict[tuple[str, ...], None] = {}
    families = {FAMILY: [one.name for one in HAZARDS]}
    for name in (one for given in names for one in families.get(given, [given])):
        if name in datasets.names():
            found[(name,)] = None
        elif name in capabilities.names():
            of = capabilities.get(name).data
            if not of:
                raise UsageError(
                    f"{name} needs no data set: its items come with the editor",
                    f"data sets: {', '.join(datasets.names())}",
                )
            found |= dict.fromkeys((one,) if isinstance(one, str) else one for one in of)
        else:
            known = {*datasets.names(), *capabilities.names()}
            raise UsageError(f"no data set or capability is called {name!r}", nearest(name, known))
    return list(found)


def fetched(library: Library, names: tuple[str, ...]) -> dict[str, Any]:
    """Get the first of several data sets that is to be had, and say what it is.

    Raises:
        UsageError: none is.
        OSError: the cache cannot be written.
    """
    missing: list[Missing] = []
    for name in filter(None, names):
        try:
            file = library.fetch(name)
        except Missing as error:
            missing.append(error)
            continue
        found, about = library.found(name), datasets.data_set(name)
        return {
            "name": name,
            "instead_of": names[0] if missing else None,
            "rows": len(found.rows),
            "bytes": file.stat().st_size,
            "sha256": found.sha256,
            "origin": found.origin,
            "revision": found.revision,
            "licence": about.licence,
            "homepage": about.homepage,
            "file": str(file),
        }
    raise missing[0]


def fetched_text(rows: Sequence[dict[str, Any]]) -> str:
    """One line a data set."""
    cells = [("Data set", "Rows", "Size", "Licence", "From", "File")]
    for row in rows:
        name = row["name"] + (f" (for {row['instead_of']})" if row["instead_of"] else "")
        size = size_text(row["bytes"])
        cells.append((name, str(row["rows"]), size, row["licence"], row["origin"], row["file"]))
    return "\n".join(table(cells, "<>><<<"))
