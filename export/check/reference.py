"""The model itself as the oracle: eager PyTorch, differentiated by `torch.func.jvp` and `torch.autograd`.

It shares nothing with the exported programs but the weights, which may be replaced by what a runtime's quantization
makes of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from export.adapt.adapted import Adapted
from export.adapt.bottlenecks import at_bottlenecks
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.graph.slots import Slot
from export.tasks.task import ModelTask

_TOKENS_AT_ONCE = 128
"""The tokens of a language model at once: each has as many logits as there are words, several times over."""


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
        return torch.cat([self._losses(some, more, values) for some, more in self._in_pieces(inputs, added or {})])

    def _losses(
        self, inputs: Mapping[str, Tensor], added: Mapping[str, Tensor], values: Mapping[str, Tensor]
    ) -> Tensor:
        *tokens, _labels = inputs
        forward = TaskForward(self._model, self._task, tuple(tokens))
        named = {self._name_of[key]: value for key, value in values.items()}
        parameters = {"model." + name: value for name, value in {**self._frozen, **named}.items()}
        with at_bottlenecks(self._adapted, added, added):
            losses, _ = functional_call(forward, parameters, tuple(inputs.values()))
        return losses

    def _in_pieces(
        self, inputs: Mapping[str, Tensor], others: Mapping[str, Tensor]
    ) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        """Yield some of the examples at a time where each token has logits of its own, with their other rows."""
        batch, length = next(iter(inputs.values())).shape
        rows = max(1, _TOKENS_AT_ONCE // length) if self._task.kind.per_token else batch
        for first in range(0, batch, rows):
            some = slice(first, first + rows)
            yield {name: v[some] for name, v in inputs.items()}, {name: v[some] for name, v in others.items()}

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
        """Compute what enters the factors before these bottlenecks, [batch, tokens, features]."""
        parts: list[dict[str, Tensor]] = []
        with torch.no_grad():
            for some, nothing in self._in_pieces(inputs, {}):
                with at_bottlenecks(self._adapted, names, {}) as seen:
                    self._losses(some, nothing, values)
                parts.append(seen)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def along(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        direction: Mapping[str, Tensor],
        entering: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute each example's loss, and its derivative along one direction, of weights and at bottlenecks."""
        moving = {key: values[key] for key in direction}
        pieces = self._in_pieces(inputs, entering or {})
        parts = [self._along(some, values, moving, dict(direction), added) for some, added in pieces]
        losses, slopes = zip(*parts, strict=True)
        return torch.cat(losses), torch.cat(slopes)

    def jvp(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        direction: Mapping[str, Tensor],
        entering: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Compute the derivative of each example's loss along one direction, of weights and at bottlenecks."""
        return self.along(inputs, values, direction, entering)[1]

    def _along(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        moving: dict[str, Tensor],
        direction: dict[str, Tensor],
        entering: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor]:
        still = {key: torch.zeros_like(value) for key, value in entering.items()}

        def losses(moved: dict[str, Tensor], added: dict[str, Tensor]) -> Tensor:
            return self._losses(inputs, added, {**values, **moved})

        try:
            with torch.no_grad():
                found: tuple[Tensor, Tensor] = jvp(losses, (moving, still), (direction, entering))[:2]
        except RuntimeError as error:
            if "autograd.Function" not in str(error):
                raise
            raise ExportError(
                "torch.func.jvp cannot differentiate an autograd.Function of the model or its adapter, so nothing can "
                "be verified; choose another, or take --verify none at your own risk"
            ) from error
        return found

    def backward(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        directions: Sequence[Mapping[str, Tensor]] = (),
        entering: Sequence[Mapping[str, Tensor]] = (),
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Differentiate each example's loss by reverse mode, once for any number of directions.

        Gives the gradient of the mean loss, and as products with examples' own gradients the derivatives along
        directions of weights and at bottlenecks, [directions, batch].
        """
        leaves = {key: value.detach().clone().requires_grad_() for key, value in values.items()}
        total = {key: torch.zeros_like(value) for key, value in leaves.items()}
        batch = len(next(iter(inputs.values())))
        slopes = torch.zeros(len(directions), batch)
        for row in range(batch):
            alone = {name: value[row : row + 1] for name, value in inputs.items()}
            own = [{key: value[row : row + 1] for key, value in one.items()} for one in entering]
            still = {key: torch.zeros_like(value, requires_grad=True) for key, value in (own[0] if own else {}).items()}
            with torch.enable_grad():
                loss = self._losses(alone, still, leaves).sum()
                by = [*leaves.values(), *still.values()]  # a unit at a bottleneck has both by one name
                found = torch.autograd.grad(loss, by, allow_unused=True, materialize_grads=True)
            gradients = dict(zip(leaves, found, strict=False))
            entered = dict(zip(still, found[len(leaves) :], strict=True))
            for key, gradient in gradients.items():
                total[key] += gradient / batch
            for number, (direction, added) in enumerate(zip(directions, own, strict=True)):
                products = [(gradients[key] * v).sum() for key, v in direction.items()]
                products += [(entered[key] * v).sum() for key, v in added.items()]
                slopes[number, row] = sum(products, torch.zeros(()))
        return total, slopes

    def gradient(self, inputs: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the gradient of the mean loss."""
        return self.backward(inputs, values)[0]

    def slope(
        self,
        inputs: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        direction: Mapping[str, Tensor],
        step: float,
        entering: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Compute the same derivative by finite differences, without any automatic differentiation."""

        def at(size: float) -> Tensor:
            moved = {key: values[key] + size * v for key, v in direction.items()}
            return self.losses(inputs, {**values, **moved}, {k: size * v for k, v in (entering or {}).items()})

        with torch.no_grad():
            return (at(step) - at(-step)) / (2 * step)


def trained(adapted: Adapted, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a client trains, by PEFT key."""
    keys: list[Slot] = list(adapted.slots.values())
    return {slot.name: values[slot.name] for slot in keys if slot.name in values}
