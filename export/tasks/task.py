"""Define a kind of task for exports, beyond its definition for devices: its model, and its loss.

Each kind is a class in a module of its own and a row of the table in `registry.py`; everything else asks the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from edge_client.tasks.task import TaskType


class ModelTask(ABC):
    """One kind of training; its objects hold nothing."""

    kind: ClassVar[TaskType]
    """The kind for devices: its name, and its labels."""
    model_class: ClassVar[str]
    """The name of the model's class in transformers."""
    peft_type: ClassVar[str]
    """The task's name in PEFT's adapter configuration."""

    @property
    def name(self) -> str:
        return self.kind.name

    def configure(self, config: Any, labels: Sequence[str]) -> None:
        """Tell a model's configuration of the classes, where there are some."""
        if self.kind.has_classes:
            config.num_labels = len(labels)
            config.id2label = dict(enumerate(labels))
            config.label2id = {label: i for i, label in enumerate(labels)}

    def logits(self, output: Any) -> Tensor:
        """Select the logits of what a model returns."""
        return output.logits

    def judged(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Losses of examples, and what `TaskType.read` reads predictions from: the logits, unless they are too many."""
        return self.losses(logits, labels, attention_mask), logits

    @abstractmethod
    def losses(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """[B]: the loss of each example."""

    @abstractmethod
    def sample_labels(self, ids: Tensor, mask: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        """Labels to verify programs with, for tokens and their attention mask, both [B, T]."""


def picked(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label along the last axis; ignored labels give some finite value."""
    return log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
