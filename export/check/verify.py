"""Does a bundle compute what it claims? Every runtime's chain against the model, over fresh random directions.

The loss is held against eager PyTorch, the directional derivatives against `torch.func.jvp`, the exact gradient
against `torch.autograd`, and `torch.func.jvp` itself once against finite differences. Where both agree along the first
directions, derivatives along further ones are products with `torch.autograd`'s gradients, which cost nothing more.

A quantized bundle is compared with the model whose weights are quantized alike, which leaves the error of the
activations; what the quantized weights do to the estimated gradient is reported against the float model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
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
from export.adapt.adapted import Adapted
from export.check.reference import Reference
from export.errors import VerificationFailed
from export.model.loading import Loaded
from export.model.samples import sample_inputs

JVP_BOUND: dict[Precision, float] = {"none": 1e-4, "int8": 0.05, "int4": 0.25}
"""Root-mean-square error of the directional derivatives, relative to their root mean square."""
LOSS_BOUND: dict[Precision, float] = {"none": 1e-4, "int8": 0.02, "int4": 0.05}
GRADIENT_BOUND: dict[Precision, float | None] = {"none": 1e-4, "int8": None, "int4": None}
SLOPE_BOUND = 0.05
_STEPS = (0.1, 0.03, 0.01, 0.003, 0.001)
"""The steps of finite differences: curvature spoils long ones and rounding short ones, depending on the model."""
_CLOSE = 0.2
"""The share of their bound within which no other step is tried."""
_BY_JVP = 3
"""Directions that `torch.func.jvp` takes: together they cost what a way back does."""
_SURE, _LEAST = 2.0, 4
"""Standard deviations that an error must be away from its bound, and derivatives that it must be of."""
_SPREAD = 0.02
"""Adapters start as no-ops; verification moves them, so that every derivative is exercised."""


@dataclass(frozen=True)
class Sample:
    """One batch, a point to differentiate at, and directions there; the same for every runtime."""

    inputs: dict[str, Tensor]
    values: dict[str, Tensor]
    directions: list[dict[str, Tensor]]
    entering: list[dict[str, Tensor]]
    """The directions of units whose tangents enter at bottlenecks, each example's own: [batch, tokens, rank]."""


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
    """Return a direction at a unit's bottleneck for all tokens: zero but for the only one that it sees, if any."""
    (entrance,) = unit.tangents_of(length)
    drawn = torch.randn(batch, *entrance.shape, generator=generator)
    if unit.token is None:
        return drawn
    whole = torch.zeros(batch, length, entrance.shape[1])
    whole[:, unit.token] = drawn[:, 0]
    return whole


