"""One run: a model that was found, loaded and journaled, and the settings it is measured with."""

from __future__ import annotations

import hashlib
import os
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from editor.architecture import read_spec
from editor.capabilities import Outside
from editor.chat import (
    NO_MESSAGES,
    NO_TEMPLATE,
    Spoken,
    load_tokenizer,
    own_template,
    prompt_ids,
    speak,
    template_digest,
)
from editor.costs import by_characters
from editor.coverage import require_coverage
from editor.digests import identity, remembered_digest
from editor.errors import CapabilityAbsent, CheckFailed, ModelError
from editor.fanout import FanOut
from editor.gguf_spec import read_gguf_spec
from editor.library import Library
from editor.loading import Loading, threads_of
from editor.measure import Bench, Memory, Task
from editor.methods import budget_of
from editor.progress import Progress
from editor.recipe import Recipe
from editor.records import Chat, ChatUse, FileDigest, Fingerprint, ModelSpec, Settings
from editor.rendering import Talks
from editor.run_folders import refuse_other_settings
from editor.source import Source, default_cache, resolve
from editor.store import RunDir, code_version
from editor.tasks import Scope, data_of, scan_texts, scope
from editor.universal import SCAN_VERSION
from editor.weights import is_gguf
from editor.workers import open_crew, require_ray, wants_workers

_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float32"}
_PACKED_DTYPE = "bfloat16"
"""What a quantized model computes in."""


@dataclass(frozen=True)
class Options:
    """Where and how fast: nothing here changes a number."""

    runs: Path = Path("runs")
    cache: Path | None = None
    """Conversions, universal heads and data sets; by default `source.default_cache()`."""
    data_dir: Path | None = None
    """A folder with data sets, beside those in the cache."""
    device: str = "cpu"
    force: bool = False
    """Replace an output folder that the editor wrote."""
    new_run: bool = False
    """Start afresh instead of going on with a run of the same settings."""
    offline: bool = False
    trust_remote_code: bool = False
    link: bool = False
    """Make weight files that are not edited hard links to the base's."""
    allow_partial: bool = False
    """Go on with a model of which only some layers have heads that can be edited."""
    max_hours: float | None = None
    """Measure no more once a run took so long; what is known then is used."""
    command: tuple[str, ...] = field(default=(), compare=False)
    """What was typed after `editor`, kept in the run's folder as the way to go on."""
    workers: int | None = None
    """Processes that measure: by default one, and on a Ray cluster as many as fit."""
    ray: str | None = None
    """Address of a Ray cluster whose machines measure."""
    include_path: Path | None = None
    """A folder with tasks of lm-eval's form, beside its own."""
    allow_code_execution: bool = False
    """Run programs that the model writes, contained, where a capability is judged by that."""

    @property
    def outside(self) -> Outside:
        """What capabilities may be made of that are no part of the package, and may do."""
        return Outside(
            self.include_path, self.trust_remote_code, self.offline, self.allow_code_execution
        )


@dataclass(frozen=True)
class Opened:
    """A model that was found and read, not loaded."""

    source: Source
    spec: ModelSpec
    cache: Path

    @property
    def root(self) -> Path:
        """The folder that holds the model's files."""
        path = self.source.folder
        return path.parent if is_gguf(path) else path

    def digest(self, name: str) -> FileDigest:
        """Size and sha256 of one of the model's files, hashed once as long as it is the same."""
        return remembered_digest(self.root, name, self.cache)

    @cached_property
    def weights(self) -> tuple[FileDigest, ...]:
        """Size and sha256 of every weight file."""
        return tuple(self.digest(file.name) for file in self.spec.files)

    @property
    def weights_id(self) -> str:
        """sha256 over the weight files' names and digests."""
        text = "\n".join(f"{file.name} {file.sha256}" for file in self.weights)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def identity(self) -> str:
        """sha256 over the digests of all files that decide what the model says."""
        return identity(self.root, [file.name for file in self.spec.files], self.cache)


@dataclass(frozen=True)
class Run:
    """A loaded model with its journal, its settings and what is asked of it."""

    opened: Opened
    what: Scope
    settings: Settings
    folder: RunDir
    bench: Bench
    options: Options
    progress: Progress
    began: float
    spoken: Spoken
    """How items that are messages are put to the model; `what` has them so."""

    @property
    def name(self) -> str:
        """The model's name."""
        return self.opened.source.name

    def out_of_time(self, share: float = 1.0) -> bool:
        """Whether the run took that share of its hours."""
        hours = self.options.max_hours
        return hours is not None and time.monotonic() - self.began > share * 3600 * hours


