"""The primitives against the RFCs, and streams as uniform as they must be."""

import json

import numpy as np
import pytest

from edge_client.errors import TrainingError
from edge_client.secagg.streams import derived, mask_seed, public, stream
from tests.vectors.make_sums import PATH, vectors


def test_chacha20_is_that_of_rfc_8439():
    """A.1, test vector 1."""
    expected = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert stream(bytes(32), 0, 64, np.uint8).tobytes().hex() == expected


def test_hkdf_is_that_of_rfc_5869():
    """A.1."""
    found = derived(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert found.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")


def test_x25519_is_that_of_rfc_7748():
    """5.2: one step of the ladder, seen through what is derived of it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    shared = bytes.fromhex("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552")
    assert X25519PrivateKey.from_private_bytes(scalar).exchange(X25519PublicKey.from_public_bytes(point)) == shared
    info = b"spry sums mask" + b"".join(sorted((public(scalar), point)))
    assert mask_seed(scalar, point, b"salt") == derived(shared, b"salt", info)


def test_two_devices_share_a_seed_that_others_have_not():
    rng = np.random.default_rng()
    one, other, third = (rng.bytes(32) for _ in range(3))
    assert mask_seed(one, public(other), b"c") == mask_seed(other, public(one), b"c")
    assert mask_seed(one, public(other), b"c") != mask_seed(one, public(other), b"d")
    assert mask_seed(one, public(other), b"c") != mask_seed(third, public(other), b"c")


def test_a_key_that_is_no_point_is_refused():
    with pytest.raises(TrainingError, match="a key of the round is invalid"):
        mask_seed(bytes(range(32)), bytes(32), b"c")


def test_parts_have_streams_of_their_own():
    rng = np.random.default_rng()
    seed = rng.bytes(32)
    first, second = stream(seed, 1, 4096, np.uint32), stream(seed, 2, 4096, np.uint32)
    assert (first == second).mean() < 0.01
    np.testing.assert_array_equal(first[:100], stream(seed, 1, 100, np.uint32))


def test_the_vectors_are_up_to_date():
    """What clients in other languages are tested with is what this one computes."""
    assert json.loads(PATH.read_text()) == json.loads(json.dumps(vectors()))
