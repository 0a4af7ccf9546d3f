"""The kinds of tasks that devices know, by the names that manifests give them (`TaskName` there)."""

from __future__ import annotations

from edge_client.errors import BundleError

from .classification import Classification
from .language import Language
from .questions import Questions
from .task import TaskType

TASK_TYPES: dict[str, TaskType] = {kind.name: kind for kind in (Classification(), Questions(), Language())}


def has_head(name: str) -> bool:
    """Tell whether a task layer learns beside the units; unknown tasks are refused elsewhere."""
    return name not in TASK_TYPES or TASK_TYPES[name].has_head


def task_named(name: str) -> TaskType:
    """Return the task type of that name."""
    if name not in TASK_TYPES:
        known = ", ".join(TASK_TYPES)
        raise BundleError(f"unknown task {name!r}; this version of spry knows {known}: choose one, or upgrade spry")
    return TASK_TYPES[name]
