"""Check-ins that are put off where a process has more to do than it can, and what rounds need that is taken."""

import asyncio

import pytest

from server.web.load import _MANY, _TURNS, _WAITING, Load


class Rate:
    """A rate that is wanted, and what is said of answers."""

    wanted = 20.0

    def __init__(self) -> None:
        self.took = lambda seconds: None


def test_far_more_check_ins_than_wanted_are_put_off_for_the_rest_of_a_second():
    async def second() -> list[bool]:
        load = Load(Rate())
        load._loop = type("Clock", (), {"time": staticmethod(lambda: 5.0)})
        taken = [load.takes() for _ in range(int(2 * _MANY * Rate.wanted))]
        load._loop.time = staticmethod(lambda: 6.0)
        taken.append(load.takes())
        load.close()
        return taken

    *taken, after = asyncio.run(second())
    assert taken == [True] * int(_MANY * Rate.wanted) + [False] * int(_MANY * Rate.wanted)
    assert after


def test_so_many_wait_for_their_turn_and_no_more():
    async def crowd() -> tuple[int, int]:
        load, over = Load(Rate()), asyncio.Event()
        looked, refused = [], []

        async def one() -> None:
            async with load.turn() as granted:
                (looked if granted else refused).append(1)
                if granted:
                    await over.wait()

        asking = [asyncio.create_task(one()) for _ in range(_WAITING + 5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        at_once = len(looked)
        over.set()
        await asyncio.gather(*asking)
        load.close()
        assert len(looked) == _WAITING
        return at_once, len(refused)

    assert asyncio.run(crowd()) == (_TURNS, 5)


@pytest.fixture
def busy(server, bundle_name):
    """A device with a task, one that waits, and a server that is late with all that arrives."""
    server.create_job(bundle_name, per_round=1, over_selection=1)
    server.advance()
    holder, waiting = server.device("holder"), server.device("waiting")
    task = holder.task()
    load = server.http.app.state.services.load
    load._next.cancel()
    load._late = 60.0
    return holder, task, waiting


def test_a_busy_server_puts_check_ins_off_and_takes_updates(server, busy):
    holder, task, waiting = busy
    answer = waiting.call("POST", "/v1/check-in", 503, json={"runtimes": ["onnx"]})
    assert answer.json()["code"] == "busy"
    assert 15 <= int(answer.headers["retry-after"]) <= 45
    assert holder.send(task, holder.update(task))["repeated"] is False


def test_a_crowd_is_told_to_come_again(server, busy):
    load, waiting = server.http.app.state.services.load, busy[2]
    load._late, load._waiting = 0.0, _WAITING
    server.http.app.state.services.store.roster._read = float("inf")
    waiting.check_in()  # known from now on
    server.store.turn += 1
    assert waiting.check_in() == {"task": None, "wait": pytest.approx(15, abs=15), "reason": "many devices are asking"}
