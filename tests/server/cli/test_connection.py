"""An administrator's connection, to a server that goes away and comes back."""

import json

import httpx
import pytest

from server.cli import connection
from server.cli.connection import Access, AdminError, Administrator, NoAnswer


class Broken(httpx.SyncByteStream):
    """Events, and then the connection is gone."""

    def __init__(self, *states: str) -> None:
        self.states = states

    def __iter__(self):
        yield from events(*self.states)
        raise httpx.ReadError("connection reset by peer")


def events(*states: str) -> list[bytes]:
    return [f"event: job\ndata: {json.dumps({'state': state})}\n\n".encode() for state in states]


def administrator(*answers) -> Administrator:
    """One whose requests are answered one by one, and then no more."""
    coming = iter(answers)

    def answer(_request: httpx.Request) -> httpx.Response:
        one = next(coming, httpx.ConnectError("connection refused"))
        if isinstance(one, Exception):
            raise one
        return one

    return Administrator(Access(token="t"), transport=httpx.MockTransport(answer))


def states(follower: Administrator, away: list) -> list[str]:
    return [standing["state"] for standing in follower.followed("news", lambda: away.append(None))]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(connection, "_PAUSE", 0.0)


def test_a_server_that_starts_again_is_waited_for():
    away = []
    follower = administrator(
        httpx.Response(200, stream=Broken("running", "running")),
        httpx.ConnectError("connection refused"),
        httpx.Response(502),
        httpx.Response(200, content=b"".join(events("running"))),  # it closes the connection when it is stopped
        httpx.ConnectError("connection refused"),
        httpx.Response(200, content=b"".join(events("running", "ended"))),
    )
    assert states(follower, away) == ["running", "running", "running", "running", "ended"]
    assert len(away) == 2


def test_one_that_was_never_there_is_not():
    with pytest.raises(NoAnswer, match="no answer from"):
        states(administrator(), away := [])
    assert away == []


def test_one_that_stays_away_is_waited_for_some_minutes(monkeypatch):
    monkeypatch.setattr(connection, "_AWAY", 0.05)
    away = []
    with pytest.raises(NoAnswer, match="no answer from"):
        states(administrator(httpx.Response(200, stream=Broken("running"))), away)
    assert len(away) == 1


def test_what_a_server_refuses_is_not_waited_for():
    gone = httpx.Response(404, json={"code": "unknown", "detail": "there is no job 'news'"})
    with pytest.raises(AdminError, match="there is no job") as refused:
        states(administrator(httpx.Response(200, stream=Broken("running")), gone), [])
    assert not isinstance(refused.value, NoAnswer)
