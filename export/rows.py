"""A model whose rows each carry trainable weights of their own, for simulations of many clients at once.

What clients of a round compute differs in a few adapter weights alone; the frozen model is the same. So their batches
run as one: `torch.func.vmap` over rows, which turns products with frozen weights into one large product and those with
adapters into small batched ones. One backward pass then gives every row's own gradient, of which any directional
derivative is a product.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.func import functional_call, vmap
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from edge_client.arrays import Array, Weights
from edge_client.bundle.adapters import folded
from edge_client.bundle.chain import first_uses
from edge_client.bundle.manifest import Manifest
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.batches import Batch
from edge_client.data.templates import Template
from export.adapt.adapted import Adapted
from export.adapt.adapter import check_adapter
from export.adapt.bottlenecks import at_bottlenecks
from export.adapt.heads import entering as entering_weight
from export.adapt.wrapping import adapt
from export.errors import ExportError
from export.graph.bottlenecks import mark_bottlenecks
from export.graph.capture import TaskForward, capture
from export.graph.narrow import narrow
from export.graph.segments import boundaries, split
from export.model.fitting import require_memory_for_all
from export.model.loading import Loaded, copied_bytes, load, template_of, traced_once
from export.model.mapped import LARGE
from export.row_groups import Results, RowGroup, row_groups
from export.tasks.registry import MODEL_TASKS
from export.write import pack
from export.write.description import Structure, describe, structure_of

Arithmetic = Literal["float32", "bfloat16"]
ARITHMETIC = {"float32": torch.float32, "bfloat16": torch.bfloat16}

ROWS_AT_ONCE = {"cpu": 16}
"""More share no more work on a CPU, and take more memory; fewer can be put together by length and depth."""
MOST_ROWS = 256
MOST_BYTES = 400_000_000
"""The most bytes that rows of one run compute: the model's weights and as much again are a large model's share."""
_COPIES, _VALUES = 4, 24
"""The copies of logits, and the numbers of a block for each of a hidden state, that are held at a time."""


class Computed(NamedTuple):
    """One batch's losses and logits, and what these are a product of."""

    loss: Array
    """[batch]"""
    logits: Array
    features: Array | None


class Differentiated(NamedTuple):
    """One batch's losses, logits and gradients."""

    loss: Array
    """[batch]"""
    logits: Array
    gradients: Weights
    """The gradients of each example's loss, [batch, *shape]; or of the weighted mean, [*shape]."""
    bottlenecks: Mapping[str, Bottleneck]
    """The bottlenecks of each example's loss, where its gradient is asked for by a parameter that has one."""


class Bottleneck(NamedTuple):
    """The tensors around a bottleneck in one batch."""

    entering: Array
    """[batch, tokens, features]: what enters the factor before it."""
    gradient: Array
    """[batch, tokens, rank]: of each example's loss by what leaves that factor."""


