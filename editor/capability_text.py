"""What `editor capabilities` shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from editor.display import table
from editor.wording import one_line

if TYPE_CHECKING:
    from editor.capabilities import Capability
    from editor.records import Item

EXAMPLES_SHOWN = 5


def capability_fields(capability: Capability) -> dict[str, Any]:
    """What is known of a capability, with a few of its questions.

    Without a library nothing is said of items that come from data sets.

    Raises:
        UsageError: a data set that its items come from is not there.
    """
    counts, shown = _items(capability)
    is_text = capability.kind == "text"
    return {
        "name": capability.name,
        "kind": capability.kind,
        "summary": capability.summary,
        "metric": "nats_per_token" if is_text else "exact",
        "floor": None if is_text else capability.floor,
        "control_limit": capability.control_limit,
        "default_control": capability.default_control,
        "data": [[one] if isinstance(one, str) else list(one) for one in capability.data],
        "rows_sha256": capability.data_digests,
        "items": counts,
        "source": capability.source,
        "licence": capability.licence,
        "examples": [
            item.model_dump(include={"prompt", "answer", "variant", "transfer"}) for item in shown
        ],
    }


def counts_text(row: dict[str, Any]) -> str:
    """How many items of each kind, in one line."""
    counts = ", ".join(f"{name} {count}" for name, count in row["items"].items())
    floor = "" if row["floor"] is None else f"; floor {row['floor']:g}"
    return f"ok: {row['name']}, a {row['kind']} with {counts} items{floor}"


def _items(capability: Capability) -> tuple[dict[str, int] | None, list[Item]]:
    """How many items there are of each kind, and a few of them."""
    if capability.data and capability.library is None:
        return None, []
    counts = {split: len(capability.items(split)) for split in ("search", "choose", "test")}
    transfer = capability.items("test", transfer=True)
    shown = [*_variants(capability.items("search"), EXAMPLES_SHOWN), *_variants(transfer, 2)]
    return {**counts, "transfer": len(transfer)}, shown


def capabilities_text(rows: Sequence[dict[str, Any]]) -> str:
    """One line a capability."""
    cells = [("Name", "Kind", "Control", "Floor", "Items search/choose/test", "Licence", "Summary")]
    for row in rows:
        items = _counts(row)
        control = "default" if row["default_control"] else "if named"
        about = (row["licence"], row["summary"])
        cells.append((row["name"], row["kind"], control, _floor(row), items, *about))
    notes = (
        "A task can be removed; a text is a control only.  `editor capabilities show NAME`",
        "Control: kept by default, or only if named with --control.",
        "Items that come from a data set: `editor capabilities fetch NAME` gets it.",
    )
    return "\n".join([*table(cells, "<<<>><<"), "", *notes])


def _counts(row: dict[str, Any]) -> str:
    """Items of the splits, or the data sets that they would come from."""
    if row["items"] is None:
        return ", ".join(_sets(row))
    return "/".join(str(row["items"][split]) for split in ("search", "choose", "test"))


def _sets(row: dict[str, Any]) -> list[str]:
    """The data sets, each with what may stand in for it."""
    return [" or ".join(name or "none" for name in names) for names in row["data"]]


def capability_text(row: dict[str, Any]) -> str:
    """Everything about one capability."""
    items = ", ".join(f"{name} {count}" for name, count in row["items"].items())
    unit = "nats a token" if row["kind"] == "text" else "share of right answers"
    when = "by default" if row["default_control"] else "if named with --control"
    what = "can be removed, and kept as a control" if row["kind"] == "task" else "a control only"
    lines = [
        f"{row['name']}: {row['summary']}",
        f"kind         {row['kind']} ({what})",
        f"metric       {row['metric']}",
        f"floor        {_floor(row)}",
        f"as control   {when}; may lose {row['control_limit']:g} {unit} by default",
        f"items        {items}",
        f"data         {row['source']}",
        f"licence      {row['licence']}",
        *(f"rows         {name}, sha256 {sha256}" for name, sha256 in row["rows_sha256"].items()),
    ]
    for item in row["examples"]:
        form = item["variant"] + (", kept out of the search" if item["transfer"] else "")
        lines += ["", f"[{form}]", *(f"  {line}" for line in item["prompt"].splitlines())]
        lines.append(f"  -> {one_line(item['answer'])}")
    return "\n".join(lines)


def _floor(row: dict[str, Any]) -> str:
    return "-" if row["floor"] is None else f"{row['floor']:g}"


def _variants(items: Sequence[Any], limit: int) -> list[Any]:
    """The first item of each form, at most `limit`."""
    firsts = {item.variant: item for item in reversed(items)}
    forms = dict.fromkeys(item.variant for item in items)
    return [firsts[form] for form in forms][:limit]
