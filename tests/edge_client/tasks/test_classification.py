import numpy as np
import pytest

from edge_client.data.batches import Labelled
from edge_client.data.examples import Example
from edge_client.data.sources import BadRow
from edge_client.tasks.classification import Classification
from edge_client.tasks.task import Prediction
from tests.edge_client import words

KIND = Classification()


def part(*examples: Example) -> Labelled:
    return Labelled(list(examples), *KIND.encode(words.encoder(), examples))


def test_a_row_has_a_text_or_a_pair():
    check = KIND.check(("no", "yes"))
    assert check({"text": "a", "label": "yes"}) == Example("a", None, 1)
    assert check({"text": "a", "text_pair": "b", "label": 0, "id": 7}) == Example("a", "b", 0)
    assert check({"text": "a", "text_pair": "", "label": " no "}) == Example("a", None, 0)


def test_names_win_over_numbers():
    check = KIND.check(("1", "0"))
    assert [check({"text": "a", "label": label}).label for label in ("1", 1)] == [0, 1]


def test_truth_values_are_named_as_in_json():
    check = KIND.check(("false", "true"))
    assert [check({"text": "a", "label": label}).label for label in (True, False, "true", 1)] == [1, 0, 1, 1]


def test_an_empty_label():
    with pytest.raises(BadRow, match="label is empty"):
        KIND.check(("no", "yes"))({"text": "a", "label": ""})


@pytest.mark.parametrize("label", [2, -1, True, 0.5, "maybe", "2", "9" * 30])
def test_an_unknown_label(label):
    with pytest.raises(BadRow, match=r"unknown label '.+'; the job's labels are no, yes \(or 0 to 1\)"):
        KIND.check(("no", "yes"))({"text": "a", "label": label})


def test_class_labels_fill_the_batch():
    labels = part(Example("a", None, 1), Example("b", "c", 0)).labels
    assert labels.tolist() == [1, 0, 0]
    assert labels.dtype == np.int64
    assert labels.shape == KIND.label_shape(words.BATCH, words.LENGTH)
    assert KIND.label_limit((words.BATCH, 4), words.MANIFEST.model) == 4


def test_what_is_right_and_what_is_read():
    of = part(Example("a", None, 1), Example("b", None, 0))
    logits = np.log(np.array([[0.25, 0.75], [0.4, 0.6]], np.float32))
    assert KIND.right(logits, of) == [True, False]
    assert KIND.told(KIND.score(logits, of)) == {"accuracy": 0.5}
    first, second = KIND.read(logits, of, ("no", "yes"), str)
    assert (first.label, second.label) == ("yes", "yes")
    assert first.scores == {"no": pytest.approx(0.25), "yes": pytest.approx(0.75)}
    assert KIND.read(logits, of, (), str)[0] == Prediction("1", {"0": pytest.approx(0.25), "1": pytest.approx(0.75)})
