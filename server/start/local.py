"""Start the server and trial devices for `spry up` on this machine."""

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
_TRIES = 5
LEAST_ROWS = 2
"""The fewest rows of a trial device: one to learn from, and one that it holds back."""
_OFTEN = "SPRY_RETRY_SECONDS", "2"
"""Trial devices are near; they may ask often."""


def publisher(project: Project) -> str:
    """Return the public key of the project's bundles, made with the first."""
    if not project.publisher.is_file():
        files.make_folder(project.kept)
        write_key(project.publisher)
    return keys.public_of(keys.read_secret(project.publisher))


def start_server(project: Project, running: Running) -> bool:
    """Start it where it does not run, and say whether that was so.

    Another program may take the port while it starts. One that no device knows yet then gets another port.
    """
    if SERVER in running.names:
        return False
    is_new = not project.server.exists()
    for _ in range(_TRIES):
        if _starts(project, running, is_new=is_new):
            return True
    raise ProjectError(f"other programs took {_TRIES} ports while the server started; run `spry up` again")


def _starts(project: Project, running: Running, *, is_new: bool) -> bool:
    """False where a new one's port was taken meanwhile, and it has another now."""
    try:
        _start(project, running)
    except ProjectError:
        if not (is_new and _is_taken(project) and _move(project)):
            raise
        return False
    return True


def _start(project: Project, running: Running) -> None:
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


def settle_port(project: Project, *, write: bool = True) -> None:
    """Another port where something has the project's, which would answer in place of it, and no device knows it yet.

    Args:
        project: whose server it is.
        write: into its file; else it is only refused what cannot be settled.
    """
    if not _is_taken(project):
        return
    part = project.file.server
    is_movable = not project.server.exists() and free_port(part.host) is not None
    if not is_movable or (write and not _move(project)):
        raise ProjectError(
            f"the server cannot listen on {part.host}, port {part.port}: another program has it, or it is none of "
            f"this machine; end what listens there, or change it in {file.FILE}, and tell devices"
        )


def _is_taken(project: Project) -> bool:
    part = project.file.server
    try:
        check_free(part.host, part.port)
    except ServerConfigError:
        return True
    return False


def _move(project: Project) -> bool:
    """Write the next free port into the project's file; False where there is none, or no line for it."""
    port = free_port(project.file.server.host)
    if port is None or not write_port(project.folder, port):
        return False
    project.file = file.read(project.folder / file.FILE)
    return True


def start_devices(project: Project, running: Running, count: int, token: str) -> None:
    """Start clients with a slice of the rows each, and leave those that run alone.

    They learn from all of their rows, as the project's held-out rows measure what they learn.
    """
    names = [f"trial-{number}" for number in range(1, count + 1)]
    _deal(project, names)
    ca = ["--ca", str(project.path(project.file.server.tls_cert))] if project.file.server.tls_cert else []
    for name in names:
        if name not in running.names:
            running.start(
                name, project.logs / f"{name}.log", "join", "--server", project.url, "--name", name, *ca,
                "--home", str(project.devices / name / "home"), "--data", str(_rows_of(project, name)),
                "--threads", "1", "--holdout", "0", "--bad-rows", "skip",
                SPRY_TOKEN=token, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
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
