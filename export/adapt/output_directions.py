"""The directions of a layer's result in which the model moves most, for the frozen factors of bottlenecks.

With labelled examples at hand: the leading singular vectors of their own gradient by each layer's weight, under a task
layer fitted to them. Without: directions that depend on the model alone, not on a task. A task pulls at the model's
result, and what arrives at a layer is its gradient, a sum of products of what leaves the layer (backwards) and what
enters it. For random pulls at the result of a few sentences, the directions with most of these products are found.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from export.adapt.labelled import Batch, fitted_head, lent_head
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.model.loading import Loaded
from export.model.samples import SENTENCES, sample_inputs

PULLS = 8
"""Random pulls at the result of each sentence."""
_BATCH, _LENGTH = len(SENTENCES), 32


def output_directions(
    loaded: Loaded, layers: Sequence[str], rank: int, examples: Sequence[Batch], seed: int
) -> dict[str, Tensor]:
    """Find orthonormal columns for each linear layer, [features out, rank], the most telling first."""
    smallest = min((min(loaded.model.get_parameter(f"{name}.weight").shape) for name in layers), default=0)
    if rank > smallest > 0:
        raise ExportError(
            f"rank {rank} is more than the {smallest} features of a target module; choose a smaller --rank"
        )
    return by_examples(loaded, layers, rank, examples) if examples else by_model(loaded, layers, rank, seed)


def by_model(loaded: Loaded, layers: Sequence[str], rank: int, seed: int) -> dict[str, Tensor]:
    """Find the directions that random pulls at the model's result move."""
    modules = {name: loaded.model.get_submodule(name) for name in layers}
    products = {name: torch.zeros(()) for name in layers}
    length = min(_LENGTH, loaded.positions or _LENGTH)
    inputs = sample_inputs(loaded, _BATCH, length, seed)
    forward = TaskForward(loaded.model, loaded.task, loaded.inputs)
    generator = torch.Generator().manual_seed(seed)
    mask = inputs["attention_mask"].unsqueeze(-1).float()
    for _ in range(PULLS):
        with _random_head(loaded, generator), _watched(modules) as seen:
            _, logits = forward(*inputs.values())
            pull = torch.randn(logits.shape, generator=generator)
            leaving = torch.autograd.grad((logits * pull).sum(), [seen[name][1] for name in layers])
        for name, gradient in zip(layers, leaving, strict=True):
            leaves, enters = gradient * mask, seen[name][0].detach()  # [sentence, token, features]
            products[name] = products[name] + _products(leaves, enters)
    return {name: _leading(products[name], rank) for name in layers}


def by_examples(loaded: Loaded, layers: Sequence[str], rank: int, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Find the directions in which these examples' gradient is largest."""
    gradient = {name: torch.zeros(()) for name in layers}
    with fitted_head(loaded, batches):
        for of_batch in _gradients(loaded, layers, batches):
            gradient = {name: gradient[name] + of_batch[name] for name in layers}
    return {name: _largest(gradient[name], rank) for name in layers}


def _gradients(
    loaded: Loaded, layers: Sequence[str], batches: Sequence[Batch]
) -> Generator[dict[str, Tensor], None, None]:
    """Yield each batch's gradient by each layer's weight."""
    modules = {name: loaded.model.get_submodule(name) for name in layers}
    forward = TaskForward(loaded.model, loaded.task, loaded.inputs)
    with _watched(modules) as seen:
        for batch in batches:
            losses, _ = forward(*batch.values())
            leaving = torch.autograd.grad(losses.sum(), [seen[name][1] for name in layers])
            yield {
                name: leaves.flatten(0, -2).T @ seen[name][0].detach().flatten(0, -2)
                for name, leaves in zip(layers, leaving, strict=True)
            }


def _largest(gradient: Tensor, rank: int) -> Tensor:
    """Left singular vectors of the largest singular values."""
    out, _, _ = torch.linalg.svd(gradient.double(), full_matrices=False)
    return _signed(out[:, :rank])


def _products(these: Tensor, others: Tensor) -> Tensor:
    """Sum over sentences of P Pᵀ for P = theseᵀ others, without ever making P, which is large."""
    among = others @ others.transpose(1, 2)  # [sentence, token, token]
    return (these.transpose(1, 2) @ (among @ these)).sum(0)


def _leading(products: Tensor, rank: int) -> Tensor:
    """Eigenvectors of the largest eigenvalues."""
    return _signed(torch.linalg.eigh(products.double()).eigenvectors.flip(1)[:, :rank])


def _signed(vectors: Tensor) -> Tensor:
    """Which of v and -v comes is chance: the largest of its numbers is positive."""
    signs = torch.sign(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)))
    return (vectors * signs).float().contiguous()


@contextmanager
def _watched(modules: Mapping[str, nn.Module]) -> Generator[dict[str, tuple[Tensor, Tensor]], None, None]:
    """Record what enters and leaves each module."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def note(name: str) -> Any:
        def hook(_module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
            leaf = result if result.requires_grad else result.requires_grad_()
            seen[name] = given[0], leaf
            return leaf

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in modules.items()]
    try:
        with torch.enable_grad():
            yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _random_head(loaded: Loaded, generator: torch.Generator) -> Generator[None, None, None]:
    """Another task layer for each pull, so that all of the model's result is pulled at, not a few of its directions."""
    with lent_head(loaded) as head:
        with torch.no_grad():
            for parameter in head:
                if parameter.ndim > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
        yield
