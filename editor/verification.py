"""Prove an edited checkpoint, with its base or without, or undo the edit.

    OUT, editor.json, base  --verify-->  Verified, or the first difference
    OUT, restore patch      --undo-->    the base, every file with its old sha256

Nothing that OUT says of itself is believed: heads are compiled to slices anew from the base, and
every byte is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from editor import restore
from editor.architecture import check_heads
from editor.baking import read_manifest
from editor.checkpoint import check_zero, staged, verify_edits
from editor.differences import Side, compare_tensors, difference
from editor.digests import DECIDING
from editor.errors import CheckFailed, ModelError, UsageError
from editor.layout import digest_file, other_weights, source_files
from editor.parallel import side_by_side
from editor.plan import compile_edits
from editor.progress import Progress
from editor.records import (
    Checkpoint,
    Difference,
    FileDigest,
    Head,
    Manifest,
    ModelSpec,
    TensorEdit,
    Undone,
    Verified,
)
from editor.safetensors_header import shown
from editor.session import Opened, Options, open_model, read_any_spec
from editor.source import is_gguf_name, resolve
from editor.staging import CARD, MANIFEST, OWN_FILES, SIGNATURE, beside, check_output
from editor.weights import Weights, is_gguf, open_weights, patches


class _Claim(NamedTuple):
    """What is said of a checkpoint."""

    output: Path
    manifest: Manifest
    heads: tuple[Head, ...]
    """Of this edit and of all before it."""

    @property
    def weights(self) -> Path:
        """The checkpoint's weights: its folder, or the GGUF file in it."""
        file = self.output / self.manifest.base_files[0].name
        return file if is_gguf(file) else self.output


def verify(
    output: Path,
    base: str | None,
    options: Options,
    progress: Progress,
    *,
    public_key: Path | None = None,
) -> Verified:
    """Check that a folder is what its editor.json says.

    Args:
        output: a folder that `bake` or `remove` wrote.
        base: the model it was made from; without it the other bytes are held against the sha256
            that editor.json records.
        options: where the base is found.
        progress: hears of the stages.
        public_key: checks the folder's signature too.

    Raises:
        CheckFailed: at the first difference.
        ModelError: the folder or the base cannot be read.
    """
    claim = _claim(output)
    spec = _claimed_spec(claim)
    _check_files(claim, spec)
    signed = _check_signature(output, public_key)
    if base is None:
        return _with(_verify_alone(claim, spec, progress), signed)
    return _with(_verify_against(claim, base, options, progress), signed)


def verify_derivative(
    derived: Path,
    heads: Sequence[Head],
    base: str | None,
    options: Options,
    progress: Progress,
) -> Verified:
    """Check the heads in a checkpoint that another program made from an edited one.

    Args:
        derived: a folder or a GGUF file: requantized, converted, resharded.
        heads: the heads that should be zero.
        base: the model that was edited; tensors that the two have in one form are compared.
        options: where the base is found.
        progress: hears of the stages.

    Raises:
        CheckFailed: a head is not zero, or a comparable tensor is not as in the base.
        ModelError: one of the two cannot be read, or has no such head.
    """
    if not heads:
        raise UsageError("no heads to check", "name them with --heads, or --manifest FILE")
    spec = read_any_spec(derived, derived.name)
    check_heads(spec, heads)
    edits = compile_edits(spec, heads)
    weights = open_weights(derived)
    progress.stage("reading the heads", 0)
    check_zero(weights, edits)
    said = [f"{_count(heads)} zero when multiplied out"]
    unknown = ["who made these files, and from what"]
    if spec.not_covered:
        unknown.append(f"layers without heads: {'; '.join(spec.not_covered)}")
    if base is None:
        unknown.append("every other tensor: give the base with --base")
    else:
        opened = open_model(base, options, progress, convert=not is_gguf_name(str(derived)))
        check_heads(opened.spec, heads)
        progress.stage("comparing with the base", 0)
        expected = compile_edits(opened.spec, heads)
        equal, apart = compare_tensors(open_weights(opened.source.folder), weights, expected)
        said.append(f"{equal} tensors are the base's, with the heads zero, byte for byte")
        unknown += apart
    return Verified(
        output=str(derived),
        kind="derivative",
        base=base,
        heads=tuple(sorted(set(heads))),
        tensors=len({edit.tensor for edit in edits}),
        bytes_read=_slice_bytes(weights, edits),
        bytes_changed=None,
        shown=tuple(said),
        not_checked=tuple(unknown),
    )


