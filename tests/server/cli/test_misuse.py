"""Test what a stranger does wrong with a server's commands: one line each that says what to do."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.server.cli.conftest import TOKEN

EVERY = [
    ("job", "list"), ("job", "show", "news"), ("job", "show", "news", "--follow"), ("job", "pause", "news"),
    ("token", "create"), ("token", "list"), ("token", "revoke", "t"), ("devices", "list"), ("devices", "revoke", "d"),
    ("adapter", "download", "news", "--out", "never"),
]  # fmt: skip


@pytest.mark.parametrize("args", EVERY, ids=" ".join)
def test_a_server_that_is_down_and_a_wrong_token(wrong, args):
    down = wrong(*args, "--server", "http://127.0.0.1:9")
    assert "no answer from http://127.0.0.1:9" in down
    assert "is the server running, and is --server right?" in down
    other = wrong(*args, "--admin-token", "not-the-token-of-this-server")
    assert "does not know this token; give one that its administrator made (--admin-token)" in other


@pytest.mark.parametrize("args", [args for args in EVERY if "news" in args], ids=" ".join)
def test_an_unknown_job(wrong, args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "there is no job 'news'" in wrong(*args)
    assert not list(tmp_path.iterdir())


def test_where_the_token_comes_from(spry, wrong, monkeypatch, tmp_path):
    monkeypatch.delenv("SPRY_ADMIN_TOKEN")
    monkeypatch.chdir(tmp_path)
    assert "no administrator's token: there is no spry-data/admin-token; give --admin-token" in wrong("job", "list")
    (tmp_path / "spry-data").mkdir()
    (tmp_path / "spry-data" / "admin-token").write_text(TOKEN + "\n")
    assert spry("job", "list").code == 0
    assert "copy it again" in wrong("job", "list", "--admin-token", "“a-token-with-quotes”")


def test_a_server_elsewhere_on_this_machine_is_steered_by_its_data(spry, wrong, monkeypatch, tmp_path, tiny):
    monkeypatch.delenv("SPRY_ADMIN_TOKEN")
    monkeypatch.chdir(tmp_path)
    create = "job", "create", "by-its-data", "--bundle", tiny, "--data"
    (tmp_path / "its").mkdir()
    assert f"there is no {tmp_path / 'its' / 'admin-token'};" in wrong(*create, tmp_path / "its")
    (tmp_path / "its" / "admin-token").write_text(TOKEN + "\n")
    assert spry(*create, tmp_path / "its").code == 0


@pytest.mark.parametrize("url", ["spry.example.org", "ftp://a", "http://[::1"])
def test_what_is_no_address(wrong, url):
    assert "is no address" in wrong("job", "list", "--server", url)


def test_another_web_server(wrong, address):
    """One that refuses, and one that answers anything with a page."""
    assert "is --server right?" in wrong("job", "list", "--server", f"{address}/docs")

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>welcome</html>")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.01}).start()
        where = "--server", f"http://127.0.0.1:{page.server_port}"
        assert "gives no answer of a spry server" in wrong("job", "list", *where)
        assert "sent no adapter" in wrong("adapter", "download", "news", "--out", "never", *where)
        page.shutdown()


def test_certificates_that_are_none(wrong, tmp_path):
    for ca in (tmp_path / "none.pem", Path(__file__)):
        assert "cannot be read as certificates" in wrong("job", "list", "--ca", ca)


def test_wrong_settings_of_a_job(wrong, tiny, tmp_path):
    file = tmp_path / "settings.json"
    file.write_text("[1]")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    create = "job", "create", "wrong", "--bundle", tiny
    for args, message in (
        (("--preset", "best"), "--preset must be one of auto, forward, scalars, default, paper"),
        (("--settings", tmp_path / "none.json"), "cannot be read as JSON"),
        (("--settings", broken), "cannot be read as JSON"),
        (("--settings", file), "must be a JSON object"),
        (("--settings", "{"), "--settings cannot be read as JSON: Expecting property name"),
        (("--settings", "[1]"), "--settings must be a JSON object"),
        (("--set", "rounds"), "--set takes KEY=VALUE"),
        (("--set", "rounds.more=1", "--rounds", "1"), "rounds was given as 1"),
        (("--set", "training=5"), "training must be an object"),
        (("--set", "training.speed=5"), "speed"),
        (("--rounds", "0"), "Invalid value for '--rounds'"),
        (("--mode", "daily"), "mode"),
        (("--held-out", tmp_path / "none.jsonl"), "held-out examples"),
        (("--set", "training.batch=64"), "change training.batch, length or directions"),
    ):
        assert message in wrong(*create, *args)


def test_bundles_that_are_none(wrong, tmp_path):
    assert str(tmp_path / "none") in wrong("job", "create", "x", "--bundle", tmp_path / "none")
    (tmp_path / "manifest.json").write_text("{}")
    assert "manifest" in wrong("job", "create", "x", "--bundle", tmp_path)


# --- spry serve ---


def test_what_spry_serve_refuses(wrong, tmp_path):
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    assert "without TLS would show devices' secrets" in wrong("serve", "--host", "0.0.0.0")
    assert "belong together" in wrong("serve", "--tls-cert", garbage)
    assert "does not exist" in wrong("serve", "--tls-cert", tmp_path / "none", "--tls-key", garbage)
    assert "no certificate with its key" in wrong("serve", "--tls-cert", garbage, "--tls-key", garbage)


def test_unsafe_settings_end_spry_serve(tmp_path):
    environment = {"SPRY_ADMIN_TOKEN": "short", "PATH": "/usr/bin:/bin"}
    code = f"import sys; sys.path[:] = {sys.path!r}; from edge_client.commands.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--data", str(tmp_path / "data")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: the server's settings are refused: SPRY_ADMIN_TOKEN: ")
    assert done.stderr.count("\n") == 1
