"""The parts of the report that tables and drawings are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from editor import choice_text, confidence_text, confirm_text, several_text, wording, written_faults
from editor.charts import HeadMap, grid_of, head_map, strip_of
from editor.manifest_text import improves
from editor.records import (
    Confirmation,
    Estimate,
    FormLoss,
    HeadEffect,
    Manifest,
    ModelSpec,
    UniversalHeads,
)

N_TOP_HEADS = 20
HEAD_COLUMNS = ("Head", "Effect", "95% CI", "Probability", "Decided", "Masks")
FORESEEN_COLUMNS = ("Task", "Predicted", "Measured", "95% CI", "Difference", "Reading")
STEP_COLUMNS = ("Head", "Added", "Alone", "Reading")


class Map(NamedTuple):
    """A map with its words."""

    title: str
    text: str
    drawing: HeadMap
    columns: tuple[str, ...]
    top: tuple[tuple[str, ...], ...]
    """The surest effects, for readers who cannot hover; the cells stand as in `columns`."""


def maps(
    manifest: Manifest,
    estimates: Sequence[Estimate],
    spec: ModelSpec | None,
    universal: UniversalHeads | None,
) -> list[Map]:
    """The map of the target's effects, and that of what each head costs a text."""
    shown = {at.task: at for at in (*(universal.effects if universal else ()), *estimates)}
    grid = grid_of(spec, shown.values(), (*manifest.heads, *manifest.universal))
    names = manifest.settings.targets if manifest.settings else ()
    targets = [shown.pop(name, None) for name in names]
    cost = shown.get("english") or next(iter(shown.values()), None)
    # Costs far below the threshold of a universal head shall not look alarming.
    threshold = universal.threshold if universal else 0.0
    sign = -1 if improves(manifest) else 1
    words = (
        *(
            (at, sign, 0.0, "What each head does for {}", "Drop of the score when a head is out")
            for at in targets
        ),
        (cost, 1, threshold, "What each head does for {}, a control", "Loss when a head is out"),
    )
    return [
        Map(
            title.format(wording.one_line(at.task)),
            f"{text}, in {wording.unit_of(at.score, at.solver)}. "
            f"From {at.n_masks} masks, solver {at.solver}. "
            f"{wording.not_numbers_text(at.not_numbers)}",
            head_map(at, grid, manifest.heads, manifest.universal, floor=floor),
            *_top_heads(at, manifest, sign),
        )
        for at, sign, floor, title, text in words
        if at is not None
    ]


