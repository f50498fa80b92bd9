"""Elliptic-curve keys in PEM files, and what is wrong with those that cannot be used.

Neither a key nor its password ever reaches a message.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from editor.errors import ModelError, UsageError
from editor.layout import read_small

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_CURVES = ("secp256r1", "secp384r1", "secp521r1")
_MAX_BYTES = 64 << 10
_MAKE = "make one: openssl ecparam -name prime256v1 -genkey -noout -out key.pem"
_MAKE_PUBLIC = "make it from the private key: openssl pkey -in key.pem -pubout -out key.pub"


def read_private(file: Path, password: str | None) -> EllipticCurvePublicKey:
    """The public half of a private key that can sign.

    Raises:
        UsageError: There is no such key, its password is wrong or missing, or it is of another
            kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pem = _read(file, _MAKE)
    try:
        private = load_pem_private_key(pem, None if password is None else password.encode())
    except TypeError as error:  # how `cryptography` says that password and key do not go together
        raise _needed(file) if password is None else _needless(file) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if password is not None and b"ENCRYPTED" in pem:
            raise UsageError(f"{file} cannot be decrypted with the given password") from error
        raise UsageError(f"{file} is not a private key in PEM format", _MAKE) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{file} is not an elliptic-curve key", _MAKE)
    return _on_known_curve(private.public_key(), file)


def read_public(file: Path) -> EllipticCurvePublicKey:
    """A public key that signatures can be checked with.

    Raises:
        UsageError: There is no such key, or it is of another kind.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = load_pem_public_key(_read(file, _MAKE_PUBLIC))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{file} is not a public key in PEM format", _MAKE_PUBLIC) from error
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise UsageError(f"{file} is not an elliptic-curve key", _MAKE)
    return _on_known_curve(public, file)


def fingerprint(public: EllipticCurvePublicKey) -> str:
    """sha256 of the public key's PEM text, as `sha256sum key.pub` prints it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(pem).hexdigest()


def _read(file: Path, hint: str) -> bytes:
    try:
        return read_small(file, _MAX_BYTES)
    except ModelError as error:
        raise UsageError(error.message, hint) from error


def _needed(file: Path) -> UsageError:
    return UsageError(
        f"{file} is encrypted", "name the variable that holds its password: --password-env NAME"
    )


def _needless(file: Path) -> UsageError:
    return UsageError(f"{file} is not encrypted, but a password was given", "leave it out")


def _on_known_curve(public: EllipticCurvePublicKey, file: Path) -> EllipticCurvePublicKey:
    if public.curve.name not in _CURVES:
        known = ", ".join(_CURVES)
        raise UsageError(f"{file} is on the curve {public.curve.name}, not on {known}", _MAKE)
    return public
