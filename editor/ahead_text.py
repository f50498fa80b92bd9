"""What `editor inspect` and `--dry-run` show: a model, and what a job would do with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from editor.coverage import ranges
from editor.display import table
from editor.records import AttentionLayer, ModelSpec
from editor.staging import beside
from editor.wording import duration, one_line, size_text

if TYPE_CHECKING:
    from editor.costs import StageCost, Timing
    from editor.preview import Preview

MAX_NOT_COVERED = 12


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
    timed = plan.timing is not None
    lines = [
        f"dry run: nothing was {'kept' if timed else 'loaded'} or written",
        f"model        {one_line(plan.model)}{at}",
        f"heads        {shape}",
        f"capability   {plan.capability}" + (", to get better" if plan.improve else ""),
        f"controls     {limits or 'none'} (the most each may lose)",
        f"search       {plan.method}, at most {plan.max_heads} heads",
        f"budget       {_budget(plan)}, and at most {plan.check_masks} masks to check the chosen "
        "heads",
        f"scan         {_scan(plan)}",
    ]
    if plan.not_ready:
        lines.insert(2, f"not ready    {one_line(plan.not_ready)}")
    if plan.weights_bytes is not None:
        batch = size_text(plan.batch_bytes or 0)
        lines.append(
            f"memory       {size_text(plan.weights_bytes)} of weights, about {batch} a batch"
        )
    lines += cost_lines(plan.stages, plan.timing, plan.hours)
    if plan.journal_bytes is not None:
        lines.append(f"journal      about {size_text(plan.journal_bytes)}, in the run's folder")
    lines.append(f"network      {one_line(plan.network) or 'nothing is downloaded'}")
    if plan.output is not None:
        lines.append(f"output       {plan.output}")
        lines += [f"  {one_line(name)}" for name in plan.writes]
        lines.append(f"beside it    {beside(Path(plan.output))}")
    if plan.disk_bytes is not None:
        lines.append(f"disk         {size_text(plan.disk_bytes)} free needed")
    for name in plan.unedited:
        lines.append(f"unedited     {one_line(name)}: it may still hold the capability")
    return "\n".join(lines)


def cost_lines(
    stages: Sequence[StageCost], timing: Timing | None, hours: float | None
) -> list[str]:
    """What the stages measure, and how long that takes where a batch was timed."""
    if not stages:
        return []
    rows = [("Stage", "Masks", "Items", "Tokens")]
    rows += [(at.stage, f"{at.masks:,}", f"{at.items:,}", f"{at.tokens:,}") for at in stages]
    masks, items = sum(at.masks for at in stages), sum(at.items for at in stages)
    tokens = sum(at.tokens for at in stages)
    rows.append(("all, at most", f"{masks:,}", f"{items:,}", f"{tokens:,}"))
    how = "" if timing is not None else "  (tokens by characters: about)"
    lines = [f"  {line}" for line in table(rows, "<>>>")]
    lines[-1] += how
    if timing is None or hours is None:
        return [*lines, "time         not known before a batch is timed: `editor plan` does"]
    pace = timing.tokens / timing.seconds if timing.seconds else 0.0
    took = f"{timing.tokens:,} tokens took {timing.seconds:.1f} s, {pace:,.0f} tokens/s"
    return [*lines, f"time         at most about {duration(3600 * hours)} ({took})"]


def _budget(plan: Preview) -> str:
    if plan.evaluations is None:
        return "not known before the model is here"
    several = "each of " if ", " in plan.capability else ""
    what = f"evaluations of {several}{plan.capability}"
    return f"at most {plan.evaluations} {what} for search and choice"


def _scan(plan: Preview) -> str:
    if plan.scan_texts == 0:
        return "none: universal heads are not looked for among all heads"
    if plan.scan_masks == 0:
        return "none: the universal heads of this model are known"
    masks = "as many masks as the model has heads" if plan.scan_masks is None else plan.scan_masks
    masks = masks if isinstance(masks, str) else f"{masks} masks"
    return f"{masks} x {plan.scan_texts} texts for universal heads, once a model"


def _pattern(at: AttentionLayer) -> str:
    """The projection's name with N for the layer."""
    return re.sub(rf"(?<![0-9]){at.layer}(?![0-9])", "N", at.tensor, count=1)
