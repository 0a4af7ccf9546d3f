"""`spry devices`: who takes part."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from edge_client.commands.options.groups import command_group, grouped
from edge_client.format import size
from server.cli.common import JsonOption, ServerOptions, ago, show_json, show_table
from server.cli.connection import part

app = command_group("List enrolled devices, or end their access.")


@app.command(name="list")
@grouped
def list_(server: ServerOptions, as_json: JsonOption = False) -> None:
    """Show devices, their last contact, runtimes, memory and speed.

    `memory` is the memory that training may take; `taken` is the most that the process has used so far.

    Example: spry devices list
    """
    with server.connect() as administrator:
        devices = administrator.get("/v1/devices")
    if as_json:
        show_json(devices)
        return
    rows = [
        (device["id"], device["name"], device["state"], ago(device["last_seen"]), *_profile(device["profile"] or {}))
        for device in devices
    ]
    columns = ("id", "name", "state", "seen", "runtimes", "memory", "taken", "s/step", "power", "examples")
    show_table(columns, rows, "no devices; make a token with `spry token create` and run `spry join` on a device")


@app.command()
@grouped
def revoke(
    device: Annotated[str, typer.Argument(help="The device's id, from `spry devices list`.")], server: ServerOptions
) -> None:
    """End a device's access.

    Example: spry devices revoke d-0123456789ab
    """
    with server.connect() as administrator:
        administrator.delete(f"/v1/devices/{part(device)}")
    typer.echo(f"device {device} is revoked")


def _profile(profile: dict[str, Any]) -> tuple[str, ...]:
    seconds = profile.get("step_seconds")
    return (
        ", ".join(profile.get("runtimes", [])),
        _size(profile.get("memory_bytes")),
        _size(profile.get("resident_bytes")),
        "" if seconds is None else f"{seconds:.3g}",
        profile.get("power", ""),
        str(profile.get("examples", "")),
    )


def _size(count: int | None) -> str:
    return "" if count is None else size(count)
