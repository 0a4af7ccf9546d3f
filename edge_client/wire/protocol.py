"""Define the messages between devices and the server: the JSON of the wire, and the settings that travel in it.

Plain dataclasses: the device reads them with msgspec, the server with pydantic, which also checks the bounds noted here
and writes them into the OpenAPI document. Fields may be added with a default; readers ignore those they do not know.
Tensors travel as safetensors, scalars as the records of `edge_client.wire.scalars`.

    POST /v1/devices                    Enrolment -> Enrolled
    PUT  /v1/device-key                 DeviceKey -> Enrolled
    GET  /v1/open-jobs                  [OpenJob]: what the running jobs ask of rows
    POST /v1/check-in                   CheckIn -> CheckedIn: a task, or when to come back
    GET  /v1/bundles/{sha256}/{path}    a file of a bundle; the manifest's own sha256 names the bundle
    GET  /v1/jobs/{job}/weights?since=V safetensors: the parameters that changed after version V, published when it says
    GET  /v1/jobs/{job}/steps?since=V   records of iterations after version V, waiting up to `wait` seconds for one
    PUT  /v1/tasks/{task}/update        safetensors with a Report in its metadata -> Receipt
    GET  /v1/tasks/{task}/sum           where a sum stands (`edge_client.secagg.messages`)
    PUT  /v1/tasks/{task}/sum/{message} what a device says at a stage of it -> Receipt
    PUT  /v1/tasks/{task}/jvps/{i}      a scalar report -> Receipt
    PUT  /v1/tasks/{task}/judgement     EvaluationReport -> Receipt, behind the last step of a round of mode iteration
    POST /v1/tasks/{task}/failure       Failure -> Receipt

A refusal is a problem document (RFC 9457) with a `code` out of `RefusalCode` where a device must react to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Len, Lt

VERSION = "v1"
PROBLEM = "application/problem+json"
SAFETENSORS = "application/vnd.safetensors"
STEPS = "application/vnd.spry.steps"
VERSION_HEADER = "X-Spry-Version"
"""The version of the weights that a response holds or leads to."""

Mode = Literal["epoch", "iteration"]
DirectionKind = Literal["normal", "rademacher", "orthogonal"]
HeadGradient = Literal["exact", "apart", "joint"]
Optimizer = Literal["sgd", "adamw"]
Power = Literal["mains", "battery", "unknown"]

RefusalCode = Literal[
    "unauthorized",  # no such device, wrong secret, or revoked: enrol again
    "replayed",  # signed no later than what the device sent before: sign anew
    "foreign",  # another device's task
    "late",  # the round is over
    "stale",  # an iteration that is over, or weights of another version
    "invalid",  # not what the task asked for: shape, dtype, units, not finite
    "norm",  # far outside what the round's others sent
    "too-large",
    "busy",  # come back after Retry-After
    "paused",
]

Name = Annotated[str, Len(1, 100)]
Positive = Annotated[int, Ge(1), Le(2**20)]
Version = Annotated[int, Ge(0), Le(2**31 - 1)]
Index = Annotated[int, Ge(0), Lt(2**16)]
"""The largest number of a unit, a segment or a member of a secure sum."""
Moment = Annotated[float, Ge(0), Le(1e12)]
"""Seconds since 1970, by the server's clock."""
Wait = Annotated[float, Ge(0), Le(1e6)]
Rate = Annotated[float, Gt(0), Lt(1e3)]
MOST_MIRRORS, LONGEST_MIRROR = 20, 200
"""Static places of a bundle that a task names at most, and the characters of an address."""


@dataclass(frozen=True)
class Training:
    """The training of a job's clients; the defaults are this project's, the paper's are a preset of the server."""

    mode: Mode = "epoch"
    estimator: Name = "forward"
    """One of `edge_client.estimators.registry`, or of another distribution."""
    batch: Positive = 8
    length: Positive = 64
    epochs: Positive = 1
    """Passes over the client's examples in a round (mode epoch)."""
    iterations: Annotated[int, Ge(0), Le(2**31 - 1)] = 0
    """Steps in a round; in mode epoch 0 leaves the number to `epochs`, in mode iteration 0 means 1."""
    directions: Annotated[int, Ge(0), Le(2**20)] = 1
    """K: directions per example (forward) or perturbations per batch (central). 0 leaves it to the server: as many as
    the numbers in a client's units. A task always has some."""
    kind: DirectionKind = "normal"
    per_example: bool = True
    """Each example of a batch moves along directions of its own (forward)."""
    head: HeadGradient = "exact"
    """The head's gradient: exact, estimated from its own derivative, or from one derivative of units and head."""
    sigma: Annotated[float, Gt(0), Le(1)] = 1e-3
    """The step of a central difference."""
    optimizer: Optimizer = "sgd"
    """The client's own, which makes its steps."""
    learning_rate: Rate = 1e-2
    head_learning_rate: Rate | None = None
    """The head's; `learning_rate` when left out."""
    weight_decay: Annotated[float, Ge(0), Lt(1)] = 0.0
    """The weight decay of a step, times its rate (adamw)."""
    exact_blocks: Annotated[int, Ge(0), Le(2**16)] = 1
    """The model's last blocks that a step goes back through (mixed)."""
    pack: bool = False
    """Short examples stand together in one sequence (language models)."""

    @property
    def rows(self) -> int:
        """Derivatives along each direction of a step: one of each example, or their mean where they share it."""
        return self.batch if self.per_example else 1


