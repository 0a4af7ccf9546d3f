"""Invitations: one line with all that a device must know."""

import string
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import SpryError
from edge_client.keys import make, public_of
from edge_client.wire.invitation import Invitation, invitation_in

TOKENS = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=60)
SERVERS = st.from_regex(r"https?://[a-z0-9.-]{1,40}(:[0-9]{2,5})?(/[a-z /?&=%ü+]{0,20})?", fullmatch=True)


@given(SERVERS, TOKENS, st.booleans())
def test_what_is_written_is_read(server, token, is_signed):
    given = Invitation(server, f"{token}.{public_of(make())}" if is_signed else token)
    assert invitation_in(str(given)) == given
    assert str(given).isascii()
    assert "'" not in str(given)  # it stands in quotes on a command line


def test_it_reads_as_documented():
    key = public_of(make())
    text = str(Invitation("https://spry.example:8000", f"abc.{key}"))
    assert text == f"spry://join?server=https%3A%2F%2Fspry.example%3A8000&token=abc&key={key}"
    assert invitation_in(f" {text}&later=x ").token == f"abc.{key}"


@pytest.mark.parametrize(
    "text",
    ["", "abc", "https://spry.example", "spry://leave?server=a&token=b", "spry://join?server=a", "spry://join?token=b",
     "spry://join?" + urlencode({"server": "a", "token": "b" * 1000}), "spry:join?server=a&token=b"],
)  # fmt: skip
def test_what_is_none(text):
    with pytest.raises(SpryError, match="is no invitation: expected spry://join"):
        invitation_in(text)


def test_half_a_key():
    with pytest.raises(SpryError, match="is no public key; copy it again"):
        invitation_in("spry://join?server=https%3A%2F%2Fa&token=b&key=short")
