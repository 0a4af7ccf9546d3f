"""A client's part in a simulated round, as a server gives it out."""

from __future__ import annotations

from edge_client.bundle.chain import cut_for
from edge_client.bundle.manifest import Manifest
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import Task, Training
from server.jobs.settings import JobSettings
from server.policy.assignment import RoundSlot, seed_of

JOB = "simulation"


def task_of(
    settings: JobSettings,
    manifest: Manifest,
    number: int,
    slot: RoundSlot,
    variant: Training | None = None,
    *,
    evaluate: bool = False,
    measure: bool = False,
    clip: float | None = None,
) -> Task:
    """Build a client's part in a round, as a server gives it out."""
    training = variant or settings.training
    units = kind_of(training).joined(manifest, training, slot.units)
    return Task(
        id=f"{number}-{slot.number}",
        job=JOB,
        job_name=JOB,
        round=number,
        seed=seed_of(settings.seed or 0, number, slot.number),
        units=list(units),
        cut=cut_for(manifest, units),
        bundle="",
        runtime="",
        version=number - 1,
        iteration=0,
        seconds=0.0,
        training=training,
        optimizers=settings.optimizers,
        batch=settings.training.batch,
        evaluate=evaluate,
        measure=measure,
        clip=clip,
    )
