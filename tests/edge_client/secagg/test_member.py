"""Sums of devices that vanish, and of a server that lies: it gets the exact sum, or nothing."""

from dataclasses import replace

import numpy as np
import pytest

from edge_client import keys
from edge_client.errors import BadAnswer, SpryError, TrainingError
from edge_client.secagg.fixed import HEAD, TOLD, UNITS, Parts
from edge_client.secagg.member import About, Kept, Member
from edge_client.secagg.messages import (
    DEALT,
    FORMAT,
    Roster,
    Survivors,
    View,
    places_in,
    require_known,
    set_of,
    signed_vow,
)
from edge_client.secagg.quorum import WITNESSES, quorum
from edge_client.secagg.shamir import SHARE
from edge_client.secagg.streams import mask_seed, public
from server.secagg.opening import Unopened, is_enough, unmask
from tests.benchmarks import script

secagg = script("secagg")
UNIT_SETS = ((0, 1), (2,))


def drawn(devices: int, sets=UNIT_SETS[:1]) -> list[Parts]:
    """Whatever numbers: sums are exact whether they mean anything or not."""
    rng = np.random.default_rng()

    def words(size, kind):
        return rng.integers(0, np.iinfo(kind).max, size, kind, endpoint=True)

    return [
        {TOLD: words(11, np.uint64), HEAD: words(37, np.uint32)}
        | {UNITS + unit: words(5 + unit, np.uint32) for unit in sets[device % len(sets)]}
        for device in range(devices)
    ]


def plain(updates, places):
    total: Parts = {}
    for place in places:
        for part, values in updates[place].items():
            total[part] = total[part] + values if part in total else values
    return total


def check(found, expected):
    assert found.keys() == expected.keys()
    for part, values in expected.items():
        np.testing.assert_array_equal(found[part], values)


