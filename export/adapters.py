"""PEFT methods: how a model is wrapped, and which of its parameters are then trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, TinyLoraConfig, get_peft_model, get_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from export.errors import ExportError
from export.options import AdapterOptions
from export.slots import Role, Slot
from export.targets import Projections, shortest_patterns
from export.tasks import Task

_ADAPTER = "default"


@dataclass
class Adapted:
    """A model with its adapter."""

    model: PeftModel
    slots: dict[int, Slot]
    """Address of a trainable parameter -> its slot in the graph, named as in a PEFT adapter file."""
    names: dict[str, str]
    """Name in the adapter file -> name in the model. Addresses hold until worker processes share the memory."""
    config: dict[str, Any]
    """adapter_config.json"""
    initial: dict[str, Tensor]
    """adapter_model.safetensors before training, with what PEFT wants beside the trainable tensors."""


@dataclass(frozen=True)
class Method:
    """One way to adapt a model: its PEFT configuration and which of the base's own parameters it trains."""

    config: Callable[[AdapterOptions, Sequence[str], dict[str, Any]], PeftConfig]
    targets: Callable[[Projections], tuple[str, ...]]
    trains: Callable[[str], bool] | None = None
    """For methods that PEFT has no tuner for: which base parameters are trained. The tuner is then a mere carrier,
    a LoRA layer that is stored but switched off, so that `PeftModel.from_pretrained` loads the result."""


def _lora(options: AdapterOptions, targets: Sequence[str], common: dict[str, Any]) -> PeftConfig:
    return LoraConfig(r=options.rank, lora_alpha=options.alpha, target_modules=list(targets), **common)  # type: ignore[arg-type]


def _tinylora(options: AdapterOptions, targets: Sequence[str], common: dict[str, Any]) -> PeftConfig:
    return TinyLoraConfig(r=options.rank, u=options.dimension, target_modules=list(targets), **common)


def _ia3(options: AdapterOptions, targets: Sequence[str], common: dict[str, Any]) -> PeftConfig:
    return IA3Config(target_modules=list(targets), feedforward_modules=list(common.pop("feedforward")), **common)


def _carrier(bias: str) -> Callable[[AdapterOptions, Sequence[str], dict[str, Any]], PeftConfig]:
    def config(options: AdapterOptions, targets: Sequence[str], common: dict[str, Any]) -> PeftConfig:
        return LoraConfig(r=1, target_modules=list(targets[:1]), bias=bias, **common)  # type: ignore[arg-type]

    return config


def _query_and_value(found: Projections) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found.query + found.value))


METHODS: dict[str, Method] = {
    "lora": Method(_lora, _query_and_value),
    "tinylora": Method(_tinylora, _query_and_value),
    "ia3": Method(_ia3, lambda found: tuple(dict.fromkeys(found.key + found.value + found.feedforward))),
    "bitfit": Method(_carrier("all"), lambda found: found.query, trains=lambda name: name.endswith("bias")),
    "classifier": Method(_carrier("none"), lambda found: found.query, trains=lambda name: False),
}


def head_modules(model: nn.Module, task: Task) -> list[str]:
    """The modules beside the base model that hold parameters: the task layer."""
    if not task.has_head:
        return []
    base = model.base_model_prefix
    return [name for name, child in model.named_children() if name != base and any(True for _ in child.parameters())]


def adapt(model: nn.Module, task: Task, options: AdapterOptions, projections: Callable[[], Projections]) -> Adapted:
    """Wrap `model` with PEFT and find its units and head."""
    method = METHODS[options.method]
    heads = head_modules(model, task)
    linears = [name for name, module in model.named_modules() if _is_linear(module) and name.split(".")[0] not in heads]
    targets = list(options.targets)
    feedforward: Sequence[str] = ()
    if not targets or options.method == "ia3":
        found = projections()
        targets = targets or shortest_patterns(method.targets(found), linears)
        feedforward = [target for target in targets if any(_matches(name, target) for name in found.feedforward)]
    unmatched = [target for target in targets if not any(_matches(name, target) for name in linears)]
    if unmatched:
        leaves = sorted({name.rpartition(".")[2] for name in linears})
        raise ExportError(
            f"target module {', '.join(unmatched)} matches no linear layer of the model; it has {', '.join(leaves)}"
        )
    common: dict[str, Any] = {"task_type": task.peft_type, "modules_to_save": heads or None}
    if options.method == "ia3":
        common["feedforward"] = feedforward
    if any(type(module).__name__ == "Conv1D" for module in model.modules()):
        common["fan_in_fan_out"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, method.config(options, targets, common), adapter_name=_ADAPTER)  # type: ignore[arg-type]
    adapted.eval()
    if method.trains is not None:
        _train_base_parameters(adapted, method.trains)
    described = _describe(adapted)
    adapts = any(slot.role is Role.ADAPTER for slot in described.slots.values())
    if not described.slots or (options.method == "bitfit" and not adapts):
        raise ExportError(f"the adapter {options.method!r} finds nothing to train in this model; choose another --peft")
    return described


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _matches(name: str, target: str) -> bool:
    return name == target or name.endswith("." + target)


def _train_base_parameters(model: PeftModel, trains: Callable[[str], bool]) -> None:
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.enable_adapters(False)
    for name, parameter in model.named_parameters():
        in_head = ".modules_to_save." in name
        in_base = "lora_" not in name and ".original_module." not in name
        parameter.requires_grad_(in_head or (in_base and trains(name)))


def _describe(model: PeftModel) -> Adapted:
    state = get_peft_model_state_dict(model, adapter_name=_ADAPTER, save_embedding_layers=False)
    # Where biases are asked for, the head's come twice more, under the names of PEFT's wrapper.
    state = {key: t for key, t in state.items() if ".modules_to_save." not in key and ".original_module." not in key}
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
    return Adapted(model, slots, names, config, initial)
