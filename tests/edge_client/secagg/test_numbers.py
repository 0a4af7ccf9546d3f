"""Shares of secrets, and numbers as integers, against arithmetic that is done another way."""

import random
from fractions import Fraction

import numpy as np
import pytest

from edge_client.secagg import fixed
from edge_client.secagg.shamir import PRIME, SHARE, WIDE, drawn, joined, split, threshold
from edge_client.wire.protocol import Report


def given(points):
    """Shares that their holders draw."""
    return {point: drawn(random.randbytes(WIDE)) for point in points}


@pytest.mark.parametrize("members", [3, 4, 9, 13, 25])
def test_any_threshold_of_shares_gives_the_secret_back_and_fewer_do_not(members):
    secret, points, needed = random.randbytes(32), list(range(1, members + 1)), threshold(members, 3)
    known = given(random.sample(points, needed - 1))
    shares = dict(zip(points, split(secret, points, known), strict=True))
    assert known.items() <= shares.items()
    assert all(len(share) == SHARE for share in shares.values())
    for _ in range(5):
        some = random.sample(points, needed)
        assert joined({point: shares[point] for point in some}) == secret
        assert joined({point: shares[point] for point in some[1:]}) != secret


def test_fewer_shares_fit_every_secret():
    """Whatever the secret, there is a share of one more device that makes it of the others."""
    secret = random.randbytes(32)
    shares = dict(enumerate(split(secret, [1, 2, 3], given([1, 3])), start=1))
    for _ in range(3):
        wanted = random.randrange(PRIME)
        # Lagrange at 0 over 1, 2, 3 has weights 3, -3, 1
        third = (wanted - 3 * int.from_bytes(shares[1], "big") + 3 * int.from_bytes(shares[2], "big")) % PRIME
        found = joined({1: shares[1], 2: shares[2], 3: third.to_bytes(SHARE, "big")})
        assert found == wanted.to_bytes(32, "big")


def test_the_same_secret_is_split_the_same_and_another_is_not():
    secret = random.randbytes(32)
    known = given([1])
    assert split(secret, [1, 2], known) == split(secret, [1, 2], known) != split(random.randbytes(32), [1, 2], known)


def test_shares_of_different_secrets_fit_none_of_them():
    one, other = (split(random.randbytes(32), [1, 2], given([2])) for _ in range(2))
    mixed = joined({1: one[0], 2: other[1]})
    assert mixed not in (joined({1: one[0], 2: one[1]}), joined({1: other[0], 2: other[1]}))


# --- fixed point -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 10, 100, 4096])
def test_a_sum_of_integers_is_the_weighted_mean(count):
    rng = np.random.default_rng()
    here = min(count, 40)
    changes = rng.normal(0, 0.3, (here, 50)).clip(-2, 2).astype(np.float32)
    examples = rng.integers(1, 500, here)
    cap = 200
    total = sum(
        fixed.encoded(change, fixed.weight(int(own), cap), count) for change, own in zip(changes, examples, strict=True)
    )
    mean, weighs = fixed.decoded(total, count)
    shares = np.minimum(examples, cap)
    expected = (changes * shares[:, None]).sum(0) / shares.sum()
    np.testing.assert_allclose(mean, expected, atol=here / fixed.scale(count) / (weighs / fixed.WHOLE) + 1e-4)
    assert weighs == sum(max(1, round(65536 * Fraction(int(own), cap))) for own in shares)


@pytest.mark.parametrize("count", [3, 7, 100, 4095, 4096])
def test_no_sum_leaves_its_range(count):
    """All devices at the largest weight, with changes at the clip and beyond."""
    for extreme in (fixed.CLIP, -fixed.CLIP, 1e30, -1e30):
        one = fixed.encoded(np.array([extreme], np.float32), fixed.WHOLE, count)
        total = (one.astype(np.uint64) * count).astype(np.uint32)
        mean, _ = fixed.decoded(total, count)
        assert mean[0] == pytest.approx(np.sign(extreme) * fixed.CLIP, rel=1e-3)
    report = Report(examples=2**40, steps=2**31, loss=1e30, held_back=2**40)
    told = sum(fixed.told(report, fixed.WHOLE, []) for _ in range(count))
    pooled = fixed.pooled(told, [])
    assert (pooled.clients, pooled.report.examples) == (count, count * 2**40)
    assert pooled.report.loss == pytest.approx(2**28)


def test_reports_together_are_what_they_were_apart():
    rng = np.random.default_rng()
    reports = [
        Report(
            examples=int(rng.integers(1, 99)), steps=4, loss=float(rng.normal()), held_back=int(rng.integers(5)),
            right_global=1, right_personal=2, sums_global={"f1": float(rng.normal())}, sums_personal={"f1": 1.5},
        )
        for _ in range(7)
    ]  # fmt: skip
    total = sum(fixed.told(report, fixed.WHOLE, ["f1"]) for report in reports)
    found = fixed.pooled(total, ["f1"])
    assert found.clients == 7
    assert found.evaluated == sum(report.held_back > 0 for report in reports)
    assert found.report.examples == sum(report.examples for report in reports)
    assert found.report.held_back == sum(report.held_back for report in reports)
    assert (found.report.right_global, found.report.right_personal) == (7, 14)
    assert found.report.loss == pytest.approx(sum(report.loss for report in reports) / 7, abs=1e-5)
    assert found.report.sums_global["f1"] == pytest.approx(sum(one.sums_global["f1"] for one in reports), abs=1e-4)
    assert found.report.sums_personal["f1"] == pytest.approx(10.5)


def test_weights_that_cannot_be_give_no_change():
    words = fixed.encoded(np.zeros(3, np.float32), 9, 5)
    words[-1] = 5 * fixed.WHOLE + 1
    assert len(fixed.decoded(words, 5)[0]) == 0
