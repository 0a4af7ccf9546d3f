"""Measure how fast a device generates text, and in how much memory.

    python benchmarks/generation.py [--layers 12] [--hidden 768] [--vocabulary 32000] [--length 256] [--json]

A Llama of random weights, exported with `--generate`, beside a plain decode loop on the same runtime: the same model by
`torch.onnx.export` with past keys and values, in a session with the library's own settings, whose results are its next
inputs. Both read the same prompt and take the likeliest token; each runs in a process of its own, in turn. Tokens a
second are counted behind the prompt, by one thread's own time, as a busy machine's clock says little. Memory is the
highest that the process took above what it takes with its libraries imported; of it, mapped weights and the cache are
known, and the rest is what generating costs. At most 60 MB beside weights and cache, and at least 0.9 times the plain
loop's speed, or the exit status is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

RATIO, BESIDE = 0.9, 60e6
PLAIN = "plain.onnx"


def make(folder: Path, options: argparse.Namespace) -> None:
    """The model, its bundle, and the stock export, all in a folder."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from edge_client.commands.options.adapter import AdapterOptions
    from export.options import ExportOptions
    from export.pipeline import export_bundle

    config = LlamaConfig(
        hidden_size=options.hidden, num_hidden_layers=options.layers, num_attention_heads=options.hidden // 64,
        num_key_value_heads=options.hidden // 64 // 3 or 1, intermediate_size=options.hidden * 8 // 3,
        vocab_size=options.vocabulary, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM
    model = factory.from_config(config).eval()
    model.save_pretrained(folder / "model")
    export_bundle(
        ExportOptions(
            source=str(folder / "model"), out=folder / "bundle", task="causal-lm", adapter=AdapterOptions("lora"),
            batches=(1,), lengths=(16,), generate=options.length, verify_directions=0, measure=False, workers=1,
            precision=options.quantize,
        )
    )  # fmt: skip
    _stock(model, folder / PLAIN)


def _stock(model: Any, file: Path) -> None:
    import torch
    from transformers import DynamicCache

    class WithPast(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, past: list[Any]) -> Any:
            cache: Any = DynamicCache(config=model.config)
            for layer, (key, value) in enumerate(zip(past[::2], past[1::2], strict=True)):
                cache.update(key, value, layer)
            output = self.model(input_ids=ids, **{_CACHE: cache}, use_cache=True)
            kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            return output.logits[:, -1:], *kept

    config = model.config
    shape = (1, config.num_key_value_heads, 5, config.hidden_size // config.num_attention_heads)
    past = [torch.zeros(shape) for _ in range(2 * config.num_hidden_layers)]
    seen, new = torch.export.Dim("seen"), torch.export.Dim("new")
    torch.onnx.export(
        WithPast(), (torch.zeros(1, 3, dtype=torch.int64), past), str(file), dynamo=True, verbose=False,
        dynamic_shapes=({1: new}, [{2: seen} for _ in past]),
    )  # fmt: skip


_CACHE = "past_key_values"


def ours(folder: Path, threads: int) -> tuple[Callable[[list[int]], Any], dict[str, float]]:
    from edge_client.bundle.folder import Bundle
    from edge_client.generation.decoder import Decoder
    from edge_client.runtimes.runtime import open_runtime

    bundle = Bundle.open(folder / "bundle", verify=False)
    runtime = open_runtime("onnx", bundle.folder, threads=threads)
    decoder = Decoder(bundle.manifest, runtime, "onnx", bundle.initial_adapter())
    weights = sum(file.bytes for file in bundle.manifest.files if file.path.endswith(".bin"))
    return decoder.read, {"weights": weights, "cache": decoder.cache_bytes}


def plain(folder: Path, threads: int) -> tuple[Callable[[list[int]], Any], dict[str, float]]:
    import onnxruntime

    library: Any = onnxruntime
    settings = library.SessionOptions()
    settings.intra_op_num_threads = threads
    session = library.InferenceSession(str(folder / PLAIN), settings, providers=["CPUExecutionProvider"])
    ids, *past = session.get_inputs()
    state = {one.name: np.zeros([1, one.shape[1], 0, one.shape[3]], np.float32) for one in past}

    def read(tokens: list[int]) -> Any:
        logits, *present = session.run(None, {ids.name: np.array([tokens], np.int64), **state})
        state.update(zip(state, present, strict=True))
        return logits[0, -1]

    return read, {"weights": 0, "cache": 0}


def run(which: str, folder: Path, threads: int, prompt: int, tokens: int) -> dict[str, Any]:
    """One process's work: a prompt, and then tokens one by one."""
    import_module("onnxruntime")  # counted as imported
    from edge_client.memory import peak_above_now

    peak = peak_above_now()
    read, known = {"ours": ours, "plain": plain}[which](folder, threads)
    started = time.process_time()
    logits = read(np.random.default_rng(7).integers(3, 1000, prompt).tolist())
    first, said = time.process_time() - started, [int(logits.argmax())]
    said.append(int(read(said[-1:]).argmax()))  # loads what decodes
    started = time.process_time()
    for _ in range(tokens):
        said.append(int(read(said[-1:]).argmax()))
    return {"first": first, "rate": tokens / (time.process_time() - started), "peak": peak(), "said": said, **known}


def measured(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for _ in range(options.repeats):
        for which in ("plain", "ours"):
            numbers = map(str, (options.threads, options.prompt, options.tokens))
            done = subprocess.run(
                [sys.executable, __file__, "--work", which, str(folder), *numbers],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            yield {"which": which, **json.loads(done.stdout)}


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        which, folder, *numbers = sys.argv[2:]
        print(json.dumps(run(which, Path(folder), *map(int, numbers))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768, help="a multiple of 64")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--length", type=int, default=256, help="of the cache")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--folder", type=Path, help="where what is made stays for the next run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "bundle").exists():
            make(folder, options)
        results = list(measured(folder, options))
    figures = summary(results)
    lines = [f"{name:<36}{value:>10.2f}" for name, value in figures.items()]
    print(json.dumps(figures) if options.json else "\n".join(lines))
    sys.exit(figures["ratio"] < RATIO or figures["MB beside weights and cache"] > BESIDE / 1e6)


def summary(results: list[dict[str, Any]]) -> dict[str, float]:
    by = {which: [one for one in results if one["which"] == which] for which in ("plain", "ours")}
    rate = {which: statistics.median(one["rate"] for one in runs) for which, runs in by.items()}
    own = by["ours"][0]
    peak = max(one["peak"] for one in by["ours"])
    return {
        "tokens a second, plain loop": rate["plain"],
        "tokens a second": rate["ours"],
        "ratio": rate["ours"] / rate["plain"],
        "same tokens": float(all(one["said"] == own["said"] for one in results)),
        "prompt, seconds, plain loop": statistics.median(one["first"] for one in by["plain"]),
        "prompt, seconds": statistics.median(one["first"] for one in by["ours"]),
        "MB of the plain loop": max(one["peak"] for one in by["plain"]) / 1e6,
        "MB of weights": own["weights"] / 1e6,
        "MB of the cache": own["cache"] / 1e6,
        "MB beside weights and cache": (peak - own["weights"] - own["cache"]) / 1e6,
    }


if __name__ == "__main__":
    main()
