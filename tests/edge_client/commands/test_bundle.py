"""`spry bundle publish`: what a mirror needs, whole or not at all."""

import http.server
import shutil
import threading

import pytest
from typer.testing import CliRunner

from edge_client.bundle import signature
from edge_client.bundle.folder import Bundle, sha256
from edge_client.bundle.manifest import FILE_NAME
from edge_client.commands.bundle import app
from edge_client.errors import BundleError, SpryError
from edge_client.keys import make


def publish(*arguments) -> str:
    done = CliRunner().invoke(app, ["publish", *map(str, arguments)], catch_exceptions=False, standalone_mode=False)
    return done.output.strip()


def files(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_becomes_a_mirror(tiny, tmp_path):
    name = sha256(tiny / FILE_NAME)
    assert publish(tiny, tmp_path / "www") == str(tmp_path / "www" / name)
    there = tmp_path / "www" / name
    Bundle.open(there)
    assert files(tmp_path / "www") == {f"{name}/{path}" for path in files(there)}
    assert there.stat().st_mode & 0o055 == 0o055, "a web server may read it"
    before = (there / FILE_NAME).stat().st_ino
    publish(tiny, tmp_path / "www")
    assert (there / FILE_NAME).stat().st_ino == before, "what is there is left alone"


def test_what_is_damaged_there_is_replaced_and_signatures_go_along(tiny, tmp_path):
    signed = shutil.copytree(tiny, tmp_path / "bundle")
    signature.sign(signed, make())
    there = tmp_path / "www" / sha256(tiny / FILE_NAME)
    publish(signed, tmp_path / "www")
    first = Bundle.open(there).manifest.files[0]
    (there / first.path).write_bytes(bytes(first.bytes))
    publish(signed, tmp_path / "www")
    Bundle.open(there)
    signature.sign(signed, make())
    publish(signed, tmp_path / "www")
    assert (there / signature.SIGNATURES).read_bytes() == (signed / signature.SIGNATURES).read_bytes()


def test_a_damaged_bundle_is_not_published(tiny, tmp_path):
    damaged = shutil.copytree(tiny, tmp_path / "bundle")
    (damaged / Bundle.open(tiny).manifest.files[0].path).write_bytes(b"")
    with pytest.raises(BundleError):
        publish(damaged, tmp_path / "www")
    assert not (tmp_path / "www").exists()


class Place(http.server.BaseHTTPRequestHandler):
    """Takes PUT, as WebDAV and S3 do."""

    def do_PUT(self):
        length = int(self.headers.get("Content-Length") or -1)
        content = self.rfile.read(length) if length >= 0 else self._chunks()
        self.server.taken.append((self.path, content))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline(), 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def log_message(self, *_):
        pass


@pytest.fixture
def place():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Place) as server:
        server.taken, server.status = [], 201
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_an_address_is_given_each_file_the_manifest_last(tiny, place):
    address = f"http://127.0.0.1:{place.server_address[1]}/bundles"
    name = sha256(tiny / FILE_NAME)
    assert publish(tiny, address) == f"{address}/{name}"
    assert dict(place.taken) == {f"/bundles/{name}/{path}": (tiny / path).read_bytes() for path in files(tiny)}
    assert place.taken[-1][0].endswith(FILE_NAME)


def test_an_address_that_takes_nothing(tiny, place):
    place.status = 405
    with pytest.raises(SpryError, match="405 Method Not Allowed; name a place that takes PUT, or a folder"):
        publish(tiny, f"http://127.0.0.1:{place.server_address[1]}")
    with pytest.raises(SpryError, match="check the address"):
        publish(tiny, "http://127.0.0.1:9")
