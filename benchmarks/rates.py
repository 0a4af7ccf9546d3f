"""One procedure for every method's rate: the same few factors of its usual one, by held-back rows of the training data.

Only methods that are compared are tuned; the default Spry has no rate to name, and is run as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tables import Run

FACTORS = (0.3, 1.0, 3.0, 10.0)
ROUNDS = 15
SEED = 100
"""None that a table has."""
HELD_BACK = 600
"""Training rows on which rates are compared, at most a tenth of them."""


@dataclass(frozen=True)
class Rate:
    """The tuned setting of a method."""

    settings: tuple[str, ...]
    usual: float
    """The setting's name, as `spry simulate` has it."""

    def options(self, factor: float) -> tuple[str, ...]:
        return tuple(word for name in self.settings for word in ("--set", f"{name}={self.usual * factor:g}"))


CLIENTS = "training.learning_rate", "training.head_learning_rate"
SERVERS = "optimizers.units.learning_rate", "optimizers.head.learning_rate"
RATES = {
    "fedavg": Rate(CLIENTS, 0.003),
    "fedmezo": Rate(SERVERS, 0.01),
}
"""The clients' rate where the server only averages; else the server's, which makes the step."""


def trials(runs: Iterable[Run]) -> Iterator[Run]:
    """Short runs that tell these runs' rates."""
    return (trial(run, factor) for run in runs if run.tuned for factor in FACTORS)


def trial(run: Run, factor: float) -> Run:
    return replace(
        run,
        table="trials",
        name=f"{run.row}-times-{factor:g}",
        rounds=ROUNDS,
        options=(*run.options, *RATES[run.method].options(factor)),
        tuned=False,
        held_back=True,
    )


def chosen(run: Run, records: Path) -> Run | None:
    """The run with the factor by which its trials got farthest; None until all of them have ended."""
    if not run.tuned:
        return run
    reached: dict[float, float] = {}
    for factor in FACTORS:
        summary = trial(run, factor).folder(records, SEED) / "summary.json"
        if not summary.exists():
            return None
        reached[factor] = json.loads(summary.read_text())["accuracy"]
    best = max(FACTORS, key=lambda factor: (reached[factor], -abs(math.log(factor))))  # of equals the most usual
    return replace(run, options=(*run.options, *RATES[run.method].options(best)), tuned=False)
