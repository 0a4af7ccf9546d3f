"""Connect the commands to the server, and print their results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from edge_client.commands.console import progress_console
from edge_client.commands.options.groups import OptionGroup
from server.cli.connection import Access, Administrator
from server.text import printable

_WIDEST = 2000
"""Characters that a row of a table may take."""


@dataclass(frozen=True)
class ServerOptions(OptionGroup):
    """Which server a command is for, and whose word it brings."""

    title = "Server"

    server: Annotated[
        str | None, typer.Option(help="The server's address; $SPRY_SERVER, or this machine's port 8000.")
    ] = None
    admin_token: Annotated[
        str | None,
        typer.Option(help="The administrator's token; $SPRY_ADMIN_TOKEN, or spry-data/admin-token."),
    ] = None
    ca: Annotated[Path | None, typer.Option(help="Certificates (PEM) to trust for https.")] = None

    def connect(self, data: Path | None = None) -> Administrator:
        return Administrator(Access.of(self.server, self.admin_token, self.ca, data))


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", help="The server's data folder, which contains its token.", rich_help_panel=ServerOptions.title
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
NameArgument = Annotated[str, typer.Argument(help="The job's name or id.")]


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def say(line: str) -> None:
    """Print a line that may repeat what others wrote."""
    typer.echo(printable(line))


def say_away() -> None:
    """Print on standard error that the server is away: standard output is for scripts."""
    typer.echo("the server does not answer; waiting for it", err=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ignore")
    count = 0
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row))  # names are no markup
        count += 1
    if count:
        console = Console()
        natural = Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum
        Console(width=max(console.width, natural)).print(table)  # ids stay whole, for people and for scripts
    else:
        typer.echo(empty)


@contextmanager
def transfer(what: str) -> Generator[Callable[[int, int], None]]:
    """Show a bar for bytes on terminals; yields a function of the bytes done and of all."""
    columns = TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn()
    console = progress_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def ago(moment: float | None) -> str:
    if moment is None:
        return "never"
    return span(time.time() - moment) + " ago"


def span(seconds: float) -> str:
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"
