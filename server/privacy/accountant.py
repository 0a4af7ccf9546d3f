"""Account for the cost of noise: the epsilon of a device, by `dp-accounting`.

Two jobs differ by all that one device ever sent to one of them (added, or taken out). On a server nobody knows who
will come, so no round is made cheaper by chance: a device that took part k times has k Gaussian mechanisms behind it,
which are one with a noise smaller by the root of k, whose epsilon is exact. In a simulation each client is taken with
the same probability, apart from all others (Poisson sampling), and each round is cheaper by that.
"""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

from edge_client.errors import RuntimeMissing

_MOST_SAVED = 30.0
"""The most by which sampling may reduce noise; with less, a few rounds cost a lot whatever the probability."""
_STEP, _FAR = 1e-3, 0.02
"""The discretization of a privacy loss, which is rounded up: in one round at most, and in all of them together."""
_NEAR = 1e-3
"""The relative tolerance of the noise that is searched for, which is rounded up."""


@lru_cache(4096)
def epsilon_of(noise: float, delta: float, times: int) -> float:
    """Compute the epsilon that a device has spent which took part so many times."""
    if not times:
        return 0.0
    return float(_library().get_epsilon_gaussian(noise / times**0.5, delta))


def noise_for(epsilon: float, delta: float, times: int) -> float:
    """Compute the noise by which so many times cost no more than epsilon."""
    return float(_library().get_sigma_gaussian(epsilon, delta)) * times**0.5


def times_for(epsilon: float, delta: float, noise: float) -> int:
    """Compute how often a device can take part until epsilon is spent."""
    return int((noise / noise_for(epsilon, delta, 1)) ** 2 * (1 + 1e-9))


@lru_cache(4096)
def sampled_epsilon(noise: float, delta: float, rounds: int, share: float) -> float:
    """Compute the epsilon of a client that was in each of so many rounds with this probability."""
    if not rounds:
        return 0.0
    if share >= 1:
        return epsilon_of(noise, delta, rounds)
    library = _library()
    relation = library.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = library.pld.PLDAccountant(relation, value_discretization_interval=min(_STEP, _FAR / rounds))
    accountant.compose(library.PoissonSampledDpEvent(share, library.GaussianDpEvent(noise)), rounds)
    return float(accountant.get_epsilon(delta))


def sampled_noise(epsilon: float, delta: float, rounds: int, share: float) -> float:
    """Compute the noise by which so many such rounds cost no more than epsilon."""
    most = noise_for(epsilon, delta, rounds)  # what it would be without chance
    least = most / _MOST_SAVED
    while most / least > 1 + _NEAR:
        middle = (least * most) ** 0.5
        fits = sampled_epsilon(middle, delta, rounds, share) <= epsilon
        least, most = (least, middle) if fits else (middle, most)
    return most


def _library() -> ModuleType:
    """Import the library, which takes a second, and SciPy with it."""
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise RuntimeMissing("a privacy budget", "privacy", f"{error.name} is not installed") from error
    return dp_accounting