class Logged:
    """Passes everything on, and keeps what is said in the run's log."""

    def __init__(self, progress: Progress, folder: RunDir) -> None:
        self._progress, self._folder = progress, folder
        self.advance, self.tokens, self.best = progress.advance, progress.tokens, progress.best

    def say(self, line: str) -> None:
        self._folder.log(line)
        self._progress.say(line)

    def stage(self, title: str, total: int) -> None:
        self._folder.log(f"== {title}")
        self._progress.stage(title, total)


def open_model(model: str, options: Options, progress: Progress, *, convert: bool = True) -> Opened:
    """Resolve a model's name aloud and read what its files say, without loading it.

    Args:
        model: see `source.resolve`.
        options: cache and offline are used.
        progress: hears what the name became.
        convert: multiply a GGUF file out to safetensors, which can be measured; else it is read
            as it is.

    Raises:
        UsageError: the name is unknown.
        ModelError: the files are missing, damaged or of an unsupported kind.
    """
    source = resolve(model, cache_dir=options.cache, offline=options.offline, convert=convert)
    progress.say(source.announcement)
    spec = read_any_spec(source.folder, source.name, source.revision)
    return Opened(source, spec, options.cache or default_cache())


def read_any_spec(path: Path, source: str, revision: str | None = None) -> ModelSpec:
    """What the files of a checkpoint say, whichever format they have.

    Raises:
        ModelError: they are missing, damaged or of an unsupported kind.
    """
    if is_gguf(path):
        return read_gguf_spec(path, source=source)
    return read_spec(path, source=source, revision=revision)


def library_of(options: Options, progress: Progress) -> Library:
    """The data sets that capabilities may ask for; where each was found is said aloud."""
    return Library(options.data_dir, options.cache, offline=options.offline, say=progress.say)


def universal_file(opened: Opened, dtype: str, cache: Path | None) -> Path:
    """Where the universal heads of a model are kept once a scan has found them."""
    items = hashlib.sha256("".join(text.digest() for text in scan_texts()).encode()).hexdigest()
    name = f"{opened.identity[:16]}-{items[:8]}-{dtype}-{SCAN_VERSION}.json"
    return (cache or default_cache()) / "universal" / name


def in_chat(
    what: Scope, opened: Opened, mode: Chat, *, trust_remote_code: bool
) -> tuple[Scope, Spoken]:
    """What is asked, with items that are messages in the form in which the model is asked.

    Raises:
        UsageError: the model has no chat template, or is not to use it, and a capability needs it.
        ModelError: the template cannot be used.
    """
    render = Talks(opened.source.folder, opened.source.name, trust_remote_code)
    spoken = speak((*what.targets, *what.controls), mode, render, opened.source.name)
    target, *others = spoken.capabilities
    also, controls = others[: len(what.also)], others[len(what.also) :]
    return replace(what, target=target, also=tuple(also), controls=tuple(controls)), spoken


def chat_use(run: Run) -> ChatUse:
    """How prompts were put to the model, for its edit's record."""
    tokenizer = load_tokenizer(
        run.opened.source.folder, trust_remote_code=run.options.trust_remote_code
    )
    why, template = run.spoken.sentence, None
    try:
        template = own_template(tokenizer)
    except ModelError as error:  # it was not asked for
        why = f"{why}; {error.message}"
    task = Task(run.what.target, run.what.target.items("search")[:1])
    first = next((asked[0] for asked in task.requests() if asked), None)
    return ChatUse(
        template=None if template is None else template_digest(template),
        used=run.spoken.used,
        why=why if template or NO_TEMPLATE in why else f"{why}; the model {NO_TEMPLATE}",
        thinking=run.spoken.thinking,
        first_prompt=tuple(prompt_ids(tokenizer, first.prompt, templated=first.templated))
        if first
        else (),
    )


