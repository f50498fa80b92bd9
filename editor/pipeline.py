"""The stages in order, from a recipe to a new checkpoint that was checked.

localize:  headroom -> universal heads -> search -> choose -> confirm
remove:    localize -> bake -> validate -> report -> rename
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from editor import costs, several, several_text, tasks
from editor.architecture import check_heads, read_spec
from editor.baking import describe, read_manifest, write_edit
from editor.capabilities import Capability
from editor.chat import load_tokenizer, own_template, template_digest
from editor.checkpoint import staged, verify_edits
from editor.choose import Terms, first_candidates
from editor.confirm import confirm, expected_masks
from editor.costs import StageCost
from editor.errors import CheckFailed, UsageError
from editor.formats import check_format
from editor.layout import digest_file, source_files
from editor.measure import Task
from editor.methods import METHODS, first_masks, search_budget
from editor.plan import compile_edits
from editor.progress import Progress
from editor.recipe import Recipe, names_of, refine
from editor.records import (
    Confirmation,
    EditPlan,
    FileDigest,
    FormatCheck,
    Head,
    Localization,
    Manifest,
    ModelSpec,
    Part,
    Removal,
    Settings,
    UniversalHeads,
    Validation,
)
from editor.report import render_report
from editor.search import Job, Search, with_singles
from editor.session import (
    Opened,
    Options,
    Run,
    chat_use,
    loaded_bench,
    open_model,
    started,
    universal_file,
)
from editor.source import Source
from editor.staging import MANIFEST, REPORT, check_output, check_space
from editor.store import ESTIMATE, Journal, write_atomic
from editor.universal import UNIVERSAL_NATS, costly_heads, find_universal, measure_singles
from editor.validation import base_text, check_headroom, validate_edit
from editor.weights import is_gguf


def localize(recipe: Recipe, options: Options, progress: Progress) -> Localization:
    """Find the heads that the capability needs, and those that may be removed for it.

    Raises:
        UsageError: wrong recipe, model name or run folder.
        ModelError: the model cannot be used.
        CapabilityAbsent: the model does not show the capability, or no head can be removed.
    """
    with started(recipe, options, progress) as run:
        return _localize(run, edits=False)


def remove(recipe: Recipe, output: Path, options: Options, progress: Progress) -> Removal:
    """Localize, bake, validate and report; the output folder appears when all is written.

    Raises:
        As `localize`; also UsageError for an output that may not be written, and CheckFailed when
        the written bytes are not the declared ones.  An edit that fails its limits is no error
        here: `accepted` is False.
    """
    check_output(output, force=options.force)
    began = datetime.now(timezone.utc)

    def check(opened: Opened, _settings: Settings) -> None:
        base = opened.source.folder
        check_output(output, force=options.force, base=base)
        check_space(output, sum(n_bytes for _, n_bytes in source_files(base)))

    with started(recipe, options, progress, check) as run:
        base = run.opened.source.folder
        found = _localize(run, edits=True)
        localized_s = time.monotonic() - run.began
        with staged(output, force=options.force, base=base) as folder:
            times: dict[str, Any] = {
                "started": began.isoformat(timespec="seconds"),
                "localize_s": round(localized_s, 1),
                "scan_s": found.universal.elapsed_s,
            }
            baked = write_edit(
                run.opened, found.heads, folder, recipe.model, options, progress, times
            )
            verify_edits(base, folder, baked.checkpoint.edits)
            edited = Source(output.name, None, folder, "")
            spec = read_spec(folder, source=output.name)
            validation = _validate(run, found.heads, Opened(edited, spec, run.opened.cache))
            measured = {
                "settings": run.settings,
                "evaluations": found.evaluations,
                "scan_evaluations": found.scan_evaluations,
                "universal": found.universal.heads,
                "over_limit": found.over_limit,
                "not_numbers": found.not_numbers,
                "plan": found.plan,
                "confidence": found.confidence,
                "confirmation": found.confirmation,
                "validation": validation,
                "format_check": found.format_check,
                "also": tuple(part.model_copy(update={"estimates": ()}) for part in found.also),
                "sharing": found.sharing,
                "chat": chat_use(run),
                "times": {**times, "total_s": round(time.monotonic() - run.began, 1)},
            }
            manifest = baked.manifest.model_copy(update=measured)
            estimates = (*found.estimates, *(at for part in found.also for at in part.estimates))
            page = render_report(manifest, estimates, run.opened.spec, found.universal)
            describe(manifest, base, folder, page)
        write_atomic(run.folder.path / REPORT, page)
    return Removal(
        output=str(output),
        run=found.run,
        report=str(output / REPORT),
        capability=", ".join(run.settings.targets),
        model=manifest.base,
        heads=found.heads,
        sharing=found.sharing,
        chat=manifest.chat,
        evaluations=found.evaluations,
        scan_evaluations=found.scan_evaluations,
        accepted=validation.accepted,
        reasons=validation.reasons,
        results=validation.results,
        bytes_changed=manifest.bytes_changed,
        bytes_total=manifest.bytes_total,
        elapsed_s=round(time.monotonic() - run.began, 1),
    )


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
    # A GGUF file is measured multiplied out, but what is recorded are the files themselves.
    stored = open_model(str(edited), options, progress, convert=False)
    as_file = is_gguf(stored.source.folder)
    opened = open_model(str(edited), options, progress) if as_file else stored

    def check(base: Opened, settings: Settings) -> None:
        _check_definitions(manifest.settings, settings)
        _check_data(manifest.settings, settings)
        _check_template(manifest.settings, settings, opened, options)
        if as_file:
            base = open_model(recipe.model, options, progress, convert=False)
        if base.weights != manifest.base_files:
            raise UsageError(
                f"{base.source.name} is not the base that {edited} was made from: its weight "
                f"files have other digests than {MANIFEST} records",
                f"name the base with --base; it was {manifest.base}",
            )
        # Read again, not remembered: this is about whether they were changed.
        weights = tuple(digest_file(stored.root, file.name) for file in stored.spec.files)
        _check_recorded(manifest, weights, base.spec)

    with started(recipe, options, progress, check) as run:
        return _validate(run, manifest.heads, opened)


def _check_recorded(manifest: Manifest, weights: tuple[FileDigest, ...], base: ModelSpec) -> None:
    """That the weights are the recorded ones, and the recorded edits those of the heads.

    Raises:
        CheckFailed: they are not.
        ModelError: the base has no such head.
    """
    recorded = {file.name: file for file in manifest.files}
    for file in weights:
        if recorded.get(file.name) != file:
            raise CheckFailed(
                f"{file.name} is not the file that {MANIFEST} records: its size or sha256 differs",
                "the files were changed after the edit; edit the base again",
            )
    check_heads(base, manifest.heads)
    if compile_edits(base, manifest.heads) != manifest.edits:
        raise CheckFailed(f"the edits in {MANIFEST} are not those of its heads")


def _localize(run: Run, *, edits: bool) -> Localization:
    """The stages up to the choice, each from the journal where it was done before.

    Args:
        edits: an edited checkpoint will be written, for what is said of the costs.
    """
    what, settings, bench = run.what, run.settings, run.bench
    say, stage = run.progress.say, run.progress.stage
    ahead = _ahead(run, edits=edits)
    stage("baseline", 2 * len(what.targets))
    fresh, began = not len(run.folder.journal), time.monotonic()
    known = [
        tasks.known(
            bench,
            target,
            settings.search_items,
            settings.choose_items,
            selected=not settings.improve,
            dense=settings.score == "logprob",
        )
        for target in what.targets
    ]
    if fresh:  # else the journal answered, at no pace of the model's
        say(costs.pace_sentence(ahead, ahead[0].tokens, time.monotonic() - began))
    for one, target in zip(known, what.targets, strict=True):
        check_headroom(one.base_exact, target, run.name, improve=settings.improve)
        _check_other_form(run, target)
    universal = _universal(run)
    excluded = costly_heads(universal, what.limits)
    searches = _searches(run, [one.searching for one in known], excluded)
    choosing = [one.choosing for one in known]
    ahead_of = {cost.stage: cost.masks for cost in ahead}
    heads, plans, sharing = _choose(run, known, searches, ahead_of["choice"])
    say(f"chosen: {', '.join(map(str, heads))}")
    if sharing is not None:
        say(several_text.shared_sentence(sharing))
    first, *also = map(partial(_part, run), choosing, plans, searches)
    found = {head for one in (first, *also) if one.confidence for head in one.confidence.universal}
    if found:
        universal = _come_upon(run, universal, tuple(found))
    record = Localization(
        run=str(run.folder.path),
        heads=heads,
        improve=settings.improve,
        evaluations=sum(plan.evaluations for plan in plans),
        scan_evaluations=universal.evaluations,
        universal=universal,
        over_limit=tuple(sorted(excluded.difference(universal.heads))),
        estimates=first.estimates,
        plan=first.plan,
        confidence=first.confidence,
        format_check=first.format_check,
        confirmation=first.confirmation,
        also=tuple(also),
        sharing=sharing,
    )
    write_atomic(run.folder.path / ESTIMATE, record.model_dump_json(indent=1))
    return record


def _searches(
    run: Run, searching: Sequence[Task], excluded: frozenset[Head]
) -> list[tuple[Job, Search]]:
    """A search a target, all on the same first masks."""
    method, n = run.settings.method, len(searching)
    jobs = [
        replace(_job(run, task, excluded), turn=turn / n) for turn, task in enumerate(searching, 1)
    ]
    if n > 1:
        run.progress.stage(
            f"the masks that {n} searches share", n * (1 + len(first_masks(method, jobs[0])))
        )
        several.measure_shared(method, jobs)
    found: list[tuple[Job, Search]] = []
    for job in jobs:
        run.progress.stage(f"search for the heads of {job.task.name}", job.budget)
        found.append((job, METHODS[method](job)))
        sure = found[-1][1].confidence()
        if sure is not None:
            run.progress.say(sure.sentence if n == 1 else f"{job.task.name}: {sure.sentence}")
    return found


def _choose(
    run: Run, known: Sequence[tasks.Known], searches: Sequence[tuple[Job, Search]], n_masks: int
) -> several.Chosen:
    """Heads for every target, one target after the other, within so many masks."""
    settings, budget, n = run.settings, run.settings.budget or 0, len(known)
    run.progress.stage("choice under the controls' limits", n_masks)
    controls = tasks.choose_controls(run.what, settings.choose_items)
    terms = [
        Terms(
            settings.max_heads,
            budget,
            job.sign,
            # What the searches left, target by target.
            partial(run.out_of_time, 1.0 - 0.5 * (1.0 - turn / n)),
            job.on_best,
            base=f"the base scores {base_text(known[turn - 1].base_exact, target)}",
        )
        for turn, (target, (job, _)) in enumerate(zip(run.what.targets, searches, strict=True), 1)
    ]
    return several.choose_each(
        run.bench,
        [one.choosing for one in known],
        controls,
        [search for _, search in searches],
        terms,
    )


def _part(run: Run, choosing: Task, plan: EditPlan, searched: tuple[Job, Search]) -> Part:
    """What was found of one target, with the checks on its heads."""
    _, search = searched
    form, confirmation = _checks(run, choosing, plan, search)
    # The choice measured them: they come from the journal.
    alone = measure_singles(run.bench, choosing, first_candidates(search), run.settings.score)
    return Part(
        plan=plan,
        estimates=tuple(with_singles(pooled, alone) for pooled in search.estimates()),
        confidence=search.confidence(),
        format_check=form,
        confirmation=confirmation,
    )


def _ahead(run: Run, *, edits: bool) -> tuple[StageCost, ...]:
    """Say what the run will cost at most."""
    settings, spec, dtype = run.settings, run.opened.spec, run.settings.dtype
    file = universal_file(run.opened, dtype, run.options.cache)
    scan, n_heads = tasks.scans(settings) and not file.exists(), len(spec.heads())
    count = run.bench.count
    found = costs.stages(run.what, settings, n_heads, scan=scan, output=edits, count=count)
    written = source_files(run.opened.source.folder) if edits else []
    run.progress.say(costs.sentence(found, spec, dtype, sum(size for _, size in written)))
    return found


def _checks(
    run: Run, asked: Task, plan: EditPlan, search: Search
) -> tuple[FormatCheck | None, Confirmation]:
    """What the chosen heads take, form or answer, and whether they are more than an artefact."""
    bench, improve = run.bench, run.settings.improve
    form = None
    if not improve:  # it splits losses, of scores that the choice has measured
        form = check_format(bench, asked, plan.heads, first_candidates(search))
    if form is not None:
        run.progress.say(f"{asked.name}: {form.sentence}" if run.settings.also else form.sentence)
    of = f" of {asked.name}" if run.settings.also else ""
    run.progress.stage(f"checks on the chosen heads{of}", expected_masks(len(plan.heads)))
    spec, seed = run.opened.spec, run.settings.seed
    return form, confirm(bench, asked, plan.heads, spec, seed=seed, improve=improve)


def _come_upon(run: Run, universal: UniversalHeads, heads: Sequence[Head]) -> UniversalHeads:
    """The universal heads that the search came upon, with their costs; the journal has them."""
    texts = tasks.scan_texts()
    effects = tuple(measure_singles(run.bench, text, heads, "nats_per_token") for text in texts)
    return universal.model_copy(update={"heads": tuple(sorted(heads)), "effects": effects})


def _job(run: Run, searching: Task, excluded: frozenset[Head]) -> Job:
    """What the search is to find, and what it may cost."""
    settings, heads = run.settings, run.opened.spec.heads()
    texts = tasks.scan_texts()

    def is_universal(head: Head) -> bool:
        alone = [measure_singles(run.bench, text, [head], "nats_per_token") for text in texts]
        # Without effects the model says nothing at all without the head.
        return any(not found.effects or found.effects[0].effect > UNIVERSAL_NATS for found in alone)

    return Job(
        bench=run.bench,
        task=searching,
        heads=heads,
        excluded=excluded,
        seed=settings.seed,
        budget=search_budget(settings.method, settings.budget or 0, settings.max_heads, len(heads)),
        max_heads=settings.max_heads,
        confidence=settings.confidence,
        view=settings.score,
        prior=settings.prior,
        sign=-1 if settings.improve else 1,
        is_universal=is_universal if settings.universal == "suspects" else None,
        out_of_time=run.out_of_time,
        on_best=lambda best: run.progress.best([str(head) for head in best]),
    )


def _universal(run: Run) -> UniversalHeads:
    """The model's universal heads, from the cache where some run has found them before."""
    texts, checkpoint = tasks.scan_texts(), run.opened.identity
    if not tasks.scans(run.settings):
        return UniversalHeads(
            checkpoint=checkpoint,
            threshold=UNIVERSAL_NATS,
            evaluations=0,
            effects=(),
            heads=(),
            elapsed_s=0.0,
        )
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
    _require_writable(file.parent)  # before what takes long, and not after it
    heads = run.opened.spec.heads()
    run.progress.stage("scan for universal heads (once a model)", len(texts) * (len(heads) + 1))
    found = find_universal(run.bench, heads, texts, checkpoint, out_of_time=run.out_of_time)
    write_atomic(file, found.model_dump_json(indent=1))
    run.progress.say(f"universal heads: {', '.join(map(str, found.heads))}")
    return found


