"""Test what the allocator keeps of blocks that were freed, in a process of its own."""

import platform
import subprocess
import sys

import pytest

HELD = """
import sys
import numpy as np
from edge_client.memory import resident, return_freed_blocks
if sys.argv[1] == "returned":
    return_freed_blocks()
before = resident("RssAnon")
np.ones(20 << 20, np.uint8)  # glibc takes blocks of up to this size from its heap now
blocks, small = [], []
for _ in range(10):  # as programs that are loaded in turn, with something small behind each that stays
    blocks.append(np.ones(6 << 20, np.uint8))
    small.append(bytearray(5000))
del blocks
print(resident("RssAnon") - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no such threshold")
@pytest.mark.parametrize(("kind", "least", "most"), [("returned", -1 << 20, 1 << 20), ("kept", 58 << 20, 64 << 20)])
def test_large_blocks_go_back_to_the_system_as_soon_as_they_are_freed(kind, least, most):
    done = subprocess.run([sys.executable, "-c", HELD, kind], capture_output=True, text=True, check=True)
    assert least <= int(done.stdout) <= most
