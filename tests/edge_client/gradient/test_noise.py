"""The theory of forward gradients, measured: estimates are unbiased, and as noisy as a formula says.

The model is a logistic regression whose weights are a bundle's units and head, so that its gradients are known; all
that is random is drawn afresh in each run. Directions, estimates, records and means are the product's.

**Rows.** A step moves along rows ``v_r``: with a direction for each example K x B of them, else K, which all examples
share. Row r measures ``a_r . v_r`` and the estimate is ``sum_r (a_r . v_r) v_r / K``. Where examples have directions of
their own, ``a_r = w_b g_b``, the example's gradient times its share of the batch; else ``a_r = G = sum_b w_b g_b``. In
either case ``sum_r a_r = K G`` and, as ``E[v v^T] = I``, the mean of the estimate is ``G``.

**Noise** is the mean square of its distance from ``G``. For a unit of d weights and rows drawn apart from each other it
is a sum over rows. One row of signs gives ``E|(a.v) v|^2 - |a|^2 = d |a|^2 - |a|^2``, since ``|v|^2 = d``; one of
normals ``(d + 2) |a|^2 - |a|^2``, by Isserlis' theorem. So with ``S = sum_r |a_r|^2 / K^2``::

    rademacher   (d - 1) S
    normal       (d + 1) S

S is ``|G|^2 / K`` for shared directions, and ``sum_b w_b^2 |g_b|^2 / K`` for an example's own, which is

    |G|^2 / (K B)    where B examples agree (w_b = 1 / B, g_b = G): B times lower than shared;
    |G|^2 / K        where their gradients are at right angles: as with shared ones;
    above |G|^2 / K  where they cancel: then the shared direction is the quieter.

**orthogonal.** ``v_r[i] = D[i] H[r, i]`` with signs D for each block of p rows. Weight c leaks into weight i by
``D[i] D[c] sum_r a_r[c] H[r, i] H[r, c] / K``. Products ``D[i] D[c]`` of different c are uncorrelated, and
``H[r, i] H[r, c] = H[r, i ^ c]``, so that a block's noise is::

    sum over c and i != c of (sum_r a_r[c] H[r, i ^ c])^2 / K^2

Where d = p, ``i ^ c`` takes every value and Parseval's theorem makes it ``(p sum_r |a_r|^2 - |sum_r a_r|^2) / K^2``.
With shared directions and K up to p this is ``(p / K - 1) |G|^2``, and over whole blocks nothing.

**Cross terms.** What one derivative measures of another part's gradient ``b_r`` is noise too: the estimate gets
``sum_r (b_r . u_r) v_r / K`` with independent u and v, in the mean square ``d sum_r |b_r|^2 / K^2`` as long as
``E[v_r . v_s] = 0``.

**Units apart.** Of n parts with a derivative in common the i-th moves along each n-th direction alone. Its estimate is
that of a step with so many directions, without cross terms. Over n parts of d weights, with S their sum, normals make
``n (d + 1) S`` apart and ``(n d + 1) S`` together, signs ``n (d - 1) S`` and ``(n d - 1) S``: nearly the same, but
apart each part's is in proportion to its own gradient. Orthogonal directions gain: whole blocks end a part's own noise,
and cross terms do not end. With fewer directions than parts some share one, and its cross terms.

**Holders.** The mean of h clients, weighted by examples, has the noise ``sum_h q_h^2 noise_h`` with their shares q_h:
1 / h of one client's where they are alike.
"""

import secrets
from dataclasses import replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from edge_client.gradient.drawing import combine, whole_gradient
from edge_client.training.optimizers import local_step
from edge_client.training.replay import changes, gradients
from edge_client.wire.protocol import Training
from edge_client.wire.scalars import StepRecord
from server.strategy.mean import Mean
from tests.edge_client.regression import STEPS, Client, client, estimates

LEVEL = 1e-9  # how often a check fails by chance if means over the steps are normal; their tails are a little longer
KINDS = ("normal", "rademacher", "orthogonal")


