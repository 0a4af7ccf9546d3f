"""A task layer that sees its features centred and of even size.

What a model hands to its task layer has a mean as large as its spread, so much of a new layer's gradient is about the
mean, which says nothing of the task; and features are small, so the bias moves first, towards whatever classes a device
has. With examples at hand the mean and the spread are known before training. They are folded into the layer's weights
at the end (`edge_client.bundle.adapters.folded`), so an adapter for PEFT knows nothing of it.

Without examples texts of random words tell how features move together whatever a text says: of a few directions, which
take most of a gradient's length. A layer behind the inverse root of that covariance learns all directions alike, which
counts most where nobody may measure features: with a privacy budget, where each update is clipped, and in sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edge_client.bundle.adapters import CENTRE, SCALE
from export.adapt.labelled import Batch
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.model.loading import Loaded
from export.model.samples import SENTENCES, random_texts, sample_inputs

_LENGTH = 64
"""Tokens of the sentences that features are measured on."""
_LEAST = 0.1
"""The least spread, as a share of the usual one: a feature that hardly moves here may move elsewhere."""
_TEXTS, _WORDS = 512, 16
"""The number of texts of random words, and the most tokens of a word."""
_RIDGE = 0.3
"""The share of the usual variance that is added in each direction: so many texts know little of the least ones."""
_FEWEST = 1000
"""Tokens to draw from: texts of a few words are much alike, and say nothing of others."""
_WIDEST = 1024
"""Features that are moved by a matrix: a larger one would weigh more than what is trained."""
_LONGER = 2.0
"""Than features were: beside longer ones the bias takes up less of a gradient."""


class StandardizedLinear(nn.Linear):
    """A linear layer behind `(features - centre) * scale` that at first gives what the plain one gave.

    The scale is a factor for each feature, or a symmetric matrix.
    """

    def __init__(self, plain: nn.Linear, centre: Tensor, scale: Tensor) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=False, device="meta")
        self.register_buffer(CENTRE, centre)
        self.register_buffer(SCALE, scale)
        self.centre: Tensor
        self.scale: Tensor
        weight = torch.linalg.solve(scale, plain.weight.T).T if scale.ndim > 1 else plain.weight / scale
        self.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
        self.bias = _moved(plain, centre)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- the base's name
        return super().forward(self.standardized(input))

    def standardized(self, features: Tensor) -> Tensor:
        moved = features - self.centre
        return moved @ self.scale if self.scale.ndim > 1 else moved * self.scale


def _moved(plain: Any, centre: Tensor) -> nn.Parameter | None:
    return None if plain.bias is None else nn.Parameter(plain.bias + plain.weight @ centre, requires_grad=False)


def prepare_head(loaded: Loaded, heads: Sequence[str], examples: Sequence[Batch], seed: int) -> None:
    """Prepare the head by examples, or else by random words."""
    if examples:
        standardize_head(loaded, heads, examples)
    else:
        whiten_head(loaded, heads, seed)


def standardize_head(loaded: Loaded, heads: Sequence[str], batches: Sequence[Batch]) -> None:
    """Put the task layer of a model behind the mean and the spread of its features in these examples."""
    name = _last_linear(loaded, heads)
    plain: Any = loaded.model.get_submodule(name)
    features = _features(loaded, plain, batches)
    centre = torch.zeros(plain.in_features) if plain.bias is None else features.mean(0)  # a bias can take it up
    spread = (features - centre).square().mean(0).sqrt()
    usual = spread.square().mean().sqrt()
    if not torch.isfinite(usual) or usual == 0:
        raise ExportError(
            f"the task layer {name} gets the same features for all of the examples; give examples that differ"
        )
    layer = StandardizedLinear(plain, centre, 1 / spread.clamp(min=_LEAST * float(usual)))
    loaded.model.set_submodule(name, layer.eval())


def whiten_head(loaded: Loaded, heads: Sequence[str], seed: int) -> None:
    """Put the layer that classifies texts behind a whitening of its features, by texts of random words.

    Features stay about as long as they were, so that rates keep their meaning. Other tasks, and models without a
    tokenizer or of few words, stay as they are.
    """
    linears = _linears(loaded, heads)
    kind = loaded.task.kind
    if not linears or not kind.has_classes or kind.per_token:
        return
    if loaded.tokenizer is None or len(loaded.tokenizer) < _FEWEST:
        return
    plain: Any = loaded.model.get_submodule(linears[-1])
    if plain.in_features > _WIDEST:
        return
    texts = random_texts(loaded, _TEXTS, min(_WORDS, loaded.positions or _WORDS), seed)
    features = _features(loaded, plain, texts).double()
    centre = torch.zeros_like(features[0]) if plain.bias is None else features.mean(0)
    scale = _whitening(features - centre, _LONGER**2 * float(features.square().sum(1).mean()))
    if scale is not None:
        layer = StandardizedLinear(plain, centre.float(), scale.float())
        loaded.model.set_submodule(linears[-1], layer.eval())


def _whitening(moved: Tensor, square: float) -> Tensor | None:
    """Compute the matrix by which rows vary alike in all directions, with this mean square; None if none vary."""
    values, vectors = torch.linalg.eigh(moved.T @ moved / len(moved))
    usual = values.mean()
    if not torch.isfinite(usual) or usual <= 0:
        return None
    scale = (vectors * (values.clamp(min=0) + _RIDGE * usual).rsqrt()) @ vectors.T
    scale *= (square / (moved @ scale).square().sum(1).mean()).sqrt()
    return (scale + scale.T) / 2


def feature_square(loaded: Loaded, heads: Sequence[str], seed: int) -> float | None:
    """Compute the mean squared length of the features in a few sentences; None where there is no layer."""
    linears = _linears(loaded, heads)
    if not linears:
        return None
    layer = loaded.model.get_submodule(linears[-1])
    inputs = sample_inputs(loaded, len(SENTENCES), min(_LENGTH, loaded.positions or _LENGTH), seed)
    return float(entering(layer, _features(loaded, layer, [inputs])).square().sum(1).mean())


def entering(layer: nn.Module, given: Tensor) -> Tensor:
    """Select what a layer's weight is multiplied with, of what the layer is given."""
    return layer.standardized(given) if isinstance(layer, StandardizedLinear) else given


def _last_linear(loaded: Loaded, heads: Sequence[str]) -> str:
    """Find the layer that gives the logits: a task layer may have several."""
    linears = _linears(loaded, heads)
    if not linears:
        raise ExportError(
            "the model's task layer has no linear layer whose features could be centred: leave --examples out"
        )
    return linears[-1]


def _linears(loaded: Loaded, heads: Sequence[str]) -> list[str]:
    linears = [name for name, module in loaded.model.named_modules() if isinstance(module, nn.Linear)]
    return [name for name in linears if name.split(".")[0] in heads]


def _features(loaded: Loaded, layer: nn.Module, batches: Sequence[Batch]) -> Tensor:
    """Give what enters the layer, of each example or of each of its tokens."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _module, given: seen.append(given[0]))
    forward = TaskForward(loaded.model, loaded.task, loaded.inputs)
    try:
        with torch.no_grad():
            for batch in batches:
                forward(*batch.values())
    finally:
        hook.remove()
    masks = [batch["attention_mask"].bool() for batch in batches]
    return torch.cat(
        [states[mask] if states.ndim > mask.ndim else states for states, mask in zip(seen, masks, strict=True)]
    )
