"""Choose whose moments of features a round joins: those of devices whose features vary as others' do.

A device reports its own features' moments, and the head's step goes through the inverse of all that are reported
(`server.strategy.features`). Whoever reports a large variance along a direction stops the step there. In hundreds
of directions the few rows of one device say next to nothing, so its moments cannot be held against the others as a
whole; along the directions that the step takes it can: there honest devices vary alike, whatever their classes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.manifest import FeatureSpec
from edge_client.training.features import MEAN, PRODUCTS, Moments
from server.aggregation.rule import FEWEST, Numbers, middle, no_longer, sizes_of
from server.strategy.features import covariance_of, joined, kept, solved, spread_of, variances_of

MOST_TIMES = 2.0
"""The most that a device's features may vary, over the median device's.

Those of honest ones varied 1.6 times as much at most on AG News, SST-2 and Snips, in the first round, of devices with
most classes or with one."""


class HeadChange(NamedTuple):
    """The devices' joint change of the layer that features enter, before the server's step."""

    weight: Numbers
    """The layer's change, [classes, features]."""
    bias: Numbers | None
    """The bias's change, [classes]; None for a layer without one."""


def change_in(changes: Mapping[str, Array], spec: FeatureSpec) -> HeadChange:
    """Take the layer's part out of a mean change."""
    bias = changes[spec.bias].astype(np.float64) if spec.bias else None
    return HeadChange(changes[spec.weight].astype(np.float64), bias)


def usual_change(updates: Sequence[Mapping[str, Array]], start: Weights, spec: FeatureSpec) -> HeadChange:
    """Average the layer's change over updates, none of them longer than the median one."""
    names = [name for name in (spec.weight, spec.bias) if name]
    flat = np.stack([np.concatenate([(own[name] - start[name]).ravel() for name in names]) for own in updates])
    sizes = sizes_of(flat.astype(np.float64))
    mean = no_longer(flat, middle(sizes, np.ones(len(sizes)))).mean(0)
    weight, bias = mean[: start[spec.weight].size], mean[start[spec.weight].size :]
    return HeadChange(weight.reshape(start[spec.weight].shape), bias if spec.bias else None)


def believed(state: Weights, told: Sequence[Moments], change: HeadChange) -> list[Moments]:
    """Leave out the moments that vary too much along what the head's step needs, or altogether.

    None counts more rows than the median one. Where fewer than three devices report theirs, these are made smaller, to
    as much as is believed: features grow as the units train, and nobody else could confirm it.
    """
    told = [one for one in told if one.rows]
    if not told:
        return []
    rows = statistics.median_low(one.rows for one in told)
    moments = [one._replace(rows=min(one.rows, rows)) for one in told]
    inside = list(range(len(told)))
    while inside:
        times, centre = _times_usual(state, moments, [moments[place] for place in inside], change)
        if len(told) < FEWEST:
            return [_smaller(one, most, centre) for one, most in zip(moments, times / MOST_TIMES, strict=True)]
        within = [place for place in inside if times[place] <= MOST_TIMES]
        if len(within) == len(inside):
            break
        inside = within
    return [moments[place] for place in inside]


def _times_usual(
    state: Weights, moments: Sequence[Moments], inside: Sequence[Moments], change: HeadChange
) -> tuple[Numbers, Numbers]:
    """Compute how much more each device's features vary than usual, and the mean about which they do.

    Usual is the median device; what is known from rounds before counts as one.
    """
    heard = [*moments, *(one for _, one in kept(state))]
    weight, bias = change
    pooled = joined(state, inside)
    if bias is None:  # such a layer is stepped by products about zero
        centre = mean = np.zeros(weight.shape[1])
        about = pooled[PRODUCTS] + _about_zero(pooled[MEAN], len(pooled[PRODUCTS]))
    else:
        centre = np.median([one.mean for one in heard], axis=0).astype(np.float64)
        mean, about = pooled[MEAN].astype(np.float64), pooled[PRODUCTS]
        weight = weight - np.outer(bias, centre)
    usual = np.maximum(np.median([variances_of(one) for one in heard], axis=0), np.finfo(np.float32).tiny)
    ways = solved(weight, about, mean), weight / np.square(spread_of(about, mean))
    varied = np.array([[_varied(one, centre, usual), *(_along(way, one, centre) for way in ways)] for one in heard])
    medians = np.sort(varied, axis=0)[(len(heard) - 1) // 2]
    return (varied / np.maximum(medians, np.finfo(np.float64).tiny)).max(1)[: len(moments)], centre


def _varied(moments: Moments, centre: Numbers, usual: Numbers) -> float:
    """Average the mean squares of all features, each in units of the usual one."""
    return float(((variances_of(moments) + np.square(moments.mean - centre)) / usual).mean())


def _along(ways: Numbers, moments: Moments, centre: Numbers) -> float:
    """Sum the mean squares of features along some directions."""
    spread = covariance_of(moments)
    within = np.square(ways) * spread if spread.ndim == 1 else (ways @ spread) * ways
    return float(within.sum() + np.square(ways @ (moments.mean - centre)).sum())


def _smaller(moments: Moments, times: float, centre: Numbers) -> Moments:
    """Divide moments' mean squares by `times`; moments that are not too large stay as they are."""
    if times <= 1:
        return moments
    mean = centre + (moments.mean - centre) / times**0.5
    return Moments(moments.rows, mean.astype(np.float32), (moments.products / times).astype(np.float32))


def _about_zero(mean: Array, size: int) -> Numbers:
    outer = np.square(mean) if size == len(mean) else np.outer(mean, mean)[np.triu_indices(len(mean))]
    return outer.astype(np.float64)
