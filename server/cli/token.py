"""`spry token`: enrolment tokens."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from edge_client.commands.options.groups import command_group, grouped
from edge_client.keys import read_public
from edge_client.wire.invitation import Invitation
from server.cli.common import JsonOption, ServerOptions, show_json, show_table, span
from server.cli.connection import AdminError, part
from server.control.invitations import as_lines

app = command_group("Manage enrolment tokens, with which devices join.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.command()
@grouped
def create(
    label: Annotated[str, typer.Argument(help="A note for yourself.")] = "",
    uses: Annotated[int, typer.Option(help="Devices that may enrol with it.")] = 1,
    at_once: Annotated[
        int | None, typer.Option(min=1, help="How many of them may have a task at the same time; by default all.")
    ] = None,
    expires: Annotated[str, typer.Option(help="How long it is valid, such as 30m, 12h or 7d.")] = "7d",
    trust: Annotated[
        str | None, typer.Option(help="Devices take only bundles of this publisher: a public key or its file.")
    ] = None,
    qr: Annotated[
        bool, typer.Option("--qr", help="Draw it as a QR code, with the address in --server, for a phone's camera.")
    ] = False,
    *,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Make a token; its text is shown once.

    Example: spry token create "ten boards" --uses 10 --expires 2d
    """
    match = re.fullmatch(r"(\d+)([smhd])", expires)
    if match is None:
        raise AdminError(f"--expires takes a number and one of s, m, h, d, as in 12h; got {expires!r}")
    seconds = int(match[1]) * _UNITS[match[2]]
    publisher = read_public(trust) if trust else None
    wanted = {"label": label, "uses": uses, "seconds": seconds}
    if at_once is not None:
        wanted["at_once"] = at_once
    with server.connect() as administrator:
        made = administrator.post("/v1/tokens", wanted)
        address = administrator.url
    if publisher:  # added here: the server has no say in whom devices trust
        made["token"] += f".{publisher}"
    invitation = Invitation(address, made["token"])
    if as_json:
        show_json(made | {"invitation": str(invitation)})
    else:
        typer.echo(made["token"])
        if qr:
            typer.echo(as_lines(invitation), err=True)
            typer.echo(f"spry join '{invitation}' --data FILE", err=True)
        typer.echo(f"good for {uses} device{'s' if uses > 1 else ''}, {span(seconds)}; not shown again", err=True)


@app.command(name="list")
@grouped
def list_(server: ServerOptions, as_json: JsonOption = False) -> None:
    """Show tokens and how often they were used.

    Example: spry token list
    """
    with server.connect() as administrator:
        tokens = administrator.get("/v1/tokens")
    if as_json:
        show_json(tokens)
        return
    rows = [(token["id"], token["label"], f"{token['uses']} of {token['max_uses']}", _state(token)) for token in tokens]
    show_table(("id", "label", "used", "state"), rows, "no tokens; make one with `spry token create`")


@app.command()
@grouped
def revoke(
    token: Annotated[str, typer.Argument(help="The token's id, from `spry token list`.")], server: ServerOptions
) -> None:
    """Revoke a token: no further device can enrol with it.

    Example: spry token revoke 1f3a9c02
    """
    with server.connect() as administrator:
        administrator.delete(f"/v1/tokens/{part(token)}")
    typer.echo(f"token {token} is revoked; devices that enrolled with it stay (`spry devices revoke`)")


def _state(token: dict[str, float]) -> str:
    if token["revoked"]:
        return "revoked"
    left = token["expires"] - time.time()
    if left <= 0:
        return "expired"
    at_once = f", {token['at_once']} at once" if token.get("at_once") else ""
    return "used up" if token["uses"] >= token["max_uses"] else f"good for {span(left)}{at_once}"
