"""What a terminal shows at the end of `verify`, `undo` and `diff`."""

from __future__ import annotations

from collections.abc import Sequence

from editor.display import heads_text, table
from editor.records import Difference, Head, TensorDifference, Undone, Verified
from editor.wording import one_line, size_text

MAX_SHOWN = 40


def verified_text(found: Verified) -> str:
    """The end of `verify`: what holds, and what could not be told."""
    word = "VERIFIED" if found.base else "VERIFIED, without the base"
    if found.kind == "derivative":
        word = "HEADS ARE ZERO"
    changed = "" if found.bytes_changed is None else f", {found.bytes_changed:,} bytes differ"
    return "\n".join(
        [
            f"{word}: {one_line(found.output)}",
            f"{heads_text(found.heads)}, tensors: {found.tensors}{changed}",
            "checked",
            *(f"  {one_line(line)}" for line in found.shown),
            "NOT checked" if found.not_checked else "NOT checked  nothing",
            *(f"  {one_line(line)}" for line in found.not_checked),
        ]
    )


def undone_text(found: Undone) -> str:
    """The end of `undo`."""
    lines = [
        f"{one_line(found.base)} restored, every file with its old sha256",
        *(f"  {file.sha256}  {one_line(file.name)}" for file in found.files),
    ]
    if found.left_out:
        names = ", ".join(map(one_line, found.left_out))
        lines.append(f"not part of the base, left out: {names}")
    return "\n".join([*lines, f"output  {one_line(found.output)}"])


def difference_text(found: Difference) -> str:
    """What `diff` shows."""
    lines = [f"A  {one_line(found.a)}", f"B  {one_line(found.b)}"]
    if found.same:
        return "\n".join([*lines, f"the same: {found.tensors_equal} tensors and all other files"])
    lines.append(
        f"{len(found.tensors)} tensors differ, {found.tensors_equal} are equal; "
        f"{len(found.files)} other files differ"
    )
    rows = [("Tensor", "Difference", "Heads"), *map(_row, found.tensors[:MAX_SHOWN])]
    if found.tensors:
        lines += ["", *table(rows, "<<<")]
    if len(found.tensors) > MAX_SHOWN:
        lines.append(f"and {len(found.tensors) - MAX_SHOWN} more tensors; --json lists all")
    if found.files:
        lines += ["", "other files", *(f"  {one_line(name)}" for name in found.files[:MAX_SHOWN])]
    return "\n".join([*lines, *(one_line(note) for note in found.notes)])


def _row(at: TensorDifference) -> tuple[str, str, str]:
    if at.kind == "bytes":
        what = f"{at.bytes_changed:,} of {size_text(at.bytes_total)}"
        what = what.replace(" of ", " bytes of ")
    elif at.kind in ("shape", "dtype"):
        what = f"{at.a} -> {at.b}"
    else:
        what = f"{at.kind}: {at.a or at.b}"
    return one_line(at.tensor), one_line(what), _heads(at)


def _heads(at: TensorDifference) -> str:
    if at.kind != "bytes":
        return ""
    changed = [head for head in at.heads if head not in at.zeroed]
    parts = [f"{_list(at.zeroed)} zero in B"] if at.zeroed else []
    parts += [f"{_list(changed)} changed"] if changed else []
    if at.heads and at.beside_heads:
        parts.append("and more beside heads")
    return "; ".join(parts)


def _list(heads: Sequence[Head]) -> str:
    shown = ", ".join(map(str, heads[:8]))
    return shown + (f" and {len(heads) - 8} more" if len(heads) > 8 else "")
