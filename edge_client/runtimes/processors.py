"""The processors that int8 products of ONNX Runtime are made for, and which of them this machine has.

x86 before VNNI adds two products of an unsigned and a signed byte in 16 bits, which overflow unless the signed one has
7 bits. Processors with VNNI, AMX or ARM's dot products add in 32 bits.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Collection
from pathlib import Path
from typing import Literal, get_args

Processor = Literal["avx2", "vnni", "amx", "arm-dotprod"]
PROCESSORS: tuple[Processor, ...] = get_args(Processor)
CPUINFO = Path("/proc/cpuinfo")
_X86 = "x86_64", "amd64"
_FEATURES = {
    "avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx_vnni": "VNNI", "amx_int8": "AMX",
    "asimd": "NEON", "neon": "NEON", "asimddp": "dot product", "i8mm": "int8 matrices", "sve": "SVE",
}  # fmt: skip


def cpu_features(cpuinfo: str) -> list[str]:
    """List the instruction sets that decide the speed of products, by their usual names."""
    listed = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    known = set(listed[1].split()) if listed else set[str]()
    return list(dict.fromkeys(name for flag, name in _FEATURES.items() if flag in known))


def named(machine: str, features: Collection[str]) -> Processor:
    """Name a processor; one of which nothing is known counts as the least of its kind."""
    if machine.lower() not in _X86:
        return "arm-dotprod"
    return "amx" if "AMX" in features else "vnni" if "VNNI" in features else "avx2"


def this_processor() -> Processor:
    """Return the name of the machine's own."""
    try:
        cpuinfo = CPUINFO.read_text()
    except OSError:
        cpuinfo = ""
    return named(platform.machine(), cpu_features(cpuinfo))


def exact(made_for: str, here: Processor) -> bool:
    """Tell whether products made for one processor are right on another."""
    return here != "avx2" or made_for in ("", "avx2")


def remark(made_for: str, here: Processor) -> str:
    """Say what is wrong with a bundle for another processor; empty where it fits."""
    if exact(made_for, here):
        return ""
    return (
        f"its int8 products are for another processor ({made_for}) and would overflow on this one: export again with "
        f"--processor {here}"
    )
