"""Average all holders by weight, however far they go.

A round takes it update by update (`server.strategy.mean.Mean`), so that one sum is all that is held; this
computes the same for a stack.
"""

from __future__ import annotations

from server.aggregation.rule import Rule, weighted_mean

MEAN = Rule(weighted_mean)
