"""Decode tokens to text as they arrive: whole characters, and nothing of a stop word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge_client.errors import ProgramInputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_INCOMPLETE = "\ufffd"
"""The character in place of bytes that are no character yet."""
_CONTEXT = 6
"""Tokens before the first that are decoded with it: a word begins with a space only behind another."""


class Detokenizer:
    """Text of tokens, piece by piece; all pieces together are what the tokens are decoded to."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._tokens = list(before[-_CONTEXT:])
        self._told = len(self._tokens)
        """Tokens whose text was given."""
        self._start = 0
        """The token where decoding begins: a little before."""

    def add(self, token: int) -> str:
        """Add a token, and give the text that is complete; nothing while a character's bytes are not all there."""
        self._tokens.append(token)
        piece = self._open()
        return "" if piece.endswith(_INCOMPLETE) else self._tell(piece)

    def flush(self) -> str:
        """Give what was held back, when no token follows."""
        return self._tell(self._open())

    def _open(self) -> str:
        before = self._text(self._tokens[self._start : self._told])
        return self._text(self._tokens[self._start :])[len(before) :]

    def _tell(self, piece: str) -> str:
        if piece:
            self._start, self._told = self._told, len(self._tokens)
        return piece

    def _text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)


class StopWords:
    """Lets text pass up to the first of some words, wherever tokens divide it: the one that is whole first."""

    def __init__(self, words: Sequence[str]) -> None:
        if not all(words):
            raise ProgramInputError("a stop word must have a character at least, got an empty one")
        self._words = tuple(words)
        self._held = ""
        self.met = False
        """True if a stop word has been written."""

    def add(self, piece: str) -> str:
        """Add a piece, and give the text that is certainly before any stop word."""
        text = self._held + piece
        met = [(place + len(word), place) for word in self._words if (place := text.find(word)) >= 0]
        if met:
            self.met, self._held = True, ""
            return text[: min(met)[1]]
        kept = self._beginning(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _beginning(self, text: str) -> int:
        """Count the characters at the end that may begin a stop word."""
        longest = min(max(map(len, self._words), default=1) - 1, len(text))
        return next((n for n in range(longest, 0, -1) if any(word.startswith(text[-n:]) for word in self._words)), 0)
