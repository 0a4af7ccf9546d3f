"""What eager PyTorch costs on a bundle's shapes: LoRA backprop, `torch.func.jvp`, two-pass central difference.

Each runs in a process of its own (`export.check.eager`), so that this module costs nothing to import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from export.errors import ExportError

for _library in ("torch", "transformers", "peft"):
    if find_spec(_library) is None:
        raise ImportError(f"the baselines need {_library}", name=_library)

BACKPROP, JVP, CENTRAL = "backprop", "func.jvp", "central"
BASELINES = (BACKPROP, JVP, CENTRAL)


def measure(bundle: Path, batch: int, length: int, rounds: int, threads: int) -> list[dict[str, Any]]:
    """Rows of `spry bench step`."""
    sizes = [str(number) for number in (batch, length, rounds, threads)]
    return [_row([sys.executable, "-m", "export.check.eager", str(bundle), name, *sizes], name) for name in BASELINES]


def _row(command: list[str], name: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ExportError(f"the baseline {name} failed: {last[0]}; leave it out with --no-baselines")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row
