"""The command `editor`: parse, call, print.  Nothing is decided here.

Every verb takes the console first and returns its exit code; errors are told in `console.Program`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from editor import __version__, flags, lookups, proof, run_verbs
from editor.console import DONE, NOT_ACCEPTED, Console, Program, quiet_libraries
from editor.errors import UsageError

if TYPE_CHECKING:
    from editor.recipe import Recipe
    from editor.session import Options

EPILOG = """\b
Start with:
  editor capabilities
  editor remove -c recall -m smollm2-135m -o edited --dry-run
  editor remove -c recall -m smollm2-135m -o edited

\b
Exit codes: 0 done and accepted, 1 a fault, 2 wrong usage or recipe, 3 the model
or a disk cannot be used, 4 a check failed (the output is kept, marked NOT VALIDATED),
5 the capability is not there, 6 the time of --max-hours was up, 130 interrupted.

\b
Completion for bash: eval "$(_EDITOR_COMPLETE=bash_source editor)"
"""


@click.group(
    cls=Program,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="editor", message="%(prog)s %(version)s")
def main() -> None:
    """Remove a capability from an open-weight language model, and prove it.

    Attention heads that the capability needs are found by measuring, zeroed in new safetensors
    files, and the new files compared with the old ones.
    """


@main.command(
    cls=flags.Verb,
    examples=(
        "editor remove -c recall -m smollm2-135m -o edited",
        "editor remove -c recall -c copying -m smollm2-135m -o edited",
        "editor remove -c copying -m ./model -o out --max-control-drop english=0.05 --dry-run",
        "editor remove -c recall -m org/name@main -o out --device cuda --json > result.json",
    ),
)
@flags.capability(required=True)
@flags.model(required=True)
@flags.output(required=True)
@flags.DRY_RUN
@flags.LIMITS
@flags.SEARCHING
@flags.test_items()
@flags.PLACES
@flags.SAYING
@flags.FORCE
@flags.ALLOW_PARTIAL
@flags.TRUST
@click.pass_obj
def remove(console: Console, output: Path, dry_run: bool, **given: Any) -> int:
    """Remove a capability and compare the new files with the old.

    Its heads are found by measuring, zeroed in new files, and the result is reported.  Run the
    same command again to go on with an interrupted run.
    """
    from editor.recipe import make_recipe

    return _remove(console, make_recipe(**_recipe_fields(given)), output, dry_run, given)


@main.command(
    cls=flags.Verb,
    examples=(
        "editor localize -c recall -m smollm2-135m",
        "editor localize -c arithmetic -m ./model --max-heads 3",
        "editor localize -c recall -m gpt2 --method published --json",
    ),
)
@flags.capability(required=True)
@flags.model(required=True)
@flags.DRY_RUN
@flags.controls()
@flags.max_control_drop()
@flags.SEARCHING
@flags.PLACES
@flags.SAYING
@flags.ALLOW_PARTIAL
@flags.TRUST
@click.pass_obj
def localize(console: Console, dry_run: bool, **given: Any) -> int:
    """Find the heads that a capability needs.

    Writes no checkpoint; `editor bake` zeroes the heads that are found.
    """
    from editor import display, pipeline
    from editor.recipe import make_recipe

    recipe, options = make_recipe(**_recipe_fields(given)), flags.options(given)
    _quiet(console, recipe.model)
    if dry_run:
        return _dry_run(console, recipe, None, options)
    with console.progress() as progress:
        found = pipeline.localize(recipe, options, progress)
    console.result(found.model_dump(mode="json"), display.localization_text(found))
    return DONE


@main.command(
    cls=flags.Verb,
    examples=(
        "editor bake -m smollm2-135m --heads L23H4,L21H7 -o edited",
        "editor bake -m model.Q4_K_M.gguf --heads L16H21 -o out --json",
        "editor bake -m ./model --plan runs/RUN/estimate.json -o out --link",
    ),
)
@flags.model(required=True)
@flags.heads(required=False)
@flags.flag(
    "--plan",
    group="Job",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="JSON file that names the heads: a run's estimate.json, an editor.json, or your own.",
)
@flags.output(required=True)
@flags.FINDING
@flags.FORMAT
@flags.LINK
@flags.SAYING
@flags.FORCE
@flags.ALLOW_PARTIAL
@click.pass_obj
def bake(
    console: Console,
    heads: tuple[str, ...],
    plan: Path | None,
    output: Path,
    form: Any,
    **given: Any,
) -> int:
    """Zero given heads in new files.

    They are written by byte range: the model is not loaded, and nothing is measured.  The removed
    bytes are kept in OUT.restore.zip, beside the folder, for `editor undo`.
    """
    from editor import baking, display
    from editor.api import read_heads
    from editor.staging import beside

    _quiet(console, given["model"])
    chosen = read_heads(",".join(heads)) + (baking.read_plan(plan) if plan else ())
    if not chosen:
        raise UsageError("no heads to zero", "name some with --heads L16H21,L15H13 or --plan FILE")
    options = flags.options(given)
    with console.progress() as progress:
        baked = baking.bake(
            given["model"], chosen, output, options, progress, form=form or baking.FORMATS[0]
        )
    shown: dict[str, Any] = {
        "output": str(output),
        "restore_patch": str(beside(output)),
        "linked": list(baked.checkpoint.linked),
        **baked.manifest.model_dump(mode="json"),
    }
    console.result(shown, display.bake_text(baked.manifest, str(output), shown["restore_patch"]))
    return DONE


@main.command(
    cls=flags.Verb,
    examples=(
        "editor validate edited",
        "editor validate edited --base ./model --test-items 400",
        "editor validate baked -c recall --max-control-drop english=0.05 --json",
    ),
)
@click.argument("edited", metavar="OUT", type=click.Path(path_type=Path))
@flags.flag(
    "--base",
    group="Job",
    metavar="MODEL",
    help="The model it was made from.  [default: what OUT/editor.json says]",
)
@flags.RECORDED
@flags.PLACES
@flags.SAYING
@flags.ALLOW_PARTIAL
@flags.TRUST
@click.pass_obj
def validate(console: Console, edited: Path, base: str | None, **given: Any) -> int:
    """Compare an edited checkpoint with its base once more.

    What is not given is taken from OUT/editor.json.  Exit code 4 when a limit is broken.
    """
    from editor import display, pipeline

    _quiet(console, base)
    options, changes = flags.options(given), _recipe_fields(given)
    with console.progress() as progress:
        found = pipeline.validate(edited, base, options, progress, **changes)
    shown = {"output": str(edited), **found.model_dump(mode="json")}
    console.result(shown, display.validation_text(found, str(edited)))
    return DONE if found.accepted else NOT_ACCEPTED


@main.command(
    cls=flags.Verb,
    examples=(
        "editor inspect smollm2-135m",
        "editor inspect ./model",
        "editor inspect org/name@main --json",
    ),
)
@click.argument("model")
@flags.FINDING
@flags.FORMAT
@flags.SAYING
@click.pass_obj
def inspect(console: Console, model: str, form: Any, **given: Any) -> int:
    """Show which heads of a model can be zeroed.

    Reads config.json and the headers of the weight files, tells where each head lies, and what is
    not covered, as `editor bake` would read it.
    """
    from editor import ahead_text, baking
    from editor.checkpoint import other_weights
    from editor.session import open_model

    _quiet(console, model)
    with console.progress() as progress:
        convert = not baking.as_gguf(model, form or baking.FORMATS[0])
        opened = open_model(model, flags.options(given), progress, convert=convert)
        folder = opened.source.folder
        unedited = other_weights(folder) if folder.is_dir() else ()
    spec = opened.spec
    console.result(spec.model_dump(mode="json"), ahead_text.spec_text(spec, unedited))
    return DONE


@main.command(
    cls=flags.Verb,
    examples=(
        "editor run recipes/recall-smollm2-135m.yaml -o edited",
        "editor run recipe.yaml -o edited --dry-run",
        "editor run recipe.yaml --model ./model --max-heads 3 -o out",
    ),
)
@click.argument("recipe_file", metavar="RECIPE", type=click.Path(path_type=Path))
@flags.output(required=False)
@flags.capability(required=False)
@flags.model(required=False)
@flags.DRY_RUN
@flags.LIMITS
@flags.SEARCHING
@flags.test_items()
@flags.PLACES
@flags.SAYING
@flags.FORCE
@flags.ALLOW_PARTIAL
@flags.TRUST
@click.pass_obj
def run(
    console: Console, recipe_file: Path, output: Path | None, dry_run: bool, **given: Any
) -> int:
    """Remove what a recipe file says.

    As `editor remove`; flags replace the fields of the recipe.
    """
    from editor.recipe import load, override

    recipe = load(recipe_file)
    recipe = override(recipe, **_recipe_fields(given))
    if output is None and recipe.output is None:
        raise UsageError(f"{recipe_file} names no output", "name the folder with --output")
    return _remove(console, recipe, output or Path(recipe.output or ""), dry_run, given)


@main.command(
    cls=flags.Verb,
    examples=(
        "editor plan -c recall -m smollm2-135m",
        "editor plan recipes/recall-smollm2-135m.yaml --no-timing",
        "editor plan -c recall -m ./model -o out --device cuda --json",
    ),
)
@click.argument("recipe_file", metavar="[RECIPE]", required=False, type=click.Path(path_type=Path))
@flags.capability(required=False)
@flags.model(required=False)
@flags.output(required=False)
@flags.NO_TIMING
@flags.LIMITS
@flags.SEARCHING
@flags.test_items()
@flags.PLACES
@flags.SAYING
@flags.FORCE
@flags.ALLOW_PARTIAL
@flags.TRUST
@click.pass_obj
def plan(
    console: Console,
    recipe_file: Path | None,
    output: Path | None,
    no_timing: bool,
    **given: Any,
) -> int:
    """Say what `editor remove` would cost: masks, tokens, time, memory, disk, network.

    Loads the model and times one batch of it, if it is here; writes and downloads nothing.
    """
    from editor.recipe import load, make_recipe, override

    changes = _recipe_fields(given)
    recipe = override(load(recipe_file), **changes) if recipe_file else make_recipe(**changes)
    if output is None and recipe.output is not None:
        output = Path(recipe.output)
    _quiet(console, recipe.model)
    options = flags.options(given)
    return _dry_run(console, recipe, output, options, edits=True, time_it=not no_timing)


main.add_command(lookups.capabilities)
main.add_command(lookups.recipe)
main.add_command(lookups.compare)
main.add_command(run_verbs.runs)
main.add_command(proof.verify)
main.add_command(proof.undo)
main.add_command(proof.diff)
main.add_command(proof.sign)


def _remove(
    console: Console, recipe: Recipe, output: Path, dry_run: bool, given: Mapping[str, Any]
) -> int:
    """What `remove` and `run` share."""
    from editor import display, pipeline
    from editor.baking import read_manifest

    options = flags.options(given)
    _quiet(console, recipe.model)
    if dry_run:
        return _dry_run(console, recipe, output, options)
    with console.progress() as progress:
        removal = pipeline.remove(recipe, output, options, progress)
    manifest = read_manifest(output)
    changed = [file.model_dump(mode="json") for file in display.changed_files(manifest)]
    console.result(
        {**removal.model_dump(mode="json"), "changed": changed},
        display.removal_text(removal, manifest),
    )
    if removal.accepted:
        return DONE
    console.warn(f"not accepted: {output} is kept and marked NOT VALIDATED")
    return NOT_ACCEPTED


def _dry_run(
    console: Console, recipe: Recipe, output: Path | None, options: Options, **how: bool
) -> int:
    from editor import ahead_text
    from editor.preview import preview

    with console.progress() as progress:
        plan = preview(recipe, output, options, progress, **how)
    console.result(plan.model_dump(mode="json"), ahead_text.preview_text(plan))
    return DONE


def _recipe_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe among the flags, those left out left out."""
    from editor.recipe import Recipe

    wanted = {key: given.get(key) for key in Recipe.model_fields}
    found = {key: value for key, value in wanted.items() if value not in (None, ())}
    names: tuple[str, ...] = found.get("capability", ())
    if names or given.get("domain"):
        from editor.capabilities import in_domain

        first, *more = in_domain(names, given.get("domain"))
        found["capability"] = (first, *more) if more else first
    if "max_control_drop" in found:
        limits: tuple[tuple[str, float], ...] = found["max_control_drop"]
        found["max_control_drop"] = dict(limits)
    return found


def _quiet(console: Console, model: str | None) -> None:
    """Keep libraries quiet, but for the bars of what may be a long download."""
    from editor.source import PACKAGED

    here = model is None or model.lower() in PACKAGED or os.path.exists(os.path.expanduser(model))
    quiet_libraries(bars=console.live and not here)
