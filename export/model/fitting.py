"""Check that a model fits the memory at hand, before work begins that the system would end in its middle."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch
import transformers
from transformers import AutoConfig

from edge_client.checkpoints import local_model
from edge_client.gguf.header import GgufHeader
from export.errors import ExportError
from export.model.mapped import float_bytes, largest_float_bytes
from export.tasks.task import ModelTask

_LIBRARIES = 600_000_000
"""Bytes that the libraries and the work itself take beside a model."""
_COPIES = 3
"""The copies of a weight while it is lowered: the original, the rounded, and the written one."""


def require_memory_for_all(source: str, task: ModelTask, *, random_weights: bool) -> None:
    """Refuse a model whose weights are all in memory at once, and do not fit."""
    weights = _random_bytes(source, task) if random_weights else _stored_bytes(source)
    free = psutil.virtual_memory().available
    if weights and weights + _LIBRARIES > free:
        raise ExportError(
            f"{source} has {weights / 4e6:,.0f} million weights, which take {_mb(weights)} in float32, and {_mb(free)} "
            f"of memory are free: {_fits(free)}; close other programs, or take a smaller model"
        )


def require_memory_for_each(source: str) -> None:
    """Refuse a model whose weights stay in files, and of which the largest does not fit."""
    place = local_model(source)
    if place is None:
        return
    largest = max(_of_gguf(place), default=0) if place.is_file() else largest_float_bytes(place)
    needed, free = _COPIES * largest + _LIBRARIES, psutil.virtual_memory().available
    if needed > free:
        raise ExportError(
            f"{source} has a layer of {_mb(largest)} in float32, for which an export takes {_mb(needed)}, and "
            f"{_mb(free)} of memory are free; close other programs, or take a smaller model"
        )


def _stored_bytes(source: str) -> int:
    place = local_model(source)
    if place is None:
        return 0
    return sum(_of_gguf(place)) if place.is_file() else float_bytes(place)


def _of_gguf(path: Path) -> list[int]:
    """Size each weight of a GGUF file in float32."""
    return [4 * tensor.elements for tensor in GgufHeader(path).tensors.values()]


def _random_bytes(source: str, task: ModelTask) -> int:
    """Count the bytes by the shape alone, without any weights; 0 where they are unknown."""
    try:
        config = AutoConfig.from_pretrained(local_model(source) or source)
        with torch.device("meta"):
            model = getattr(transformers, task.model_class).from_config(config)
    except Exception:  # noqa: BLE001 -- loading reports what is wrong with the model
        return 0
    return sum(4 * parameter.numel() for parameter in model.parameters())


def _fits(free: int) -> str:
    return f"about {max(free - _LIBRARIES, 0) / 4e6:,.0f} million weights would fit"


def _mb(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