@dataclass(frozen=True)
class ServerOptimizer:
    """The server's optimizer of weights by the mean change that clients report; in mode iteration clients repeat it."""

    kind: Name = "fedyogi"
    """One of `edge_client.training.server_optimizers`, or of another distribution."""
    learning_rate: Rate = 1e-3
    """The server's rate; fedavg takes the mean as it is."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """The decay rate of the first moment."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.99
    """The decay rate of the second moment."""
    tau: Annotated[float, Gt(0), Le(1)] = 1e-3
    """Added to the root of that mean: smaller changes make smaller steps."""


@dataclass(frozen=True)
class ServerOptimizers:
    """The optimizers of the server: one for the adapter's units, one for the head.

    Estimates of the units' gradients are noisy, and an adaptive optimizer evens the noise out; the head's gradient is
    exact unless a job says otherwise, so its mean is taken as it is.
    """

    units: ServerOptimizer = field(default_factory=ServerOptimizer)
    head: ServerOptimizer = field(default_factory=lambda: ServerOptimizer("fedavg"))


@dataclass(frozen=True)
class Enrolment:
    """A device asks to take part."""

    token: Annotated[str, Len(1, 200)]
    name: Name
    version: Annotated[str, Len(0, 50)] = ""
    public_key: Annotated[str, Len(0, 43)] = ""
    """Ed25519, in base64url: what the device signs its requests with. Empty: it is given a secret to send."""
    proof: Annotated[str, Len(0, 86)] = ""
    """The key's signature over the token and itself (`edge_client.wire.proofs.enrolment_text`), in base64url."""


@dataclass(frozen=True)
class Enrolled:
    """Shown once; the server keeps a hash."""

    device: str
    secret: str
    """Empty where the device has a key of its own."""


@dataclass(frozen=True)
class DeviceKey:
    """The key by which a device signs its requests from now on; its secret becomes invalid."""

    public_key: Annotated[str, Len(43, 43)]
    proof: Annotated[str, Len(0, 86)] = ""
    """The new key's signature over the device and itself (`edge_client.wire.proofs.key_text`), in base64url."""


@dataclass(frozen=True)
class OpenJob:
    """A running job's demands on a device's rows, sent before a slot is taken."""

    job: Name
    job_name: Name
    task: Name
    labels: list[str]
    """The job's classes, where it has any."""


@dataclass(frozen=True)
class CheckIn:
    """A device's state at this moment: its runtimes, memory, rows and conditions."""

    runtimes: Annotated[list[Name], Len(0, 20)]
    examples: Annotated[int, Ge(0), Le(2**40)] = 0
    memory_bytes: Annotated[int, Ge(0), Le(2**50)] | None = None
    """The most memory that training may take; None where the device cannot tell."""
    power: Power = "unknown"
    metered: bool = False
    job: Name | None = None
    """Id or name of the only job it wants; any when left out."""
    step_seconds: Annotated[float, Ge(0), Le(1e9)] | None = None
    """The mean seconds of a training step in the last round that it took part in."""
    resident_bytes: Annotated[int, Ge(0), Le(2**50)] | None = None
    """The most memory that its process has taken."""
    low_memory: bool = False
    """True if it holds one program at a time."""
    unfit: Annotated[dict[Name, Annotated[str, Len(1, 300)]], Len(0, 20)] = field(default_factory=dict[str, str])
    """The reason for each job that its rows do not fit, by its id."""
    sums: bool = False
    """True if it can add its update to those of others by secure aggregation."""
    only_sums: bool = False
    """True if it takes no task whose update the server would see."""
    adds_noise: bool = False
    """True if it can add its share of a private sum's noise to its update."""


