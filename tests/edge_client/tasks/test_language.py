import math

import msgspec
import numpy as np
import pytest

from edge_client.bundle.manifest import IGNORED
from edge_client.data.batches import Labelled
from edge_client.data.examples import Example
from edge_client.tasks.language import Language
from edge_client.tasks.task import Prediction, Score
from tests.edge_client import words
from tests.edge_client.words import B_, BATCH, CLS, LENGTH, SEP, WORDS, A, C

KIND = Language()


def part(*texts: str) -> Labelled:
    examples = [KIND.check(())({"text": text}) for text in texts]
    return Labelled(examples, *KIND.encode(words.encoder(), examples))


def random(of: Labelled, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (3 * rng.standard_normal((len(of.examples), LENGTH, len(WORDS)))).astype(np.float32)


def given(logits: np.ndarray, of: Labelled) -> np.ndarray:
    """Return what programs give for logits, [rows, tokens, 2]: the likeliest follower, the true one's loss."""
    found = np.zeros((*logits.shape[:2], 2), np.float32)
    found[..., 0] = logits.argmax(-1)
    each = iter(losses(logits, of))
    for row, ids in enumerate(tokens(of)):
        for place in range(len(ids) - 1):
            found[row, place, 1] = next(each)
    return found


def tokens(of: Labelled) -> list[list[int]]:
    """Return the tokens of each example."""
    given, masks = of.encoded.tokens["input_ids"], of.encoded.tokens["attention_mask"] == 1
    return [given[row][masks[row]].tolist() for row in range(len(of.examples))]


def losses(logits: np.ndarray, of: Labelled) -> list[float]:
    """Return the loss of each predicted token, one by one."""
    return [
        -math.log(math.exp(row[place][token]) / sum(map(math.exp, row[place])))
        for row, ids in zip(logits.astype(float), tokens(of), strict=True)
        for place, token in enumerate(ids[1:])
    ]


def test_rows():
    assert KIND.check(())({"text": "a b", "label": "no matter"}) == Example("a b")


def test_labels_are_the_tokens():
    of = part("a b", "c")
    assert of.labels.tolist() == [
        [CLS, A, B_, SEP, *[IGNORED] * 4], [CLS, C, SEP, *[IGNORED] * 5], [IGNORED] * 8
    ]  # fmt: skip
    np.testing.assert_array_equal(of.labels[:2] >= 0, of.encoded.tokens["attention_mask"][:2] == 1)
    assert of.labels.shape == KIND.label_shape(BATCH, LENGTH)
    assert KIND.label_limit((BATCH, LENGTH, 2), msgspec.structs.replace(words.MANIFEST.model, vocabulary=30)) == 30


def test_each_token_but_the_first_is_predicted_from_those_before():
    of = part("a b", "c")
    logits = np.zeros((2, LENGTH, len(WORDS)), np.float32)
    for row, tokens in enumerate(([A, B_, B_], [C, SEP])):
        logits[row, range(len(tokens)), tokens] = 1
    assert KIND.right(given(logits, of), of) == [True, True, False, True, True]


def test_the_likeliest_next_token_is_read():
    of = part("a b", "c")
    logits = np.zeros((2, LENGTH, len(WORDS)), np.float32)
    logits[0, 3, A] = logits[1, 2, C] = 1
    assert KIND.read(given(logits, of), of, (), WORDS.__getitem__) == [Prediction("a"), Prediction("c")]


def test_perplexity_is_of_all_tokens_alike():
    of = part("a b c", "c")
    logits = random(of)
    expected = losses(logits, of)
    score = KIND.score(given(logits, of), of)
    assert score.total == len(expected) == 4 + 2
    told = KIND.told(score)
    assert told["test_loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert told["perplexity"] == pytest.approx(math.exp(sum(expected) / len(expected)), rel=1e-5)
    assert told["accuracy"] == pytest.approx(sum(KIND.right(given(logits, of), of)) / len(expected), abs=1e-6)
    assert told.keys() == {kind.name for kind in KIND.scores}


def test_a_model_that_knows_nothing_is_as_perplexed_as_there_are_words():
    of = part("a b c")
    logits = np.full((1, LENGTH, len(WORDS)), 7.0, np.float32)
    assert KIND.told(KIND.score(given(logits, of), of))["perplexity"] == pytest.approx(len(WORDS), rel=1e-5)


def test_what_is_padding_counts_in_no_score():
    of = part("a b", "c")
    numbers = given(random(of), of)
    changed = numbers.copy()
    changed[of.labels[:2] == IGNORED] = -1e9
    assert KIND.score(changed, of) == KIND.score(numbers, of)


def test_a_loss_beyond_all_numbers():
    assert KIND.told(Score(2, {"accuracy": 0, "test_loss": 4000.0}))["perplexity"] == math.inf


def test_a_text_of_one_token_predicts_nothing():
    encoder = words.encoder()
    bare = words.TextEncoder(words.tokenizer(special=False), words.MANIFEST, encoder.batch, encoder.length)
    examples = [Example("a")]
    of = Labelled(examples, *KIND.encode(bare, examples))
    assert KIND.told(KIND.score(given(random(of), of), of)) == {"accuracy": 0, "test_loss": 0, "perplexity": 1}
