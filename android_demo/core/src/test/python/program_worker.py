"""Runs the programs of a bundle for another process, by any runtime that the Python package has.

    python program_worker.py BUNDLE RUNTIME

On standard input, all numbers little-endian: `R` to run a program or `F` to free its memory, the length of its key
(u16), the key `FILE#METHOD`, and to run it the inputs as the manifest lists them, nothing but their bytes. On standard
output: 0 and the outputs' bytes, or 1, a length (u32) and the reason why not. It ends with its input.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path
from typing import BinaryIO

import numpy as np

from edge_client.arrays import Array
from edge_client.bundle import manifest as manifests
from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from edge_client.runtimes.runtime import open_runtime

RUN, FREE = b"R", b"F"
DONE, FAILED = b"\0", b"\1"


def main(folder: Path, name: str) -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    spec = manifests.read(folder / "manifest.json").runtimes[name]
    programs = {key(program): program for program in spec.all_programs}
    with open_runtime(name, folder, threads=1) as runtime:
        while asked := sys.stdin.buffer.read(1):
            (length,) = struct.unpack("<H", read(sys.stdin.buffer, 2))
            program = programs[read(sys.stdin.buffer, length).decode()]
            if asked == FREE:
                runtime.release(program)
                answers.write(DONE)
            else:
                inputs = {spec.name: array(sys.stdin.buffer, spec) for spec in program.inputs}
                try:
                    outputs = runtime.run(program, inputs)
                except Exception as error:  # noqa: BLE001 -- whatever it is, the other process must hear of it
                    reason = f"{type(error).__name__}: {error}".encode()
                    answers.write(FAILED + struct.pack("<I", len(reason)) + reason)
                else:
                    answers.write(DONE)
                    for spec in program.outputs:
                        answers.write(np.ascontiguousarray(outputs[spec.name], spec.dtype).tobytes())
            answers.flush()


def key(program: ProgramSpec) -> str:
    return f"{program.file}#{program.method}"


def array(source: BinaryIO, spec: TensorSpec) -> Array:
    dtype = np.dtype(spec.dtype)
    return np.frombuffer(read(source, int(np.prod(spec.shape)) * dtype.itemsize), dtype).reshape(spec.shape)


def read(source: BinaryIO, count: int) -> bytes:
    found = source.read(count)
    if len(found) != count:
        raise EOFError(f"the other process ended within a message: expected {count} bytes, got {len(found)}")
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
