"""Measure the memory of a bundle's programs on this machine, each in a process of its own.

    python -m edge_client.runtimes.measure BUNDLE RUNTIME        one JSON object per program

The process forks for every program; the child loads the program, which brings in what the library itself takes, and
loads it a second time beside that: what it then has more is the program's own. It runs the second one once on random
inputs and reads the highest mark. Programs that differ only in their weights are measured once.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import VJP, ProgramSpec, TensorSpec
from edge_client.gradient.philox import draw
from edge_client.memory import MeasureError, peak_above, resident

from .runtime import Runtime, open_runtime

_WITHOUT = "close other programs, or export with --no-measure"


class Memory(NamedTuple):
    """Bytes that a program adds to a process."""

    load_bytes: int
    """The memory for keeping it loaded."""
    peak_bytes: int
    """Above that, while it runs; without files that it maps."""


def random_input(spec: TensorSpec, seed: int) -> NDArray[Any]:
    """Something of the right shape; integers are 1, which is a token, a label and a set mask.

    Numbers come from the directions' generator: a training process has that one, and not `numpy.random`.
    """
    if spec.dtype == "int64":
        return np.ones(spec.shape, np.int64)
    return draw(seed, 0, math.prod(spec.shape))[0].reshape(spec.shape)


def measure_programs(folder: Path, runtime: str, timeout: float = 600) -> dict[str, Memory]:
    """Memory of each of a runtime's programs by name, measured by a process of its own."""
    command = [sys.executable, "-m", "edge_client.runtimes.measure", str(folder), runtime]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise MeasureError(f"measuring the programs of {runtime} took over {timeout:.0f} s; {_WITHOUT}") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise MeasureError(f"measuring the programs of {runtime} failed: {last[0]}; {_WITHOUT}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["program"]: Memory(line["load_bytes"], line["peak_bytes"]) for line in lines}


def in_child(work: Callable[[], Any]) -> Any:
    """Return the JSON-able result of `work` done in a forked child, whose memory goes with it."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(send, json.dumps(work()).encode())
            code = 0
        except Exception as error:  # noqa: BLE001 -- told to the parent, which raises
            os.write(send, json.dumps({"error": f"{type(error).__name__}: {error}"[:2000]}).encode())
        finally:
            os._exit(code)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    result = json.loads(answer) if answer else {"error": f"ended with status {status}"}
    if status or not answer:
        raise MeasureError(str(result["error"]))
    return result


def measure_one(first: Runtime, second: Runtime, program: ProgramSpec) -> Memory:
    """Load one program twice in this process, so that what a library takes once is not counted, and run it."""
    inputs = {spec.name: random_input(spec, seed) for seed, spec in enumerate(program.inputs)}
    first.load(program)
    before, anonymous = resident(), resident("RssAnon")
    loaded = before
    second.load(program)
    if program.kind == VJP:
        second.set_aside(program)
    if second.holds(program):
        loaded, anonymous = resident(), resident("RssAnon")

    def run() -> object:
        return second.run(program, inputs)

    return Memory(max(loaded - before, 0), peak_above(anonymous, run))


def shape_of(program: ProgramSpec) -> tuple[Any, ...]:
    """Give what decides a program's memory besides the values of its weights."""
    inputs = tuple(spec.shape for spec in program.inputs)
    outputs = tuple(spec.shape for spec in program.outputs)
    return program.kind, program.batch, program.length, program.directions, program.flops, inputs, outputs


def _measured(folder: Path, name: str, programs: Sequence[ProgramSpec]) -> Iterator[tuple[ProgramSpec, Memory]]:
    known: dict[tuple[Any, ...], Memory] = {}
    with open_runtime(name, folder, threads=1) as first, open_runtime(name, folder, threads=1) as second:
        for program in programs:
            shape = shape_of(program)
            if shape not in known:
                known[shape] = Memory(*in_child(lambda p=program: measure_one(first, second, p)))
            yield program, known[shape]


def main(folder: str, runtime: str) -> None:
    manifest = manifests.read(Path(folder) / manifests.FILE_NAME)
    for program, memory in _measured(Path(folder), runtime, manifest.runtimes[runtime].programs):
        print(json.dumps({"program": program.name, **memory._asdict()}), flush=True)  # noqa: T201 -- its only output


if __name__ == "__main__":
    main(*sys.argv[1:])
