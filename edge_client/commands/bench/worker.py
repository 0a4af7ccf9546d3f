"""Timing and memory of whole steps of one runtime, as a worker process of `spry bench step`.

    python -m edge_client.commands.bench.worker '{"bundle": …, "runtime": …, "variants": […], …}'

Times are CPU time on the asked number of threads. A step is a chain of programs, which many kinds of steps share, and
blocks of one structure run programs that differ in their weights alone: so each is timed once, or a few of those that
are alike, in turns so that a change of the machine's speed meets them all, and a step's time is their sum. Memory is
that of a process which loads one variant's programs and takes steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edge_client.bundle.chain import Chain, exact_cut
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import PLAIN, VJP, Manifest, ProgramSpec
from edge_client.bundle.names import DIRECTION, WEIGHT, within
from edge_client.memory import peaks_above_now, resident, return_freed_blocks
from edge_client.runtimes.measure import random_input, shape_of
from edge_client.runtimes.runtime import CPU, open_runtime
from edge_client.step.stepper import Stepper

from .timing import ENOUGH

FORWARD, DUAL, SUFFIX, EXACT, MIXED = "forward", "dual", "suffix", "exact", "mixed"
LOW = " low"
"""Ends the names of steps that hold one program at a time."""
EXACT_BLOCKS = 1
"""The blocks that a mixed step backpropagates through."""
OF_EACH = 4
"""Programs of one shape that are timed."""
SMALL = 0.1
"""The deviation of random numbers in place of trained weights."""


class Variant(msgspec.Struct, frozen=True):
    """One kind of step from one cut."""

    kind: str
    cut: int = 0
    directions: int = 1
    low_memory: bool = False
    """True if it holds one program at a time."""

    @property
    def name(self) -> str:
        suffix = f" K={self.directions}" if self.directions > 1 else ""
        return self.kind + suffix + (LOW if self.low_memory else "")


class BenchWork(msgspec.Struct, frozen=True):
    """The measurements that a worker is asked for."""

    bundle: str
    runtime: str
    batch: int
    length: int
    threads: int
    rounds: int
    variants: list[Variant]
    memory: bool
    """Measure the memory of the only variant; otherwise the times of all."""
    device: str = CPU
    """The device on which the runtime computes."""


class Measured(msgspec.Struct, frozen=True):
    """A variant's figures; what was not measured is None."""

    variant: Variant
    cpu_ms: float | None = None
    peak_bytes: int | None = None
    """Above what is loaded, without files that it maps."""
    peak_mapped_bytes: int | None = None
    """The peak with mapped files."""
    load_bytes: int | None = None
    rss_bytes: int | None = None
    """Highest of the whole process."""


def programs_of(chain: Chain, variant: Variant) -> list[ProgramSpec]:
    """Everything a step of this kind runs."""
    if variant.kind == FORWARD:
        return chain.forward()
    if variant.kind == SUFFIX:
        return chain.suffix(variant.cut)
    if variant.kind == DUAL:
        return [*chain.prefix(variant.cut), *chain.suffix(variant.cut)]
    if variant.kind == MIXED:
        return chain.mixed(variant.cut, exact_cut(chain.manifest, variant.cut, EXACT_BLOCKS))
    backwards = [chain.program(i, VJP) for i in range(chain.head, variant.cut - 1, -1)]
    return [*chain.prefix(chain.head), *backwards]


