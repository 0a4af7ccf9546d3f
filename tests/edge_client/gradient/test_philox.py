import json
import secrets
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client import DirectionError
from edge_client.gradient import philox as directions
from edge_client.gradient.philox import draw, philox
from edge_client.wire.protocol import DirectionKind

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "directions.json").read_text())
RANDOM123 = [
    ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        0x299F31D0_A4093822,
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
SIGMAS = 6.0  # of a statistic's own spread: one false alarm in 10**8 draws of a fresh seed

seeds = st.integers(0, 2**64 - 1)
words = st.integers(0, 2**32 - 1)
KINDS = get_args(DirectionKind)
kinds = st.sampled_from(KINDS)


def one(counter, key):
    return tuple(int(word[0]) for word in philox([np.array([value], dtype=np.uint64) for value in counter], key))


@pytest.fixture
def seed():
    value = secrets.randbits(64)
    print(f"seed = {value}")  # pytest shows it when the test fails
    return value


@pytest.mark.parametrize(("counter", "key", "expected"), RANDOM123)
def test_known_answers_of_random123(counter, key, expected):
    assert one(counter, key) == expected


@pytest.mark.parametrize("vector", VECTORS["philox4x32-10"])
def test_generator_vectors(vector):
    counter, key, out = ([int(word, 16) for word in vector[name]] for name in ("counter", "key", "out"))
    assert one(counter, key[0] | key[1] << 32) == tuple(out)


@pytest.mark.parametrize("vector", VECTORS["draws"], ids=lambda v: f"{v['kind']}-{v['seed']}")
def test_draw_vectors(vector):
    arguments = {name: value for name, value in vector.items() if name != "rows"} | {"seed": int(vector["seed"])}
    expected = np.array(vector["rows"], dtype=np.float32)
    drawn = draw(**arguments)
    assert drawn.dtype == np.float32
    assert drawn.shape == expected.shape
    if vector["kind"] == "normal":
        np.testing.assert_array_max_ulp(drawn, expected, maxulp=1)
    else:
        np.testing.assert_array_equal(drawn, expected)


@settings(deadline=None)
@given(seeds, words, st.integers(1, 300), st.integers(0, 1000), st.integers(1, 4), st.integers(1, 5), kinds, st.data())
def test_any_part_can_be_drawn_alone(seed, unit, size, iteration, count, batch, kind, data):
    whole = draw(seed, unit, size, iteration=iteration, directions=count, examples=batch, kind=kind)
    whole = whole.reshape(count, batch, size)
    chosen = data.draw(st.lists(st.integers(0, count - 1), max_size=5))
    examples = data.draw(st.lists(st.integers(0, batch - 1), max_size=5))
    length = size if kind == "orthogonal" else data.draw(st.integers(1, size))
    part = draw(seed, unit, length, iteration=iteration, directions=count, examples=examples, only=chosen, kind=kind)
    expected = whole[chosen][:, examples, :length].reshape(len(chosen) * len(examples), length)
    np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_do_not_depend_on_where_chunks_end(kind, seed):
    size = directions.CHUNK * directions.WEIGHTS_PER_COUNTER[kind] + 5
    whole = draw(seed, 2, size, examples=3, kind=kind)
    for example in range(3):
        np.testing.assert_array_equal(draw(seed, 2, size, examples=[example], kind=kind)[0], whole[example])


def test_indices_of_numpy_are_taken():
    examples = np.array([4, 2], dtype=np.int32)
    np.testing.assert_array_equal(
        draw(np.uint64(2**64 - 1), np.int64(1), 5, examples=examples), draw(2**64 - 1, 1, 5, examples=[4, 2])
    )
    assert draw(1, 1, 5, examples=np.int64(2)).shape == (2, 5)


def test_normal_values_follow_the_normal_distribution(seed):
    values = draw(seed, 0, 50_000, examples=10).astype(np.float64).ravel()
    root = np.sqrt(values.size)
    for power, moment, spread in ((1, 0, 1), (2, 1, np.sqrt(2)), (3, 0, np.sqrt(15)), (4, 3, np.sqrt(96))):
        assert abs((values**power).mean() - moment) < SIGMAS * spread / root
    for quantile, share in ((-1.959964, 0.025), (-0.6744898, 0.25), (0, 0.5), (1.2815516, 0.9), (2.3263479, 0.99)):
        assert abs((values < quantile).mean() - share) < SIGMAS * np.sqrt(share * (1 - share)) / root
    assert np.abs(values).max() < np.sqrt(2 * 33 * np.log(2)) + 1e-6  # the smallest uniform is 2**-33


@pytest.mark.parametrize("kind", ["rademacher", "orthogonal"])
def test_signs_are_fair(kind, seed):
    values = draw(seed, 0, 50_000, examples=10, kind=kind)
    assert set(np.unique(values)) == {-1.0, 1.0}
    assert np.abs(values.mean(axis=1)).max() < SIGMAS / np.sqrt(values.shape[1])


@given(seeds, st.integers(0, 7), st.integers(1, 8), st.integers(1, 40), st.integers(0, 9))
def test_rows_of_a_block_are_orthogonal(seed, power, count, batch, iteration):
    """Over directions and examples alike, a block being as many consecutive rows as there are weights."""
    size = 1 << power
    drawn = draw(seed, 1, size, iteration=iteration, directions=count, examples=batch, kind="orthogonal")
    in_order = drawn.reshape(count, batch, size).transpose(1, 0, 2).reshape(-1, size)  # number example * K + k
    for start in range(0, len(in_order), size):
        block = in_order[start : start + size]
        np.testing.assert_array_equal(block @ block.T, size * np.eye(len(block)))


@given(seeds, st.integers(1, 300), st.integers(0, 6))
def test_first_rows_part_weights_of_any_size(seed, size, power):
    """Two weights mix only where their indices agree modulo the number of rows, a power of two."""
    rows = min(1 << power, 1 << (size - 1).bit_length())
    drawn = draw(seed, 1, size, examples=rows, kind="orthogonal")
    same = np.equal.outer(np.arange(size) % rows, np.arange(size) % rows)
    np.testing.assert_array_equal(np.abs(drawn.T @ drawn), rows * same)


def test_blocks_and_iterations_have_signs_of_their_own(seed):
    size, rows = 64, 64
    found = [draw(seed, 1, size, iteration=i, examples=2 * rows, kind="orthogonal") for i in (0, 1)]
    signs = [block[0] for drawn in found for block in (drawn[:rows], drawn[rows:])]
    assert len({sign.tobytes() for sign in signs}) == 4


def test_a_large_unit_needs_no_matrix(seed):
    size = 100_003
    drawn = draw(seed, 0, size, directions=8, examples=[0, 16_383], kind="orthogonal")
    signs = draw(seed, 0, size, kind="orthogonal")[0]  # number 0 is the row of ones
    for k, example, row in ((3, 0, drawn[6]), (7, 16_383, drawn[15])):
        number, places = example * 8 + k, np.random.default_rng(seed).integers(size, size=1000)
        turned = [(-1) ** (number & int(i)).bit_count() for i in places]
        np.testing.assert_array_equal(row[places], signs[places] * turned)


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_of_the_counter_and_key_gives_an_independent_direction(kind, seed):
    size = 40_000
    changes = [
        {},
        {"seed": seed ^ 1},
        {"seed": seed ^ 1 << 63},
        {"unit": 8},
        {"iteration": 4},
        {"examples": [6]},
        {"directions": 2, "only": [1]},
    ]
    base = {"seed": seed, "unit": 7, "size": size, "iteration": 3, "examples": [5], "kind": kind}
    rows = np.concatenate([draw(**(base | change)) for change in changes]).astype(np.float64)
    apart = rows @ rows.T / size - np.diag((rows**2).mean(axis=1))
    assert np.abs(apart).max() < SIGMAS / np.sqrt(size)
    shifted = [(row[:-lag] * row[lag:]).mean() for row in rows for lag in (1, 2, 3, 4, 32, 128)]
    assert np.abs(shifted).max() < SIGMAS / np.sqrt(size - 128)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed must be from 0 to 18446744073709551615, got -1"),
        ({"seed": 2**64}, "seed must be"),
        ({"seed": 1.5}, "seed must be an integer, got 1.5"),
        ({"unit": 2**32}, "unit must be from 0 to 4294967295"),
        ({"size": 0}, "size must be from 1"),
        ({"iteration": -1}, "iteration must be"),
        ({"iteration": 2**31, "directions": 2}, "iteration must be from 0 to 2147483647"),
        ({"directions": 0}, "directions must be from 1"),
        ({"examples": 0}, "examples must be from 1"),
        ({"examples": [-1]}, "examples must be from 0"),
        ({"directions": 2, "only": [2]}, "only must be from 0 to 1, got 2"),
        ({"kind": "uniform"}, "kind must be one of normal, rademacher, orthogonal, got 'uniform'"),
        ({"kind": "orthogonal", "directions": 2, "examples": [2**31]}, "examples must be from 0 to 2147483647"),
    ],
)
def test_arguments_out_of_range_are_refused(change, message):
    with pytest.raises(DirectionError, match=message):
        draw(**({"seed": 1, "unit": 0, "size": 4} | change))
