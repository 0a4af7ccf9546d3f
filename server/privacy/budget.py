"""A job's privacy settings, settled before it starts: its noise, and how often a device can pay for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from server.errors import SettingsError
from server.jobs.settings import JobSettings
from server.policy.depths import common_variant
from server.privacy.accountant import epsilon_of, noise_for, sampled_epsilon, sampled_noise, times_for
from server.privacy.mechanism import Mechanism

_SPENT = 1 + 1e-9


def settled(settings: JobSettings) -> JobSettings:
    """Settle a server's job: its noise, and how often a device may take part, stay the same from then on."""
    if not settings.is_private:
        return settings
    epsilon, delta, noise = settings.privacy_epsilon, settings.privacy_delta, settings.privacy_noise
    times = min(settings.privacy_times or settings.rounds, settings.rounds)
    if noise is None:
        assert epsilon is not None  # a private job has one of them
        noise = noise_for(epsilon, delta, times)
    elif epsilon is not None:
        times = min(times, times_for(epsilon, delta, noise))
        _check_one_round(times, epsilon, epsilon_of(noise, delta, 1), noise)
    else:
        epsilon_of(noise, delta, times)  # whoever cannot account for noise must not promise it
    return settings.model_copy(update={"privacy_noise": noise, "privacy_times": times})


def settled_by_chance(settings: JobSettings, clients: int) -> JobSettings:
    """Settle a simulation's job, whose clients are sampled, each as likely as the others."""
    if not settings.is_private:
        return settings
    epsilon, delta, noise = settings.privacy_epsilon, settings.privacy_delta, settings.privacy_noise
    share = settings.per_round / clients
    if noise is None:
        assert epsilon is not None  # a private job has one of them
        noise = sampled_noise(epsilon, delta, settings.rounds, share)
    elif epsilon is not None:
        one = sampled_epsilon(noise, delta, 1, share)
        _check_one_round(int(one <= epsilon), epsilon, one, noise)
    return settings.model_copy(update={"privacy_noise": noise})


def _check_one_round(times: int, epsilon: float, one: float, noise: float) -> None:
    if times < 1:
        raise SettingsError(
            f"privacy_noise {noise:g} spends an epsilon of {one:.3g} in one round, more than privacy_epsilon "
            f"{epsilon:g}: raise one of them, or leave privacy_noise out"
        )


def sampled_spent(settings: JobSettings, rounds: int, clients: int) -> float:
    """Compute a simulated client's epsilon after so many rounds."""
    assert settings.privacy_noise is not None  # it was settled
    return sampled_epsilon(settings.privacy_noise, settings.privacy_delta, rounds, settings.per_round / clients)


def may_go_on(settings: JobSettings, rounds: int, clients: int) -> bool:
    """Tell whether a simulation can pay for the round after so many."""
    if not settings.is_private or settings.privacy_epsilon is None:
        return True
    return sampled_spent(settings, rounds + 1, clients) <= settings.privacy_epsilon * _SPENT


def mechanism_of(settings: JobSettings) -> Mechanism:
    """Return the mechanism by which a private job's updates are averaged."""
    assert settings.privacy_noise is not None  # it was settled
    return Mechanism(settings.privacy_noise, settings.privacy_clip, settings.per_round, settings.privacy_quantile)


def wanted_in(settings: JobSettings, manifest: Manifest) -> Mapping[str, int]:
    """Count a round's clients that train each parameter, if all could hold the best step that there is.

    It depends on the settings alone, not on the devices that take part.
    """
    training = common_variant(manifest, settings.training, settings.passes)
    kind = kind_of(training)
    wanted = Counter({parameter.name: settings.per_round for parameter in manifest.head})
    for slot in settings.slots(manifest, settings.per_round):
        units = kind.joined(manifest, training, slot.units)
        wanted.update(parameter.name for unit in units for parameter in manifest.units[unit].parameters)
    return wanted
