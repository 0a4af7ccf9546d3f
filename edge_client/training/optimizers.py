"""Optimizers in numpy: those of a client's local steps, and the server's, which clients repeat in mode iteration.

State is a dictionary of arrays under ``<slot>:<parameter>``, so that it is saved, sent and resumed like weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_client.arrays import Array, Weights
from edge_client.bundle.names import COUNT, ERROR, FIRST, SECOND
from edge_client.wire.protocol import ServerOptimizers, Training

from .server_optimizers import SERVER_OPTIMIZERS, blend

ADAMW_BETA1, ADAMW_BETA2, ADAMW_EPSILON = 0.9, 0.999, 1e-8


def local_step(
    weights: Weights, gradients: Mapping[str, Array], state: Weights, training: Training, rate: float
) -> None:
    """Move weights against their gradients, in place; parameters without a gradient stay."""
    move = _adamw if training.optimizer == "adamw" else _sgd
    for name, gradient in gradients.items():
        weight = weights[name]
        decayed = weight * (1 - rate * training.weight_decay)
        weights[name] = move(name, decayed, gradient, state, rate)


def _sgd(name: str, weight: Array, gradient: Array, state: Weights, rate: float) -> Array:  # noqa: ARG001
    return weight - rate * gradient


def _adamw(name: str, weight: Array, gradient: Array, state: Weights, rate: float) -> Array:
    zero = np.zeros_like(weight)
    count = int(state.get(COUNT + name, np.zeros(1))[0]) + 1
    first = blend(ADAMW_BETA1, state.get(FIRST + name, zero), gradient)
    second = blend(ADAMW_BETA2, state.get(SECOND + name, zero), gradient * gradient)
    state[COUNT + name], state[FIRST + name], state[SECOND + name] = np.array([count], np.float32), first, second
    unbiased = first / (1 - ADAMW_BETA1**count)
    scale = np.sqrt(second / (1 - ADAMW_BETA2**count)) + ADAMW_EPSILON
    return weight - rate * unbiased / scale


def server_step(
    weights: Weights, changes: Mapping[str, Array], state: Weights, optimizers: ServerOptimizers, head: frozenset[str]
) -> None:
    """Move weights by the mean change that clients report, in place.

    A parameter without a change keeps its value and its state: nobody who was to train it reported.
    """
    for name, change in changes.items():
        optimizer = optimizers.head if name in head else optimizers.units
        weights[name] = SERVER_OPTIMIZERS.find(optimizer.kind)(name, weights[name], change, state, optimizer)
        state.pop(ERROR + name, None)  # of this change alone


def check_server_optimizers(optimizers: ServerOptimizers) -> None:
    """Refuse those that are not known here."""
    for optimizer in (optimizers.units, optimizers.head):
        SERVER_OPTIMIZERS.find(optimizer.kind)
