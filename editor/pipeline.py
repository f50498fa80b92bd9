"""The stages in order, from a recipe to a new checkpoint that was checked.

localize:  headroom -> universal heads -> search -> choose
remove:    localize -> bake -> validate -> report -> rename
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from editor import __version__, tasks
from editor.architecture import check_heads, read_spec
from editor.checkpoint import apply_edits, other_weights, staged, verify_edits
from editor.choose import choose, first_candidates
from editor.errors import CheckFailed, ModelError, UsageError
from editor.layout import source_files
from editor.plan import compile_edits
from editor.progress import Progress
from editor.recipe import Recipe, refine
from editor.records import (
    Checkpoint,
    Head,
    Localization,
    Manifest,
    ModelSpec,
    Removal,
    UniversalHeads,
    Validation,
)
from editor.report import render_card, render_report
from editor.search import (
    EXPECTED_POOLS,
    EXPECTED_TRIES,
    SEARCHES,
    costly_heads,
    find_universal,
    measure_singles,
    with_singles,
)
from editor.session import Opened, Options, Run, loaded_bench, open_model, started, universal_file
from editor.source import Source
from editor.staging import check_output, check_space
from editor.store import Journal, write_atomic
from editor.validation import check_headroom, validate_edit

MANIFEST = "editor.json"
CARD = "README.md"
REPORT = "report.html"
ESTIMATE = "estimate.json"
SCHEMA_VERSION = 1
MAX_CARD_BYTES = 1_000_000


def localize(recipe: Recipe, options: Options, progress: Progress) -> Localization:
    """Find the heads that the capability needs, and those that may be removed for it.

    Raises:
        UsageError: wrong recipe, model name or run folder.
        ModelError: the model cannot be used.
        CapabilityAbsent: the model does not show the capability, or no head can be removed.
    """
    with started(recipe, options, progress) as run:
        return _localize(run)


def remove(recipe: Recipe, output: Path, options: Options, progress: Progress) -> Removal:
    """Localize, bake, validate and report; the output folder appears when all is written.

    Raises:
        As `localize`; also UsageError for an output that may not be written, and CheckFailed when
        the written bytes are not the declared ones.  An edit that fails its limits is no error
        here: `accepted` is False.
    """
    check_output(output, force=options.force)
    began = datetime.now(timezone.utc)

    def check(opened: Opened) -> None:
        base = opened.source.folder
        check_output(output, force=options.force, base=base)
        check_space(output, sum(n_bytes for _, n_bytes in source_files(base)))

    with started(recipe, options, progress, check) as run:
        base = run.opened.source.folder
        found = _localize(run)
        localized_s = time.monotonic() - run.began
        with staged(output, force=options.force, base=base) as folder:
            checkpoint = _bake(run.opened, found.heads, folder, progress)
            edited = Source(output.name, None, folder, "")
            spec = read_spec(folder, source=output.name)
            validation = _validate(run, found.heads, Opened(edited, spec))
            times = {
                "started": began.isoformat(timespec="seconds"),
                "localize_s": round(localized_s, 1),
                "scan_s": found.universal.elapsed_s,
                "total_s": round(time.monotonic() - run.began, 1),
            }
            measured = {
                "settings": run.settings,
                "evaluations": found.evaluations,
                "scan_evaluations": found.scan_evaluations,
                "universal": found.universal.heads,
                "plan": found.plan,
                "validation": validation,
            }
            manifest = _manifest(run.opened, found.heads, checkpoint, recipe.model, times)
            manifest = manifest.model_copy(update=measured)
            page = render_report(manifest, found.estimates, run.opened.spec, found.universal)
            _describe(manifest, base, folder, page)
        write_atomic(run.folder.path / REPORT, page)
    return Removal(
        output=str(output),
        run=found.run,
        report=str(output / REPORT),
        capability=recipe.capability,
        model=manifest.base,
        heads=found.heads,
        evaluations=found.evaluations,
        scan_evaluations=found.scan_evaluations,
        accepted=validation.accepted,
        reasons=validation.reasons,
        results=validation.results,
        bytes_changed=checkpoint.bytes_changed,
        bytes_total=checkpoint.bytes_total,
        elapsed_s=round(time.monotonic() - run.began, 1),
    )


def bake(
    model: str, heads: Sequence[Head], output: Path, options: Options, progress: Progress
) -> Manifest:
    """Write a checkpoint with the heads zeroed; nothing is loaded and nothing measured.

    Raises:
        UsageError: no heads, or an output that may not be written.
        ModelError: the model cannot be used or has no such head.
    """
    if not heads:
        raise UsageError("no heads to zero", "name some, as in --heads L16H21,L15H13")
    check_output(output, force=options.force)
    began = datetime.now(timezone.utc)
    opened = open_model(model, options, progress)
    check_heads(opened.spec, heads)
    base = opened.source.folder
    with staged(output, force=options.force, base=base) as folder:
        checkpoint = _bake(opened, heads, folder, progress)
        times = {"started": began.isoformat(timespec="seconds")}
        manifest = _manifest(opened, sorted(set(heads)), checkpoint, model, times)
        _describe(manifest, base, folder, None)
    return manifest


def validate(
    edited: Path,
    base: str | None,
    options: Options,
    progress: Progress,
    **changes: object,
) -> Validation:
    """Measure base files against edited files again.

    Args:
        edited: a folder that `remove` or `bake` wrote.
        base: the model it was made from; by default what its editor.json says.
        changes: fields of a recipe to use instead of what its editor.json says.

    Raises:
        UsageError: base or capability are neither given nor recorded.
        ModelError: one of the two cannot be used.
        CheckFailed: the edited files are not the base with the recorded heads removed.
    """
    manifest = read_manifest(edited)
    recipe = _recipe_of(manifest, base, changes)
    opened = Opened(Source(edited.name, None, edited, ""), read_spec(edited, source=edited.name))

    def check(base: Opened) -> None:
        if base.spec.files != manifest.base_files:
            raise UsageError(
                f"{base.source.name} is not the base that {edited} was made from: its weight "
                f"files have other digests than {MANIFEST} records",
                f"name the base with --base; it was {manifest.base}",
            )
        _check_recorded(manifest, opened.spec, base.spec)

    with started(recipe, options, progress, check) as run:
        return _validate(run, manifest.heads, opened)


def _check_recorded(manifest: Manifest, edited: ModelSpec, base: ModelSpec) -> None:
    """That the weights are the recorded ones, and the recorded edits those of the heads.

    Raises:
        CheckFailed: they are not.
        ModelError: the base has no such head.
    """
    recorded = {file.name: file for file in manifest.files}
    for file in edited.files:
        if recorded.get(file.name) != file:
            raise CheckFailed(
                f"{file.name} is not the file that {MANIFEST} records: its size or sha256 differs",
                "the files were changed after the edit; edit the base again",
            )
    check_heads(base, manifest.heads)
    if compile_edits(base, manifest.heads) != manifest.edits:
        raise CheckFailed(f"the edits in {MANIFEST} are not those of its heads")


def _localize(run: Run) -> Localization:
    """The stages up to the choice, each from the journal where it was done before."""
    what, settings, bench, heads = run.what, run.settings, run.bench, run.opened.spec.heads()
    say, stage = run.progress.say, run.progress.stage
    stage("baseline", 2)
    known = tasks.known(bench, what.target, settings.search_items, settings.choose_items)
    check_headroom(known.base_exact, what.target, run.name)
    universal = _universal(run)
    stage(f"search for the heads of {what.target.name}", EXPECTED_POOLS[settings.method])
    excluded = costly_heads(universal, what.limits)
    search = SEARCHES[settings.method](bench, known.searching, heads, excluded, settings.seed)
    stage("choice under the controls' limits", 2 * EXPECTED_TRIES)
    controls = tasks.choose_controls(what, settings.choose_items)
    plan = choose(bench, known.choosing, controls, search, settings.max_heads)
    say(f"chosen: {', '.join(map(str, plan.heads))}")
    alone = measure_singles(
        bench, known.choosing, first_candidates(search), "logprob"
    )  # the choice measured them: they come from the journal
    record = Localization(
        run=str(run.folder.path),
        heads=plan.heads,
        evaluations=plan.evaluations,
        scan_evaluations=universal.evaluations,
        universal=universal,
        estimates=tuple(with_singles(pooled, alone) for pooled in search.estimates()),
        plan=plan,
    )
    write_atomic(run.folder.path / ESTIMATE, record.model_dump_json(indent=1))
    return record


def _universal(run: Run) -> UniversalHeads:
    """The model's universal heads, from the cache where some run has found them before."""
    texts, checkpoint = tasks.scan_texts(), run.opened.identity
    file = universal_file(run.opened, run.settings.dtype, run.options.cache)
    if file.exists():
        try:
            found = UniversalHeads.model_validate_json(file.read_bytes())
        except ValidationError as error:
            raise UsageError(
                f"{file} does not hold the universal heads that it should", "delete it"
            ) from error
        shown = ", ".join(map(str, found.heads))
        run.progress.say(f"universal heads of this model, found before: {shown}")
        return found
    heads = run.opened.spec.heads()
    run.progress.stage("scan for universal heads (once a model)", len(texts) * (len(heads) + 1))
    found = find_universal(run.bench, heads, texts, checkpoint)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, found.model_dump_json(indent=1))
    run.progress.say(f"universal heads: {', '.join(map(str, found.heads))}")
    return found


