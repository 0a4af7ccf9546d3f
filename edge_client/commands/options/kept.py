"""Options of commands that use what this device has learned: of which job, and by which weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edge_client.commands.options.groups import OptionGroup
from edge_client.store.jobs import DeviceStore, default_home


@dataclass(frozen=True)
class KeptOptions(OptionGroup):
    """The options of `spry join` that are kept for its next starts."""

    title = "The model"

    home: Annotated[
        Path | None,
        typer.Option(help="The folder of `spry join`; in a project's folder, that of its first trial device."),
    ] = None
    server: Annotated[
        str | None, typer.Option(help="The job's server; not needed on a device with one server.", envvar="SPRY_SERVER")
    ] = None
    job: Annotated[str | None, typer.Option(help="The job's name or id; by default the device's last job.")] = None
    personal: Annotated[
        bool, typer.Option("--personal", help="Use the adapter that this device trained last, not the global one.")
    ] = False
    threads: Annotated[int, typer.Option(min=0, help="Threads for the runtime; 0 leaves the number to it.")] = 0

    @property
    def store(self) -> DeviceStore:
        folder = self.home or _trial_home(Path.cwd()) or default_home()
        return DeviceStore(folder, self.server) if self.server else DeviceStore.only(folder)


def _trial_home(folder: Path) -> Path | None:
    """Find the first of the devices that `spry up --try` started, in the project around `folder`; None elsewhere."""
    project = next((place for place in (folder, *folder.parents) if (place / "spry.toml").is_file()), None)
    return next(iter(sorted(project.glob("devices/*/home"))), None) if project else None
