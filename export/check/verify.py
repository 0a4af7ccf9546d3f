"""Does a bundle compute what it claims? Every runtime's chain against the model, over fresh random directions.

The loss is held against eager PyTorch, the directional derivatives against `torch.func.jvp`, the exact gradient
against `torch.autograd`, and `torch.func.jvp` itself once against finite differences. A quantized bundle is compared
with the model whose weights are quantized alike, which leaves the error of the activations; what the quantized weights
do to the estimated gradient is reported against the float model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from edge_client.bundle.manifest import Check, Manifest, Precision, RuntimeSpec, Unit
from edge_client.runtimes import trials
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.stepper import Step, Stepper
from export.adapt.wrapping import Adapted
from export.check.reference import Reference
from export.errors import VerificationFailed
from export.model.loading import Loaded
from export.model.samples import sample_inputs

JVP_BOUND: dict[Precision, float] = {"none": 1e-4, "int8": 0.05, "int4": 0.25}
"""Root-mean-square error of the directional derivatives, relative to their root mean square."""
LOSS_BOUND: dict[Precision, float] = {"none": 1e-4, "int8": 0.02, "int4": 0.05}
GRADIENT_BOUND: dict[Precision, float | None] = {"none": 1e-4, "int8": None, "int4": None}
SLOPE_BOUND = 0.05
_STEPS = (0.1, 0.03, 0.01, 0.001)
"""Of finite differences: curvature spoils long ones and rounding short ones, how long depends on the model."""
_SPREAD = 0.02
"""Adapters start as no-ops; verification moves them, so that every derivative is exercised."""


@dataclass(frozen=True)
class Sample:
    """One batch, a point to differentiate at, and directions there; the same for every runtime."""

    inputs: dict[str, Tensor]
    values: dict[str, Tensor]
    directions: list[dict[str, Tensor]]
    entering: list[dict[str, Tensor]]
    """Those of units whose tangents enter at bottlenecks, each example's own: [batch, tokens, rank]."""


def make_sample(loaded: Loaded, adapted: Adapted, manifest: Manifest, directions: int, seed: int) -> Sample:
    batch, length = manifest.shapes[0]
    generator = torch.Generator().manual_seed(seed)
    keys = [parameter.name for parameter in manifest.trained]
    initial = {key: adapted.initial[key].float() for key in keys}
    values = {key: value + _SPREAD * torch.randn(value.shape, generator=generator) for key, value in initial.items()}
    moving = [p.name for unit in manifest.units if unit.tangents == "weights" for p in unit.parameters]
    drawn = [{key: torch.randn(values[key].shape, generator=generator) for key in moving} for _ in range(directions)]
    entering = [
        {key: _entering(unit, batch, length, generator) for key, unit in manifest.bottlenecks.items()}
        for _ in range(directions)
    ]
    return Sample(sample_inputs(loaded, batch, length, seed), values, drawn, entering)


