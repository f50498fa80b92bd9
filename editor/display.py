"""Records to what a terminal shows at the end of a command.

Texts only; the console strips what a model or a file name could do to a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from editor import choice_text, confidence_text, confirm_text, several_text, written_faults
from editor.chat import NO_MESSAGES
from editor.manifest_text import improves, targets
from editor.records import (
    ChatUse,
    Confidence,
    Confirmation,
    EditPlan,
    FileDigest,
    Head,
    Localization,
    Manifest,
    Mask,
    Removal,
    Result,
    Sharing,
    Validation,
)
from editor.staging import beside
from editor.wording import (
    ascii_text,
    form_text,
    listed,
    not_numbers_text,
    one_line,
    results_table,
)

MAX_EFFECTS = 10


def removal_text(removal: Removal, manifest: Manifest) -> str:
    """The end of `remove`: table, verdict, how sure, what changed, where to look."""
    improve, each = improves(manifest), manifest.each()
    expected = [
        at for one in each for at in choice_text.foreseen(one.plan, one.validation, improve=improve)
    ]
    return "\n".join(
        [
            f"{listed(targets(manifest))} in {one_line(removal.model)}: "
            f"{heads_text(removal.heads)} zeroed" + (" to do better" if improve else ""),
            f"{removal.evaluations} evaluations of {listed(targets(manifest))}, "
            f"and {removal.scan_evaluations} of the once-a-model scan, {removal.elapsed_s:.0f} s",
            "",
            results_table(removal.results),
            "",
            *_verdict(removal.accepted, removal.reasons, removal.results),
            *([] if removal.accepted else [f"The output is kept in {removal.output}, marked so."]),
            *_form(manifest.validation),
            *_written(manifest.validation),
            *(f"differs {ascii_text(line)}" for line in choice_text.foreseen_sentences(expected)),
            "",
            *_shared(manifest.sharing),
            *(line for one in each for line in _found(one, named=len(each) > 1)),
            *_not_numbers(manifest.not_numbers),
            *_scanned(manifest, manifest.universal),
            "",
            *_changed(manifest),
            *_chat(manifest.chat),
            f"output  {removal.output}",
            f"undo    {beside(Path(removal.output))}  (the removed bytes: do not publish them)",
            f"report  {removal.report}",
            f"run     {removal.run}",
        ]
    )


def localization_text(found: Localization) -> str:
    """The end of `localize`."""
    improve, each = found.improve, found.each()
    fit = found.estimates[0].fit_r2 if found.estimates and len(each) == 1 else None
    chosen = ",".join(map(str, found.heads))
    return "\n".join(
        [
            f"{listed(one.plan.capability for one in each)}: {heads_text(found.heads)} chosen"
            + (" to do better" if improve else ""),
            f"{found.evaluations} evaluations, "
            f"and {found.scan_evaluations} of the once-a-model scan"
            + ("" if fit is None else f", held-out R2 of the additive fit {fit:.2f}"),
            "",
            *(line for one in each for line in _effects(one, named=len(each) > 1)),
            *_shared(found.sharing),
            *(line for one in each for line in _found(one, named=len(each) > 1)),
            *_not_numbers(found.not_numbers),
            *_scanned(found, found.universal.heads),
            f"write   editor bake -m MODEL --heads {chosen} -o OUT",
            f"run     {found.run}",
        ]
    )


def _chat(chat: ChatUse | None) -> list[str]:
    """How messages were put to the model, where there are any."""
    if chat is None or chat.why.startswith(NO_MESSAGES):
        return []
    return [f"chat    messages {ascii_text(one_line(chat.why))}"]


def _shared(sharing: Sharing | None) -> list[str]:
    """Which heads several targets share, and what each takes of each target."""
    if sharing is None:
        return []
    columns = several_text.take_columns(sharing)
    rows = [columns, *several_text.take_rows(sharing, intervals=False)]
    return [
        f"What each head takes: {several_text.TAKEN}",
        *map(ascii_text, table(rows, "<" + ">" * (len(columns) - 2) + "<")),
        f"shared  {ascii_text(several_text.shared_sentence(sharing))}",
        "",
    ]


def _found(one: Manifest | Localization, *, named: bool) -> list[str]:
    """What is known of one target's heads."""
    searched = isinstance(one, Localization)
    improve = one.improve if searched else improves(one)
    lines = _sure(one.confidence, one.confirmation, improve=improve)
    lines += _steps(one.plan)
    if searched and one.format_check:
        lines.append(f"form    {one_line(one.format_check.sentence)}")
    lines += _checks(one.confirmation, improve=improve)
    if searched:
        lines.append(f"why     {one.plan.why}")
    if named and one.plan:
        lines.insert(0, f"for     {one_line(one.plan.capability)}: {heads_text(one.plan.heads)}")
    return lines


