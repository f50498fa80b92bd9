"""From known heads to a new checkpoint with its manifest, card and restore patch.

    heads -> tensor edits -> files -> read back -> editor.json, README.md -> rename

Nothing is loaded and nothing measured here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from pydantic import ValidationError

from editor import __version__
from editor.architecture import check_heads
from editor.card import render_card
from editor.checkpoint import apply_edits, check_written, other_weights, staged
from editor.coverage import require_coverage
from editor.errors import ModelError, UsageError
from editor.layout import read_small, reading
from editor.plan import compile_edits
from editor.progress import Progress
from editor.records import Checkpoint, Earlier, FileDigest, Head, Manifest
from editor.restore import SCHEMA_VERSION as RESTORE_VERSION
from editor.restore import Contents, RestoreWriter, digest_patch, recording
from editor.safetensors_header import parse_json, shown
from editor.session import Opened, Options, open_model, read_any_spec
from editor.source import PACKAGED, is_gguf_name
from editor.staging import (
    CARD,
    MANIFEST,
    OWN_FILES,
    REPORT,
    RESTORE,
    check_output,
    writing,
)
from editor.store import write_atomic
from editor.weights import is_gguf

SCHEMA_VERSION = 2
MAX_CARD_BYTES = 1_000_000
MAX_MANIFEST_BYTES = 64 << 20
TOOL = "capability-editor"


Format = Literal["auto", "safetensors", "gguf"]
FORMATS: tuple[Format, ...] = ("auto", "safetensors", "gguf")


class Baked(NamedTuple):
    """A checkpoint that was written, before it has its name."""

    checkpoint: Checkpoint
    manifest: Manifest


def bake(
    model: str,
    heads: Sequence[Head],
    output: Path,
    options: Options,
    progress: Progress,
    *,
    form: Format = "auto",
) -> Baked:
    """Write a checkpoint with the heads zeroed; nothing is loaded and nothing measured.

    Args:
        model: see `source.resolve`.
        heads: the heads, in any order.
        output: the folder to write.
        options: where and how.
        progress: hears of the stages.
        form: `gguf` edits a GGUF file as it is, `safetensors` what it is multiplied out to; `auto`
            edits a .gguf file as it is.

    Raises:
        UsageError: no heads, a form that the model has not, or an output that may not be written.
        ModelError: the model cannot be used or has no such head.
        CheckFailed: what was written is not what should have been.
    """
    if not heads:
        raise UsageError("no heads to zero", "name some, as in --heads L16H21,L15H13")
    check_output(output, force=options.force)
    began = datetime.now(timezone.utc)
    opened = open_model(model, options, progress, convert=not as_gguf(model, form))
    require_coverage(opened.spec, allow_partial=options.allow_partial)
    # Of a GGUF file only the file itself is read: the output may lie beside it.
    with staged(output, force=options.force, base=opened.source.folder) as folder:
        times = {"started": began.isoformat(timespec="seconds")}
        baked = write_edit(opened, sorted(set(heads)), folder, model, options, progress, times)
        describe(baked.manifest, opened.root, folder, None)
    return baked


def write_edit(
    opened: Opened,
    heads: Sequence[Head],
    folder: Path,
    model: str,
    options: Options,
    progress: Progress,
    times: dict[str, Any],
) -> Baked:
    """Write the edited files and the restore patch into a folder, and read back what was written.

    Raises:
        As `bake`.
    """
    check_heads(opened.spec, heads)
    base = opened.source.folder
    earlier, own_manifest = _earlier(opened)
    progress.stage("writing the checkpoint", 0)
    with recording(folder / RESTORE) as restore:
        edits = compile_edits(opened.spec, heads)
        checkpoint = apply_edits(
            base, folder, edits, link=opened.digest if options.link else None, restore=restore
        )
        _check_unchanged(opened)
        _keep_replaced(restore, base, checkpoint)
    check_written(base, folder, checkpoint)
    if own_manifest is not None:
        _check_true(own_manifest, checkpoint, opened.root)
    if checkpoint.linked:
        progress.say(f"linked, not copied: {', '.join(checkpoint.linked)}")
    for name in () if is_gguf(base) else other_weights(base):
        progress.say(f"copied unedited, it may still hold the capability: {name}")
    local = Path(model).expanduser().exists()
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        tool=f"{TOOL} {__version__}",
        model=Path(model).resolve().name if local else model,
        base=opened.spec.source,
        revision=opened.spec.revision,
        base_files=checkpoint.base_files,
        heads=tuple(heads),
        edits=checkpoint.edits,
        written=checkpoint.written,
        # The base's card was copied, but the edit's own card takes its place.
        files=tuple(file for file in checkpoint.files if file.name != CARD),
        bytes_changed=checkpoint.bytes_changed,
        bytes_total=checkpoint.bytes_total,
        not_covered=opened.spec.not_covered,
        restore=digest_patch(folder / RESTORE),
        earlier=earlier,
        times=times,
    )
    return Baked(checkpoint, manifest)


def describe(manifest: Manifest, base: Path, folder: Path, page: str | None) -> None:
    """Write manifest, card and report beside the weights."""
    old = base / CARD
    text = None
    # What lies beside a GGUF file need not be about it.
    if not is_gguf(folder / manifest.base_files[0].name) and old.is_file():
        with reading(old), old.open("rb") as stream:
            text = stream.read(MAX_CARD_BYTES).decode("utf-8", "replace")
    with writing(folder):
        (folder / CARD).unlink(missing_ok=True)
    write_atomic(folder / CARD, render_card(manifest, text))
    write_atomic(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    if page is not None:
        write_atomic(folder / REPORT, page)


def read_manifest(file: Path) -> Manifest:
    """The editor.json of an edited checkpoint.

    Args:
        file: the file, or the folder that holds it.

    Raises:
        ModelError: there is none, or it is not one of this tool's.
    """
    file = file / MANIFEST if file.is_dir() else file
    text = read_small(file, MAX_MANIFEST_BYTES)
    fields = parse_json(text, file, what=MANIFEST)
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ModelError(
            f"{file}: schema_version should be {SCHEMA_VERSION}, found {shown(version)}",
            "bake the edit again with this version, or use the version that wrote it",
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise ModelError(f"{file}: {where[:200]}: {first['msg']}") from error


def read_plan(file: Path) -> tuple[Head, ...]:
    """The heads that a file names.

    Args:
        file: JSON with a list `heads`: an estimate.json, an editor.json, or one's own.

    Raises:
        UsageError: the file cannot be read or names no heads.
    """
    hint = 'give a JSON file with a list, as {"heads": ["L16H21"]}'
    try:
        fields = parse_json(read_small(file, MAX_MANIFEST_BYTES), file, what="the plan")
    except ModelError as error:
        raise UsageError(error.message, hint) from error
    raw = fields.get("heads")
    heads = cast("list[object]", raw) if isinstance(raw, list) else []
    if not heads:
        found = shown(fields.get("heads"))
        raise UsageError(f"{file}: heads should be a list of heads, found {found}", hint)
    try:
        return tuple(Head.parse(str(one)) for one in heads)
    except ValueError as error:
        raise UsageError(f"{file}: {error}", hint) from error


def as_gguf(model: str, form: Format) -> bool:
    """Whether the model's GGUF file is edited as it is."""
    there = is_gguf_name(model)
    if form == "gguf" and not there:
        raise UsageError(
            f"{shown(model)} is no GGUF file, so it cannot be edited as one",
            "leave out --format, or give a .gguf file",
        )
    # A packaged alias is a GGUF file by accident: what its users want is a model for transformers.
    alias = model.strip().lower() in PACKAGED and not Path(model).exists()
    return form == "gguf" or (form == "auto" and there and not alias)


