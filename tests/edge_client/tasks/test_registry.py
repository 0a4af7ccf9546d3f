import pytest

from edge_client import BundleError
from edge_client.bundle.manifest import TASKS
from edge_client.tasks.registry import TASK_TYPES, task_named


def test_the_table_knows_what_manifests_name():
    assert tuple(TASK_TYPES) == TASKS
    assert all(task_named(name).name == name for name in TASKS)


def test_an_unknown_task():
    with pytest.raises(BundleError, match=f"unknown task 'ner'; this version of spry knows {', '.join(TASKS)}:"):
        task_named("ner")


@pytest.mark.parametrize("kind", TASK_TYPES.values(), ids=TASK_TYPES)
def test_a_label_fits_its_shape(kind):
    assert kind.label_shape(3, 7)[0] == 3
    assert (kind.label_shape(3, 7) == (3, 7)) == kind.per_token
    assert len({score.name for score in kind.scores}) == len(kind.scores)
