"""Does a runtime compute here what it did where the bundle was written? A few programs on inputs that a seed gives.

An export notes what came out of them (`noted`); a device compares before it trains (`check`), in Java by `Trials`. The
smallest program of each kind is taken: in the first segment, the block where it does most, the last one where its
programs are others, as a classifier's are, and the head. Of an output its size is kept and a few numbers spread over
it: kernels that compute wrongly do so everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle.manifest import EMBED, HEAD, OutputSummary, Precision, ProgramSpec, RuntimeSpec, Trial
from edge_client.bundle.names import WEIGHT
from edge_client.errors import WrongResults

from .measure import random_input, shape_of
from .runtime import RUNTIMES, Runtime

BOUND: dict[Precision, float] = {"none": 1e-3, "int8": 0.05, "int4": 0.1}
"""The bound of an output's error, relative to its size: processors round differently, and in few bits that shows."""
_SPREAD = np.float32(0.02)
"""The deviation of adapters' weights: as large as hidden states they would drown the model."""
_SAMPLES = 16
_LEAST = 1e-3
"""The least size relative to a program's largest output; smaller ones may be a rest of numbers that cancel."""


def noted(runtime: Runtime, spec: RuntimeSpec) -> tuple[Trial, ...]:
    """Note a program's results here; one whose results are no numbers on such inputs is left out."""
    trials: list[Trial] = []
    for program in _tried(spec.all_programs):
        outcomes = tuple(_outcome(value) for value in _run(runtime, program))
        if all(math.isfinite(outcome.size) for outcome in outcomes):
            trials.append(Trial(program.name, BOUND[spec.precision], outcomes))
    return tuple(trials)


def check(runtime: Runtime, name: str, spec: RuntimeSpec, memory: int | None = None) -> bool:
    """Refuse a runtime whose results are not those that were noted.

    Returns:
        Whether all were tried: not those that take more memory than there is, which no task will run either.
    """
    programs = {program.name: program for program in spec.all_programs}
    tried = [trial for trial in spec.trials if trial.program in programs]
    fitting = [trial for trial in tried if _fits(programs[trial.program], memory)]
    for trial in fitting:
        program = programs[trial.program]
        errors = _errors(_run(runtime, program), trial.outcomes)
        for output, error in zip(program.outputs, errors, strict=False):
            if not error <= trial.bound:
                library = RUNTIMES[name].used.library if name in RUNTIMES else name
                raise WrongResults(
                    f"the runtime {name} gives wrong results here: {output.name} of {program.name} is off by "
                    f"{error:.2g} of its size, at most {trial.bound:g} was expected; install another version of "
                    f"{library}, or take another --runtime (`spry doctor` lists them)"
                )
    return len(fitting) == len(tried)


def _fits(program: ProgramSpec, memory: int | None) -> bool:
    return memory is None or program.load_bytes + program.peak_bytes <= memory


def _tried(programs: Sequence[ProgramSpec]) -> list[ProgramSpec]:
    blocks = [program.segment for program in programs if program.segment not in (EMBED, HEAD)]
    smallest: dict[tuple[str, str], ProgramSpec] = {}
    for program in sorted(programs, key=lambda p: (p.batch * p.length * max(p.directions, 1), -p.flops)):
        place = program.segment if program.segment in (EMBED, HEAD, *blocks[-1:]) else "block"
        smallest.setdefault((place, program.kind), program)
    unlike: dict[tuple[Any, ...], ProgramSpec] = {}
    for program in smallest.values():
        unlike.setdefault(shape_of(program), program)  # the others differ in their weights alone
    return list(unlike.values())


def _run(runtime: Runtime, program: ProgramSpec) -> list[Array]:
    inputs = {spec.name: random_input(spec, seed) for seed, spec in enumerate(program.inputs)}
    weights = {name: value * _SPREAD for name, value in inputs.items() if name.startswith(WEIGHT)}
    results = runtime.run(program, inputs | weights)
    runtime.release(program)
    return [_compared(program, name, value) for name, value in results.items()]


def _compared(program: ProgramSpec, name: str, value: Array) -> Array:
    """Compare losses of a language model's tokens: which follower is likeliest turns on the last digits."""
    of_tokens = any(spec.name == "labels" and spec.shape == (program.batch, program.length) for spec in program.inputs)
    return value[..., 1] if of_tokens and name == "logits" else value


def _outcome(value: Array) -> OutputSummary:
    flat = np.ravel(value)
    if not flat.size:
        return OutputSummary(0.0, ())
    size = float(np.sqrt(np.mean(np.square(flat, dtype=np.float64))))
    spread = flat[np.linspace(0, flat.size - 1, min(_SAMPLES, flat.size)).astype(np.int64)]
    return OutputSummary(_short(size), tuple(_short(float(one)) for one in spread))


def _short(number: float) -> float:
    """Return a number in as many digits as any bound needs."""
    return float(f"{number:.6g}")


def _errors(results: Sequence[Array], expected: Sequence[OutputSummary]) -> list[float]:
    least = max((outcome.size for outcome in expected), default=0.0) * _LEAST
    return [_error(_outcome(value), outcome, least) for value, outcome in zip(results, expected, strict=True)]


def _error(outcome: OutputSummary, expected: OutputSummary, least: float) -> float:
    if not math.isfinite(outcome.size) or len(outcome.samples) != len(expected.samples):
        return math.inf
    apart = np.array([outcome.size - expected.size, *np.subtract(outcome.samples, expected.samples)])
    off = max(abs(float(apart[0])), float(np.sqrt(np.mean(np.square(apart[1:])))) if len(apart) > 1 else 0.0)
    return off / max(expected.size, least, 1e-30)
