"""Keys of one round, the mask that two devices share, and streams of masks. All primitives are `cryptography`'s.

    mask seed of a pair   HKDF-SHA256(X25519(mask, mask), salt=context, "spry sums mask" + both public keys), 32 bytes
    stream of a part      ChaCha20 (RFC 8439) from block 0 under a seed, with the part's number in the nonce

Both public keys stand in the order of their bytes. The context is what all devices of a round agree on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from edge_client.errors import TrainingError

KEY, TAG = 32, 16
"""Bytes of a key or seed, and of a tag."""
_MASK = b"spry sums mask"


@lru_cache(maxsize=256)
def public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derived(secret: bytes, context: bytes, purpose: bytes, size: int = KEY) -> bytes:
    return HKDF(SHA256(), size, context, purpose).derive(secret)


def agreed(secret: bytes, other: bytes) -> bytes:
    """Agree on a key by X25519, from one's secret key and another's public one."""
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise TrainingError(
            "a key of the round is invalid: this device sends nothing, as the server or a device is lying"
        ) from None


def mask_seed(secret: bytes, other: bytes, context: bytes) -> bytes:
    """Derive the seed that two devices share, by the secret key of one and the public key of the other."""
    return derived(agreed(secret, other), context, _MASK + b"".join(sorted((public(secret), other))))


def stream(seed: bytes, part: int, size: int, kind: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    """Uniform numbers of a part, little-endian."""
    width = np.iinfo(kind).bits // 8
    nonce = bytes(4) + part.to_bytes(4, "little") + bytes(8)  # block 0, then the 96 bits of RFC 8439
    data = Cipher(ChaCha20(seed, nonce), None).encryptor().update(bytes(size * width))
    return np.frombuffer(data, f"<u{width}").astype(kind, copy=False)
