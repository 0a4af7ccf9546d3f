"""`spry join`: this device takes part in a server's rounds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from edge_client.client.client import Client, Idle
from edge_client.client.conditions import Conditions, parse_hours
from edge_client.data.columns import Columns
from edge_client.data.examples import BadRows
from edge_client.errors import SpryError
from edge_client.events import Event, Tell
from edge_client.format import parse_bytes
from edge_client.memory import return_freed_blocks
from edge_client.runtimes.runtime import CPU
from edge_client.wire.invitation import invitation_in

if TYPE_CHECKING:
    from rich.progress import Progress

FAILED = 1
IDLE_VARIABLE = "SPRY_IDLE"
"""Hands a wait from a process to the one that takes its place."""
_LOG_SECONDS = 10.0
"""Between two lines of progress in a log."""


def join(
    data: Annotated[Path, typer.Option(help="Examples to train on, .jsonl or .csv; they stay on this device.")],
    invitation: Annotated[
        str | None,
        typer.Argument(help="The line beside a token's QR code, spry://join?…: in place of --server and --token."),
    ] = None,
    server: Annotated[str | None, typer.Option(help="The server's address.", envvar="SPRY_SERVER")] = None,
    token: Annotated[str | None, typer.Option(help="To enrol with, the first time.", envvar="SPRY_TOKEN")] = None,
    home: Annotated[
        Path | None, typer.Option(help="Where everything is kept; $SPRY_HOME or ~/.local/share/spry when left out.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Take part in this job alone, by name or id.")] = None,
    name: Annotated[str | None, typer.Option(help="What the server shows for this device; its host name.")] = None,
    runtime: Annotated[str | None, typer.Option(help="onnx, executorch or torchscript; any that is installed.")] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads for the runtime; 0 leaves the number to it.")] = 0,
    device: Annotated[str, typer.Option(help="Where programs run: cpu, or with torchscript a GPU: cuda.")] = CPU,
    ca: Annotated[Path | None, typer.Option(help="PEM file with the certificates to trust for https.")] = None,
    trust: Annotated[
        str | None, typer.Option(help="Take bundles of this publisher alone: a public key or its file. It is kept.")
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(help="refuse the data when a row cannot be used, or skip the row.")
    ] = "refuse",
    holdout: Annotated[float, typer.Option(help="Share of the examples kept for evaluation.")] = 0.1,
    text: Annotated[str, typer.Option(help="The column of the texts; several with + between them.")] = "",
    pair: Annotated[str, typer.Option(help="The column of the second texts.")] = "",
    label: Annotated[str, typer.Option(help="The column of the labels.")] = "",
    only_charging: Annotated[bool, typer.Option("--only-charging", help="Train on mains power alone.")] = False,
    unmetered_only: Annotated[bool, typer.Option("--unmetered-only", help="Stay away from metered networks.")] = False,
    metered: Annotated[bool, typer.Option("--metered", help="Take the network for metered if nobody knows.")] = False,
    max_memory: Annotated[str | None, typer.Option(help="What training may take at most, such as 200MB.")] = None,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Hold one program at a time while training, which takes longer.")
    ] = False,
    hours: Annotated[str | None, typer.Option(help="When to take part, such as 22-6.")] = None,
    only_sums: Annotated[
        bool, typer.Option("--only-sums", help="Leave jobs alone whose server sees single updates.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Take part in what there is now, then end (for cron).")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="End after so many rounds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Take part in a server's rounds with this device's data, until interrupted.

    Example: spry join --server https://spry.example.org --token T --data my.jsonl --only-charging --hours 22-6
    """
    return_freed_blocks()
    where, token = invited(invitation, server, token)
    conditions = Conditions(
        only_charging=only_charging,
        unmetered_only=unmetered_only,
        metered=metered,
        max_memory=parse_bytes(max_memory) if max_memory else None,
        low_memory=low_memory,
        hours=parse_hours(hours) if hours else None,
    )
    idle = handed_over()
    to_the_end = once or rounds is not None
    reporter = Reporter(as_json=as_json)
    with reporter as tell:
        client = Client(
            where,
            token,
            data,
            home=home,
            job=job,
            runtime=runtime,
            threads=threads,
            device=device,
            name=name,
            ca=ca,
            trust=trust,
            conditions=conditions,
            bad_rows=_bad_rows(bad_rows),
            holdout=holdout,
            columns=Columns(text, pair, label),
            only_sums=only_sums,
            on_event=tell,
            on_idle=None if to_the_end else partial(start_anew, reporter),
        )
        try:
            done = client.run(once=once, rounds=rounds, idle=idle)
        except KeyboardInterrupt:
            tell(Event("stopped", "stopped; what was trained is kept, and goes on with the next spry join"))
            raise
        finally:
            client.close()
    if once and done.failures:
        raise typer.Exit(FAILED)


