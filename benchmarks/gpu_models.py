"""Large models with random weights, adapted with LoRA: what the ways of gpu_memory.py are measured on.

Weights are drawn layer by layer in the form in which they stay, 4-bit linear layers in the TorchScript lowering's form
(groups of 32, a float16 scale each), so that no model is ever held in floats.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.func import functional_call
from transformers.initialization import no_init_weights

from export.graph.capture import TaskForward
from export.lower.torchscript.weights import GROUP, Int4
from export.tasks.registry import MODEL_TASKS

TASK = MODEL_TASKS["seq-cls"]
INPUTS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Shape:
    """A model's published sizes and the batch that it is measured with."""

    config: transformers.PretrainedConfig
    targets: tuple[str, str]
    """Query and value."""
    batch: int
    length: int
    dtype: torch.dtype
    four_bit: bool


class FourBitLinear(nn.Module):
    """A frozen linear layer of random weights; none of its uses keeps the dequantized weight."""

    def __init__(self, of: nn.Linear, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        rows, columns = of.out_features, of.in_features
        shape = rows, columns // GROUP
        spread = columns**-0.5 / 4.6  # 4.6: the standard deviation of a random code
        self.pairs = nn.Buffer(torch.randint(-128, 128, (rows, columns // 2), dtype=torch.int8, device=device))
        self.scales = nn.Buffer(torch.full(shape, spread, dtype=torch.float16, device=device))
        has_bias = "bias" in dict(of.named_parameters())
        self.bias = _frozen(torch.zeros(rows, dtype=dtype, device=device)) if has_bias else None

    @property
    def weight(self) -> Int4:
        return Int4(self.pairs, self.scales)

    def forward(self, x: Tensor) -> Tensor:
        product: Any = _FourBitProduct.apply(x, self.pairs, self.scales)
        return product if self.bias is None else product + self.bias


class _FourBitProduct(torch.autograd.Function):
    """Differentiable by its activation in both modes; automatic rules would store every dequantized weight."""

    @staticmethod
    def forward(x: Tensor, pairs: Tensor, scales: Tensor) -> Tensor:
        return Int4(pairs, scales).product(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        return Int4(*ctx.saved_tensors).transposed_product(grad_outputs[0]), None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor) -> Tensor:
        return Int4(*ctx.saved_tensors).product(grad_inputs[0])


def _frozen(value: Tensor) -> nn.Parameter:
    return nn.Parameter(value, requires_grad=False)


@unset_fake_temporarily()
def untouched(shape: Shape, attention: str, layers: int | None = None) -> PeftModel:
    """The adapted model with weights that nobody has written: such pages take no memory."""
    config = type(shape.config).from_dict(shape.config.to_dict())
    config.use_cache = False
    config.num_hidden_layers = layers or config.num_hidden_layers
    factory = transformers.AutoModelForSequenceClassification
    lora = LoraConfig(r=1, lora_alpha=1, target_modules=list(shape.targets), task_type=TASK.peft_type)
    with warnings.catch_warnings(), no_init_weights():
        warnings.simplefilter("ignore")
        model = factory.from_config(config, attn_implementation=attention, dtype=shape.dtype).requires_grad_(False)
        adapted = get_peft_model(model, lora, autocast_adapter_dtype=False)
    return adapted.eval()  # type: ignore[return-value]


def filled(model: PeftModel, shape: Shape, device: str) -> PeftModel:
    """Random weights on `device`: linear layers of blocks in 4 bit where asked, norms as they start."""
    for name, module in list(model.named_modules()):
        if (
            shape.four_bit
            and isinstance(module, nn.Linear)
            and re.search(r"\.layers?\.\d", name)
            and "lora_" not in name
        ):
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, FourBitLinear(module, shape.dtype, device))
            continue
        for leaf, parameter in list(module.named_parameters(recurse=False)):
            value = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            start = value.fill_(leaf == "weight") if value.dim() == 1 else value.normal_(0, value.shape[-1] ** -0.5)
            setattr(module, leaf, nn.Parameter(start, requires_grad=parameter.requires_grad))
        for leaf, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, leaf, buffer.to(device))
    return model


@dataclass
class Case:
    """A model, a batch and a direction."""

    shape: Shape
    model: PeftModel
    inputs: tuple[Tensor, ...]
    direction: dict[str, Tensor]
    device: str

    @classmethod
    def make(cls, shape: Shape, attention: str, device: str) -> Case:
        """The same numbers at every call, whatever the attention."""
        torch.manual_seed(0)
        model = filled(untouched(shape, attention), shape, device)
        ids = torch.randint(3, shape.config.vocab_size, (shape.batch, shape.length), device=device)
        labels = torch.randint(2, (shape.batch,), device=device)
        direction = {name: torch.randn_like(value) for name, value in trained(model).items()}
        return cls(shape, model, (ids, torch.ones_like(ids), labels), direction, device)

    def losses(self, moved: dict[str, Tensor]) -> Tensor:
        """The mean loss with trainable tensors `moved`."""
        forward = TaskForward(self.model, TASK, INPUTS)
        found: Tensor = functional_call(forward, {f"model.{k}": v for k, v in moved.items()}, self.inputs)[0].mean()
        return found

    def along(self, gradients: dict[str, Tensor]) -> Tensor:
        """The derivative along the direction, of the tensors that have gradients."""
        products = [(gradient.float() * self.direction[name].float()).sum() for name, gradient in gradients.items()]
        return torch.stack(products).sum()


def trained(model: PeftModel) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}


def bytes_of(tensors: Iterable[Tensor]) -> int:
    storages = {id(storage): storage for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storage.nbytes() for storage in storages.values())
