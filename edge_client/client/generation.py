"""Text that a language model of this device goes on with, by the newest weights that it has of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from edge_client.data.templates import ANSWERING, Message, Template
from edge_client.errors import BundleError
from edge_client.generation.decoder import Decoder
from edge_client.generation.generator import GenerationConfig, Generator
from edge_client.store.jobs import DeviceStore

from .predictions import find_job, kept_weights, open_bench, open_bundle

if TYPE_CHECKING:
    from typing_extensions import Self

_ANSWER = 4
"""A part of the room that is left for an answer of unknown length."""


class Writer:
    """A job's language model, open for one prompt after the other; what they begin with alike is read once."""

    def __init__(self, store: DeviceStore, *, job: str | None = None, personal: bool = False, threads: int = 0) -> None:
        kept, about = find_job(store, job)
        bundle = open_bundle(store, about)
        if bundle.manifest.generation is None:
            raise BundleError(
                f"the bundle of {about.name} has no programs that generate text: export it with --task causal-lm "
                "--generate 512, and make a job of that"
            )
        weights = kept_weights(kept, about, bundle, personal=personal)
        self.name = about.name
        self.template = Template.of(bundle)
        self.length = bundle.manifest.generation.length
        """Tokens of prompt and answer together."""
        self._bench = open_bench(store, about, bundle, threads)
        decoder = Decoder(bundle.manifest, self._bench.runtime, self._bench.runtime_name, weights)
        self._generator = Generator(decoder, bundle.tokenizer(), bundle.manifest.generation.ends)

    def write(self, prompt: str | Sequence[int], config: GenerationConfig) -> Iterator[str]:
        """Generate what follows a prompt, piece by piece; refuse what cannot be done before the first."""
        return self._generator.text(prompt, config)

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, up to where the next answer begins."""
        return self._generator.encoded(self.template.render(messages, add_generation_prompt=True), special=False)

    def close(self) -> None:
        """Give the memory of runtime and tokenizer back."""
        self._bench.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Conversation:
    """Keep a conversation, and answer in the form of the model's chat template.

    Args:
        writer: the writer of a model whose tokenizer has such a template.
        system: the system message, before all others.
    """

    def __init__(self, writer: Writer, system: str = "") -> None:
        if not writer.template.source:
            raise BundleError(
                f"the model of {writer.name} has no chat template: go on with a text by `spry generate`, or export a "
                "model that was made for conversations"
            )
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self.forgotten = 0
        """Messages that had no room any more, the oldest."""
        self._kept = len(self.messages)
        self._writer = writer

    def answer(self, said: str, config: GenerationConfig) -> Iterator[str]:
        """Piece by piece; the oldest messages but the system's make room. What cannot be answered changes nothing."""
        config.check()
        messages = [*self.messages, {"role": "user", "content": said}]
        room = self._writer.length - (config.max_tokens or self._writer.length // _ANSWER)
        while len(tokens := self._writer.tokens(messages)) > room and len(messages) > self._kept + 1:
            del messages[self._kept : self._kept + 2]  # a question and its answer
        pieces = self._writer.write(tokens, config)
        self.forgotten += len(self.messages) + 1 - len(messages)
        self.messages = messages
        return self._kept_whole(pieces)

    def _kept_whole(self, pieces: Iterator[str]) -> Iterator[str]:
        said: list[str] = []
        try:
            for piece in pieces:
                said.append(piece)
                yield piece
        finally:
            self.messages.append({"role": ANSWERING, "content": "".join(said)})


def generate(
    store: DeviceStore,
    prompt: str,
    config: GenerationConfig,
    *,
    job: str | None = None,
    personal: bool = False,
    threads: int = 0,
) -> Iterator[str]:
    """Generate what follows one prompt, piece by piece, and close the model behind the last."""
    config.check()
    writer = Writer(store, job=job, personal=personal, threads=threads)
    try:
        pieces = writer.write(prompt, config)
    except BaseException:
        writer.close()
        raise
    return _closing(pieces, writer)


def _closing(pieces: Iterator[str], writer: Writer) -> Iterator[str]:
    with writer:
        yield from pieces
