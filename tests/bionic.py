"""Loads libraries that were made for Android on x86-64 into a process of this machine, as far as tests need it."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tests.elf import DYNAMIC, Library

FOR_ANDROID = ("libc.so", "libm.so", "libdl.so", "liblog.so", "libandroid.so")
RENAMED = ("sysconf", "sigfillset", "fflush", "fputc", "fputs", "fwrite", "vfprintf", "fprintf")
"""What glibc has under the same name, and otherwise; bionic.c has it with a capital letter."""
VERSIONS = (0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF)
NOTHING = 0x60000001
"""A tag of a library's dynamic part that glibc passes over."""


def loadable(source: Path, folder: Path) -> Path:
    """A folder with the libraries of another, for LD_LIBRARY_PATH; skips where no compiler is."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc on PATH to stand in for Android's C library")
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.so"):
        (folder / file.name).write_bytes(adapted(file.read_bytes()))
    for name in FOR_ANDROID:
        code = [Path(__file__).with_name("bionic.c")] if name == "libc.so" else ["-x", "c", "/dev/null"]
        linked = ["-Wl,-soname," + name, "-Wl,--no-as-needed", "-lm"]
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", folder / name, *code, *linked], check=True)
    return folder


def adapted(content: bytes) -> bytes:
    """Without the versions of Android's symbols, which glibc's have not, and with the names of bionic.c."""
    found = bytearray(content)
    table = next(section for section in Library(content).sections if section.kind == DYNAMIC)
    for at in range(table.offset, table.offset + table.size, 16):
        if struct.unpack_from("<Q", found, at)[0] in VERSIONS:
            struct.pack_into("<Q", found, at, NOTHING)
    for name in RENAMED:
        found = found.replace(b"\0%s\0" % name.encode(), b"\0%s\0" % name.capitalize().encode())
    return bytes(found)
