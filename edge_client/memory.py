"""The memory of this process, as the system reports it."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .errors import SpryError

_RESET_PEAK = Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE, _KEPT = 4 << 20, 16 << 20
"""Bytes of a block, and at the heap's end. What a step takes anew is smaller: with 128 kB for either it took a quarter
longer."""

_LONG = 1.5
"""Seconds of work that is not repeated without need."""


class MeasureError(SpryError):
    """Memory could not be measured."""


def resident(field: str = "VmRSS", process: int | str = "self") -> int:
    """Return a process's memory now (`RssAnon`, `RssFile`: its parts), or by `VmHWM` its peak since a reset."""
    status = Path(f"/proc/{process}/status")
    for line in status.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise MeasureError(f"{status} has no {field}, so memory cannot be measured on this machine: use one with Linux")


def reset_peak() -> None:
    _RESET_PEAK.write_text("5")


def peak_above(anonymous: int, work: Callable[[], object], rounds: int = 2) -> int:
    """Return the highest that `work` takes above `anonymous` bytes, mapped files left out.

    Weights that a runtime maps are read in while it first runs; they are the file's, and the system may drop them. So
    the first run is not counted, and what is mapped after it is subtracted. Long work that maps nothing runs once, and
    other long work twice.
    """
    mapped, started = resident("RssFile"), time.monotonic()
    reset_peak()
    work()
    is_long = time.monotonic() - started > _LONG
    if not is_long or resident("RssFile") - mapped > _LARGE:
        reset_peak()
        for _ in range(1 if is_long else rounds):
            work()
    return max(resident("VmHWM") - resident("RssFile") - anonymous, 0)


class Peaks(NamedTuple):
    """Bytes that work takes at most, above what the process had before."""

    own: int
    """Mapped files left out."""
    mapped: int
    """The memory with mapped files: pages that the work is the first to read count too."""


def peaks_above_now(work: Callable[[], object]) -> Peaks:
    """Measure the memory of `work` above what this process takes now, with and without mapped files."""
    before, anonymous = resident(), resident("RssAnon")
    own = peak_above(anonymous, work)
    return Peaks(own, max(resident("VmHWM") - before, 0))


def peak_above_now() -> Callable[[], int]:
    """Start to measure peak memory: the result is how far it has risen above what this process takes now."""
    try:
        before = resident()
        reset_peak()
    except (OSError, SpryError):
        return lambda: 0
    return lambda: max(resident("VmHWM") - before, 0)


def return_freed_blocks() -> None:
    """Return large blocks of this process to the system as soon as they are freed, from now on.

    Left alone glibc takes larger and larger blocks from its heap, up to 32 MB, once it has seen one freed: programs
    that are loaded and let go in turn leave holes there, which it keeps. Threads have heaps of their own besides, for
    no gain.
    """
    with suppress(OSError, AttributeError):  # glibc alone has it
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_M_ARENA_MAX, 1)


def trim_memory() -> None:
    """Give what is not used any more back to the system."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
