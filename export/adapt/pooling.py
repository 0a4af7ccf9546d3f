"""A start from which the task layer is given what an encoder of sentences says of a text: the mean over its tokens.

Such an encoder (of sentence-transformers, by its `1_Pooling/config.json`) was trained to be read by the mean of its
last hidden states, while the task layer of a classifier reads the first token through a pooler that nobody trained for
it. Where classes have few rows, that loses much of what the encoder knows. So before anything else is learned, the
adapter and the pooler learn to say at the first token what the mean says there, by texts of random words: no labels are
needed (distillation of a model into itself). PEFT loads the result as any other adapter.
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


def from_mean(loaded: Loaded, config: PeftConfig, seed: int, tell: Callable[[str], None]) -> MeanStart:
    """Learn to say at the first token what the mean over all tokens says, with an adapter about a copy of the model."""
    prefix, name = loaded.model.base_model_prefix, _pooler(loaded)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        student = get_peft_model(copy.deepcopy(loaded.model), config)  # type: ignore[arg-type]
    student.eval()
    learning = [value for key, value in student.named_parameters() if "lora_" in key or _is_new(key, name)]
    for value in learning:
        value.requires_grad_(True)
    texts = _texts(loaded, seed)
    teacher = _Mean(getattr(loaded.model, prefix), texts)
    _distil(getattr(student.base_model.model, prefix), teacher, texts, learning, tell)
    adapter = {key: value.detach().clone() for key, value in student.named_parameters() if "lora_" in key}
    merged: Any = student.merge_and_unload()
    merged.requires_grad_(False)
    return MeanStart(replace(loaded, model=merged), adapter, name)


def _texts(loaded: Loaded, seed: int) -> list[dict[str, Tensor]]:
    most = min(_WORDS, loaded.positions or _WORDS)
    batches = random_texts(loaded, STEPS * _TOGETHER, most, seed)
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
        return torch.tanh((self._mean(batch) - self._centre) * self._scale)

    @torch.no_grad()
    def _mean(self, batch: Mapping[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"][..., None]
        return (self._base(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)


def _distil(
    base: nn.Module,
    teacher: _Mean,
    texts: Sequence[Mapping[str, Tensor]],
    learning: list[nn.Parameter],
    tell: Callable[[str], None],
) -> None:
    optimizer = torch.optim.AdamW(learning, lr=_RATE, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / _WARM) * (1 - step / len(texts))
    )
    for step, batch in enumerate(texts):
        wanted = teacher(batch)
        loss = (base(**batch).pooler_output - wanted).square().mean() / wanted.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        falling.step()
        tell(f"the mean at the first token: step {step + 1} of {len(texts)}")
