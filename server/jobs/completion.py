"""Complete settings for a bundle: open ones are settled, and those without programs are refused."""

from __future__ import annotations

import secrets
from dataclasses import replace

from edge_client.bundle.chain import Chain, directions_at_once
from edge_client.bundle.manifest import Manifest
from edge_client.commands.options.retired import RETIRED
from edge_client.errors import BundleError
from edge_client.estimators.registry import kind_of
from edge_client.gradient.drawing import counted
from edge_client.tasks.registry import task_named
from edge_client.training.optimizers import check_server_optimizers
from edge_client.wire.protocol import Training
from edge_client.wire.scalars import LARGEST_REPORT
from server.aggregation.registry import AGGREGATION_RULES
from server.errors import Refusal
from server.jobs.settings import JobSettings
from server.policy.directions import goes_forward, planned

_EXACT_HEAD_RATE = 10.0
"""The rate of an exact head over that of the units: its gradient has no noise for a larger step to carry over."""
_SHORT = 0.3
"""The share of the longest step of a head that is sure to lower its loss: where features are measured the
server makes the step, and clients that hardly move give it gradients of the same weights."""


def complete(settings: JobSettings, manifest: Manifest) -> JobSettings:
    """Settle the settings that are left open; refuse those that the bundle cannot run."""
    check_names(settings)
    check_adapter(manifest)
    kind = kind_of(settings.training)
    training = kind.settled(settings.training)
    if settings.passes is not None and goes_forward(training):
        training = planned(manifest, training, settings.passes)
    slots = settings.slots(manifest, settings.invited)
    training = counted(training, manifest, [kind.directed(manifest, training, slot.units) for slot in slots])
    if training.pack and not task_named(manifest.model.task).per_token:
        what = f"training.pack puts texts of language models into one sequence, and the job is {manifest.model.task}"
        raise Refusal(422, "invalid", f"{what}: leave it out")
    _check_report(training)
    _check_bottlenecks(training, manifest)
    check_programs(training, manifest)
    if not manifest.head and training.head != "exact":
        training = replace(training, head="exact")
    seed = secrets.randbits(63) if settings.seed is None else settings.seed
    settings = settings.model_copy(update={"training": training, "seed": seed})
    if training.head != "exact" or training.head_learning_rate is not None:
        return settings
    rated = replace(training, head_learning_rate=_head_rate(settings, manifest))
    return settings.model_copy(update={"training": rated})


def check_adapter(manifest: Manifest) -> None:
    """Refuse bundles with an adapter of earlier versions, which nobody can hand out any more."""
    asked = f"--peft {manifest.adapter.method}"
    if asked in RETIRED:
        raise Refusal(422, "invalid", f"this bundle's {asked} is gone: {RETIRED[asked]}; export anew")


def _head_rate(settings: JobSettings, manifest: Manifest) -> float:
    """Return the rate of the clients' own steps of an exact head, where none is named."""
    if manifest.features is not None and settings.measures(manifest):
        return _SHORT * 2.0 / (manifest.features.square + 1.0)  # the errors' curvature is at most a half
    return _EXACT_HEAD_RATE * settings.training.learning_rate


def _check_report(training: Training) -> None:
    if training.mode == "iteration" and (count := training.directions * training.rows) > LARGEST_REPORT:
        raise Refusal(
            422,
            "invalid",
            f"mode iteration reports at most {LARGEST_REPORT} derivatives a step (directions x batch), not {count}: "
            "take fewer, or training.per_example=false, which reports one for all examples",
        )


def _check_bottlenecks(training: Training, manifest: Manifest) -> None:
    """Refuse mode iteration where a factor's input is known to its device alone: nobody else can repeat the step."""
    if not manifest.bottlenecks or not kind_of(training).along:
        return
    where = f"this bundle's adapter ({manifest.adapter.method}) has directions at bottlenecks"
    if training.mode == "iteration":
        raise Refusal(
            422,
            "invalid",
            f"{where}, and only a device knows what they are in weights: take training.mode=epoch, or "
            "training.estimator=central, or a bundle of --peft lora",
        )
    if not training.per_example:
        raise Refusal(422, "invalid", f"{where}, of each example's own: take training.per_example=true")


def check_names(settings: JobSettings) -> None:
    """Refuse names that are not known here; a job that was made keeps its own settings in any case."""
    kind_of(settings.training)
    check_server_optimizers(settings.optimizers)
    AGGREGATION_RULES.find(settings.aggregation)


def check_programs(training: Training, manifest: Manifest) -> None:
    """Refuse what the bundle has no programs for."""
    kind = kind_of(training)
    try:
        for runtime in manifest.runtimes:
            count = directions_at_once(manifest, training.directions) if kind.along else manifest.directions[0]
            if kind.along and training.directions % count:
                offered = ", ".join(map(str, manifest.directions))
                raise BundleError(f"{training.directions} directions cannot be run in turns of {offered}")
            chain = Chain(manifest, runtime, training.batch, training.length, count)
            kind.programs(chain, training, chain.head)
    except BundleError as error:
        advice = "change training.batch, length or directions, or export again"
        raise Refusal(422, "invalid", f"{error}: {advice}") from None
