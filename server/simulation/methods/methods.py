"""The methods that can be simulated: a row each, as changes to a job's settings.

A row says what makes the method: its estimator, whether units are split, how the server moves the weights. Rates are
those of a preset: `paper` (appendix B of the paper, by data set) or `default` (tuned for this project, on small
encoders; `benchmarks/NOTES.md` says how).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from edge_client.estimators.estimator import Estimator
from edge_client.estimators.registry import kind_of
from edge_client.wire.protocol import Training
from server.errors import SimulationError
from server.simulation.methods.fwdllm import ClosestDirection

Settings = Mapping[str, Any]
Family = Literal["forward", "backprop", "zero-order"]

_YOGI = {"kind": "fedyogi"}
_MEAN = {"kind": "fedavg"}


@dataclass(frozen=True)
class Method:
    """One way to train a fleet."""

    about: str
    family: Family
    settings: Settings
    """The settings that define it, over any preset."""
    default: Settings = field(default_factory=dict[str, Any])
    """The tuned rates."""
    paper: Settings = field(default_factory=dict[str, Any])
    """The paper's settings for this method alone."""
    adapter: str | None = None
    """The adapter that it is about, whatever was asked for."""
    by_device: bool = False
    """True if each device takes the best step that it can hold, unless another is asked for."""
    estimator: type[Estimator] | None = None
    """An estimator that devices do not have."""
    variance_bound: float | None = None
    """Updates whose gradients vary more from step to step are left out."""

    def under(self, preset: Settings) -> Settings:
        """Give the method's settings, but its estimator where the preset has one that does the same."""
        own, theirs = (given.get("training", {}).get("estimator") for given in (self.settings, preset))
        if theirs not in _ALSO.get(own, ()):
            return self.settings
        return {**self.settings, "training": {**self.settings["training"], "estimator": theirs}}

    def estimator_of(self, training: Training) -> type[Estimator]:
        """Choose the estimator of a step's gradient."""
        return self.estimator or kind_of(training)


def _method(
    about: str,
    family: Family,
    *,
    split: bool,
    server: Settings | None = None,
    **training: Any,
) -> dict[str, Any]:
    """`server` is the optimizer of units and head; where it is left out, the preset has one for each."""
    settings = {
        "assignment": "cyclic" if split else "all",
        "training": training,
        "optimizers": {"units": server, "head": server} if server else {},
    }
    return {"about": about, "family": family, "settings": settings}


_ADAMW = {"training": {"optimizer": "adamw"}}
_EXACT = {"training": {"learning_rate": 3e-3, "head_learning_rate": 3e-3, "optimizer": "adamw"}}
_YOGI_RATE = {"optimizers": {"units": {"learning_rate": 1e-2}, "head": {"learning_rate": 1e-2}}}
_ZERO = {"training": {"learning_rate": 1e-2}, **_YOGI_RATE}

