"""Price the presets that a job on a bundle may start from, for one device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from edge_client.bundle.chain import cut_for
from edge_client.bundle.manifest import Manifest
from edge_client.commands.options.retired import refuse
from edge_client.errors import SpryError
from edge_client.estimators.registry import kind_of
from edge_client.training.epoch import steps_in
from edge_client.wire.protocol import Training
from edge_client.wire.scalars import ScalarReport, encode_report
from server.errors import Refusal
from server.jobs.completion import complete
from server.jobs.presets import ABOUT, PRESETS, merged, preset_for, private_start, start_of
from server.jobs.settings import JobSettings
from server.policy.assignment import Needs
from server.policy.depths import common_units, common_variant
from server.policy.passes import passes

_WEIGHT, _SUMMAND = 4, 8
"""The bytes of a number that is sent: as it is, or masked for a sum."""
_ANY = "auto", "default", "paper"
"""The presets to choose from beside the one that fits the adapter; the others are for adapters of their names."""


class JobCost(BaseModel):
    """The cost of a job for one device, in the mean of a round's assignments."""

    passes: float
    """The compute of a step, in forward passes."""
    sent: int
    """The bytes of its updates, in a round."""
    fetched: int
    """The bytes of weights or of others' reports, in a round; the bundle comes before the first."""
    memory: int | None
    """The most bytes that a step takes, weights included; null where the bundle was exported without measuring them."""


class PresetView(BaseModel):
    """A preset that a job on this bundle may start from."""

    name: str
    about: str
    fits: bool
    """True if it is the one that fits the adapter."""
    settings: dict[str, Any]
    cost: JobCost


class JobPlan(BaseModel):
    """All settings of a job, and their cost."""

    preset: str
    settings: JobSettings
    cost: JobCost


def presets_of(manifest: Manifest, rows: int | None = None) -> list[PresetView]:
    """List the presets that a job on this bundle may start from: the fitting one first, then the plain ones.

    `rows` is the number of rows to learn from, if it is known.
    """
    fitting = preset_for(manifest.adapter.method, {})
    found: list[PresetView] = []
    for name in dict.fromkeys((fitting, *_ANY)):
        try:
            plan = planned(manifest, {}, name, rows)
        except (SpryError, ValidationError):
            continue  # this bundle has no programs for it
        start = start_of(manifest, name, rows)
        found.append(PresetView(name=name, about=ABOUT[name], fits=name == fitting, settings=start, cost=plan.cost))
    return found


def planned(manifest: Manifest, given: Mapping[str, Any], preset: str = "", rows: int | None = None) -> JobPlan:
    """Make a job's settings of those that are given, as `spry job create` does.

    Args:
        manifest: the job's bundle's.
        given: settings that go over those of the preset.
        preset: the one to start from; the one that fits the adapter and the settings if empty.
        rows: the number of rows to learn from; None if it is unknown.
    """
    if preset and preset not in PRESETS:
        refuse(f"--preset {preset}")
        raise Refusal(422, "invalid", f"preset must be one of {', '.join(PRESETS)}, got {preset!r}")
    training = given.get("training", {})
    if not isinstance(training, Mapping):
        raise Refusal(422, "invalid", f"training must be an object of settings, got {json.dumps(training)}")
    start = preset or preset_for(manifest.adapter.method, training, has_head=bool(manifest.head))
    wanted = merged(start_of(manifest, start, rows), private_start(given), given)
    settings = JobSettings.model_validate(wanted)
    return JobPlan(preset=start, settings=settings, cost=cost_of(manifest, complete(settings, manifest)))


def cost_of(manifest: Manifest, settings: JobSettings) -> JobCost:
    """Compute a device's cost of a round and its steps, from the bundle's programs and the settings."""
    variant = common_variant(manifest, settings.training, settings.passes)
    kind = kind_of(variant)
    dealt = [kind.joined(manifest, variant, slot.units) for slot in settings.slots(manifest, settings.invited)]
    sent, fetched = _bytes(manifest, settings, variant, dealt)
    return JobCost(
        passes=round(fmean(passes(kind, variant, manifest, units) for units in dealt), 2),
        sent=sent,
        fetched=fetched,
        memory=_memory(manifest, variant, dealt),
    )


def _bytes(
    manifest: Manifest, settings: JobSettings, variant: Training, dealt: Sequence[tuple[int, ...]]
) -> tuple[int, int]:
    """Count the bytes that a device sends and fetches in a round."""
    if variant.mode == "iteration":
        steps, exact = steps_in(variant, 0), variant.head == "exact"
        values = np.zeros((variant.directions, variant.rows), np.float32)
        head = values if manifest.head and not exact else None
        scalars = len(encode_report(ScalarReport(0.0, 1, values, head)))
        told = ScalarReport(0.0, 1, values, head, np.zeros(manifest.head_size, np.float32) if exact else None)
        mean = _WEIGHT * manifest.head_size if exact else 0
        return steps * len(encode_report(told)), steps * (settings.per_round * scalars + mean)
    width = _SUMMAND if settings.secure_aggregation else _WEIGHT
    sizes = [sum(parameter.size for parameter in manifest.trained_with(units)) for units in dealt]
    common = manifest.trained_with(common_units(manifest, settings.training, settings.passes))
    return round(width * fmean(sizes)), _WEIGHT * sum(parameter.size for parameter in common)


def _memory(manifest: Manifest, variant: Training, dealt: Sequence[tuple[int, ...]]) -> int | None:
    """Return the most memory that a slot takes, with the runtime that takes least."""
    programs = (program for spec in manifest.runtimes.values() for program in spec.programs)
    if not any(program.load_bytes for program in programs):
        return None
    needs = Needs(manifest, variant)
    most = 0
    for units in set(dealt):
        cut = cut_for(manifest, units)
        known = [needs.bytes(runtime, cut, variant.batch, variant) for runtime in manifest.runtimes]
        most = max(most, min((one for one in known if one is not None), default=0))
    return most or None