def _entering(unit: Unit, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """A direction at a unit's bottleneck for all tokens: zero but for the only one that it sees, if it sees one."""
    (entrance,) = unit.tangents_of(length)
    drawn = torch.randn(batch, *entrance.shape, generator=generator)
    if unit.token is None:
        return drawn
    whole = torch.zeros(batch, length, entrance.shape[1])
    whole[:, unit.token] = drawn[:, 0]
    return whole


class Truth:
    """What a model says of a sample, found once for all runtimes that are held against it."""

    def __init__(self, model: Reference, sample: Sample) -> None:
        self.sample = sample
        self._model = model

    @cached_property
    def losses(self) -> np.ndarray:
        with torch.no_grad():
            return self._model.losses(self.sample.inputs, self.sample.values).numpy()

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        return self._model.gradient(self.sample.inputs, self.sample.values)

    @cached_property
    def jvps(self) -> np.ndarray:
        """One row for each direction, of each example."""
        sample = self.sample
        pairs = zip(sample.directions, sample.entering, strict=True)
        return np.stack([self._model.jvp(sample.inputs, sample.values, *pair).numpy() for pair in pairs])

    @cached_property
    def moved(self) -> dict[str, Tensor]:
        """What the first direction at bottlenecks is in their factors' weights, [batch, rank, features]."""
        sample, first = self.sample, self.sample.entering[0]
        entering = self._model.entering(sample.inputs, sample.values, first)
        return {name: v.transpose(1, 2) @ entering[name] for name, v in first.items()}

    @cached_property
    def disagreement(self) -> float:
        """How far finite differences along the first direction are from its derivative."""
        sample = self.sample
        slopes = [
            self._model.slope(sample.inputs, sample.values, sample.directions[0], step, sample.entering[0])
            for step in _STEPS
        ]
        return min(_relative(slope.numpy(), self.jvps[0]) for slope in slopes)


def verify(
    folder: Path, manifest: Manifest, runtime: str, truth: Truth, unquantized: Truth, *, low_memory: bool = False
) -> list[Check]:
    """The report of one runtime; `truth` is of weights quantized like the runtime's."""
    precision = manifest.runtimes[runtime].precision
    batch, length = manifest.shapes[0]
    with open_runtime(runtime, folder) as opened:
        shape = batch, length, manifest.directions[0]
        stepper = Stepper(manifest, opened, runtime, *shape, low_memory=low_memory)
        checks = list(_checks(stepper, precision, truth, unquantized))
    return [Check(runtime, precision, what, value, bound, passed) for what, value, bound, passed in checks]


def with_trials(folder: Path, runtime: str, spec: RuntimeSpec) -> RuntimeSpec:
    """With what devices hold their own runtime against, now that this one has been found right."""
    with open_runtime(runtime, folder) as opened:
        return msgspec.structs.replace(spec, trials=trials.noted(opened, spec))


_Line = tuple[str, float, float | None, bool]


def _checks(stepper: Stepper, precision: Precision, truth: Truth, unquantized: Truth) -> Iterator[_Line]:
    sample = truth.sample
    tokens = {name: value.numpy() for name, value in sample.inputs.items() if name != "labels"}
    labels = sample.inputs["labels"].numpy()
    weights = {name: value.numpy() for name, value in sample.values.items()}
    loss = stepper.forward(tokens, labels, weights).loss
    yield _line("loss, relative error", _relative(loss, truth.losses), LOSS_BOUND[precision])

    exact = stepper.exact(tokens, labels, weights, _first_cut(stepper), low_memory=True)
    error = _relative(_flat(exact.gradients, truth.gradient), _flat(truth.gradient, truth.gradient))
    yield _line("exact gradient, relative error against autograd", error, GRADIENT_BOUND[precision])
    if not sample.directions or not stepper.manifest.units:
        return
    pairs = zip(sample.directions, sample.entering, strict=True)
    steps = [_step(stepper, tokens, labels, weights, _repeated(stepper, *pair)) for pair in pairs]
    jvps = np.stack([step.jvp[0] for step in steps])
    yield _line(
        f"jvp, RMS error over {len(jvps)} directions against torch.func.jvp",
        _relative(jvps, truth.jvps),
        JVP_BOUND[precision],
    )
    yield _line("torch.func.jvp against finite differences", truth.disagreement, SLOPE_BOUND)
    if truth.moved:
        moved = {name: value[: stepper.chain.batch] for name, value in steps[0].moved.items()}
        error = _relative(_flat(moved, truth.moved), _flat(truth.moved, truth.moved))
        yield _line("directions at bottlenecks in weights, relative error", error, JVP_BOUND[precision])
    if precision != "none":
        float_jvps = unquantized.jvps
        cosine = float(np.vdot(jvps, float_jvps) / (np.linalg.norm(jvps) * np.linalg.norm(float_jvps)))
        yield "cosine of the estimated gradient with the float model's", cosine, None, True
        yield "loss, relative change by quantization", _relative(loss, unquantized.losses), None, True


def _line(what: str, value: float, bound: float | None) -> _Line:
    return what, value, bound, bound is None or value <= bound


def _step(
    stepper: Stepper,
    tokens: Mapping[str, np.ndarray],
    labels: np.ndarray,
    weights: Mapping[str, np.ndarray],
    directions: Mapping[str, np.ndarray],
) -> Step:
    return stepper.along(tokens, labels, weights, directions, _first_cut(stepper))


def _repeated(
    stepper: Stepper, direction: Mapping[str, Tensor], entering: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    """One direction of weights that all examples share, and one of each at bottlenecks, in place of all K."""
    batch, count = stepper.chain.batch, stepper.chain.directions
    repeated = {name: value.expand(count * batch, *value.shape) for name, value in direction.items()}
    for name, unit in stepper.manifest.bottlenecks.items():
        seen = slice(None) if unit.token is None else slice(unit.token, unit.token + 1)
        repeated[name] = entering[name][:, seen].repeat(count, 1, 1)
    return {name: np.ascontiguousarray(value.numpy()) for name, value in repeated.items()}


def _first_cut(stepper: Stepper) -> int:
    return next(iter(stepper.chain.starts()), stepper.chain.head)


def _flat(values: Mapping[str, np.ndarray | Tensor], like: Mapping[str, Tensor]) -> np.ndarray:
    return np.concatenate([np.asarray(values[name]).ravel() for name in like])


def _relative(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / max(float(np.linalg.norm(expected)), 1e-30))


def refuse_failures(checks: list[Check]) -> None:
    failed = [check for check in checks if not check.passed]
    if failed:
        lines = "; ".join(f"{c.runtime} {c.precision}: {c.what} is {c.value:.2g}, bound {c.bound:g}" for c in failed)
        raise VerificationFailed(
            f"verification failed: {lines}; nothing was written (does --quantize none pass? then quantize less)",
            frozenset(check.runtime for check in failed),
        )