def _keep_replaced(restore: RestoreWriter, base: Path, checkpoint: Checkpoint) -> None:
    """Keep the base's files that the edit's own take the place of, and say what is restored."""
    root = base.parent if is_gguf(base) else base
    before = {file.name: file for file in (*checkpoint.files, *checkpoint.base_files)}
    own = () if is_gguf(base) else sorted(OWN_FILES)
    for name in own:
        if (root / name).is_file():
            before[name] = restore.replaced(root, name)
    restore.contents(
        Contents(
            schema_version=RESTORE_VERSION,
            base_files=tuple(before[name] for name in sorted(before)),
            edited_files=tuple(file for file in checkpoint.files if file.name not in own),
            written=checkpoint.written,
        )
    )


def _check_unchanged(opened: Opened) -> None:
    """Require that the base still says what the edits were made for."""
    source = opened.source
    if read_any_spec(source.folder, source.name, source.revision) != opened.spec:
        raise ModelError(
            f"{source.folder}: changed while it was read",
            "make sure that nothing writes to the model's folder, and try again",
        )


def _earlier(opened: Opened) -> tuple[tuple[Earlier, ...], Manifest | None]:
    """The edits that the base has already, and the manifest of the last of them."""
    file = opened.root / MANIFEST
    if not file.is_file():
        return (), None
    try:
        fields = parse_json(read_small(file, MAX_MANIFEST_BYTES), file, what=MANIFEST)
        ours = str(fields.get("tool", "")).startswith(TOOL)
    except ModelError:
        ours = False
    if not ours:  # another program's file of the same name
        return (), None
    manifest = read_manifest(file)
    names = {at.name for at in manifest.base_files}
    if names != {at.name for at in opened.spec.files}:  # of another GGUF file of the folder
        return (), None
    last = Earlier(
        tool=manifest.tool,
        base=manifest.base,
        revision=manifest.revision,
        base_files=manifest.base_files,
        heads=manifest.heads,
        edits=manifest.edits,
        manifest=hashlib.sha256(file.read_bytes()).hexdigest(),
    )
    return (*manifest.earlier, last), manifest


def _check_true(manifest: Manifest, checkpoint: Checkpoint, root: Path) -> None:
    """Require that the base is still what its own manifest says."""
    recorded: dict[str, FileDigest] = {file.name: file for file in manifest.files}
    for file in checkpoint.base_files:
        if recorded.get(file.name) != file:
            raise ModelError(
                f"{root / file.name}: is not the file that the base's {MANIFEST} records",
                f"the base was changed after its edit: `editor verify {root}` tells more; "
                f"delete its {MANIFEST} to edit it as a model of its own",
            )