METHODS: dict[str, Method] = {
    "spry": Method(
        **_method("forward gradients of a share of the units (SPRY)", "forward", split=True, estimator="forward"),
        by_device=True,
    ),
    "fedfgd": Method(
        **_method("forward gradients of all units", "forward", split=False, estimator="forward"),
        paper=_ADAMW,
    ),
    "fedavg": Method(
        **_method("backpropagation, mean of the weights", "backprop", split=False, server=_MEAN, estimator="exact"),
        default=_EXACT, paper=_ADAMW,
    ),
    "fedyogi": Method(
        **_method("backpropagation, FedYogi", "backprop", split=False, server=_YOGI, estimator="exact"),
        default={**_EXACT, **_YOGI_RATE}, paper=_ADAMW,
    ),
    "fedsgd": Method(
        **_method("backpropagation, gradients averaged after every step", "backprop", split=False, server=_MEAN,
                  estimator="exact", optimizer="sgd", iterations=1),
        default={"training": {"learning_rate": 0.3, "head_learning_rate": 0.3}},
        paper={"optimizers": {"units": _YOGI, "head": _YOGI}},
    ),
    "fedavgsplit": Method(
        **_method("backpropagation of a share of the units, mean of the weights", "backprop", split=True, server=_MEAN,
                  estimator="exact"),
        default=_EXACT, paper=_ADAMW,
    ),
    "fedyogisplit": Method(
        **_method("backpropagation of a share of the units, FedYogi", "backprop", split=True, server=_YOGI,
                  estimator="exact"),
        default={**_EXACT, **_YOGI_RATE}, paper=_ADAMW,
    ),
    "fedmezo": Method(
        **_method("central differences along one direction, three passes over the data", "zero-order", split=False,
                  server=_YOGI, estimator="central", directions=1, sigma=1e-3, epochs=3),
        default=_ZERO, paper=_ADAMW,
    ),
    "baffle+": Method(
        **_method("central differences along 20 directions", "zero-order", split=False, server=_YOGI,
                  estimator="central", directions=20, sigma=1e-4),
        default=_ZERO, paper=_ADAMW,
    ),
    "fwdllm+": Method(
        **_method("central differences along that of 10 directions which is closest to the last round's change",
                  "zero-order", split=False, server=_YOGI, estimator="central", directions=10, sigma=1e-2),
        default=_ZERO, paper=_ADAMW, estimator=ClosestDirection, variance_bound=10.0,
    ),
    "classifier": Method(
        **_method("backpropagation of the task layer alone", "backprop", split=False, server=_MEAN, estimator="exact"),
        default={"training": {"head_learning_rate": 1.0}}, paper=_ADAMW, adapter="classifier",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class PaperData:
    """The hyperparameters that the paper sets for a data set."""

    length: int
    learning_rate: float = 1e-4
    variance_bound: float = 10.0
    clients: int = 1000
    by: str = ""
    """The column that is split over, where it is not the label."""
    backprop_batch: int = 8

    def training(self, family: Family) -> Settings:
        """Return the settings of a job's training."""
        batch = {"batch": self.backprop_batch} if family == "backprop" else {}
        return {"length": self.length, "learning_rate": self.learning_rate, **batch}


PAPER_DATA = {
    "ag_news": PaperData(128),
    "sst2": PaperData(64, variance_bound=5.0, clients=100),
    "yelp_polarity": PaperData(128, 5e-5, variance_bound=50.0),
    "yahoo_answers": PaperData(128, variance_bound=50.0),
    "snli": PaperData(80, 5e-5, variance_bound=100.0),
    "mnli": PaperData(80, 5e-5, variance_bound=100.0),
    "squad_v2": PaperData(400, 1e-5, variance_bound=50.0, clients=500, by="title", backprop_batch=4),
    "multirc": PaperData(256, variance_bound=100.0, clients=100),
}
"""Appendix B, by the name of the data's folder."""
PAPER_ADAPTER: Mapping[str, Any] = {"rank": 1, "alpha": 1.0, "last_blocks": 0}
"""The paper's settings of LoRA."""


def method_named(name: str) -> Method:
    if name not in METHODS:
        raise SimulationError(f"unknown method {name!r}; expected one of {', '.join(METHODS)}")
    return METHODS[name]


_ALSO: dict[Any, tuple[str, ...]] = {"forward": ("mixed", "auto")}
"""Estimators that leave a method what it is: forward gradients as far as a device does not hold true ones."""


def check_method(name: str, asked: Settings) -> None:
    """Refuse another estimator than a method's, or more steps where one defines it: it would be another method."""
    method, training = method_named(name), asked.get("training")
    for key in ("estimator", "iterations"):
        own, wanted = method.settings["training"].get(key), training.get(key) if isinstance(training, dict) else None
        if own is not None and wanted not in (None, own, *_ALSO.get(own, ())):
            raise SimulationError(f"method {name} has training.{key} {own}, not {wanted}: leave it out")
