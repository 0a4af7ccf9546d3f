"""Steps of eager PyTorch on a bundle's shapes, as a worker process of `export.check.baselines`.

The bundle's architecture with random weights and the same adapter; attention is fused (sdpa) wherever it differentiates
that way, which forward mode does not.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel, get_peft_config, get_peft_model
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.utils.checkpoint import checkpoint

from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import Manifest
from edge_client.commands.bench.figures import EAGER, megabytes
from edge_client.commands.bench.timing import taken_by
from edge_client.memory import resident
from export.check.baselines import BACKPROP, CHECKPOINTED, JVP
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.tasks.registry import MODEL_TASKS


def unadapted(bundle: Bundle, attention: str) -> nn.Module:
    """Return the model as transformers has it."""
    manifest = bundle.manifest
    config = transformers.AutoConfig.from_pretrained(bundle.folder / "model_config.json")
    config.use_cache = False
    factory = getattr(transformers, MODEL_TASKS[manifest.model.task].model_class)
    transformers.utils.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = factory.from_config(config, attn_implementation=attention).eval()
    return model


def _adapted(bundle: Bundle, attention: str) -> PeftModel:
    model: Any = unadapted(bundle, attention)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = get_peft_config(dict(bundle.manifest.adapter.config, inference_mode=False))
        adapted = get_peft_model(model, config)
    adapted.eval()
    return adapted


def _step(name: str, bundle: Bundle, batch: int, length: int) -> Callable[[], object]:
    manifest = bundle.manifest
    model = _adapted(bundle, "eager" if name == JVP else "sdpa")
    forward = TaskForward(model, MODEL_TASKS[manifest.model.task], manifest.inputs)
    inputs = (*tokens_of(manifest, batch, length), _labels(manifest, batch, length))
    trainable = {name: p for name, p in forward.named_parameters() if p.requires_grad}
    if name == CHECKPOINTED:
        checkpoint_blocks(forward, inputs, model.config.get_text_config().num_hidden_layers)
    if name in (BACKPROP, CHECKPOINTED):
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


def checkpoint_blocks(forward: nn.Module, inputs: tuple[Tensor, ...], layers: int) -> None:
    """Keep no values of a block for the way back, but compute them again.

    Blocks are found as an export finds them: the largest class of modules that is called once per hidden layer.
    """
    calls: Counter[type[nn.Module]] = Counter()
    modules = list(forward.modules())
    hooks = [module.register_forward_hook(lambda one, *_: calls.update([type(one)])) for module in modules]
    with torch.no_grad():
        forward(*inputs)
    for hook in hooks:
        hook.remove()
    blocks = [module for module in modules if calls[type(module)] == layers]
    if not blocks:
        raise ExportError(f"found no module that is called {layers} times, to checkpoint")
    largest = type(max(blocks, key=lambda block: sum(p.numel() for p in block.parameters())))
    for block in blocks:
        if type(block) is largest:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


def tokens_of(manifest: Manifest, batch: int, length: int) -> tuple[Tensor, ...]:
    """Return all inputs that a model takes, in the manifest's order."""
    return tuple(torch.ones(batch, length, dtype=torch.int64) for _ in manifest.inputs)


def _labels(manifest: Manifest, batch: int, length: int) -> Tensor:
    kind = MODEL_TASKS[manifest.model.task].kind
    return torch.zeros(kind.label_shape(batch, length), dtype=torch.int64)


def main(folder: str, name: str, batch: str, length: str, rounds: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    step = _step(name, Bundle.open(Path(folder), verify=False), int(batch), int(length))
    taken = taken_by(step, int(rounds))
    row = {
        "runtime": EAGER, "step": name, "cpu_ms": round(taken.cpu_ms, 2),
        "peak_mb": megabytes(taken.peaks.own), "peak_mapped_mb": megabytes(taken.peaks.mapped),
        "rss_mb": megabytes(resident("VmHWM")),
    }  # fmt: skip
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
