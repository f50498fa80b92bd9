"""What a job would do, found without opening a socket or writing a file.

The model is loaded only where a first batch is to be timed.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path

from editor import costs, gguf, tasks
from editor.checkpoint import other_weights
from editor.confirm import expected_masks
from editor.costs import Count, StageCost, Timing
from editor.coverage import require_coverage
from editor.errors import ModelError, UsageError, nearest
from editor.layout import digest_file, source_files
from editor.progress import Progress, Silent
from editor.recipe import Recipe
from editor.records import FileSize, Record, Settings
from editor.session import (
    Opened,
    Options,
    in_chat,
    library_of,
    loaded_bench,
    open_model,
    settle,
    universal_file,
)
from editor.source import ALIASES, PACKAGED, default_cache, download_of
from editor.staging import CARD, MANIFEST, REPORT, SPACE_MARGIN_BYTES, check_output
from editor.tasks import Scope
from editor.wording import size_text

_CONVERTED = "it would be converted once"
WRITTEN_BESIDE = (CARD, MANIFEST, REPORT)


class Preview(Record):
    """What a dry run says."""

    dry_run: bool
    """Always true: tells this object from the one of a real run."""
    model: str
    """The resolved name, or the name as given while the model is not here."""
    revision: str | None
    not_ready: str
    """Why the model cannot be read yet and what a real run does about it; empty when it can."""
    capability: str
    """Several with commas between them."""
    limits: dict[str, float]
    """The most that each control may lose."""
    settings: Settings | None
    method: str
    """How heads are searched for."""
    improve: bool
    """The capability is to get better, not to go."""
    max_heads: int
    n_layers: int | None
    n_heads: int | None
    evaluations: int | None
    """At most the masks on which each capability is scored, search and choice together; None where
    the model is not here."""
    check_masks: int
    """Masks at most of the checks on the heads that are chosen for each capability."""
    scan_masks: int | None
    """Masks of the scan for universal heads; 0 when an earlier run has found them."""
    scan_texts: int
    """Texts on which each mask of the scan is measured; 0 where no scan is made."""
    weights_bytes: int | None
    """About the memory that the weights take."""
    output: str | None
    files: tuple[FileSize, ...]
    """The weight files that would be read and written anew."""
    writes: tuple[str, ...]
    """Names of all files of the output."""
    disk_bytes: int | None
    """Free space that the output needs."""
    unedited: tuple[str, ...]
    """Weights in other formats that would be copied as they are."""
    network: str
    """What would be downloaded; empty for nothing."""
    download_bytes: int | None = None
    """How much; None where nothing is, or the Hub was not asked or did not answer."""
    stages: tuple[StageCost, ...]
    """What each stage measures at most; none where the model is not here."""
    tokens: int | None
    """Of all stages; by the model's own tokenizer where a batch was timed, else by characters."""
    journal_bytes: int | None
    batch_bytes: int | None
    """About the memory of one batch, beside the weights."""
    timing: Timing | None = None
    """A first batch on the real model; None where none was timed."""
    hours: float | None = None
    """At the pace of that batch."""


def preview(
    recipe: Recipe,
    output: Path | None,
    options: Options,
    progress: Progress,
    *,
    edits: bool = False,
    time_it: bool = False,
) -> Preview:
    """Look ahead.

    Args:
        output: the folder to be written, or None for a search only.
        edits: an output is written, even where it has no name yet.
        time_it: load the model, where it is here, and time a first batch.

    Raises:
        UsageError: the recipe is wrong, or the output may not be written.
        ModelError: a model that is here cannot be used.
    """
    # What is not here yet is not downloaded to look ahead.
    library = library_of(replace(options, offline=True), progress)
    what = tasks.scope(recipe, library, options.outside)
    tasks.data_of(what)
    if output is not None:
        check_output(output, force=options.force)
    opened, not_ready = _opened(recipe.model, options, progress)
    looked: dict[str, object] = {
        "dry_run": True,
        "model": recipe.model,
        "revision": None,
        "not_ready": not_ready,
        "capability": ", ".join(one.name for one in what.targets),
        "limits": what.limits,
        "method": recipe.method,
        "improve": recipe.improve,
        "max_heads": recipe.max_heads,
        "evaluations": recipe.budget,
        "check_masks": expected_masks(recipe.max_heads),
        "scan_texts": len(tasks.scan_texts()) if tasks.scans(recipe) else 0,
        "output": None if output is None else str(output),
        **dict.fromkeys(
            ("settings", "n_layers", "n_heads", "scan_masks", "weights_bytes", "disk_bytes"), None
        ),
        **dict.fromkeys(("tokens", "journal_bytes", "batch_bytes"), None),
        **dict.fromkeys(("files", "writes", "unedited", "stages"), ()),
        **_of_download(recipe.model, opened, not_ready, options),
    }
    if opened is not None:
        require_coverage(opened.spec, allow_partial=options.allow_partial)
        trust = options.trust_remote_code
        asked, spoken = in_chat(what, opened, recipe.chat, trust_remote_code=trust)
        settings = settle(recipe, what, opened.spec, spoken.template)
        looked |= _of_model(opened, settings, options)
        if output is not None:
            check_output(output, force=options.force, base=opened.source.folder)
        edits = edits or output is not None
        if edits:
            looked |= _of_output(opened.source.folder)
        looked |= _of_measuring(opened, asked, settings, options, edits=edits, time_it=time_it)
    return Preview.model_validate(looked)