def undo(output: Path, folder: Path, patch: Path | None, progress: Progress) -> Undone:
    """Write the base that a folder was made from.

    Args:
        output: a folder that `bake` or `remove` wrote.
        folder: the folder to write.
        patch: the restore patch; by default the one beside `output`.
        progress: hears of the stages.

    Raises:
        UsageError: `folder` may not be written.
        ModelError: the patch is missing or damaged.
        CheckFailed: the edited files or the patch are not those of the edit.
    """
    check_output(folder, force=False, base=output)
    manifest = read_manifest(output)
    patch = beside(output.resolve()) if patch is None else patch
    if patch.is_file() and restore.digest_patch(patch) != manifest.restore:
        raise CheckFailed(
            f"{patch}: is not the restore patch of {output}: its sha256 is not the recorded one",
            "say where the right one is with --restore FILE",
        )
    there = [name for name, _ in source_files(output)]  # which refuses links that lead outside
    progress.stage("writing the base", 0)
    with staged(folder, force=False, base=output) as partial:
        files = restore.undo(output, patch, partial)
    known = {file.name for file in files} | OWN_FILES
    return Undone(
        output=str(folder),
        base=manifest.base,
        files=files,
        left_out=tuple(name for name in there if name not in known),
    )


def diff(a: str, b: str, options: Options, progress: Progress) -> Difference:
    """What differs between two checkpoints.

    Raises:
        UsageError: a name is unknown.
        ModelError: one of them cannot be read.
    """
    as_files = all(is_gguf_name(name) for name in (a, b))
    one, two = (_side(name, options, progress, convert=not as_files) for name in (a, b))
    progress.stage("comparing", 0)
    return difference(one, two)


def recorded_heads(derived: Path, manifest: Path | None) -> tuple[Head, ...]:
    """The heads that a derivative should lack: those of a manifest, given or beside its weights.

    Raises:
        UsageError: there is none.
        ModelError: it cannot be read.
    """
    folder = derived if derived.is_dir() else derived.parent
    if manifest is None and not (folder / MANIFEST).is_file():
        raise UsageError(
            f"{derived}: has no {MANIFEST} that names its heads",
            "name them with --heads L16H21,L15H13, or give --manifest FILE",
        )
    return claimed_heads(read_manifest(manifest or folder))


def claimed_heads(manifest: Manifest) -> tuple[Head, ...]:
    """The heads of an edit and of all edits before it."""
    earlier = (head for one in manifest.earlier for head in one.heads)
    return tuple(sorted({*manifest.heads, *earlier}))


def _side(name: str, options: Options, progress: Progress, *, convert: bool) -> Side:
    source = resolve(name, cache_dir=options.cache, offline=options.offline, convert=convert)
    progress.say(source.announcement)
    try:
        spec = read_any_spec(source.folder, source.name)
    except ModelError:  # its tensors can be compared, even where nobody knows its heads
        spec = None
    return Side(source.name, source.folder, spec)


class _Signature(NamedTuple):
    """What is known of a folder's signature, and what is not; one of the two is empty."""

    shown: str = ""
    not_checked: str = ""


def _check_signature(output: Path, public_key: Path | None) -> _Signature:
    """Who signed the folder, in words, or what no signature was looked at for."""
    there = (output / SIGNATURE).is_file()
    if public_key is None and there:
        return _Signature(not_checked=f"the signature {SIGNATURE}: give its key, --public-key")
    if public_key is None:
        return _Signature(
            not_checked=f"the card, and the words and figures in {MANIFEST}: no signature covers "
            "them"
        )
    if not there:
        raise CheckFailed(f"{output}: has no {SIGNATURE}", "leave out --public-key, or sign it")
    from editor import signing

    signed = signing.check(output, public_key=public_key)
    return _Signature(f"{len(signed.files)} files are signed with the key of sha256 {signed.key}")


def _with(found: Verified, signature: _Signature) -> Verified:
    more = {field: (line,) for field, line in signature._asdict().items() if line}
    return found.model_copy(update={at: getattr(found, at) + more[at] for at in more})


def _claim(output: Path) -> _Claim:
    manifest = read_manifest(output)
    if not manifest.base_files or not manifest.heads:
        raise ModelError(f"{output / MANIFEST}: names no weight files or no heads", "bake it again")
    if len({file.name for file in manifest.files}) < len(manifest.files):
        raise ModelError(f"{output / MANIFEST}: names a file twice", "bake it again")
    return _Claim(output, manifest, claimed_heads(manifest))


def _claimed_spec(claim: _Claim) -> ModelSpec:
    """Where the heads lie, by the edited files themselves."""
    try:
        spec = read_any_spec(claim.weights, claim.output.name)
        check_heads(spec, claim.heads)
    except ModelError as error:  # the edit was written from files that could be read
        raise CheckFailed(error.message, error.hint) from error
    return spec


