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

import numpy as np
import torch
from torch import Tensor

from edge_client.bundle.manifest import Check, Manifest, Precision
from edge_client.runtimes.runtime import open_runtime
from edge_client.step.stepper import Stepper
from export.adapt.wrapping import Adapted
from export.check.reference import Reference
from export.errors import ExportError
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


def make_sample(loaded: Loaded, adapted: Adapted, manifest: Manifest, directions: int, seed: int) -> Sample:
    batch, length = manifest.shapes[0]
    generator = torch.Generator().manual_seed(seed)
    keys = [parameter.name for parameter in manifest.trained]
    initial = {key: adapted.initial[key].float() for key in keys}
    values = {key: value + _SPREAD * torch.randn(value.shape, generator=generator) for key, value in initial.items()}
    moving = [p.name for unit in manifest.units for p in unit.parameters]
    drawn = [{key: torch.randn(values[key].shape, generator=generator) for key in moving} for _ in range(directions)]
    return Sample(sample_inputs(loaded, batch, length, seed), values, drawn)


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
        return np.stack([self._model.jvp(sample.inputs, sample.values, d).numpy() for d in sample.directions])

    @cached_property
    def disagreement(self) -> float:
        """How far finite differences along the first direction are from its derivative."""
        sample = self.sample
        slopes = [self._model.slope(sample.inputs, sample.values, sample.directions[0], step) for step in _STEPS]
        return min(_relative(slope.numpy(), self.jvps[0]) for slope in slopes)


def verify(folder: Path, manifest: Manifest, runtime: str, truth: Truth, unquantized: Truth) -> list[Check]:
    """The report of one runtime; `truth` is of weights quantized like the runtime's."""
    precision = manifest.runtimes[runtime].precision
    batch, length = manifest.shapes[0]
    with open_runtime(runtime, folder) as opened:
        stepper = Stepper(manifest, opened, runtime, batch, length, manifest.directions[0])
        checks = list(_checks(stepper, precision, truth, unquantized))
    return [Check(runtime, precision, what, value, bound, passed) for what, value, bound, passed in checks]


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
    jvps = np.stack([_jvp(stepper, tokens, labels, weights, direction) for direction in sample.directions])
    yield _line(
        f"jvp, RMS error over {len(jvps)} directions against torch.func.jvp",
        _relative(jvps, truth.jvps),
        JVP_BOUND[precision],
    )
    yield _line("torch.func.jvp against finite differences", truth.disagreement, SLOPE_BOUND)
    if precision != "none":
        float_jvps = unquantized.jvps
        cosine = float(np.vdot(jvps, float_jvps) / (np.linalg.norm(jvps) * np.linalg.norm(float_jvps)))
        yield "cosine of the estimated gradient with the float model's", cosine, None, True
        yield "loss, relative change by quantization", _relative(loss, unquantized.losses), None, True


def _line(what: str, value: float, bound: float | None) -> _Line:
    return what, value, bound, bound is None or value <= bound


def _jvp(
    stepper: Stepper,
    tokens: Mapping[str, np.ndarray],
    labels: np.ndarray,
    weights: Mapping[str, np.ndarray],
    direction: Mapping[str, Tensor],
) -> np.ndarray:
    """The chain's derivative of each example along one direction that all examples share."""
    rows = stepper.chain.batch * stepper.chain.directions
    repeated = {
        name: np.ascontiguousarray(np.broadcast_to(value.numpy(), (rows, *value.shape)))
        for name, value in direction.items()
    }
    derivatives: np.ndarray = stepper.along(tokens, labels, weights, repeated, _first_cut(stepper)).jvp[0]
    return derivatives


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
        raise ExportError(
            f"verification failed: {lines}; nothing was written (does --quantize none pass? then quantize less)"
        )
