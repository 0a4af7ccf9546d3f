"""Text piece by piece: whole characters, in the end what all tokens are decoded to, and nothing of a stop word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from edge_client.errors import SpryError
from edge_client.generation.text import Detokenizer, StopWords


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Make a tokenizer of bytes, with few merges: a character of another script takes several tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, special_tokens=["<end>"])
    made.train_from_iterator(["the ice is on the lake"] * 5, trainer)
    return made


@given(before=st.text(max_size=8), text=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_pieces_are_whole_characters_and_together_the_text(tokenizer, before, text):
    words = Detokenizer(tokenizer, tokenizer.encode(before).ids)
    pieces = [words.add(token) for token in tokenizer.encode(text).ids]
    assert "".join([*pieces, words.flush()]) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_never_become_a_character_are_told_at_the_end(tokenizer):
    words = Detokenizer(tokenizer)
    tokens = tokenizer.encode("a🦊").ids[:-1]
    assert [words.add(token) for token in tokens] == ["a", *[""] * (len(tokens) - 1)]
    assert "a" + words.flush() == tokenizer.decode(tokens)
    assert words.flush() == ""


def test_a_word_behind_a_prompt_keeps_its_space():
    made = Tokenizer(models.WordLevel({"▁the": 0, "▁ice": 1, "u": 2}, unk_token="u"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    assert Detokenizer(made).add(1) == "ice"
    assert Detokenizer(made, [0]).add(1) == " ice"


def test_special_tokens_are_no_text(tokenizer):
    words = Detokenizer(tokenizer)
    assert [words.add(token) for token in (*tokenizer.encode("ice").ids, tokenizer.token_to_id("<end>"))][-1] == ""


@given(
    words=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_text_ends_before_the_first_stop_word_wherever_pieces_divide_it(words, pieces):
    stops, told = StopWords(words), ""
    for piece in pieces:
        told += stops.add(piece)
        if stops.met:
            break
    told += stops.flush()
    text = "".join(pieces)
    ends = [text.find(word) + len(word) for word in words if word in text]
    assert stops.met == bool(ends)
    seen = text[: min(ends, default=None)]
    whole = [seen.removesuffix(word) for word in words if ends and seen.endswith(word)]
    assert told == min(whole, key=len, default=text)


def test_nothing_is_held_back_that_cannot_become_a_stop_word():
    stops = StopWords(["###"])
    assert [stops.add(piece) for piece in ("one", " #", "two", "#", "#", "#")] == ["one", " ", "#two", "", "", ""]
    assert stops.met


def test_an_empty_stop_word_is_refused():
    with pytest.raises(SpryError, match="a stop word must have a character at least"):
        StopWords(["end", ""])
