"""Noise that devices add themselves, where a job has a privacy budget and adds updates in secret.

The server adds none, and sees none without: each device lays its share (`edge_client.secagg.noise`) on what it sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from edge_client.bundle.manifest import Manifest
from edge_client.secagg.fixed import HEAD, UNITS
from edge_client.secagg.noise import ROOM, Share
from server.errors import SettingsError
from server.jobs.settings import JobSettings
from server.privacy.accountant import epsilon_of


def share_of(settings: JobSettings) -> Share | None:
    """Give each device's share of a sum's noise; None where the server adds the noise, or nobody does."""
    if not (settings.is_private and settings.secure_aggregation):
        return None
    assert settings.privacy_noise is not None  # it was settled
    return Share(settings.privacy_noise, settings.privacy_clip, settings.min_holders)


def check_rounding(settings: JobSettings, manifest: Manifest) -> None:
    """Refuse a job in which roundings reveal more than the noise that is drawn beyond what is counted pays for."""
    if (share := share_of(settings)) is None:
        return
    times, delta = settings.privacy_times or settings.rounds, settings.privacy_delta
    numbers = _most_numbers(settings, manifest)
    saved = epsilon_of(share.noise, delta, times) - epsilon_of((1 + ROOM) * share.noise, delta, times)
    told = times * share.rounding(settings.invited, numbers)
    if told > saved:
        raise SettingsError(
            f"the integers of {settings.invited} devices are too coarse for updates of {numbers} numbers: rounding "
            f"costs {told:.2g} of epsilon, and the devices' noise pays for {saved:.2g}; lower per_round or min_holders"
        )


def _most_numbers(settings: JobSettings, manifest: Manifest) -> int:
    """Count the numbers that one device adds, at most."""
    head = sum(parameter.size for parameter in manifest.head)
    slots = settings.slots(manifest, settings.invited)
    return head + max(sum(manifest.units[unit].size for unit in slot.units) for slot in slots)


def wanted_in_sum(settings: JobSettings, manifest: Manifest) -> Mapping[int, int]:
    """Count the devices that a round wants for each part of a sum; as with the server's noise, its mean is by them."""
    slots = settings.slots(manifest, settings.per_round)
    return Counter({HEAD: len(slots)}) + Counter(UNITS + unit for slot in slots for unit in slot.units)
