"""Writes sums.json: what devices compute that add updates in secret, for clients in other languages.

    python tests/vectors/make_sums.py

    streams   masks of a part from a seed (the first is RFC 8439, A.1, #1)
    pairs     what two devices derive from their keys: a mask's seed, pads of both ends, and a tag
    shamir    shares of secrets, through some that are given, and what the first is more than the last
    fixed     changes as integers, and their sum as a mean
    told      a report as integers
    round     three devices, from what they drew to the sum
    normal    normal numbers of a part from a secret
    private   three devices, each with its share of the noise
    teams     two of eight devices, of a team each, of which one vanished before its update and one behind it

Bytes are hexadecimal; 64-bit integers are strings, since not every JSON reader keeps them.
"""

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edge_client import keys
from edge_client.secagg import fixed
from edge_client.secagg.adding import HEAD_NAME, noisy, unit_name
from edge_client.secagg.fixed import HEAD, TOLD, UNITS, Parts
from edge_client.secagg.locks import End, Lock, point_of, scalar_of
from edge_client.secagg.member import Kept, joined
from edge_client.secagg.noise import Share, normal_of
from edge_client.secagg.shamir import WIDE, less, split, threshold
from edge_client.secagg.shamir import drawn as share_of
from edge_client.secagg.streams import mask_seed, public, stream
from edge_client.wire.protocol import Report
from tests.benchmarks import script

PATH = Path(__file__).parent / "sums.json"
secagg = script("secagg")


def some(name: str, size: int = 32) -> bytes:
    """Bytes that are the same in every run."""
    return hashlib.shake_256(name.encode()).digest(size)


def floats(name: str, size: int) -> np.ndarray:
    words = np.frombuffer(some(name, 4 * size), "<u4")
    return ((words / 2**31 - 1) * 2.2).astype(np.float32)  # some beyond the clip


REPORT = Report(
    examples=9, steps=3, loss=1.25, held_back=4, right_global=1, right_personal=3,
    sums_global={"f1": 0.5}, sums_personal={"f1": -2.75},
)  # fmt: skip


SHARE = Share(noise=1.5, clip=3.0, least=secagg.LEAST)


def vectors() -> dict:
    return {
        "streams": [_stream(bytes(32), 0, 64, np.uint8), *(_stream(some("s"), part, 5, np.uint32) for part in (0, 7)),
                    _stream(some("t"), 1, 3, np.uint64)],
        "pairs": [_pair(n) for n in range(3)],
        "shamir": [_shamir(n) for n in (3, 4, 10, 13)],
        "fixed": [_fixed(examples, cap, count) for examples, cap, count in ((1, 64, 3), (64, 64, 10), (900, 64, 4096))],
        "told": _told(),
        "normal": _normal(some("n"), 3, 9),
        "private": _round([(0,)] * 3, gone={}, shown=range(3), share=SHARE),
        "round": _round([(0,)] * 3, gone={}, shown=range(3)),
        "teams": _round([(0,)] * 4 + [(1, 2)] * 4, gone={3: "vow", 7: "update"}, shown=(0, 4)),
    }  # fmt: skip


def _stream(seed: bytes, part: int, size: int, kind: type) -> dict:
    numbers = stream(seed, part, size, kind)
    return {"seed": seed.hex(), "part": part, "bytes": numbers.tobytes().hex()}


def _pair(number: int) -> dict:
    context, seeds = some(f"context {number}"), [some(f"own {end} {number}") for end in range(2)]
    masks = [some(f"mask {end} {number}") for end in range(2)]
    identities = [keys.decoded(keys.public_of(keys.encoded(seed)), 32) or b"" for seed in seeds]
    units = [(), tuple(range(number))]
    ends = [End(identities[at], public(masks[at]), 300 * at, units[at]) for at in range(2)]
    here = Lock.between(seeds[0], masks[0], *ends, context)
    return {
        "own": [seed.hex() for seed in seeds],
        "scalars": [scalar_of(seed).hex() for seed in seeds],
        "points": [point_of(identity).hex() for identity in identities],
        "masks": [mask.hex() for mask in masks],
        "ends": [end.encoded().hex() for end in ends],
        "places": [end.place for end in ends],
        "units": [list(end.units) for end in ends],
        "context": context.hex(),
        "mask_seed": mask_seed(masks[0], ends[1].mask, context).hex(),
        "proof": here.proof.hex(),
        "pads": [[pad.hex() for pad in here.pads(own=own)] for own in (True, False)],
        "said": b"places".hex(),
        "tag": here.tag(b"places", own=True).hex(),
    }