@pytest.mark.parametrize(("devices", "sets"), [(3, 1), (4, 1), (10, 1), (10, 2), (40, 1), (40, 2)])
def test_the_sum_is_exact_whenever_devices_vanish(devices, sets):
    """Before shares, before updates, and before the end: whoever sent an update is in the sum."""
    updates = drawn(devices, UNIT_SETS[:sets])
    gathering = secagg.Gathering(updates)
    every = list(range(devices))
    gone = every[: min(4, 3 * devices // 10)]
    silent, late, last = (gone[:1], gone[1:2], gone[2:])
    gathering.share([place for place in every if place not in silent])
    sent = [place for place in every if place not in [*silent, *late]]
    gathering.update(sent)
    here = [place for place in sent if place not in last]
    gathering.vow(here)
    gathering.open(here)
    check(gathering.total(), plain(updates, sent))


def test_thirty_of_a_hundred_vanish_at_the_worst_moment():
    found = secagg.run(devices=100, gone=30, numbers=50, seed=3)
    assert found["exact"]
    assert sum(found["sent"].values()) + sum(found["fetched"].values()) <= 4096
    ten = secagg.run(devices=10, gone=3, numbers=50, seed=3)
    assert sum(ten["sent"].values()) + sum(ten["fetched"].values()) <= 4096
    assert sum(found["device_ms"].values()) < 50


def test_what_the_server_stores_of_one_device_is_uniform():
    """Bytes' frequencies (chi-square of 255 degrees, beyond 400 once in 10^8), and each bit's; plain data fail both."""
    updates = [
        {TOLD: np.zeros(11, np.uint64), HEAD: np.zeros(60_000, np.uint32), UNITS: np.zeros(9, np.uint32)}
        for _ in range(3)
    ]
    gathering = secagg.Gathering(updates)
    gathering.share(range(3))
    gathering.update(range(3))

    def looks_uniform(data):
        values = np.frombuffer(data, np.uint8)
        counts = np.bincount(values, minlength=256)
        expected = len(values) / 256
        chi_square = ((counts - expected) ** 2 / expected).sum()
        shares = np.unpackbits(values.reshape(-1, 1), axis=1).mean(0)
        return chi_square < 400 and (abs(shares - 0.5) < 6 * 0.5 / len(values) ** 0.5).all()

    for masked in gathering.masked.values():
        assert looks_uniform(masked)
    assert not looks_uniform(updates[0][HEAD].tobytes())
    assert not looks_uniform(gathering.shares[0] * 200), "repetitions"
    changes = np.random.default_rng().normal(0, 0.1, 60_000).astype(np.float32)
    assert not looks_uniform(changes.tobytes())
    apart = np.frombuffer(gathering.masked[0], np.uint8) == np.frombuffer(gathering.masked[1], np.uint8)
    assert apart.mean() == pytest.approx(1 / 256, abs=1e-3)


# --- a server that lies ----------------------------------------------------------------------------------------------


@pytest.fixture
def four():
    """Four devices that wait for the roster."""
    return secagg.Gathering(drawn(4))


def roster_of(gathering, place, **changed):
    own = gathering.arrangement.entrants[place].identity
    return replace(gathering.arrangement.roster(place), **changed).encoded(own)


def test_sums_of_fewer_than_three_are_helped_by_nobody():
    with pytest.raises(SpryError, match="would open sums of 2 devices"):
        Member(About("job", 1, 0, (0,), 2), "", Kept(), lambda _: None)


def test_a_roster_of_too_few_is_refused(four):
    peers = four.arrangement.roster(0).peers
    with pytest.raises(SpryError, match="2 of this device's team take part; a sum needs at least 3"):
        four.members[0].shares(roster_of(four, 0, peers=peers[:1]))


def test_a_roster_that_repeats_a_key_is_refused(four):
    first, second, third = four.arrangement.roster(0).peers
    for peers in ((first, first, third), (first, replace(second, mask=first.mask), third),
                  (first, replace(second, identity=first.identity), third),
                  (first, second, replace(third, mask=four.cards[0]))):  # fmt: skip
        with pytest.raises(SpryError, match="a key or slot belongs to two devices"):
            four.members[0].shares(roster_of(four, 0, peers=peers))


@pytest.mark.parametrize("swapped", [1, 3])
def test_keys_that_are_not_their_devices_open_nothing(four, swapped):
    """The server gives device 0 keys of its own for others': it knows their masks, and nobody opens the last one."""
    own = [np.random.default_rng().bytes(32) for _ in range(swapped)]
    known = four.arrangement.roster(0).peers
    theirs = [replace(peer, mask=public(secret)) for peer, secret in zip(known[:swapped], own, strict=True)]
    peers = (*theirs, *known[swapped:])
    four.shares[0] = four.members[0].shares(roster_of(four, 0, peers=peers))
    four.share([1, 2, 3])
    four.update(range(4))
    for place in range(swapped + 1):
        with pytest.raises(SpryError, match=r"slot \d got other keys or shares"):
            four.members[place].vow(four.survivors(place))
    liar, one = four.members[0], four.members[1]
    assert one._lock_with(one._mates[0]).pads(own=False) != liar._lock_with(peers[0]).pads(own=True), "if all told them"
    theirs_too = mask_seed(own[0], four.cards[0], liar.context)
    assert theirs_too == mask_seed(liar._mask, peers[0].mask, liar.context), "the mask the server has"


def test_another_minimum_than_the_tasks_is_refused(four):
    with pytest.raises(SpryError, match="would open sums of 2 devices, where its task named 3"):
        four.members[0].shares(roster_of(four, 0, least=2))


def test_a_second_roster_of_a_round_is_refused(four):
    four.share([0])
    with pytest.raises(SpryError, match="the server sent another roster of the same round before"):
        four.members[0].shares(roster_of(four, 0, cap=7))
    assert four.members[0].shares(roster_of(four, 0)) == four.shares[0], "the same again is answered the same"


def test_devices_that_were_told_different_rosters_cannot_read_each_other(four):
    four.share([0, 1, 2])
    four.shares[3] = four.members[3].shares(roster_of(four, 3, cap=1))
    four.update(range(4))
    with pytest.raises(SpryError, match="slot 3 got other keys or shares"):
        four.members[1].vow(four.survivors(1))


def test_of_a_device_that_was_told_another_roster_and_vanished_nothing_is_opened(four):
    four.share([0, 1, 2])
    four.shares[3] = four.members[3].shares(roster_of(four, 3, cap=1))
    four.update([0, 1, 2])
    four.vow([0, 1, 2])
    four.open([0, 1, 2])
    with pytest.raises(Unopened, match="the shares of place 3 are of another key"):
        four.total()


def test_devices_that_know_each_other_by_other_units_or_places_cannot_read_each_other(four):
    first, *others = four.arrangement.roster(0).peers
    four.shares[0] = four.members[0].shares(roster_of(four, 0, peers=(replace(first, place=9), *others)))
    four.share([1, 2, 3])
    four.update([1, 2, 3])
    one, said = four.members[1], four.sharers()
    as_told, as_it_is = (four.members[0]._lock_with(peer) for peer in (replace(first, place=9), first))
    assert as_told.tag(said, own=True) != one._lock_with(one._mates[0]).tag(said, own=False)
    assert as_it_is.tag(said, own=True) == one._lock_with(one._mates[0]).tag(said, own=False)


def test_a_second_set_of_sharers_is_refused(four):
    four.share(range(4))
    four.update([0])
    with pytest.raises(SpryError, match="the server sent another sharers of the same round before"):
        four.members[0].update(set_of([0, 1, 2]), lambda *_: four.updates[0])
    with pytest.raises(SpryError, match="2 of this device's team shared"):
        four.members[1].update(set_of([1, 2]), lambda *_: four.updates[1])
    for places in ([0, 1, 3], range(5)):
        with pytest.raises(SpryError, match="the devices with shares are not those of the roster"):
            four.members[2].update(set_of(places), lambda *_: four.updates[2])


def test_devices_that_masked_with_others_are_found_out(four):
    """The server told one device of fewer sharers, whose masks it can then take off."""
    four.share(range(4))
    four.masked[0] = four.members[0].update(
        set_of([0, 1, 2]), lambda *_: {part: n.copy() for part, n in four.updates[0].items()}
    )
    four.update([1, 2, 3])
    with pytest.raises(SpryError, match="slot 0 got other keys or shares"):
        four.vow([1])


def ready(gathering):
    gathering.share(range(4))
    gathering.update(range(4))
    return gathering


def changed(view, **values):
    return Survivors.decoded(view)._replace(**values).encoded()


def told_survivors(gathering, places, place):
    """As if only these had sent an update."""
    known, gathering.masked = gathering.masked, {one: gathering.masked[one] for one in places}
    view = gathering.survivors(place)
    gathering.masked = known
    return view


def test_too_few_survivors_are_refused(four):
    ready(four)
    with pytest.raises(SpryError, match="2 of this device's team are in the sum"):
        four.members[0].vow(told_survivors(four, [0, 1], 0))


def test_a_second_set_of_survivors_is_refused(four):
    """Else the server would be told both secrets of the device that it says vanished."""
    ready(four)
    four.vow(range(4))
    lie = told_survivors(four, [0, 1, 2], 0)
    with pytest.raises(SpryError, match="the server sent another survivors of the same round before"):
        four.members[0].vow(lie)
    with pytest.raises(SpryError, match="the server sent another survivors of the same round before"):
        four.members[0].opening(lie)


def test_a_device_opens_one_secret_of_each_other():
    gathering = secagg.Gathering(drawn(5))
    gathering.share(range(5))
    gathering.update([0, 1, 2, 3])
    gathering.vow([0, 1, 2, 3])
    gathering.open([0, 1, 2])
    assert {len(opening) for opening in gathering.openings.values()} == {5 * SHARE}
    again = gathering.members[0].opening(gathering.survivors(0, with_vows=True))
    assert again == gathering.openings[0]


def test_what_no_majority_of_witnesses_signed_is_not_opened(four):
    ready(four)
    four.vow([0, 1])
    view = four.survivors(2, with_vows=True)
    with pytest.raises(SpryError, match="2 of 4 witnesses signed this sum, 3 must have"):
        four.members[2].opening(view)
    one, other = Survivors.decoded(view).vows
    silent = next(number for number in range(4) if number not in (one[0], other[0]))
    for vows in ((one, other, (silent, other[1])), (one, other, (9, other[1]))):
        with pytest.raises(SpryError, match="witnesses signed this sum"):
            four.members[2].opening(changed(view, vows=vows))
    four.vow([3])
    four.open([2])


def test_what_team_mates_said_cannot_be_kept_from_a_device_that_has_not_heard_it(four):
    """A witness that has is told of who is in the sum without it."""
    ready(four)
    four.vow([0, 1, 2])
    view = four.survivors(2, with_vows=True)
    assert not Survivors.decoded(view).tags
    four.members[2].opening(view)
    with pytest.raises(SpryError, match="messages of other devices are missing"):
        four.members[3].opening(changed(four.survivors(3, with_vows=True), tags=()))


def test_a_device_is_told_of_no_more_than_it_lacks():
    """Keys of witnesses that are its team-mates' or its own are not sent twice; shares that are pads are not sent."""
    gathering = secagg.Gathering(drawn(9))
    roster = gathering.arrangement.roster(0)
    assert len(roster.witnesses) == 9
    own = gathering.arrangement.entrants[0].identity
    assert len(roster.encoded(own)) == 13 + 8 * 66 + 2 + 9
    gathering.share(range(9))
    assert {len(said) for said in gathering.shares.values()} == {(8 - 2) * DEALT}


def test_two_halves_that_are_told_different_survivors_open_nothing():
    gathering = secagg.Gathering(drawn(8))
    gathering.share(range(8))
    gathering.update(range(8))
    for place in range(8):
        who = range(7) if place < 4 else range(1, 8)
        gathering.vows[place] = gathering.members[place].vow(told_survivors(gathering, who, place))
    for place in range(1, 7):
        who = range(7) if place < 4 else range(1, 8)
        said = [(at, gathering.vows[one]) for at, one in enumerate(gathering.arrangement.witnesses)]
        view = changed(told_survivors(gathering, who, place), vows=tuple(said[:6]))
        with pytest.raises(SpryError, match="witnesses signed this sum"):
            gathering.members[place].opening(view)


@pytest.mark.parametrize(("colluding", "opened"), [(3, False), (4, True)])
def test_four_of_ten_witnesses_must_lie_for_two_sums(colluding, opened):
    """As many devices as can be see one sum, the others another, and the liars sign both."""
    gathering = secagg.Gathering(drawn(10))
    gathering.share(range(10))
    gathering.update(range(10))
    numbers = {place: number for number, place in enumerate(gathering.arrangement.witnesses)}
    honest = range(10 - colluding)
    sets, halves = (range(10), range(1, 10)), (honest[::2], honest[1::2])
    for who, half, is_opened in zip(sets, halves, (True, opened), strict=True):
        vows = {place: gathering.members[place].vow(told_survivors(gathering, who, place)) for place in half}
        for place in range(10 - colluding, 10):
            liar = gathering.members[place]
            vows[place] = keys.sign(liar._key, signed_vow(liar.context, gathering.sharers(), set_of(who)))
        said = tuple(sorted((numbers[place], vow) for place, vow in vows.items()))
        view = changed(told_survivors(gathering, who, half[0]), vows=said)
        if is_opened:
            assert gathering.members[half[0]].opening(view)
        else:
            with pytest.raises(SpryError, match="6 of 10 witnesses signed this sum, 7 must have"):
                gathering.members[half[0]].opening(view)


def test_so_many_witnesses_must_lie_for_two_sums():
    """Two sums that a quorum signed have this many witnesses in common at least; three tenths may vanish."""
    both = {devices: 2 * quorum(min(devices, WITNESSES)) - min(devices, WITNESSES) for devices in range(3, 5000)}
    assert (both[3], both[4], both[5], both[10], both[20], both[100]) == (3, 2, 3, 4, 8, 4)
    assert all(common >= (4 if devices >= 10 else 2) for devices, common in both.items())
    assert all(devices - quorum(devices) == int(0.3 * devices + 1e-9) for devices in range(3, WITNESSES))


def test_too_few_or_other_witnesses_are_refused(four):
    few = four.arrangement.roster(0).witnesses[:2]
    with pytest.raises(SpryError, match="does not fit the devices in it"):
        four.members[0].shares(roster_of(four, 0, witnesses=few))
    with pytest.raises(SpryError, match="does not fit the devices in it"):
        four.members[0].shares(roster_of(four, 0, count=30))


def test_a_device_that_is_said_to_be_gone_says_nothing(four):
    ready(four)
    with pytest.raises(SpryError, match="the devices in the sum are not those with shares"):
        four.members[3].vow(changed(four.survivors(3), places=set_of([0, 1, 2])))


# --- a device that lies ----------------------------------------------------------------------------------------------


def test_shares_of_another_key_are_found_out():
    gathering = secagg.Gathering(drawn(4))
    gathering.share(range(4))
    gathering.update([0, 1, 2])
    gathering.vow([0, 1, 2])
    gathering.open([0, 1, 2])
    at = 3 * SHARE  # of place 3, which vanished
    broken = {place: opening[:at] + bytes(SHARE) for place, opening in gathering.openings.items()}
    total = {part: values.copy() for part, values in gathering.updates[0].items()}
    context = gathering.arrangement.context(secagg.JOB, secagg.ROUND)
    with pytest.raises(Unopened, match="of another key"):
        unmask(total, gathering.arrangement, context, gathering.shares, gathering.masked, broken)
    few = {0: gathering.openings[0]}
    assert not is_enough(gathering.arrangement, gathering.shares, few)
    with pytest.raises(Unopened, match="1 devices opened"):
        unmask(total, gathering.arrangement, context, gathering.shares, gathering.masked, few)


# --- what travels ----------------------------------------------------------------------------------------------------


def test_messages_read_as_they_were_written(four):
    roster = four.arrangement.roster(2)
    own = four.arrangement.entrants[2].identity
    assert Roster.decoded(roster.encoded(own), own) == roster
    ready(four)
    view = View("opening", 0.25, four.survivors(1, with_vows=True))
    assert View.decoded(view.encoded()) == view
    assert places_in(set_of([0, 9, 300])) == {0, 9, 300}
    whole = roster.encoded(own)
    for other in (whole[:-1], whole + b"x"):
        with pytest.raises(BadAnswer, match="the server's part of a sum is"):
            Roster.decoded(other, own)
    with pytest.raises(BadAnswer, match="a sum names a witness that does not exist"):
        Roster.decoded(whole[:-1] + bytes([99]), own)
    with pytest.raises(BadAnswer, match="at stage 77 of a sum"):
        View.decoded(bytes([77, 0, 0, 0, 0]))


def test_a_sum_of_another_format_is_refused():
    require_known(FORMAT)
    with pytest.raises(TrainingError, match=f"the sum is of format 2, this version of spry knows {FORMAT}: update"):
        require_known(2)
