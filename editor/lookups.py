"""The verbs that need no model: capabilities, recipes, and finished runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import click

from editor import flags
from editor.console import DONE, Console
from editor.errors import EditorError, UsageError

SCORERS = ("logprob", "choice", "exact", "contains", "number", "regex", "words")
"""Of capability files, as `definition.ScorerName` has them: that module takes a while to load."""
_FILES = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)


@click.group(
    cls=flags.Verbs,
    invoke_without_command=True,
    examples=(
        "editor capabilities",
        "editor capabilities --json",
        "editor capabilities show recall",
    ),
)
@flags.SAYING
@click.pass_context
def capabilities(context: click.Context) -> int:
    """List what can be removed or kept."""
    if context.invoked_subcommand is not None:
        return DONE
    from editor import capabilities as known
    from editor import capability_text

    rows = [capability_text.capability_fields(known.get(name)) for name in known.names()]
    shown = [{key: value for key, value in row.items() if key != "examples"} for row in rows]
    context.ensure_object(Console).result(
        {"capabilities": shown}, capability_text.capabilities_text(rows)
    )
    return DONE


@capabilities.command(
    "show",
    examples=(
        "editor capabilities show recall",
        "editor capabilities show english",
        "editor capabilities show lm-eval:arc_easy --json",
    ),
)
@click.argument("name")
@flags.DOMAIN
@flags.DATA_DIR
@flags.INCLUDE_PATH
@flags.FINDING
@flags.SAYING
@flags.TRUST
@click.pass_obj
def capabilities_show(console: Console, name: str, **given: Any) -> int:
    """Show one capability: questions, metric, floor, data, licence."""
    from editor import capabilities as known
    from editor import capability_text
    from editor.library import Library

    library = Library(given["data_dir"], given["cache"], offline=given["offline"], say=console.note)
    (named,) = known.in_domain([name], given["domain"])
    found = known.get(named, library, flags.options(given).outside)
    row = capability_text.capability_fields(found)
    console.result(row, capability_text.capability_text(row))
    return DONE


@capabilities.command(
    "check",
    examples=(
        "editor capabilities check my.yaml",
        "editor capabilities check capabilities/*.yaml --json",
        "editor capabilities check my.yaml && editor remove -c my.yaml -m gpt2 -o edited",
    ),
)
@_FILES
@flags.SAYING
@click.pass_obj
def capabilities_check(console: Console, files: tuple[Path, ...]) -> int:
    """Check files that define capabilities, and their items.

    Exit code 2, with file and line of every fault, when something is wrong.
    """
    from editor import capabilities as known
    from editor import capability_text
    from editor.capabilities import custom

    def check(file: Path) -> str:
        found = custom.load(file, taken=known.names())
        return capability_text.counts_text(capability_text.capability_fields(found))

    return _checked(console, files, check)


@capabilities.command(
    "new",
    examples=(
        "editor capabilities new opposites",
        "editor capabilities new my-capability --scorer choice",
        "editor capabilities new my-capability -o folder/my.yaml --json",
    ),
)
@click.argument("name")
@flags.flag(
    "--scorer",
    group="Job",
    type=click.Choice(SCORERS),
    metavar="KIND",
    help=f"How answers are found right: {', '.join(SCORERS)}.",
    says="logprob",
)
@flags.flag(
    *("-o", "--output"),
    group="Output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to write.  [default: NAME.yaml]",
)
@flags.SAYING
@click.pass_obj
def capabilities_new(console: Console, name: str, scorer: str | None, output: Path | None) -> int:
    """Write a capability file with comments, which works as it is.

    Its items are an example: opposites of words, and what fits the scorer.
    """
    from editor.capabilities import example
    from editor.capabilities.definition import ScorerName

    file = output or Path(f"{name}.yaml")
    example.write(file, name, cast("ScorerName", scorer or SCORERS[0]))
    console.result(
        {"file": str(file)},
        f"{file}: put your items in the place of these, then `editor capabilities check {file}`",
    )
    return DONE


@capabilities.command(
    "fetch",
    examples=(
        "editor capabilities fetch gsm8k",
        "editor capabilities fetch gsm8k mbpp --data-dir packages --json",
        "editor capabilities fetch hellaswag && editor capabilities show hellaswag --offline",
    ),
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@flags.DATA_DIR
@flags.FINDING
@flags.SAYING
@click.pass_obj
def capabilities_fetch(console: Console, names: tuple[str, ...], **given: Any) -> int:
    """Get data sets to have them later, also without a network.

    NAME is a data set, or a capability, for all that its items come from.  Rows come from the
    folder of --data-dir where it has them, else from the Hub; licences are those of the sets.
    """
    from editor import fetching
    from editor.library import Library

    library = Library(given["data_dir"], given["cache"], offline=given["offline"], say=console.note)
    found = [fetching.fetched(library, name) for name in fetching.wanted(names)]
    console.result({"data_sets": found}, fetching.fetched_text(found))
    return DONE


@click.group(
    cls=flags.Verbs,
    examples=(
        "editor recipe check recipes/*.yaml",
        "editor recipe show recipe.yaml",
        "editor recipe schema > recipe.schema.json",
    ),
)
def recipe() -> None:
    """Check and show recipes, without a model."""


@recipe.command(
    "check",
    examples=(
        "editor recipe check recipe.yaml",
        "editor recipe check recipes/*.yaml",
        "editor recipe check recipe.yaml --json",
    ),
)
@_FILES
@flags.SAYING
@click.pass_obj
def recipe_check(console: Console, files: tuple[Path, ...]) -> int:
    """Check fields, values and names.

    Exit code 2, with file and line, when something is wrong.
    """
    from editor.recipe_check import check

    def said(file: Path) -> str:
        check(file)
        return "ok"

    return _checked(console, files, said)


def _checked(console: Console, files: Sequence[Path], check: Callable[[Path], str]) -> int:
    """Check each file; what is said of a good one goes to the result."""
    shown: list[dict[str, Any]] = []
    for file in files:
        fault, said = None, ""
        try:
            said = check(file)
        except EditorError as error:
            fault = error
            console.warn(f"error: {error.message}\nhint: {error.hint}")
        shown.append(
            {
                "file": str(file),
                "ok": fault is None,
                "message": fault.message if fault else said,
                "hint": fault.hint if fault else "",
            }
        )
    good = [f"{one['file']}: {one['message']}" for one in shown if one["ok"]]
    if good or console.as_json:
        console.result({"files": shown}, "\n".join(good))
    return DONE if len(good) == len(shown) else UsageError.exit_code


@recipe.command(
    "schema",
    examples=(
        "editor recipe schema",
        "editor recipe schema > recipe.schema.json",
        "editor recipe schema | python -m json.tool",
    ),
)
@flags.SAYING
@click.pass_obj
def recipe_schema(console: Console) -> int:
    """Print the JSON schema of a recipe."""
    import json

    from editor.recipe import json_schema

    schema = json_schema()
    console.result(schema, json.dumps(schema, indent=1))
    return DONE


@recipe.command(
    "show",
    examples=(
        "editor recipe show recipe.yaml",
        "editor recipe show recipe.yaml --json",
        "editor recipe show recipes/recall-smollm2-135m.yaml > full.yaml",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@flags.SAYING
@click.pass_obj
def recipe_show(console: Console, file: Path) -> int:
    """Print a recipe with every default filled in."""
    from editor.recipe_check import as_yaml, check

    full = check(file)
    console.result(full.model_dump(mode="json", exclude_none=True), as_yaml(full))
    return DONE


@click.command(
    cls=flags.Verb,
    examples=(
        "editor compare",
        "editor compare runs/RUN-1 runs/RUN-2 --output compared.html",
        "editor compare 1B-Instruct-recall 3B-Instruct-recall --runs all-runs --json",
    ),
)
@click.argument("names", metavar="[RUN]...", nargs=-1)
@flags.RUNS
@flags.flag(
    *("-o", "--output"),
    group="Output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write an HTML page with the tables and a figure.",
)
@flags.SAYING
@flags.flag(
    "--force",
    group="Dangerous",
    is_flag=True,
    help="Replace FILE even if it is no page of `editor compare`.",
)
@click.pass_obj
def compare(
    console: Console, names: tuple[str, ...], runs: Path | None, output: Path | None, force: bool
) -> int:
    """Compare where runs found their capabilities.

    How few heads hold each capability, and which heads two capabilities of one model share.  RUN is
    the folder of a run, or a part of its name below --runs; without any, all finished runs there.
    """
    from editor.compare_page import render_comparison, write_page
    from editor.compare_text import comparison_text
    from editor.finished import compare_runs

    found = compare_runs(names, flags.options({"runs": runs}).runs)
    text = comparison_text(found)
    if output is not None:
        write_page(output, render_comparison(found), force=force)
        text += f"\npage  {output}"
    console.result(found.model_dump(mode="json"), text)
    return DONE
