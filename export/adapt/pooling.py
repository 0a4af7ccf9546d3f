"""A start from which the task layer is given what an encoder of sentences says of a text: the mean over its tokens.

Such an encoder (of sentence-transformers, by its `1_Pooling/config.json`) was trained to be read by the mean of its
last hidden states, while the task layer of a classifier reads the first token through a pooler that nobody trained for
it. Where classes have few rows, that loses much of what the encoder knows. So before anything else is learned, the
adapter of the last half of the blocks and the pooler learn to say at the first token what the mean says there, by texts
of random words: no labels are needed (distillation of a model into itself). The pooler is linear but for its tanh, so
ridge regression finds it, before and after the adapter learns. PEFT loads the result as any other adapter.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from peft import PeftConfig, get_peft_model
from torch import Tensor, nn

from export.errors import ExportError
from export.model.loading import Loaded
from export.model.samples import random_texts

STEPS, _TOGETHER = 300, 32
"""Steps, and how many texts `random_texts` puts in one."""
_WORDS = 24
"""Tokens of a text, at most."""
_RATE, _WARM = 3e-3, 20
_SPREAD = 0.3
"""The standard deviation of the pooler's target before its tanh."""
_SOLVED, _RIDGE = 64, 1e-3
"""Batches that ridge regression finds the pooler by, and its penalty as a share of a channel's mean variance."""


@dataclass(frozen=True)
class MeanStart:
    """A model as it starts."""

    loaded: Loaded
    """The model with its adapter merged, to look at what reaches the task layer."""
    adapter: Mapping[str, Tensor]
    """The adapter's parameters, by their names in the wrapped model."""
    pooler: str
    """The name of the pooler's module."""

    def put(self, model: nn.Module) -> None:
        """Start a wrapped model's adapter here."""
        with torch.no_grad():
            for name, value in self.adapter.items():
                model.get_parameter(name).copy_(value)


def with_new_pooler(loaded: Loaded) -> Loaded:
    """Note that the adapter has to bring its own pooler along."""
    name = _pooler(loaded)
    if loaded.tokenizer is None or name not in {found for found, _ in loaded.model.named_modules()}:
        raise ExportError(
            "--from-mean is for encoders with a tokenizer and a pooler, such as BERT's: leave it out for this model"
        )
    return replace(loaded, drawn=(name,))


def _pooler(loaded: Loaded) -> str:
    return f"{loaded.model.base_model_prefix}.pooler"


def from_mean(
    loaded: Loaded, config: PeftConfig, learns: Callable[[str], bool], seed: int, tell: Callable[[str], None]
) -> MeanStart:
    """Learn to say at the first token what the mean over all tokens says, with an adapter about a copy of the model.

    `learns` tells by a parameter's name whether it is in a block that learns.
    """
    prefix, name = loaded.model.base_model_prefix, _pooler(loaded)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        student = get_peft_model(copy.deepcopy(loaded.model), config)  # type: ignore[arg-type]
    student.eval()
    for key, value in student.named_parameters():
        value.requires_grad_(("lora_" in key and learns(key)) or _is_new(key, name))
    texts = _texts(loaded, STEPS, seed)
    teacher, base = _Mean(getattr(loaded.model, prefix), texts), getattr(student.base_model.model, prefix)
    others = _texts(loaded, _SOLVED, seed + 1)
    _solve(base, teacher, others)
    _distil(base, teacher, texts, tell)
    _solve(base, teacher, others)
    adapter = {key: value.detach().clone() for key, value in student.named_parameters() if "lora_" in key}
    merged: Any = student.merge_and_unload()
    merged.requires_grad_(False)
    return MeanStart(replace(loaded, model=merged), adapter, name)


def _texts(loaded: Loaded, count: int, seed: int) -> list[dict[str, Tensor]]:
    """Return so many batches, by turns of single texts, which are what encoders of sentences know, and of pairs."""
    most = min(_WORDS, loaded.positions or _WORDS)
    batches = random_texts(loaded, count * _TOGETHER, most, seed)
    for batch in batches[::2]:
        if "token_type_ids" in batch:
            batch["token_type_ids"].zero_()
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed)).tolist()
    return [{name: batches[at][name] for name in batches[at] if name != "labels"} for at in order]


def _is_new(parameter: str, pooler: str) -> bool:
    return f"{pooler}.modules_to_save." in parameter


class _Mean:
    """The target of the pooler: the mean over tokens, centred and scaled."""

    def __init__(self, base: nn.Module, texts: Sequence[Mapping[str, Tensor]]) -> None:
        self._base = base
        some = torch.cat([self._mean(batch) for batch in texts[:8]])
        self._centre = some.mean(0)
        self._scale = _SPREAD / (some - self._centre).std()

    def __call__(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Compute what the pooler should say before its tanh."""
        return (self._mean(batch) - self._centre) * self._scale

    @torch.no_grad()
    def _mean(self, batch: Mapping[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"][..., None]
        return (self._base(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)


@torch.no_grad()
def _solve(base: Any, teacher: _Mean, texts: Sequence[Mapping[str, Tensor]]) -> None:
    """Find the pooler's layer by ridge regression of what it should say on the first token's hidden states."""
    given = torch.cat([base(**batch).last_hidden_state[:, 0] for batch in texts]).double()
    wanted = torch.cat([teacher(batch) for batch in texts]).double()
    moved = given - given.mean(0)
    square = moved.T @ moved
    square += _RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
    weight = torch.linalg.solve(square, moved.T @ wanted).T
    layer = next(part for part in base.pooler.modules() if isinstance(part, nn.Linear) and part.weight.requires_grad)
    layer.weight.copy_(weight)
    layer.bias.copy_(wanted.mean(0) - weight @ given.mean(0))


def _distil(
    base: nn.Module, teacher: _Mean, texts: Sequence[Mapping[str, Tensor]], tell: Callable[[str], None]
) -> None:
    learning = [value for value in base.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=_RATE, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / _WARM) * (1 - step / len(texts))
    )
    for step, batch in enumerate(texts):
        wanted = torch.tanh(teacher(batch))
        loss = (base(**batch).pooler_output - wanted).square().mean() / wanted.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
        tell(f"the mean at the first token: step {step + 1} of {len(texts)}")
