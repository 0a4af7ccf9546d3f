"""Jobs: a bundle to train, how, and when to stop."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Connection, Row, Select, insert, or_, select, update

from edge_client.bundle.chain import Chain
from edge_client.bundle.manifest import Manifest
from edge_client.errors import BundleError
from edge_client.gradient.drawing import counted
from edge_client.step.turns import directions_at_once
from edge_client.training.epoch import steps_in
from edge_client.training.estimators import ESTIMATORS, ScalarEstimator, kind_of
from edge_client.training.optimizers import check_aggregations
from edge_client.wire.protocol import ServerOptimizers, Training
from edge_client.wire.scalars import LARGEST_REPORT
from server.errors import Refusal, not_found
from server.jobs.assignment import Assignment, Slot, slots
from server.rounds.evaluation import check_held_out
from server.storage.store import Store
from server.storage.tables import bundles, jobs, rounds, tasks

_EXACT_HEAD_RATE = 10.0
"""An exact gradient has no noise that a larger step would carry into the weights."""
State = Literal["running", "paused", "ended"]
RUNNING, PAUSED, ENDED = "running", "paused", "ended"


class JobSettings(BaseModel):
    """Everything about a job but its bundle."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    training: Training = Field(default=Training(), description="What clients do.")
    optimizers: ServerOptimizers = Field(default=ServerOptimizers(), description="How the server moves weights.")
    assignment: Assignment = Field(default="cyclic", description="Which units a client trains.")
    units_per_client: Annotated[int, Ge(0)] = Field(
        default=1, description="Units of a client at least, 0 for all: with more, more clients share each unit."
    )
    per_round: Annotated[int, Ge(1), Le(100_000)] = Field(default=10, description="Updates that complete a round.")
    over_selection: Annotated[float, Ge(1), Le(10)] = Field(
        default=1.2, description="Clients invited for each update wanted."
    )
    minimum: Annotated[int, Ge(1)] | None = Field(
        default=None, description="Updates without which a round fails; half."
    )
    deadline: Annotated[float, Gt(0), Le(30 * 86_400)] = Field(
        default=600.0, description="Seconds a round takes at most."
    )
    iteration_deadline: Annotated[float, Gt(0), Le(86_400)] = Field(
        default=60.0, description="The same for an iteration."
    )
    rounds: Annotated[int, Ge(1), Le(1_000_000)] = Field(default=100, description="Rounds that move the weights.")
    target: Annotated[float, Gt(0), Le(1)] | None = Field(default=None, description="Accuracy at which to stop.")
    patience: Annotated[int, Ge(1)] | None = Field(default=None, description="Evaluations without a better one: stop.")
    held_out: Annotated[str, Len(64, 64)] | None = Field(default=None, description="sha256 of uploaded examples.")
    evaluate_every: Annotated[int, Ge(1)] = Field(
        default=1, description="Rounds between evaluations of held-out examples."
    )
    device_evaluation: Annotated[int, Ge(0)] = Field(
        default=0, description="Rounds between evaluations on devices; 0: never."
    )
    average: Annotated[float, Ge(0), Lt(1)] = Field(
        default=0.0, description="What a running average of the weights keeps at each version; the average is measured."
    )
    norm_bound: Annotated[float, Gt(1)] = Field(
        default=20.0, description="How often the median norm an update may have."
    )
    keep: Annotated[int, Ge(1)] | None = Field(default=None, description="Rounds whose weights are kept; all.")
    keep_updates: bool = Field(default=False, description="Keep clients' updates after their round.")
    unmetered_only: bool = Field(default=False, description="No devices on a metered network.")
    mains_only: bool = Field(default=False, description="No devices on battery.")
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] | None = Field(default=None, description="Of all directions; drawn.")

    @model_validator(mode="before")
    @classmethod
    def _scalar_head(cls, values: Any) -> Any:
        """In mode iteration the head moves by scalars unless asked otherwise: its gradient may be a megabyte."""
        training = values.get("training") if isinstance(values, dict) else None
        if isinstance(training, dict) and training.get("mode") == "iteration" and "head" not in training:
            return {**values, "training": {**training, "head": "apart"}}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> JobSettings:
        training = self.training
        if self.minimum is not None and self.minimum > self.per_round:
            raise ValueError(f"minimum is {self.minimum}, more than per_round {self.per_round}: lower it")
        if training.mode == "iteration":
            known = training.estimator in ESTIMATORS  # or it was, when the job was made
            if known and not issubclass(kind_of(training), ScalarEstimator):
                raise ValueError(f"mode iteration sends derivatives: estimator {training.estimator} needs mode epoch")
            if training.optimizer != "sgd":
                raise ValueError("in mode iteration the server takes the step: leave training.optimizer at sgd")
        if (self.target or self.patience) and not (self.held_out or self.device_evaluation):
            raise ValueError("target and patience need an accuracy: give held_out examples or device_evaluation")
        return self

    @property
    def places(self) -> int:
        """Devices invited to a round."""
        return math.ceil(self.per_round * self.over_selection)

    def slots(self, units: int, places: int) -> list[Slot]:
        """So many places of a round, and who trains what there."""
        return slots(self.assignment, units, self.per_round, places, self.units_per_client or units)

    @property
    def fewest(self) -> int:
        """Reports without which a round fails."""
        return self.minimum or (self.per_round + 1) // 2

    @property
    def steps(self) -> int:
        """How often a round moves the weights: once, or in mode iteration after each of its iterations."""
        return 1 if self.training.mode == "epoch" else steps_in(self.training, 0)


