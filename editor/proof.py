"""The verbs that prove what a checkpoint is, sign it, compare two, or undo an edit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from editor import flags
from editor.console import DONE, Console
from editor.errors import UsageError


@click.command(
    cls=flags.Verb,
    examples=(
        "editor verify edited --base smollm2-135m",
        "editor verify edited.Q4_K_M.gguf --manifest edited/editor.json",
        "editor verify resharded --heads L23H4,L21H7 --base ./model --json",
    ),
)
@click.argument("edited", metavar="OUT", type=click.Path(path_type=Path))
@flags.flag(
    "--base",
    group="Job",
    metavar="MODEL",
    help="The model it was made from: every byte is compared with it.",
)
@flags.flag(
    "--derivative",
    group="Job",
    is_flag=True,
    help="OUT was made by another program from the edited files: requantized, converted, "
    "resharded.  Only what can be told of such files is checked, and the rest is listed.",
)
@flags.flag(
    "--manifest",
    group="Job",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The editor.json whose heads a derivative should lack.",
)
@flags.heads(required=False)
@flags.flag(
    "--public-key",
    group="Job",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Public key or certificate, PEM: OUT/model.sig is checked with it.",
)
@flags.FINDING
@flags.SAYING
@click.pass_obj
def verify(
    console: Console,
    edited: Path,
    base: str | None,
    derivative: bool,
    manifest: Path | None,
    heads: tuple[str, ...],
    public_key: Path | None,
    **given: Any,
) -> int:
    """Check that a checkpoint is what its editor.json says.

    The edit is derived anew from its heads.  With --base every byte is compared, without it the
    files are held against their recorded sha256.  Exit code 4 at the first difference.
    """
    from editor import proof_text, verification
    from editor.api import read_heads

    options = flags.options(given)
    chosen = read_heads(",".join(heads))
    wanted = derivative or manifest is not None or bool(chosen) or not edited.is_dir()
    if wanted and public_key is not None:
        raise UsageError("a derivative has no signature of the editor", "leave out --public-key")
    with console.progress() as progress:
        if wanted:
            recorded = chosen or verification.recorded_heads(edited, manifest)
            found = verification.verify_derivative(edited, recorded, base, options, progress)
        else:
            found = verification.verify(edited, base, options, progress, public_key=public_key)
    console.result(found.model_dump(mode="json"), proof_text.verified_text(found))
    return DONE


@click.command(
    cls=flags.Verb,
    examples=(
        "editor undo edited -o restored",
        "editor undo edited -o restored --restore backup/edited.restore.zip",
        "editor undo edited -o restored --json",
    ),
)
@click.argument("edited", metavar="OUT", type=click.Path(path_type=Path))
@flags.output(required=True)
@flags.flag(
    "--restore",
    group="Job",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The restore patch.  [default: OUT.restore.zip]",
)
@flags.SAYING
@click.pass_obj
def undo(console: Console, edited: Path, output: Path, restore: Path | None) -> int:
    """Write the model that a checkpoint was made from, bit for bit.

    Needs the restore patch that was written beside OUT; every file must get the sha256 that it had.
    """
    from editor import proof_text, verification

    with console.progress() as progress:
        found = verification.undo(edited, output, restore, progress)
    console.result(found.model_dump(mode="json"), proof_text.undone_text(found))
    return DONE


@click.command(
    cls=flags.Verb,
    examples=(
        "editor diff smollm2-135m edited",
        "editor diff ./model ./other --json",
        "editor diff a.gguf b.gguf",
    ),
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@flags.FINDING
@flags.SAYING
@click.pass_obj
def diff(console: Console, a: str, b: str, **given: Any) -> int:
    """Show what differs between two checkpoints, by tensor and by head.

    Tensors are compared by name, whichever files they lie in.  A GGUF file is compared as it is
    with another GGUF file, and multiplied out with safetensors.
    """
    from editor import proof_text, verification

    options = flags.options(given)
    with console.progress() as progress:
        found = verification.diff(a, b, options, progress)
    console.result(found.model_dump(mode="json"), proof_text.difference_text(found))
    return DONE


@click.command(
    cls=flags.Verb,
    examples=(
        "editor sign edited --key key.pem",
        "editor sign edited --key key.pem --password-env KEY_PASSWORD",
        "editor sign edited --key key.pem --force --json",
    ),
)
@click.argument("edited", metavar="OUT", type=click.Path(path_type=Path))
@flags.flag(
    "--key",
    group="Job",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Elliptic-curve private key, PEM; it must not lie in OUT.",
)
@flags.flag(
    "--password-env",
    group="Job",
    metavar="NAME",
    help="Environment variable with the password that the key is encrypted with.",
)
@flags.SAYING
@flags.flag("--force", group="Dangerous", is_flag=True, help="Replace a signature.")
@click.pass_obj
def sign(console: Console, edited: Path, key: Path, password_env: str | None, force: bool) -> int:
    """Sign every file of an edited checkpoint.

    Writes OUT/model.sig over weights, manifest and card: whatever is changed, removed or added
    afterwards breaks it, but for what git keeps (names in OUT that begin with .git).

    Needs the extra: pip install "capability-editor[signing]".

    A key is made with: openssl ecparam -name prime256v1 -genkey -noout -out key.pem.  Signing with
    Sigstore or a certificate is left to the command model_signing.
    """
    from editor import signing
    from editor.baking import read_manifest

    recorded = read_manifest(edited).files
    password = None if password_env is None else _secret(password_env)
    signed = signing.sign(edited, key=key, password=password, recorded=recorded, force=force)
    shown = {"output": str(edited), **signed._asdict(), "signature": str(signed.signature)}
    console.result(
        shown,
        f"{len(signed.files)} files signed: {signed.signature}\n"
        f"key     sha256 {signed.key}\n"
        f"digest  sha256 {signed.digest}",
    )
    return DONE


def _secret(name: str) -> str:
    """A password from the environment; it is never shown, nor is a part of it."""
    password = os.environ.get(name)
    if not password:
        raise UsageError(f"the environment variable {name} is not set", "set it, and export it")
    return password
