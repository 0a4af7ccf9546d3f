"""The strategies that a job's `strategy` may name; another distribution adds one by an entry point."""

from __future__ import annotations

from edge_client import plugins
from server.jobs.composition import OWN_STRATEGY
from server.jobs.settings import JobSettings
from server.strategy.private import PrivateMean
from server.strategy.robust import RobustMean
from server.strategy.strategy import Strategy
from server.strategy.weighted import WeightedMean


def _fits(plugin: object) -> bool:
    return isinstance(plugin, type) and issubclass(plugin, Strategy)


STRATEGIES = plugins.Registry[type[Strategy]](plugins.STRATEGIES, _fits, {OWN_STRATEGY: WeightedMean})


def strategy_of(settings: JobSettings) -> Strategy:
    """Open a job's strategy; this project's own goes by what else the job asks for."""
    if settings.strategy != OWN_STRATEGY:
        return STRATEGIES.find(settings.strategy)()
    if settings.is_private:
        return PrivateMean()
    return RobustMean() if settings.is_robust else WeightedMean()
