"""Test what two devices have in common, against the library's own keys and ways of computing it that differ."""

import hashlib
import hmac

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from edge_client import keys
from edge_client.errors import TrainingError
from edge_client.secagg.locks import End, Lock, point_of, scalar_of
from edge_client.secagg.shamir import PRIME, less, more
from edge_client.secagg.streams import KEY, derived, public


class Device:
    def __init__(self, place=0, units=(1, 2)):
        self.secret = keys.make()
        self.seed = keys.decoded(self.secret, KEY)
        self.identity = keys.decoded(keys.public_of(self.secret), KEY)
        self.mask = np.random.default_rng().bytes(32)
        self.end = End(self.identity, public(self.mask), place, units)

    def lock(self, other, context=b"c"):
        return Lock.between(self.seed, self.mask, self.end, getattr(other, "end", other), context)


def exchanged(secret, other):
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(other))


def test_a_devices_own_key_is_one_of_x25519_too():
    for _ in range(20):
        device = Device()
        assert public(scalar_of(device.seed)) == point_of(device.identity)


def test_the_base_point_is_that_of_rfc_7748():
    """4.1: y = 4/5 is u = 9."""
    y = 4 * pow(5, -1, 2**255 - 19) % (2**255 - 19)
    assert point_of(y.to_bytes(32, "little")) == (9).to_bytes(32, "little")
    assert point_of((y | 1 << 255).to_bytes(32, "little")) == (9).to_bytes(32, "little"), "the sign of x says nothing"


def test_a_lock_is_of_both_keys_of_both_ends():
    one, other = sorted((Device(), Device(place=7, units=())), key=lambda device: device.identity)
    own, theirs = scalar_of(one.seed), point_of(other.identity)
    shared = [
        exchanged(own, theirs),
        exchanged(one.mask, other.end.mask),
        exchanged(own, other.end.mask),
        exchanged(one.mask, theirs),
    ]
    info = b"spry sums lock" + one.end.encoded() + other.end.encoded()
    expected = derived(b"".join(shared), b"c", info, 64)
    for lock in (one.lock(other), other.lock(one)):
        assert lock.proof + lock.common == expected
    tag = hmac.digest(expected[:32], b"\0said", hashlib.sha256)[:16]
    assert one.lock(other).tag(b"said", own=True) == tag == other.lock(one).tag(b"said", own=False)
    assert one.lock(other).tag(b"said", own=False) != tag


def test_both_ends_draw_the_same_pads_for_each_and_others_do_not():
    one, other, third = Device(), Device(), Device()
    here, there = one.lock(other), other.lock(one)
    assert here.pads(own=True) == there.pads(own=False) != here.pads(own=False) == there.pads(own=True)
    assert len({*here.pads(own=True), *here.pads(own=False), *third.lock(one).pads(own=True)}) == 6
    assert one.lock(other, b"d").pads(own=True) != here.pads(own=True)


def test_whoever_has_the_keys_of_a_round_alone_has_no_lock():
    """A server that was given the key of one that vanished, or that made one up in a device's place."""
    one, other, server = Device(), Device(), Device()
    server.mask = other.mask
    opened = Lock.between(server.seed, other.mask, other.end, one.end, b"c")
    assert opened.pads(own=True) != other.lock(one).pads(own=True)
    made_up = End(other.identity, public(server.mask), 0, (1, 2))
    theirs = Lock.between(server.seed, server.mask, made_up, one.end, b"c")
    assert one.lock(made_up).pads(own=True) != theirs.pads(own=False)


def test_what_is_dealt_says_nothing_without_the_pad():
    rng = np.random.default_rng()
    share, pad = (int.from_bytes(rng.bytes(32), "big") % PRIME for _ in range(2))
    both = [number.to_bytes(32, "big") for number in (share, pad)]
    assert int.from_bytes(less(*both), "big") == (share - pad) % PRIME
    assert more(less(*both), both[1]) == both[0]


@pytest.mark.parametrize("identity", [(1).to_bytes(32, "little"), bytes(32)])
def test_keys_of_low_order_are_refused(identity):
    with pytest.raises(TrainingError, match=r"key .*is invalid: this device sends nothing"):
        Device().lock(End(identity, public(bytes(range(32))), 1, ()))
    with pytest.raises(TrainingError, match="a key of the round is invalid"):
        Device().lock(End(Device().identity, bytes(32), 1, ()))
