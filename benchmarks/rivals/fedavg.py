"""A round's work in plain PyTorch: the model, and a client's steps, as any framework would be given them.

`simulators.py` writes the folder: the model and a PEFT adapter, and every batch of every client of every round, so that
all frameworks compute the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

TOKENS = ("input_ids", "attention_mask")


class Work:
    """The work, and the folder of its results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        told = json.loads((folder / "work.json").read_text())
        self.rounds: int = told["rounds"]
        self.clients: int = told["clients"]
        self.steps: int = told["steps"]
        self.batch: int = told["batch"]
        self.rate: float = told["rate"]
        self.workers: int = told["workers"]
        self.classes: int = told["classes"]
        self._arrays = dict(np.load(folder / "batches.npz"))
        self._ends: list[float] = []

    def model(self) -> Any:
        """The model with its adapter, whose weights alone are trained."""
        base = AutoModelForSequenceClassification.from_pretrained(
            self.folder / "model", num_labels=self.classes, ignore_mismatched_sizes=True
        )
        model: Any = PeftModel.from_pretrained(base, str(self.folder / "adapter"), is_trainable=True)
        model.base_model.model.classifier.modules_to_save["default"] = Head(load_file(self.folder / "head.safetensors"))
        return model.eval()

    def batches(self, number: int, client: int) -> Iterator[dict[str, Tensor]]:
        """A client's batches in a round from 0 on, each as long as its longest text."""
        for step in range(self.steps):
            one = {name: values[number, client, step] for name, values in self._arrays.items()}
            longest = int(one["attention_mask"].sum(1).max())
            tokens = {name: torch.from_numpy(one[name][:, :longest]) for name in TOKENS}
            yield {**tokens, "labels": torch.from_numpy(one["labels"])}

    def round_ended(self) -> None:
        self._ends.append(time.monotonic())

    def done(self, weights: dict[str, Tensor]) -> None:
        """Keep the moments at which rounds ended, and the adapter."""
        (self.folder / "ends.json").write_text(json.dumps(self._ends))
        save_file(weights, self.folder / "result.safetensors")


class Head(nn.Linear):
    """The task layer behind features that are centred and of even size, as SPRY trains it."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        classes, features = tensors["weight"].shape
        super().__init__(features, classes)
        self.weight.data, self.bias.data = tensors["weight"], tensors["bias"]
        self._centre, self._scale = tensors["centre"], tensors["scale"]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- the base's name
        return super().forward((input - self._centre) @ self._scale)


@lru_cache(1)
def opened(folder: Path) -> tuple[Work, Any]:
    """The work and its model, once for each process."""
    work = Work(folder)
    return work, work.model()


def trained(model: Any) -> dict[str, Tensor]:
    """The weights that learn, named as in PEFT's files."""
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return {
        name.replace(".default", "").replace("modules_to_save.", ""): value.detach() for name, value in named.items()
    }
