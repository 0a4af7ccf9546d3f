"""Define presets: settings that a job or a simulation starts from, as changes to the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.estimator import TANGENT
from edge_client.tasks.registry import task_named
from server.policy.passes import carried

Preset = Literal["auto", "forward", "scalars", "default", "paper", "bottleneck"]

_PAPER_SERVER = {"kind": "fedyogi", "learning_rate": 0.01}
_STEADY_SERVER = {"units": {"learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}
_AGREED_SERVER = {"units": {"kind": "fedsnr", "learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}

HALF_WAY = 2.0
"""The passes of a step that backpropagates through half of the blocks."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Each device goes back through as many blocks as its memory allows, and takes forward gradients before them. It
    # hardly moves its units while it trains, lest the head learn what only this device sees; the server moves each
    # number as far as devices agree on it, however small the changes that come in.
    "auto": {
        "training": {"estimator": "auto", "learning_rate": 0.001},
        "optimizers": _AGREED_SERVER,
        "average": 0.9,
    },
    # Forward gradients alone, by every device: of the units and along as many directions as the same passes tell most
    # by (`server.policy.directions`). Directions that do not repeat each other are free.
    "forward": {
        "training": {"estimator": "forward", "directions": 0, "kind": "orthogonal", "learning_rate": 0.001},
        "optimizers": _AGREED_SERVER,
        "units_per_client": 0,
        "average": 0.9,
        "passes": HALF_WAY,
    },
    # The same by numbers alone, which everybody repeats the step from: of the units' derivatives as many as the passes
    # pay for, along directions that a batch shares, and the head's gradient in two bits a number. Each step moves the
    # weights, by little.
    "scalars": {
        "training": {
            "estimator": "forward",
            "head": "exact",
            "directions": 0,
            "kind": "orthogonal",
            "per_example": False,
            "learning_rate": 1.0,
            "head_learning_rate": 1.0,
        },
        "optimizers": {
            "units": {"kind": "fedyogi", "learning_rate": 0.001},
            "head": {"kind": "fedyogi", "learning_rate": 0.01},
        },
        "units_per_client": 0,
        "average": 0.9,
        "passes": HALF_WAY,
    },
    # Forward gradients alone, by every device, along one direction.
    "default": {},
    # The paper's way: one direction over a client's units and its head together, the same for all examples of a batch.
    "paper": {
        "training": {"per_example": False, "head": "joint", "learning_rate": 1e-4},
        "optimizers": {"units": _PAPER_SERVER, "head": _PAPER_SERVER},
        "over_selection": 1.0,
        "rounds": 1500,
    },
    # For adapters with bottlenecks. The way back through the last two blocks costs little and tells all units there
    # without noise; before them derivatives along directions at bottlenecks. Devices hardly move their units, as with
    # `auto`.
    "bottleneck": {
        "training": {"estimator": "mixed", "exact_blocks": 2, "learning_rate": 0.001},
        "optimizers": _STEADY_SERVER,
        "average": 0.9,
    },
}

ABOUT: Mapping[str, str] = {
    "auto": "Each device takes true gradients through as many blocks as its memory allows; the server makes the step, "
    "or with few rows in all the devices do.",
    "forward": "Forward gradients only, of the units that two passes a step estimate best; no backpropagation.",
    "scalars": "Mode iteration: forward gradients of the units that two passes estimate best, sent as a few numbers.",
    "default": "Forward gradients only, along one direction of every unit: the least work a step, and most rounds.",
    "paper": "As the SPRY paper has it: one direction over units and head together, 1,500 rounds.",
    "bottleneck": "For bottleneck adapters: true gradients through two blocks, derivatives at bottlenecks before them.",
}
"""A line for each preset: its use, and the devices' work."""

_PRIVATE: Mapping[str, Any] = {
    "training": {"optimizer": "sgd", "learning_rate": 0.3, "head_learning_rate": 0.03},
    "optimizers": {
        "units": {"kind": "fedyogi", "learning_rate": 0.003, "tau": 1e-8},
        "head": {"kind": "fedyogi", "learning_rate": 0.03, "tau": 1e-8, "beta1": 0.8},
    },
    "average": 0.8,
}
"""The changes over any preset where updates are clipped and noise is added: optimizers that make steps of a length of
their own, for the head too, whose features are not measured then; rates by which units and head have a share of the
clip; and an average, in which noise cancels."""

_FEW: Mapping[str, Any] = {
    "training": {"optimizer": "adamw", "learning_rate": 0.003, "head_learning_rate": 0.003, "epochs": 2},
    "optimizers": {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}},
}
"""The start of units and head where there are few rows in all, and so few rounds.

A step of the server's a round would be too few steps. So devices walk themselves, and the server takes their mean."""
FEW_ROWS = 1000
"""The most rows that count as few: a round's passes are short, and ten steps of the server's do not suffice."""
MANY_CLASSES = 10
"""The number of classes from which a head that steps by its features learns more of few rows than local steps."""