def _bake(opened: Opened, heads: Sequence[Head], folder: Path, progress: Progress) -> Checkpoint:
    """Write the edited files into the folder and check every byte of them."""
    check_heads(opened.spec, heads)
    progress.stage("writing and verifying the checkpoint", 0)
    base = opened.source.folder
    checkpoint = apply_edits(base, folder, compile_edits(opened.spec, heads))
    verify_edits(base, folder, checkpoint)
    for name in other_weights(base):
        progress.say(f"copied unedited, it may still hold the capability: {name}")
    return checkpoint


def _validate(run: Run, heads: Sequence[Head], edited: Opened) -> Validation:
    """Load the edited files afresh and compare them with the base."""
    settings, progress = run.settings, run.progress
    rows = tasks.judged(run.what, settings.test_items, settings.min_target_drop)
    progress.stage("validation on base and edited files", 2 * len(rows) + 4 * len(heads))
    weights = edited.spec.weights_digest()[:8]
    with Journal.open(run.folder.path / f"edited-{weights}.jsonl") as journal:
        bench = loaded_bench(edited, settings.dtype, journal, run.options, progress)
        return validate_edit(
            run.bench, bench, rows, heads, spec=run.opened.spec, seed=settings.seed
        )


def _manifest(
    opened: Opened, heads: Sequence[Head], checkpoint: Checkpoint, model: str, times: dict[str, Any]
) -> Manifest:
    """What is known of an edit before anything was measured."""
    local = Path(model).expanduser().exists()
    return Manifest(
        schema_version=SCHEMA_VERSION,
        tool=f"capability-editor {__version__}",
        model=Path(model).resolve().name if local else model,
        base=opened.spec.source,
        revision=opened.spec.revision,
        base_files=opened.spec.files,
        heads=tuple(heads),
        edits=checkpoint.edits,
        # The base's card was copied, but the edit's own card takes its place.
        files=tuple(file for file in checkpoint.files if file.name != CARD),
        bytes_changed=checkpoint.bytes_changed,
        bytes_total=checkpoint.bytes_total,
        times=times,
    )