def _not_numbers(by_task: Mapping[str, Sequence[Mask]]) -> list[str]:
    """A line on each task of which some masks told nothing."""
    return [
        f"faults  {one_line(task)}: {not_numbers_text(masks)}" for task, masks in by_task.items()
    ]


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
            *_form(validation),
            *_written(validation),
            f"masked and baked model differ by at most {validation.masked_vs_baked:g} nats",
            f"checked {edited}",
        ]
    )


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
    elif any(row.rise for row in results):
        word = "NOT VALIDATED: the capability did not get better, or a control's limit is broken"
    else:
        word = (
            "NOT VALIDATED: a limit is broken, the base leaves nothing to tell, or what is lost is "
            "the form of the answers or the ability to write them"
        )
    return [word, *(f"  {one_line(reason)}" for reason in reasons)]


def _form(validation: Validation | None) -> list[str]:
    """What of the target's loss is lost form, where it is not a reason already."""
    if validation is None:
        return []
    first = f"{one_line(validation.curve_task)}: " if validation.also else ""
    forms = [(first, validation.format_loss)]
    forms += [(f"{one_line(at.task)}: ", at.format_loss) for at in validation.also]
    return [name + form_text(form) for name, form in forms if form and form.kind != "format"]


def _written(validation: Validation | None) -> list[str]:
    """What is wrong with the target's texts."""
    if validation is None:
        return []
    first = f"{one_line(validation.curve_task)}: " if validation.also else ""
    found = [(first, validation.written)]
    found += [(f"{one_line(at.task)}: ", at.written) for at in validation.also]
    return [name + written_faults.sentence(written) for name, written in found if written]


def _checks(found: Confirmation | None, *, improve: bool) -> list[str]:
    if found is None:
        return []
    said = confirm_text.sentences(found, improve=improve)
    return [f"check   {ascii_text(line)}" for line in said]


def _effects(found: Localization, *, named: bool) -> list[str]:
    """The chosen heads, then the surest effects; negative ones where the model is to do better.

    A head of few pools can have a large effect by chance, so the end of the interval that is nearer
    to zero decides.
    """
    if not found.estimates:
        return []
    sign = -1 if found.improve else 1
    effects, chosen = found.estimates[0].effects, frozenset(found.heads)
    surest = sorted(effects, key=lambda one: -one.low if sign > 0 else one.high)
    wanted = [one for one in surest if one.head in chosen]
    others = [one for one in surest if one.head not in chosen and sign * one.effect > 0]
    wanted += others[: max(0, MAX_EFFECTS - len(wanted))]
    fitted = any(one.probability is not None for one in effects)
    rows = [("Head", "Effect", "95% CI", *(("P", "Decided") if fitted else ()), "Masks")]
    for one in wanted:
        sure = () if not fitted else (_share(one.probability), "yes" if one.decided else "no")
        interval = f"{one.low:+.3f} to {one.high:+.3f}"
        rows.append((str(one.head), f"{one.effect:+.3f}", interval, *sure, str(one.n_masks)))
    title = [f"Effects on {one_line(found.plan.capability)}"] if named else []
    return [*title, *table(rows, "<" + ">" * (len(rows[0]) - 1)), ""]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _sure(
    found: Confidence | None, confirmation: Confirmation | None, *, improve: bool
) -> list[str]:
    """How sure the search is: the short answer first."""
    said = [confidence_text.summary(found, confirmation, improve=improve)]
    if found is not None:
        said += confidence_text.sentences(found, improve=improve)
    return [f"sure    {ascii_text(one_line(line))}" for line in said if line]


def _steps(plan: EditPlan | None) -> list[str]:
    said = [] if plan is None else choice_text.step_sentences(plan)
    return [f"others  {ascii_text(line)}" for line in said]


def _scanned(found: Manifest | Localization, universal: Sequence[Head]) -> list[str]:
    said = confidence_text.scan_text(
        universal, found.scan_evaluations, found.over_limit, found.not_numbers
    )
    return [f"text    {ascii_text(said)}"] if said else []


def _changed(manifest: Manifest) -> list[str]:
    files = changed_files(manifest)
    tensors = {edit.tensor for edit in manifest.edits}
    return [
        f"changed {manifest.bytes_changed:,} of {manifest.bytes_total:,} bytes, "
        f"{len(tensors)} tensor{'' if len(tensors) == 1 else 's'} in "
        f"{len(files)} of {len(manifest.files)} files",
        *(f"  {file.sha256}  {one_line(file.name)}" for file in files),
    ]