def _check_other_form(run: Run, target: Capability) -> None:
    """That the model has a capability in both forms, where a removal must take both.

    Raises:
        CapabilityAbsent: it does not have it in the transfer form.
    """
    if target.both_forms and not run.settings.improve:
        asked = tasks.other_form(target)
        (found,) = run.bench.scores(asked, [()])
        check_headroom(found.exact, replace(target, name=asked.name), run.name)


def _require_writable(folder: Path) -> None:
    """Make a folder of the cache, and see whether it can be written.

    Raises:
        UsageError: it cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(folder, os.W_OK | os.X_OK) else "it may not be written"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise UsageError(
            f"the cache folder {folder} cannot be used: {reason}", "name another with --cache"
        )


def _validate(run: Run, heads: Sequence[Head], edited: Opened) -> Validation:
    """Load the edited files afresh and compare them with the base."""
    settings, progress = run.settings, run.progress
    rows = tasks.judged(
        run.what, settings.test_items, settings.min_target_drop, improve=settings.improve
    )
    progress.stage("validation on base and edited files", 2 * len(rows) + 4 * len(heads))
    weights = edited.weights_id[:8]
    with Journal.open(run.folder.path / f"edited-{weights}.jsonl") as journal:
        bench = loaded_bench(
            edited, settings.dtype, journal, run.options, progress, beside=run.bench
        )
        return validate_edit(
            run.bench, bench, rows, heads, spec=run.opened.spec, seed=settings.seed
        )


def _require_files(
    definitions: Iterable[str], recorded: dict[str, Any], changes: dict[str, Any]
) -> None:
    """That files are given for what was defined in files.

    Raises:
        UsageError: one is not.
    """
    used: dict[str, set[str]] = {
        "capability": set(names_of(changes.get("capability") or recorded.get("capability") or ())),
        "control": {*(changes.get("controls") or recorded.get("controls") or ())},
    }
    for flag, names in used.items():
        # A task of lm-eval is found again by its name.
        files = {one for one in definitions if not one.startswith("lm-eval:")}
        for name in sorted(names & files):
            raise UsageError(
                f"{name} is defined in a file of its own, which {MANIFEST} does not hold",
                f"give the file with --{flag}"
                + ("" if flag == "capability" else ", and the other controls too"),
            )


def _check_definitions(recorded: Settings | None, found: Settings) -> None:
    """That capabilities of files are those that were measured before.

    Raises:
        UsageError: one is another by now.
    """
    for name, digest in (recorded.definitions if recorded else {}).items():
        if found.definitions.get(name, digest) != digest:
            raise UsageError(
                f"what defines {name} is not what the edit was measured with",
                "restore it, or give the changed capability another name",
            )


def _check_data(recorded: Settings | None, found: Settings) -> None:
    """That data sets are those that were measured with before.

    Raises:
        UsageError: one holds other rows by now.
    """
    for name, digest in (recorded.data if recorded else {}).items():
        if found.data.get(name, digest) != digest:
            raise UsageError(
                f"the data set {name} is not the one that the edit was measured with: its rows "
                f"have the sha256 {found.data[name][:12]}, not {digest[:12]}",
                "give the folder with the same rows with --data-dir, or remove the fetched ones",
            )


def _check_template(
    recorded: Settings | None, found: Settings, edited: Opened, options: Options
) -> None:
    """That messages are written by the chat template that wrote them before.

    Raises:
        UsageError: base or edited files have another one by now.
    """
    if recorded is None or not recorded.chat_template:
        return
    if (recorded.targets, recorded.controls, recorded.chat) != (
        *(found.targets, found.controls),
        found.chat,
    ):
        return  # something else is to be measured
    tokenizer = load_tokenizer(edited.source.folder, trust_remote_code=options.trust_remote_code)
    own = own_template(tokenizer)
    digests = {"the base": found.chat_template, edited.source.name: own and template_digest(own)}
    for name, digest in digests.items():
        if digest != recorded.chat_template:
            raise UsageError(
                f"the chat template of {name} is not the one that the edit was measured with: its "
                f"sha256 is {(digest or 'none')[:12]}, not {recorded.chat_template[:12]}",
                "restore it, or measure plain prompts with --chat never",
            )


def _recipe_of(manifest: Manifest, base: str | None, changes: dict[str, Any]) -> Recipe:
    """The recipe of a recorded edit, with what the user gives instead."""
    settings = manifest.settings
    recorded = (
        {}
        if settings is None
        else settings.model_dump(mode="json", exclude={"also", "data", "chat_template"})
    )
    if settings is not None:
        recorded["capability"] = settings.targets
    _require_files(recorded.pop("definitions", {}), recorded, changes)
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
