"""Can a model that no memory holds be exported and trained? A random one is written, exported, stepped and measured.

    python benchmarks/large.py --shape llama-1b --work large/
    python benchmarks/large.py --shape llama-2-7b --work large/ --seq 64
    python benchmarks/large.py --shape llama-2-7b --work large/ --blocks 4

Verification runs the first, the middle and the last block, so that four blocks of a shape take as much for it as all.

The checkpoint is written in bfloat16, a file for each block. The export leaves its weights in files (`--low-memory`);
told is the highest resident memory of its process, mapped files included, and what of it lies above one block and the
embedding in float32. Then a process each takes one dual and one exact step from the first cut that trains, with all
programs loaded and with one at a time. Seconds are wall time of the step alone, on one thread; `load` is what came
before it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from edge_client.bundle.chain import Chain
from edge_client.bundle.folder import Bundle
from edge_client.commands.bench.worker import DUAL, EXACT, Bench, BenchWork, Variant
from edge_client.commands.interrupts import end_as_interrupted
from edge_client.memory import resident

SHAPES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "layers": 4, "heads": 2, "vocabulary": 500},
    "llama-1b": {"hidden_size": 2048, "intermediate_size": 5504, "layers": 16, "heads": 16, "vocabulary": 32000},
    "llama-2-7b": {"hidden_size": 4096, "intermediate_size": 11008, "layers": 32, "heads": 32, "vocabulary": 32000},
}
EXPORT_ABOVE, TOGETHER, ALONE = 3e9, 5e9, 1.5e9
"""Targets in bytes: of an export above one block and the embedding; of a step's process."""


# --- a model without holding it --------------------------------------------------------------------------------------


def write_model(folder: Path, shape: dict[str, int]) -> tuple[int, int]:
    """Random weights block by block; the bytes in float32 of one block and of the embedding."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        vocab_size=shape["vocabulary"],
    )
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: p.shape for name, p in AutoModelForCausalLM.from_config(config).named_parameters()}
    generator = torch.Generator().manual_seed(0)
    places: dict[str, str] = {}
    for file, names in groupby(shapes, key=_file_of):
        tensors = {
            name: torch.ones(shapes[name], dtype=torch.bfloat16)
            if "norm" in name
            else torch.empty(shapes[name], dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
            for name in names
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    block = sum(4 * size.numel() for name, size in shapes.items() if ".layers.0." in name)
    return block, 4 * shapes["model.embed_tokens.weight"].numel()


def _file_of(name: str) -> str:
    parts = name.split(".")
    return f"block-{parts[2]}.safetensors" if parts[1] == "layers" else f"{parts[-2]}.safetensors"


# --- its export and its steps ----------------------------------------------------------------------------------------


def run_export(options: argparse.Namespace, model: Path, out: Path) -> dict[str, float]:
    command = [
        sys.executable, "-m", "server.processes", "export", str(model), "--task", "causal-lm", "--quantize", "int4",
        "--batch", "1", "--seq", str(options.seq), "--low-memory", "--no-cache", "--json", "--out", str(out),
        "--verify", options.verify, "--measure" if options.measure else "--no-measure",
    ]  # fmt: skip
    started = time.monotonic()
    return printed(command) | {"seconds": time.monotonic() - started}


def run_step(bundle: Path, variant: Variant, seq: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--take", variant.kind, str(variant.cut), str(int(variant.low_memory))]
    return printed([*command, "--bundle", str(bundle), "--seq", str(seq)], OMP_NUM_THREADS="1")


def printed(command: list[str], **environment: str) -> dict[str, Any]:
    """The JSON that a process prints; it is ended with this one, as Ctrl-C ends it, and has time to clean up."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as process:
        try:
            told, _ = process.communicate()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    if process.returncode:
        sys.exit(process.returncode)
    return json.loads(told)


def take(options: argparse.Namespace) -> None:
    """One step in this process."""
    kind, cut, low_memory = options.take
    variant = Variant(kind, int(cut), low_memory=low_memory == "1")
    work = BenchWork(str(options.bundle), "onnx", 1, options.seq, 1, 1, [variant], memory=False)
    step = Bench(work).step(variant)
    started, used = time.monotonic(), time.process_time()
    step()
    first = time.monotonic() - started, time.process_time() - used
    started, used = time.monotonic(), time.process_time()
    step()
    again = time.monotonic() - started, time.process_time() - used
    print(json.dumps({"first": first, "again": again, "rss": resident("VmHWM")}))


def lines(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """Return the lines to print, and whether they are as expected."""
    model, out = options.work / "model", options.work / "bundle"
    shape = SHAPES[options.shape]
    block, embedding = write_model(model, shape | {"layers": options.blocks or shape["layers"]})
    found = run_export(options, model, out)
    shutil.rmtree(model)
    above = found["peak_bytes"] - block - embedding
    yield (
        (
            f"export {found['seconds']:.0f} s, at most {_mb(found['peak_bytes'])} MB: one block {_mb(block)}, the "
            f"embedding {_mb(embedding)}, above them {_mb(above)} (target {_mb(EXPORT_ABOVE)}); "
            f"bundle {_mb(found['bytes'])} MB"
        ),
        above < EXPORT_ABOVE,
    )
    manifest = Bundle.open(out, verify=False).manifest
    starts = Chain(manifest, "onnx", 1, options.seq, 1).starts()
    for kind in (DUAL, EXACT):
        usual: float | None = None
        for low_memory, target in ((False, TOGETHER), (True, ALONE)):
            step = run_step(out, Variant(kind, starts[0], low_memory=low_memory), options.seq)
            wall, used = step["again"]
            usual = usual or wall
            way = "one program at a time" if low_memory else "all programs loaded"
            yield (
                (
                    f"{kind:5} {way:21} {wall:7.2f} s ({wall / usual:4.2f}), CPU {used:7.2f} s, at most "
                    f"{_mb(step['rss'])} MB (target {_mb(target)})"
                ),
                step["rss"] < target,
            )


def _mb(count: float) -> str:
    return f"{count / 1e6:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-1b")
    parser.add_argument("--blocks", type=int, help="so many of the shape's blocks; all when left out")
    parser.add_argument("--work", type=Path, default=Path("large"), help="a new folder; it is removed at the end")
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--verify", default="auto", help="of the export")
    parser.add_argument("--measure", action="store_true", help="measure programs' memory in the export too")
    parser.add_argument("--take", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--bundle", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.take:
        take(options)
        return
    end_as_interrupted()
    options.work.mkdir(parents=True)
    reached = []
    try:
        blocks = options.blocks or SHAPES[options.shape]["layers"]
        what = f"{options.shape}, {blocks} blocks, int4, 1 x {options.seq}, onnx"
        print(f"{what}, from the first cut that trains", flush=True)
        for line, well in lines(options):
            print(line, flush=True)
            reached.append(well)
    finally:
        shutil.rmtree(options.work)
    sys.exit(not all(reached))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
