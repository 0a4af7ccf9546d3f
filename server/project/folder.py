"""A project's folder: its file, and where commands keep what they make of it."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.store import files
from server.errors import ProjectError
from server.names import ADMIN_TOKEN
from server.processes import held
from server.project import file

if TYPE_CHECKING:
    from typing_extensions import Self


class Project:
    """Paths, and the file as it stands now.

    Args:
        folder: where `spry.toml` lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = file.read(folder / file.FILE)
        self.bundle = folder / "bundle"
        self.server = folder / "server"
        self.devices = folder / "devices"
        self.logs = folder / "logs"
        self.kept = folder / ".spry"
        """The folder of what commands keep: keys, tokens, running processes."""
        self.publisher = self.kept / "publisher.key"

    @classmethod
    def here(cls, folder: Path | None = None) -> Self:
        """Return the project of a folder, or of the one that this process works in."""
        project = cls.around(folder or Path.cwd())
        if project is None:
            where = f"{folder or 'this folder'} is no project, as it has no {file.FILE}"
            raise ProjectError(f"{where}: go into one, or make it with `spry new NAME --data FILE`")
        return project

    @classmethod
    def around(cls, folder: Path) -> Self | None:
        """Return the nearest project, here or above."""
        places = folder.absolute(), *folder.absolute().parents
        return next((cls(place) for place in places if (place / file.FILE).is_file()), None)

    @property
    def url(self) -> str:
        """The server's address for this machine."""
        return self._url("127.0.0.1" if self._listens_everywhere else self.file.server.host)

    @property
    def outer_url(self) -> str:
        """The server's address for other machines."""
        return self._url(own_address() if self._listens_everywhere else self.file.server.host)

    @property
    def is_reached(self) -> bool:
        """True if other machines can reach the server."""
        return self.file.server.host not in ("127.0.0.1", "localhost", "::1")

    @property
    def _listens_everywhere(self) -> bool:
        return self.file.server.host in ("0.0.0.0", "::")  # noqa: S104 -- read, not listened on

    def _url(self, host: str) -> str:
        part = self.file.server
        return f"{'https' if part.tls_cert else 'http'}://{f'[{host}]' if ':' in host else host}:{part.port}"

    @property
    def admin_token(self) -> Path:
        return self.server / ADMIN_TOKEN

    def path(self, name: str) -> Path:
        """Return the path of a file by its name in the project's file."""
        return self.folder / name

    @contextmanager
    def locked(self) -> Generator[None]:
        """Lock the project for one command at a time."""
        files.make_folder(self.kept)
        with held(self.kept / "lock", ProjectError(f"another command starts or ends {self.folder}; wait for it")):
            yield


def own_address() -> str:
    """Return this machine's address as others reach it, without sending a packet; its name where it reaches none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation, which nobody has
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
