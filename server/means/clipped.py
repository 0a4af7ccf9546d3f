"""The clipped mean: no holder's change is longer than the median of the unit's holders.

A holder that goes far the wrong way is left with one voice against the others'. Half of the holders are shortened in
every round; the direction is what counts, as the server's optimizers make steps of their own length.
"""

from __future__ import annotations

from server.means.rule import Numbers, Rule, middle, shortened, sizes_of, weighted_mean


def clipped(changes: Numbers, weights: Numbers) -> Numbers:
    """The mean of changes that are no longer than the median one."""
    return weighted_mean(shortened(changes, middle(sizes_of(changes), weights)), weights)


CLIPPED = Rule(clipped, limit=middle)
