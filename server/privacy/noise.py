"""Gaussian noise that nobody can draw again: bits of ChaCha20, made normal by Box and Muller's way.

Each closing of a round has a key of its own, of the operating system's generator, which nothing keeps. A round that is
closed again after a crash draws other noise; that of the first time was published nowhere, as weights become true in
one transaction. Noise made again from a key that is kept would be worse: after a backup was restored, the same noise
over other updates would reveal their difference. A simulation names its keys, so that it can be run again.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from edge_client.secagg.noise import normal_of


def key_of(*words: object) -> bytes:
    """Derive a simulation's key: the same for the same words."""
    return hashlib.sha256("/".join(map(str, words)).encode()).digest()


class Noise:
    """Independent standard normal numbers, one after the other."""

    def __init__(self, key: bytes | None = None) -> None:
        """Start the stream of a key of 32 bytes, drawn where none is given."""
        self._stream = Cipher(ChaCha20(secrets.token_bytes(32) if key is None else key, bytes(16)), None).encryptor()

    @classmethod
    def of(cls, *words: object) -> Noise:
        """Return the noise of a simulation: the same for the same words."""
        return cls(key_of(*words))

    def normal(self, count: int) -> NDArray[np.float64]:
        words = np.frombuffer(self._stream.update(bytes(16 * -(-count // 2))), "<u8")
        return normal_of(words)[:count]
