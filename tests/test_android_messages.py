"""The Java records of messages and of a manifest are those that Python describes."""

import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[1] / "android_demo" / "core"


@pytest.mark.parametrize("script", ["messages.py", "manifest.py"])
def test_javas_records_are_written_from_pythons(script):
    command = [sys.executable, str(CORE / script), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
