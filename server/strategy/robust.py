"""Byzantine-robust aggregation: updates are compared with each other, and by most rules devices over all their rounds.

The rules themselves are in `server.aggregation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edge_client.bundle.manifest import Manifest
from edge_client.training.features import Moments, moments_in
from server.aggregation.memory import heard
from server.aggregation.registry import AGGREGATION_RULES
from server.aggregation.rule import Numbers, Rule
from server.aggregation.units import WEIGHT_BOUND, Heads, against_in_words, combined, in_words
from server.strategy import features
from server.strategy.fingerprints import compared_heads, fingerprints, is_whole_head, pulls_of_heads
from server.strategy.mean import weights_of
from server.strategy.moments import believed, usual_change
from server.strategy.state import ServerState
from server.strategy.strategy import RoundContext
from server.strategy.updates import Contribution
from server.strategy.weighted import CombinedUpdates, WeightedMean, holders


class RobustMean(WeightedMean):
    """Combines updates by the job's robust rule in place of the mean."""

    def combine(self, start: ServerState, taken: Sequence[Contribution], context: RoundContext) -> CombinedUpdates:
        """Combine all updates at once: each is compared with the others."""
        settings, manifest = context.settings, context.manifest
        rule = AGGREGATION_RULES.find(settings.aggregation)
        tensors = [update.tensors() for update in taken]
        told = [moments_in(own, update.report.measured) for own, update in zip(tensors, taken, strict=True)]
        moments = features.joined(start.features, _believed(start, told, tensors, manifest))
        moments = moments if settings.measures(manifest) else {}
        heads = compared_heads(start.weights, moments, tensors, manifest)
        start, away, agree = _judged(rule, start, taken, tensors, moments, heads, manifest)
        inside = [place for place in range(len(taken)) if place not in away]
        agreeing = frozenset(number for number, place in enumerate(inside) if place in agree)
        known = holders(taken, manifest)
        weights = weights_of([known[place] for place in inside], min(settings.weight_bound, WEIGHT_BOUND), manifest)
        kept = [tensors[place] for place in inside]
        compared = None
        if heads is not None and inside and is_whole_head(manifest):
            compared = Heads(heads[inside], pulls_of_heads(start.weights, moments, kept, manifest))
        mean = combined(rule, start.weights, start.unit_sizes, kept, weights, manifest, compared, agreeing)
        words = {inside[holder]: in_words(parts) for holder, parts in mean.odd.items()}
        words |= away
        odd = tuple((taken[place].part, why) for place, why in sorted(words.items()))
        found = _believed(start, [told[place] for place in inside], kept, manifest)
        start = replace(start, unit_sizes=mean.sizes)
        return CombinedUpdates(start, mean.change, mean.errors, found, [taken[place] for place in inside], odd)


def _believed(
    start: ServerState, told: Sequence[Moments], updates: Sequence[Mapping[str, Any]], manifest: Manifest
) -> list[Moments]:
    """Return the moments beside updates that are joined."""
    if manifest.features is None or not updates:
        return []
    return believed(start.features, told, usual_change(updates, start.weights, manifest.features))


def _judged(
    rule: Rule,
    start: ServerState,
    taken: Sequence[Contribution],
    tensors: Sequence[Mapping[str, Any]],
    moments: Mapping[str, Any],
    heads: Numbers | None,
    manifest: Manifest,
) -> tuple[ServerState, Mapping[int, str], frozenset[int]]:
    """Judge devices by a rule that does.

    Returns:
        the state with what is known of them, why some are left out, and those that agree with the others.
    """
    if rule.judge is None or not taken:
        return start, {}, frozenset()
    said = fingerprints(start.weights, dict(moments), tensors, manifest, heads)
    judged = heard(rule.judge, start.fingerprints, start.version, [update.device for update in taken], said)
    why = {place: against_in_words("the others' in all of its rounds", one) for place, one in judged.away.items()}
    why |= {place: against_in_words("its own in earlier rounds", one) for place, one in judged.turned.items()}
    return replace(start, fingerprints=judged.sums), why, judged.agreeing
