"""Secure aggregation: is the sum exact when devices vanish at the worst moment, and what does it cost a device?

    python benchmarks/secagg.py
    python benchmarks/secagg.py --failures 20000

A hundred devices add updates of MiniLM's size (`--numbers`), and thirty of them vanish after they sent their masked
update, before they say another word: nothing of theirs is opened by themselves. The sum must be that of plain integers,
bit for bit. Prints what one device computes and sends beside its update, and what the server computes. `--failures`
draws so many sets of devices that vanish, at random and at that moment, and prints how often a round would begin anew.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from edge_client import keys
from edge_client.secagg.fixed import CLIP, HEAD, TOLD, UNITS, Parts, encoded, told, told_size
from edge_client.secagg.member import About, Kept, Member, joined_size, parted
from edge_client.secagg.messages import Survivors, set_of
from edge_client.secagg.streams import KEY, TAG
from edge_client.wire.protocol import Report
from server.secagg.arrangement import Arrangement, Entrant, arranged
from server.secagg.opening import Total, is_enough, unmask

JOB, ROUND, LEAST, CAP = "job", 1, 3, 64
MINILM = 148_994
"""Numbers of a head of two classes; 12 units of LoRA of rank 1 have 9,216 more."""
UNIT, UNITS_OF_ALL = 768, 12


@dataclass
class Costs:
    """The costs of devices, summed."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    fetched: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    of_place: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes both ways."""


