"""Measure a step: on a GPU by the allocator's own figures, on the CPU by the process's size, or counted."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from gpu_models import Shape
from gpu_steps import STEPS, Step
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edge_client.memory import peak_above, resident

FAKE = "fake"
"""Tensors without data: nothing is computed, every allocation is counted."""


class Counter(TorchDispatchMode):
    """The bytes of all tensors that were made while it is active, and their highest."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, weakref.ref[Any]] = {}
        self.now = self.highest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten._local_scalar_dense.default" and isinstance(args[0], FakeTensor):
            return True  # a model asks whether its mask is all ones, and leaves it out
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and id(leaf.untyped_storage()) not in given:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: Any) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.highest = max(self.highest, self.now)


@dataclass
class Memory:
    """The bytes and seconds of a step; None where a device has no such figure."""

    above: int
    """The highest above what is held between steps."""
    total: int
    reserved: int | None = None
    seconds: float | None = None
    loss: float | None = None


def measure(shape: Shape, method: str, device: str) -> tuple[int, Memory]:
    """The bytes of the weights, and what a step takes with them."""
    if device == FAKE:
        return _measure_fake(shape, method)
    step, weights = STEPS[method](shape, device)
    gc.collect()
    return weights, _on_cuda(step) if device.startswith("cuda") else _on_cpu(step, weights)


def _measure_fake(shape: Shape, method: str) -> tuple[int, Memory]:
    """Count a step's bytes. On the CPU torch.func.jvp has no fused attention, and norms lose a fake tensor's device."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        step, weights = STEPS[method](shape, "meta" if method == "func.jvp" else "cpu")
        gc.collect()
        highest = counted(step)
    return weights, Memory(highest, weights + highest)


def counted(step: Step) -> int:
    """The most bytes that tensors of a step take at once."""
    with Counter() as counter:
        step()
    return counter.highest


class _Timed:
    """A step that notes its seconds and its loss; asking for the loss waits for the device."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self.seconds = self.loss = 0.0

    def __call__(self) -> None:
        started = time.monotonic()
        self.loss = float(self._step()[0])
        self.seconds = time.monotonic() - started


def _on_cpu(step: Step, weights: int) -> Memory:
    timed = _Timed(step)
    above = peak_above(resident("RssAnon"), timed, rounds=1)
    return Memory(above, weights + above, None, timed.seconds, timed.loss)


def _on_cuda(step: Step) -> Memory:
    timed = _Timed(step)
    torch.cuda.empty_cache()
    timed()  # libraries take their work space once
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    timed()
    highest = torch.cuda.max_memory_allocated()
    return Memory(highest - before, highest, torch.cuda.max_memory_reserved(), timed.seconds, timed.loss)