def _top_heads(
    estimate: Estimate, manifest: Manifest, sign: int
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Headings and rows: the surest effects, and all heads that are chosen or decided.

    A head of few pools can have a large effect by chance, so the end of the interval that is nearer
    to zero decides.
    """
    measured = sorted((at for at in estimate.effects if at.n_masks > 0), key=lambda at: at.head)
    measured.sort(key=lambda at: -at.low if sign > 0 else at.high)
    own = [one for one in manifest.each() if one.plan and one.plan.capability == estimate.task]
    kept = {*manifest.heads} if own else set[Any]()
    shown = measured[:N_TOP_HEADS]
    shown += [at for at in measured[N_TOP_HEADS:] if at.decided or at.head in kept]
    if all(at.probability is None for at in shown):
        skipped = {HEAD_COLUMNS.index("Probability"), HEAD_COLUMNS.index("Decided")}
    else:
        skipped = set[int]()
    sure_of = own[0].confidence if own else manifest.confidence
    undecided = sure_of.undecided if sure_of else ()
    rows = [HEAD_COLUMNS, *(_head_row(at, undecided) for at in shown)]
    columns, *cells = (
        tuple(cell for place, cell in enumerate(row) if place not in skipped) for row in rows
    )
    return columns, tuple(cells)


def _head_row(at: HeadEffect, undecided: Sequence[Any]) -> tuple[str, ...]:
    probability = "\N{EN DASH}" if at.probability is None else f"{at.probability:.2f}"
    return (
        str(at.head),
        wording.change_text(at.effect, "logprob"),
        wording.interval_text((at.low, at.high), "logprob"),
        probability,
        "yes" if at.decided else "open" if at.head in undecided else "no",
        str(at.n_masks),
    )


def sure(manifest: Manifest, estimates: Sequence[Estimate]) -> dict[str, Any] | None:
    """How sure the search is: its sentences, and what other estimators say of the same masks."""
    found, improve = manifest.confidence, improves(manifest)
    said = confidence_text.summary(found, manifest.confirmation, improve=improve)
    if not said:
        return None
    rows = [row for at in estimates for row in confidence_text.rival_rows(at)]
    return {
        "summary": said,
        "sentences": confidence_text.sentences(found, improve=improve) if found else [],
        "columns": confidence_text.RIVAL_COLUMNS,
        "rivals": rows if found else [],
    }


def sharing(manifest: Manifest) -> dict[str, Any] | None:
    """Which heads several targets share, and what each takes of each target."""
    if manifest.sharing is None:
        return None
    return {
        "sentence": several_text.shared_sentence(manifest.sharing),
        "columns": several_text.take_columns(manifest.sharing),
        "rows": several_text.take_rows(manifest.sharing),
        "caption": f"What each chosen head takes of each capability: {several_text.TAKEN}",
    }


def steps(manifest: Manifest) -> dict[str, Any] | None:
    """What each chosen head adds with those before it out, against alone."""
    if manifest.plan is None or not manifest.plan.steps:
        return None
    return {"columns": STEP_COLUMNS, "rows": choice_text.step_rows(manifest.plan)}


def foreseen(manifest: Manifest) -> dict[str, Any] | None:
    """What the choice predicted beside what was measured."""
    improve = improves(manifest)
    found = [
        at
        for one in manifest.each()
        for at in choice_text.foreseen(one.plan, one.validation, improve=improve)
    ]
    if not found:
        return None
    rows = [
        (
            at.task,
            wording.METRIC_NAMES[at.metric],
            wording.change_text(at.predicted, at.metric),
            wording.change_text(at.measured, at.metric),
            wording.interval_text(at.ci, at.metric),
            wording.change_text(at.measured - at.predicted, at.metric),
            "outside the interval" if at.differs else "inside the interval",
        )
        for at in found
    ]
    return {"columns": FORESEEN_COLUMNS, "rows": rows}


def universal_part(manifest: Manifest, universal: UniversalHeads | None) -> dict[str, Any] | None:
    """What is known of heads that all text needs: a sentence, and each one's cost on every text."""
    said = confidence_text.scan_text(
        manifest.universal, manifest.scan_evaluations, manifest.over_limit, manifest.not_numbers
    )
    if not said:
        return None
    texts = universal.effects if universal and manifest.universal else ()
    by_text = [{one.head: one for one in at.effects} for at in texts]
    return {
        "sentence": said,
        "columns": ("Head", *(f"Cost on {wording.one_line(at.task)}, 95% CI" for at in texts)),
        "rows": [
            (str(head), *(_cost(found.get(head)) for found in by_text))
            for head in manifest.universal
        ]
        if texts
        else [],
        "threshold": f"{universal.threshold:g}" if universal else "",
    }


def _cost(one: HeadEffect | None) -> str:
    if one is None:
        return "not measured"
    interval = wording.interval_text((one.low, one.high), "nats_per_token")
    return f"{wording.change_text(one.effect, 'nats_per_token')} ({interval})"


def form(manifest: Manifest) -> tuple[list[tuple[str, str]], list[tuple[str, ...]]] | None:
    """What was said of lost form, and a row a head; None where no form was told apart."""
    check = manifest.format_check
    measured = manifest.validation.format_loss if manifest.validation else None
    said = [("Where the heads were chosen", check.sentence)] if check else []
    said += [("Where the edit was measured", wording.form_text(measured))] if measured else []
    written = manifest.validation.written if manifest.validation else None
    said += [("What the models wrote", written_faults.sentence(written))] if written else []
    rows = [
        (str(at.head), how, *_losses(at), at.kind)
        for how, effects in (
            ("chosen, added to those above", check.steps if check else ()),
            ("tried alone", check.effects if check else ()),
        )
        for at in effects
    ]
    return (said, rows) if said else None


def _losses(at: FormLoss) -> tuple[str, ...]:
    """Both losses with their intervals."""
    cells = ((at.form, at.form_low, at.form_high), (at.right, at.right_low, at.right_high))
    return tuple(
        text
        for loss, low, high in cells
        for text in (
            wording.change_text(loss, "logprob"),
            wording.interval_text((low, high), "logprob"),
        )
    )


def checks(found: Confirmation | None, *, improve: bool) -> dict[str, Any] | None:
    """The checks on the chosen heads: sentences, rows of pairs, the strip of random sets."""
    if found is None:
        return None
    return {
        "n_items": found.n_items,
        "sentences": confirm_text.sentences(found, improve=improve),
        "columns": confirm_text.PAIR_COLUMNS,
        "pairs": confirm_text.pair_rows(found.interactions),
        "strip": strip_of(found.random_sets) if found.random_sets else None,
    }
