"""A server, clients and commands in processes of their own, over https, and what other tests of them share."""

import json
import random
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.benchmarks import script

WORDS = ["the ice", "the lake", "it", "a train", "on the lake", "a b c", "the ice is on the lake"]


fleet = script("fleet")


def rows(count: int, seed: int) -> list[dict]:
    rng = random.Random(seed)
    return [{"text": " ".join(rng.choices(WORDS, k=2)), "label": rng.choice(["no", "maybe", "yes"])}
            for _ in range(count)]  # fmt: skip


def spry(server, *args: str, ca: Path | None = None) -> str:
    where = ["--server", server.url, "--admin-token", fleet.TOKEN, *(["--ca", str(ca)] if ca else [])]
    done = subprocess.run([*fleet.SPRY, *args, *where], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Fleet:
    """A server and its clients, with a job named `crash`."""

    def __init__(self, folder: Path, bundle: Path, **settings) -> None:
        self.folder = folder
        self.server = fleet.Server(folder, retry_seconds=0.2, tick_seconds=0.05)
        self.clients = {}
        with self.server.administrator() as admin:
            values = {"training": {"batch": 2, "length": 8, "learning_rate": 0.01}, "per_round": 2, "minimum": 2,
                      "over_selection": 1, "seed": 1, "keep_updates": True} | settings  # fmt: skip
            name = admin.upload_bundle(bundle)
            admin.post("/v1/jobs", {"name": "crash", "bundle": name, "settings": values})
            self.token = admin.post("/v1/tokens", {"uses": 2})["token"]

    def start(self, number: int):
        data = fleet.write_rows(self.folder / f"client-{number}.jsonl", rows(20, number))
        made = fleet.Client(self.server, self.folder / f"client-{number}", data, self.token, "--name", str(number))
        self.clients[number] = made
        return made

    def job(self) -> dict:
        with self.server.administrator() as admin:
            return admin.get("/v1/jobs/crash")

    def reached(self, condition, seconds: float = 300) -> dict:
        until = time.monotonic() + seconds
        while not condition(job := self.job()):
            assert time.monotonic() < until, job
            for client in self.clients.values():
                assert client.running, (client.folder / "client.log").read_text()
            time.sleep(0.05)
        return job

    def close(self) -> None:
        for client in self.clients.values():
            client.kill()
        self.server.stop()


# --- https ---


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of our own, and a certificate for this machine that it signed."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl on PATH to make certificates")
    ca, ca_key, request, key, certificate, extra = (
        folder / name for name in ("ca.pem", "ca.key", "server.csr", "server.key", "server.pem", "extra.cnf")
    )
    extra.write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = ["-addext", "keyUsage=critical,keyCertSign", "-addext", "basicConstraints=critical,CA:TRUE"]
    for command in (
        ["req", "-x509", *curve, "-keyout", ca_key, "-out", ca, "-subj", "/CN=an authority", "-days", "2"],
        ["req", "-new", *curve, "-keyout", key, "-out", request, "-subj", "/CN=a server"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", certificate,
         "-days", "2", "-extfile", extra],
    ):  # fmt: skip
        options = authority if "-x509" in command else []
        subprocess.run(["openssl", *map(str, command), *options], check=True, capture_output=True)
    return ca, certificate, key


class Secure:
    """`spry serve` with a certificate."""

    def __init__(self, folder: Path, certificate: Path, key: Path) -> None:
        self.port = fleet.processes.free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        command = [*fleet.SPRY, "serve", "--port", str(self.port), "--data", str(folder / "data")]
        command += ["--tls-cert", str(certificate), "--tls-key", str(key)]
        settings = {"SPRY_ADMIN_TOKEN": fleet.TOKEN, "SPRY_RETRY_SECONDS": "0.2", "SPRY_TICK_SECONDS": "0.05"}
        self.process = fleet.Process(command, folder / "server.log", **settings)


def answers(url: str, **options) -> bool:
    try:
        return httpx.get(f"{url}/healthz", **options).status_code == 200
    except httpx.TransportError:
        return False


def ran(server, folder: Path, data: Path, token: str, *options: str, code: int) -> str:
    """Run a client that ends by itself, and return what it printed."""
    client = fleet.Client(server, folder, data, token, *options)
    try:
        client.process.wait(40)
    finally:
        client.stop()
    told = (folder / "client.log").read_text()
    assert client.process.returncode == code, told
    return told


def test_https(tiny, tmp_path):
    import ssl

    ca, certificate, key = certificates(tmp_path)
    secure = Secure(tmp_path, certificate, key)
    try:
        trust = ssl.create_default_context(cafile=ca)
        until = time.monotonic() + 300
        while not answers(secure.url, verify=trust):
            assert time.monotonic() < until, (tmp_path / "server.log").read_text()
            time.sleep(0.1)
        assert not answers(secure.url.replace("https", "http"))
        spry(secure, "job", "create", "news", "--bundle", str(tiny), "--rounds", "1", "--per-round", "1", ca=ca)
        made = spry(secure, "token", "create", "--json", ca=ca)
        data = fleet.write_rows(tmp_path / "data.jsonl", rows(6, 0))
        token = json.loads(made)["token"]

        told = ran(secure, tmp_path / "stranger", data, token, "--once", code=2)
        assert told.startswith("error: ")
        assert "certificate that this device does not trust" in told
        assert "--ca" in told
        ran(secure, tmp_path / "friend", data, token, "--rounds", "1", "--ca", str(ca), code=0)
        assert json.loads(spry(secure, "job", "show", "news", "--json", ca=ca))["version"] <= 1
    finally:
        secure.process.stop()
