"""The lists of slow tests name what there is."""

from pathlib import Path

import pytest

from tests.order import LONG, SLOW

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("place", sorted({*LONG, *SLOW}))
def test_a_place_of_slow_tests_is_there(place):
    assert list(ROOT.glob(f"{place}*")), f"{place} was moved: say so in tests/order.py"