@dataclass(frozen=True)
class Sum:
    """A sum that a task's update is added to, of which the server learns the total alone."""

    place: Index
    units: list[Index]
    """The units of the task that are added, which all of a team hold."""
    least: Annotated[int, Ge(1), Lt(2**16)]
    """Devices of whose parts a sum is opened."""
    scores: Annotated[list[Name], Len(0, 20)] = field(default_factory=list[str])
    """The scores in reports beside what is counted, in this order."""
    noise: Annotated[float, Ge(0), Le(1e9)] | None = None
    """Deviations of the noise, in clips of the task, that devices lay on the sum together; None: none."""
    format: Annotated[int, Ge(1), Lt(2**16)] = 1
    """The form of the sum's messages (`edge_client.secagg.messages`)."""


@dataclass(frozen=True)
class Task:
    """One client's part in a round."""

    id: Name
    job: Name
    job_name: Name
    round: Version
    seed: Annotated[int, Ge(0), Lt(2**64)]
    """The seed of its directions and the order of its examples."""
    units: list[Index]
    cut: Index
    """The segment at which tangents start."""
    bundle: Name
    """The sha256 of the bundle's manifest."""
    runtime: Name
    version: Version
    """The weights to start from."""
    iteration: Version
    """Mode iteration: the first step of the round that is still open."""
    seconds: Annotated[float, Ge(0), Le(1e9)]
    """The seconds for which the round takes updates."""
    training: Training
    optimizers: ServerOptimizers
    batch: Positive
    """The batch to run at most: `training.batch`, or less where the device's memory is short."""
    evaluate: bool = False
    """Measure the global and the personal model on examples held back, and report."""
    measure: bool = False
    """Tell the moments of what reaches the head's last layer, beside the update (mode epoch)."""
    clip: Annotated[float, Gt(0), Le(1e30)] | None = None
    """The norm to which the whole update is clipped, in a job with a privacy budget: a longer one is shortened,
    and its report has no loss and no number of examples."""
    sum: Sum | None = None
    """The sum to which the update is added by secure aggregation; None where it is sent as it is."""
    mirrors: Annotated[list[Annotated[str, Len(1, LONGEST_MIRROR)]], Len(0, MOST_MIRRORS)] = field(
        default_factory=list[str]
    )
    """Static places that have the bundle too (`edge_client.store.mirrors`)."""
    weights: Annotated[str, Len(0, 64)] = ""
    """The sha256 of the weights to start from, where the mirrors have them too; empty where the server alone has."""
    published: Moment = 0.0
    """The time at which the version to start from was published, which tells it from one of the same number that a
    server restored from a backup has lost. 0: not told, as of version 0, in mode iteration and by servers of an earlier
    version."""


@dataclass(frozen=True)
class CheckedIn:
    """A task, or the seconds to wait and why there is none."""

    task: Task | None = None
    wait: Wait = 0.0
    reason: Annotated[str, Len(0, 2000)] = ""


Finite = Annotated[float, Ge(-1e30), Le(1e30)]
Count = Annotated[int, Ge(0), Le(2**40)]
Sums = Annotated[dict[Name, Finite], Len(0, 20)]


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """The scores of a round's global weights and of a device's own; mode iteration sends it by itself, at the end."""

    held_back: Count = 0
    """Examples that the two counts below are of."""
    right_global: Count = 0
    right_personal: Count = 0
    sums_global: Sums = field(default_factory=dict[str, float])
    sums_personal: Sums = field(default_factory=dict[str, float])
    """Sums of the task's other scores over the same predictions, by their names: losses, or shares."""


@dataclass(frozen=True)
class Report(EvaluationReport):
    """A client's report on its training, beside an update's tensors."""

    examples: Annotated[int, Ge(1), Le(2**40)]
    """The examples trained on: an update's weight."""
    steps: Annotated[int, Ge(1), Le(2**31)]
    loss: Finite
    """Mean over the steps, before each."""
    seconds: Annotated[float, Ge(0), Le(1e9)] = 0.0
    peak_bytes: Count = 0
    measured: Count = 0
    """Rows of features that the moments beside the update are of."""


@dataclass(frozen=True)
class Failure:
    """The reason why a device gives a task back."""

    reason: Annotated[str, Len(1, 500)]


@dataclass(frozen=True)
class Receipt:
    """An accepted report; it is on disk."""

    wait: Wait
    """Seconds after which a check-in is worth while."""
    repeated: bool = False
    """True if the same report had been accepted before."""


@dataclass(frozen=True)
class Problem:
    """RFC 9457."""

    title: str
    status: int
    detail: str
    code: str = ""
    type: str = "about:blank"
