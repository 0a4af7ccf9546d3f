"""Turns of strangers for pages."""

import asyncio

from server.web.turns import PageTurns


def test_one_address_leaves_turns_to_others():
    async def take() -> None:
        turns = PageTurns()
        granted = [turns.take(("a", number), "a", known=False) for number in range(100)]
        held = [one for one in range(100) if granted[one] is None]
        assert 0 < len(held) < 50
        assert turns.take("b", "b", known=False) is None

        first, second = granted[len(held)], granted[len(held) + 1]
        turns.give_back("b")
        await asyncio.sleep(0)
        assert first is not None
        assert second is not None
        assert not first.done()
        turns.give_back(("a", held[0]))
        assert await first
        turns.give_back(("a", len(held) + 1))  # who leaves waits no more
        assert not await second

    asyncio.run(take())


def test_all_addresses_together_have_an_end():
    async def take() -> None:
        turns = PageTurns()
        granted = [turns.take(number, str(number), known=False) for number in range(1000)]
        held = sum(one is None for one in granted)
        assert held < 200
        for number in range(1000):
            turns.give_back(number)
        assert turns.take("again", "a", known=True) is None

    asyncio.run(take())