def _check_files(claim: _Claim, spec: ModelSpec) -> None:
    """That no file, beside the recorded ones, is the model or would change it."""
    recorded = {file.name for file in claim.manifest.files}
    for file in spec.files:
        if file.name not in recorded:
            raise CheckFailed(f"{claim.output / file.name}: {MANIFEST} does not record it")
    weights_like = set(_weights_like(claim))
    for name, _ in source_files(claim.output):
        if name in recorded or name in OWN_FILES:
            continue
        if name.endswith(DECIDING) or name in weights_like:
            raise CheckFailed(
                f"{claim.output / name}: {MANIFEST} does not record it, and a loader may read it",
                "remove the file, if it was put there after the edit",
            )


def _weights_like(claim: _Claim) -> tuple[str, ...]:
    return () if is_gguf(claim.weights) else other_weights(claim.output)


def _verify_alone(claim: _Claim, spec: ModelSpec, progress: Progress) -> Verified:
    manifest = claim.manifest
    progress.stage("reading every file", 0)
    there = {name for name, _ in source_files(claim.output)}

    def digest(file: FileDigest, keep_on: Callable[[], None]) -> FileDigest | None:
        keep_on()
        # A recorded name is not trusted: only what is in the folder is read.
        return digest_file(claim.output, file.name) if file.name in there else None

    for file, found in zip(manifest.files, side_by_side(digest, manifest.files), strict=True):
        _check_recorded(claim, file, found)
    if [file.name for file in manifest.base_files] != [file.name for file in spec.files]:
        raise CheckFailed(f"{claim.output / MANIFEST}: records other weight files than there are")
    edits = compile_edits(spec, claim.heads)
    _check_edits(manifest, edits)
    weights = open_weights(claim.weights)
    _check_ranges(manifest, weights)
    check_zero(weights, edits)
    unknown = "that all else is the base's: give the base with --base"
    return _verified(
        claim,
        edits,
        base=None,
        changed=None,
        said=(
            f"every file has the sha256 that {MANIFEST} records: {len(manifest.files)} in all",
            f"{_count(claim.heads)} zero",
        ),
        unknown=(unknown, *_unrecorded(claim)),
    )


def _verify_against(claim: _Claim, base: str, options: Options, progress: Progress) -> Verified:
    manifest = claim.manifest
    opened = open_model(base, options, progress, convert=not is_gguf(claim.weights))
    if opened.source.folder.resolve() == claim.weights.resolve():
        raise UsageError(
            f"{base} is the edited checkpoint itself", "give the model it was made from"
        )
    _check_sizes(claim, opened)
    heads = claim.heads
    if manifest.earlier and opened.weights == manifest.base_files:
        heads = tuple(sorted(set(manifest.heads)))
    check_heads(opened.spec, claim.heads)
    edits, claimed = (compile_edits(opened.spec, given) for given in (heads, claim.heads))
    _check_edits(manifest, claimed)
    progress.stage("comparing every byte with the base", 0)
    try:
        found = verify_edits(opened.source.folder, claim.output, edits, replaced=(CARD,))
        check_zero(open_weights(claim.weights), claimed)
    except CheckFailed as error:
        hint = f"if {opened.source.name} is not the base: {MANIFEST} names {manifest.base}"
        raise CheckFailed(error.message, hint) from error
    _check_digests(claim, found, opened.source.name)
    return _verified(
        claim,
        claimed,
        base=opened.source.name,
        changed=found.bytes_changed,
        said=(
            f"every byte is the base's, but for the slices of {_count(heads)}; "
            f"files compared: {len(found.files)}",
            f"{_count(claim.heads)} zero",
            f"base and edited files have the sha256 that {MANIFEST} records",
        ),
        unknown=_unrecorded(claim),
    )


def _check_sizes(claim: _Claim, base: Opened) -> None:
    """That a model can be the base, before its heads are looked for."""
    manifest = claim.manifest
    bases = [manifest.base_files, *(one.base_files for one in manifest.earlier)]
    found = {(file.name, file.n_bytes) for file in base.spec.files}
    if found not in [{(file.name, file.n_bytes) for file in files} for files in bases]:
        raise CheckFailed(
            f"{base.source.name} is not the base of {claim.output}: its weight files have other "
            f"names or sizes than {MANIFEST} records",
            f"it names {manifest.base} as the base",
        )


