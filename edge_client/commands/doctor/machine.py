"""Check any machine for `spry doctor`: system, memory, disk, libraries, runtimes and the user's conditions.

Other packages add a `DoctorCheck` of their own by an entry point of the group ``spry.checks``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from edge_client import __version__
from edge_client.client.conditions import Machine
from edge_client.distribution import install_command
from edge_client.format import size
from edge_client.runtimes.processors import cpu_features, named
from edge_client.runtimes.runtime import RUNTIMES, Listing, available
from edge_client.store.jobs import default_home

Verdict = Literal["ok", "warning", "problem"]
LEAST_DISK, LITTLE_DISK = 200 * 10**6, 10**9
_LEAST_MEMORY, _LITTLE_MEMORY = 100 * 10**6, 250 * 10**6
"""A small encoder in int8 takes 70 MB when it waits and 160 MB when it trains."""
_LIBRARIES = "numpy", "tokenizers", "safetensors"
_LIGHT = {"onnxruntime", "executorch_numpy_runtime"}
"""Libraries that are cheap enough to be loaded for a look."""
_LOAD_SECONDS = 60
_64_BITS = 2**32


class Finding(msgspec.Struct, frozen=True):
    """One line of the result."""

    name: str
    state: Verdict
    found: str
    advice: str = ""
    """The advice, unless all is well."""


class Scope(NamedTuple):
    """The things that the user wants checked beside this machine."""

    home: Path | None = None
    server: str | None = None
    ca: Path | None = None
    data: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


class DoctorCheck(Protocol):
    """A function that looks at something and never raises: what it cannot find out is a finding too."""

    def __call__(self, asked: Scope, /) -> Iterable[Finding]:
        """Run the check; gives nothing where it was not asked."""
        ...


def machine(asked: Scope) -> Iterator[Finding]:
    """Check this machine as a device that takes part."""
    yield Finding("spry", "ok", f"{__version__}, Python {platform.python_version()}")
    yield _system()
    yield _memory(Machine())
    home = asked.home or default_home()
    yield writable("home", home)
    yield disk("disk of the home", home)
    yield _libraries()
    yield from _runtimes(needed=asked.data is None)
    yield from _conditions(Machine())


def disk(name: str, folder: Path) -> Finding:
    """Report how much is free on the folder's disk."""
    free = shutil.disk_usage(_existing(folder)).free
    room = f"{size(free)} free at {folder}"
    if free >= LITTLE_DISK:
        return Finding(name, "ok", room)
    state = "warning" if free >= LEAST_DISK else "problem"
    return Finding(name, state, room, "free some space, or use a folder on another disk")


def writable(name: str, folder: Path) -> Finding:
    """Check without making anything that the folder, or the one that it would be made in, can be written."""
    there = _existing(folder)
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(name, "ok", f"{folder} " + ("can be written" if folder.exists() else "will be made"))
    return Finding(
        name, "problem", f"{folder} cannot be written", f"run: sudo chown -R $USER {there}, or choose another"
    )


def _existing(folder: Path) -> Path:
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())


def _system() -> Finding:
    described = f"{platform.system()} {platform.release()} on {platform.machine()}, {os.cpu_count()} cores"
    if sys.maxsize < _64_BITS:
        advice = "install the 64-bit system (such as Raspberry Pi OS 64-bit): the runtimes have no 32-bit packages"
        return Finding("system", "problem", f"{described}, but a 32-bit Python", advice)
    features = cpu_features(_read("/proc/cpuinfo"))
    bundles = f"bundles for {named(platform.machine(), features)}"
    system = f"{described}, {', '.join(features) or 'CPU features unknown'}: {bundles}"
    if platform.machine() == "x86_64" and features and "AVX2" not in features:
        return Finding("system", "warning", system, "without AVX2 steps take several times as long; nothing to install")
    return Finding("system", "ok", system)


def _memory(machine: Machine) -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = machine.free_memory()
    swap = re.search(r"^SwapTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    free_text = "unknown" if free is None else size(free)
    amounts = f"{size(total)}, {free_text} available, {size(int(swap[1]) * 1024) if swap else 'unknown'} swap"
    if free is None or free >= _LITTLE_MEMORY:
        return Finding("memory", "ok", amounts)
    advice = "stop other programs, add swap, or give --max-memory (docs/client.md); a small encoder trains in 150 MB"
    return Finding("memory", "warning" if free >= _LEAST_MEMORY else "problem", amounts, advice)


# --- libraries and runtimes ------------------------------------------------------------------------------------------


def _libraries() -> Finding:
    """Loaded in another process: one built for another processor would end this one."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    if why := _fails_to_load(*_LIBRARIES):
        return Finding("libraries", "problem", f"{versions}: {why}", f"run: {install_command(again=True)}")
    return Finding("libraries", "ok", versions)


def _runtimes(*, needed: bool) -> Iterator[Finding]:
    installed = available()
    for number, (name, listing) in enumerate(RUNTIMES.items()):
        if name in installed:
            yield _runtime(name, listing.used)
        elif installed or number:
            yield Finding(f"runtime {name}", "ok", f"not installed; one runtime is enough ({listing.command()})")
        else:
            state = "problem" if needed else "warning"
            why = "a device needs a runtime" if needed else "a server needs one to evaluate held-out examples"
            yield Finding(f"runtime {name}", state, f"not installed, and {why}", f"run: {listing.command()}")


def _runtime(name: str, listing: Listing) -> Finding:
    library = listing.library
    installed = f"{library} {_version(library)}"
    if library not in _LIGHT:
        return Finding(f"runtime {name}", "ok", f"{installed} is installed (not loaded: that takes long)")
    if why := _fails_to_load(library):
        advice = f"run: {listing.command(again=True)}; or take another version of {library}"
        return Finding(f"runtime {name}", "problem", f"{installed}: {why}", advice)
    return Finding(f"runtime {name}", "ok", f"{installed} loads")


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "(not installed)"


def _fails_to_load(*libraries: str) -> str:
    """Say why libraries cannot be imported; empty when they can."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import {', '.join(libraries)}"],
            capture_output=True, text=True, timeout=_LOAD_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode < 0:
        return f"loading it ends with {signal.Signals(-done.returncode).name}: it was built for another processor"
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


# --- the user's conditions -------------------------------------------------------------------------------------------


def _conditions(machine: Machine) -> Iterator[Finding]:
    power = machine.power()
    unknown = "unknown: --only-charging would keep this device out"
    yield Finding("power", "ok", unknown if power == "unknown" else f"on {power}")
    known = {
        True: "metered: --unmetered-only keeps this device out",
        False: "not metered",
        None: "NetworkManager does not say: --metered says that it costs",
    }
    yield Finding("network", "ok", known[machine.metered()])


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
