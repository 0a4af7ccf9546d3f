"""Text that a language model of this device goes on with, by the newest weights that it has of a job."""

from __future__ import annotations

from collections.abc import Iterator

from edge_client.errors import BundleError
from edge_client.generation.decoder import Decoder
from edge_client.generation.generator import Generator, Wish
from edge_client.runtimes.runtime import available, require_publisher, unasked
from edge_client.store.jobs import Store
from edge_client.training.plan import Workbench

from .predictions import find_job, kept_weights, open_bundle


def generate(
    store: Store, prompt: str, wish: Wish, *, job: str | None = None, personal: bool = False, threads: int = 0
) -> Iterator[str]:
    """What follows a prompt, piece by piece; what cannot be done is refused before the first."""
    wish.check()
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
    bench = Workbench(bundle, runtime, threads=threads)
    try:
        decoder = Decoder(bundle.manifest, bench.runtime, runtime, weights)
        pieces = Generator(decoder, bundle.tokenizer(), bundle.manifest.generation.ends).text(prompt, wish)
    except BaseException:
        bench.close()
        raise
    return _closing(pieces, bench)


def _closing(pieces: Iterator[str], bench: Workbench) -> Iterator[str]:
    try:
        yield from pieces
    finally:
        bench.close()
