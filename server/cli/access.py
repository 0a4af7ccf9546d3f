"""`spry access`: who may use the server."""

from __future__ import annotations

from typing import Annotated

import typer

from edge_client.commands.options.groups import command_group, grouped
from server.cli.common import JsonOption, ServerOptions, ago, show_json, show_table
from server.cli.connection import part

app = command_group("Manage the people who may use the server, each with a token of their own.")


@app.command()
@grouped
def create(
    name: Annotated[str, typer.Argument(help="The person's name, which the audit log records.")],
    role: Annotated[str, typer.Option(help="viewer (reads), operator (also runs jobs) or administrator.")] = "viewer",
    *,
    server: ServerOptions,
    as_json: JsonOption = False,
) -> None:
    """Give a person access to the server; their token is shown once.

    Example: spry access create alice --role operator
    """
    with server.connect() as administrator:
        made = administrator.post("/v1/access", {"name": name, "role": role})
    if as_json:
        show_json(made)
        return
    typer.echo(made["token"])
    typer.echo(f"{name} signs in with it, or sets SPRY_ADMIN_TOKEN to it; not shown again", err=True)


@app.command(name="list")
@grouped
def list_(server: ServerOptions, as_json: JsonOption = False) -> None:
    """Show who may use the server.

    Example: spry access list
    """
    with server.connect() as administrator:
        people = administrator.get("/v1/access")
    if as_json:
        show_json(people)
        return
    rows = [
        (person["name"], person["role"], ago(person["created"]), "revoked" if person["revoked"] else "good")
        for person in people
    ]
    show_table(("name", "role", "made", "token"), rows, "nobody but who has the administrator's token")


@app.command()
@grouped
def revoke(name: Annotated[str, typer.Argument(help="The person's name.")], server: ServerOptions) -> None:
    """End a person's access to the server.

    Example: spry access revoke alice
    """
    with server.connect() as administrator:
        administrator.delete(f"/v1/access/{part(name)}")
    typer.echo(f"{name} may not use the server any more")
