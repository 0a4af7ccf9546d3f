"""Steps of eager PyTorch on a bundle's shapes, as a worker process of `export.check.baselines`.

The bundle's architecture with random weights and the same adapter; attention is fused (sdpa) wherever it differentiates
that way, which forward mode does not.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from peft import PeftModel, get_peft_config, get_peft_model
from torch import Tensor, nn
from torch.func import functional_call, jvp

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.commands.bench.command import EAGER
from edge_client.memory import peak_above, resident
from export.check.baselines import BACKPROP, JVP
from export.graph.capture import TaskForward
from export.tasks.registry import MODEL_TASKS


def _model(bundle: Bundle, attention: str) -> PeftModel:
    manifest = bundle.manifest
    config = transformers.AutoConfig.from_pretrained(bundle.folder / "model_config.json")
    config.use_cache = False
    factory = getattr(transformers, MODEL_TASKS[manifest.model.task].model_class)
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = factory.from_config(config, attn_implementation=attention).eval()
        adapted = get_peft_model(model, get_peft_config(dict(manifest.adapter.config, inference_mode=False)))
    adapted.eval()
    return adapted


def _step(name: str, bundle: Bundle, batch: int, length: int) -> Callable[[], object]:
    manifest = bundle.manifest
    model = _model(bundle, "eager" if name == JVP else "sdpa")
    forward = TaskForward(model, MODEL_TASKS[manifest.model.task], manifest.inputs)
    inputs = _inputs(manifest, batch, length)
    trainable = {name: p for name, p in forward.named_parameters() if p.requires_grad}
    if name == BACKPROP:
        return lambda: _backprop(forward, inputs, trainable)
    values = {name: p.detach() for name, p in trainable.items()}
    direction = {name: torch.randn_like(value) for name, value in values.items()}

    def losses(moved: dict[str, Tensor]) -> Tensor:
        mean: Tensor = functional_call(forward, moved, inputs)[0].mean()
        return mean

    if name == JVP:
        return torch.no_grad()(lambda: jvp(losses, (values,), (direction,)))

    @torch.no_grad()
    def central() -> Tensor:
        ahead = losses({key: values[key] + 1e-3 * direction[key] for key in values})
        return ahead - losses({key: values[key] - 1e-3 * direction[key] for key in values})

    return central


def _backprop(forward: nn.Module, inputs: tuple[Tensor, ...], trainable: dict[str, nn.Parameter]) -> None:
    loss = forward(*inputs)[0].mean()
    torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)


def _inputs(manifest: Manifest, batch: int, length: int) -> tuple[Tensor, ...]:
    task = MODEL_TASKS[manifest.model.task]
    tokens = [torch.ones(batch, length, dtype=torch.int64) for _ in manifest.inputs]
    return (*tokens, torch.zeros(task.kind.label_shape(batch, length), dtype=torch.int64))


def main(folder: str, name: str, batch: str, length: str, rounds: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    step = _step(name, Bundle.open(Path(folder), verify=False), int(batch), int(length))
    peak = peak_above(resident("RssAnon"), step)
    taken: list[float] = []
    for _ in range(int(rounds)):
        started = time.process_time()
        step()
        taken.append(time.process_time() - started)
    row = {
        "runtime": EAGER, "step": name, "cut": "", "cpu_ms": round(1e3 * statistics.median(taken), 2),
        "ratio": None, "peak_mb": round(peak / 1e6, 1), "load_mb": None,
        "rss_mb": round(resident("VmHWM") / 1e6, 1),
    }  # fmt: skip
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
