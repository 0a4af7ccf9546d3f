"""A model wrapped by its adapter, and which of its parameters are then trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapted import Adapted
from export.adapt.adapter import ADAPTERS, Targets
from export.adapt.bottlenecks import freeze_second_factor
from export.adapt.heads import feature_square, prepare_head
from export.adapt.labelled import Batch, read_batches
from export.adapt.output_directions import output_directions
from export.adapt.pooling import MeanStart, from_mean, with_new_pooler
from export.adapt.targets import Projections, find_projections, shortest_patterns
from export.errors import ExportError
from export.graph.capture import capture
from export.graph.slots import Role, Slot
from export.model.loading import Loaded, traced_once
from export.tasks.task import ModelTask

_ADAPTER = "default"


def head_modules(model: nn.Module, task: ModelTask) -> list[str]:
    """Return the modules beside the base model that hold parameters: the task layer."""
    if not task.kind.has_head:
        return []
    base = model.base_model_prefix
    return [name for name, child in model.named_children() if name != base and any(True for _ in child.parameters())]


def adapt(
    loaded: Loaded,
    options: AdapterOptions,
    seed: int = 0,
    projections: Projections | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Adapted:
    """Wrap the model with PEFT and find its units and head; its projections are found too where they are not given.

    Long work reports its progress.
    """
    if options.from_mean:
        loaded = with_new_pooler(loaded)
    model, task = loaded.model, loaded.task
    method = ADAPTERS[options.method]
    heads = head_modules(model, task)
    targets, within = _targets(loaded, options, heads, projections)
    common: dict[str, Any] = {"task_type": task.peft_type, "modules_to_save": [*heads, *loaded.drawn] or None}
    if any(type(module).__name__ == "Conv1D" for module in model.modules()):
        common["fan_in_fan_out"] = True
    examples = read_batches(loaded, Path(options.examples)) if options.examples else []
    config = method.config(options, targets, common)
    pooled = from_mean(loaded, config, _in_last_half(loaded), seed, tell) if options.from_mean else None
    square = _prepared(loaded, pooled, heads, examples, seed)
    layers = [name for name in _linears(model, heads) if any(_matches(name, target) for target in targets.names)]
    directions = output_directions(loaded, layers, options.rank, examples, seed) if method.at_bottlenecks else {}
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, config, adapter_name=_ADAPTER)  # type: ignore[arg-type]
    adapted.eval()
    if pooled:
        pooled.put(adapted)
    _keep_as_drawn(adapted, loaded.drawn)
    if (trains := method.trains) is not None:
        _train_base_parameters(adapted, lambda name: trains(name) and within(name))
    for name, out in directions.items():
        freeze_second_factor(adapted.get_submodule(f"base_model.model.{name}"), out, _ADAPTER)
    described = _describe(adapted, at_bottlenecks=method.at_bottlenecks)
    adapts = any(slot.role is Role.ADAPTER for slot in described.slots.values())
    if not described.slots or not (adapts or method.head_alone):
        raise ExportError(f"the adapter {options.method!r} finds nothing to train in this model; choose another --peft")
    return replace(described, feature_square=square)


def _targets(
    loaded: Loaded, options: AdapterOptions, heads: Sequence[str], projections: Projections | None
) -> tuple[Targets, Callable[[str], bool]]:
    """Return the layers that are adapted, and whether a module or parameter belongs to the blocks that are."""
    method, linears = ADAPTERS[options.method], _linears(loaded.model, heads)
    targets = list(options.targets)
    feedforward: Sequence[str] = ()
    if not targets or method.feedforward:
        projections = projections or _projections(loaded)
        targets = targets or shortest_patterns(method.targets(projections), linears)
        feedforward = [target for target in targets if any(_matches(name, target) for name in projections.feedforward)]
    unmatched = [target for target in targets if not any(_matches(name, target) for name in linears)]
    if unmatched:
        leaves = sorted({name.rpartition(".")[2] for name in linears})
        raise ExportError(
            f"target module {', '.join(unmatched)} matches no linear layer of the model; it has {', '.join(leaves)}"
        )
    last_blocks = _last_blocks(loaded, options)
    within = _within(loaded, last_blocks)
    if last_blocks:
        targets = [name for name in linears if within(name) and any(_matches(name, target) for target in targets)]
        feedforward = [name for name in targets if any(_matches(name, target) for target in feedforward)]
    return Targets(targets, feedforward), within


def _linears(model: nn.Module, heads: Sequence[str]) -> list[str]:
    return [name for name, module in model.named_modules() if _is_linear(module) and name.split(".")[0] not in heads]


def _prepared(
    loaded: Loaded, pooled: MeanStart | None, heads: Sequence[str], examples: Sequence[Batch], seed: int
) -> float | None:
    """Put the task layer behind its features as they are at the start, and measure how long these are.

    The pooler of `from_mean` centres and scales its features. They are not whitened as well: from few rows a layer
    learns worse if directions in which they hardly vary count as much as those that the encoder was trained for.
    """
    starts = pooled.loaded if pooled else loaded
    if heads and (examples or not pooled):
        prepare_head(starts, heads, examples, seed)
    if pooled:
        for name in [*heads, pooled.pooler]:
            loaded.model.set_submodule(name, starts.model.get_submodule(name))
    return feature_square(starts, heads, seed)


def _last_blocks(loaded: Loaded, options: AdapterOptions) -> int:
    """Count the blocks that are adapted; 0, all of them, where nobody says and blocks share their weights."""
    one_each = _blocks(loaded) == loaded.layers
    return options.blocks_of(loaded.layers) if one_each or options.last_blocks is not None else 0


def _within(loaded: Loaded, last_blocks: int) -> Callable[[str], bool]:
    """Return a check that a module or parameter belongs to the last blocks; their number is the first in its name."""
    if not last_blocks:
        return lambda name: True
    blocks = _blocks(loaded)
    if blocks != loaded.layers:  # one block's weights may be used many times
        raise ExportError(f"--last-blocks {last_blocks}: the {loaded.layers} blocks have no weights of their own")
    if last_blocks > blocks:
        raise ExportError(f"--last-blocks {last_blocks} is more than the model's {blocks} blocks")
    return lambda name: _block(name) >= blocks - last_blocks


def _in_last_half(loaded: Loaded) -> Callable[[str], bool]:
    """Return a check that a parameter belongs to the last half of the blocks, or to any where they share weights."""
    return _within(loaded, (loaded.layers + 1) // 2 if _blocks(loaded) == loaded.layers else 0)


def _blocks(loaded: Loaded) -> int:
    """Count the blocks that have weights of their own."""
    return 1 + max(_block(name) for name, _ in loaded.model.named_modules())


def _block(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdecimal()), -1)


def _projections(loaded: Loaded) -> Projections:
    def found() -> Projections:
        return find_projections(capture(loaded.model, loaded.task, loaded.example_inputs(2, 8), {}), loaded.layers)

    return traced_once(loaded.built, "projections", found)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target)


def _keep_as_drawn(model: PeftModel, modules: Sequence[str]) -> None:
    """Keep these parameters in the adapter without training them."""
    for name in modules:
        model.get_submodule(f"base_model.model.{name}").requires_grad_(False)


def _train_base_parameters(model: PeftModel, trains: Callable[[str], bool]) -> None:
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.enable_adapters(False)
    for name, parameter in model.named_parameters():
        in_head = ".modules_to_save." in name and parameter.requires_grad
        in_base = not any(part in name for part in ("lora_", ".original_module.", ".modules_to_save."))
        parameter.requires_grad_(in_head or (in_base and trains(name)))


def _describe(model: PeftModel, *, at_bottlenecks: bool) -> Adapted:
    state = get_peft_model_state_dict(model, adapter_name=_ADAPTER, save_embedding_layers=False)
    # Where biases are asked for, the head's come twice more, under the names of PEFT's wrapper.
    state = {key: t for key, t in state.items() if ".modules_to_save." not in key and ".original_module." not in key}
    # PEFT takes its adapter's name out of the keys of its own modules alone.
    state = {key.replace(f".{_ADAPTER}.", "."): tensor for key, tensor in state.items()}
    key_of = {tensor.data_ptr(): key for key, tensor in state.items()}
    slots: dict[int, Slot] = {}
    names: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            role = Role.HEAD if ".modules_to_save." in name else Role.ADAPTER
            slots[parameter.data_ptr()] = slot = Slot(role, key_of[parameter.data_ptr()])
            names[slot.name] = name
    config = model.peft_config[_ADAPTER].to_dict()
    config["inference_mode"] = True
    initial = {key: tensor.detach().contiguous() for key, tensor in sorted(state.items())}
    return Adapted(model, slots, names, config, initial, at_bottlenecks=at_bottlenecks)
