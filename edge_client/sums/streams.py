"""Keys of one round, what two devices derive from them, and streams of masks. All primitives are `cryptography`'s.

    mask seed of a pair   HKDF-SHA256(X25519(mask, mask), salt=context, "spry sums mask" + both public keys), 32 bytes
    lock of a pair        HKDF-SHA256(X25519(lock, lock), salt=context, "spry sums lock" + both public keys), 96 bytes:
                          a key of ChaCha20-Poly1305, one of HMAC-SHA256, and a seed of what both can draw
    stream of a part      ChaCha20 (RFC 8439) from block 0 under a seed, with the part's number in the nonce

Both public keys stand in the order of their bytes. The context is what all devices of a round agree on.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from edge_client.errors import TrainingError

KEY, TAG, SEAL = 32, 16, 16
"""Bytes of a key or seed, of a tag, and what sealing adds."""
_MASK, _LOCK = b"spry sums mask", b"spry sums lock"


@lru_cache(maxsize=256)
def public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derived(secret: bytes, context: bytes, purpose: bytes, size: int = KEY) -> bytes:
    return HKDF(SHA256(), size, context, purpose).derive(secret)


def _agreed(secret: bytes, other: bytes, context: bytes, purpose: bytes, size: int) -> bytes:
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise TrainingError("a key of the round is none: nothing is sent, the server or a device is lying") from None
    return derived(shared, context, purpose + b"".join(sorted((public(secret), other))), size)


def mask_seed(secret: bytes, other: bytes, context: bytes) -> bytes:
    """The seed that two devices share, by the secret key of one and the public key of the other."""
    return _agreed(secret, other, context, _MASK, KEY)


def stream(seed: bytes, part: int, size: int, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Uniform numbers of a part, little-endian."""
    width = np.iinfo(kind).bits // 8
    nonce = bytes(4) + part.to_bytes(4, "little") + bytes(8)  # block 0, then the 96 bits of RFC 8439
    data = Cipher(ChaCha20(seed, nonce), None).encryptor().update(bytes(size * width))
    return np.frombuffer(data, f"<u{width}").astype(kind, copy=False)


@dataclass(frozen=True)
class Lock:
    """What two devices can read, and nobody between them."""

    key: bytes
    proof: bytes
    common: bytes
    first: bool
    """Whether this end's key is the lower: each end has a nonce of its own, and seals once."""

    @classmethod
    def between(cls, secret: bytes, other: bytes, context: bytes) -> Lock:
        both = _agreed(secret, other, context, _LOCK, 3 * KEY)
        return cls(both[:KEY], both[KEY : 2 * KEY], both[2 * KEY :], public(secret) < other)

    def seal(self, plain: bytes) -> bytes:
        return ChaCha20Poly1305(self.key).encrypt(_nonce(self.first), plain, None)

    def open(self, sealed: bytes) -> bytes | None:
        """None where the other end did not seal it."""
        try:
            return ChaCha20Poly1305(self.key).decrypt(_nonce(not self.first), sealed, None)
        except InvalidTag:
            return None

    def drawn(self, size: int, *, own: bool) -> bytes:
        """Uniform bytes that stand for this end, or the other, and that both know."""
        return stream(self.common, 0 if own == self.first else 1, size, np.uint8).tobytes()

    def tag(self, said: bytes, *, own: bool) -> bytes:
        """That this end, or the other, said something."""
        end = b"\0" if own == self.first else b"\1"
        return hmac.digest(self.proof, end + said, hashlib.sha256)[:TAG]


def _nonce(first: bool) -> bytes:
    return bytes(11) + (b"\0" if first else b"\1")
