"""A bundle to train on, and a task over it."""

from dataclasses import replace
from pathlib import Path

import pytest

from edge_client.protocol import ServerOptimizers, Task, Training

TEXTS = ("it is a train", "the ice is on the lake", "is it?", "a b c", "the lake", "on it", "no ice, no train!")
ROWS = [{"text": text, "label": number % 3} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="session")
def trainable(exporting) -> Path:
    """Batches of 4, 2 and 1, one and two directions, ONNX Runtime alone; not to be written to."""
    return exporting(batches=(4, 2, 1), directions=(1, 2))


@pytest.fixture
def task() -> Task:
    """Both units of the last block, four examples at a time."""
    return Task(
        id="task-1",
        job="job-1",
        job_name="topics",
        round=1,
        seed=2**63 + 5,
        units=[2, 3],
        cut=2,
        bundle="",
        runtime="onnx",
        version=0,
        iteration=0,
        seconds=60.0,
        training=Training(batch=4, length=8, learning_rate=0.1, epochs=2),
        optimizers=ServerOptimizers(),
        batch=4,
    )


@pytest.fixture
def changed(task):
    """The task with other settings, those of its training among them."""
    training = set(Training.__dataclass_fields__)

    def change(**fields):
        inner = {name: value for name, value in fields.items() if name in training - {"batch"}}
        outer = {name: value for name, value in fields.items() if name not in inner}
        return replace(task, **outer, training=replace(task.training, **inner))

    return change
