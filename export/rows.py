"""A model whose rows each carry trainable weights of their own, for simulations of many clients at once.

What clients of a round compute differs in a few adapter weights alone; the frozen model is the same. So their batches
run as one: `torch.func.vmap` over rows, which turns products with frozen weights into one large product and those with
adapters into small batched ones. One backward pass then gives every row's own gradient, of which any directional
derivative is a product.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor
from torch.func import functional_call, vmap
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from edge_client.batches import Batch
from edge_client.manifest import Manifest
from edge_client.optimizers import Weights
from export import pack
from export.adapters import Adapted, adapt
from export.capture import TaskForward, capture
from export.description import describe
from export.errors import ExportError
from export.model import Loaded, load
from export.options import AdapterOptions
from export.segments import boundaries, split
from export.targets import Projections, find_projections
from export.tasks import TASKS

Array = NDArray[Any]
Arithmetic = Literal["float32", "bfloat16"]
ARITHMETIC = {"float32": torch.float32, "bfloat16": torch.bfloat16}

ROWS_AT_ONCE = 256
"""More share no more work, and take more memory."""
_NO_LOGIT = -1e9
"""Of positions that were left out because no row reaches them."""


class Differentiated(NamedTuple):
    """One batch's losses, logits and gradients."""

    loss: Array
    """[batch]"""
    logits: Array
    gradients: Weights
    """Of each example's loss, [batch, *shape]; or of the weighted mean, [*shape]."""


