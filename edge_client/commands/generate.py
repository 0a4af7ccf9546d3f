"""`spry generate`: text that a language model of this device goes on with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import typer

from edge_client.client.generation import generate
from edge_client.commands.options.groups import OptionGroup, grouped
from edge_client.commands.options.kept import KeptOptions
from edge_client.format import shown_lines
from edge_client.generation.generator import GenerationConfig
from edge_client.generation.sampler import Sampling


@dataclass(frozen=True)
class SamplingOptions(OptionGroup):
    """Options for choosing the text, and where it ends."""

    title = "The text"

    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="The most tokens to write; by default until the model ends the text, or the bundle has no more room."
        ),
    ] = None
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token; 1 draws with the model's probabilities.")
    ] = 0.0
    top_k: Annotated[int, typer.Option(help="Draw from this many of the likeliest tokens; 0: from all.")] = 0
    top_p: Annotated[
        float,
        typer.Option(help="Draw from the fewest likeliest tokens whose probabilities add up to this; 1: from all."),
    ] = 1.0
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, earlier tokens repeat less often.")] = 1.0
    stop: Annotated[list[str] | None, typer.Option(help="End before this word; may be repeated.")] = None
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same text.")] = None

    @property
    def config(self) -> GenerationConfig:
        drawn = Sampling(self.temperature, self.top_k, self.top_p, self.repetition_penalty, self.seed)
        return GenerationConfig(drawn, self.max_tokens, tuple(self.stop or ()))


@grouped
def command(
    prompt: Annotated[str, typer.Argument(help="The beginning of the text.")],
    sampling: SamplingOptions,
    kept: KeptOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON at the end: the prompt and its text.")] = False,
) -> None:
    """Continue a text with this device's newest weights, word by word.

    Example: spry generate "The committee met on Tuesday" --max-tokens 40 --temperature 0.8 --top-p 0.9
    """
    pieces = generate(kept.store, prompt, sampling.config, job=kept.job, personal=kept.personal, threads=kept.threads)
    if as_json:
        row = {"prompt": prompt, "text": "".join(pieces)}
        typer.echo(msgspec.json.format(msgspec.json.encode(row), indent=1).decode())
        return
    for piece in pieces:
        typer.echo(shown_lines(piece), nl=False)
    typer.echo()
