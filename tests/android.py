"""The Android library on this machine's JVM, with programs that run in a worker process of the Python package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CORE = Path(__file__).parents[1] / "android_demo" / "core"
JARS = Path(os.environ.get("SPRY_JARS", "/usr/share/java"))
JSON = JARS / "com.android.json.jar"
CRYPTO = JARS / "bcprov.jar"
NEEDED = (JSON, CRYPTO, JARS / "junit-platform-console-standalone.jar")


def classpath(build: Path) -> str:
    """The library and its tests, compiled into a folder if they are not; skips where that is not possible."""
    if shutil.which("javac") is None or not all(jar.exists() for jar in NEEDED):
        pytest.skip("no Java here: apt install openjdk-17-jdk-headless libandroid-json-java libbcprov-java junit5")
    if not (build / "tests").exists():
        command = [str(CORE / "build.sh"), "--compile"]
        variables = os.environ | {"SPRY_BUILD": str(build)}
        made = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
    return os.pathsep.join(map(str, (build / "library", build / "tests", JSON, CRYPTO)))


def java(classes: str, main: str, *arguments: object) -> list[str]:
    """The command of a main class; start it with `environment`."""
    return ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", classes, main, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the environment in which a JVM finds what runs the programs."""
    worker = CORE / "src" / "test" / "python" / "program_worker.py"
    return os.environ | {"SPRY_PYTHON": sys.executable, "SPRY_WORKER": str(worker)}


def said(printed: str) -> list[Any]:
    """A program's lines of JSON; what Unicode counts as a line's end besides may stand in an answer."""
    return [json.loads(line) for line in printed.split("\n") if line]