def _shamir(members: int) -> dict:
    secret, points, needed = some(f"secret {members}"), list(range(1, members + 1)), threshold(members, 3)
    given = {point: share_of(some(f"wide {point}", WIDE)) for point in points[: needed - 1]}
    shares = split(secret, points, given)
    return {"secret": secret.hex(), "points": points, "needed": needed, "shares": [share.hex() for share in shares],
            "less": less(shares[0], shares[-1]).hex(),
            "wide": [some(f"wide {point}", WIDE).hex() for point in given]}  # fmt: skip


def _fixed(examples: int, cap: int, count: int) -> dict:
    change, weighs = floats(f"change {count}", 6), fixed.weight(examples, cap)
    words = fixed.encoded(change, weighs, count)
    mean, _ = fixed.decoded(words, count)
    return {"examples": examples, "cap": cap, "count": count, "change": [float(x) for x in change],
            "words": [int(word) for word in words], "mean": [float(x) for x in mean]}  # fmt: skip


def _told() -> dict:
    words = fixed.told(REPORT, 4321, ["f1"])
    return {"report": asdict(REPORT), "weight": 4321, "scores": ["f1"], "words": [str(int(word)) for word in words]}


def _normal(secret: bytes, part: int, size: int) -> dict:
    numbers = normal_of(stream(secret, part, size + size % 2, np.uint64))[:size]
    return {"secret": secret.hex(), "part": part, "numbers": [float(number) for number in numbers]}


def _round(
    units: list[tuple[int, ...]], *, gone: dict[int, str], shown: Iterable[int], share: Share | None = None
) -> dict:
    """Devices with these units and a head of two numbers; some say nothing from a stage on."""
    secrets = []
    for place in range(len(units)):
        key = keys.encoded(some(f"identity {place}"))
        kept = {name: some(f"{name} {place}").hex() for name in ("mask", "seed", "noise")}
        secrets.append((key, kept))
    updates = [_parts(place, own, len(units), share) for place, own in enumerate(units)]
    drawn = [(key, Kept(**{name: _base64(one) for name, one in kept.items()})) for key, kept in secrets]
    played = secagg.Gathering(updates, drawn, share.terms if share else b"")
    everyone = range(len(units))
    played.share(everyone)
    played.update([place for place in everyone if gone.get(place) != "update"])
    here = [place for place in everyone if place not in gone]
    played.vow(here)
    played.open(here)
    return {
        "job": secagg.JOB, "round": secagg.ROUND, "least": secagg.LEAST, "count": len(units),
        **({"cap": 1, "noise": share.noise, "clip": share.clip} if share else {"cap": secagg.CAP}),
        "devices": [_device(played, place, units[place], *secrets[place], updates[place]) for place in shown],
        "sum": joined(played.total()).hex(),
    }  # fmt: skip


def _parts(place: int, units: tuple[int, ...], count: int, share: Share | None) -> Parts:
    if share is not None:
        moved = {unit_name(unit): floats(f"unit {unit} {place}", 3 + unit) for unit in units}
        moved[HEAD_NAME] = floats(f"head {place}", 2)
        return noisy(moved, units, REPORT, share, some(f"noise {place}"), count, ["f1"])
    own = {UNITS + unit: fixed.encoded(floats(f"unit {unit} {place}", 3 + unit), 1 << 15, count) for unit in units}
    head = fixed.encoded(floats(f"head {place}", 2), 1 << 15, count)
    report = replace(REPORT, examples=secagg.CAP // 2)
    return {HEAD: head, TOLD: fixed.told(report, 1 << 15, ["f1"]), **own}


def _device(played, place: int, units: tuple[int, ...], key: str, kept: dict[str, str], parts: Parts) -> dict:
    """Return the device's draws, and the messages to it and from it; its weight is a half."""
    identity = played.arrangement.entrants[place].identity
    is_witness = place in played.arrangement.witnesses
    return {
        "place": place, "units": list(units), "identity": key, **kept,
        "head": _floats(f"head {place}", 2),
        "changes": [_floats(f"unit {unit} {place}", 3 + unit) for unit in units],
        "parts": joined(parts).hex(), "card": played.cards[place].hex(),
        "roster": played.arrangement.roster(place).encoded(identity).hex(), "shares": played.shares[place].hex(),
        "sharers": played.sharers().hex(), "update": played.masked[place].hex(),
        "survivors": played.survivors(place).hex() if is_witness else "", "vow": played.vows.get(place, b"").hex(),
        "vows": played.survivors(place, with_vows=True).hex(), "opening": played.openings[place].hex(),
    }  # fmt: skip


def _floats(name: str, size: int) -> list[float]:
    return [float(number) for number in floats(name, size)]


def _base64(text: str) -> str:
    import base64

    return base64.b64encode(bytes.fromhex(text)).decode()


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), separators=(",", ":")) + "\n")
