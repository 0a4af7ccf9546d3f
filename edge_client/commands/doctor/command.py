"""`spry doctor`: what stands in the way on this machine, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from edge_client import plugins

from . import machine as checks
from . import network as reach
from .machine import DoctorCheck, Finding, Scope

CHECKS = plugins.Registry[DoctorCheck](plugins.CHECKS, callable, {"machine": checks.machine, "network": reach.server})
FAILED = 1
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    server: Annotated[
        str | None, typer.Option(help="Also check the connection to this server.", envvar="SPRY_SERVER")
    ] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file with the certificates to trust for https.")] = None,
    home: Annotated[
        Path | None, typer.Option(help="The folder of `spry join`; by default $SPRY_HOME or ~/.local/share/spry.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A server's data folder; $SPRY_DATA_DIR, or spry-data if it exists.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate for `spry serve` (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine as a device, and as a server if it holds a server's data.

    Example: spry doctor --server https://spry.example.org
    """
    asked = Scope(home, server, ca, data or _data_folder(), tls_cert, tls_key)
    findings = [finding for check in CHECKS.values() for finding in check(asked)]
    failed = any(finding.state == "problem" for finding in findings)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode({"ok": not failed, "checks": findings}), indent=1).decode())
    else:
        _show(findings)
        if server is None:
            typer.echo("--server URL looks at the way to a server too: its answer, certificate, clock, enrolment")
    if failed:
        raise typer.Exit(FAILED)


def _data_folder() -> Path | None:
    """Return the data folder of the server that would run here."""
    named = os.environ.get("SPRY_DATA_DIR")
    folder = Path(named or "spry-data")
    return folder if named or folder.is_dir() else None


def _show(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        line = Text.assemble((f"{finding.state:8}", _STYLES[finding.state]), f"{finding.name:{width}}  {finding.found}")
        console.print(line, soft_wrap=True)
        if finding.advice:
            console.print(Text(f"{'':{width + 10}}{finding.advice}"), soft_wrap=True)
    counts = {state: sum(finding.state == state for finding in findings) for state in _STYLES}
    typer.echo(", ".join(f"{state}: {count}" for state, count in counts.items()))
