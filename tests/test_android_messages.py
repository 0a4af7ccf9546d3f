"""The Java records of messages are those that the protocol says."""

import subprocess
import sys
from pathlib import Path

CORE = Path(__file__).parents[1] / "android_demo" / "core"


def test_javas_messages_are_written_from_pythons():
    command = [sys.executable, str(CORE / "messages.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
