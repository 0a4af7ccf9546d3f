import pytest
import torch
import transformers
from peft import TaskType as PeftTask

from edge_client.bundle.manifest import IGNORED
from edge_client.tasks.registry import TASK_TYPES
from export.tasks.registry import MODEL_TASKS

TASKS = pytest.mark.parametrize("task", MODEL_TASKS.values(), ids=MODEL_TASKS)


def test_devices_know_what_is_exported():
    assert {name: type(task.kind) for name, task in MODEL_TASKS.items()} == {
        name: type(kind) for name, kind in TASK_TYPES.items()
    }


@TASKS
def test_libraries_know_its_names(task):
    assert hasattr(transformers, task.model_class)
    assert task.peft_type in set(PeftTask)


@TASKS
def test_sample_labels_are_labels(task):
    generator = torch.Generator().manual_seed(0)
    ids, mask = torch.randint(9, (4, 6), generator=generator), torch.ones(4, 6, dtype=torch.int64)
    mask[1, 4:] = 0
    labels = task.sample_labels(ids, mask, 3, generator)
    assert tuple(labels.shape) == task.kind.label_shape(4, 6)
    assert labels.dtype == torch.int64
    assert labels.max() < {1: 3, 2: 9}[labels.ndim]
    assert (labels[labels < 0] == IGNORED).all()
    assert task.kind.ignores or labels.min() >= 0
