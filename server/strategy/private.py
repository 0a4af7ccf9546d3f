"""Differential privacy with a trusted server: each update is clipped as a whole, and their sum gets noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from server.privacy.budget import mechanism_of, wanted_in
from server.strategy.state import ServerState, apply_change
from server.strategy.strategy import RoundContext, Strategy
from server.strategy.updates import Contribution, Outcome


class PrivateMean(Strategy):
    """Averages all updates with noise: the clip bounds each, and none is left out for what others sent."""

    def aggregate(self, state: ServerState, updates: Sequence[Contribution], context: RoundContext) -> Outcome:
        """Clip, add up one at a time, add noise, and step."""
        settings, manifest = context.settings, context.manifest
        each = (update.tensors() for update in updates)
        wanted = wanted_in(settings, manifest)
        change, clip = mechanism_of(settings).mean(state.weights, state.clip, each, wanted, context.noise)
        state = replace(state, clip=clip)
        return Outcome(apply_change(state, change, settings, manifest), change, [update.report for update in updates])