_ALONE: Mapping[str, Any] = {
    "training": {"optimizer": "adamw", "learning_rate": 0.015},
    "optimizers": {"units": {"kind": "fedavg"}},
    "average": 0.0,
}
"""The start of units that learn without a task layer beside them.

The mean of devices is steady; an average over versions would be a round behind while the loss falls."""

MOST_PASSES = 4.0
"""The most passes of a step whose number of directions nobody names."""

_FITTING: Mapping[str, tuple[Preset, tuple[str, ...]]] = {
    "bottleneck": ("bottleneck", ("forward", "mixed", "auto")),
    "classifier": ("default", ()),
}
"""The preset that was measured best for each adapter, and the estimators that it is for."""
_OTHERS: tuple[Preset, tuple[str, ...]] = ("auto", ("forward", "mixed", "auto"))
"""The same for all other adapters."""


def preset_for(adapter: str, training: Mapping[str, Any], *, has_head: bool = True) -> Preset:
    """Choose the preset to start from by default: the one that fits the adapter and the training that is asked for."""
    preset, estimators = _FITTING.get(adapter, _OTHERS)
    estimator = training.get("estimator") or PRESETS[preset].get("training", {}).get("estimator", "forward")
    if _sends_numbers(training):
        return "scalars" if has_head and preset == "auto" else "default"
    if not _sends_weights(training) or estimator not in estimators:
        return "default"
    if estimator != "forward":
        return preset
    return "forward" if has_head else "default"


def _sends_numbers(training: Mapping[str, Any]) -> bool:
    """Whether devices tell derivatives, and of the head what a preset says."""
    return (
        training.get("mode") == "iteration"
        and training.get("estimator", "forward") == "forward"
        and "head" not in training
    )


def _sends_weights(training: Mapping[str, Any]) -> bool:
    """Tell whether devices report weights, not scalars, and begin with the head's exact gradient."""
    return training.get("mode", "epoch") == "epoch" and training.get("head", "exact") == "exact"


def private_start(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the settings that a privacy budget starts from, over the preset; nothing without one."""
    asked = given.get("privacy_epsilon") is not None or given.get("privacy_noise") is not None
    return _PRIVATE if asked else {}


def has_few_rows(task: str, classes: int, rows: int | None) -> bool:
    """Tell whether there are few rows and few classes to learn; False if the number of rows is unknown."""
    return rows is not None and rows <= FEW_ROWS and task_named(task).has_classes and classes < MANY_CLASSES


def start_of(manifest: Manifest, preset: str, rows: int | None = None) -> dict[str, Any]:
    """Choose a bundle's starting settings: the preset, over its first shape and the directions that it affords.

    Args:
        manifest: the bundle's.
        preset: its name.
        rows: the number of rows to learn from; None if it is unknown.
    """
    few = has_few_rows(manifest.model.task, len(manifest.model.labels), rows)
    batch, length = manifest.shapes[0]
    directions = {"directions": _affordable(manifest)} if manifest.directions else {}
    shape = {"training": {"batch": batch, "length": length, **directions}}
    return merged(shape, PRESETS[preset], of_data(preset, has_head=bool(manifest.head), few=few))


def of_data(preset: str, *, has_head: bool, few: bool) -> Mapping[str, Any]:
    """Choose settings by the data: with a task layer and without, and where there are few rows.

    With a task layer a step has a budget. Units that learn alone take the passes that they need, and all the job learns
    is learnt by them: devices take local steps, as with few rows, where one step of the server's a round would be too
    few.
    """
    if preset != "auto":
        return {}
    if not has_head:
        return _ALONE
    return _FEW if few else {"passes": HALF_WAY}


def _affordable(manifest: Manifest) -> int:
    """Return the most directions that programs take at once for few forward passes: each adds as much.

    The passes are a mean over the units; where none of the numbers is so cheap, it is the smallest.
    """
    shares = [carried(manifest, [unit]) for unit in range(len(manifest.units))]
    share = sum(shares) / len(shares) if shares else 0.0
    cheap = [count for count in manifest.directions if 1 + TANGENT * count * share <= MOST_PASSES]
    return max(cheap, default=min(manifest.directions))


def merged(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested settings; later ones win."""
    settings: dict[str, Any] = {}
    for change in changes:
        for key, value in change.items():
            before = settings.get(key)
            nested = (before if isinstance(before, Mapping) else {}, value)
            settings[key] = merged(*nested) if isinstance(value, Mapping) else value
    return settings
