"""Run a board's client where there is no board: emulated, with little memory, behind a bad network.

    python benchmarks/boards.py --bundle bundle/ --data DATA/snips
    python benchmarks/boards.py --bundle bundle/ --data DATA/snips --only memory --limit 128

- emulated: `spry join` for arm64 under qemu-user, in a Debian of its own (tests/arm64.sh makes it, once), with ONNX
  Runtime for that machine; and the same jobs by a client of this machine, in modes epoch and iteration. How far apart
  are the adapters, and how far did they move? Seconds and memory are the emulation's, which no board has.
- memory: `spry join` in a control group that has no more memory than `--limit` says, of 10^6 bytes and without swap.
  A library's pages that other processes here have read already count for those, not for the group.
- network: `spry join` in a network namespace behind a link that loses and delays packets (link.py).

What cannot be had here is left out and named. Ends with 1 when a client failed, or adapters are further apart than
`--apart`.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import requires
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fleet import SPRY, Client, Server, machine, read_rows, shape_of, write_rows
from link import FAR_COMMAND, NEAR
from packaging.requirements import Requirement
from safetensors.numpy import load

from server.jobs.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).parent.parent
QEMU = "qemu-aarch64-static"
PROCESSOR = "cortex-a72"
"""A Raspberry Pi 4's. The newest there is would check pointers at each call, which takes an emulator longest."""
CACHE = Path(os.environ.get("SPRY_BOARDS") or Path.home() / ".cache/spry/boards")
START = "from edge_client.commands.cli import main; main()"
APART = 1e-3
PLAIN = {"units": {"kind": "fedavg"}, "head": {"kind": "fedavg"}}
"""The server's weights move by what it is sent, and nothing else."""
MODES: dict[str, dict[str, Any]] = {
    # A tiny model's features hardly vary, so that a step by them makes much of how each side rounds.
    "epoch": {"training": {"epochs": 2, "learning_rate": 0.01}, "optimizers": PLAIN, "measure_features": False},
    "iteration": {"training": {"mode": "iteration", "iterations": 3, "learning_rate": 0.01}, "optimizers": PLAIN},
}
AS_STARTED = {"epoch": PRESETS["auto"], "iteration": {"training": {"mode": "iteration", "iterations": 3}}}
"""Jobs as `spry job create` makes them: true gradients as deep as the device's memory allows."""
GROUPS = Path("/sys/fs/cgroup")


class Missing(Exception):
    """This machine lacks what a check needs."""


# --- a board that is emulated ---


def wanted() -> list[str]:
    """List what the extra `onnx` installs on a board, without this project."""
    requirements = [Requirement(line) for line in requires("spry-edge") or ()]
    board = {"platform_machine": "aarch64", "python_version": "3.13"}
    extras = [board | {"extra": extra} for extra in ("", "onnx")]
    needed = [one for one in requirements if one.marker is None or any(map(one.marker.evaluate, extras))]
    return sorted({f"{one.name}{one.specifier}" for one in needed})


def arm64() -> Path:
    """The folder with an arm64 Debian, made where it is not there."""
    if shutil.which(QEMU) is None:
        raise Missing(f"{QEMU} is not here: apt install qemu-user-static")
    folder = CACHE / "arm64"
    made = subprocess.run([ROOT / "tests/arm64.sh", folder, *wanted()], capture_output=True, text=True, check=False)
    if made.returncode:
        why = (made.stderr.strip() or "a registry gave no answer in time").splitlines()[-1]
        raise Missing(f"an arm64 Debian cannot be made here: {why}")
    return folder


