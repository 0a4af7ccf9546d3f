import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from edge_client import ProgramInputError
from edge_client.bundle.manifest import IGNORED, Adapter, FileSpec, Manifest, Model, Segment
from edge_client.data.encoder import Question, TextEncoder, answers

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]
PAD, CLS, SEP, UNK = range(4)
A, B_, C, D, E, F, G, H = range(4, 12)
BATCH, LENGTH = 3, 8

MANIFEST = Manifest(
    made_by="tests",
    model=Model("toy", "Toy", "seq-cls", ("no", "yes"), 0, 100),
    adapter=Adapter("lora", {}, "adapter.safetensors"),
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    units=(),
    head=(),
    segments=(Segment("embed", 0, 0), Segment("head", 0, 0)),
    shapes=((BATCH, LENGTH),),
    directions=(1,),
    tokenizer=None,
    pad_token_id=PAD,
    runtimes={},
    verification=(),
    files=(FileSpec("adapter.safetensors", "0" * 64, 0),),
)


def tokenizer(*, special: bool = True) -> Tokenizer:
    result = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    if special:
        result.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
        )
    return result


@pytest.fixture
def encoder() -> TextEncoder:
    return TextEncoder(tokenizer(), MANIFEST, BATCH, LENGTH)


def test_texts_are_padded_to_the_programs_shape(encoder):
    found = encoder.encode(["a b", "c"])
    assert list(found.tokens) == list(MANIFEST.inputs)
    assert all(rows.shape == (BATCH, LENGTH) and rows.dtype == np.int64 for rows in found.tokens.values())
    assert found.tokens["input_ids"].tolist() == [
        [CLS, A, B_, SEP, 0, 0, 0, 0], [CLS, C, SEP, 0, 0, 0, 0, 0], [0] * 8
    ]  # fmt: skip
    assert found.tokens["attention_mask"].sum(1).tolist() == [4, 3, 1]
    assert found.tokens["attention_mask"][:, 0].all()
    assert found.example_weight.tolist() == [1, 1, 0]
    assert found.example_weight.dtype == np.float32


def test_pairs_are_cut_at_the_longer_text_and_carry_types(encoder):
    found = encoder.encode([("a b", "c d e f g h")])
    assert found.tokens["input_ids"][0].tolist() == [CLS, A, B_, SEP, C, D, E, SEP]
    assert found.tokens["token_type_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_only_the_inputs_that_programs_take():
    manifest = msgspec.structs.replace(MANIFEST, inputs=("input_ids", "attention_mask"), pad_token_id=9)
    found = TextEncoder(tokenizer(), manifest, BATCH, LENGTH).encode(["a"])
    assert list(found.tokens) == ["input_ids", "attention_mask"]
    assert found.tokens["input_ids"][0].tolist() == [CLS, A, SEP, 9, 9, 9, 9, 9]
    manifest = msgspec.structs.replace(MANIFEST, inputs=("input_ids", "pixels"))
    with pytest.raises(ProgramInputError, match="texts give no pixels"):
        TextEncoder(tokenizer(), manifest, BATCH, LENGTH)


def test_the_callers_tokenizer_keeps_its_settings():
    given = tokenizer()
    given.enable_padding(length=20)
    TextEncoder(given, MANIFEST, BATCH, LENGTH).encode(["a"])
    assert given.truncation is None
    assert len(given.encode("a").ids) == 20


@pytest.mark.parametrize("count", [0, BATCH + 1])
def test_a_batch_has_its_limits(encoder, count):
    with pytest.raises(ProgramInputError, match=f"expected 1 to 3 texts, got {count}"):
        encoder.encode(["a"] * count)


def test_a_text_without_tokens_is_named():
    bare = TextEncoder(tokenizer(special=False), MANIFEST, BATCH, LENGTH)
    with pytest.raises(ProgramInputError, match="text 1 has no tokens: ''"):
        bare.encode(["a", ""])


def test_class_labels_fill_the_batch(encoder):
    labels = encoder.classes([1, 0])
    assert labels.tolist() == [1, 0, 0]
    assert labels.dtype == np.int64
    with pytest.raises(ProgramInputError, match="expected 1 to 3 labels, got 4"):
        encoder.classes([0] * 4)


def test_answers_become_spans(encoder):
    questions = [
        Question("a", "b c d e", "c d", 2),
        Question("a", "b c d e"),
        Question("a", "b c d e f g h", "g h", 10),
    ]
    found, labels = encoder.questions(questions)
    assert found.tokens["input_ids"][0].tolist() == [CLS, A, SEP, B_, C, D, E, SEP]
    assert labels.tolist() == [[4, 5], [0, 0], [IGNORED, IGNORED]]
    assert encoder.questions(questions[:1])[1].tolist() == [[4, 5], [IGNORED] * 2, [IGNORED] * 2]


def test_an_answer_must_stand_where_it_is_said_to(encoder):
    with pytest.raises(ProgramInputError, match=r"the answer 'c d' is not at position 0 of its context; 'b c' is"):
        encoder.questions([Question("a", "b c d", "c d", 0)])


def test_spans_become_answers(encoder):
    questions = [Question("a", "b c d e", "c d", 2), Question("a", "b c"), Question("a b", "c d e")]
    found, labels = encoder.questions(questions)
    logits = np.zeros((BATCH, LENGTH, 2), np.float32)
    for row, (start, end) in zip(logits, labels, strict=True):
        row[start, 0] += 5
        row[end, 1] += 5
    logits[0, 1] = 99  # a token of the question is never an answer
    logits[2, 6, 0] = logits[2, 4, 1] = 9  # nor does a span end before it starts
    assert answers(logits, questions, found)[:2] == ["c d", None]
    assert answers(logits, questions, found)[2] != ""
    assert answers(logits, questions, found, max_tokens=1)[0] in ("c", "d")


def test_labels_of_a_language_model(encoder):
    found, labels = encoder.next_tokens(["a b", "c"])
    assert labels.tolist() == [
        [CLS, A, B_, SEP, *[IGNORED] * 4], [CLS, C, SEP, *[IGNORED] * 5], [IGNORED] * 8
    ]  # fmt: skip
    np.testing.assert_array_equal(labels[:2] >= 0, found.tokens["attention_mask"][:2] == 1)
