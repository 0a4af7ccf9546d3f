"""Test in processes of their own what the allocator keeps of freed blocks, and how mapped pages are counted."""

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


MAPPED = """
import mmap, sys
from edge_client.memory import highest, peaks_above_now
def read(file):
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    sum(mapped[place] for place in range(0, len(mapped), 4096))
    return mapped
with open(sys.argv[1], "rb") as file:
    before, first = highest(), read(file)
    once = highest() - before
    peaks, second = peaks_above_now(lambda: None), []
    again = peaks_above_now(lambda: second.append(read(file)))
    print(once, highest() - before, peaks.mapped, again.mapped)
"""


def test_pages_that_are_mapped_again_count_once(tmp_path):
    file, size = tmp_path / "weights.bin", 40 << 20
    file.write_bytes(bytes(size))
    done = subprocess.run([sys.executable, "-c", MAPPED, str(file)], capture_output=True, text=True, check=True)
    once, twice, nothing, again = map(int, done.stdout.split())
    assert once == pytest.approx(size, abs=2 << 20)
    assert twice == pytest.approx(size, abs=3 << 20)
    assert max(nothing, again) < 3 << 20