@pytest.fixture
def rng():
    seed = secrets.randbits(64)
    print(f"seed = {seed}")  # pytest shows it when the test fails
    return np.random.default_rng(seed)


# --- checks ----------------------------------------------------------------------------------------------------------


def surprise(samples, expected):
    """Return how far the means of samples [steps, n] are from their expectations, in units of chance."""
    samples, expected = np.asarray(samples, np.float64), np.atleast_1d(expected)
    samples = samples.reshape(len(samples), -1)
    rounding = 1e-5 * (np.abs(samples).max() + np.abs(expected).max())
    spread = np.sqrt(samples.var(axis=0, ddof=1) / len(samples)) + rounding
    allowed = NormalDist().inv_cdf(1 - LEVEL / (2 * expected.size))
    return float(np.max(np.abs(samples.mean(axis=0) - expected) / spread)) / allowed


def bias(samples, one, parts):
    """The surprise at each coordinate, and at the length along the true gradient of each part."""
    truth = one.truth()
    along = [samples[:, part] @ truth[part] / (truth[part] @ truth[part]) for part in parts]
    own = np.concatenate([samples[:, part] for part in parts], axis=1)
    each = surprise(own, np.concatenate([truth[part] for part in parts]))
    return max(each, surprise(np.stack(along, axis=1), np.ones(len(parts))))


def noise(samples, one, part):
    return np.sum((samples[:, part] - one.truth()[part]) ** 2, axis=1)


def within(rows, kind, directions):
    """The noise that a part's rows [R, d] make by themselves."""
    size = rows.shape[1]
    if kind == "orthogonal":
        return leaks(rows) / directions**2
    return (size - 1 if kind == "rademacher" else size + 1) * np.sum(rows**2) / directions**2


def leaks(rows):
    """The double sum over weights, block by block."""
    size = rows.shape[1]
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.kron([[1, 1], [1, -1]], matrix)
    total = 0.0
    for start in range(0, len(rows), len(matrix)):
        block = rows[start : start + len(matrix)]
        for c in range(size):
            others = [i ^ c for i in range(size) if i != c]
            total += np.sum((block[:, c] @ matrix[: len(block), others]) ** 2)
    return total


def across(rows, others, directions):
    """The noise that the other parts' rows [R, n] add to a part's."""
    return rows.shape[1] * np.sum(others**2) / directions**2


def test_the_models_derivatives_are_those_of_its_gradients(rng):
    one = client(rng)
    directions = rng.normal(size=(3, *one.inputs.shape))
    expected = np.sum(directions * one.gradients(), axis=-1)
    np.testing.assert_allclose(one.derivatives(directions), expected, rtol=1e-9, atol=1e-12)


# --- no bias ---------------------------------------------------------------------------------------------------------

UNBIASED = [
    *({"kind": kind, "per_example": own, "directions": 6, "head": "apart"} for kind in KINDS for own in (True, False)),
    {"kind": "normal", "directions": 16, "head": "joint"},
    {"kind": "orthogonal", "directions": 16, "head": "joint"},
    {"kind": "rademacher", "directions": 8, "head": "exact"},
]


def settings(**changes):
    return Training(batch=4, **changes)


@pytest.mark.parametrize("given", UNBIASED, ids=str)
def test_estimates_have_no_bias(rng, given):
    training, one = settings(**given), client(rng, examples=3)
    parts = one.parts[:-1] if training.head == "exact" else one.parts
    assert bias(estimates(one, training, (0, 1), rng), one, parts) < 1


@pytest.mark.parametrize("kind", KINDS)
def test_published_estimates_have_no_bias(rng, kind):
    """Rounded to halves, and read from a record by others."""
    training, one = settings(kind=kind, head="apart", directions=4, mode="iteration"), client(rng)
    seed = int(rng.integers(2**63))
    found = [
        one.flat(gradients(one.participant(training, (0, 1), seed, i), one.manifest, training, i)) for i in range(STEPS)
    ]
    assert bias(np.array(found), one, one.parts) < 1


