"""The flags of the command line: one definition each, shown in groups, with examples.

No flag has a default of its own.  What is not given is left out, and the recipe or the options fill
it in; the numbers in the help are checked against them by a test.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from editor.console import Console, be_verbose

if TYPE_CHECKING:
    from editor.session import Options

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

GROUPS = ("Job", "Limits", "Search", "Where and how fast", "Output", "Other", "Dangerous")


class Flag(click.Option):
    """An option that stands under a heading of the help, which states a default it does not set."""

    def __init__(self, *args: Any, group: str = "Other", says: str = "", **fields: Any) -> None:
        if says:
            fields["help"] += f"  [default: {says}]"
        super().__init__(*args, **fields)
        self.group = group
        self.says = says


class Verb(click.Command):
    """A command whose help has headings and examples."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        rows: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                rows[getattr(param, "group", "Other")].append(record)
        for group, records in rows.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, one a line, as they are to be typed."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Verbs(Verb, click.Group):
    """A command with commands below it."""

    command_class = Verb

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class Limit(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]  new in click 8.4
    """`0.05`, for every control, or `english=0.05`."""

    name = "[CONTROL=]X"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Read name and number."""
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        name, equals, number = str(value).rpartition("=")
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit) or (equals and not name.strip()):
            self.fail(f"{value!r} is neither X nor CONTROL=X, as english=0.05", param, ctx)
        return name.strip() or "default", limit


class Hours(click.ParamType):  # pyright: ignore[reportMissingTypeArgument]  new in click 8.4
    """A finite number above 0; click's own range takes `nan` and `inf`."""

    name = "hours"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read the number."""
        try:
            hours = float(value)
        except ValueError:
            hours = math.nan
        if not 0 < hours < math.inf:
            self.fail(f"{value!r} is no number above 0; leave it out for no limit", param, ctx)
        return hours


def flag(*names: str, group: str, **fields: Any) -> Decorator[Any]:
    """One option under a heading."""
    return click.option(*names, cls=Flag, group=group, **fields)


def options(given: Mapping[str, Any]) -> Options:
    """Where and how fast, from the flags; those left out keep their defaults."""
    from editor.session import Options

    wanted = {field.name: given.get(field.name) for field in fields(Options)}
    context = click.get_current_context(silent=True)
    console = context.find_object(Console) if context else None
    wanted["command"] = console.arguments if console else ()
    return Options(**{key: value for key, value in wanted.items() if value is not None})


def stack(*decorators: Decorator[Any]) -> Decorator[Any]:
    """Several options as one decorator, shown in this order."""

    def apply(function: F) -> F:
        for decorate in reversed(decorators):
            function = decorate(function)
        return function

    return apply


def _folder(*names: str, group: str, **fields: Any) -> Decorator[Any]:
    return flag(*names, group=group, type=click.Path(path_type=Path), metavar="DIR", **fields)


def _offline(_ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    if value:
        # Libraries of the Hub read it when they are loaded, which is later.
        os.environ["HF_HUB_OFFLINE"] = "1"
    return value


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """A callback that stores the value in the console."""

    def store(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        console = ctx.find_object(Console)
        # A group and its command have the flag both: either may set it.
        if console is not None and value:
            setattr(console, name, value)
            if name == "verbosity":
                be_verbose(console, value)

    return store


def _log_file(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    console = ctx.find_object(Console)
    if console is not None and value is not None:
        try:
            console.open_log(value)
        except OSError as error:
            raise click.BadParameter(f"{value}: {error.strerror}", ctx, param) from error


def model(*, required: bool) -> Decorator[Any]:
    """Which model."""
    return flag(
        *("-m", "--model"),
        group="Job",
        required=required,
        metavar="MODEL",
        help="Alias, Hub id with an optional @revision, folder, or .gguf file.",
    )


DOMAIN = flag(
    "--domain",
    group="Job",
    type=click.Choice(("bio", "chem", "cyber")),
    help="Of the capability hazardous-knowledge: which.",
)


def capability(*, required: bool) -> Decorator[Any]:
    """Which capability."""
    named = flag(
        *("-c", "--capability"),
        group="Job",
        required=required,
        multiple=True,
        metavar="NAME",
        help="What to remove; `editor capabilities` lists the names.  Several are removed by one "
        "edit: give it once for each.",
    )
    return stack(named, DOMAIN)


def output(*, required: bool) -> Decorator[Any]:
    """Where the checkpoint goes."""
    return _folder(
        *("-o", "--output"), group="Job", required=required, help="Folder for the new checkpoint."
    )


def controls(says: str = "recall, arithmetic, copying, english, python") -> Decorator[Any]:
    """What to keep."""
    return flag(
        "--control",
        "controls",
        group="Limits",
        multiple=True,
        metavar="NAME",
        says=says,
        help="A capability to keep; may be repeated.  By default, never the one to remove.",
    )


def max_control_drop(says: str = "each control's own limit") -> Decorator[Any]:
    """How much a control may lose."""
    return flag(
        "--max-control-drop",
        group="Limits",
        multiple=True,
        type=Limit(),
        metavar="[CONTROL=]X",
        says=says,
        help="The most a control may lose: share of right answers, or nats a token for texts; "
        "may be repeated.",
    )


def min_target_drop(says: str = "0.5") -> Decorator[Any]:
    """How much the target must lose."""
    return flag(
        "--min-target-drop",
        group="Limits",
        type=float,
        says=says,
        help="Share of the base score above the floor that must be gone.",
    )


def seed(says: str = "0") -> Decorator[Any]:
    """Seed."""
    return flag("--seed", group="Search", type=int, says=says, help="Seed of every random choice.")


def test_items(says: str = "160") -> Decorator[Any]:
    """How many questions the comparison asks."""
    return flag(
        "--test-items",
        group="Search",
        type=int,
        says=says,
        help="Questions a capability for the final comparison.",
    )


def dtype(says: str = "auto") -> Decorator[Any]:
    """Number type."""
    return flag(
        "--dtype",
        group="Search",
        type=click.Choice(["auto", "bfloat16", "float32", "float16"]),
        metavar="TYPE",
        says=says,
        help="Number type of the computation: bfloat16, float32, float16, or auto for the "
        "checkpoint's own.",
    )


def chat(says: str = "auto") -> Decorator[Any]:
    """Whether chat templates are used."""
    return flag(
        "--chat",
        group="Search",
        type=click.Choice(["auto", "never", "always"]),
        metavar="WHEN",
        says=says,
        help="Whether items that are messages are written by the model's chat template: auto where "
        "it has one, never for plain prompts, always to refuse a model without.",
    )


MAX_HEADS = flag("--max-heads", group="Limits", type=int, says="5", help="The most heads to zero.")
METHOD = flag(
    "--method",
    group="Search",
    type=click.Choice(["adaptive", "published", "scan", "greedy", "gradient"]),
    metavar="NAME",
    says="adaptive",
    help="adaptive: pools that follow what earlier pools said; published: one design, one Lasso; "
    "scan: every head alone; greedy: every head at every step; gradient: no pools.",
)
BUDGET = flag(
    "--budget",
    group="Search",
    type=int,
    says="what the method needs",
    help="Evaluations of the capability, search and choice together.",
)
CONFIDENCE = flag(
    "--confidence",
    group="Search",
    type=float,
    says="0.95",
    help="Probability from which a head counts as decided.",
)
SCORE = flag(
    "--score",
    group="Search",
    type=click.Choice(["logprob", "exact"]),
    metavar="NAME",
    says="logprob",
    help="What the search looks at: the answers' log-probability, or how many are right (exact).",
)
PRIOR = flag(
    "--prior",
    group="Search",
    type=click.Choice(["gradient", "none"]),
    metavar="NAME",
    says="gradient",
    help="Whether the adaptive search looks at gradients too: gradient or none.",
)
UNIVERSAL = flag(
    "--universal",
    group="Search",
    type=click.Choice(["scan", "suspects"]),
    metavar="NAME",
    says="scan",
    help="Heads that all text needs: scan tries every head once a model, suspects only those that "
    "the search comes upon.",
)
IMPROVE = flag(
    "--improve",
    group="Job",
    is_flag=True,
    default=None,
    help="Remove heads without which the model does better at the capability.",
)
MAX_HOURS = flag(
    "--max-hours",
    group="Where and how fast",
    type=Hours(),
    metavar="X",
    says="no limit",
    help="Measure no more candidates once the run took so long; the search gets half of it.",
)
SEARCH_ITEMS = flag(
    "--search-items", group="Search", type=int, says="24", help="Questions for the search."
)
CHOOSE_ITEMS = flag(
    "--choose-items",
    group="Search",
    type=int,
    says="40",
    help="Questions for the choice among candidates.",
)
DEVICE = flag(
    "--device",
    group="Where and how fast",
    metavar="NAME",
    says="cpu",
    help="Where to compute, as torch names it: cpu, cuda, cuda:1, mps; auto spreads a model "
    "that is larger than one GPU (pip install accelerate).",
)
WORKERS = flag(
    "--workers",
    group="Where and how fast",
    type=click.IntRange(min=1),
    metavar="N",
    says="1; with --ray as many as fit",
    help="Processes that measure, each with the model: on GPUs one a GPU, on the CPU each with its "
    "share of the cores.  Numbers may differ from those of one in their last bits.",
)
RAY = flag(
    "--ray",
    group="Where and how fast",
    metavar="ADDRESS",
    help="Measure on a Ray cluster: auto, local, host:6379 or ray://host:10001.  Every machine "
    "reads the model from the same folder or resolves its Hub id.",
)
RUNS = _folder("--runs", group="Where and how fast", says="runs", help="Folder of all runs.")
NEW_RUN = flag(
    "--new-run",
    group="Where and how fast",
    is_flag=True,
    help="Start afresh instead of going on with a run of the same settings.",
)
CACHE = _folder(
    "--cache",
    group="Where and how fast",
    says="$EDITOR_CACHE, else ~/.cache/capability-editor",
    help="Folder for conversions, universal heads and data sets.",
)
DATA_DIR = _folder(
    "--data-dir",
    group="Where and how fast",
    help="Folder with data sets, as NAME.jsonl or as Python packages unpacked there, beside those "
    "that `editor capabilities fetch` got.",
)
OFFLINE = flag(
    "--offline",
    group="Where and how fast",
    is_flag=True,
    is_eager=True,
    callback=_offline,
    help="Open no socket.",
)
INCLUDE_PATH = _folder(
    "--include-path",
    group="Where and how fast",
    help="Folder with tasks of lm-eval's form, for a capability lm-eval:TASK, beside its own.",
)
DRY_RUN = flag(
    "--dry-run",
    group="Job",
    is_flag=True,
    help="Say what would be done, and stop: nothing is loaded or written.",
)
NO_TIMING = flag(
    "--no-timing",
    group="Job",
    is_flag=True,
    help="Do not load the model: no time is told, and tokens are counted by characters.",
)
ALLOW_PARTIAL = flag(
    "--allow-partial",
    group="Dangerous",
    is_flag=True,
    help="Go on with a model of which only some layers have heads that can be zeroed.",
)
FORMAT = flag(
    "--format",
    "form",
    group="Output",
    type=click.Choice(["auto", "safetensors", "gguf"]),
    metavar="NAME",
    says="auto",
    help="gguf edits a GGUF file as it is, safetensors what it is multiplied out to; auto edits a "
    ".gguf file as it is.",
)
LINK = flag(
    "--link",
    group="Output",
    is_flag=True,
    help="Make weight files without edits hard links to the model's: faster, but a later change to "
    "one is a change to both.",
)


def heads(*, required: bool) -> Decorator[Any]:
    """Which heads."""
    return flag(
        "--heads",
        group="Job",
        required=required,
        multiple=True,
        metavar="LIST",
        help="Heads, counted from 0, as L16H21,L15H13; may be repeated.",
    )


FORCE = flag(
    "--force",
    group="Dangerous",
    is_flag=True,
    help="Replace an output folder that the editor wrote.",
)
TRUST = flag(
    "--trust-remote-code",
    group="Dangerous",
    is_flag=True,
    help="Run Python code that comes with the model, or with a task of --include-path.",
)

ALLOW_CODE = flag(
    "--allow-code-execution",
    group="Dangerous",
    is_flag=True,
    help="Run programs that the model writes, without network and within limits, where a "
    "capability is judged by that.",
)

SAYING = stack(
    flag(
        "--json",
        group="Output",
        is_flag=True,
        expose_value=False,
        callback=_set("as_json"),
        help="Print one JSON object to stdout, everything else to stderr.",
    ),
    flag(
        *("-q", "--quiet"),
        group="Output",
        is_flag=True,
        expose_value=False,
        callback=_set("quiet"),
        help="Print only the result and errors.",
    ),
    flag(
        *("-v", "--verbose"),
        group="Output",
        count=True,
        expose_value=False,
        callback=_set("verbosity"),
        help="Say more; -vv adds tracebacks to errors.",
    ),
    flag(
        "--log-file",
        group="Output",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=_log_file,
        help="Append what is said to this file, with the time.",
    ),
    flag(
        "--yes",
        group="Output",
        is_flag=True,
        expose_value=False,
        callback=_set("yes"),
        help="Answer yes to every question; only `editor runs remove` asks one.",
    ),
)
FINDING = stack(CACHE, OFFLINE)
PLACES = stack(DEVICE, WORKERS, RAY, RUNS, NEW_RUN, DATA_DIR, FINDING, INCLUDE_PATH, ALLOW_CODE)
LIMITS = stack(controls(), max_control_drop(), min_target_drop())
SEARCHING = stack(
    *(MAX_HEADS, METHOD, BUDGET, CONFIDENCE, SCORE, PRIOR, UNIVERSAL, IMPROVE),
    *(seed(), SEARCH_ITEMS, CHOOSE_ITEMS, dtype(), chat(), MAX_HOURS),
)
_AS = "as recorded"
RECORDED = stack(
    capability(required=False),
    *(controls(_AS), max_control_drop(_AS), min_target_drop(_AS)),
    *(seed(_AS), test_items(_AS), dtype(_AS), chat(_AS)),
)