class Truth:
    """A model's results on a sample, computed once for all runtimes that are held against it."""

    def __init__(self, model: Reference, sample: Sample) -> None:
        self.sample = sample
        self._model = model
        self._along: list[tuple[np.ndarray, np.ndarray]] = []

    @cached_property
    def losses(self) -> np.ndarray:
        if any(self.sample.directions[:1] + self.sample.entering[:1]):
            return self._to(1)[0][0]  # they come with a derivative, where anything moves
        with torch.no_grad():
            return self._model.losses(self.sample.inputs, self.sample.values).numpy()

    @cached_property
    def gradient(self) -> dict[str, Tensor]:
        return self._backward[0]

    def jvps(self, count: int) -> np.ndarray:
        """Derivatives along the first directions, [count, batch].

        The first ones are `torch.func.jvp`'s. Where they agree with products of directions and gradients by
        `torch.autograd`, the others are such products: one way back gives any number of them, and takes more memory.
        """
        first = np.stack([slopes for _, slopes in self._to(min(count, _BY_JVP))])
        if count <= _BY_JVP:
            return first
        products = self._backward[1][:count]
        if _relative(products[:_BY_JVP], first) > JVP_BOUND["none"]:
            return np.stack([slopes for _, slopes in self._to(count)])
        return np.concatenate([first, products[_BY_JVP:]])

    def _to(self, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Losses and derivatives along the first directions, by `torch.func.jvp`."""
        sample = self.sample
        pairs = [*zip(sample.directions, sample.entering, strict=True)]
        for pair in pairs[len(self._along) : count]:
            losses, slopes = self._model.along(sample.inputs, sample.values, *pair)
            self._along.append((losses.numpy(), slopes.numpy()))
        return self._along[:count]

    @cached_property
    def _backward(self) -> tuple[dict[str, Tensor], np.ndarray]:
        """The gradient of the mean loss, and products of examples' gradients with all directions."""
        sample = self.sample
        gradient, slopes = self._model.backward(sample.inputs, sample.values, sample.directions, sample.entering)
        return gradient, slopes.numpy()

    @cached_property
    def moved(self) -> dict[str, Tensor]:
        """Give the first direction at bottlenecks as one of their factors' weights, [batch, rank, features]."""
        sample, first = self.sample, self.sample.entering[0]
        if not first:
            return {}
        entering = self._model.entering(sample.inputs, sample.values, first)
        return {name: v.transpose(1, 2) @ entering[name] for name, v in first.items()}

    @cached_property
    def disagreement(self) -> float:
        """The error of finite differences along the first direction against its derivative, by the first good step."""
        sample, least = self.sample, math.inf
        for step in _STEPS:
            slope = self._model.slope(sample.inputs, sample.values, sample.directions[0], step, sample.entering[0])
            least = min(least, _relative(slope.numpy(), self.jvps(1)[0]))
            if least < _CLOSE * SLOPE_BOUND:
                break
        return least


@dataclass(frozen=True)
class Extent:
    """The part of a bundle that is verified against the model."""

    exact: bool = True
    """True if backward programs are verified, and the model's own derivatives."""
    beside_float: bool = True
    """True if the change by quantized weights is measured."""
    adaptive: bool = False
    """True if directions end where the error is far enough from its bound, and the float model takes the first."""


EVERYTHING = Extent()


def verify(
    folder: Path,
    manifest: Manifest,
    runtime: str,
    truth: Truth,
    unquantized: Truth,
    *,
    low_memory: bool = False,
    extent: Extent = EVERYTHING,
    advance: Callable[[str], None] = lambda _: None,
) -> list[Check]:
    """Verify one runtime and return its report; `truth` has weights quantized like the runtime's."""
    precision = manifest.runtimes[runtime].precision
    batch, length = manifest.shapes[0]
    with open_runtime(runtime, folder) as opened:
        shape = batch, length, manifest.directions[0]
        stepper = Stepper(manifest, opened, runtime, *shape, low_memory=low_memory)
        checks = list(_Checks(stepper, precision, truth, unquantized, extent, advance).lines())
    return [Check(runtime, precision, what, value, bound, passed) for what, value, bound, passed in checks]


def with_trials(folder: Path, runtime: str, spec: RuntimeSpec) -> RuntimeSpec:
    """Add the trials by which devices check their own runtime, now that this one has been verified."""
    with open_runtime(runtime, folder) as opened:
        return msgspec.structs.replace(spec, trials=trials.noted(opened, spec))


_Line = tuple[str, float, float | None, bool]


class _Checks:
    """The lines of one runtime's report."""

    def __init__(
        self,
        stepper: Stepper,
        precision: Precision,
        truth: Truth,
        unquantized: Truth,
        extent: Extent,
        advance: Callable[[str], None],
    ) -> None:
        sample = truth.sample
        self._stepper, self._extent, self._advance = stepper, extent, advance
        self._precision: Precision = precision
        self._truth, self._unquantized = truth, unquantized
        self._directions = len(sample.directions) if stepper.manifest.units else 0
        self._inputs = _inputs(sample)

    def lines(self) -> Iterator[_Line]:
        truth, bound = self._truth, JVP_BOUND[self._precision]
        loss = self._stepper.forward(*self._inputs).loss
        yield _line("loss, relative error", _relative(loss, truth.losses), LOSS_BOUND[self._precision])
        self._advance("loss")
        if self._extent.exact:
            yield self._gradient()
        if not self._directions:
            return
        steps = self._steps(bound)
        jvps = np.stack([step.jvp[0] for step in steps])
        error = _relative(jvps, truth.jvps(len(jvps)))
        many = f"{len(jvps)} direction{'s' if len(jvps) > 1 else ''}"
        yield _line(f"jvp, RMS error over {many} against torch.func.jvp", error, bound)
        if self._extent.exact:
            yield _line("torch.func.jvp against finite differences", truth.disagreement, SLOPE_BOUND)
            self._advance("finite differences")
            if truth.moved:
                moved = {name: value[: self._stepper.chain.batch] for name, value in steps[0].moved.items()}
                error = _relative(_flat(moved, truth.moved), _flat(truth.moved, truth.moved))
                yield _line("directions at bottlenecks in weights, relative error", error, bound)
        if self._precision != "none" and self._extent.beside_float:
            yield from self._beside_float(loss, jvps[:1] if self._extent.adaptive else jvps)

    def _gradient(self) -> _Line:
        expected = self._truth.gradient
        exact = self._stepper.exact(*self._inputs, _first_cut(self._stepper), low_memory=True)
        error = _relative(_flat(exact.gradients, expected), _flat(expected, expected))
        self._advance("exact gradient")
        return _line("exact gradient, relative error against autograd", error, GRADIENT_BOUND[self._precision])

    def _steps(self, bound: float) -> list[Step]:
        """Yield one step for each direction that is needed."""
        steps: list[Step] = []
        for number in range(self._directions):
            steps.append(along(self._stepper, self._truth.sample, number))
            jvps = np.stack([step.jvp[0] for step in steps])
            error = _relative(jvps, self._truth.jvps(len(steps)))
            if len(steps) == 1 or not self._extent.adaptive:
                self._advance(f"direction {len(steps)}")
            if self._extent.adaptive and is_far(error, bound, jvps.size):
                break
        return steps

    def _beside_float(self, loss: np.ndarray, jvps: np.ndarray) -> Iterator[_Line]:
        """Measure what the quantized weights change; not bounded."""
        expected = self._unquantized.jvps(len(jvps))
        cosine = float(np.vdot(jvps, expected) / (np.linalg.norm(jvps) * np.linalg.norm(expected)))
        yield "cosine of the estimated gradient with the float model's", cosine, None, True
        yield "loss, relative change by quantization", _relative(loss, self._unquantized.losses), None, True


def along(stepper: Stepper, sample: Sample, number: int) -> Step:
    """Take a step along one of the sample's directions, from the first cut."""
    directions = _repeated(stepper, sample.directions[number], sample.entering[number])
    return stepper.along(*_inputs(sample), directions, _first_cut(stepper))


def _inputs(sample: Sample) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, np.ndarray]]:
    """Tokens, labels and weights."""
    tokens = {name: value.numpy() for name, value in sample.inputs.items() if name != "labels"}
    weights = {name: value.numpy() for name, value in sample.values.items()}
    return tokens, sample.inputs["labels"].numpy(), weights


def is_far(error: float, bound: float, count: int) -> bool:
    """Tell whether more derivatives would not change on which side of its bound a root-mean-square error is.

    The logarithm of a ratio of two such means over `count` numbers varies by about one over the root of `count`.
    """
    if count < _LEAST or not math.isfinite(error):
        return not math.isfinite(error)
    return error == 0 or abs(math.log(error / max(bound, 1e-30))) > _SURE / math.sqrt(count)


def _line(what: str, value: float, bound: float | None) -> _Line:
    return what, value, bound, bound is None or value <= bound


def _repeated(
    stepper: Stepper, direction: Mapping[str, Tensor], entering: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    """Repeat one direction of weights for all examples, and one of each at bottlenecks, in place of all K."""
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