def invited(invitation: str | None, server: str | None, token: str | None) -> tuple[str, str | None]:
    """Where to enrol and with what: an invitation says both."""
    if invitation is not None:
        invited = invitation_in(invitation)
        return invited.server, invited.token
    if not server:
        raise SpryError("no server is named: give --server, or the line beside the QR code of a token, spry://join?…")
    return server, token


def start_anew(reporter: Reporter, idle: Idle) -> None:
    """Let a fresh process wait in this one's place, under the same id and for the same command.

    A runtime and a tokenizer stay in the memory of the process that loaded them until it ends. The lock on the store
    goes with the old program, as its file is closed on exec, and the new one takes it again. Where no process can be
    started, as in the middle of an update of the system, this one waits.
    """
    environment = os.environ | {IDLE_VARIABLE: msgspec.json.encode(idle).decode()}
    reporter.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)  # noqa: S606 -- this very command


def handed_over() -> Idle | None:
    """The wait that the process before this one began; asked once, so that no child takes it for its own."""
    try:
        return msgspec.json.decode(os.environ.pop(IDLE_VARIABLE, ""), type=Idle)
    except msgspec.DecodeError:
        return None


def _bad_rows(value: str) -> BadRows:
    if value == "refuse" or value == "skip":  # noqa: PLR1714 -- narrows the type
        return value
    raise typer.BadParameter(f"expected refuse or skip, got {value!r}", param_hint="--bad-rows")


_MOVING = {"progress": ("step", "steps"), "download": ("bytes", "total")}
"""Events that come many times: which of their details tell how far it went."""


def _share(event: Event) -> tuple[int, int]:
    done, total = (event.details.get(name) for name in _MOVING.get(event.kind, ("", "")))
    return (done, total) if isinstance(done, int) and isinstance(total, int) else (0, 0)


class Reporter:
    """Shows events: as lines of JSON, as a moving bar on a terminal, or as lines of a log."""

    def __init__(self, *, as_json: bool) -> None:
        self._bar: Progress | None = None
        self._logged = 0.0
        self._show: Callable[[Event], None] = self._log
        if as_json:
            self._show = self._json
        elif sys.stderr.isatty():
            self._show = self._terminal

    def __enter__(self) -> Tell:
        return self._show

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the terminal as it was; the next event takes it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @staticmethod
    def _json(event: Event) -> None:
        line: dict[str, Any] = {"time": round(time.time(), 3), "event": event.kind, "message": event.message}
        typer.echo(msgspec.json.encode({**event.details, **line}).decode())
        sys.stdout.flush()

    def _log(self, event: Event) -> None:
        if event.kind in _MOVING:
            done, total = _share(event)
            if done < total and time.monotonic() - self._logged < _LOG_SECONDS:
                return
            self._logged = time.monotonic()
        typer.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event.message}", err=True)

    def _terminal(self, event: Event) -> None:
        bar = self._bar or self._started()
        done, total = _share(event)
        complete = event.kind == "download" and done == total
        if event.kind not in _MOVING or complete:
            bar.console.print(event.message, markup=False, highlight=False)
            bar.update(bar.task_ids[0], visible=False)
            return
        bar.update(bar.task_ids[0], description=event.message, completed=done, total=total, visible=done < total)

    def _started(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        # It draws when told to: a thread of its own would wake an idle device ten times a second.
        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._bar.add_task("", visible=False)
        self._bar.start()
        return self._bar