@pytest.mark.parametrize("kind", ["normal", "rademacher"])
def test_a_bias_of_a_few_percent_would_be_seen(rng, kind):
    training, one = settings(kind=kind, head="apart", directions=64), client(rng, agree=True)
    found = estimates(one, training, (0, 1), rng)
    assert bias(found, one, one.parts) < 1 < min(bias(1.05 * found, one, one.parts), bias(0.95 * found, one, one.parts))


def test_directions_of_another_step_would_be_seen(rng):
    training, one = settings(head="apart", directions=16), client(rng)
    seed = int(rng.integers(2**63))
    reports = [one.report(training, (0, 1), seed, i) for i in range(200)]
    mixed = [one.flat(combine(report, later[1], one.manifest, training)) for (report, _), later in pairwise(reports)]
    assert bias(np.array(mixed), one, one.parts) > 1


@pytest.mark.parametrize("per_example", [False, True])
def test_the_whole_gradient_of_a_unit_has_no_noise_whatever_its_size(rng, per_example):
    """With half as many directions it does."""
    size = int(rng.integers(3, 20))
    one = client(rng, units=(size,), examples=3)
    wanted = settings(kind="orthogonal", per_example=per_example, directions=0)
    count = whole_gradient(one.manifest, (0,), wanted)
    assert count >= size
    for directions in (count, count // 2):
        (found,) = estimates(one, replace(wanted, directions=directions), (0,), rng, steps=1)
        units = slice(size)
        exact = np.allclose(found[units], one.truth()[units], rtol=1e-4, atol=1e-5)
        assert exact == (directions == count)


# --- noise -----------------------------------------------------------------------------------------------------------


def measured(one, training, rng, units=(0,), part=0):
    return noise(estimates(one, training, units, rng), one, one.parts[part])


def own(one, training, part=0):
    return within(one.rows(training)[:, one.parts[part]], training.kind, training.directions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 4, 12])
def test_noise_falls_with_directions(rng, kind, count):
    training, one = settings(kind=kind, per_example=False, directions=count), client(rng)
    square, left = np.sum(one.truth()[one.parts[0]] ** 2), count % 8
    expected = {
        "normal": 9 / count * square,
        "rademacher": 7 / count * square,
        "orthogonal": left * (8 - left) / count**2 * square,  # of the block that is not whole: (8 / K - 1) below 8
    }[kind]
    assert own(one, training) == pytest.approx(expected, abs=1e-12)
    assert surprise(measured(one, training, rng), expected) < 1


def test_noise_that_differs_from_the_formula_would_be_seen(rng):
    training, one = settings(kind="normal", per_example=False, directions=4), client(rng)
    found, expected = measured(one, training, rng), own(one, training)
    assert surprise(found, 1.6 * expected) > 1
    assert surprise(found, 0.6 * expected) > 1


@pytest.mark.parametrize(("size", "count"), [(6, 2), (6, 4), (5, 4), (12, 5), (7, 11)])
def test_noise_of_orthogonal_directions_for_sizes_between_powers_of_two(rng, size, count):
    """Never above that of fair signs where the rows are a power of two: weights leak into (size - 1) // K others."""
    training, one = settings(kind="orthogonal", per_example=False, directions=count), client(rng, (size,))
    expected = own(one, training)
    assert surprise(measured(one, training, rng), expected) < 1
    if count in (2, 4):
        assert expected <= (size - 1) // count * np.sum(one.truth()[one.parts[0]] ** 2) * (1 + 1e-9)


