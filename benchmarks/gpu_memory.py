"""The paper's table of peak memory: backprop, central difference, `torch.func.jvp` and our dual programs.

    python benchmarks/gpu_memory.py                                        on a GPU, all models and methods (10 minutes)
    python benchmarks/gpu_memory.py --models llama-2-7b --out llama.jsonl  one model, its rows also in a file
    python benchmarks/gpu_memory.py --device fake                          without one: every allocation is counted
    python benchmarks/gpu_memory.py --device cpu --small                   tiny shapes of each architecture

Random weights in the published shapes, classification into two classes, LoRA of rank 1 on query and value:
RoBERTa-large in float32 (batch 8, sequence 128), Llama-2-7B (8, 256), OPT-6.7B (8, 400) and OPT-13B (4, 400) with
linear layers in 4 bit, all else in bfloat16. The paper asks OPT for spans of SQuAD, whose head is as small.

    backprop   the gradient of LoRA and head, fused attention, no checkpoints     func.jvp   attention written out
    central    two forward passes, fused attention
    dual       our programs, a client that holds all units
    share      a client that holds the second half of them
    suffix     the same, with the hidden states before its part kept and the weights before it released

Each measurement is a process of its own. On a GPU the peak is `torch.cuda.max_memory_allocated`, beside it what the
allocator reserved; on the CPU it is the process's resident memory, and with `fake` the sum of all tensors alive.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_meter import FAKE, measure
from gpu_models import Shape
from gpu_steps import STEPS
from transformers import LlamaConfig, OPTConfig, RobertaConfig

PROJECTIONS = ("q_proj", "v_proj")
Row = dict[str, Any]


def _opt(hidden: int, layers: int, heads: int) -> OPTConfig:
    return OPTConfig(
        hidden_size=hidden, word_embed_proj_dim=hidden, ffn_dim=4 * hidden, num_hidden_layers=layers,
        num_attention_heads=heads, vocab_size=50272, max_position_embeddings=2048,
    )  # fmt: skip


SHAPES = {
    "roberta-large": Shape(
        RobertaConfig(
            hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, vocab_size=50265,
            max_position_embeddings=514, type_vocab_size=1,
        ),
        ("query", "value"), 8, 128, torch.float32, four_bit=False,
    ),
    "llama-2-7b": Shape(
        LlamaConfig(
            hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008, vocab_size=32000,
            max_position_embeddings=4096, pad_token_id=0,
        ),
        PROJECTIONS, 8, 256, torch.bfloat16, four_bit=True,
    ),
    "opt-6.7b": Shape(_opt(4096, 32, 32), PROJECTIONS, 8, 400, torch.bfloat16, four_bit=True),
    "opt-13b": Shape(_opt(5120, 40, 40), PROJECTIONS, 4, 400, torch.bfloat16, four_bit=True),
}  # fmt: skip
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "ffn_dim": 128, "word_embed_proj_dim": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 100,
    "max_position_embeddings": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """The paper's figure for its forward mode."""

    saved: float
    """Percent of backprop's memory."""
    activations: float
    """The paper's factor over zero-order methods."""
    peak_gb: float | None = None


PAPER = {
    "roberta-large": Published(27.90, 1.96),
    "llama-2-7b": Published(81.73, 1.95, 6.2),
    "opt-6.7b": Published(86.26, 1.83),
    "opt-13b": Published(85.93, 1.54, 10.8),
}


def small(shape: Shape) -> Shape:
    """The architecture at a size that a CPU computes at once, in float32."""
    sizes = {**shape.config.to_dict(), **{name: size for name, size in TINY.items() if hasattr(shape.config, name)}}
    config = type(shape.config).from_dict(sizes)
    return dataclasses.replace(shape, config=config, batch=2, length=12, dtype=torch.float32)


def measured(model: str, method: str, device: str, *, tiny: bool) -> Row:
    """The row of one measurement, in this process; it has an error where memory ran out."""
    shape = small(SHAPES[model]) if tiny else SHAPES[model]
    row: Row = {"model": model, "method": method, "device": device, "small": tiny}
    try:
        weights, memory = measure(shape, method, device)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        return row | {"error": "out of memory"}
    return row | {"weights_bytes": weights} | dataclasses.asdict(memory)


