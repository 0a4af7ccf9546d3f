"""Presets: settings that a job or a simulation starts from, as changes to the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edge_client.bundle.manifest import Manifest
from edge_client.estimators.estimator import TANGENT
from server.jobs.passes import behind

Preset = Literal["auto", "alike", "default", "paper", "bottleneck"]

_PAPER_SERVER = {"kind": "fedyogi", "learning_rate": 0.01}
_STEADY_SERVER = {"units": {"learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}
_AGREED_SERVER = {"units": {"kind": "fedsnr", "learning_rate": 0.01, "tau": 1e-6}, "head": {"kind": "fedavg"}}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Each device goes back through as many blocks as its memory allows, and takes forward gradients before them. It
    # hardly moves its units while it trains, lest the head learn what only this device sees; the server moves each
    # number as far as devices agree on it, however small the changes that come in.
    "auto": {
        "training": {"estimator": "auto", "learning_rate": 0.001},
        "optimizers": _AGREED_SERVER,
        "average": 0.9,
    },
    # For few devices with few examples, more or less alike, and few rounds: a step of the server's a round would be too
    # few steps in all. So devices walk themselves, units and head together, and the server takes the mean of where they
    # come to.
    "alike": {
        "training": {
            "estimator": "auto",
            "optimizer": "adamw",
            "learning_rate": 0.003,
            "head_learning_rate": 0.003,
            "epochs": 2,
        },
        "optimizers": {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}},
        "average": 0.9,
    },
    # Forward gradients alone, by every device.
    "default": {},
    # The paper's way: one direction over a client's units and its head together, the same for all examples of a batch.
    "paper": {
        "training": {"per_example": False, "head": "joint", "prefix_cache": False, "learning_rate": 1e-4},
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
    "auto": "Each device takes true gradients through as many blocks as its memory allows; the server makes the step.",
    "alike": "For few devices with few, similar examples: devices train by themselves, and the server averages.",
    "default": "Forward gradients alone, by every device: no way back through the model, and more rounds.",
    "paper": "As the SPRY paper has it: one direction over units and head together, 1,500 rounds.",
    "bottleneck": "For bottleneck adapters: true gradients through two blocks, derivatives at bottlenecks before them.",
}
"""One line for each preset: whom it is for and what devices do."""

_PRIVATE: Mapping[str, Any] = {
    "training": {"optimizer": "sgd", "learning_rate": 0.3, "head_learning_rate": 0.03},
    "optimizers": {
        "units": {"kind": "fedyogi", "learning_rate": 0.003, "tau": 1e-8},
        "head": {"kind": "fedyogi", "learning_rate": 0.03, "tau": 1e-8, "beta1": 0.8},
    },
    "average": 0.8,
}
"""Over any preset, where updates are clipped and noise is added: optimizers that make steps of a length of their own,
for the head too, whose features are not measured then; rates by which units and head have a share of the clip; and an
average, in which noise cancels."""

_ALONE: Mapping[str, Any] = {
    "training": {"optimizer": "adamw", "learning_rate": 0.015},
    "optimizers": {"units": {"kind": "fedavg"}},
    "average": 0.0,
}
"""The start of units that learn without a task layer beside them.

The mean of devices is steady; an average over versions would be a round behind while the loss falls."""

HALF_WAY = 2.0
"""Passes of a step that goes back through half of the blocks."""
MOST_PASSES = 4.0
"""Of a step whose number of directions nobody names."""

_FITTING: Mapping[str, tuple[Preset, tuple[str, ...]]] = {
    "bottleneck": ("bottleneck", ("forward", "mixed", "auto")),
    "classifier": ("default", ()),
}
"""Of adapters, what was measured best with them, and for which estimators."""
_OTHERS: tuple[Preset, tuple[str, ...]] = ("auto", ("mixed", "auto"))
"""Of all other adapters."""


def preset_for(adapter: str, training: Mapping[str, Any]) -> Preset:
    """Where settings start from when nobody names a preset: what fits the adapter and what is asked of training."""
    preset, estimators = _FITTING.get(adapter, _OTHERS)
    estimator = training.get("estimator") or PRESETS[preset].get("training", {}).get("estimator", "forward")
    fits = estimator in estimators and (estimator == "forward" or _can_go_back(training))
    return preset if fits else "default"


def _can_go_back(training: Mapping[str, Any]) -> bool:
    """Reverse mode tells weights, no scalars, and begins with the head's exact gradient."""
    return training.get("mode", "epoch") == "epoch" and training.get("head", "exact") == "exact"


def private_start(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What settings start from, over their preset, where a privacy budget is asked for; nothing elsewhere."""
    asked = given.get("privacy_epsilon") is not None or given.get("privacy_noise") is not None
    return _PRIVATE if asked else {}


def start_of(manifest: Manifest, preset: str) -> dict[str, Any]:
    """What a job on a bundle starts from: the preset, over the bundle's first shape and what directions it affords."""
    batch, length = manifest.shapes[0]
    directions = {"directions": _affordable(manifest)} if manifest.directions else {}
    shape = {"training": {"batch": batch, "length": length, **directions}}
    return merged(shape, PRESETS[preset], of_task(preset, has_head=bool(manifest.head)))


def of_task(preset: str, *, has_head: bool) -> Mapping[str, Any]:
    """What a preset is beside its own settings, with a task layer and without.

    With one, a step's budget. Units that learn alone take what passes they need, and all the job learns is learnt by
    them: devices walk themselves, as with `alike`, where one step of the server's a round would be too few in all.
    """
    if preset != "auto":
        return {}
    return {"passes": HALF_WAY} if has_head else _ALONE


def _affordable(manifest: Manifest) -> int:
    """The most directions that programs take at once for few forward passes: each says as much, and the pass is paid.

    The passes are a mean over the units; where none of the numbers is so cheap, it is the smallest.
    """
    shares = [behind(manifest, [unit]) for unit in range(len(manifest.units))]
    share = sum(shares) / len(shares) if shares else 0.0
    cheap = [count for count in manifest.directions if 1 + TANGENT * count * share <= MOST_PASSES]
    return max(cheap, default=min(manifest.directions))


def merged(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings; later ones win."""
    settings: dict[str, Any] = {}
    for change in changes:
        for key, value in change.items():
            before = settings.get(key)
            nested = (before if isinstance(before, Mapping) else {}, value)
            settings[key] = merged(*nested) if isinstance(value, Mapping) else value
    return settings
