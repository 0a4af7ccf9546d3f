"""Text that follows a prompt, as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_client.errors import ProgramInputError

from .decoder import Decoder
from .sampler import Sampler, Sampling
from .text import Detokenizer, StopWords

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class GenerationConfig:
    """The settings of generation: sampling, the most tokens, and where to stop."""

    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    """The most tokens; None: until the model ends, or the cache is full."""
    stop: tuple[str, ...] = ()
    """Words that end the text, and do not belong to it."""

    def check(self) -> None:
        """Refuse what has no meaning."""
        self.sampling.check()
        StopWords(self.stop)
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ProgramInputError(f"max_tokens must be 1 or more, got {self.max_tokens}")


class Generator:
    """Generates with one decoder; what two prompts begin with alike is read once.

    Args:
        decoder: which is this generator's alone.
        tokenizer: the model's.
        ends: the tokens by which the model ends a text.
    """

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, ends: Sequence[int]) -> None:
        self.decoder = decoder
        self._tokenizer = tokenizer
        self._ends = frozenset(ends)
        self._read: list[int] = []

    def encoded(self, prompt: str, *, special: bool = True) -> list[int]:
        """Encode a prompt; `special` where the tokenizer adds the tokens that begin a text, but none that end one."""
        tokens: list[int] = list(self._tokenizer.encode(prompt, add_special_tokens=special).ids)
        while special and tokens and tokens[-1] in self._ends:
            tokens.pop()
        if not tokens:
            raise ProgramInputError(
                f"the prompt has no tokens: {prompt!r}; write the beginning of a text, which the model continues"
            )
        return tokens

    def plain(self, text: str) -> str:
        """Return a text without the special tokens that are written in it."""
        ids: list[int] = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def tokens(self, prompt: Sequence[int], config: GenerationConfig) -> Iterator[int]:
        """Yield the tokens that follow, without the one that ends the text."""
        left = self._room(len(prompt), config.max_tokens)
        sampler, seen = Sampler(config.sampling), list(prompt)
        pending = self._unread(prompt)
        while left > 0:
            token = sampler.choose(self._reading(pending), seen)
            if token in self._ends:
                return
            yield token
            seen.append(token)
            pending, left = [token], left - 1

    def text(self, prompt: str | Sequence[int], config: GenerationConfig) -> Iterator[str]:
        """Yield the text that follows, piece by piece."""
        config.check()
        tokens = self.encoded(prompt) if isinstance(prompt, str) else list(prompt)
        self._room(len(tokens), config.max_tokens)
        return self._pieces(tokens, config)

    def _pieces(self, tokens: list[int], config: GenerationConfig) -> Iterator[str]:
        words, stops = Detokenizer(self._tokenizer, tokens), StopWords(config.stop)
        for token in self.tokens(tokens, config):
            if piece := stops.add(words.add(token)):
                yield piece
            if stops.met:
                return
        if piece := stops.add(words.flush()) + stops.flush():
            yield piece

    def _room(self, prompt: int, wanted: int | None) -> int:
        """Count the tokens that may follow a prompt."""
        length = self.decoder.length
        room = length + 1 - prompt  # the last is returned, and read by no program
        if room <= 1:
            raise ProgramInputError(
                f"the prompt has {prompt} tokens, the bundle holds {length} of prompt and answer: shorten it, or "
                "export with a larger --generate"
            )
        if wanted is not None and wanted > room:
            raise ProgramInputError(
                f"the prompt has {prompt} tokens and {wanted} more are asked for, the bundle holds {length}: ask for "
                "fewer, shorten the prompt, or export with a larger --generate"
            )
        return room if wanted is None else wanted

    def _unread(self, prompt: Sequence[int]) -> list[int]:
        """List the prompt's tokens that the decoder has not read; the last always, as what follows it is asked."""
        same = 0
        while same < min(len(self._read), len(prompt) - 1) and self._read[same] == prompt[same]:
            same += 1
        self.decoder.keep(same)
        del self._read[same:]
        return list(prompt[same:])

    def _reading(self, tokens: list[int]):  # noqa: ANN202 -- logits
        logits = self.decoder.read(tokens)
        self._read += tokens
        return logits