def _describe(manifest: Manifest, base: Path, folder: Path, page: str | None) -> None:
    """Write manifest, card and report beside the weights."""
    old = base / CARD
    text = None
    if old.is_file() and old.stat().st_size <= MAX_CARD_BYTES:
        text = old.read_text(encoding="utf-8", errors="replace")
    write_atomic(folder / CARD, render_card(manifest, text))
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    if page is not None:
        write_atomic(folder / REPORT, page)


def read_manifest(folder: Path) -> Manifest:
    """The editor.json of an edited checkpoint.

    Raises:
        ModelError: there is none, or it is not one of this tool's.
    """
    file = folder / MANIFEST
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(
            f"{file}: {error.strerror or error}", "give a folder that `editor` wrote"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{file} is not UTF-8 text", "give a folder that `editor` wrote"
        ) from error
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise ModelError(f"{file}: {where}: {first['msg']}") from error


def _recipe_of(manifest: Manifest, base: str | None, changes: dict[str, Any]) -> Recipe:
    """The recipe of a recorded edit, with what the user gives instead."""
    settings = manifest.settings
    recorded = {} if settings is None else settings.model_dump(mode="json")
    if not (recorded or changes.get("capability")):
        raise UsageError(
            "editor.json records no capability: the heads were given by hand",
            "say what to measure with --capability",
        )
    if base is None and manifest.model == manifest.base and "/" not in manifest.model:
        raise UsageError(
            f"the base was a local folder, of which {MANIFEST} has only the name {manifest.base}",
            "say where it is with --base",
        )
    return refine({**recorded, "model": base or manifest.model}, changes)
