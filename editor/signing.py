"""A signature over a whole checkpoint: every file of the folder, by one elliptic-curve key.

    folder --sha256 of each file--> in-toto statement --ECDSA--> folder/model.sig

The format is that of `model-signing`, whose own command checks these signatures too.  As there,
what git keeps in a clone is outside of the signed set: a Hub adds `.gitattributes` to what it is
given.  Every other file is inside, manifest and card among them, but for the signature itself.
"""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from editor.errors import CheckFailed, EditorError, ModelError, UsageError
from editor.keys import fingerprint, read_private, read_public
from editor.layout import digest_file, read_small, reading
from editor.records import FileDigest
from editor.safetensors_header import parse_json
from editor.staging import CARD, MANIFEST, SIGNATURE, writing
from editor.store import write_atomic

REQUIRED = (MANIFEST, CARD)
"""Without these a signature would not say what was done to the weights."""

_COPY = "copy it again from where the folder came from"
_GIT = (".git", ".gitattributes", ".github", ".gitignore")
_MAX_BYTES = 64 << 20
_METHOD = {"method": "files", "hash_type": "sha256"}


class Signed(NamedTuple):
    """A signature that was made, or that was checked."""

    signature: Path
    key: str
    """sha256 of the public key's PEM file."""
    digest: str
    """sha256 over the digests of all files in the order of their names."""
    files: tuple[str, ...]
    """The signed set: paths relative to the folder, with forward slashes."""


class Statement(NamedTuple):
    """What a signature file says; true only if the signature fits."""

    key: str
    digest: str
    files: dict[str, str]
    """sha256 by name."""


def sign(
    folder: Path,
    *,
    key: Path,
    signature: Path | None = None,
    password: str | None = None,
    recorded: Iterable[FileDigest] = (),
    force: bool = False,
) -> Signed:
    """Sign every file of an edited checkpoint; the signature appears whole or not at all.

    Args:
        folder: A folder that the editor wrote.
        key: PEM file with an elliptic-curve private key.
        signature: Where to write; `folder/model.sig` by default.
        password: What the key is encrypted with.
        recorded: Files as `editor.json` has them: others are not signed.
        force: Replace an existing signature.

    Raises:
        EditorError: The optional packages are not installed.
        UsageError: The key cannot be used, or there is a signature already.
        ModelError: The folder is not the editor's, or holds a link.
        CheckFailed: A file is not the recorded one.
    """
    _check_installed()
    folder, signature = folder.resolve(), _place(folder, signature)
    _check_ours(folder)
    if key.resolve().is_relative_to(folder):
        raise UsageError(
            f"the private key {key} lies in the folder that it is to sign",
            "move it out: whoever gets the folder would get the key",
        )
    public = read_private(key, password)
    if signature.exists() and not force:
        raise UsageError(f"{signature} exists", "pass --force to sign anew")
    names = _names(folder, signature)
    raw = _make(folder, signature, key, password)
    said = _read(raw, signature)
    _check_recorded(said, recorded)
    if names != tuple(sorted(said.files)):
        raise CheckFailed(f"{folder} was changed while it was signed", "sign it again")
    with writing(signature):
        write_atomic(signature, raw)
    return Signed(signature, fingerprint(public), said.digest, names)


def check(folder: Path, *, public_key: Path, signature: Path | None = None) -> Signed:
    """Check that a key signed exactly the files that are there.

    Args:
        folder: The signed folder.
        public_key: PEM file with the public half of the key.
        signature: `folder/model.sig` by default.

    Raises:
        EditorError: The optional packages are not installed.
        UsageError: The public key cannot be used.
        ModelError: There is no signature, or the folder holds a link.
        CheckFailed: The signature is not of this key, or a file was changed, removed or added.
    """
    _check_installed()
    folder, signature = folder.resolve(), _place(folder, signature)
    key = fingerprint(read_public(public_key))
    if not signature.is_file():
        raise ModelError(f"{signature} is missing", "sign the folder first: `editor sign`")
    raw = read_small(signature, _MAX_BYTES)
    said = _read(raw, signature)
    if said.key != key:
        raise CheckFailed(
            f"{signature} was made with another key: {said.key}, not {key}",
            "check with the public key of whoever signed it",
        )
    names = _names(folder, signature)
    _verify(folder, signature, raw, public_key)
    # The library passes over what a statement tells it to ignore: here that may be nothing.
    unsigned = [name for name in (*names, *REQUIRED) if name not in said.files]
    if unsigned:
        raise _difference(folder, names, said) or CheckFailed(f"{unsigned[0]} is not signed")
    return Signed(signature, key, said.digest, names)


def _make(folder: Path, signature: Path, key: Path, password: str | None) -> bytes:
    """The signature's bytes; the library can only write a file, and not at once."""
    from model_signing import signing

    # It hands the password on as it is, and `cryptography` wants bytes.
    secret = None if password is None else password.encode()
    config: Any = signing.Config().set_hashing_config(_hashing(folder, signature))
    with tempfile.TemporaryDirectory() as place, reading(folder):
        file = Path(place, SIGNATURE)
        try:
            config.use_elliptic_key_signer(private_key=key, password=secret).sign(folder, file)
        except ValueError as error:  # a file that came or went meanwhile, a name that is no text
            raise ModelError(f"{folder} cannot be signed: {error}") from error
        return file.read_bytes()