class Gathering:
    """Devices of a sum, and what a server tells them: everything but time and the network.

    Args:
        updates: of each device, the integers of its parts; devices with the same units are a team.
        secrets: of each device, its own key and what it draws; drawn where left out.
        terms: of the noise that is in the updates.
    """

    def __init__(
        self, updates: Sequence[Parts], secrets: Sequence[tuple[str, Kept]] | None = None, terms: bytes = b""
    ) -> None:
        self.updates = updates
        self.costs = Costs()
        drawn = secrets or [(keys.make(), Kept()) for _ in updates]
        units = [tuple(sorted(part - UNITS for part in parts if part >= UNITS)) for parts in updates]
        self.members = [
            Member(About(JOB, ROUND, place, own, LEAST, terms), key, kept, lambda _: None)
            for place, (own, (key, kept)) in enumerate(zip(units, drawn, strict=True))
        ]
        self.cards = [self._timed("card", place, member.card) for place, member in enumerate(self.members)]
        identities = [keys.decoded(keys.public_of(key), KEY) or b"" for key, _ in drawn]
        entrants = [Entrant(place, units[place], identities[place], card) for place, card in enumerate(self.cards)]
        self.arrangement: Arrangement = arranged(entrants, LEAST, 1 if terms else CAP, terms)
        self.shares: dict[int, bytes] = {}
        self.masked: dict[int, bytes] = {}
        self.vows: dict[int, bytes] = {}
        self.openings: dict[int, bytes] = {}

    def share(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.arrangement.roster(place).encoded(self.arrangement.entrants[place].identity)
            self._fetched("roster", place, view)
            self.shares[place] = self._timed("shares", place, self.members[place].shares, view)

    def update(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.sharers()
            self._fetched("shares", place, view)
            own = self.updates[place]
            self.masked[place] = self._timed(
                "update",
                place,
                self.members[place].update,
                view,
                partial(_copied, own),
            )

    def vow(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.survivors(place) if place in self.arrangement.witnesses else b""
            self._fetched("survivors", place, view)
            if (vow := self._timed("vow", place, self.members[place].vow, view)) is not None:
                self.vows[place] = vow

    def open(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.survivors(place, with_vows=True)
            self._fetched("vows", place, view)
            self.openings[place] = self._timed("opening", place, self.members[place].opening, view)

    def total(self) -> Parts:
        """The server's sum."""
        total = Total()
        for place, data in self.masked.items():
            sizes = {part: values.size for part, values in self.updates[place].items()}
            total.add(parted(data[len(data) - joined_size(sizes) :], sizes))
        assert is_enough(self.arrangement, self.shares, self.openings)
        context = self.arrangement.context(JOB, ROUND)
        unmask(total.parts, self.arrangement, context, self.shares, self.masked, self.openings)
        return total.parts

    # --- what the server tells ---

    def sharers(self) -> bytes:
        return set_of(self.shares)

    def survivors(self, place: int, *, with_vows: bool = False) -> bytes:
        peers = self.arrangement.peers
        tags: list[bytes] = []
        for peer in peers(place) if not with_vows or place not in self.vows else ():
            if peer in self.masked:
                at = [other for other in peers(peer) if other in self.shares].index(place)
                tags.append(self.masked[peer][TAG * at :][:TAG])
        numbered = [(n, self.vows[w]) for n, w in enumerate(self.arrangement.witnesses) if w in self.vows]
        vows = tuple(numbered[: self.arrangement.quorum]) if with_vows else ()
        return Survivors(set_of(self.masked), tuple(tags), vows).encoded()

    def _fetched(self, stage: str, place: int, view: bytes) -> None:
        self.costs.fetched[stage] += len(view)
        self.costs.of_place[place] += len(view)

    def _timed(self, stage: str, place: int, work: Callable[..., Any], *args: Any) -> Any:
        started = time.thread_time()
        said = work(*args)
        self.costs.seconds[stage] += time.thread_time() - started
        self.costs.sent[stage] += len(said or b"")
        self.costs.of_place[place] += len(said or b"")
        return said


def drawn(devices: int, numbers: int, rng: np.random.Generator) -> list[Parts]:
    """Updates of devices that all hold every unit."""
    updates: list[Parts] = []
    for _ in range(devices):
        weighs = int(rng.integers(1, 1 << 16))
        parts: Parts = {
            part: encoded(rng.normal(0, CLIP / 8, size).astype(np.float32), weighs, devices)
            for part, size in [(HEAD, numbers), *((UNITS + unit, UNIT) for unit in range(UNITS_OF_ALL))]
        }
        report = Report(examples=int(rng.integers(1, 64)), steps=8, loss=float(rng.random()))
        updates.append(parts | {TOLD: told(report, weighs, [])})
    return updates


def run(devices: int, gone: int, numbers: int, seed: int) -> dict[str, Any]:
    """The figures of one sum; refuses one that is not exact."""
    updates = drawn(devices, numbers, np.random.default_rng(seed))
    every = list(range(devices))
    vanished = set(random.Random(seed).sample(every, gone))
    here = [place for place in every if place not in vanished]
    gathering = Gathering(updates, [_secrets(random.Random(f"{seed} {place}")) for place in every])
    gathering.share(every)
    gathering.update(every)
    gathering.vow(here)
    gathering.open(here)
    started = time.thread_time()
    total = gathering.total()
    server = time.thread_time() - started
    exact = all((total[part] == _plain(updates, part)).all() for part in total)
    plain = 4 * (numbers + UNIT * UNITS_OF_ALL)
    masked = gathering.costs.sent.pop("update") / devices
    return {
        "devices": devices,
        "gone": gone,
        "exact": exact,
        "device_ms": {stage: 1000 * spent / devices for stage, spent in gathering.costs.seconds.items()},
        "update_bytes": plain,
        "masked_bytes": masked,
        "sent": {stage: size / devices for stage, size in gathering.costs.sent.items()} | {"update": masked - plain},
        "fetched": {stage: size / devices for stage, size in gathering.costs.fetched.items()},
        "staying": sum(gathering.costs.of_place[place] for place in here) / len(here) - plain,
        "server_s": server,
    }


def failures(devices: int, gone: int, draws: int, seed: int) -> dict[str, float]:
    """Compute the share of rounds that cannot be opened if so many vanish after their update."""
    rng = random.Random(seed)
    every = range(devices)
    entrants = [Entrant(place, (0,), rng.randbytes(KEY), rng.randbytes(KEY)) for place in every]
    arrangement = arranged(entrants, LEAST, CAP)
    few = {"openings": 0, "witnesses": 0, "either": 0}
    for _ in range(draws):
        here = set(every).difference(rng.sample(every, gone))
        opened = is_enough(arrangement, every, here)
        vowed = len(here.intersection(arrangement.witnesses)) >= arrangement.quorum
        few["openings"] += not opened
        few["witnesses"] += not vowed
        few["either"] += not (opened and vowed)
    return {reason: count / draws for reason, count in few.items()}


def _secrets(rng: random.Random) -> tuple[str, Kept]:
    """The same in each run of a seed: who stands beside whom, and whether a round fails, follows from keys."""
    mask, own = (base64.b64encode(rng.randbytes(KEY)).decode() for _ in range(2))
    return keys.encoded(rng.randbytes(KEY)), Kept(mask, own)


def _copied(own: Parts, _count: int, _cap: int) -> Parts:
    return {part: numbers.copy() for part, numbers in own.items()}


def _plain(updates: Sequence[Parts], part: int) -> Any:
    total: Any = updates[0][part].copy()
    for parts in updates[1:]:
        total += parts[part]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--gone", type=int, default=30)
    parser.add_argument("--numbers", type=int, default=MINILM, help="of the head")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=int, default=0, help="draw so many sets of devices that vanish")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.failures:
        shares = failures(options.devices, options.gone, options.failures, options.seed)
        print(json.dumps(shares) if options.json else f"rounds that fail for too few: {_words(shares, 4)}")
        return
    figures = run(options.devices, options.gone, options.numbers, options.seed)
    if options.json:
        print(json.dumps(figures))
        return
    sent, fetched, spent = (sum(figures[name].values()) for name in ("sent", "fetched", "device_ms"))
    print(f"{figures['devices']} devices, {figures['gone']} gone after their masked update: exact {figures['exact']}")
    print(f"update {figures['update_bytes']:,} bytes as it is; beside it {sent:,.0f} sent and {fetched:,.0f} fetched")
    print(f"both ways {sent + fetched:,.0f} a device, and {figures['staying']:,.0f} one that stays to the end")
    print(f"a device computes for {spent:.1f} ms of CPU: {_words(figures['device_ms'])}")
    print(f"sent: {_words(figures['sent'])}; fetched: {_words(figures['fetched'])}")
    print(f"the server opens the sum in {figures['server_s']:.2f} s; reports are {told_size([])} numbers of 8 bytes")


def _words(values: dict[str, float], digits: int = 1) -> str:
    return ", ".join(f"{name} {value:,.{digits}f}" for name, value in values.items())


if __name__ == "__main__":
    main()
