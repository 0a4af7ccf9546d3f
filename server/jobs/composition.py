"""Check which of a job's settings go together: every conflict is reported in a sentence of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from edge_client.estimators.directed import ScalarEstimator
from edge_client.estimators.registry import ESTIMATORS, kind_of
from edge_client.secagg.fixed import MOST
from server.aggregation.registry import AGGREGATION_RULES

if TYPE_CHECKING:
    from server.jobs.settings import JobSettings

OWN_STRATEGY = "spry"
Conflict = str
"""A sentence: which settings exclude each other, and what to do about it."""


def conflicts(job: JobSettings) -> list[str]:
    """List all conflicts of a job's settings."""
    parts = _of_schedules, _of_iteration, _of_secure_aggregation, _of_privacy, _of_strategies, _of_evaluation
    return list(chain.from_iterable(part(job) for part in parts))


def _of_schedules(job: JobSettings) -> Iterator[Conflict]:
    if job.minimum is not None and job.minimum > job.complete:
        wanted = "buffer" if job.is_buffered else "per_round"
        yield f"minimum is {job.minimum}, more than {wanted} {job.complete}: lower it"
    if not job.is_buffered:
        if job.buffer is not None:
            yield "buffer is for schedule buffered: set schedule=buffered, or leave it out"
        return
    if job.complete > job.per_round:
        yield (
            f"buffer is {job.buffer}, more than the per_round {job.per_round} devices that train at a time: lower it"
        )
    if job.keep is not None and job.keep <= job.max_staleness:
        yield (
            f"keep is {job.keep}, and updates may begin with weights {job.max_staleness} versions old: raise it above "
            "max_staleness"
        )


def _of_iteration(job: JobSettings) -> Iterator[Conflict]:
    training = job.training
    if training.mode != "iteration":
        return
    known = training.estimator in ESTIMATORS  # or it was, when the job was made
    if known and not issubclass(kind_of(training), ScalarEstimator):
        yield f"mode iteration sends derivatives: estimator {training.estimator} needs mode epoch"
    if training.optimizer != "sgd":
        yield "in mode iteration the server takes the step: leave training.optimizer at sgd"
    if job.is_robust and job.aggregation in AGGREGATION_RULES and AGGREGATION_RULES[job.aggregation].limit is None:
        yield (
            f"in mode iteration devices repeat the server's mean: aggregation {job.aggregation} needs mode epoch; mean "
            "and clipped do not"
        )
    if job.is_buffered:
        yield "in mode iteration devices take each step together: schedule buffered needs mode epoch"


def _of_secure_aggregation(job: JobSettings) -> Iterator[Conflict]:
    if not job.secure_aggregation:
        return
    if job.training.mode == "iteration":
        yield (
            "secure_aggregation needs mode epoch: in mode iteration devices repeat each other's steps from every one's "
            "derivatives"
        )
    if job.is_robust:
        yield (
            f"secure_aggregation gives the server sums, and aggregation {job.aggregation} compares single updates: "
            "leave it at mean"
        )
    if job.per_round < job.min_holders:
        yield f"min_holders is {job.min_holders}, more than per_round {job.per_round}: raise per_round"
    if job.invited > MOST:
        yield f"a sum has room for {MOST} devices, not {job.invited} (per_round x over_selection): lower per_round"
    if job.is_buffered:
        yield (
            "secure_aggregation adds up the updates of one round's clients, and schedule buffered takes those of "
            "several: leave one of them out"
        )


def _of_privacy(job: JobSettings) -> Iterator[Conflict]:
    """List conflicts of a privacy budget: whatever else leaves a device by its examples would be paid by none."""
    if not job.is_private:
        return
    if job.training.mode == "iteration":
        yield (
            "in mode iteration each client's derivatives are published, and noise in a sum hides none of them: "
            "privacy_epsilon and privacy_noise need mode epoch"
        )
    if job.is_robust:
        yield (
            "a privacy budget needs a sum in which each client counts for its clip at most: it needs "
            f"aggregation mean, got {job.aggregation}"
        )
    if job.secure_aggregation and job.privacy_quantile is not None:
        yield (
            "an adaptive clip needs the length of each update, and with secure_aggregation the server sees none: "
            "leave out privacy_quantile"
        )
    if job.is_buffered:
        yield (
            "a privacy budget clips each update around the weights of its own round, and schedule buffered takes "
            "updates of several: leave one of them out"
        )
    if job.device_evaluation:
        yield (
            "a privacy budget does not cover measurements on devices: leave out device_evaluation, and "
            "give held_out examples"
        )


def _of_strategies(job: JobSettings) -> Iterator[Conflict]:
    """List conflicts of other distributions' strategies, which get single updates of mode epoch and combine them."""
    if job.strategy == OWN_STRATEGY:
        return
    if job.training.mode == "iteration":
        yield f"in mode iteration devices repeat the server's step: strategy {job.strategy} needs mode epoch"
    if job.secure_aggregation or job.is_private:
        yield (
            f"strategy {job.strategy} needs single updates: it works with neither secure_aggregation nor a privacy "
            "budget"
        )
    if job.is_robust:
        yield f"strategy {job.strategy} combines updates itself: leave aggregation at mean"


def _of_evaluation(job: JobSettings) -> Iterator[Conflict]:
    if (job.target or job.patience) and not (job.held_out or job.device_evaluation):
        yield "target and patience need an accuracy: give held_out examples or device_evaluation"
    if job.evaluate_answers and not job.held_out:
        yield "evaluate_answers needs questions with known answers: give held_out examples"