class RowModel:
    """Computes what clients ask for, many clients at once."""

    def __init__(self, loaded: Loaded, adapted: Adapted, method: str, *, device: str, arithmetic: Arithmetic) -> None:
        self.manifest: Manifest = _described(loaded, adapted, method)
        self.device = torch.device(device)
        self.arithmetic = ARITHMETIC[arithmetic]
        self._adapted = adapted
        self._loaded = loaded
        self._forward = TaskForward(adapted.model, loaded.task, self.manifest.inputs).to(self.device)
        trained = [*(p for unit in self.manifest.units for p in unit.parameters), *self.manifest.head]
        self.initial: Weights = {p.name: adapted.initial[p.name].numpy().copy() for p in trained}

    @property
    def tokenizer(self) -> Tokenizer:
        if self._loaded.tokenizer is None:
            raise ExportError(f"{self._loaded.name} has no tokenizer: give a model folder with its tokenizer.json")
        return self._loaded.tokenizer.backend_tokenizer

    # --- passes ---

    def forward(self, weights: Sequence[Weights], batches: Sequence[Batch]) -> list[tuple[Array, Array]]:
        """Each client's losses [batch] and logits."""
        found: list[tuple[Array, Array]] = []
        with torch.no_grad():
            for part in _parts(batches):
                loss, logits = self._rows(self._leaves(weights[part], None), batches[part])
                found += zip(loss.float().cpu().numpy(), logits, strict=True)
        return found

    def differentiate(
        self, weights: Sequence[Weights], batches: Sequence[Batch], names: Sequence[str], *, per_example: bool
    ) -> list[Differentiated]:
        """Each client's losses, and the gradients by the parameters `names` of each example or of the weighted mean."""
        found: list[Differentiated] = []
        for part in _parts(batches):
            found += self._differentiate(weights[part], batches[part], names, per_example=per_example)
        return found

    def _differentiate(
        self, weights: Sequence[Weights], batches: Sequence[Batch], names: Sequence[str], *, per_example: bool
    ) -> list[Differentiated]:
        clients, size = len(batches), len(batches[0].weight)
        leaves = self._leaves(weights, size if per_example else 1)
        wanted = [leaves[name].requires_grad_() for name in names]
        if not per_example:
            leaves = {name: leaf.repeat_interleave(size, 0) for name, leaf in leaves.items()}
        with torch.enable_grad():
            loss, logits = self._rows(leaves, batches)
            scale = torch.ones_like(loss) if per_example else self._shares(batches)
            gradients = torch.autograd.grad((loss * scale).sum(), wanted, allow_unused=True, materialize_grads=True)
        shape = (clients, size) if per_example else (clients,)
        values = {
            name: gradient.float().reshape(*shape, *gradient.shape[1:]).cpu().numpy()
            for name, gradient in zip(names, gradients, strict=True)
        }
        losses = loss.detach().float().cpu().numpy()
        return [
            Differentiated(losses[client], logits[client], {name: value[client] for name, value in values.items()})
            for client in range(clients)
        ]

    def _shares(self, batches: Sequence[Batch]) -> Tensor:
        rows = np.stack([batch.weight / batch.weight.sum() for batch in batches])
        return torch.from_numpy(rows.astype(np.float32)).to(self.device)

    def _leaves(self, weights: Sequence[Weights], repeat: int | None) -> dict[str, Tensor]:
        """Clients' weights one below the other, each `repeat` times; once for all where they are the same."""
        if repeat is None and all(values is weights[0] for values in weights):
            return {name: torch.from_numpy(value).to(self.device) for name, value in weights[0].items()}
        stacked = {name: torch.from_numpy(np.stack([values[name] for values in weights])) for name in weights[0]}
        return {name: value.to(self.device).repeat_interleave(repeat or 1, 0) for name, value in stacked.items()}

    def _rows(self, leaves: Mapping[str, Tensor], batches: Sequence[Batch]) -> tuple[Tensor, list[Array]]:
        """Losses [clients, batch] and each client's logits."""
        clients, (size, length) = len(batches), next(iter(batches[0].tokens.values())).shape
        tokens = {name: np.concatenate([batch.tokens[name] for batch in batches]) for name in self.manifest.inputs}
        longest = max(2, int(tokens["attention_mask"].sum(1).max()))
        inputs = [torch.from_numpy(values[:, :longest].copy()).to(self.device) for values in tokens.values()]
        labels = torch.from_numpy(np.concatenate([self._labels(batch, longest) for batch in batches])).to(self.device)
        named = {"model." + self._adapted.names[name]: leaf for name, leaf in leaves.items()}
        each = next(iter(self.initial))
        shared = not named or leaves[each].ndim == self.initial[each].ndim
        if not shared and len(leaves[each]) != clients * size:
            named = {name: leaf.repeat_interleave(size, 0) for name, leaf in named.items()}
        run = vmap(self._row, in_dims=(None if shared else 0, 0, 0))
        lower = self.arithmetic is not torch.float32
        with _whole_masks(), torch.autocast(self.device.type, self.arithmetic, enabled=lower):
            loss, logits = run(named, inputs, labels)
        found = _lengthened(logits.detach().float().cpu().numpy(), longest, length, self._loaded.task.name)
        return loss.float().reshape(clients, size), list(found.reshape(clients, size, *found.shape[1:]))

    def _row(self, weights: dict[str, Tensor], inputs: list[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
        arguments = (*(values[None] for values in inputs), labels[None])
        loss, logits = functional_call(self._forward, weights, arguments)
        return loss[0], logits[0]

    def _labels(self, batch: Batch, longest: int) -> Array:
        return batch.labels[:, :longest] if self._loaded.task.name == "causal-lm" else batch.labels

    # --- results ---

    def save_adapter(self, folder: Path, weights: Weights) -> None:
        """A folder that `PeftModel.from_pretrained` loads."""
        values = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in weights.items()}
        pack.add_adapter(folder, self._adapted.config, self._adapted.initial | values)


def open_model(
    source: str,
    *,
    task: str,
    labels: Sequence[str],
    adapter: Mapping[str, Any],
    seed: int = 0,
    device: str = "cpu",
    arithmetic: Arithmetic = "float32",
    random_weights: bool = False,
) -> RowModel:
    """A model for simulations; the same weights as an export with the same seed gives."""
    options = AdapterOptions(**adapter)
    options.check()
    loaded = load(source, TASKS[task], tuple(labels), random_weights=random_weights, seed=seed)

    def projections() -> Projections:
        return find_projections(capture(loaded.model, loaded.task, loaded.example_inputs(2, 8), {}), loaded.layers)

    torch.manual_seed(seed)
    adapted = adapt(loaded.model, loaded.task, options, projections)
    return RowModel(loaded, adapted, options.method, device=device, arithmetic=arithmetic)


def _described(loaded: Loaded, adapted: Adapted, method: str) -> Manifest:
    captured = capture(adapted.model, loaded.task, loaded.example_inputs(2, 8), adapted.slots)
    return describe(loaded, adapted, split(captured, loaded.layers, boundaries(loaded.layers, None)), method)


def _parts(batches: Sequence[Batch]) -> list[slice]:
    """Clients whose rows run together."""
    size = max(1, ROWS_AT_ONCE // len(batches[0].weight))
    return [slice(start, start + size) for start in range(0, len(batches), size)]


def _lengthened(logits: Array, longest: int, length: int, task: str) -> Array:
    """Logits of every position, also where no row has a token."""
    if task == "seq-cls" or longest == length:
        return logits
    missing = [(0, 0), (0, length - longest), *[(0, 0)] * (logits.ndim - 2)]
    return np.pad(logits, missing, constant_values=_NO_LOGIT)


@contextmanager
def _whole_masks() -> Generator[None, None, None]:
    """Attention masks without a look at the tokens' values, which rows of a batch cannot be asked for one by one."""
    usual = ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    ALL_MASK_ATTENTION_FUNCTIONS["eager"] = partial(_whole_mask, usual)
    try:
        yield
    finally:
        ALL_MASK_ATTENTION_FUNCTIONS["eager"] = usual


def _whole_mask(usual: Any, *arguments: Any, **options: Any) -> Tensor:
    return usual(*arguments, **{**options, "allow_is_bidirectional_skip": False, "allow_is_causal_skip": False})
