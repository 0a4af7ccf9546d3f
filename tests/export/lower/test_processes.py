"""The same bytes from any process, of two runtimes; whole exports to ONNX are compared in `test_cli`."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch

from export.lower.target import lowering
from tests.export.lower.shaped import BATCH, LENGTH, segment_programs
from tests.export.models import Chain

RUNTIMES = {"executorch": "int8", "torchscript": "int4"}


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """Lower in a process that has another hash seed and has traced nothing before."""
    code = "from tests.export.lower.test_processes import digests; print(*digests())"
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=300, env=environment)
    return dict(zip(RUNTIMES, done.stdout.split()[-len(RUNTIMES) :], strict=True))


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    return dict(zip(RUNTIMES, digests(), strict=True))


def digests() -> list[str]:
    """Return the digest of a block's file for each runtime."""
    chain, found = Chain.build("bert", "seq-cls", "lora", batch=BATCH, length=LENGTH), []
    programs = segment_programs(chain, 2)[:2]
    for runtime, precision in RUNTIMES.items():
        (content,) = lowering(runtime).lower("block.1", programs, chain.captured.stored, precision).files.values()
        found.append(hashlib.sha256(content).hexdigest())
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_another_process_writes_the_same_bytes(here, elsewhere, runtime):
    assert here[runtime] == elsewhere[runtime]
