"""Share fixtures among the tests of rounds."""

import itertools

import pytest

from tests.server.rounds.secrecy.test_summing import Device


@pytest.fixture
def devices(server, tmp_path):
    """Makes so many devices that add their updates in secret, each with another number."""
    counter = itertools.count()
    return lambda count: [Device(server, tmp_path / "homes", next(counter)) for _ in range(count)]