def settle(recipe: Recipe, what: Scope, spec: ModelSpec, chat_template: str = "") -> Settings:
    """The recipe with every default filled in.

    Args:
        chat_template: sha256 of the one that wrote prompts.
    """
    asked = (*what.targets, *what.controls)
    return Settings(
        definitions={one.name: one.definition for one in asked if one.definition},
        capability=what.target.name,
        also=tuple(one.name for one in what.also),
        controls=tuple(control.name for control in what.controls),
        max_heads=recipe.max_heads,
        max_control_drop=what.limits,
        min_target_drop=recipe.min_target_drop,
        method=recipe.method,
        budget=budget_of(recipe, len(spec.heads())),
        confidence=recipe.confidence,
        score=recipe.score,
        prior=recipe.prior,
        universal=recipe.universal,
        improve=recipe.improve,
        seed=recipe.seed,
        search_items=recipe.search_items,
        choose_items=recipe.choose_items,
        test_items=recipe.test_items,
        dtype=_DTYPES.get(spec.dtype, _PACKED_DTYPE) if recipe.dtype == "auto" else recipe.dtype,
        data=data_of(what),
        chat=recipe.chat,
        chat_template=chat_template,
    )


@contextmanager
def started(
    recipe: Recipe,
    options: Options,
    progress: Progress,
    check: Callable[[Opened, Settings], None] = lambda opened, settings: None,
) -> Generator[Run]:
    """Find and load the recipe's model and open the folder of its run.

    Args:
        check: what must hold of the model's files and the settings before anything is loaded or
            written.

    Raises:
        UsageError: the recipe, the model's name or the run folder is wrong.
        ModelError: the model cannot be used.
    """
    began = time.monotonic()
    require_ray(options.ray)
    what = scope(recipe, library_of(options, progress), options.outside)
    data_of(what)  # a data set that is missing is missed before the model is loaded
    opened = open_model(recipe.model, options, progress)
    require_coverage(opened.spec, allow_partial=options.allow_partial)
    asked, spoken = in_chat(what, opened, recipe.chat, trust_remote_code=options.trust_remote_code)
    settings = settle(recipe, what, opened.spec, spoken.template)
    check(opened, settings)
    fingerprint = Fingerprint(
        version=code_version(),
        model=opened.source.name,
        checkpoint=opened.identity,
        settings=settings,
    )
    if not options.new_run:
        refuse_other_settings(options.runs, fingerprint)
    with RunDir.open(
        options.runs,
        model=opened.source.name,
        capability="+".join(settings.targets),
        fingerprint=fingerprint.digest(),
        new_run=options.new_run,
    ) as folder:
        folder.write_config(fingerprint.model_dump(mode="json"))
        if options.command:
            folder.write_command(options.command)
        progress = Logged(progress, folder)
        again = " (going on with it)" if folder.resumed else ""
        progress.say(f"run folder {folder.path}{again}")
        if spoken.why != NO_MESSAGES:
            progress.say(f"messages: {spoken.sentence}")
        try:
            with closing(
                loaded_bench(opened, settings.dtype, folder.journal, options, progress)
            ) as bench:
                yield Run(opened, asked, settings, folder, bench, options, progress, began, spoken)
        except BaseException as error:
            folder.log(traceback.format_exc())
            if isinstance(error, CapabilityAbsent | CheckFailed):
                folder.write_end(error.message)
            raise


def loaded_bench(
    opened: Opened,
    dtype: str,
    journal: Memory,
    options: Options,
    progress: Progress,
    *,
    beside: Bench | None = None,
) -> Bench:
    """Load the model and put it on a bench, which is to be closed.

    Args:
        beside: a bench of another model, whose workers this one shares.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    making = Loading(
        name=opened.source.name,
        folder=opened.source.folder,
        spec=opened.spec,
        dtype=dtype,
        device=options.device,
        trust_remote_code=options.trust_remote_code,
    )
    engine = None if beside is None else beside.model
    if isinstance(engine, FanOut):
        fan_out = engine.beside(dispatched(making, opened, options))
    elif wants_workers(options.workers, options.ray):
        crew = open_crew(options.workers, options.ray, options.device, progress)
        fan_out = FanOut(crew, dispatched(making, opened, options))
    else:
        model = making(0)
        count = model.n_tokens
        return Bench(model, journal, progress.advance, progress.tokens, progress.say, count)
    # The tokenizer is where the model is.
    count = by_characters
    return Bench(fan_out, journal, progress.advance, progress.tokens, progress.say, count)


def dispatched(making: Loading, opened: Opened, options: Options) -> Loading:
    """How a worker loads the model: with its share of the cores, or on a machine of its own."""
    if options.ray:
        return replace(making, identity=opened.identity, cache=options.cache)
    return replace(making, threads=threads_of(options.workers or 1), spread=True)
