"""The same jobs from Python: the names and defaults of the command line, the records of a run.

Errors are `editor.errors.EditorError`; its subclasses carry the exit code that the command has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from editor import baking, pipeline, verification
from editor.compare_page import render_comparison, write_page
from editor.errors import UsageError
from editor.finished import compare_runs
from editor.progress import Progress, Silent
from editor.recipe import Recipe, make_recipe
from editor.records import (
    Comparison,
    Difference,
    Head,
    Localization,
    Manifest,
    Removal,
    Undone,
    Validation,
    Verified,
)
from editor.session import Options

# Defaults stand in Recipe and Options only; these two are never run.
_RECIPE = Recipe(model="-", capability="-")
_OPTIONS = Options()

Limits = float | Mapping[str, float]
"""One limit for every control, or one by name (`default` for those not named)."""


def remove(  # noqa: PLR0913  the flags of the command, one by one
    *,
    model: str | Path,
    capability: str | Sequence[str],
    output: str | Path,
    controls: Sequence[str] | None = _RECIPE.controls,
    max_heads: int = _RECIPE.max_heads,
    max_control_drop: Limits | None = None,
    min_target_drop: float = _RECIPE.min_target_drop,
    method: str = _RECIPE.method,
    budget: int | None = _RECIPE.budget,
    confidence: float = _RECIPE.confidence,
    score: str = _RECIPE.score,
    prior: str = _RECIPE.prior,
    universal: str = _RECIPE.universal,
    improve: bool = _RECIPE.improve,
    seed: int = _RECIPE.seed,
    search_items: int = _RECIPE.search_items,
    choose_items: int = _RECIPE.choose_items,
    test_items: int = _RECIPE.test_items,
    dtype: str = _RECIPE.dtype,
    chat: str = _RECIPE.chat,
    device: str = _OPTIONS.device,
    workers: int | None = _OPTIONS.workers,
    ray: str | None = _OPTIONS.ray,
    include_path: str | Path | None = _OPTIONS.include_path,
    allow_code_execution: bool = _OPTIONS.allow_code_execution,
    runs: str | Path = _OPTIONS.runs,
    data_dir: str | Path | None = _OPTIONS.data_dir,
    cache: str | Path | None = _OPTIONS.cache,
    new_run: bool = _OPTIONS.new_run,
    offline: bool = _OPTIONS.offline,
    force: bool = _OPTIONS.force,
    allow_partial: bool = _OPTIONS.allow_partial,
    trust_remote_code: bool = _OPTIONS.trust_remote_code,
    max_hours: float | None = _OPTIONS.max_hours,
    progress: Progress | None = None,
) -> Removal:
    """Remove a capability: localize, bake, validate and report.

    Args:
        model: an alias, a Hub id with an optional @revision, a folder, or a .gguf file.
        capability: what to remove; several are removed by one edit, which says what they share.
        output: folder for the new checkpoint.
        controls: capabilities to keep; by default recall, arithmetic, copying, english and python,
            without the one to remove.
        max_heads: the most heads to zero.
        max_control_drop: the most a control may lose; by default each control's own limit.
        min_target_drop: share of the base score above the floor that must be gone.
        method: `adaptive`, `published`, `scan`, `greedy` or `gradient`.
        budget: evaluations of the capability, search and choice together; by default what the
            method needs.
        confidence: probability from which a head counts as decided.
        score: what the search looks at, `logprob` or `exact`.
        prior: whether the adaptive search looks at gradients too, `gradient` or `none`.
        universal: how heads are found that all text needs, `scan` or `suspects`.
        improve: zero heads without which the model does better at the capability; then
            `min_target_drop` does not count.
        seed: of every random choice.
        search_items: questions for the search.
        choose_items: questions for the choice among candidates.
        test_items: questions a capability for the final comparison.
        dtype: number type of the computation; `auto` takes the checkpoint's.
        chat: whether items that are messages are written by the model's chat template: `auto` where
            it has one, `never` for plain prompts, `always` to refuse a model without.
        device: where to compute, as torch names it.
        workers: processes that measure, by default one; a script that asks for more starts them
            under `if __name__ == "__main__":`.  On a Ray cluster by default as many as fit.
        ray: address of a Ray cluster whose machines measure: auto, local, host:port or ray://.
        include_path: folder with tasks of lm-eval's form, for a capability `lm-eval:TASK`.
        allow_code_execution: run programs that the model writes, contained, where a capability is
            judged by that.
        runs: folder of all runs.
        cache: folder for conversions, universal heads and data sets.
        data_dir: folder with data sets, beside those that were fetched.
        new_run: start afresh instead of going on with a run of the same settings.
        offline: open no socket.
        force: replace an output folder that the editor wrote.
        allow_partial: go on with a model of which only some layers have heads to zero.
        trust_remote_code: run Python code that comes with the model.
        max_hours: measure no more candidates once the run took so long; the search gets half of it.
        progress: hears of stages and finished masks; by default nobody does.

    Returns:
        What was done and measured; an edit that broke a limit has `accepted` False.

    Raises:
        UsageError: wrong arguments, or an output that may not be written.
        ModelError: the model cannot be used.
        CapabilityAbsent: the model does not show the capability, or no head can be removed.
        CheckFailed: the written files are not what was declared.
    """
    recipe = make_recipe(
        model=str(model),
        capability=capability,
        controls=_names(controls),
        max_heads=max_heads,
        max_control_drop=_limits(max_control_drop),
        min_target_drop=_number(min_target_drop),
        method=method,
        budget=budget,
        confidence=_number(confidence),
        score=score,
        prior=prior,
        universal=universal,
        improve=improve,
        seed=seed,
        search_items=search_items,
        choose_items=choose_items,
        test_items=test_items,
        dtype=dtype,
        chat=chat,
    )
    options = Options(
        runs=Path(runs),
        data_dir=_path(data_dir),
        cache=_path(cache),
        device=device,
        workers=_workers(workers),
        ray=ray,
        include_path=_path(include_path),
        allow_code_execution=allow_code_execution,
        force=force,
        new_run=new_run,
        offline=offline,
        allow_partial=allow_partial,
        trust_remote_code=trust_remote_code,
        max_hours=_hours(max_hours),
    )
    return pipeline.remove(recipe, Path(output), options, progress or Silent())


def localize(  # noqa: PLR0913  the flags of the command, one by one
    *,
    model: str | Path,
    capability: str | Sequence[str],
    controls: Sequence[str] | None = _RECIPE.controls,
    max_heads: int = _RECIPE.max_heads,
    max_control_drop: Limits | None = None,
    method: str = _RECIPE.method,
    budget: int | None = _RECIPE.budget,
    confidence: float = _RECIPE.confidence,
    score: str = _RECIPE.score,
    prior: str = _RECIPE.prior,
    universal: str = _RECIPE.universal,
    improve: bool = _RECIPE.improve,
    seed: int = _RECIPE.seed,
    search_items: int = _RECIPE.search_items,
    choose_items: int = _RECIPE.choose_items,
    dtype: str = _RECIPE.dtype,
    chat: str = _RECIPE.chat,
    device: str = _OPTIONS.device,
    workers: int | None = _OPTIONS.workers,
    ray: str | None = _OPTIONS.ray,
    include_path: str | Path | None = _OPTIONS.include_path,
    allow_code_execution: bool = _OPTIONS.allow_code_execution,
    runs: str | Path = _OPTIONS.runs,
    data_dir: str | Path | None = _OPTIONS.data_dir,
    cache: str | Path | None = _OPTIONS.cache,
    new_run: bool = _OPTIONS.new_run,
    offline: bool = _OPTIONS.offline,
    allow_partial: bool = _OPTIONS.allow_partial,
    trust_remote_code: bool = _OPTIONS.trust_remote_code,
    max_hours: float | None = _OPTIONS.max_hours,
    progress: Progress | None = None,
) -> Localization:
    """Find the heads that a capability needs and that may be removed; writes no checkpoint.

    The arguments are those of `remove`, and so are the errors.
    """
    recipe = make_recipe(
        model=str(model),
        capability=capability,
        controls=_names(controls),
        max_heads=max_heads,
        max_control_drop=_limits(max_control_drop),
        method=method,
        budget=budget,
        confidence=_number(confidence),
        score=score,
        prior=prior,
        universal=universal,
        improve=improve,
        seed=seed,
        search_items=search_items,
        choose_items=choose_items,
        dtype=dtype,
        chat=chat,
    )
    options = Options(
        runs=Path(runs),
        data_dir=_path(data_dir),
        cache=_path(cache),
        device=device,
        workers=_workers(workers),
        ray=ray,
        include_path=_path(include_path),
        allow_code_execution=allow_code_execution,
        new_run=new_run,
        offline=offline,
        allow_partial=allow_partial,
        trust_remote_code=trust_remote_code,
        max_hours=_hours(max_hours),
    )
    return pipeline.localize(recipe, options, progress or Silent())


def bake(  # noqa: PLR0913  the flags of the command, one by one
    *,
    model: str | Path,
    heads: str | Sequence[str | Head],
    output: str | Path,
    form: baking.Format = "auto",
    link: bool = _OPTIONS.link,
    cache: str | Path | None = _OPTIONS.cache,
    offline: bool = _OPTIONS.offline,
    force: bool = _OPTIONS.force,
    allow_partial: bool = _OPTIONS.allow_partial,
    progress: Progress | None = None,
) -> Manifest:
    """Write a checkpoint with these heads zeroed; nothing is loaded and nothing measured.

    Args:
        model: an alias, a Hub id with an optional @revision, a folder, or a .gguf file.
        heads: `L16H21` or `Head(16, 21)` each, or one text with commas.
        output: folder for the new checkpoint; the removed bytes go to `<output>.restore.zip`.
        form: `gguf` edits a GGUF file as it is, `safetensors` what it is multiplied out to; `auto`
            edits a .gguf file as it is.
        link: make weight files without edits hard links to the model's.
        cache: folder for conversions.
        offline: open no socket.
        force: replace an output folder that the editor wrote.
        allow_partial: go on with a model of which only some layers have heads to zero.
        progress: hears what is done; by default nobody does.

    Raises:
        UsageError: a head is written wrongly, or the output may not be written.
        ModelError: the model cannot be used or has no such head.
        CheckFailed: the written files are not what was declared.
    """
    options = Options(
        cache=_path(cache), offline=offline, force=force, link=link, allow_partial=allow_partial
    )
    progress, chosen = progress or Silent(), read_heads(heads)
    return baking.bake(str(model), chosen, Path(output), options, progress, form=form).manifest


def verify(
    *,
    output: str | Path,
    base: str | Path | None = None,
    public_key: str | Path | None = None,
    cache: str | Path | None = _OPTIONS.cache,
    offline: bool = _OPTIONS.offline,
    progress: Progress | None = None,
) -> Verified:
    """Check that an edited folder is what its editor.json says.

    Args:
        output: a folder that `remove` or `bake` wrote.
        base: the model it was made from: every byte is compared with it.
        public_key: a PEM file with which the folder's signature is checked.
        cache: folder for conversions.
        offline: open no socket.
        progress: hears what is done; by default nobody does.

    Raises:
        CheckFailed: at the first difference.
        ModelError: the folder or the base cannot be read.
    """
    return verification.verify(
        Path(output),
        None if base is None else str(base),
        Options(cache=_path(cache), offline=offline),
        progress or Silent(),
        public_key=_path(public_key),
    )


def verify_derivative(
    *,
    derived: str | Path,
    heads: str | Sequence[str | Head] | None = None,
    manifest: str | Path | None = None,
    base: str | Path | None = None,
    cache: str | Path | None = _OPTIONS.cache,
    offline: bool = _OPTIONS.offline,
    progress: Progress | None = None,
) -> Verified:
    """Check the heads in files that another program made from edited ones.

    Args:
        derived: a folder or GGUF file: requantized, converted, resharded.
        heads: heads that should be zero; by default those of `manifest`.
        manifest: an editor.json; by default the one beside the derived weights.
        base: the model that was edited: tensors of one form are compared.
        cache: folder for conversions.
        offline: open no socket.
        progress: hears what is done; by default nobody does.

    Raises:
        UsageError: no heads are named.
        CheckFailed: a head is not zero, or a comparable tensor is not as in the base.
        ModelError: a file cannot be read, or the model has no such head.
    """
    path = Path(derived)
    wanted = (
        verification.recorded_heads(path, _path(manifest)) if heads is None else read_heads(heads)
    )
    return verification.verify_derivative(
        path,
        wanted,
        None if base is None else str(base),
        Options(cache=_path(cache), offline=offline),
        progress or Silent(),
    )


def undo(
    *,
    edited: str | Path,
    output: str | Path,
    restore: str | Path | None = None,
    progress: Progress | None = None,
) -> Undone:
    """Write the model that an edited folder was made from, bit for bit.

    Args:
        edited: a folder that `remove` or `bake` wrote.
        output: folder for the base.
        restore: the restore patch; by default `<edited>.restore.zip`.
        progress: hears what is done; by default nobody does.

    Raises:
        UsageError: the output may not be written.
        ModelError: the patch is missing or damaged.
        CheckFailed: the files are not those that the edit wrote.
    """
    return verification.undo(Path(edited), Path(output), _path(restore), progress or Silent())


def diff(
    *,
    a: str | Path,
    b: str | Path,
    cache: str | Path | None = _OPTIONS.cache,
    offline: bool = _OPTIONS.offline,
    progress: Progress | None = None,
) -> Difference:
    """What differs between two checkpoints, by tensor and by head.

    Raises:
        UsageError: a name is unknown.
        ModelError: one of them cannot be read.
    """
    options = Options(cache=_path(cache), offline=offline)
    return verification.diff(str(a), str(b), options, progress or Silent())


def compare(
    *,
    names: Sequence[str | Path] = (),
    runs: str | Path = _OPTIONS.runs,
    output: str | Path | None = None,
    force: bool = False,
) -> Comparison:
    """How few heads hold the capabilities of finished runs, and which heads they share.

    Args:
        names: folders of runs, or parts of their names below `runs`; without any, all there.
        output: an HTML page to write.
        force: replace the page even if it is a file of another kind.

    Raises:
        UsageError: a name fits no finished run or several, or the page may not be written.
    """
    found = compare_runs([str(name) for name in names], Path(runs))
    if output is not None:
        write_page(Path(output), render_comparison(found), force=force)
    return found


def validate(  # noqa: PLR0913  the flags of the command, one by one
    *,
    output: str | Path,
    base: str | Path | None = None,
    capability: str | Sequence[str] | None = None,
    controls: Sequence[str] | None = None,
    max_control_drop: Limits | None = None,
    min_target_drop: float | None = None,
    seed: int | None = None,
    test_items: int | None = None,
    dtype: str | None = None,
    chat: str | None = None,
    device: str = _OPTIONS.device,
    workers: int | None = _OPTIONS.workers,
    ray: str | None = _OPTIONS.ray,
    include_path: str | Path | None = _OPTIONS.include_path,
    allow_code_execution: bool = _OPTIONS.allow_code_execution,
    runs: str | Path = _OPTIONS.runs,
    data_dir: str | Path | None = _OPTIONS.data_dir,
    cache: str | Path | None = _OPTIONS.cache,
    new_run: bool = _OPTIONS.new_run,
    offline: bool = _OPTIONS.offline,
    allow_partial: bool = _OPTIONS.allow_partial,
    trust_remote_code: bool = _OPTIONS.trust_remote_code,
    progress: Progress | None = None,
) -> Validation:
    """Measure base files against edited files again.

    Args:
        output: a folder that `remove` or `bake` wrote.
        base: the model it was made from; by default what its editor.json says.
        capability: what to measure; by default what was removed.  The other arguments are those of
            `remove`, by default as recorded in editor.json.
        controls: see `remove`.
        max_control_drop: see `remove`.
        min_target_drop: see `remove`.
        seed: see `remove`.
        test_items: see `remove`.
        dtype: see `remove`.
        chat: see `remove`.
        device: see `remove`.
        workers: see `remove`.
        ray: see `remove`.
        runs: see `remove`.
        data_dir: see `remove`.
        cache: see `remove`.
        new_run: see `remove`.
        offline: see `remove`.
        allow_partial: see `remove`.
        trust_remote_code: see `remove`.
        progress: see `remove`.

    Raises:
        UsageError: capability or base are neither given nor recorded, or arguments are wrong.
        ModelError: one of the two cannot be used.
        CheckFailed: the edited files are not the base with the recorded heads removed.
    """
    options = Options(
        runs=Path(runs),
        data_dir=_path(data_dir),
        cache=_path(cache),
        device=device,
        workers=_workers(workers),
        ray=ray,
        include_path=_path(include_path),
        allow_code_execution=allow_code_execution,
        new_run=new_run,
        offline=offline,
        allow_partial=allow_partial,
        trust_remote_code=trust_remote_code,
    )
    return pipeline.validate(
        Path(output),
        None if base is None else str(base),
        options,
        progress or Silent(),
        capability=capability,
        controls=_names(controls),
        max_control_drop=None if max_control_drop is None else _limits(max_control_drop),
        min_target_drop=None if min_target_drop is None else _number(min_target_drop),
        seed=seed,
        test_items=test_items,
        dtype=dtype,
        chat=chat,
    )


def read_heads(heads: str | Sequence[str | Head]) -> tuple[Head, ...]:
    """Heads from their texts.

    Raises:
        UsageError: one has another form than `L16H21`.
    """
    parts = heads.split(",") if isinstance(heads, str) else heads
    try:
        return tuple(
            Head.parse(part) if isinstance(part, str) else Head(*part)
            for part in parts
            if not isinstance(part, str) or part.strip()
        )
    except (TypeError, ValueError) as error:
        raise UsageError(
            str(error), "give heads with commas between them, as in L16H21,L15H13"
        ) from error


def _names(controls: Sequence[str] | None) -> tuple[str, ...] | None:
    # A lone text would be taken for a list of letters.
    if isinstance(controls, str):
        return (controls,)
    return None if controls is None else tuple(controls)


def _limits(limits: Limits | None) -> dict[str, float]:
    if limits is None:
        return {}
    if isinstance(limits, Mapping):
        return {name: _number(limit) for name, limit in limits.items()}
    return {"default": _number(limits)}


def _number(value: float) -> float:
    """A whole number as a float; whatever else is no number is left for the recipe to refuse."""
    return float(value) if type(value) is int else value


def _hours(hours: float | None) -> float | None:
    if hours is not None and (isinstance(hours, bool) or not 0 < hours < float("inf")):
        raise UsageError(
            f"max_hours: expected a number above 0, found {hours!r}", "leave it out for no limit"
        )
    return hours


def _workers(workers: int | None) -> int | None:
    if workers is not None and (type(workers) is not int or workers < 1):
        raise UsageError(
            f"workers: expected a number from 1, found {workers!r}", "leave it out for one"
        )
    return workers


def _path(folder: str | Path | None) -> Path | None:
    return None if folder is None else Path(folder)
