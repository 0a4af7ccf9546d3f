"""`spry chat`: a conversation with a language model of this device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from edge_client.client.generation import Conversation, Writer
from edge_client.commands.generate import SamplingOptions
from edge_client.commands.options.groups import grouped
from edge_client.errors import SpryError
from edge_client.generation.generator import Wish
from edge_client.store.jobs import Store, default_home


@grouped
def command(
    sampling: SamplingOptions,
    system: Annotated[str, typer.Option(help="What the model is told before all else.")] = "",
    home: Annotated[Path | None, typer.Option(help="Where `spry join` keeps everything.")] = None,
    server: Annotated[
        str | None, typer.Option(help="Whose job; not needed by a device with one server.", envvar="SPRY_SERVER")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name or id; the job taken part in last when left out.")] = None,
    personal: Annotated[
        bool, typer.Option("--personal", help="By the adapter that this device trained last, not the global one.")
    ] = False,
    threads: Annotated[int, typer.Option(min=0, help="Threads for the runtime; 0 leaves the number to it.")] = 0,
) -> None:
    """Talk with a model by the newest weights that this device has; Ctrl-D ends it.

    Each line is a message; Ctrl-C ends an answer. Lines that are piped in are answered one after the other.

    Example: spry chat --personal --temperature 0.7
    """
    sampling.wish.check()
    folder = home or default_home()
    store = Store(folder, server) if server else Store.only(folder)
    with Writer(store, job=job, personal=personal, threads=threads) as writer:
        conversation = Conversation(writer, system)
        watched, told = sys.stdin.isatty(), 0
        for line in _lines(watched):
            try:
                _answer(conversation, line, sampling.wish)
            except (SpryError, KeyboardInterrupt) as error:
                if not watched:
                    raise
                typer.echo(f"\n{error}", err=True)
            if conversation.forgotten > told:
                told = conversation.forgotten
                typer.echo(f"({told} messages are forgotten: the bundle has no room for more)", err=True)


def _lines(watched: bool) -> Iterator[str]:
    """What people say, without empty lines."""
    while True:
        try:
            line = input("> ") if watched else next(sys.stdin)
        except (EOFError, StopIteration):
            return
        if line.strip():
            yield line.strip()


def _answer(conversation: Conversation, line: str, wish: Wish) -> None:
    for piece in conversation.answer(line, wish):
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    typer.echo()
