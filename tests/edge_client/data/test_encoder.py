import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from edge_client import BundleError, ProgramInputError
from edge_client.data.encoder import TextEncoder
from tests.edge_client import words
from tests.edge_client.words import B_, BATCH, CLS, LENGTH, MANIFEST, SEP, A, C, D, E


@pytest.fixture
def encoder() -> TextEncoder:
    return words.encoder()


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
    found = TextEncoder(words.tokenizer(), manifest, BATCH, LENGTH).encode(["a"])
    assert list(found.tokens) == ["input_ids", "attention_mask"]
    assert found.tokens["input_ids"][0].tolist() == [CLS, A, SEP, 9, 9, 9, 9, 9]
    manifest = msgspec.structs.replace(MANIFEST, inputs=("input_ids", "pixels"))
    with pytest.raises(ProgramInputError, match="texts give no pixels"):
        TextEncoder(words.tokenizer(), manifest, BATCH, LENGTH)


@pytest.mark.parametrize("long", [None, {"max_length": 5, "stride": 1, "strategy": "only_first", "direction": "left"}])
def test_the_callers_tokenizer_keeps_its_settings(long):
    given = words.tokenizer()
    given.enable_padding(length=20, pad_id=7)
    if long:
        given.enable_truncation(**long)
    encoder = TextEncoder(given, MANIFEST, BATCH, LENGTH)
    before = given.padding, given.truncation
    encoder.encode(["a"])
    assert encoder.lengths(["a b c d e f g h"]) == [10]
    with pytest.raises(ProgramInputError):
        TextEncoder(words.tokenizer(special=False), MANIFEST, BATCH, LENGTH).whole("", special=True)
    assert (given.padding, given.truncation) == before
    assert len(given.encode("a").ids) == 20


def test_encoders_of_one_tokenizer_each_cut_at_their_own_length():
    given = words.tokenizer()
    encoders = [TextEncoder(given, MANIFEST, BATCH, length) for length in (LENGTH, 4)]
    for _ in range(2):
        assert [encoder.encode(["a b c d e f g h"]).tokens["attention_mask"][0].sum() for encoder in encoders] == [8, 4]
    assert all(encoder._tokenizer is given for encoder in encoders)  # its words are megabytes, held once


def test_threads_that_share_a_tokenizer_each_cut_at_their_own_length():
    given = words.tokenizer()
    text = "a b c d e f g h"

    def lengths(length: int) -> set[int]:
        encoder = TextEncoder(given, MANIFEST, BATCH, length)
        cut = {int(encoder.encode([text]).tokens["attention_mask"][0].sum()) for _ in range(300)}
        return cut | {encoder.lengths([text])[0] for _ in range(300)}

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(lengths, (LENGTH, 4, 6, 5))) == [{LENGTH, 10}, {4, 10}, {6, 10}, {5, 10}]


@pytest.mark.parametrize("count", [0, BATCH + 1])
def test_a_batch_has_its_limits(encoder, count):
    with pytest.raises(ProgramInputError, match=f"expected 1 to 3 texts, got {count}"):
        encoder.encode(["a"] * count)


def test_a_tokenizer_whose_library_panics_is_named():
    """It raises what is no `Exception`."""
    tokenizer = words.tokenizer()
    hostile = json.loads(tokenizer.to_str())
    hostile["post_processor"]["special_tokens"] = {}
    encoder = TextEncoder(Tokenizer.from_str(json.dumps(hostile)), MANIFEST, BATCH, LENGTH)
    for work in (lambda: encoder.encode(["a b"]), lambda: encoder.lengths(["a"]), lambda: encoder.cut("a")):
        with pytest.raises(BundleError, match="the bundle's tokenizer fails on a text"):
            work()


def test_a_text_without_tokens_is_named():
    bare = TextEncoder(words.tokenizer(special=False), MANIFEST, BATCH, LENGTH)
    with pytest.raises(ProgramInputError, match="text 1 has no tokens: ''"):
        bare.encode(["a", ""])
