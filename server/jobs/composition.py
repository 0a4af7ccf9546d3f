"""Which of a job's settings go together: one table of conflicts, of which a job is told all that it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from edge_client.estimators.directed import ScalarEstimator
from edge_client.estimators.registry import ESTIMATORS, kind_of
from edge_client.sums.fixed import MOST
from server.means.registry import MEANS

if TYPE_CHECKING:
    from server.jobs.settings import JobSettings

OWN_STRATEGY = "spry"


class Conflict(NamedTuple):
    """Settings that cannot be had together, and what to do about it."""

    holds: Callable[[JobSettings], bool]
    why: str
    """A sentence, with the job's settings as `{job.per_round}`."""


def _iterates(job: JobSettings) -> bool:
    return job.training.mode == "iteration"


def _sends_gradients(job: JobSettings) -> bool:
    training = job.training  # an estimator that is unknown may have been known when the job was made
    return training.estimator in ESTIMATORS and not issubclass(kind_of(training), ScalarEstimator)


def _shortens_no_scalars(job: JobSettings) -> bool:
    return job.is_robust and job.aggregation in MEANS and MEANS[job.aggregation].limit is None


def _is_foreign(job: JobSettings) -> bool:
    return job.strategy != OWN_STRATEGY


CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        lambda job: job.minimum is not None and job.minimum > job.complete,
        "minimum is {job.minimum}, more than {wanted} {job.complete}: lower it",
    ),
    # mode iteration
    Conflict(
        lambda job: _iterates(job) and _sends_gradients(job),
        "mode iteration sends derivatives: estimator {job.training.estimator} needs mode epoch",
    ),
    Conflict(
        lambda job: _iterates(job) and job.training.optimizer != "sgd",
        "in mode iteration the server takes the step: leave training.optimizer at sgd",
    ),
    Conflict(
        lambda job: _iterates(job) and _shortens_no_scalars(job),
        "in mode iteration devices repeat the server's mean: aggregation {job.aggregation} needs mode epoch; mean and "
        "clipped do not",
    ),
    Conflict(
        lambda job: _iterates(job) and job.is_buffered,
        "in mode iteration devices take each step together: schedule buffered needs mode epoch",
    ),
    Conflict(
        lambda job: _iterates(job) and job.is_private,
        "in mode iteration each client's derivatives are published, and noise in a sum hides none of them: "
        "privacy_epsilon and privacy_noise need mode epoch",
    ),
    Conflict(
        lambda job: _iterates(job) and job.secure_aggregation,
        "secure_aggregation needs mode epoch: in mode iteration devices repeat each other's steps from every one's "
        "derivatives",
    ),
    # secure aggregation
    Conflict(
        lambda job: job.secure_aggregation and job.is_robust,
        "secure_aggregation gives the server sums, and aggregation {job.aggregation} compares single updates: leave it "
        "at mean",
    ),
    Conflict(
        lambda job: job.secure_aggregation and job.per_round < job.min_holders,
        "min_holders is {job.min_holders}, more than per_round {job.per_round}: raise per_round",
    ),
    Conflict(
        lambda job: job.secure_aggregation and job.places > MOST,
        "a sum has room for {most} devices, not {job.places} (per_round x over_selection): lower per_round",
    ),
    Conflict(
        lambda job: job.secure_aggregation and job.is_buffered,
        "secure_aggregation adds up the updates of one round's clients, and schedule buffered takes those of several: "
        "leave one of them out",
    ),
    # differential privacy
    Conflict(
        lambda job: job.is_private and job.is_robust,
        "a privacy budget counts on a sum that each client moves by its clip alone: it needs aggregation mean, got "
        "{job.aggregation}",
    ),
    Conflict(
        lambda job: job.is_private and job.secure_aggregation and job.privacy_quantile is not None,
        "a clip that follows is found from how long each update is, and secure_aggregation shows the server none: "
        "leave out privacy_quantile",
    ),
    Conflict(
        lambda job: job.is_private and job.is_buffered,
        "a privacy budget clips each update about the weights of its own round, and schedule buffered takes those of "
        "several: leave one of them out",
    ),
    Conflict(
        lambda job: job.is_private and bool(job.device_evaluation),
        "what devices measure is paid by no privacy budget: leave out device_evaluation, and give held_out examples",
    ),
    # a strategy of another distribution
    Conflict(
        lambda job: _is_foreign(job) and _iterates(job),
        "in mode iteration devices repeat the server's step: strategy {job.strategy} needs mode epoch",
    ),
    Conflict(
        lambda job: _is_foreign(job) and (job.secure_aggregation or job.is_private),
        "strategy {job.strategy} is given single updates: it goes with neither secure_aggregation nor a privacy budget",
    ),
    Conflict(
        lambda job: _is_foreign(job) and job.is_robust,
        "strategy {job.strategy} combines updates itself: leave aggregation at mean",
    ),
    # evaluation and schedules
    Conflict(
        lambda job: bool(job.target or job.patience) and not (job.held_out or job.device_evaluation),
        "target and patience need an accuracy: give held_out examples or device_evaluation",
    ),
    Conflict(
        lambda job: bool(job.evaluate_answers) and not job.held_out,
        "evaluate_answers needs questions with known answers: give held_out examples",
    ),
    Conflict(
        lambda job: not job.is_buffered and job.buffer is not None,
        "buffer is of schedule buffered: set schedule=buffered, or leave it out",
    ),
    Conflict(
        lambda job: job.is_buffered and job.complete > job.per_round,
        "buffer is {job.buffer}, more than the per_round {job.per_round} devices that train at a time: lower it",
    ),
    Conflict(
        lambda job: job.is_buffered and job.keep is not None and job.keep <= job.max_staleness,
        "keep is {job.keep}, and updates may begin with weights {job.max_staleness} versions old: raise it above "
        "max_staleness",
    ),
)


def conflicts(job: JobSettings) -> list[str]:
    """Say what in a job's settings cannot be had together, a sentence each."""
    words = {"wanted": "buffer" if job.is_buffered else "per_round", "most": MOST}
    return [conflict.why.format(job=job, **words) for conflict in CONFLICTS if conflict.holds(job)]
