"""What `spry up` starts on this machine: the server, and trial devices."""

from __future__ import annotations

import random
from pathlib import Path

from edge_client import keys
from edge_client.commands.keys import write_key
from edge_client.store import files
from server.errors import ProjectError, ServerConfigError
from server.processes import check_free, wait_for_server
from server.project import file
from server.project.folder import Project
from server.project.running import Running
from server.start.port import free_port, write_port

SERVER = "server"
LEAST_ROWS = 2
"""Of a trial device: one to learn from, and one that it holds back."""
_OFTEN = "SPRY_RETRY_SECONDS", "2"
"""Trial devices are near; they may ask often."""


def publisher(project: Project) -> str:
    """The public key of the project's bundles; made with the first."""
    if not project.publisher.is_file():
        files.make_folder(project.kept)
        write_key(project.publisher)
    return keys.public_of(keys.read_secret(project.publisher))


def start_server(project: Project, running: Running) -> bool:
    """Whether it had to be started."""
    if SERVER in running.names:
        return False
    part = project.file.server
    arguments = ["serve", "--host", part.host, "--port", str(part.port), "--data", str(project.server)]
    if part.tls_cert:
        arguments += ["--tls-cert", str(project.path(part.tls_cert)), "--tls-key", str(project.path(part.tls_key))]
    if part.plain_http:
        arguments.append("--plain-http")
    log = project.logs / "server.log"
    settings = {f"SPRY_{name.upper()}": str(value) for name, value in part.settings.items()}
    running.start(SERVER, log, *arguments, **{_OFTEN[0]: _OFTEN[1]} | settings)
    wait_for_server(project.url, lambda: running.check(SERVER), log, project.admin_token)
    return True


def settle_port(project: Project, *, write: bool = True) -> None:
    """Another port where something has the project's, which would answer in place of it, and no device knows it yet.

    Args:
        project: whose server it is.
        write: into its file; else it is only refused what cannot be settled.
    """
    part = project.file.server
    try:
        check_free(part.host, part.port)
    except ServerConfigError:
        port = None if project.server.exists() else free_port(part.host)
        if port is not None and not write:
            return
        if port is None or not write_port(project.folder, port):
            raise ProjectError(
                f"the server cannot listen on {part.host}, port {part.port}: another program has it, or it is none of "
                f"this machine; end what listens there, or change it in {file.FILE}, and tell devices"
            ) from None
        project.file = file.read(project.folder / file.FILE)


def start_devices(project: Project, running: Running, count: int, token: str) -> None:
    """Clients with a slice of the rows each; those that are there stay."""
    names = [f"trial-{number}" for number in range(1, count + 1)]
    _deal(project, names)
    ca = ["--ca", str(project.path(project.file.server.tls_cert))] if project.file.server.tls_cert else []
    for name in names:
        if name not in running.names:
            running.start(
                name, project.logs / f"{name}.log", "join", "--server", project.url, "--name", name, *ca,
                "--home", str(project.devices / name / "home"), "--data", str(_rows_of(project, name)),
                "--threads", "1", "--bad-rows", "skip", SPRY_TOKEN=token, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
            )  # fmt: skip


def _rows_of(project: Project, name: str) -> Path:
    return project.devices / name / "data.jsonl"


def _deal(project: Project, names: list[str]) -> None:
    """Rows dealt out as cards are, in an order of chance that is the same each time."""
    if all(_rows_of(project, name).is_file() for name in names):
        return
    source = project.path(project.file.data.train)
    try:
        rows = source.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise ProjectError(f"{source} cannot be read: {error.strerror}; trial devices learn from its rows") from None
    if len(rows) < LEAST_ROWS * len(names):
        raise ProjectError(f"{source} has {len(rows)} rows, too few for {len(names)} devices: start fewer (--try)")
    random.Random(0).shuffle(rows)  # noqa: S311 -- no secret
    for number, name in enumerate(names):
        files.write(_rows_of(project, name), b"".join(rows[number :: len(names)]))
