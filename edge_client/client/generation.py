"""Text that a language model of this device goes on with, by the newest weights that it has of a job."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from edge_client.errors import BundleError
from edge_client.generation.decoder import Decoder
from edge_client.generation.generator import Generator, Wish
from edge_client.runtimes.runtime import available, require_publisher, unasked
from edge_client.store.jobs import Store
from edge_client.training.plan import Workbench

from .predictions import find_job, kept_weights, open_bundle

if TYPE_CHECKING:
    from typing_extensions import Self


class Writer:
    """A job's language model, open for one prompt after the other; what they begin with alike is read once."""

    def __init__(self, store: Store, *, job: str | None = None, personal: bool = False, threads: int = 0) -> None:
        kept, about = find_job(store, job)
        bundle = open_bundle(store, about)
        if bundle.manifest.generation is None:
            raise BundleError(
                f"the bundle of {about.name} has no programs that generate text: export it with --task causal-lm "
                "--generate 512, and make a job of that"
            )
        weights = kept_weights(kept, about, bundle, personal=personal)
        runtime = about.runtime if about.runtime in available() else next(iter(unasked()), about.runtime)
        require_publisher([runtime], store.publisher())
        self._bench = Workbench(bundle, runtime, threads=threads)
        decoder = Decoder(bundle.manifest, self._bench.runtime, runtime, weights)
        self._generator = Generator(decoder, bundle.tokenizer(), bundle.manifest.generation.ends)

    def write(self, prompt: str, wish: Wish) -> Iterator[str]:
        """What follows a prompt, piece by piece; what cannot be done is refused before the first."""
        return self._generator.text(prompt, wish)

    def close(self) -> None:
        """Give the memory of runtime and tokenizer back."""
        self._bench.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def generate(
    store: Store, prompt: str, wish: Wish, *, job: str | None = None, personal: bool = False, threads: int = 0
) -> Iterator[str]:
    """What follows one prompt, piece by piece; the model is closed behind the last."""
    wish.check()
    writer = Writer(store, job=job, personal=personal, threads=threads)
    try:
        pieces = writer.write(prompt, wish)
    except BaseException:
        writer.close()
        raise
    return _closing(pieces, writer)


def _closing(pieces: Iterator[str], writer: Writer) -> Iterator[str]:
    with writer:
        yield from pieces
