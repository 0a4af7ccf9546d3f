"""A real server, by `spry serve` and by uvicorn alone, under what costs the sender nothing."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

ADMIN = "an-administrator-of-these-tests"
PATIENCE = 2.0
MOST = 1.3
"""Times the memory of the idle server."""
_MIB = 1 << 20


class Process:
    """A server in a process of its own."""

    def __init__(self, folder: Path, command: tuple[str, ...]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environment = os.environ | {
            "SPRY_DATA_DIR": str(folder / "data"), "SPRY_ADMIN_TOKEN": ADMIN, "SPRY_PATIENCE_SECONDS": str(PATIENCE),
        }  # fmt: skip
        self.log = folder / "log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command, "--port", str(self.port)], env=environment, stdout=log, stderr=log
            )
        self.url = f"http://127.0.0.1:{self.port}"
        until = time.monotonic() + 300
        while not self.is_well(1):
            assert time.monotonic() < until, self.log.read_text()
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def is_well(self, seconds: float) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/healthz", timeout=seconds).status_code == 200
        return False

    def memory(self) -> int:
        """Bytes of RAM at this moment."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def highest(self) -> int:
        (line,) = (line for line in self._status().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def connections(self) -> list[Any]:
        found = psutil.Process(self._process.pid).net_connections("tcp")
        return [one for one in found if one.status != psutil.CONN_LISTEN]

    def _status(self) -> str:
        return Path(f"/proc/{self._process.pid}/status").read_text()

    def connect(self, said: bytes = b"") -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        made.sendall(said)
        return made

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(300)


SERVE = "import uvicorn; uvicorn.main()"
SPRY = "from edge_client.commands.cli import main; main()"
COMMANDS = {
    "uvicorn": ("-m", "uvicorn", "server.app:app"),
    "serve": ("-c", SPRY, "serve"),
    "h11": ("-m", "uvicorn", "server.app:app", "--http", "h11"),
}


@pytest.fixture(scope="module", params=["uvicorn"])
def process(request, tmp_path_factory):
    running = Process(tmp_path_factory.mktemp("server"), COMMANDS[request.param])
    yield running
    running.stop()


def flood(process: Process, method: str, path: str, parts: int, part: bytes = b"x" * _MIB, **headers: str) -> int:
    """Sends a body in parts, without an end to it; gives the answer's status, or 0 where the connection was cut."""
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with process.connect(head.encode() + b"\r\n") as connection:
        with contextlib.suppress(ConnectionError):
            for _ in range(parts):
                connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        with contextlib.suppress(ConnectionError, TimeoutError):
            return int((connection.recv(100) or b"HTTP/1.1 000").split()[1])
    return 0


def test_nobody_without_a_secret_costs_memory(process):
    httpx.post(f"{process.url}/v1/devices", json={"token": "x", "name": "warm"})  # loads what it loads
    idle = process.memory()
    json_bomb = b"[" + b"{}," * 300_000
    for path in ("/v1/jobs/update/stop", "/v1/jobs", "/v1/check-in", "/v1/devices", "/v1/tasks/x/failure", "/nowhere"):
        assert flood(process, "POST", path, 100) in (0, 401, 404, 413)
        assert flood(process, "POST", path, 30, json_bomb) in (0, 401, 404, 413)
        assert flood(process, "POST", path, 100, Authorization="Bearer d-000000000000.guessed") in (0, 401, 404, 413)
    for path in (
        "/v1/tasks/update/jvps/0",
        "/v1/tasks/x/update",
        f"/v1/bundles/{'0' * 64}/a",
        f"/v1/held-out/{'0' * 64}",
    ):
        assert flood(process, "PUT", path, 200) in (0, 401)
    for start in (b"GET / HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nX: "):
        with process.connect(start) as endless, contextlib.suppress(ConnectionError):
            for _ in range(100):
                endless.sendall(b"a" * _MIB)
    trailers = b"POST /v1/devices HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    with process.connect(trailers) as endless, contextlib.suppress(ConnectionError):
        for _ in range(100):
            endless.sendall(b"x: " + b"a" * _MIB + b"\r\n")
    assert process.is_well(30)
    assert process.highest() < MOST * idle


def test_a_refused_sender_of_much_hears_why(process):
    """A client that reads only when it has sent all, as devices do."""
    response = httpx.put(f"{process.url}/v1/tasks/x/update", content=b"x" * (64 * _MIB))
    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")


@pytest.mark.parametrize("process", ["uvicorn", "serve", "h11"], indirect=True)
def test_half_sent_requests_are_given_up(process):
    idle = process.memory()
    head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "
    body = b"POST /v1/devices HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 400\r\n\r\n{"
    halves = [process.connect((b"", head, body)[number % 3]) for number in range(450)]
    try:
        assert process.is_well(30)
        until = time.monotonic() + 4 * PATIENCE + 60
        for half in halves:
            half.settimeout(max(0.1, until - time.monotonic()))
            with contextlib.suppress(ConnectionError):
                while half.recv(4096):
                    pass
        assert process.is_well(30)
        assert process.highest() < MOST * idle
    finally:
        for half in halves:
            half.close()


LARGE = b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"


def unread(process: Process, said: bytes) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", process.port))
    made.sendall(said)
    return made


def is_open(process: Process, connection: socket.socket) -> bool:
    """Whether the server holds it, whatever it has not read."""
    return any(one.raddr.port == connection.getsockname()[1] for one in process.connections() if one.raddr)


@pytest.mark.parametrize("process", ["uvicorn", "serve", "h11"], indirect=True)
def test_an_answer_that_is_not_taken_is_given_up(process):
    idle = process.memory()
    held = [unread(process, said) for said in (LARGE, LARGE * 3, LARGE) * 30]
    for one in held[2::3]:
        one.shutdown(socket.SHUT_WR)
    try:
        until = time.monotonic() + 300
        while any(is_open(process, one) for one in held):
            assert process.is_well(30)
            assert time.monotonic() < until
            time.sleep(0.2)
        assert process.highest() < MOST * idle
    finally:
        for one in held:
            one.close()


def test_who_reads_slowly_gets_all(process):
    with unread(process, LARGE) as reader:
        reader.settimeout(10)
        answer = reader.recv(4096)
        length = int(answer.lower().partition(b"content-length: ")[2].split()[0])
        left, began = length - len(answer.partition(b"\r\n\r\n")[2]), time.monotonic()
        while left > 0:
            came = len(reader.recv(32 << 10))
            assert came, f"{left} bytes were not sent"
            left -= came
            if time.monotonic() < began + 3 * PATIENCE:
                time.sleep(0.1)


def test_requests_are_answered_one_after_the_other(process):
    with process.connect(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 3) as connection:
        answers = b""
        while answers.count(b"ok\n") < 3:
            answers += connection.recv(4096)
    with unread(process, LARGE * 200) as greedy:
        until = time.monotonic() + 300
        while is_open(process, greedy):
            assert time.monotonic() < until
            time.sleep(0.1)


def test_strangers_leave_room_where_files_are_few(tmp_path):
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200)); {SERVE}"
    few = Process(tmp_path, ("-c", limited, "server.app:app"))
    held = [few.connect(b"GET / HTTP/1.1\r\nX: ") for _ in range(300)]
    try:
        assert few.is_well(30)
        assert len(few.connections()) < 150
    finally:
        few.stop()
        for one in held:
            one.close()


def test_an_invented_address_is_not_believed(process):
    httpx.post(
        f"{process.url}/v1/devices", json={"token": "x", "name": "y"}, headers={"X-Forwarded-For": "203.0.113.9"}
    )
    audit = httpx.get(f"{process.url}/v1/audit", headers={"Authorization": f"Bearer {ADMIN}"}).json()
    assert {entry["actor"] for entry in audit} == {"127.0.0.1"}
    assert "203.0.113.9" not in process.log.read_text()


def test_a_connection_that_is_cut_leaves_no_traceback(process):
    token = httpx.post(
        f"{process.url}/v1/tokens", json={"uses": 1}, headers={"Authorization": f"Bearer {ADMIN}"}
    ).json()["token"]
    device = httpx.post(f"{process.url}/v1/devices", json={"token": token, "name": "y"}).json()
    head = (
        "POST /v1/check-in HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 400\r\n"
        f"Authorization: Bearer {device['device']}.{device['secret']}\r\n\r\n{{"
    )
    process.connect(head.encode()).close()
    until = time.monotonic() + 300
    while "the connection was cut" not in process.log.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    assert "Traceback" not in process.log.read_text()
