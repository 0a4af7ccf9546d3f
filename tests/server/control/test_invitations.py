"""Tokens that come with the line and the picture that a device is let in by."""

import re

import pytest

from edge_client.keys import make, public_of
from edge_client.wire.invitation import invitation_in


def test_a_token_with_an_address_is_an_invitation(serving, database):
    with serving(**database) as server:
        key = public_of(make())
        wanted = {"label": "boards", "server": "https://spry.example:8000/", "key": key}
        made = server.call("POST", "/v1/tokens", 201, json=wanted).json()
        invited = invitation_in(made["invitation"])
        assert (invited.server, invited.token) == ("https://spry.example:8000", f"{made['token']}.{key}")
        assert re.match(r'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 \d+ \d+"', made["qr"])
        assert "<script" not in made["qr"]
        server.device("pi", invited.token)
        assert {"invitation", "qr"}.isdisjoint(server.call("GET", "/v1/tokens").json()[0])


def test_without_an_address_there_is_none(server):
    made = server.call("POST", "/v1/tokens", 201, json={}).json()
    assert (made["invitation"], made["qr"]) == (None, None)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"server": "spry.example"}, "is no address of a server"),
        ({"server": "ftp://spry.example"}, "is no address of a server"),
        ({"server": "https://a", "key": "short"}, "the publisher's key is invalid"),
        ({"key": "x" * 43 + "y"}, "body.key"),
        ({"server": "https://" + "a" * 300}, "body.server"),
    ],
)
def test_what_no_device_could_use_makes_no_token(server, wanted, told):
    assert told in server.call("POST", "/v1/tokens", 422, json=wanted).json()["detail"]
    assert server.call("GET", "/v1/tokens").json() == []
