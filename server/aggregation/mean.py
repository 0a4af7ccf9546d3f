"""The weighted mean: every holder counts, however far it goes.

A round takes it update by update (`server.strategy.mean.Mean`), so that one sum is all that is held; this
is the same of a stack.
"""

from __future__ import annotations

from server.aggregation.rule import Rule, weighted_mean

MEAN = Rule(weighted_mean)
