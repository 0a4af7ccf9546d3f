"""Register the estimators of a step's gradient, by the names that jobs give them.

    forward   directional derivatives in the same pass as the losses (SPRY)
    central   differences of losses on both sides of the weights (MeZO, Baffle+, FwdLLM+)
    exact     reverse mode, segment by segment
    mixed     exact through the model's last blocks, forward before them, in one pass
    auto      mixed, through as many blocks as a device's memory allows: the server settles it task by task

The first two are numbers along directions, which mode iteration sends in place of a gradient. Another distribution adds
one by an entry point of the group `spry.estimators`, on the server and on its devices.
"""

from __future__ import annotations

from edge_client import plugins
from edge_client.bundle.manifest import Manifest
from edge_client.wire.protocol import Task, Training

from .central import Central
from .estimator import Derivatives, Estimator
from .exact import ExactGradient
from .forward import Forward
from .mixed import Auto, Mixed

ESTIMATORS = plugins.Registry[type[Estimator]](
    plugins.ESTIMATORS,
    lambda estimator: isinstance(estimator, type) and issubclass(estimator, Estimator),
    {"forward": Forward, "central": Central, "exact": ExactGradient, "mixed": Mixed, "auto": Auto},
)


def kind_of(training: Training) -> type[Estimator]:
    """Return the estimator that a job names."""
    return ESTIMATORS.find(training.estimator)


def estimator_for(manifest: Manifest, task: Task, passes: Derivatives) -> Estimator:
    """Ready for a task's steps."""
    return kind_of(task.training)(manifest, task, passes)
