"""Quantities as people write and read them."""

import pytest

from edge_client.errors import SpryError
from edge_client.format import count, parse_bytes, shown, shown_lines, size


@pytest.mark.parametrize(
    ("text", "expected"), [("200MB", 200_000_000), ("1.5 gb", 1_500_000_000), ("256MiB", 256 << 20), ("1000", 1000)]
)
def test_amounts_of_memory(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "0MB", "5 apples", "5TBB", "nan"])
def test_what_is_no_amount(text):
    with pytest.raises(SpryError, match="must look like 200MB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (999_600, "1 M"), (1_234_567, "1.23 M")]
)
def test_numbers_have_three_digits(number, text):
    assert count(number) == text
    assert size(1_234) == "1.23 kB"


def test_what_steers_a_terminal_is_not_shown():
    assert shown("a\x1b[2Jb\u202ec\nd") == "a [2Jb c d"
    assert shown_lines("a\tb\x1b[31m\n\u2066c") == "a\tb [31m\n c"