def packages(work: Path) -> Path:
    """This checkout as a device has it: unpacked from its wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(work)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    (wheel,) = work.glob("spry_edge-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work / "spry")
    return work / "spry"


@dataclass(frozen=True)
class Device:
    """The command line of a client."""

    spry: Sequence[str] = tuple(SPRY)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


def board(work: Path) -> Device:
    """A client of an arm64 Debian."""
    root = arm64()
    path = os.pathsep.join(map(str, (packages(work), root / "wheels")))
    emulator = shutil.which(QEMU) or QEMU, "-cpu", PROCESSOR, "-L", str(root)
    return Device((*emulator, str(root / "usr/bin/python3"), "-c", START), {"PYTHONPATH": path})


# --- jobs ---


class Desk:
    """A server, and jobs that one client does after the other."""

    def __init__(self, options: argparse.Namespace, folder: Path, host: str = "127.0.0.1") -> None:
        self.options = options
        self.folder = folder
        self.server = Server(folder, host=host, retry_seconds=0.2, tick_seconds=0.05)
        self.data = write_rows(folder / "rows.jsonl", read_rows(options.data / "train.jsonl", options.examples))
        with self.server.administrator() as admin:
            self.bundle = admin.upload_bundle(options.bundle)
            self.token = admin.post("/v1/tokens", {"uses": 10})["token"]

    def job(self, name: str, settings: Mapping[str, Any]) -> str:
        training = {**shape_of(self.options.bundle), **settings["training"]}
        values = {
            "per_round": 1, "minimum": 1, "over_selection": 1, "rounds": self.options.rounds, "seed": 1,
            **settings, "training": training,
        }  # fmt: skip
        with self.server.administrator() as admin:
            admin.post("/v1/jobs", {"name": name, "bundle": self.bundle, "settings": values})
        return name

    def trained(self, name: str, device: Device, rounds: int, *options: str) -> dict[str, float]:
        """Run a new client's rounds, and measure what they took."""
        given = "--rounds", str(rounds), "--holdout", "0", *options
        started = time.monotonic()
        client = Client(
            self.server, self.folder / name, self.data, self.token, *given, spry=device.spry, **device.environment
        )
        try:
            while client.running and time.monotonic() - started < self.options.timeout:
                client.look()
                time.sleep(0.05)
            seconds = time.monotonic() - started
            if client.process.poll() != 0:
                raise SystemExit(f"the client {name} ended with {client.process.poll()}:\n{client.log.read_text()}")
        finally:
            client.kill()
        return {"seconds": round(seconds, 1), "MB": round(client.peak / 1e6, 1)}

    def adapter(self, name: str) -> dict[str, np.ndarray]:
        with self.server.administrator() as admin:
            archive = zipfile.ZipFile(io.BytesIO(admin.bytes(f"/v1/jobs/{name}/adapter")))
        return load(archive.read(next(n for n in archive.namelist() if n.endswith("adapter_model.safetensors"))))

    def ended(self, name: str) -> bool:
        with self.server.administrator() as admin:
            return admin.get(f"/v1/jobs/{name}")["state"] == "ended"


@contextmanager
def desk(options: argparse.Namespace, folder: Path, host: str = "127.0.0.1") -> Generator[Desk]:
    opened = Desk(options, folder, host)
    try:
        yield opened
    finally:
        opened.server.stop()