def cost_of(
    opened: Opened, what: Scope, settings: Settings, options: Options, *, edits: bool, count: Count
) -> tuple[StageCost, ...]:
    """The stages of a job on a model that is here.

    Args:
        edits: an edited checkpoint is written and compared.
        count: tokens of requests.
    """
    known = universal_file(opened, settings.dtype, options.cache).exists()
    scan = tasks.scans(settings) and not known
    n_heads = len(opened.spec.heads())
    return costs.stages(what, settings, n_heads, scan=scan, output=edits, count=count)


def _of_measuring(
    opened: Opened,
    what: Scope,
    settings: Settings,
    options: Options,
    *,
    edits: bool,
    time_it: bool,
) -> dict[str, object]:
    """What the stages cost, by a timed batch if wanted."""
    count, timing = costs.by_characters, None
    if time_it:
        alone = replace(options, workers=None, ray=None)
        bench = loaded_bench(opened, settings.dtype, _Forgetful(), alone, Silent())
        timing, count = costs.timed(bench, what, settings, opened.spec), bench.count
    found = cost_of(opened, what, settings, options, edits=edits, count=count)
    return {
        "stages": found,
        "tokens": sum(one.tokens for one in found),
        "journal_bytes": costs.journal_bytes(found),
        "batch_bytes": costs.batch_bytes(opened.spec, settings.dtype),
        "timing": timing,
        "hours": None if timing is None else round(costs.hours(found, timing.s_per_token), 6),
    }


class _Forgetful:
    """A journal that keeps nothing: what is timed is not to be found again."""

    def get(self, key: str) -> str | None:
        del key

    def place(self, key: str) -> str:
        return key

    def append(self, key: str, value_json: str) -> None:
        del key, value_json


def _of_download(
    model: str, opened: Opened | None, not_ready: str, options: Options
) -> dict[str, object]:
    """What would be downloaded, and how much by what the Hub says."""
    if opened is not None or not_ready.startswith(_CONVERTED):
        return {"network": ""}
    if options.offline:
        return {"network": not_ready}
    try:
        found = download_of(model)
    except ModelError as error:
        return {"network": f"{not_ready}; how much is not known: {error.message}"}
    return {
        "network": f"{size_text(found.n_bytes)} in {found.n_files} files of {model}",
        "download_bytes": found.n_bytes,
    }


def conversion_folder(file: str, sha256: str, cache: Path | None) -> Path:
    """Where the conversion of a .gguf file is kept."""
    name = f"{Path(file).stem}-{sha256[:16]}-c{gguf.CONVERTER}"
    return (cache or default_cache()) / name


def _opened(model: str, options: Options, progress: Progress) -> tuple[Opened | None, str]:
    """The model where it can be read as it is, else why not."""
    here = Path(os.path.expanduser(model))
    local = os.path.exists(here)
    to_convert = _unconverted(model, here, options.cache)
    if to_convert is not None:
        return None, f"{_CONVERTED}, to {to_convert}"
    try:
        return open_model(model, replace(options, offline=True), progress), ""
    except ModelError:
        if local:
            raise
        return None, f"{model} is not here as a whole; a real run without --offline downloads it"


def _unconverted(model: str, here: Path, cache: Path | None) -> Path | None:
    """The folder that a conversion would create, where one is needed."""
    packaged = PACKAGED.get(model.strip().lower())
    if here.is_file() and here.suffix.lower() == ".gguf":
        gguf.check_file(here)
        target = conversion_folder(here.name, digest_file(here.parent, here.name).sha256, cache)
    elif packaged is not None and not here.exists() and importlib.util.find_spec(packaged.module):
        target = conversion_folder(packaged.file, packaged.sha256, cache)
    else:
        return None
    return None if target.is_dir() else target


def _of_model(opened: Opened, settings: Settings, options: Options) -> dict[str, object]:
    spec = opened.spec
    scanned = universal_file(opened, settings.dtype, options.cache).exists()
    stored = sum(file.n_bytes for file in spec.files)
    return {
        "model": spec.source,
        "revision": spec.revision,
        "settings": settings,
        "evaluations": settings.budget,
        "n_layers": len(spec.layers),
        "n_heads": len(spec.heads()),
        "scan_masks": len(spec.heads()) + 1 if tasks.scans(settings) and not scanned else 0,
        "weights_bytes": costs.weights_bytes(spec, settings.dtype, stored),
        "files": spec.files,
    }


def _of_output(base: Path) -> dict[str, object]:
    copied = source_files(base)
    return {
        "writes": tuple(sorted({*(name for name, _ in copied), *WRITTEN_BESIDE})),
        "disk_bytes": sum(size for _, size in copied) + SPACE_MARGIN_BYTES,
        "unedited": other_weights(base),
    }


def check_model_name(model: str) -> None:
    """Refuse a name that no model could have, without looking for the model.

    Raises:
        UsageError: it is no alias, no Hub id and no path.
    """
    name, at, revision = model.strip().partition("@")
    if os.path.exists(os.path.expanduser(model)):
        return
    if at and not revision:
        raise UsageError(f"{model} names no revision after the @", "write org/name@revision")
    if name.lower() in ALIASES or "/" in name or name.lower().endswith(".gguf"):
        return
    raise UsageError(
        f"no model is called {model!r}: it is no alias, no Hub id org/name and no path",
        nearest(name, ALIASES),
    )
