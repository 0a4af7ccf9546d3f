"""`spry join`: this device takes part in a server's rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge_client.commands.membership import options as join_options
from edge_client.commands.membership.successor import replace_by
from edge_client.data.examples import BadRows
from edge_client.errors import SpryError
from edge_client.runtimes.runtime import CPU
from edge_client.wire.invitation import invitation_in


def join(
    data: Annotated[Path, typer.Option(help="Examples to train on, .jsonl or .csv; they stay on this device.")],
    invitation: Annotated[
        str | None,
        typer.Argument(help="The line beside a token's QR code, spry://join?…: in place of --server and --token."),
    ] = None,
    server: Annotated[str | None, typer.Option(help="The server's address.", envvar="SPRY_SERVER")] = None,
    token: Annotated[
        str | None, typer.Option(help="The enrolment token, for the first time.", envvar="SPRY_TOKEN")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="The folder for everything; by default $SPRY_HOME or ~/.local/share/spry.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Take part in this job only, by name or id.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The name that the server shows for this device; by default its host name.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(help="onnx, executorch or torchscript; by default any that is installed.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, help="Threads for the runtime; 0 leaves the number to it.")] = 0,
    device: Annotated[str, typer.Option(help="Where programs run: cpu, or with torchscript a GPU: cuda.")] = CPU,
    ca: Annotated[Path | None, typer.Option(help="PEM file with the certificates to trust for https.")] = None,
    trust: Annotated[
        str | None,
        typer.Option(help="Take only bundles of this publisher: a public key or its file. The device keeps it."),
    ] = None,
    bad_rows: Annotated[
        str, typer.Option(help="If a row cannot be used: refuse the data, or skip the row.")
    ] = "refuse",
    holdout: Annotated[float, typer.Option(help="Share of the examples kept for evaluation.")] = 0.1,
    text: Annotated[str, typer.Option(help="The column of the texts; several with + between them.")] = "",
    pair: Annotated[str, typer.Option(help="The column of the second texts.")] = "",
    label: Annotated[str, typer.Option(help="The column of the labels.")] = "",
    only_charging: Annotated[bool, typer.Option("--only-charging", help="Train only on mains power.")] = False,
    unmetered_only: Annotated[bool, typer.Option("--unmetered-only", help="Do not use metered networks.")] = False,
    metered: Annotated[
        bool, typer.Option("--metered", help="Assume that the network is metered if the system does not say.")
    ] = False,
    max_memory: Annotated[
        str | None, typer.Option(help="The most memory that training may take, such as 200MB.")
    ] = None,
    low_memory: Annotated[
        bool, typer.Option("--low-memory", help="Hold one program at a time while training, which takes longer.")
    ] = False,
    hours: Annotated[str | None, typer.Option(help="When to take part, such as 22-6.")] = None,
    only_sums: Annotated[
        bool, typer.Option("--only-sums", help="Take no part in jobs whose server sees single updates.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Take part in the rounds that are open now, then end (for cron).")
    ] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="End after so many rounds.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON.")] = False,
) -> None:
    """Take part in a server's rounds with this device's data, until interrupted.

    Example: spry join --server https://spry.example.org --token T --data my.jsonl --only-charging --hours 22-6
    """
    where, token = invited(invitation, server, token)
    options = join_options.JoinOptions(
        server=where,
        token=token,
        data=str(data),
        home=_text(home),
        job=job,
        name=name,
        runtime=runtime,
        threads=threads,
        device=device,
        ca=_text(ca),
        trust=trust,
        bad_rows=_bad_rows(bad_rows),
        holdout=holdout,
        text=text,
        pair=pair,
        label=label,
        only_charging=only_charging,
        unmetered_only=unmetered_only,
        metered=metered,
        max_memory=max_memory,
        low_memory=low_memory,
        hours=hours,
        only_sums=only_sums,
        once=once,
        rounds=rounds,
        as_json=as_json,
    )
    options.conditions()  # refused here where they make no sense
    replace_by("edge_client.commands.membership.participation", **join_options.handing_over(options))
    from edge_client.commands.membership.participation import take_part

    code = take_part(options)
    if code:
        raise typer.Exit(code)


def invited(invitation: str | None, server: str | None, token: str | None) -> tuple[str, str | None]:
    """Return the server to enrol with and the token: an invitation has both."""
    if invitation is not None:
        invited = invitation_in(invitation)
        return invited.server, invited.token
    if not server:
        raise SpryError("no server is named: give --server, or the line beside the QR code of a token, spry://join?…")
    return server, token


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _bad_rows(value: str) -> BadRows:
    if value == "refuse" or value == "skip":  # noqa: PLR1714 -- narrows the type
        return value
    raise typer.BadParameter(f"expected refuse or skip, got {value!r}", param_hint="--bad-rows")
