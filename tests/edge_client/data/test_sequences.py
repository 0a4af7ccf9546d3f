import random
from types import SimpleNamespace

import numpy as np
import pytest

from edge_client.bundle.manifest import IGNORED
from edge_client.data.conversations import example_of
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example
from edge_client.data.sequences import Packed, fitted, sequence_of, stretch, taken
from edge_client.errors import ProgramInputError
from export.model.loading import template_of
from tests import chats

MODEL = SimpleNamespace(inputs=("input_ids", "attention_mask"), pad_token_id=2)
THEIRS = chats.tokenizer(chats.PLAIN["llama-3"])
TEMPLATE = template_of(THEIRS)


def encoder(length: int = 512) -> TextEncoder:
    return TextEncoder(chats.trained(), MODEL, 4, length)


def test_labels_are_the_tokens_of_answers():
    marked = chats.tokenizer(chats.MARKED["llama-3"])
    rng = random.Random()
    for _ in range(20):
        messages = chats.conversation(rng)
        found = marked.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        sequence = sequence_of(example_of({"messages": messages}, TEMPLATE), encoder())
        assert sequence.ids == found["input_ids"][:512]
        labels = np.where(np.array(found["assistant_masks"]) == 1, found["input_ids"], IGNORED)
        assert sequence.labels == labels.tolist()[:512]


def test_a_completion_has_the_tokens_that_transformers_gives():
    rng = random.Random()
    for _ in range(20):
        prompt, completion = f"{chats.words(rng)} =", f" {chats.words(rng)}"
        sequence = sequence_of(example_of({"prompt": prompt, "completion": completion}, TEMPLATE), encoder())
        assert sequence.ids == THEIRS(prompt + completion + "</s>")["input_ids"]
        before = len(THEIRS(prompt)["input_ids"])
        assert sequence.labels == [IGNORED] * before + sequence.ids[before:]


def test_a_long_prompt_is_cut_before_the_answer():
    row = {"prompt": "the tea is hot, " * 40, "completion": "ok."}
    example = example_of(row, TEMPLATE)
    whole = sequence_of(example, encoder(2000))
    short = sequence_of(example, encoder(24))
    learnt = [label for label in whole.labels if label != IGNORED]
    assert len(short.ids) == 24
    assert short.ids == [whole.ids[0], *whole.ids[-23:]]  # what opens every text stays
    assert short.labels == [*[IGNORED] * (24 - len(learnt)), *learnt]


def test_of_a_long_answer_the_beginning_stays():
    example = example_of({"prompt": "the tea", "completion": " is hot" * 60}, TEMPLATE)
    whole, short = sequence_of(example, encoder(2000)), sequence_of(example, encoder(16))
    first = next(place for place, label in enumerate(whole.labels) if label != IGNORED)
    assert short.ids == [whole.ids[0], *whole.ids[first : first + 15]]
    assert short.labels == [IGNORED, *whole.labels[first : first + 15]]


@pytest.mark.parametrize("opened", [True, False])
def test_no_other_stretch_has_more_to_learn(opened):
    rng = np.random.default_rng()
    for _ in range(200):
        count, length = int(rng.integers(2, 40)), int(rng.integers(2, 20))
        learnt = np.repeat(rng.random(8) < 0.4, 5)[:count]
        learnt[0] = False
        found = stretch(learnt, length, opened=opened)
        first = int(opened)
        starts = range(first, max(count - length + first, first) + 1)
        tried = [[*range(first), *range(start, min(start + length - first, count))] for start in starts]
        counts = [int(learnt[places[1:]].sum()) for places in tried]
        assert found.tolist() == (tried[counts.index(max(counts))] if count > length else list(range(count)))


def test_texts_are_cut_behind():
    text = "the tea is hot, " * 40
    sequence = sequence_of(Example(text), encoder(16))
    assert sequence.ids == sequence.labels == THEIRS(text)["input_ids"][:16]


def test_a_text_without_tokens():
    with pytest.raises(ProgramInputError, match="no tokens"):
        sequence_of(Example("", learnt=(), is_whole=True), encoder())


# --- packing ---------------------------------------------------------------------------------------------------------


def test_groups_hold_all_and_are_not_too_long():
    rng = np.random.default_rng()
    for _ in range(50):
        lengths = rng.integers(1, 33, int(rng.integers(1, 60))).tolist()
        groups = fitted(lengths, 32)
        assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
        filled = [sum(lengths[number] for number in group) for group in groups]
        assert max(filled) <= 32
        assert len(groups) <= 1 + 2 * sum(lengths) / 32  # no two of them would fit together


def test_short_examples_share_a_sequence():
    rng = random.Random()
    examples = [example_of({"prompt": chats.words(rng, 3), "completion": chats.words(rng, 3)}, TEMPLATE)
                for _ in range(30)]  # fmt: skip
    room = encoder(96)
    assert taken(examples, room, SimpleNamespace(pack=False)) is examples
    packs = taken(examples, room, SimpleNamespace(pack=True))
    assert isinstance(packs, Packed)
    assert len(packs) < len(examples) / 2
    alone = sorted(str(sequence_of(example, room).ids) for example in examples)
    found: list[str] = []
    for pack in packs:
        together = sequence_of(pack, room)
        assert len(together.ids) <= 96
        at = 0
        for one in (pack._replace(following=()), *pack.following):
            own = sequence_of(one, room)
            count = len(own.ids)
            assert together.ids[at : at + count] == own.ids
            labels = own.labels if at == 0 else [IGNORED, *own.labels[1:]]
            assert together.labels[at : at + count] == labels
            found.append(str(own.ids))
            at += count
    assert sorted(found) == alone
    assert packs[-1:] == [packs[len(packs) - 1]]


def test_the_first_token_of_a_later_text_is_not_learnt_from_another():
    together = sequence_of(Example("the", following=(Example("tea"),)), encoder())
    alone = len(sequence_of(Example("the"), encoder()).ids)
    assert together.labels[alone] == IGNORED
    assert together.labels[alone + 1] == together.ids[alone + 1]