def _check_digests(claim: _Claim, found: Checkpoint, base: str) -> None:
    """That base and edited files have the digests that the manifest records."""
    manifest = claim.manifest
    bases = [manifest.base_files, *(one.base_files for one in manifest.earlier)]
    if found.base_files not in bases:
        raise CheckFailed(
            f"{claim.output / MANIFEST}: records another sha256 for the base than {base} has",
            f"it names {manifest.base} as the base",
        )
    recorded = {file.name: file for file in manifest.files}
    for file in found.files:
        if file.name != CARD:
            _check_recorded(claim, recorded.get(file.name), file)
    missing = sorted(set(recorded) - {file.name for file in found.files})
    if missing:
        raise CheckFailed(f"{claim.output / MANIFEST}: records {shown(missing[0])}, no base file")
    if found.base_files == manifest.base_files and found.bytes_changed != manifest.bytes_changed:
        raise CheckFailed(
            f"{claim.output}: {found.bytes_changed} bytes differ from the base, {MANIFEST} "
            f"records {manifest.bytes_changed}"
        )
    if found.base_files == manifest.base_files and found.written != manifest.written:
        raise CheckFailed(f"{claim.output / MANIFEST}: records other byte ranges than were changed")


def _check_recorded(claim: _Claim, recorded: FileDigest | None, found: FileDigest | None) -> None:
    if recorded == found:
        return
    name = (found or recorded or claim.manifest.files[0]).name
    hint = "if another program made these files from the edited ones, pass --derivative"
    if found is None:
        raise CheckFailed(f"{shown(name)} is missing from {claim.output}", hint)
    if recorded is None:
        raise CheckFailed(f"{claim.output / name}: {MANIFEST} does not record it", hint)
    raise CheckFailed(
        f"{claim.output / name}: should have {recorded.n_bytes} bytes with sha256 "
        f"{recorded.sha256}, found {found.n_bytes} with {found.sha256}",
        hint,
    )


def _check_edits(manifest: Manifest, edits: Sequence[TensorEdit]) -> None:
    """That the recorded edits are those of the recorded heads."""
    expected = {edit.canonical() for edit in edits}
    mine = {edit.canonical() for edit in manifest.edits}
    earlier = {edit.canonical() for one in manifest.earlier for edit in one.edits}
    if not mine <= expected <= mine | earlier:
        raise CheckFailed(
            f"the edits in {MANIFEST} are not those of its heads", "it was changed after the edit"
        )


def _check_ranges(manifest: Manifest, weights: Weights) -> None:
    """That the recorded byte ranges are those of the recorded edits."""
    made = {
        (tensor, patch.start, patch.row_bytes, patch.n_rows, patch.columns())
        for file in weights.files
        for tensor, patch in patches(weights, file, manifest.edits)
    }
    recorded = {
        (one.tensor, rows.start, rows.row_bytes, rows.n_rows, rows.columns)
        for one in manifest.written
        for rows in one.rows
    }
    if made != recorded:
        raise CheckFailed(f"{MANIFEST} records other byte ranges than those of its heads")


def _unrecorded(claim: _Claim) -> tuple[str, ...]:
    recorded = {file.name for file in claim.manifest.files} | OWN_FILES
    names = [name for name, _ in source_files(claim.output) if name not in recorded]
    notes: list[str] = []
    if names:
        notes.append(f"files that {MANIFEST} does not record: {', '.join(map(shown, names))}")
    hidden = [at.name for at in claim.output.iterdir() if at.name.startswith(".") and at.is_dir()]
    if hidden:
        notes.append(f"folders that no loader reads: {', '.join(map(shown, sorted(hidden)))}")
    if others := _weights_like(claim):
        said = ", ".join(map(shown, others))
        notes.append(f"whether these, unedited and beside the model, hold what was removed: {said}")
    if claim.manifest.not_covered:
        notes.append(f"layers without heads: {'; '.join(claim.manifest.not_covered)}")
    return tuple(notes)


def _count(heads: Sequence[Head]) -> str:
    n = len(set(heads))
    return "1 head" if n == 1 else f"{n} heads"


def _slice_bytes(weights: Weights, edits: Sequence[TensorEdit]) -> int:
    entries = (weights.tensors[name].entry for name in {edit.tensor for edit in edits})
    return sum(entry.stop - entry.start for entry in entries)


def _verified(
    claim: _Claim,
    edits: Sequence[TensorEdit],
    *,
    base: str | None,
    changed: int | None,
    said: tuple[str, ...],
    unknown: tuple[str, ...],
) -> Verified:
    n_bytes = sum(file.n_bytes for file in claim.manifest.files)
    return Verified(
        output=str(claim.output),
        kind="edit",
        base=base,
        heads=claim.heads,
        tensors=len({edit.tensor for edit in edits}),
        bytes_read=n_bytes if base is None else 2 * n_bytes,
        bytes_changed=changed,
        shown=said,
        not_checked=unknown,
    )
