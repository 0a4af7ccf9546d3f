"""Define a job's settings: how it trains, and when it stops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Len, Lt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from edge_client.bundle.manifest import Manifest
from edge_client.commands.options.retired import refuse_settings
from edge_client.errors import SpryError
from edge_client.secagg.fixed import FEWEST
from edge_client.training.epoch import steps_in
from edge_client.wire.protocol import ServerOptimizers, Training
from server.aggregation.registry import PLAIN
from server.jobs.composition import OWN_STRATEGY, conflicts
from server.mirrors import Addresses
from server.policy.assignment import RoundSlot, Split, slots
from server.policy.depths import Depth, common_units, common_variant, depth_for
from server.policy.teams import team_slots, teams_of


class JobSettings(BaseModel):
    """The settings of a job: everything but its bundle."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    training: Training = Field(default=Training(), description="How clients train.")
    optimizers: ServerOptimizers = Field(default=ServerOptimizers(), description="How the server moves weights.")
    passes: Annotated[float, Ge(1), Le(1000)] | None = Field(
        default=None,
        description="Estimators auto and forward: the most forward passes of a step, in the mean; by default no limit.",
    )
    assignment: Split = Field(default="cyclic", description="How units are split among the clients of a round.")
    units_per_client: Annotated[int, Ge(0)] = Field(
        default=1, description="The fewest units of a client, 0 for all; with more, more clients share each unit."
    )
    per_round: Annotated[int, Ge(1), Le(100_000)] = Field(
        default=10, description="Clients, each a different device, whose updates complete a round."
    )
    over_selection: Annotated[float, Ge(1), Le(10)] = Field(
        default=1.2, description="Clients invited for each update wanted."
    )
    schedule: Literal["synchronous", "buffered"] = Field(
        default="synchronous",
        description="A round waits for its own clients (synchronous), or takes all updates that arrive (buffered).",
    )
    buffer: Annotated[int, Ge(1), Le(100_000)] | None = Field(
        default=None, description="Schedule buffered: updates that complete a round; by default a quarter of per_round."
    )
    max_staleness: Annotated[int, Ge(0), Le(1_000_000)] = Field(
        default=20, description="Schedule buffered: the most versions by which an update's first weights may be old."
    )
    minimum: Annotated[int, Ge(1)] | None = Field(
        default=None,
        description="The fewest updates of a successful round; by default half of per_round, or of the devices.",
    )
    deadline: Annotated[float, Gt(0), Le(30 * 86_400)] = Field(
        default=600.0, description="The longest time of a round, in seconds."
    )
    iteration_deadline: Annotated[float, Gt(0), Le(86_400)] = Field(
        default=60.0, description="The longest time of an iteration, in seconds."
    )
    rounds: Annotated[int, Ge(1), Le(1_000_000)] = Field(default=100, description="Rounds that move the weights.")
    target: Annotated[float, Gt(0), Le(1)] | None = Field(default=None, description="Accuracy at which to stop.")
    patience: Annotated[int, Ge(1)] | None = Field(
        default=None, description="Stop after so many evaluations without a better one."
    )
    held_out: Annotated[str, Len(64, 64)] | None = Field(default=None, description="sha256 of uploaded examples.")
    evaluate_every: Annotated[int, Ge(1)] = Field(
        default=1, description="Rounds between evaluations of held-out examples."
    )
    evaluate_answers: Annotated[int, Ge(0), Le(10_000)] = Field(
        default=0, description="Held-out rows whose answers a language model writes in full at each evaluation."
    )
    device_evaluation: Annotated[int, Ge(0)] = Field(
        default=0, description="Rounds between evaluations on devices; 0: never."
    )
    average: Annotated[float, Ge(0), Lt(1)] = Field(
        default=0.0,
        description="The share that a running average of the weights keeps at each version; it is measured.",
    )
    norm_bound: Annotated[float, Gt(1)] = Field(default=20.0, description="The longest update, in median norms.")
    strategy: Annotated[str, Len(1, 100)] = Field(
        default=OWN_STRATEGY,
        description="The strategy that computes the next weights from a round's updates; others can be installed.",
    )
    aggregation: Annotated[str, Len(1, 100)] = Field(
        default="mean",
        description="How the updates of a unit are combined: mean, or a Byzantine-robust rule, such as agreeing.",
    )
    weight_bound: Annotated[float, Ge(1)] = Field(
        default=4.0,
        description="The most that one client of a unit may weigh, in median weights of the unit's clients.",
    )
    secure_aggregation: bool = Field(
        default=False, description="Devices mask their updates: the server learns only sums."
    )
    min_holders: Annotated[int, Ge(FEWEST)] = Field(
        default=FEWEST, description="The fewest devices whose sum may be unmasked, with secure_aggregation."
    )
    keep: Annotated[int, Ge(1)] | None = Field(
        default=None, description="Rounds whose weights are kept; by default all."
    )
    keep_updates: bool = Field(default=False, description="Keep clients' updates after their round.")
    measure_features: bool = Field(
        default=True,
        description="Devices report statistics of the head's features, and the server uses them for the head's step.",
    )
    privacy_epsilon: Annotated[float, Gt(0), Le(1000)] | None = Field(
        default=None, description="The privacy budget (epsilon) of each device for the whole job; it sets the noise."
    )
    privacy_delta: Annotated[float, Gt(0), Lt(1)] = Field(default=1e-5, description="The delta of that epsilon.")
    privacy_noise: Annotated[float, Gt(0), Le(1000)] | None = Field(
        default=None,
        description="The noise multiplier: the noise of a round's sum, in clips; instead of epsilon or with it.",
    )
    privacy_clip: Annotated[float, Gt(0), Le(1e6)] = Field(
        default=0.01, description="The largest L2 norm of a private update; with a quantile, the first one."
    )
    privacy_quantile: Annotated[float, Gt(0), Lt(1)] | None = Field(
        default=None, description="The share of updates that an adaptive clip leaves whole."
    )
    privacy_times: Annotated[int, Ge(1)] | None = Field(
        default=None, description="The most rounds of a private job in which a device takes part; by default all."
    )
    mirrors: Addresses = Field(
        default="", description="Mirrors that have the bundle too, separated by commas; by default those of the server."
    )
    unmetered_only: bool = Field(default=False, description="No devices on a metered network.")
    mains_only: bool = Field(default=False, description="No devices on battery.")
    seed: Annotated[int, Ge(0), Le(2**63 - 1)] | None = Field(
        default=None, description="The seed of all directions; by default drawn."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, values: Any) -> Any:
        try:
            refuse_settings(values if isinstance(values, dict) else {})
        except SpryError as error:
            raise ValueError(str(error)) from None
        return values

    @model_validator(mode="before")
    @classmethod
    def _scalar_head(cls, values: Any) -> Any:
        """Move the head by scalars in mode iteration unless asked otherwise: its gradient may be a megabyte."""
        training = values.get("training") if isinstance(values, dict) else None
        if isinstance(training, dict) and training.get("mode") == "iteration" and "head" not in training:
            return {**values, "training": {**training, "head": "apart"}}
        return values

    @model_validator(mode="after")
    def _composed(self) -> JobSettings:
        if found := conflicts(self):
            raise ValueError("; also, ".join(found))
        return self

    @property
    def is_robust(self) -> bool:
        """True if updates are combined by a Byzantine-robust rule, which few malicious devices do not move far."""
        return self.aggregation != PLAIN

    @property
    def is_buffered(self) -> bool:
        """True if updates count in the round in which they arrive, not in the one that asked for them."""
        return self.schedule == "buffered"

    @property
    def complete(self) -> int:
        """The number of updates that complete a round."""
        if not self.is_buffered:
            return self.per_round
        return self.buffer or math.ceil(self.per_round / 4)

    @property
    def is_private(self) -> bool:
        """True if updates are clipped and noise is added: nothing else that examples decide leaves a device then."""
        return self.privacy_epsilon is not None or self.privacy_noise is not None

    @property
    def invited(self) -> int:
        """The number of devices invited to a round; in a buffered one, those at work and those that have reported."""
        if self.is_buffered:
            return self.per_round + self.complete
        return math.ceil(self.per_round * self.over_selection)

    def slots(self, manifest: Manifest, count: int) -> list[RoundSlot]:
        """Split the units among `count` slots of a round."""
        common = common_units(manifest, self.training, self.passes)
        units = len(common)
        least = self.units_per_client or units
        if self.secure_aggregation:
            dealt = team_slots(self.assignment, units, self.teams, count, least)
        else:
            dealt = slots(self.assignment, units, self.per_round, count, least)
        return [RoundSlot(slot.number, tuple(common[unit] for unit in slot.units)) for slot in dealt]

    def depth(self, manifest: Manifest, limits: Sequence[int]) -> Depth:
        """Choose the depth for devices each of which can backpropagate through so many blocks (`limits`).

        Secure aggregation and privacy budgets allow no choice: who trains which units must not depend on what
        devices can hold.
        """
        if self.secure_aggregation or self.is_private:
            return Depth(common_variant(manifest, self.training, self.passes).exact_blocks)
        return depth_for(manifest, self.training, self.passes, limits)

    @property
    def teams(self) -> int:
        """The number of groups of devices that train the same units, with secure aggregation."""
        return teams_of(self.per_round, self.min_holders)

    @property
    def sees(self) -> str:
        """The part of devices' work that the server can see, in words."""
        if self.secure_aggregation:
            noise = ", with the noise of each in them" if self.is_private else ""
            return f"sums of at least {self.min_holders} devices{noise}"
        return "each device's derivatives" if self.training.mode == "iteration" else "each device's update"

    @property
    def fewest(self) -> int:
        """The fewest reports with which a round succeeds, where there are as many devices as it wants."""
        return self.minimum or (self.per_round + 1) // 2

    def measures(self, manifest: Manifest) -> bool:
        """Tell whether the head's changes are sums of true gradients, of a layer whose features can be measured."""
        training = self.training
        sums = training.mode == "epoch" and training.head == "exact" and training.optimizer == "sgd"
        wanted = self.measure_features and self.optimizers.head.kind == "fedavg" and not self.secure_aggregation
        return wanted and sums and manifest.features is not None and not self.is_private

    def evaluates_in(self, number: int) -> bool:
        """Tell whether devices evaluate in a round."""
        return bool(self.device_evaluation) and number % self.device_evaluation == 0

    @property
    def steps(self) -> int:
        """The number of steps of the weights in a round: one, or in mode iteration one for each of its iterations."""
        return 1 if self.training.mode == "epoch" else steps_in(self.training, 0)
