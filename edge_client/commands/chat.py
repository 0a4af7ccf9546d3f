"""`spry chat`: a conversation with a language model of this device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from edge_client.client.generation import Conversation, Writer
from edge_client.commands.generate import SamplingOptions
from edge_client.commands.options.groups import grouped
from edge_client.commands.options.kept import KeptOptions
from edge_client.errors import SpryError
from edge_client.format import shown_lines
from edge_client.generation.generator import GenerationConfig


@grouped
def command(
    sampling: SamplingOptions,
    kept: KeptOptions,
    system: Annotated[str, typer.Option(help="The system message, before the first question.")] = "",
) -> None:
    """Hold a conversation with a model, with this device's newest weights; Ctrl-D ends it.

    Each line is a message; Ctrl-C ends an answer. Lines from a pipe are answered one after the other.

    Example: spry chat --personal --temperature 0.7
    """
    sampling.config.check()
    with Writer(kept.store, job=kept.job, personal=kept.personal, threads=kept.threads) as writer:
        conversation = Conversation(writer, system)
        watched, told = sys.stdin.isatty(), 0
        for line in _lines(watched):
            try:
                _answer(conversation, line, sampling.config)
            except (SpryError, KeyboardInterrupt) as error:
                if not watched:
                    raise
                typer.echo(f"\n{error}", err=True)
            if conversation.forgotten > told:
                told = conversation.forgotten
                typer.echo(f"({told} messages are forgotten: the bundle has no room for more)", err=True)


def _lines(watched: bool) -> Iterator[str]:
    """Read the lines that people type, without empty ones."""
    while True:
        try:
            line = input("> ") if watched else next(sys.stdin)
        except (EOFError, StopIteration):
            return
        if line.strip():
            yield line.strip()


def _answer(conversation: Conversation, line: str, config: GenerationConfig) -> None:
    for piece in conversation.answer(line, config):
        typer.echo(shown_lines(piece), nl=False)
        sys.stdout.flush()
    typer.echo()
