"""Records to what a terminal shows at the end of a command.

Texts only; the console strips what a model or a file name could do to a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from editor.coverage import ranges
from editor.records import (
    AttentionLayer,
    FileDigest,
    Head,
    Localization,
    Manifest,
    ModelSpec,
    Removal,
    Result,
    Validation,
)
from editor.staging import beside
from editor.wording import one_line, results_table

if TYPE_CHECKING:
    from editor.capabilities import Capability
    from editor.preview import Preview

MAX_NOT_COVERED = 12
EXAMPLES_SHOWN = 5


def removal_text(removal: Removal, manifest: Manifest) -> str:
    """The end of `remove`: table, verdict, what changed, where to look."""
    return "\n".join(
        [
            f"{one_line(removal.capability)} in {one_line(removal.model)}: "
            f"{heads_text(removal.heads)} zeroed",
            f"{removal.evaluations} evaluations of {one_line(removal.capability)}, "
            f"{removal.scan_evaluations} in the once-a-model scan, {removal.elapsed_s:.0f} s",
            "",
            results_table(removal.results),
            "",
            *_verdict(removal.accepted, removal.reasons, removal.results),
            *([] if removal.accepted else [f"The output is kept in {removal.output}, marked so."]),
            "",
            *_changed(manifest),
            f"output  {removal.output}",
            f"undo    {beside(Path(removal.output))}  (the removed bytes: do not publish them)",
            f"report  {removal.report}",
            f"run     {removal.run}",
        ]
    )


def localization_text(found: Localization) -> str:
    """The end of `localize`."""
    effects = found.estimates[0].effects if found.estimates else ()
    strongest = [one for one in effects if one.effect > 0][:10]
    rows = [("Head", "Effect", "95% CI", "Masks")]
    for one in strongest:
        interval = f"{one.low:+.3f} to {one.high:+.3f}"
        rows.append((str(one.head), f"{one.effect:+.3f}", interval, str(one.n_masks)))
    fit = found.estimates[0].fit_r2 if found.estimates else None
    chosen = ",".join(map(str, found.heads))
    return "\n".join(
        [
            f"{one_line(found.plan.capability)}: {heads_text(found.heads)} chosen",
            f"{found.evaluations} evaluations, {found.scan_evaluations} in the once-a-model scan"
            + ("" if fit is None else f", held-out R2 of the additive fit {fit:.2f}"),
            "",
            *table(rows, "<>>>"),
            "",
            f"why     {found.plan.why}",
            f"write   editor bake -m MODEL --heads {chosen} -o OUT",
            f"run     {found.run}",
        ]
    )


def bake_text(manifest: Manifest, output: str, patch: str) -> str:
    """The end of `bake`."""
    earlier = [head for one in manifest.earlier for head in one.heads]
    composed = f"on top of {heads_text(earlier)} of earlier edits" if earlier else ""
    return "\n".join(
        [
            f"{one_line(manifest.base)}: {heads_text(manifest.heads)} zeroed, nothing measured",
            *([composed] if composed else []),
            *_changed(manifest),
            f"output  {output}",
            f"undo    {patch}  (the removed bytes: keep it, do not publish it)",
            f"next    editor verify {output} --base MODEL; editor validate {output} -c CAPABILITY",
        ]
    )


def validation_text(validation: Validation, edited: str) -> str:
    """The end of `validate`."""
    return "\n".join(
        [
            results_table(validation.results),
            "",
            *_verdict(validation.accepted, validation.reasons, validation.results),
            f"masked and baked model differ by at most {validation.masked_vs_baked:g} nats",
            f"checked {edited}",
        ]
    )


def spec_text(spec: ModelSpec, unedited: Sequence[str]) -> str:
    """What `inspect` shows: the model, which heads can be zeroed, and what cannot."""
    n_heads = sum(at.n_heads for at in spec.layers)
    facts = [
        ("model", spec.source),
        ("revision", spec.revision or "none"),
        ("model type", spec.model_type),
        ("dtype", spec.dtype),
        ("heads", f"{n_heads} query heads that can be zeroed, in {len(spec.layers)} layers"),
        ("kv heads", f"{spec.n_kv_heads}, never touched"),
        ("embeddings", "tied" if spec.tied else "not tied"),
    ]
    lines = [f"{name:<12} {one_line(value)}" for name, value in facts]
    lines += ["", *table([_COVERAGE, *_coverage(spec)], "<>>><<"), "", "files"]
    for file in spec.files:
        lines.append(f"  {size_text(file.n_bytes):>10}  {one_line(file.name)}")
    missing = [*spec.not_covered]
    lines += ["NOT covered" if missing else "NOT covered  nothing: every layer has its projection"]
    lines += [f"  {one_line(note)}" for note in missing[:MAX_NOT_COVERED]]
    if len(missing) > MAX_NOT_COVERED:
        lines.append(f"  and {len(missing) - MAX_NOT_COVERED} more; --json lists all")
    lines += [f"note         {one_line(note)}" for note in spec.notes]
    lines += [f"  {one_line(name)}: not part of the checkpoint, never edited" for name in unedited]
    return "\n".join(lines)


_COVERAGE = ("Layers", "n", "Heads", "head_dim", "Tensor", "Heads lie in")


def _coverage(spec: ModelSpec) -> list[tuple[str, str, str, str, str, str]]:
    """Layers that are alike in one row, the first of each kind first."""
    alike: dict[tuple[int, int, str, str], list[int]] = {}
    for at in spec.layers:
        lie = "columns" if at.axis == 1 else "rows"
        lie += "" if at.code == "zero" else f", {spec.dtype if at.code == 'ggml' else at.code}"
        alike.setdefault((at.n_heads, at.head_dim, _pattern(at), lie), []).append(at.layer)
    return [
        (ranges(layers), str(len(layers)), str(n_heads), str(head_dim), one_line(tensor), lie)
        for (n_heads, head_dim, tensor, lie), layers in alike.items()
    ]


def preview_text(plan: Preview) -> str:
    """What `--dry-run` shows."""
    shape = "not known before it is here"
    if plan.n_heads is not None:
        shape = f"{plan.n_layers} layers, {plan.n_heads} heads"
    limits = ", ".join(f"{name} {limit:g}" for name, limit in plan.limits.items())
    at = f" at {plan.revision}" if plan.revision else ""
    lines = [
        "dry run: nothing was loaded or written",
        f"model        {one_line(plan.model)}{at}",
        f"heads        {shape}",
        f"capability   {plan.capability}",
        f"controls     {limits or 'none'} (the most each may lose)",
        f"evaluations  about {plan.evaluations} masks for search and choice",
        f"scan         {_scan(plan)}",
    ]
    if plan.not_ready:
        lines.insert(2, f"not ready    {one_line(plan.not_ready)}")
    if plan.weights_bytes is not None:
        lines.append(f"memory       {size_text(plan.weights_bytes)} of weights, and the batches")
    if plan.output is not None:
        lines.append(f"output       {plan.output}")
        lines += [f"  {one_line(name)}" for name in plan.writes]
        lines.append(f"beside it    {beside(Path(plan.output))}")
    if plan.disk_bytes is not None:
        lines.append(f"disk         {size_text(plan.disk_bytes)} free needed")
    for name in plan.unedited:
        lines.append(f"unedited     {one_line(name)}: it may still hold the capability")
    return "\n".join(lines)


def capability_fields(capability: Capability) -> dict[str, Any]:
    """What is known of a capability, with a few of its questions."""
    splits = {split: len(capability.items(split)) for split in ("search", "choose", "test")}
    transfer = capability.items("test", transfer=True)
    shown = [*_variants(capability.items("search"), EXAMPLES_SHOWN), *_variants(transfer, 2)]
    is_text = capability.kind == "text"
    return {
        "name": capability.name,
        "kind": capability.kind,
        "summary": capability.summary,
        "metric": "nats_per_token" if is_text else "exact",
        "floor": None if is_text else capability.floor,
        "control_limit": capability.control_limit,
        "items": {**splits, "transfer": len(transfer)},
        "source": capability.source,
        "licence": capability.licence,
        "examples": [
            item.model_dump(include={"prompt", "answer", "variant", "transfer"}) for item in shown
        ],
    }


def capabilities_text(rows: Sequence[dict[str, Any]]) -> str:
    """One line a capability."""
    cells = [("Name", "Kind", "Floor", "Items search/choose/test", "Licence", "Summary")]
    for row in rows:
        items = "/".join(str(row["items"][split]) for split in ("search", "choose", "test"))
        cells.append((row["name"], row["kind"], _floor(row), items, row["licence"], row["summary"]))
    about = "A task can be removed; a text is a control only.  `editor capabilities show NAME`"
    return "\n".join([*table(cells, "<<>><<"), "", about])


def capability_text(row: dict[str, Any]) -> str:
    """Everything about one capability."""
    items = ", ".join(f"{name} {count}" for name, count in row["items"].items())
    unit = "nats a token" if row["kind"] == "text" else "share of right answers"
    what = "can be removed, and kept as a control" if row["kind"] == "task" else "a control only"
    lines = [
        f"{row['name']}: {row['summary']}",
        f"kind         {row['kind']} ({what})",
        f"metric       {row['metric']}",
        f"floor        {_floor(row)}",
        f"as control   may lose {row['control_limit']:g} {unit} by default",
        f"items        {items}",
        f"data         {row['source']}",
        f"licence      {row['licence']}",
    ]
    for item in row["examples"]:
        form = item["variant"] + (", kept out of the search" if item["transfer"] else "")
        lines += ["", f"[{form}]", *(f"  {line}" for line in item["prompt"].splitlines())]
        lines.append(f"  -> {one_line(item['answer'])}")
    return "\n".join(lines)


def changed_files(manifest: Manifest) -> list[FileDigest]:
    """The files whose content is no longer that of the base."""
    before = {file.name: file.sha256 for file in manifest.base_files}
    return [file for file in manifest.files if before.get(file.name, file.sha256) != file.sha256]


def heads_text(heads: Sequence[Head]) -> str:
    """`2 heads (L3H1, L4H0)`."""
    return f"{len(heads)} head{'' if len(heads) == 1 else 's'} ({', '.join(map(str, heads))})"


def table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Aligned lines; the first row is a heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    ruled = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return [
        "  ".join(map(format, row, map("{}{}".format, sides, widths))).rstrip() for row in ruled
    ]


def _verdict(accepted: bool, reasons: Sequence[str], results: Sequence[Result]) -> list[str]:
    gated = sum(row.limit is not None for row in results)
    if accepted:
        word = f"ACCEPTED: none of {gated} limits is broken"
    else:
        word = "NOT VALIDATED: a limit is broken, or the base leaves nothing to tell"
    return [word, *(f"  {one_line(reason)}" for reason in reasons)]


def _changed(manifest: Manifest) -> list[str]:
    files = changed_files(manifest)
    tensors = {edit.tensor for edit in manifest.edits}
    return [
        f"changed {manifest.bytes_changed:,} of {manifest.bytes_total:,} bytes, "
        f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'} in "
        f"{len(files)} of {len(manifest.files)} files",
        *(f"  {file.sha256}  {one_line(file.name)}" for file in files),
    ]


def _scan(plan: Preview) -> str:
    if plan.scan_masks == 0:
        return "none: the universal heads of this model are known"
    masks = "as many masks as the model has heads" if plan.scan_masks is None else plan.scan_masks
    masks = masks if isinstance(masks, str) else f"{masks} masks"
    return f"{masks} x {plan.scan_texts} texts for universal heads, once a model"


def _pattern(at: AttentionLayer) -> str:
    """The projection's name with N for the layer."""
    return re.sub(rf"(?<![0-9]){at.layer}(?![0-9])", "N", at.tensor, count=1)


def _floor(row: dict[str, Any]) -> str:
    return "-" if row["floor"] is None else f"{row['floor']:g}"


def size_text(n_bytes: int) -> str:
    """`1.5 GiB`."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _variants(items: Sequence[Any], limit: int) -> list[Any]:
    """The first item of each form, at most `limit`."""
    firsts = {item.variant: item for item in reversed(items)}
    forms = dict.fromkeys(item.variant for item in items)
    return [firsts[form] for form in forms][:limit]
