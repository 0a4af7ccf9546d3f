"""Define a model with its adapter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peft import PeftModel
from torch import Tensor

from export.graph.slots import Slot


@dataclass
class Adapted:
    """A model with its adapter."""

    model: PeftModel
    slots: dict[int, Slot]
    """Address of a trainable parameter -> its slot in the graph, named as in a PEFT adapter file."""
    names: dict[str, str]
    """Name in the adapter file -> name in the model. Addresses hold until worker processes share the memory."""
    config: dict[str, Any]
    """adapter_config.json"""
    initial: dict[str, Tensor]
    """adapter_model.safetensors before training, with what PEFT wants beside the trainable tensors."""
    feature_square: float | None = None
    """The mean squared length of what the head's last layer is given."""
    at_bottlenecks: bool = False
    """True if forward gradients move the output of a layer's first factor, in place of its weights."""
