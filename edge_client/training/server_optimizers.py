"""Move the server's weights by the mean change that clients report (Reddi et al., 2021): a function for each optimizer.

A new one is a function here and a row in the table at the end; another distribution adds one by an entry point of the
group `spry.server_optimizers`. In mode epoch the server alone takes its steps, and devices need not know it; in mode
iteration they repeat them, and a device that has no such optimizer gives the task back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Protocol

import numpy as np

from edge_client import plugins
from edge_client.arrays import Array, Weights
from edge_client.bundle.names import ERROR, FIRST, SECOND
from edge_client.wire.protocol import ServerOptimizer


class OptimizerStep(Protocol):
    """A function that gives a parameter's next weight."""

    def __call__(self, name: str, weight: Array, change: Array, state: Weights, optimizer: ServerOptimizer, /) -> Array:
        """Return the weight after this step.

        What is to be known at the parameter's next step is put into `state` under `FIRST` and `SECOND`
        (`edge_client.bundle.names`) and the name, in 32 bits and the weight's shape. Devices take no other slots: more
        is for mode epoch alone. There the server knows what each device changed, and for this step `state` has the
        change's standard error under `ERROR` and the name.
        """
        ...


def blend(beta: float, old: Array, new: Array) -> Array:
    """Compute a running mean's next value."""
    return beta * old + (1 - beta) * new


def adaptive(second_of: Callable[[Array, Array, ServerOptimizer], Array]) -> OptimizerStep:
    """Momentum by the root of a second moment, which a function finds of the one before and the change's square."""

    @wraps(second_of)
    def move(name: str, weight: Array, change: Array, state: Weights, optimizer: ServerOptimizer) -> Array:
        first = blend(optimizer.beta1, state.get(FIRST + name, np.zeros_like(weight)), change)
        second = second_of(state.get(SECOND + name, np.full_like(weight, optimizer.tau**2)), change * change, optimizer)
        state[FIRST + name], state[SECOND + name] = first, second
        return weight + optimizer.learning_rate * first / (np.sqrt(second) + optimizer.tau)

    return move


def fedavg(name: str, weight: Array, change: Array, state: Weights, optimizer: ServerOptimizer) -> Array:  # noqa: ARG001
    """Step by the mean as it is."""
    return weight + change


@adaptive
def fedyogi(second: Array, square: Array, optimizer: ServerOptimizer) -> Array:
    """Second moments that grow and shrink at the same pace."""
    return second - (1 - optimizer.beta2) * square * np.sign(second - square)


@adaptive
def fedadam(second: Array, square: Array, optimizer: ServerOptimizer) -> Array:
    """Second moments that forget."""
    return blend(optimizer.beta2, second, square)


@adaptive
def fedadagrad(second: Array, square: Array, optimizer: ServerOptimizer) -> Array:  # noqa: ARG001
    """Second moments that only grow."""
    return second + square


SUREST = 4.0
"""Standard errors beyond which a change is as sure as it can be."""


def fedsnr(name: str, weight: Array, change: Array, state: Weights, optimizer: ServerOptimizer) -> Array:
    """Momentum of the change in standard errors: a number moves as far as devices agree on it.

    What one wants and another does not is noise, or what their data differ in; there the step is as long as the rate
    says. Where all want the same it is as many times longer as the root of their number. How long changes were before
    is forgotten, so that one that grows fast is no longer a step. A change that is known as one alone, as of a sum in
    secret or in mode iteration, takes FedYogi's step.
    """
    error = state.get(ERROR + name)
    if error is None:
        return fedyogi(name, weight, change, state, optimizer)
    sure = np.divide(change, error, out=np.zeros_like(weight), where=error > 0)
    first = blend(optimizer.beta1, state.get(FIRST + name, np.zeros_like(weight)), np.clip(sure, -SUREST, SUREST))
    state[FIRST + name] = first
    return weight + optimizer.learning_rate * first


SERVER_OPTIMIZERS = plugins.Registry[OptimizerStep](
    plugins.SERVER_OPTIMIZERS,
    callable,
    {"fedyogi": fedyogi, "fedadam": fedadam, "fedadagrad": fedadagrad, "fedavg": fedavg, "fedsnr": fedsnr},
)