def farthest(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    return max(float(np.abs(one[name] - value).max()) for name, value in other.items())


def emulated(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same jobs by an arm64 client and then by one of this machine: their tasks have the same seeds."""
    started = time.monotonic()
    devices = {"arm64": board(folder), "here": Device()}
    prepared = round(time.monotonic() - started, 1)
    told: dict[str, Any] = {"seconds to prepare": prepared}
    before = dict[str, dict[str, np.ndarray]]()
    with desk(options, folder) as opened:
        for kind, device in devices.items():  # nobody else is there, so the client takes each job that it finds
            names = [opened.job(f"{mode}-{kind}", settings) for mode, settings in MODES.items()]
            before = {mode: opened.adapter(name) for mode, name in zip(MODES, names, strict=True)}
            told[kind] = opened.trained(kind, device, options.rounds * len(MODES))
            assert all(map(opened.ended, names)), names
        for mode in MODES:
            ours, expected = (opened.adapter(f"{mode}-{kind}") for kind in devices)
            told[mode] = {"moved": farthest(expected, before[mode]), "apart": farthest(ours, expected)}
    return told | {"ok": all(told[mode]["apart"] <= options.apart < told[mode]["moved"] for mode in MODES)}


# --- little memory ---


@dataclass(frozen=True)
class Group:
    """A control group with a limit, of whichever version this kernel has."""

    folder: Path
    limit: str
    swap: str
    highest: str

    def run(self, command: Sequence[str]) -> list[str]:
        """The command, which joins the group before it begins."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.folder / "cgroup.procs"), *command]

    def number(self, name: str) -> int:
        return int((self.folder / name).read_text().split()[-1])


@contextmanager
def group(limit: int) -> Generator[Group]:
    """Make a control group with `limit` bytes of memory, cached files counted, and no swap."""
    old = (GROUPS / "memory/memory.limit_in_bytes").exists()
    folder = (GROUPS / "memory" if old else GROUPS) / f"spry-{os.getpid()}"
    made = (
        Group(folder, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes")
        if old
        else Group(folder, "memory.max", "memory.swap.max", "memory.peak")
    )
    try:
        folder.mkdir()
        (folder / made.limit).write_text(str(limit))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        raise Missing(f"no control group can be made here: {error}") from None
    with suppress(OSError):  # some kernels do not count swap
        (folder / made.swap).write_text(str(limit) if old else "0")
    try:
        yield made
    finally:
        for _ in range(50):  # its processes have ended, and the kernel may not know yet
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.1)


def memory(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both modes in so little."""
    told: dict[str, Any] = {"limit": options.limit}
    with group(options.limit * 10**6) as small, desk(options, folder) as opened:
        for mode, settings in AS_STARTED.items():
            name = opened.job(f"{mode}-small", settings)
            given = ["--max-memory", f"{options.most}MB"] if options.most else []
            told[mode] = opened.trained(name, Device(small.run(SPRY)), options.rounds, "--job", name, *given)
            told[mode] |= {"MB of the group": round(small.number(small.highest) / 1e6, 1), "ended": opened.ended(name)}
    return told | {"ok": all(told[mode]["ended"] for mode in AS_STARTED)}


# --- a bad network ---


def network(_: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both modes behind the link, in a namespace that is this run's own."""
    inside = "unshare", "--net"
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise Missing("no network namespace can be made here: it needs root, and unshare of util-linux") from None
    for needed in ("/dev/net/tun", shutil.which("ip")):
        if needed is None or not Path(needed).exists():
            raise Missing("no link can be made here: it needs /dev/net/tun, and ip of iproute2")
    own = [sys.executable, __file__, *sys.argv[1:], "--behind", "--json", "--work", str(folder)]
    done = subprocess.run([*inside, *own], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout)["network"]


def behind(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Build the link: the server on this side of the link, the client on the other."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    told: dict[str, Any] = {"loss": options.loss, "delay ms": options.delay}
    with desk(options, folder, host="0.0.0.0") as opened:
        for mode, settings in MODES.items():
            name = opened.job(f"{mode}-far", settings)
            opened.server.url, near = f"http://{NEAR}:{opened.server.port}", opened.server.url
            device = Device([*FAR_COMMAND, "--loss", str(options.loss), "--delay", str(options.delay), "--", *SPRY])
            took = opened.trained(name, device, options.rounds, "--job", name)
            opened.server.url = near
            told[mode] = {"seconds": took["seconds"], "ended": opened.ended(name)}
            told[mode] |= carried(folder / name / "client.log")
    return told | {"ok": all(told[mode]["ended"] for mode in MODES)}


def carried(log: Path) -> dict[str, int]:
    """Read the link's packet counts when the command behind it has ended."""
    last = json.loads(log.read_text().splitlines()[-1])
    return {"packets": last["packets"], "lost": last["lost"]}


# --- all of it ---

CHECKS: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "emulated": emulated,
    "memory": memory,
    "network": network,
}


def checked(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    try:
        return CHECKS[name](options, folder)
    except Missing as error:
        return {"left out": str(error)}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", choices=CHECKS, action="append", help="this check, and others that are named")
    parser.add_argument("--rounds", type=int, default=2, help="of each job")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--apart", type=float, default=APART, help="how far a number of two adapters may be apart")
    parser.add_argument("--limit", type=int, default=128, help="MB of the control group")
    parser.add_argument("--most", type=int, help="MB that the client there is told to take at most")
    parser.add_argument("--loss", type=float, default=0.05, help="of packets, each way")
    parser.add_argument("--delay", type=float, default=50.0, help="milliseconds, each way")
    parser.add_argument("--timeout", type=float, default=280.0, help="seconds that a client may take")
    parser.add_argument("--behind", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", type=Path, help="a folder to keep logs in")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    told: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        if options.behind:
            told["network"] = behind(options, work)
        else:
            told = {name: checked(name, options, work / name) for name in options.only or CHECKS}
    print(json.dumps(told) if options.json else shown(told))
    sys.exit(not all(one.get("ok", True) for one in told.values()))


def shown(told: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [machine()]
    for name, figures in told.items():
        lines += [name, *(f"  {key:<20} {value}" for key, value in figures.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