class Bench:
    """Steps of one bundle on random inputs."""

    def __init__(self, work: BenchWork) -> None:
        self.work = work
        self.manifest: Manifest = Bundle.open(Path(work.bundle), verify=False).manifest
        self.runtime = open_runtime(work.runtime, Path(work.bundle), threads=work.threads, device=work.device)
        specs = {
            spec.name: spec
            for program in self._chain(1).programs.values()
            for spec in program.inputs
            if program.kind in (PLAIN, VJP)
        }
        arrays = {name: random_input(spec, seed) for seed, (name, spec) in enumerate(specs.items())}
        self.tokens = {name: arrays[name] for name in self.manifest.inputs if name in arrays}
        self.labels = np.zeros_like(arrays["labels"])
        self.weights = {name: SMALL * array for name, array in within(arrays, WEIGHT).items()}

    def _chain(self, directions: int) -> Chain:
        offered = self.manifest.directions
        count = directions if directions in offered else offered[0]
        return Chain(self.manifest, self.work.runtime, self.work.batch, self.work.length, count)

    def step(self, variant: Variant) -> Callable[[], object]:
        """Return a function that takes one step; what it needs beforehand (directions, a prefix) is computed here."""
        count = self._chain(variant.directions).directions
        shape = self.work.batch, self.work.length
        stepper = Stepper(self.manifest, self.runtime, self.work.runtime, *shape, count, low_memory=variant.low_memory)
        inputs = self.tokens, self.labels, self.weights
        if variant.kind == FORWARD:
            return lambda: stepper.forward(*inputs)
        if variant.kind == EXACT:
            return lambda: stepper.exact(*inputs, variant.cut)
        end = exact_cut(self.manifest, variant.cut, EXACT_BLOCKS)
        carrying = stepper.chain.tangents(variant.cut, end)
        programs = carrying if variant.kind == MIXED else stepper.chain.suffix(variant.cut)
        specs = [spec for program in programs for spec in program.inputs if spec.name.startswith(DIRECTION)]
        directions = {spec.name.removeprefix(DIRECTION): random_input(spec, seed) for seed, spec in enumerate(specs)}
        if variant.kind == MIXED:
            return lambda: stepper.mixed(*inputs, directions, variant.cut, end)
        if variant.kind == DUAL:
            return lambda: stepper.along(*inputs, directions, variant.cut)
        hidden = None
        if variant.cut:
            state = next(spec for spec in programs[0].inputs if spec.name == "hidden")
            hidden = random_input(state, 0)
        return lambda: stepper.along(*inputs, directions, variant.cut, hidden=hidden)

    def times(self) -> list[Measured]:
        """Return the sums of their programs' times; of a step that holds one program at a time, its own."""
        together = [variant for variant in self.work.variants if not variant.low_memory]
        alone = {variant: self.step(variant) for variant in self.work.variants if variant.low_memory}
        sampled = few_of_each([program for variant in together for program in self._programs(variant)])
        runs = [(shape_of(program), self._run(program)) for program in sampled]
        taken: dict[Any, list[float]] = {}
        begun = time.monotonic()
        for current in range(-1, self.work.rounds):  # the first round warms up
            for kind, run in (*runs, *alone.items()):
                started = time.process_time()
                run()
                if current >= 0:
                    taken.setdefault(kind, []).append(time.process_time() - started)
            if current >= 0 and time.monotonic() - begun > ENOUGH:
                break
        medians = {kind: 1e3 * statistics.median(times) for kind, times in taken.items()}
        return [Measured(variant, self._summed(variant, medians)) for variant in self.work.variants]

    def _summed(self, variant: Variant, medians: Mapping[Any, float]) -> float:
        if variant.low_memory:
            return medians[variant]
        return sum(medians[shape_of(program)] for program in self._programs(variant))

    def _programs(self, variant: Variant) -> list[ProgramSpec]:
        return programs_of(self._chain(variant.directions), variant)

    def _run(self, program: ProgramSpec) -> Callable[[], object]:
        """Return a function that runs one program as a step does."""
        inputs = {spec.name: random_input(spec, seed) for seed, spec in enumerate(program.inputs)}
        inputs |= {name: SMALL * array for name, array in inputs.items() if name.startswith(WEIGHT)}

        def run() -> None:
            self.runtime.load(program)
            self.runtime.run(program, inputs)
            if program.kind == VJP:
                self.runtime.set_aside(program)

        return run

    def memory(self) -> list[Measured]:
        (variant,) = self.work.variants
        step = self.step(variant)
        if variant.low_memory:  # nothing is loaded ahead, and what is mapped at the highest is not mapped at the end
            mapped = peaks_above_now(step).mapped
            return [Measured(variant, peak_mapped_bytes=mapped, rss_bytes=resident("VmHWM"))]
        before = resident()
        for program in programs_of(self._chain(variant.directions), variant):
            self.runtime.load(program)
            if program.kind == VJP:
                self.runtime.set_aside(program)
        loaded = resident()
        peaks = peaks_above_now(step)
        load, highest = max(loaded - before, 0), resident("VmHWM")
        return [Measured(variant, None, peaks.own, peaks.mapped, load, highest)]


def few_of_each(programs: Iterable[ProgramSpec]) -> list[ProgramSpec]:
    """Return some of those that differ in their weights alone, evenly spread over the chain, in its order."""
    by_shape: dict[Any, dict[str, ProgramSpec]] = {}
    order: dict[str, int] = {}
    for program in programs:
        order.setdefault(program.name, len(order))
        by_shape.setdefault(shape_of(program), {})[program.name] = program
    chosen: list[ProgramSpec] = []
    for by_name in by_shape.values():
        alike = list(by_name.values())
        count = min(OF_EACH, len(alike))
        chosen += [alike[number * len(alike) // count] for number in range(count)]
    return sorted(chosen, key=lambda program: order[program.name])


def variants(cuts: Sequence[int], directions: Iterable[int], mixed: Container[int] = ()) -> list[Variant]:
    """Forward, then every kind of step from every cut; a mixed one from some, as it is exact from others."""
    steps = [Variant(FORWARD)]
    for cut in cuts:
        for count in directions:
            steps += [Variant(DUAL, cut, count), Variant(SUFFIX, cut, count)]
            steps += [Variant(MIXED, cut, count)] if cut in mixed else []
        steps.append(Variant(EXACT, cut))
    return steps


def main(argument: str) -> None:
    return_freed_blocks()  # as `spry join` does
    work = msgspec.json.decode(argument, type=BenchWork)
    bench = Bench(work)
    figures = bench.memory() if work.memory else bench.times()
    sys.stdout.write(json.dumps([msgspec.to_builtins(measured) for measured in figures]))


def decode(text: str) -> list[Measured]:
    return msgspec.json.decode(text, type=list[Measured])


def encode(work: BenchWork) -> str:
    data: Any = msgspec.json.encode(work)
    return str(data, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
