"""The means that a job's `aggregation` may name; another distribution adds one by an entry point of `spry.means`."""

from __future__ import annotations

from edge_client import plugins
from server.means.agreeing import AGREEING
from server.means.clipped import CLIPPED
from server.means.mean import MEAN
from server.means.median import MEDIAN
from server.means.rule import Rule
from server.means.trimmed import TRIMMED

PLAIN = "mean"
"""The default."""


def _fits(plugin: object) -> bool:
    return isinstance(plugin, Rule)


MEANS = plugins.Registry[Rule](
    plugins.MEANS,
    _fits,
    {PLAIN: MEAN, "agreeing": AGREEING, "clipped": CLIPPED, "trimmed": TRIMMED, "median": MEDIAN},
)
