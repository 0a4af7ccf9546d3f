"""A command behind a bad network: its packets to this side, and back, are delayed and some are lost.

    unshare --net python benchmarks/link.py --loss 0.05 --delay 50 -- COMMAND ...

The command runs in a network namespace of its own, whose one way out is a device of this program's (TUN). What is sent
into it comes out in the namespace that this program was started in, at 10.77.0.1, after the delay, or never. That is
what `tc` does with `netem`, which not every kernel has. The last line that it prints tells how many packets there were,
and how many were lost. Needs root, /dev/net/tun, and `ip` of iproute2.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence

NEAR, FAR = "10.77.0.1", "10.77.0.2"
FAR_COMMAND = [sys.executable, __file__]
NEW_NETWORK = 0x40000000
SET_DEVICE, TUN, NO_HEADER = 0x400454CA, 0x0001, 0x1000
LARGEST = 65536


def device(name: str, address: str) -> int:
    """An end of the link, in the namespace that this process is in."""
    end = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(end, SET_DEVICE, struct.pack("16sH", name.encode(), TUN | NO_HEADER))
    for command in (["addr", "add", f"{address}/30", "dev", name], ["link", "set", name, "up"]):
        subprocess.run(["ip", *command], check=True)
    return end


def far_side(back: socket.socket, command: Sequence[str]) -> None:
    """Leaves this network, sends the end of the link to the other side and becomes the command."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace can be made here")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    socket.send_fds(back, [b"end"], [device("spry-far", FAR)])
    os.execvp(command[0], list(command))


def relay(ends: Sequence[int], child: int, loss: float, delay: float) -> int:
    """Carries packets until the command has ended; its exit code."""
    waiting: list[tuple[float, int, int, bytes]] = []
    chance = random.Random(1)
    packets = lost = 0
    while True:
        pause = 0.1 if not waiting else min(max(waiting[0][0] - time.monotonic(), 0), 0.1)
        for end in select.select(ends, [], [], pause)[0]:
            packet = os.read(end, LARGEST)
            packets += 1
            if chance.random() < loss:
                lost += 1
                continue
            other = ends[1] if end == ends[0] else ends[0]
            heapq.heappush(waiting, (time.monotonic() + delay, packets, other, packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(waiting)
            os.write(end, packet)
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            print(json.dumps({"event": "link", "packets": packets, "lost": lost}), flush=True)
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss", type=float, default=0.05, help="of packets, each way")
    parser.add_argument("--delay", type=float, default=50.0, help="milliseconds, each way")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[options.command[:1] == ["--"] :]
    near = device("spry-near", NEAR)
    here, there = socket.socketpair()
    child = os.fork()
    if not child:
        far_side(there, command)
    far = socket.recv_fds(here, 8, 1)[1][0]
    sys.exit(relay([near, far], child, options.loss, options.delay / 1000))


if __name__ == "__main__":
    main()
