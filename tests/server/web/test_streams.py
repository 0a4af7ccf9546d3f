"""Many pages, one reading."""

import asyncio
import gc
import json

import pytest

from server.web.routes.events import Feed
from server.web.streams import _RECENT, Channel, News, ServerSentEvent


class Counting:
    """A feed that counts how often it is looked at."""

    def __init__(self, feed) -> None:
        self.feed, self.looks = feed, 0

    def news(self):
        self.looks += 1
        return self.feed.news()

    def all(self):
        return self.feed.all()


class Numbers:
    """News at every look."""

    def __init__(self) -> None:
        self.number = 0

    def news(self):
        self.number += 1
        return News(self.all())

    def all(self):
        return [ServerSentEvent("number", str(self.number))]


@pytest.fixture
def feed(server, bundle_name):
    job = server.create_job(bundle_name, per_round=2, over_selection=1)
    server.advance()
    return Feed(server.store, job["id"])


def told(news: News) -> dict[str, object]:
    return {event.name: json.loads(event.data) for event in news.events}


def test_two_hundred_pages_are_one_reading(feed):
    counting = Counting(feed)
    channel = Channel(counting, every=60)

    async def pages() -> list[tuple[int, News]]:
        return await asyncio.gather(*(channel.after(0) for _ in range(200)))

    heard = asyncio.run(pages())
    assert counting.looks == 1
    assert {number for number, _ in heard} == {1}
    assert all(set(told(news)) >= {"jobs", "devices", "rounds"} for _, news in heard)


def test_who_comes_later_is_told_everything_and_who_was_there_what_is_new(server, feed):
    async def heard() -> None:
        channel = Channel(feed, every=0)
        number, first = await channel.after(0)
        assert told(first)["devices"] == []
        server.device("pi")
        server.device("jetson")
        number, changed = await channel.after(number)
        assert set(told(changed)) == {"devices", "fleet"}
        _, later = await channel.after(0)
        assert set(told(later)) == set(told(first))
        assert {device["name"] for device in told(later)["devices"]} == {"pi", "jetson"}
        assert (await channel.after(number))[1].events == []

    asyncio.run(heard())


def test_who_is_far_behind_is_told_everything_again():
    async def heard() -> None:
        channel = Channel(Numbers(), every=0)
        number, _ = await channel.after(0)
        for _ in range(_RECENT - 1):
            await channel.after(number)
        assert [event.data for event in (await channel.after(number))[1].events] == [
            str(value) for value in range(2, _RECENT + 2)
        ]
        assert [event.data for event in (await channel.after(number))[1].events] == [str(_RECENT + 2)]

    asyncio.run(heard())


def test_what_was_shared_goes_with_the_last_page(server, feed):
    shared = server.http.app.state.services.shared
    channels = [Channel(feed, every=60)]
    shared["key"] = channels[0]
    assert list(shared) == ["key"]
    channels.clear()
    gc.collect()
    assert list(shared) == []
