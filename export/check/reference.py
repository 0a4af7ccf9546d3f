"""The model itself as the oracle: eager PyTorch, differentiated by `torch.func.jvp` and `torch.autograd`.

It shares nothing with the exported programs but the weights, which may be replaced by what a runtime's quantization
makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from export.adapt.entering import at_bottlenecks
from export.adapt.wrapping import Adapted
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.graph.slots import Slot
from export.tasks.task import ModelTask


class Reference:
    """Per-example losses of an adapted model as a function of its trainable tensors."""

    def __init__(self, adapted: Adapted, task: ModelTask, replaced: Mapping[str, Tensor] | None = None) -> None:
        model: nn.Module = adapted.model
        self._adapted = adapted
        self._task = task
        self._model = model
        self._name_of = adapted.names
        self._frozen = dict(replaced or {})

    def losses(
        self, inputs: Mapping[str, Tensor], values: Mapping[str, Tensor], added: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Loss of each example with trainable tensors `values` (by PEFT key), and `added` at bottlenecks."""
        *tokens, _labels = inputs
        forward = TaskForward(self._model, self._task, tuple(tokens))
        named = {self._name_of[key]: value for key, value in values.items()}
        parameters = {"model." + name: value for name, value in {**self._frozen, **named}.items()}
        with at_bottlenecks(self._adapted, added or {}, added or {}):
            losses, _ = functional_call(forward, parameters, tuple(inputs.values()))
        return losses

    def logits(self, tokens: Sequence[int], values: Mapping[str, Tensor]) -> Tensor:
        """[tokens, vocabulary], of a language model that reads them all at once."""
        named = {self._name_of[key]: value for key, value in values.items()}
        ids = torch.tensor([list(tokens)])
        read = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        with torch.no_grad():
            told: Tensor = self._task.logits(functional_call(self._model, {**self._frozen, **named}, (), read))
        return told[0]

    def entering(
        self, inputs: Mapping[str, Tensor], values: Mapping[str, Tensor], names: Iterable[str]
    ) -> dict[str, Tensor]:
        """What enters the factors before these bottlenecks, [batch, tokens, features]."""
        with torch.no_grad(), at_bottlenecks(self._adapted, names, {}) as seen:
            self.losses(inputs, values)
        return seen

    def jvp(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        direction: Mapping[str, Tensor],
        entering: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The derivative of each example's loss along one direction, of weights and at bottlenecks."""
        moving = {key: values[key] for key in direction}
        still = {key: torch.zeros_like(value) for key, value in (entering or {}).items()}

        def along(moved: dict[str, Tensor], added: dict[str, Tensor]) -> Tensor:
            return self.losses(inputs, {**values, **moved}, added)

        try:
            with torch.no_grad():
                slope: Tensor = jvp(along, (moving, still), (dict(direction), dict(entering or {})))[1]
        except RuntimeError as error:
            if "autograd.Function" not in str(error):
                raise
            raise ExportError(
                "torch.func.jvp cannot differentiate an autograd.Function of the model or its adapter, so nothing can "
                "be verified; choose another, or take --verify-directions 0 at your own risk"
            ) from error
        return slope

    def gradient(self, inputs: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradient of the mean loss."""
        leaves = {key: value.detach().clone().requires_grad_() for key, value in values.items()}
        with torch.enable_grad():
            loss = self.losses(inputs, leaves).mean()
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, gradients, strict=True))

    def slope(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        direction: Mapping[str, Tensor],
        step: float,
        entering: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """The same derivative by finite differences, without any automatic differentiation."""

        def at(size: float) -> Tensor:
            moved = {key: values[key] + size * v for key, v in direction.items()}
            return self.losses(inputs, {**values, **moved}, {k: size * v for k, v in (entering or {}).items()})

        with torch.no_grad():
            return (at(step) - at(-step)) / (2 * step)


def trained(adapted: Adapted, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that a client trains, by PEFT key."""
    keys: list[Slot] = list(adapted.slots.values())
    return {slot.name: values[slot.name] for slot in keys if slot.name in values}
