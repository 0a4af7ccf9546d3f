"""The text of a systemd unit that runs `spry join` or `spry serve`, with as few rights as they need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PRIVILEGED_PORTS = 1024
_HIGH = 0.9
"""The share of the memory limit beyond which the service is slowed down and loses memory, before it is ended."""

_CONFINED = (
    "LockPersonality=yes",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "KeyringMode=private",
)  # no MemoryDenyWriteExecute: the runtimes write programs for the processor they find
_CONFINED_BY_ROOT = (
    "ProtectSystem=strict",
    "ProtectHome=read-only",  # the virtual environment and the data are often there
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectClock=yes",
    "ProtectHostname=yes",
    "ProtectControlGroups=yes",
    "ProtectKernelLogs=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelTunables=yes",
    "ProtectProc=invisible",
)


@dataclass(frozen=True)
class Service:
    """A systemd service: its command, its user and its limits."""

    description: str
    command: tuple[str, ...]
    folder: Path
    """The one place that it writes to."""
    secrets: Path
    """A file with variables, which need not exist."""
    user: str | None = None
    """The user that it runs as; None in a user's own manager."""
    memory: int | None = None
    nice: int = 0
    weight: int | None = None
    """Share of the processor when others want it too; 100 is usual."""
    files: int | None = None
    port: int | None = None
    state: str | None = None
    """The folder's name below /var/lib, where systemd is to make it."""

    def text(self) -> str:
        sections = (("Unit", self._unit()), ("Service", self._service()), ("Install", self._install()))
        return "\n".join("\n".join([f"[{name}]", *lines, ""]) for name, lines in sections)

    def _unit(self) -> Iterable[str]:
        yield f"Description={plain(self.description)}"
        if self.user is not None:
            yield "Wants=network-online.target"
            yield "After=network-online.target time-sync.target"
        yield "StartLimitIntervalSec=0"

    def _service(self) -> Iterable[str]:
        yield "Type=exec"
        yield f"ExecStart=:{' '.join(quoted(word) for word in self.command)}"  # the colon: no variables in it
        yield f"EnvironmentFile=-{plain(str(self.secrets))}"
        yield f"WorkingDirectory={plain(str(self.folder))}"
        if self.user is not None:
            yield f"User={self.user}"
        yield from ("Restart=on-failure", "RestartSec=30", "TimeoutStopSec=30")
        yield "RestartPreventExitStatus=2"  # somebody must change something first
        yield "SuccessExitStatus=130"  # stopped while it worked
        yield from self._limits()
        yield from ("UMask=0077", "NoNewPrivileges=yes", *_CONFINED)
        if self.user is not None:
            yield from self._by_root()

    def _limits(self) -> Iterable[str]:
        if self.memory is not None:
            yield f"MemoryHigh={round(self.memory * _HIGH)}"
            yield f"MemoryMax={self.memory}"
        if self.nice:
            yield f"Nice={self.nice}"
        if self.weight is not None:
            yield f"CPUWeight={self.weight}"
        if self.files is not None:
            yield f"LimitNOFILE={self.files}"

    def _by_root(self) -> Iterable[str]:
        """List the lines that a user's own manager may not have."""
        yield from _CONFINED_BY_ROOT
        if self.state is not None:
            yield from (f"StateDirectory={self.state}", "StateDirectoryMode=0700")
        else:
            yield f"ReadWritePaths={quoted(str(self.folder))}"
        low = self.port is not None and self.port < PRIVILEGED_PORTS
        yield f"CapabilityBoundingSet={'CAP_NET_BIND_SERVICE' if low else ''}"
        if low:
            yield "AmbientCapabilities=CAP_NET_BIND_SERVICE"

    def _install(self) -> Iterable[str]:
        yield f"WantedBy={'default' if self.user is None else 'multi-user'}.target"


def quoted(word: str) -> str:
    """Return a word of a line that is split into words; systemd reads `%` as a specifier."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    escaped = escaped.replace("%", "%%")
    plain_ = escaped == word and word and not set(word) & set(" ';#")
    return word if plain_ else f'"{escaped}"'


def plain(text: str) -> str:
    """Return a value that takes the rest of its line."""
    return text.replace("%", "%%").replace("\n", " ")


def variable(name: str, value: str) -> str:
    """Return a line of a file of variables."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
    return f'{name}="{escaped}"\n'
