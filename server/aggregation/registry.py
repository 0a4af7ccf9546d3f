"""Register the rules that a job's `aggregation` may name; the group `spry.aggregation_rules` adds those of others."""

from __future__ import annotations

from edge_client import plugins
from server.aggregation.agreeing import AGREEING
from server.aggregation.clipped import CLIPPED
from server.aggregation.mean import MEAN
from server.aggregation.median import MEDIAN
from server.aggregation.rule import Rule
from server.aggregation.trimmed import TRIMMED

PLAIN = "mean"
"""The default rule's name."""


def _fits(plugin: object) -> bool:
    return isinstance(plugin, Rule)


AGGREGATION_RULES = plugins.Registry[Rule](
    plugins.AGGREGATION_RULES,
    _fits,
    {PLAIN: MEAN, "agreeing": AGREEING, "clipped": CLIPPED, "trimmed": TRIMMED, "median": MEDIAN},
)
