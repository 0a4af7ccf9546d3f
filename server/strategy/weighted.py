"""The default: updates are averaged one at a time, each with a bounded weight, and the head steps by its features.

What clients' class imbalance explains is taken from each update before the mean (`server.strategy.class_correction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from edge_client.training.features import Moments, moments_in
from server.aggregation.units import WEIGHT_BOUND
from server.jobs.settings import JobSettings
from server.strategy import features
from server.strategy.bias import BiasBound
from server.strategy.class_correction import ClassCorrection
from server.strategy.mean import Holder, Mean, bounded, mean_steps, weights_of
from server.strategy.moments import believed, change_in
from server.strategy.outliers import FEWEST_NORMS, HEAD_NORM, beyond, usual
from server.strategy.state import ServerState, apply_change
from server.strategy.strategy import RoundContext, Strategy
from server.strategy.updates import Contribution, Outcome


class CombinedUpdates(NamedTuple):
    """A round's updates as one change, before the server's step."""

    start: ServerState
    """The state with what the next round reads."""
    change: Weights
    errors: Weights
    """The change's standard errors."""
    told: Sequence[Moments]
    """The feature moments that are believed."""
    counted: Sequence[Contribution]
    """The updates that count."""
    odd: tuple[tuple[str, str], ...] = ()


class WeightedMean(Strategy):
    """Averages updates by bounded numbers of examples, and by their estimates' inverse variance."""

    def aggregate(self, state: ServerState, updates: Sequence[Contribution], context: RoundContext) -> Outcome:
        """Leave out updates that go far beyond what is usual, combine the others, and step."""
        settings, manifest = context.settings, context.manifest
        why = [beyond(update.norms, context.usual, settings.norm_bound) for update in updates]
        taken = [update for update, refused in zip(updates, why, strict=True) if not refused]
        combined = self.combine(state, taken, context)
        start, change = _by_features(combined, settings, manifest)
        return Outcome(
            apply_change(start, change, settings, manifest, combined.errors),
            change,
            [update.report for update in taken],
            refused=tuple((update.part, told) for update, told in zip(updates, why, strict=True) if told),
            odd=combined.odd,
            staleness=tuple(update.staleness for update in taken if update.staleness is not None),
        )

    def combine(self, start: ServerState, taken: Sequence[Contribution], context: RoundContext) -> CombinedUpdates:
        """Combine one update at a time, so that memory does not grow with their number."""
        settings, manifest = context.settings, context.manifest
        lengths = usual([update.norms for update in taken], fewest=1)
        mean, told = Mean(start.weights), list[Moments]()
        correction = ClassCorrection(start, settings, manifest, lengths)
        bias = BiasBound(start, manifest, lengths if len(taken) >= FEWEST_NORMS else {})
        each = weights_of(holders(taken, manifest), settings.weight_bound, manifest)
        for update, weights in zip(taken, each, strict=True):
            tensors = bias.read(update)
            mean.add(correction.corrected(tensors, weights, update.norms), weights)
            told.append(moments_in(tensors, update.report.measured))
        changes, spec = mean.changes(), manifest.features
        if spec is not None and taken:
            told = believed(start.features, told, change_in(changes, spec))
        start = replace(start, class_correction=start.class_correction | correction.state())
        return CombinedUpdates(start, changes, mean.errors(), told, taken)


def holders(updates: Sequence[Contribution], manifest: Manifest) -> list[Holder]:
    """Pair the inverse variance of each update's estimates with its examples."""
    return [
        Holder(kind_of(one.training).inverse_variance(manifest, one.training, one.units), one.report.examples)
        for one in updates
    ]


def _by_features(combined: CombinedUpdates, settings: JobSettings, manifest: Manifest) -> tuple[ServerState, Weights]:
    """Return the change with the head's step by its features, and the state with the features' moments."""
    spec, start, reports = manifest.features, combined.start, [update.report for update in combined.counted]
    if spec is None or not settings.measures(manifest) or not reports:
        return start, combined.change
    known = start.features | features.joined(start.features, combined.told)
    bound = min(settings.weight_bound, WEIGHT_BOUND) if settings.is_robust else settings.weight_bound
    lengths = [update.norms.get(HEAD_NORM, 0.0) for update in combined.counted]
    rows = sum(bounded([report.examples for report in reports], bound)) if manifest.model.labels else 0
    taken = features.LocalSteps(settings.training, mean_steps(reports, lengths, bound), round(rows))
    if taken.rows and not start.version:
        known |= features.shares_of(combined.change, spec, taken)
    return replace(start, features=known), features.stepped(combined.change, known, spec, taken)
