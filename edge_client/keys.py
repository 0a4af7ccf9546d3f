"""Ed25519 keys: who signed a bundle, and which device sends a request.

A key is 43 characters of base64url. What `spry keys` keeps in a file begins with `secret:` where it must not be shown.
The library behind it is loaded with the first signature: a device that checks none does not pay for it.
"""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.distribution import install_command
from edge_client.errors import SpryError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_BYTES, SIGNATURE_BYTES = 32, 64
SECRET = "secret:"  # noqa: S105 -- what a secret key's text begins with


def installed() -> bool:
    """Tell whether this machine can sign and verify; there are boards for which the library has no wheel."""
    return find_spec("cryptography") is not None


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decoded(text: str, size: int) -> bytes | None:
    """Return the bytes that `encoded` wrote; None where the text is something else."""
    try:
        data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return None
    return data if len(data) == size and encoded(data) == text else None


# --- keys ------------------------------------------------------------------------------------------------------------


def make() -> str:
    """Make a new secret key."""
    _require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return encoded(Ed25519PrivateKey.generate().private_bytes_raw())


def public_of(secret: str) -> str:
    return encoded(_private(secret).public_key().public_bytes_raw())


def read_public(given: str) -> str:
    """Read a public key, given as its text or as the file that holds it."""
    text = given.strip()
    if decoded(text, KEY_BYTES) is None:
        text = _read(Path(given))
    if decoded(text, KEY_BYTES) is None:
        raise SpryError(f"{given} is no public key; give the 43 characters that `spry keys show` prints, or their file")
    return text


def read_secret(path: Path) -> str:
    text = _read(path)
    if not text.startswith(SECRET) or decoded(text.removeprefix(SECRET), KEY_BYTES) is None:
        raise SpryError(f"{path} holds no secret key; give the file that `spry keys make` wrote")
    return text.removeprefix(SECRET)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise SpryError(f"the key {path} cannot be read ({error}); give a file of `spry keys make`") from None


def split_token(token: str | None) -> tuple[str | None, str | None]:
    """Split an enrolment token from the publisher's key that may follow it after a point."""
    secret, point, key = (token or "").partition(".")
    if point and decoded(key, KEY_BYTES) is None:
        raise SpryError("the token is not whole: the part after its point is no public key; copy it again")
    return secret or None, key or None


# --- signatures ------------------------------------------------------------------------------------------------------


def sign(secret: str, message: bytes) -> bytes:
    return _private(secret).sign(message)


def verify(public: str, message: bytes, signature: bytes) -> bool:
    """Tell whether the key's owner signed exactly this."""
    from cryptography.exceptions import InvalidSignature

    try:
        _public(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


@lru_cache(maxsize=8)
def _private(secret: str) -> Ed25519PrivateKey:
    _require()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(decoded(secret, KEY_BYTES) or b"")


@lru_cache(maxsize=4096)
def _public(public: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    return Ed25519PublicKey.from_public_bytes(decoded(public, KEY_BYTES) or b"")


def _require() -> None:
    if not installed():
        raise SpryError(f"keys need the package cryptography, which is not installed: {install_command()}")
