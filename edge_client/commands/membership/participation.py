"""A device's part in a server's rounds, once its command line is read."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn

import msgspec

from edge_client.client.client import Client, Idle
from edge_client.commands.interrupts import end_as_interrupted
from edge_client.commands.outcome import outcome
from edge_client.data.columns import Columns
from edge_client.events import Event
from edge_client.memory import return_freed_blocks

from . import options as join_options
from .reporter import Reporter
from .successor import replace_by_same

FAILED = 1
IDLE_VARIABLE = "SPRY_IDLE"
"""Hands a wait from a process to the one that takes its place."""


def take_part(options: join_options.JoinOptions) -> int:
    """Take part until interrupted, or until what was asked for is done; return the exit code."""
    return_freed_blocks()
    idle = handed_over()
    to_the_end = options.once or options.rounds is not None
    reporter = Reporter(as_json=options.as_json)
    with reporter as tell:
        client = Client(
            options.server,
            options.token,
            options.data,
            home=options.home,
            job=options.job,
            runtime=options.runtime,
            threads=options.threads,
            device=options.device,
            name=options.name,
            ca=options.ca,
            trust=options.trust,
            conditions=options.conditions(),
            bad_rows=options.bad_rows,
            holdout=options.holdout,
            columns=Columns(options.text, options.pair, options.label),
            only_sums=options.only_sums,
            on_event=tell,
            on_idle=None if to_the_end else partial(start_anew, reporter),
        )
        try:
            done = client.run(once=options.once, rounds=options.rounds, idle=idle)
        except KeyboardInterrupt:
            tell(Event("stopped", "stopped; the training so far is kept, and continues with the next spry join"))
            raise
        finally:
            client.close()
    return FAILED if options.once and done.failures else 0


def start_anew(reporter: Reporter, idle: Idle) -> None:
    """Let a fresh process wait in this one's place; where none can be started, this one waits."""
    reporter.stop()
    replace_by_same(**{IDLE_VARIABLE: msgspec.json.encode(idle).decode()})


def handed_over() -> Idle | None:
    """Return the wait that the process before this one began; asked once, so that no child takes it for its own."""
    try:
        return msgspec.json.decode(os.environ.pop(IDLE_VARIABLE, ""), type=Idle)
    except msgspec.DecodeError:
        return None


def main() -> NoReturn:
    """Go on as the process before this one was asked to."""
    end_as_interrupted()
    sys.exit(outcome(lambda: take_part(join_options.handed_over())))