class RowModel:
    """Computes what clients ask for, many clients at once."""

    def __init__(self, loaded: Loaded, adapted: Adapted, method: str, *, device: str, arithmetic: Arithmetic) -> None:
        self.manifest: Manifest = _described(loaded, adapted, method)
        self.device = torch.device(device)
        self.arithmetic = ARITHMETIC[arithmetic]
        self._adapted = adapted
        self._loaded = loaded
        self._forward = TaskForward(adapted.model, loaded.task, self.manifest.inputs).to(self.device)
        trained = self.manifest.trained
        self.initial: Weights = {p.name: adapted.initial[p.name].numpy().copy() for p in trained}
        last = len(self.manifest.segments) - 1
        self._first = {parameter.name: last for parameter in self.manifest.head} | first_uses(self.manifest)
        self._entered: Tensor | None = None
        self._watch_features()
        if self.arithmetic is not torch.float32:
            self._round_frozen()

    def _watch_features(self) -> None:
        """Note what enters the head's last layer in each pass."""
        if self.manifest.features is None:
            return
        name, _, _ = self._adapted.names[self.manifest.features.weight].rpartition(".")
        layer = self._adapted.model.get_submodule(name)

        def note(_module: nn.Module, given: tuple[Tensor, ...]) -> None:
            self._entered = entering_weight(layer, given[0])

        layer.register_forward_pre_hook(note)

    @property
    def tokenizer(self) -> Tokenizer:
        if self._loaded.tokenizer is None:
            raise ExportError(f"{self._loaded.name} has no tokenizer: give a model folder with its tokenizer.json")
        return self._loaded.tokenizer.backend_tokenizer

    @property
    def template(self) -> Template:
        """Makes texts of conversations."""
        return Template() if self._loaded.tokenizer is None else template_of(self._loaded.tokenizer)

    def _round_frozen(self) -> None:
        """Round all frozen weights, once instead of in each pass; hidden states stay as coarse as their products."""
        names = set(self._adapted.names.values())
        trained = {parameter for name, parameter in self._adapted.model.named_parameters() if name in names}
        for module in self._adapted.model.modules():
            own = set(module.parameters(recurse=False))
            if own & trained and not isinstance(module, nn.Linear):
                continue  # a norm takes a scale and a shift of one kind; products are rounded as they run
            for parameter in own - trained:
                parameter.data = parameter.data.to(self.arithmetic)
            if isinstance(module, BaseTunerLayer):
                tuner: Any = module
                tuner.cast_input_dtype_enabled = False

    # --- passes ---

    def forward(self, weights: Sequence[Weights], batches: Sequence[Batch]) -> list[Computed]:
        """Compute each client's losses, logits and features."""
        results = Results(batches)
        alike = all(values is weights[0] for values in weights)
        with torch.no_grad():
            for group in row_groups(batches, [0] * len(batches), self._most(batches)):
                leaves = self._leaves(weights[:1] if alike else [weights[client] for client in group.clients])
                inner = {name: leaf[0] if alike else leaf[group.owner] for name, leaf in leaves.items()}
                rows = self._rows(inner, None if alike else 0, results.batch, group, {})
                results.put(group, rows.loss, rows.logits, rows.features.get("features"))
        features = [None] * len(batches) if results.features is None else results.features
        return [Computed(*result) for result in zip(results.loss, results.logits, features, strict=True)]

    def differentiate(
        self, weights: Sequence[Weights], batches: Sequence[Batch], names: Sequence[Collection[str]], *,
        per_example: bool,
    ) -> list[Differentiated]:  # fmt: skip
        """Compute each client's losses, and gradients by its parameters `names`, per example or of the weighted mean.

        What lies before the earliest of its parameters costs a client no backward pass: rows run together with others
        that reach about as deep.
        """
        results = Results(batches)
        rows = (len(batches[0].weight),) if per_example else ()
        gradients = [
            {name: np.zeros((*rows, *own[name].shape), np.float32) for name in wanted}
            for own, wanted in zip(weights, names, strict=True)
        ]
        around = [self._around(*own) if per_example else {} for own in zip(batches, names, strict=True)]
        depths = [min(self._first[name] for name in wanted) for wanted in names]
        for group in row_groups(batches, depths, self._most(batches)):
            leaves = self._leaves([weights[client] for client in group.clients])
            wanted = sorted(frozenset[str]().union(*(names[client] for client in group.clients)))
            if per_example:
                leaves = {name: leaf[group.owner] for name, leaf in leaves.items()}
            behind = self._behind(group, wanted if per_example else ())
            roots = [leaves[name].requires_grad_() for name in wanted]
            with torch.enable_grad():
                inner = leaves if per_example else {name: leaf[group.owner] for name, leaf in leaves.items()}
                loss, logits, entering, _ = self._rows(inner, 0, results.batch, group, behind)
                mean = loss.sum() if per_example else loss @ self._shares(batches, group)
                slopes = torch.autograd.grad(
                    mean, [*roots, *behind.values()], allow_unused=True, materialize_grads=True
                )
            results.put(group, loss, logits)
            values = _arrays(zip(wanted, slopes[: len(roots)], strict=True))
            entering, leaving = _arrays(entering.items()), _arrays(zip(behind, slopes[len(roots) :], strict=True))
            for position, client in enumerate(group.clients):
                here = group.owner == position
                for name, total in gradients[client].items():
                    if per_example:
                        total[group.row[here]] = values[name][here]
                    else:
                        np.add(total, values[name][position], out=total)
                for name, bottleneck in around[client].items():
                    seen = self._seen(name, group.longest)
                    bottleneck.entering[group.row[here], : seen.stop - seen.start] = entering[name][here, seen]
                    bottleneck.gradient[group.row[here], : seen.stop - seen.start] = leaving[name][here, seen]
        each = zip(results.loss, results.logits, gradients, around, strict=True)
        return [Differentiated(*result) for result in each]

    def _most(self, batches: Sequence[Batch]) -> int:
        """Return how many rows run together: on a CPU as many as leave a large model most of the memory."""
        most = ROWS_AT_ONCE.get(self.device.type)
        if most is None:
            return MOST_ROWS
        length = batches[0].tokens["attention_mask"].shape[1]
        return max(1, min(most, MOST_BYTES // (length * self._bytes_of_token)))

    @property
    def _bytes_of_token(self) -> int:
        """About what a pass and the way back keep of each token: its logits, and what blocks compute."""
        config = self._loaded.model.config.get_text_config()
        logits = self._loaded.vocabulary if self._loaded.task.kind.per_token else 0
        return 4 * (_COPIES * logits + _VALUES * config.hidden_size * self._loaded.layers)

    def _around(self, batch: Batch, names: Collection[str]) -> dict[str, Bottleneck]:
        """Room for what stands around those of a batch's parameters that have a bottleneck."""
        length = batch.tokens["attention_mask"].shape[1]
        around: dict[str, Bottleneck] = {}
        for name, unit in self.manifest.bottlenecks.items():
            if name in names:
                rank, features = unit.parameters[0].shape
                shape = len(batch.weight), *unit.tangents_of(length)[0].shape[:1]
                entering, gradient = np.zeros((*shape, features), np.float32), np.zeros((*shape, rank), np.float32)
                around[name] = Bottleneck(entering, gradient)
        return around

    def _behind(self, group: RowGroup, names: Collection[str]) -> dict[str, Tensor]:
        """Zeros to be added to what leaves factors, so that there is something to differentiate by."""
        shape = len(group.rows), group.longest
        units = {name: unit for name, unit in self.manifest.bottlenecks.items() if name in names}
        return {
            name: torch.zeros(*shape, unit.parameters[0].shape[0], device=self.device, requires_grad=True)
            for name, unit in units.items()
        }

    def _seen(self, name: str, tokens: int) -> slice:
        """Select the tokens, of so many, that a bottleneck sees on devices."""
        token = self.manifest.bottlenecks[name].token
        return slice(0, tokens) if token is None else slice(token, token + 1)

    def _shares(self, batches: Sequence[Batch], group: RowGroup) -> Tensor:
        """Return the share of each row in its client's mean."""
        shares = np.stack([batches[client].weight / batches[client].weight.sum() for client in group.clients])
        return torch.from_numpy(shares[group.owner, group.row].astype(np.float32)).to(self.device)

    def _leaves(self, weights: Sequence[Weights]) -> dict[str, Tensor]:
        """Clients' weights one below the other."""
        stacked = {name: np.stack([values[name] for values in weights]) for name in weights[0]}
        return {name: torch.from_numpy(values).to(self.device) for name, values in stacked.items()}

    def _rows(
        self,
        weights: Mapping[str, Tensor],
        each: int | None,
        batch: Batch,
        group: RowGroup,
        behind: Mapping[str, Tensor],
    ) -> _Rows:
        """Compute a group's rows; weights have a row for each of them, or are the same for all.

        The values `behind` factors are added there, and the inputs of the same factors are returned.
        """
        longest = group.longest
        tokens = [batch.tokens[name][group.rows, :longest] for name in self.manifest.inputs]
        labels = batch.labels[group.rows]
        if self._loaded.task.kind.per_token:
            labels = labels[:, :longest]
        inputs = [torch.from_numpy(values).to(self.device) for values in (*tokens, labels)]
        named = {"model." + self._adapted.names[name]: leaf for name, leaf in weights.items()}
        run = vmap(self._row, in_dims=(each, 0, 0))
        lower = self.arithmetic is not torch.float32
        with _whole_masks(), torch.autocast(self.device.type, self.arithmetic, enabled=lower):
            results = run(named, inputs, dict(behind))
        return results._replace(loss=results.loss.float())

    def _row(self, weights: dict[str, Tensor], inputs: list[Tensor], behind: dict[str, Tensor]) -> _Rows:
        with at_bottlenecks(self._adapted, behind, {name: value[None] for name, value in behind.items()}) as entering:
            loss, logits = functional_call(self._forward, weights, tuple(values[None] for values in inputs))
        entered, self._entered = self._entered, None
        features = {} if entered is None else {"features": entered[0]}
        return _Rows(loss[0], logits[0], {name: value[0] for name, value in entering.items()}, features)

    # --- results ---

    def save_adapter(self, folder: Path, weights: Weights) -> None:
        """Write a folder that `PeftModel.from_pretrained` loads."""
        initial = {name: value.numpy() for name, value in self._adapted.initial.items()}
        values = {name: np.ascontiguousarray(value) for name, value in folded(initial | weights).items()}
        pack.add_adapter(folder, self._adapted.config, {name: torch.from_numpy(v) for name, v in values.items()})


def open_model(
    source: str,
    *,
    task: str,
    labels: Sequence[str],
    adapter: AdapterOptions,
    seed: int = 0,
    device: str = "cpu",
    arithmetic: Arithmetic = "float32",
    random_weights: bool = False,
    length: int = 0,
    model: Callable[..., RowModel] = RowModel,
) -> RowModel:
    """Open a model for simulations, of examples with up to `length` tokens; with an export's weights of that seed.

    `model` makes another one than `RowModel` of the same arguments.
    """
    check_adapter(adapter)
    require_memory_for_all(source, MODEL_TASKS[task], random_weights=random_weights)
    given = source, MODEL_TASKS[task], tuple(labels)
    with TemporaryDirectory() as folder:
        if _is_copied(source, Path(folder), random_weights=random_weights):
            loaded = load(*given, seed=seed, copy=Path(folder))
        else:
            loaded = load(*given, random_weights=random_weights, seed=seed)
    if loaded.positions is not None and length > loaded.positions:
        raise ExportError(f"the model has {loaded.positions} positions, got --length {length}; choose a shorter length")
    adapted = adapt(loaded, adapter, seed)
    return model(loaded, adapted, adapter.method, device=device, arithmetic=arithmetic)


def _is_copied(source: str, folder: Path, *, random_weights: bool) -> bool:
    """Tell whether a large model's weights are mapped from a copy: converted ones are else in memory twice."""
    size = 0 if random_weights else copied_bytes(source)
    return size >= LARGE and pack.has_space(folder, size)


def _described(loaded: Loaded, adapted: Adapted, method: str) -> Manifest:
    return describe(loaded, adapted, _structure(loaded, adapted), method)


def _structure(loaded: Loaded, adapted: Adapted) -> Structure:
    config = json.dumps(pack.plain(adapted.config), sort_keys=True)
    adapter = config, tuple(adapted.names.items()), adapted.at_bottlenecks
    return traced_once(loaded.built, adapter, lambda: _traced(loaded, adapted))


def _traced(loaded: Loaded, adapted: Adapted) -> Structure:
    captured = capture(adapted.model, loaded.task, loaded.example_inputs(2, 8), adapted.slots)
    narrow(captured)  # says what sees one token alone
    if adapted.at_bottlenecks:
        mark_bottlenecks(captured.graph)
    return structure_of(split(captured, loaded.layers, boundaries(loaded.layers, None)))


class _Rows(NamedTuple):
    """The results of a group's rows."""

    loss: Tensor
    logits: Tensor
    entering: dict[str, Tensor]
    """The inputs of factors, by their names."""
    features: dict[str, Tensor]
    """The inputs of the head's last layer; empty where nobody looks."""


def _arrays(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Array]:
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in tensors}


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
