"""`spry install-service`: lets systemd run `spry join` or `spry serve`, from the start of the machine on."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

from edge_client.commands.cli import installed, load, missing_extra
from edge_client.commands.join import invited
from edge_client.errors import SpryError
from edge_client.format import parse_bytes
from edge_client.store.files import make_folder, write
from edge_client.store.jobs import default_home
from edge_client.wire.addresses import checked_address

from .systemd import Service, variable

app = typer.Typer(add_completion=False, rich_markup_mode=None)
SYSTEMD = Path("/run/systemd/system")
"""There while systemd runs."""
CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
_PRIVATE = 0o600
_ABOVE_TRAINING = 150 * 10**6
"""The memory of Python, the runtime and the tokenizer beside the memory that --max-memory limits."""
_MANY_FILES = 65_536


class ServiceError(SpryError):
    """The service cannot be installed."""


class UnitFolders(NamedTuple):
    """The folders of units and their secrets."""

    units: Path
    secrets: Path
    user: bool

    @classmethod
    def of(cls, *, user: bool) -> UnitFolders:
        if not user:
            return cls(Path("/etc/systemd/system"), Path("/etc/spry"), user=False)
        configuration = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return cls(configuration / "systemd" / "user", configuration / "spry", user=True)


class Wanted(NamedTuple):
    """A command as it was written, understood."""

    name: str
    words: tuple[str, ...]
    """The command without secrets, with whole paths."""
    values: dict[str, Any]


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def install_service(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="join or serve; its own options follow.")],
    user: Annotated[bool, typer.Option("--user", help="Use your own systemd, without root.")] = False,
    run_as: Annotated[
        str | None, typer.Option(help="The user of the service; by default the one who called sudo.")
    ] = None,
    memory: Annotated[str | None, typer.Option(help="The most memory of the whole process, such as 400MB.")] = None,
    unit: Annotated[str | None, typer.Option(help="The unit's name; by default spry-join or spry-serve.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the unit.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Show the unit, write nothing.")] = False,
    start: Annotated[bool, typer.Option("--start", help="Enable and start it too.")] = False,
) -> None:
    """Let systemd run `spry join` or `spry serve` at every start, within limits, and restart it after a failure.

    Example: sudo spry install-service join --server https://spry.example.org --token T --data /home/pi/my.jsonl
    """
    place = UnitFolders.of(user=user)
    if not show:
        _check_rights(place)
    wanted = understood(what, context.args)
    name = _checked_name(unit or f"spry-{what}")
    service = service_of(wanted, name, place, _runner(place, run_as), parse_bytes(memory) if memory else None)
    if show:
        typer.echo(service.text(), nl=False)
        return
    if what == "join":
        _check_enrolment(service, wanted.values.get("token"))
    path = install(service, name, place, wanted.values.get("token"), overwrite=overwrite)
    typer.echo(f"{path} is written" + (f"; its variables are read from {service.secrets}" if what == "serve" else ""))
    if service.memory is not None and not _limits_memory():
        typer.echo(
            "warning: this kernel does not limit memory; on a Raspberry Pi add cgroup_enable=memory to "
            "/boot/firmware/cmdline.txt and start it again",
            err=True,
        )
    _next(name, place, start=start)


def understood(what: str, args: list[str]) -> Wanted:
    """Check the command by its own parser; make paths hold wherever systemd starts it."""
    if what not in ("join", "serve") or what not in installed():
        raise ServiceError(f"a service runs join or serve, got {what!r}")
    entry = installed()[what]
    try:
        command, paths = load(entry), _paths(entry.load())
    except ImportError as error:
        raise missing_extra(entry, error) or error from error
    context = command.make_context(f"spry {what}", list(args))
    words: list[str] = []
    if what == "join":
        where, token = invited(*(context.params[name] for name in ("invitation", "server", "token")))
        context.params |= {"invitation": None, "server": where, "token": token}
        words += ["--server", where]
    for option in command.params:
        value = context.params.get(option.name)
        if value is None or option.name in _TOLD or context.get_parameter_source(option.name).name == "DEFAULT":
            continue
        if option.name in paths:
            value = context.params[option.name] = Path(os.path.abspath(value))  # noqa: PTH100 -- a link stays one
            if not value.exists() and option.name != _kept(what):
                raise ServiceError(f"{option.opts[0]} names {value}, which does not exist: correct it")
        words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return Wanted(what, tuple(words), dict(context.params))


_TOLD = "token", "server"
"""Options that stand elsewhere in the unit, or nowhere."""


def _paths(function: Callable[..., object]) -> set[str]:
    """Return the options that name files and folders."""
    return {name for name, kind in get_type_hints(function).items() if Path in (kind, *get_args(kind))}


def service_of(wanted: Wanted, name: str, place: UnitFolders, runner: str | None, memory: int | None) -> Service:
    """Return the unit of a command. What it keeps goes to a folder of its own below /var/lib, unless it names one."""
    kept = _kept(wanted.name)
    named: Path | None = wanted.values.get(kept)
    own = default_home() if wanted.name == "join" else Path.home() / ".local" / "share" / "spry-server"
    folder = named or (own if place.user else Path("/var/lib") / name)
    words = wanted.words if named else (*wanted.words, f"--{kept}", str(folder))
    joins = wanted.name == "join"
    if memory is None and wanted.values.get("max_memory"):
        memory = parse_bytes(wanted.values["max_memory"]) + _ABOVE_TRAINING
    if set(sys.executable) & set("\"'\\"):
        raise ServiceError(f"systemd starts no program with quotes in its path: {sys.executable}; move the environment")
    rounds = f"takes part in the rounds of {checked_address(wanted.values['server'])}" if joins else "server"
    return Service(
        description=f"SPRY: {rounds}",
        command=(sys.executable, "-m", "edge_client", wanted.name, *words),
        folder=folder,
        secrets=place.secrets / f"{name}.env",
        user=runner,
        memory=memory,
        nice=10 if joins else 0,
        weight=20 if joins else None,
        files=None if joins else _MANY_FILES,
        port=wanted.values.get("port"),
        state=None if named or place.user else name,
    )


def install(service: Service, name: str, place: UnitFolders, token: str | None, *, overwrite: bool) -> Path:
    """Write the unit, and beside it the token that only its owner reads."""
    path = place.units / f"{name}.service"
    if path.exists() and not overwrite:
        raise ServiceError(f"{path} exists; give --overwrite to replace it, or another name with --unit")
    if service.state is None:
        make_folder(service.folder)
        if service.user is not None:
            owner = pwd.getpwnam(service.user)
            os.chown(service.folder, owner.pw_uid, owner.pw_gid)
    if token:
        write(service.secrets, variable("SPRY_TOKEN", token).encode(), mode=_PRIVATE)
    write(path, service.text().encode())
    return path


def _kept(what: str) -> str:
    """Return the option that names the one folder to be written."""
    return "home" if what == "join" else "data"


def _checked_name(name: str) -> str:
    name = name.removesuffix(".service")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ServiceError(f"a unit's name has letters, digits, dots and dashes, got {name!r}")
    return name


def _check_rights(place: UnitFolders) -> None:
    if not SYSTEMD.is_dir():
        raise ServiceError("this machine does not run systemd; --print shows the unit for one that does")
    if not place.user and os.geteuid() != 0:
        again = f"sudo {sys.executable} -m edge_client install-service …"
        raise ServiceError(f"a unit for the whole machine needs root: run it as {again}, or give --user")


def _check_enrolment(service: Service, token: str | None) -> None:
    """Refuse a service without a token or an enrolment, which would end at once."""
    if not token and not service.secrets.exists() and not any(service.folder.glob("*/identity.json")):
        raise ServiceError(
            f"no device is enrolled in {service.folder}: give --token, or --home with the folder that spry join used"
        )


def _runner(place: UnitFolders, run_as: str | None) -> str | None:
    if place.user:
        return None
    name = run_as or os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    if name == "root" and run_as is None:
        raise ServiceError("name the user that the service runs as, other than root: --run-as USER")
    try:
        return pwd.getpwnam(name).pw_name
    except KeyError:
        raise ServiceError(f"there is no user {name!r}; make it (adduser --system {name}) or name another") from None


def _limits_memory() -> bool:
    return CONTROLLERS.is_file() and "memory" in CONTROLLERS.read_text().split()


def _next(name: str, place: UnitFolders, *, start: bool) -> None:
    control = ["systemctl", "--user"] if place.user else ["systemctl"]
    commands = [[*control, "daemon-reload"], [*control, "enable", "--now", name]]
    sudo = "" if place.user else "sudo "
    if not start:
        typer.echo("start it with:")
    for command in commands:
        if start:
            _run(command)
        else:
            typer.echo(f"  {sudo}{' '.join(command)}")
    if place.user:
        typer.echo("let it run while you are not logged in: sudo loginctl enable-linger $USER")
    typer.echo(f"follow it with: journalctl {'--user ' if place.user else ''}-u {name} -f")


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ServiceError(f"{command[0]} cannot be run ({error.strerror}); start the unit by hand") from None
    if done.returncode:
        reason = done.stderr.strip()
        raise ServiceError(
            f"{' '.join(command)!r} failed: {reason}; the unit is written: put this right and run the command"
        )
