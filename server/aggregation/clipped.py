"""Average clipped changes: none is longer than the median of the unit's holders, and those far longer are left out.

A wrong change has one vote against the others', or none. Half of the holders are shortened in
every round; the direction is what counts, as the server's optimizers make steps of their own length. Changes stay
whole, so that devices whose data differ pull the weights where each of them needs them.
"""

from __future__ import annotations

from server.aggregation.rule import Numbers, Rule, mean_within, middle, sizes_of


def clipped(changes: Numbers, weights: Numbers) -> Numbers:
    """Average changes after shortening them to the median length."""
    return mean_within(changes, weights, middle(sizes_of(changes), weights))


CLIPPED = Rule(clipped, limit=middle)