@pytest.mark.parametrize(("per_example", "count"), [(False, 8), (False, 16), (True, 2), (True, 4)])
def test_a_whole_block_of_orthogonal_directions_is_the_gradient(rng, per_example, count):
    """One block or two: of K directions, or of K for each of four examples that agree."""
    training = settings(kind="orthogonal", per_example=per_example, directions=count)
    one = client(rng, agree=per_example)
    for found in estimates(one, training, (0,), rng, steps=20):
        np.testing.assert_allclose(found[one.parts[0]], one.truth()[one.parts[0]], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", ["agree", "differ", "cancel"])
def test_noise_with_a_direction_for_each_example(rng, kind, examples):
    training, one = settings(kind=kind, directions=1), client(rng, **{} if examples == "differ" else {examples: True})
    expected = own(one, training)
    assert surprise(measured(one, training, rng), expected) < 1
    shared = own(one, settings(kind=kind, directions=1, per_example=False))
    if examples == "agree" and kind != "orthogonal":
        assert expected == pytest.approx(shared / 4)
    if examples == "agree" and kind == "orthogonal":
        assert expected == pytest.approx(shared / 7)  # four rows of eight: 8 / 4 - 1 in place of 8 / 1 - 1
    if examples == "cancel":
        assert expected > 0 == pytest.approx(shared)


@pytest.mark.parametrize("kind", KINDS)
def test_examples_that_fill_a_batch_up_add_no_noise(rng, kind):
    training, one = settings(kind=kind, directions=2), client(rng, examples=3)
    assert surprise(measured(one, training, rng), own(one, training)) < 1


# --- several parts, several clients ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_example", [True, False])
def test_noise_of_units_that_share_a_derivative(rng, kind, per_example):
    """Each unit, and the head where it is joint, adds what the others' gradients bring in."""
    training, one = settings(kind=kind, head="joint", directions=2, per_example=per_example), client(rng)
    found, rows = estimates(one, training, (0, 1), rng), one.rows(training)
    measured = np.stack([noise(found, one, part) for part in one.parts], axis=1)
    alone = [own(one, training, number) for number in range(3)]
    added = [across(rows[:, part], np.delete(rows, np.r_[part], axis=1), 2) for part in one.parts]
    assert surprise(measured, np.add(alone, added)) < 1
    assert surprise(measured.sum(axis=1), sum(alone)) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_derivative_apart_keeps_the_heads_noise_out(rng, kind):
    training, one = settings(kind=kind, head="apart", directions=2), client(rng)
    found = estimates(one, training, (0,), rng)
    for number in (0, 2):
        assert surprise(noise(found, one, one.parts[number]), own(one, training, number)) < 1


def by_epoch(clients, training, seeds, iteration):
    """Each client takes a step of its own and sends its weights; the server averages them."""
    manifest = clients[0].manifest
    start = {p.name: np.zeros(p.shape, np.float32) for p in manifest.units[0].parameters}
    mean = Mean(start)
    for one, seed in zip(clients, seeds, strict=True):
        update = dict(start)
        local_step(update, one.gradient(training, (0,), seed, iteration), {}, training, training.learning_rate)
        mean.add(update, one.examples)
    return mean.changes()


def by_iteration(clients, training, seeds, iteration):
    """Each client sends its scalars; whoever reads the record takes the step."""
    sent = tuple(one.participant(training, (0,), seed, iteration) for one, seed in zip(clients, seeds, strict=True))
    return changes(StepRecord(1, 1, iteration, sent), clients[0].manifest, training)


@pytest.mark.parametrize(
    ("together", "kind", "examples"),
    [
        (by_epoch, "normal", (4, 4, 4)),
        (by_epoch, "orthogonal", (4, 2, 1)),
        (by_iteration, "rademacher", (4, 4, 4)),
        (by_iteration, "normal", (4, 2, 1)),
    ],
)
def test_noise_falls_with_holders_of_a_unit(rng, together, kind, examples):
    training = settings(kind=kind, learning_rate=0.5)
    alike = client(rng, head=0, agree=True)
    clients = [Client(alike.manifest, alike.inputs, alike.labels, alike.weights, count) for count in examples]
    seeds = [int(seed) for seed in rng.integers(2**63, size=len(clients))]
    moved = np.array([alike.flat(together(clients, training, seeds, i)) for i in range(STEPS)]) / -0.5
    shares = np.array(examples) / sum(examples)
    expected = sum(share**2 * own(one, training) for share, one in zip(shares, clients, strict=True))
    if len(set(examples)) == 1:
        assert expected == pytest.approx(own(alike, training) / 3)
    assert bias(moved, alike, alike.parts[:1]) < 1
    assert surprise(noise(moved, alike, alike.parts[0]), expected) < 1
