"""The scores of a round: those of the kinds of tasks, and what clients' own models get right."""

from __future__ import annotations

from edge_client.tasks.registry import TASK_TYPES
from edge_client.tasks.task import ACCURACY, ScoreKind

PERSONAL = "accuracy_personal"
SCORES: dict[str, ScoreKind] = {
    score.name: score
    for score in (
        ACCURACY,
        ScoreKind(PERSONAL, "personalised"),
        *(score for kind in TASK_TYPES.values() for score in kind.scores),
    )
}
"""Fields of a round, in the order of tables."""
MAIN_SCORES: tuple[str, ...] = tuple(dict.fromkeys(kind.main_score for kind in TASK_TYPES.values()))
"""The scores by which kinds of tasks are compared."""
