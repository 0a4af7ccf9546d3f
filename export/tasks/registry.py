"""The kinds of tasks that models are exported for, by their names (`TaskName` in `edge_client.bundle.manifest`)."""

from __future__ import annotations

from export.tasks.classification import ClassificationModel
from export.tasks.language import LanguageModel
from export.tasks.questions import QuestionsModel
from export.tasks.task import ModelTask

MODEL_TASKS: dict[str, ModelTask] = {
    task.name: task for task in (ClassificationModel(), QuestionsModel(), LanguageModel())
}
