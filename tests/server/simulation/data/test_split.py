import hashlib
import random
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import DataError
from server.simulation.data.split import Kinds, by_kind, by_mix, held_back

RNG = np.random.default_rng


def kinds_of(values, names=None):
    of = np.asarray(values, np.int64)
    return Kinds(tuple(names or map(str, range(int(of.max()) + 1))), of)


def mixes(kinds, shares):
    """Count each client's rows of each kind."""
    rows = (kinds.of[shares.of(client)] for client in range(len(shares)))
    return np.array([np.bincount(found, minlength=len(kinds.names)) for found in rows])


some_kinds = st.lists(st.integers(0, 6), min_size=2, max_size=200).map(kinds_of)
alphas = st.floats(-6, 6).map(lambda power: 10.0**power)


# --- by a mix ---


@given(some_kinds, st.data(), alphas, st.integers(0, 2**64 - 1))
def test_clients_have_equally_many_rows_and_none_twice(kinds, data, alpha, seed):
    clients = data.draw(st.integers(1, len(kinds.of) // 2))
    shares = by_mix(kinds, clients, alpha, seed)
    assert len(shares) == clients
    assert {len(shares.of(client)) for client in range(clients)} == {len(kinds.of) // clients}
    given_out = shares.rows.tolist()
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= set(range(len(kinds.of)))


def test_a_tiny_alpha_gives_clients_of_one_kind():
    seed = random.getrandbits(64)
    kinds = kinds_of(RNG(seed).integers(0, 4, 4000))
    found = mixes(kinds, by_mix(kinds, 100, 1e-6, seed))
    mixed = (found > 0).sum(axis=1) > 1
    assert mixed.sum() <= 4, seed  # three at which a kind runs dry; a mix of two kinds is rare, not impossible
    assert set(found[~mixed].argmax(axis=1)) == {0, 1, 2, 3}, seed


def test_a_large_alpha_gives_everyone_the_mix_of_all():
    seed = random.getrandbits(64)
    kinds = kinds_of(RNG(seed).choice(5, 9000, p=[0.4, 0.3, 0.2, 0.06, 0.04]))
    found = mixes(kinds, by_mix(kinds, 90, 1e6, seed))
    expected = np.bincount(kinds.of) / 90
    chi_square = ((found - expected) ** 2 / expected).sum(axis=1)
    assert chi_square.mean() < 0.3, seed  # of rows that are drawn one by one it is 4
    assert np.abs(found - expected)[:85].max() < 1.7, seed  # the last take what the others left


@pytest.mark.parametrize("alpha", [0.03, 0.1, 0.5, 1.0, 10.0])
def test_mixes_are_those_of_a_dirichlet_distribution(alpha):
    """Compared with numpy's own draws, for kinds of unequal size."""
    seed = random.getrandbits(64)
    rng = RNG(seed)
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    kinds = kinds_of(rng.choice(4, 120_000, p=shares))
    found = mixes(kinds, by_mix(kinds, 1000, alpha, seed))[:900] / 120  # the last take what the others left
    drawn = rng.dirichlet(alpha * 4 * shares, 20_000)
    assert found.max(axis=1).mean() == pytest.approx(drawn.max(axis=1).mean(), abs=0.03), seed
    assert found.mean(axis=0) == pytest.approx(shares, abs=0.09), seed
    assert found.std(axis=0) == pytest.approx(drawn.std(axis=0), rel=0.35), seed


def test_a_split_is_the_seeds():
    kinds = kinds_of(np.arange(1000) % 7)
    first = by_mix(kinds, 30, 0.3, 11)
    assert np.array_equal(first.rows, by_mix(kinds, 30, 0.3, 11).rows)
    assert not np.array_equal(first.rows, by_mix(kinds, 30, 0.3, 12).rows)
    assert not np.array_equal(first.rows, by_mix(kinds, 30, 0.4, 11).rows)
    # Pinned: a seed means the same split with every version of numpy.
    assert hashlib.sha256(first.rows.astype("<i8").tobytes()).hexdigest()[:16] == "5cf6ada6b502a926"


def test_ten_thousand_clients_are_quick_and_small():
    kinds = kinds_of(RNG(0).integers(0, 10, 20_000))
    started = time.process_time()
    by_mix(kinds, 10_000, 0.1, 3)
    assert time.process_time() - started < 4  # 0.5 s where nothing else runs
    tracemalloc.start()
    by_mix(kinds, 2000, 0.1, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20


@pytest.mark.parametrize("clients", [0, 51])
def test_too_few_rows(clients):
    with pytest.raises(DataError, match=rf"101 rows are enough for 1 to 50 clients, 2 rows each, not {clients}"):
        by_mix(kinds_of(np.arange(101) % 3), clients, 1.0, 0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1e-7, 1e7, float("nan"), float("inf")])
def test_an_alpha_out_of_range(alpha):
    with pytest.raises(DataError, match=r"alpha must be from 1e-06 to 1e\+06"):
        by_mix(kinds_of([0, 1, 0, 1]), 2, alpha, 0)


# --- by kind ---


def test_a_client_for_each_kind():
    kinds = kinds_of([2, 0, 1, 2, 0, 1, 2])
    shares = by_kind(kinds, 3, 0)
    assert [sorted(shares.of(client).tolist()) for client in range(3)] == [[1, 4], [2, 5], [0, 3, 6]]


def test_the_smallest_are_put_together():
    kinds = kinds_of([0] * 9 + [1] + [2] * 3 + [3] * 5 + [4] * 2)
    assert mixes(kinds, by_kind(kinds, 3, 0)).tolist() == [[9, 0, 0, 0, 0], [0, 1, 3, 0, 2], [0, 0, 0, 5, 0]]
    assert mixes(kinds, by_kind(kinds, 1, 0)).tolist() == [[9, 1, 3, 5, 2]]


@given(some_kinds, st.data(), st.integers(0, 2**64 - 1))
def test_a_natural_split_keeps_all_rows_and_each_kind_together(kinds, data, seed):
    present = len(set(kinds.of.tolist()))
    clients = data.draw(st.integers(1, present))
    try:
        shares = by_kind(kinds, clients, seed)
    except DataError as error:
        assert "has only one row" in str(error)  # noqa: PT017
        assert np.bincount(kinds.of)[np.unique(kinds.of)].min() == 1
        return
    assert sorted(shares.rows.tolist()) == list(range(len(kinds.of)))
    assert ((mixes(kinds, shares) > 0).sum(axis=0) <= 1).all()


def test_more_clients_than_kinds():
    with pytest.raises(DataError, match="the column has 2 different values, for 1 to 2 clients, not 3"):
        by_kind(kinds_of([0, 0, 3, 3]), 3, 0)


def test_a_kind_with_one_row():
    with pytest.raises(DataError, match=r"'Ann' has only one row, and a client needs 2: ask for fewer clients"):
        by_kind(kinds_of([0, 1, 1], ["Ann", "Bob"]), 2, 0)


# --- a client's own test ---


@given(some_kinds, st.floats(0.01, 0.99))
def test_what_is_held_back_has_the_clients_own_mix(kinds, share):
    rows = np.arange(len(kinds.of))
    train, test = held_back(rows, kinds, share)
    assert sorted([*train.tolist(), *test.tolist()]) == rows.tolist()
    assert len(test) == min(max(round(len(rows) * share), 1), len(rows) - 1)
    per_kind = np.bincount(kinds.of[test], minlength=len(kinds.names))
    expected = np.bincount(kinds.of) * len(test) / len(rows)
    assert (np.abs(per_kind - expected) < 1 + 1e-9).all()
