"""Secure aggregation: is the sum exact when devices vanish at the worst moment, and what does it cost a device?

    python benchmarks/secagg.py

A hundred devices add updates of MiniLM's size (`--numbers`), and thirty of them vanish after they sent their masked
update, before they say another word: nothing of theirs is opened by themselves. The sum must be that of plain integers,
bit for bit. Prints what one device computes and sends beside its update, and what the server computes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_client import keys
from edge_client.sums.fixed import CLIP, HEAD, TOLD, UNITS, Parts, encoded, told, told_size
from edge_client.sums.member import About, Kept, Member, joined_size, parted
from edge_client.sums.messages import Survivors, set_of
from edge_client.sums.streams import KEY, TAG
from edge_client.wire.protocol import Report
from server.sums.arrangement import Arrangement, Entrant, arranged
from server.sums.opening import Total, is_enough, unmask

JOB, ROUND, LEAST, CAP = "job", 1, 3, 64
MINILM = 148_994
"""Numbers of a head of two classes; 12 units of LoRA of rank 1 have 9,216 more."""
UNIT, UNITS_OF_ALL = 768, 12


@dataclass
class Costs:
    """Of devices, summed."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sent: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    fetched: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Gathering:
    """Devices of a sum, and what a server tells them: everything but time and the network.

    Args:
        updates: of each device, the integers of its parts; devices with the same units are a team.
        secrets: of each device, its own key and what it draws; drawn where left out.
    """

    def __init__(self, updates: Sequence[Parts], secrets: Sequence[tuple[str, Kept]] | None = None) -> None:
        self.updates = updates
        self.costs = Costs()
        drawn = secrets or [(keys.make(), Kept()) for _ in updates]
        units = [tuple(sorted(part - UNITS for part in parts if part >= UNITS)) for parts in updates]
        self.members = [
            Member(About(JOB, ROUND, place, own, LEAST), key, kept, lambda _: None)
            for place, (own, (key, kept)) in enumerate(zip(units, drawn, strict=True))
        ]
        self.cards = [self._timed("card", member.card) for member in self.members]
        identities = [keys.decoded(keys.public_of(key), KEY) or b"" for key, _ in drawn]
        entrants = [Entrant(place, units[place], identities[place], card) for place, card in enumerate(self.cards)]
        self.arrangement: Arrangement = arranged(entrants, LEAST, CAP)
        self.shares: dict[int, bytes] = {}
        self.masked: dict[int, bytes] = {}
        self.vows: dict[int, bytes] = {}
        self.openings: dict[int, bytes] = {}

    def share(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.arrangement.roster(place).encoded(self.arrangement.entrants[place].identity)
            self.costs.fetched["roster"] += len(view)
            self.shares[place] = self._timed("shares", self.members[place].shares, view)

    def update(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.sharers(place)
            self.costs.fetched["shares"] += len(view)
            own = self.updates[place]
            self.masked[place] = self._timed(
                "update",
                self.members[place].update,
                view,
                lambda *_, own=own: {part: n.copy() for part, n in own.items()},
            )

    def vow(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.survivors(place) if place in self.arrangement.witnesses else b""
            self.costs.fetched["survivors"] += len(view)
            if (vow := self._timed("vow", self.members[place].vow, view)) is not None:
                self.vows[place] = vow

    def open(self, places: Sequence[int]) -> None:
        for place in places:
            view = self.survivors(place, with_vows=True)
            self.costs.fetched["vows"] += len(view)
            self.openings[place] = self._timed("opening", self.members[place].opening, view)

    def total(self) -> Parts:
        """What the server comes to."""
        total = Total()
        for place, data in self.masked.items():
            sizes = {part: values.size for part, values in self.updates[place].items()}
            total.add(parted(data[len(data) - joined_size(sizes) :], sizes))
        assert is_enough(self.arrangement, self.shares, self.openings)
        context = self.arrangement.context(JOB, ROUND)
        unmask(total.parts, self.arrangement, context, self.shares, self.masked, self.openings)
        return total.parts

    # --- what the server tells ---

    def sharers(self, place: int) -> bytes:
        return self.arrangement.sealed(place, self.shares).encoded()

    def survivors(self, place: int, *, with_vows: bool = False) -> bytes:
        mates = self.arrangement.mates
        tags: list[bytes] = []
        for mate in mates[place] if not with_vows or place not in self.vows else ():
            if mate in self.masked:
                at = [other for other in mates[mate] if other in self.shares].index(place)
                tags.append(self.masked[mate][TAG * at :][:TAG])
        numbered = [(n, self.vows[w]) for n, w in enumerate(self.arrangement.witnesses) if w in self.vows]
        enough = len(self.arrangement.witnesses) // 2 + 1
        return Survivors(set_of(self.masked), tuple(tags), tuple(numbered[:enough]) if with_vows else ()).encoded()

    def _timed(self, stage: str, work: Callable[..., Any], *args: Any) -> Any:
        started = time.thread_time()
        said = work(*args)
        self.costs.seconds[stage] += time.thread_time() - started
        self.costs.sent[stage] += len(said or b"")
        return said


def drawn(devices: int, numbers: int, rng: np.random.Generator) -> list[Parts]:
    """Updates of devices that all hold every unit."""
    found: list[Parts] = []
    for _ in range(devices):
        weighs = int(rng.integers(1, 1 << 16))
        parts: Parts = {
            part: encoded(rng.normal(0, CLIP / 8, size).astype(np.float32), weighs, devices)
            for part, size in [(HEAD, numbers), *((UNITS + unit, UNIT) for unit in range(UNITS_OF_ALL))]
        }
        report = Report(examples=int(rng.integers(1, 64)), steps=8, loss=float(rng.random()))
        found.append(parts | {TOLD: told(report, weighs, [])})
    return found


def run(devices: int, gone: int, numbers: int, seed: int) -> dict[str, Any]:
    """The figures of one sum; refuses one that is not exact."""
    updates = drawn(devices, numbers, np.random.default_rng(seed))
    every = list(range(devices))
    vanished = set(random.Random(seed).sample(every, gone))
    here = [place for place in every if place not in vanished]
    gathering = Gathering(updates)
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
        "server_s": server,
    }


def _plain(updates: Sequence[Parts], part: int) -> Any:
    total = updates[0][part].copy()
    for parts in updates[1:]:
        total += parts[part]
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--gone", type=int, default=30)
    parser.add_argument("--numbers", type=int, default=MINILM, help="of the head")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = run(options.devices, options.gone, options.numbers, options.seed)
    if options.json:
        print(json.dumps(found))
        return
    sent, fetched, spent = (sum(found[name].values()) for name in ("sent", "fetched", "device_ms"))
    print(f"{found['devices']} devices, {found['gone']} gone after their masked update: exact {found['exact']}")
    print(f"update {found['update_bytes']:,} bytes as it is; beside it {sent:,.0f} sent and {fetched:,.0f} fetched")
    print(f"a device computes for {spent:.1f} ms of CPU: {_words(found['device_ms'])}")
    print(f"sent: {_words(found['sent'])}; fetched: {_words(found['fetched'])}")
    print(f"the server opens the sum in {found['server_s']:.2f} s; reports are {told_size([])} numbers of 8 bytes")


def _words(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.1f}" for name, value in values.items())


if __name__ == "__main__":
    main()