@dataclass(frozen=True)
class Job:
    """A job as it stands."""

    id: str
    name: str
    bundle: str
    settings: JobSettings
    state: State
    reason: str
    version: int
    round: int
    done: int
    created: float
    ended: float | None


def create_job(store: Store, name: str, bundle: str, settings: JobSettings) -> Job:
    """Start a job on a bundle that has been uploaded whole."""
    missing = store.bundles.missing(bundle)
    if missing:
        raise Refusal(409, "incomplete", f"the bundle lacks {len(missing)} files, first {missing[0]}: upload them")
    if settings.held_out:
        if not store.blobs.has(settings.held_out):
            what = f"held-out examples {settings.held_out[:12]}… are not on the server"
            raise Refusal(409, "incomplete", f"{what}: PUT them first")
        check_held_out(store, bundle, settings.held_out)
    settings = complete(settings, store.bundles.manifest(bundle))
    number, now = secrets.token_hex(4), store.now()
    row = {
        "id": number, "name": name, "bundle": bundle, "settings": settings.model_dump(mode="json"), "state": RUNNING,
        "reason": "", "version": 0, "round": 0, "done": 0, "created": now,
    }  # fmt: skip
    with store.database.write() as connection:
        if connection.scalar(select(jobs.c.id).where(or_(jobs.c.name == name, jobs.c.id == name))):
            raise Refusal(409, "exists", f"there is a job {name!r} already; choose another name")
        if not connection.scalar(select(bundles.c.sha256).where(bundles.c.sha256 == bundle)):
            connection.execute(insert(bundles).values(sha256=bundle, created=now))
        connection.execute(insert(jobs).values(row))
        store.audit(connection, "admin", "job-created", number, name)
    return find_job(store, number)


def complete(settings: JobSettings, manifest: Manifest) -> JobSettings:
    """The settings with what they leave open; refused where the bundle cannot do it."""
    check_names(settings)
    training = kind_of(settings.training).settled(settings.training)
    places = settings.slots(len(manifest.units), settings.places)
    training = counted(training, manifest, [slot.units for slot in places])
    _check_report(training)
    check_programs(training, manifest)
    if not manifest.head and training.head != "exact":
        training = replace(training, head="exact")
    if training.head == "exact" and training.head_learning_rate is None:
        training = replace(training, head_learning_rate=_EXACT_HEAD_RATE * training.learning_rate)
    seed = secrets.randbits(63) if settings.seed is None else settings.seed
    return settings.model_copy(update={"training": training, "seed": seed})


def check_names(settings: JobSettings) -> None:
    """Refuse an estimator or aggregation that is not known here; a job that was made keeps its own, come what may."""
    kind_of(settings.training)
    check_aggregations(settings.optimizers)


def _check_report(training: Training) -> None:
    if training.mode == "iteration" and (count := training.directions * training.rows) > LARGEST_REPORT:
        raise Refusal(
            422,
            "invalid",
            f"mode iteration reports at most {LARGEST_REPORT} derivatives a step (directions x batch), not {count}: "
            "take fewer, or training.per_example=false, which reports one for all examples",
        )


def _job(row: Row[Any]) -> Job:
    return Job(
        id=row.id,
        name=row.name,
        bundle=row.bundle,
        settings=JobSettings.model_validate(row.settings),
        state=row.state,
        reason=row.reason,
        version=row.version,
        round=row.round,
        done=row.done,
        created=row.created,
        ended=row.ended,
    )


def _query() -> Select[Any]:
    return select(jobs).order_by(jobs.c.created, jobs.c.id)


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


def find_job(store: Store, job: str) -> Job:
    """By id or name."""
    with store.database.read() as connection:
        row = connection.execute(_query().where(or_(jobs.c.id == job, jobs.c.name == job))).one_or_none()
    if row is None:
        raise not_found("job", job, "GET /v1/jobs")
    return _job(row)


def list_jobs(store: Store, *states: State) -> list[Job]:
    """All jobs in the order of their creation, or those in some states."""
    query = _query().where(jobs.c.state.in_(states)) if states else _query()
    with store.database.read() as connection:
        rows = connection.execute(query).all()
    return [_job(row) for row in rows]


def set_state(store: Store, name: str, state: State, reason: str = "") -> Job:
    """Pause, resume or stop; a stopped job does not start again."""
    job = find_job(store, name)
    with store.database.write() as connection:
        moved = connection.execute(
            update(jobs).where(jobs.c.id == job.id, jobs.c.state != ENDED).values(state=state, reason=reason)
        ).rowcount
        if not moved:
            raise Refusal(409, "ended", f"job {job.name} has ended ({job.reason}); create another")
        if state == ENDED:
            end_job(store, connection, job.id, reason)
        store.audit(connection, "admin", f"job-{state}", job.id, reason)
    store.turn += 1
    return find_job(store, job.id)


def end_job(store: Store, connection: Connection, job: str, reason: str) -> None:
    """Within a transaction: no more rounds; what is open ends."""
    now = store.now()
    connection.execute(update(jobs).where(jobs.c.id == job).values(state=ENDED, reason=reason, ended=now))
    connection.execute(
        update(rounds)
        .where(rounds.c.job == job, rounds.c.state.in_(("open", "closing")))
        .values(state="failed", closed=now, result={"reason": reason})
    )
    connection.execute(
        update(tasks)
        .where(tasks.c.job == job, tasks.c.state == "open")
        .values(state="expired", ended=now, reason=f"the job ended: {reason}")
    )
