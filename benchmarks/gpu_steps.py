"""One training step of a large model in each of the ways that gpu_memory.py compares.

A step gives its mean loss and the loss's derivative along one direction of LoRA and head together, whatever else it
computes, so that ways can be checked against each other. With it comes the size of the weights that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_chain import build_chain
from gpu_models import Case, Shape, bytes_of, trained
from torch import Tensor, nn
from torch.func import jvp
from torch.nn import functional

Step = Callable[[], tuple[Tensor, Tensor]]
"""Gives the mean loss and its derivative along the direction."""
_SHIFT = 1e-4
"""The step of a central difference along the direction."""


# --- eager PyTorch ---------------------------------------------------------------------------------------------------


def backprop(shape: Shape, device: str) -> tuple[Step, int]:
    """The gradient of LoRA and head in reverse mode, all activations kept."""
    case = Case.make(shape, "sdpa", device)

    def step() -> tuple[Tensor, Tensor]:
        leaves = {name: value.requires_grad_() for name, value in trained(case.model).items()}
        loss = case.losses(leaves)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return loss.detach(), case.along(dict(zip(leaves, gradients, strict=True)))

    return step, bytes_of([*case.model.parameters(), *case.model.buffers()])


def central(shape: Shape, device: str) -> tuple[Step, int]:
    """Two forward passes, a little ahead and behind."""
    case = Case.make(shape, "sdpa", device)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        ahead, behind = (
            case.losses(
                {name: value + sign * _SHIFT * case.direction[name] for name, value in trained(case.model).items()}
            )
            for sign in (1, -1)
        )
        return (ahead + behind) / 2, (ahead - behind) / (2 * _SHIFT)

    return step, bytes_of([*case.model.parameters(), *case.model.buffers()])


def func_jvp(shape: Shape, device: str) -> tuple[Step, int]:
    """PyTorch's forward mode, which fused attention does not have."""
    case = Case.make(shape, "eager", device)
    for module in case.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = partial(_wide_norm, module)

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        losses_and_jvp: Any = jvp(case.losses, (trained(case.model),), (case.direction,))
        return losses_and_jvp

    return step, bytes_of([*case.model.parameters(), *case.model.buffers()])


def _wide_norm(norm: nn.LayerNorm, input: Tensor) -> Tensor:  # noqa: A002 -- its name in nn.LayerNorm
    """Compute the norm in float32: in bfloat16 a GPU gives a tangent in float32, which the next product refuses."""
    weight, bias = norm.weight.float(), norm.bias.float()
    return functional.layer_norm(input.float(), norm.normalized_shape, weight, bias, norm.eps).to(input.dtype)


# --- our dual programs -----------------------------------------------------------------------------------------------


def dual(shape: Shape, device: str) -> tuple[Step, int]:
    """A client that holds all units."""
    return _dual(shape, device, first=0)


def share(shape: Shape, device: str) -> tuple[Step, int]:
    """A client that holds the units of the second half: blocks before it run plain."""
    return _dual(shape, device, first=shape.config.num_hidden_layers // 2)


def suffix(shape: Shape, device: str) -> tuple[Step, int]:
    """The same client with the hidden states at its cut kept, and the weights before it released."""
    return _dual(shape, device, first=shape.config.num_hidden_layers // 2, released=True)


def _dual(shape: Shape, device: str, first: int, *, released: bool = False) -> tuple[Step, int]:
    case = Case.make(shape, "eager", device)
    chain = build_chain(case, first)
    state: dict[str, Tensor] = {}
    if released:
        with torch.no_grad():
            for link in chain[: first + 1]:
                state = link.run(state)
        del chain[: first + 1]
    held = [tensor for link in chain for tensor in link.tensors()]
    direction = {name: v for link in chain for name in link.moving() for v in [case.direction[name]]}
    head = {name: v for name, v in case.direction.items() if ".modules_to_save." in name}
    del case

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor]:
        values = dict(state)
        for link in chain:
            values = link.run(values, direction)
        exact = [(values["g:" + name].float() * v.float()).sum() for name, v in head.items()]
        return values["loss"].mean(), values["jvp"].float().mean() + torch.stack(exact).sum()

    return step, bytes_of([*held, *state.values()])


STEPS: dict[str, Callable[[Shape, str], tuple[Step, int]]] = {
    "backprop": backprop, "central": central, "func.jvp": func_jvp, "dual": dual, "share": share, "suffix": suffix,
}  # fmt: skip