def in_process(model: str, method: str, device: str, *, tiny: bool) -> Row:
    """The same in a process of its own."""
    what = ["--models", model, "--methods", method, "--device", device, *(["--small"] if tiny else [])]
    command = [sys.executable, __file__, "--worker", *what]
    # Freed memory goes back to the system at once, so that a process's size is that of its tensors.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0:
        row: Row = json.loads(done.stdout.splitlines()[-1])
        return row
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    killed = "killed, as when memory runs out" if done.returncode == -9 else last[0]
    return {"model": model, "method": method, "device": device, "small": tiny, "error": killed}


def line(row: Row, backprop: Row | None) -> str:
    name = f"{row['model']:14} {row['method']:9}"
    if "error" in row:
        return f"{name} {row['error']}"
    sizes = f"{row['weights_bytes'] / 1e6:10.1f} {row['above'] / 1e6:10.1f} {row['total'] / 1e9:8.2f}"
    reserved = "" if row["reserved"] is None else f"{row['reserved'] / 1e9:.2f}"
    ratio = f"{row['total'] / backprop['total']:.3f}" if backprop and "total" in backprop else ""
    seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
    return f"{name} {sizes} {reserved:>9} {ratio:>8} {seconds:>7}"


def verdict(model: str, rows: dict[str, Row]) -> str:
    """Ours beside what the paper says of its own."""
    measured = {name: row for name, row in rows.items() if "total" in row}
    paper = PAPER[model]
    parts: list[str] = []
    if {"dual", "backprop"} <= measured.keys():
        saved = 100 * (1 - measured["dual"]["total"] / measured["backprop"]["total"])
        parts.append(f"{saved:.2f} % less than backprop (paper {paper.saved:.2f} %)")
    if {"dual", "central"} <= measured.keys():
        ratio = measured["dual"]["above"] / max(measured["central"]["above"], 1)
        parts.append(f"{ratio:.2f} x central's activations (paper {paper.activations:.2f})")
    if "dual" in measured and paper.peak_gb is not None:
        total = measured["dual"]["total"] / 1e9
        parts.append(f"{total:.2f} GB (paper {paper.peak_gb} GB: {'ok' if total < paper.peak_gb else 'MISS'})")
    return f"  dual: {', '.join(parts) or 'nothing to compare'}"


def table(options: argparse.Namespace) -> None:
    where = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    show = sys.stderr if options.json else sys.stdout
    titles = f"{'weights MB':>10} {'above MB':>10} {'total GB':>8} {'reserved':>9} {'÷ backp.':>8} {'s/step':>7}"
    print(f"{where}, torch {torch.__version__}\n{'model':14} {'method':9} {titles}", file=show, flush=True)
    for model in options.models:
        rows: dict[str, Row] = {}
        for method in options.methods:
            rows[method] = in_process(model, method, options.device, tiny=options.small)
            if options.json:
                print(json.dumps(rows[method]), flush=True)
            if options.out:
                with options.out.open("a") as log:
                    log.write(json.dumps(rows[method]) + "\n")
            print(line(rows[method], rows.get("backprop")), file=show, flush=True)
        if not options.small:
            print(verdict(model, rows), file=show, flush=True)


def chosen(offered: Sequence[str]) -> Any:
    """Names between commas, each one of `offered`."""

    def names(text: str) -> list[str]:
        named = text.split(",")
        if unknown := [name for name in named if name not in offered]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected some of {', '.join(offered)}")
        return named

    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=chosen(list(SHAPES)), default=list(SHAPES), help="between commas")
    parser.add_argument("--methods", type=chosen(list(STEPS)), default=list(STEPS), help="between commas")
    parser.add_argument("--device", choices=["cuda", "cpu", FAKE], default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny shape of each architecture")
    parser.add_argument("--json", action="store_true", help="rows as lines of JSON, the table on standard error")
    parser.add_argument("--out", type=Path, help="a file that the rows are added to, as they come")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA here; use --device fake, which counts, or --device cpu --small")
    if options.worker:
        print(json.dumps(measured(options.models[0], options.methods[0], options.device, tiny=options.small)))
    else:
        table(options)


if __name__ == "__main__":
    main()