def _verify(folder: Path, signature: Path, raw: bytes, public_key: Path) -> None:
    """That the statement is the key's, and that its digests are those of the folder."""
    from cryptography.exceptions import InvalidSignature
    from model_signing import verifying

    config: Any = verifying.Config().set_hashing_config(_hashing(folder, signature))
    config.use_elliptic_key_verifier(public_key=public_key)
    with tempfile.TemporaryDirectory() as place, reading(folder):
        file = Path(place, SIGNATURE)
        file.write_bytes(raw)  # what was read, whatever has become of the file since
        try:
            config.verify(folder, file)
        except InvalidSignature as error:
            raise CheckFailed(
                f"{signature} was changed: the key did not sign what it says", _COPY
            ) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            found = _difference(folder, _names(folder, signature), _read(raw, signature))
            raise found or _unreadable(signature, error) from error


def _difference(folder: Path, names: Iterable[str], said: Statement) -> CheckFailed | None:
    """The first file, by name, that is not as it was signed."""
    there = set(names)
    for name in sorted({*said.files, *there}):
        if name not in there:
            return CheckFailed(f"{name} was signed, and is missing", _COPY)
        if name not in said.files:
            return CheckFailed(
                f"{name} is not signed: it was added after the signature",
                "remove it, or sign the folder again",
            )
        if digest_file(folder, name).sha256 != said.files[name]:
            return CheckFailed(f"{name} is not the file that was signed: its sha256 differs", _COPY)
    return None


def _read(raw: bytes, signature: Path) -> Statement:
    """What a signature file says, its shape checked as far as it is used here."""
    try:
        bundle: dict[str, Any] = parse_json(raw, signature, what="the signature")
        payload = base64.b64decode(bundle["dsseEnvelope"]["payload"], validate=True)
        said: dict[str, Any] = parse_json(payload, signature, what="its statement")
        method = {name: said["predicate"]["serialization"][name] for name in _METHOD}
        statement = Statement(
            key=str(bundle["verificationMaterial"]["publicKey"]["hint"]),
            digest=str(said["subject"][0]["digest"]["sha256"]),
            files={str(at["name"]): str(at["digest"]) for at in said["predicate"]["resources"]},
        )
    except (LookupError, TypeError, binascii.Error, ModelError) as error:
        raise _unreadable(signature, error) from error
    if method != _METHOD:
        raise CheckFailed(
            f"{signature} was not made by `editor sign`: it lists {method}, not {_METHOD}",
            "check it with `model_signing verify key`",
        )
    return statement


def _unreadable(signature: Path, error: Exception) -> CheckFailed:
    reason = f"{type(error).__name__}: {error}"
    return CheckFailed(f"{signature} is not a key's signature that can be read: {reason}", _COPY)


def _check_recorded(said: Statement, recorded: Iterable[FileDigest]) -> None:
    """That what is about to be signed is what `editor.json` records; nothing is read again."""
    for file in recorded:
        if said.files.get(file.name) != file.sha256:
            what = "is not the file" if file.name in said.files else "is missing"
            raise CheckFailed(
                f"{file.name} {what} that {MANIFEST} records: the folder is not signed",
                "it was changed after the edit; edit the base again",
            )


def _hashing(folder: Path, signature: Path) -> Any:
    """How the folder is hashed: every file but the signature itself."""
    from model_signing import hashing

    ignored = [signature.relative_to(folder)] if signature.is_relative_to(folder) else []
    config: Any = hashing.Config().use_file_serialization(hashing_algorithm="sha256")
    return config.set_ignored_paths(paths=ignored)


def _place(folder: Path, signature: Path | None) -> Path:
    """The signature's absolute path; a link in its place is not followed."""
    if signature is None:
        return folder.resolve() / SIGNATURE
    return signature.parent.resolve() / signature.name


def _check_ours(folder: Path) -> None:
    for name in REQUIRED:
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: {name} is missing", "give a folder that `editor` wrote")


def _names(folder: Path, signature: Path) -> tuple[str, ...]:
    """Every file that a signature has to cover, sorted.

    Raises:
        ModelError: Something is a link, or neither file nor folder.
    """
    with reading(folder):
        names = sorted(_walk(folder, folder))
    return tuple(name for name in names if folder / name != signature)


def _walk(folder: Path, root: Path) -> Iterator[str]:
    for path in folder.iterdir():
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            raise ModelError(
                f"{path} is a link, and a signature covers files only",
                f"copy the folder with what its links lead to: cp -rL {root.name} COPY",
            )
        if path.is_dir() and name not in _GIT:
            yield from _walk(path, root)
        elif path.is_file() and name not in _GIT:
            yield name
        elif name not in _GIT:
            raise ModelError(f"{path} is neither a file nor a folder", "remove it")


def _check_installed() -> None:
    """That the optional packages are there; `model-signing` needs OpenSSL without saying so."""
    missing = [name for name in ("model_signing", "OpenSSL") if find_spec(name) is None]
    if missing:
        raise EditorError(
            f"signatures need packages that are not installed: {', '.join(missing)}",
            'install the extra: pip install "capability-editor[signing]"',
        )
