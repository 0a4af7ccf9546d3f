"""Places that mirrors show: a folder, an address that takes PUT, a bucket."""

import http.server
import io
import threading
from contextlib import contextmanager

import pytest

from server.errors import ServerConfigError
from server.settings import read_settings
from server.storage.files.publication import open_target
from server.storage.files.shared import StoreAway
from tests.server.storage.files import test_shared

s3 = test_shared.s3
KEY = "weights/" + "a" * 64


class WebDav(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.server.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.server.status or 201)

    def do_DELETE(self):
        self.answer(204 if self.server.kept.pop(self.path, None) is not None else 404)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def web(status=0):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebDav) as place:
        place.kept, place.status = {}, status
        threading.Thread(target=place.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{place.server_address[1]}/below", place.kept
        place.shutdown()


def test_a_folder_has_what_was_put_there_for_everybody_to_read(tmp_path):
    target = open_target(str(tmp_path / "shown"))
    target.put(KEY, io.BytesIO(b"1"))
    file = tmp_path / "shown" / KEY
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"1", 0o644)
    assert file.parent.stat().st_mode & 0o055 == 0o055
    for _ in range(2):
        target.delete(KEY)
    assert not file.exists()


def test_an_address_takes_put_and_delete():
    with web() as (address, kept):
        target = open_target(address)
        target.put(KEY, io.BytesIO(b"1"))
        assert kept == {f"/below/{KEY}": b"1"}
        for _ in range(2):
            target.delete(KEY)
        assert kept == {}


def test_a_bucket_takes_them(s3):
    target = open_target(s3)
    target.put(KEY, io.BytesIO(b"1"))
    assert target.below("weights").keys() == {KEY}
    target.delete(KEY)
    assert target.below("weights") == {}


def test_an_address_that_refuses_or_is_gone_may_be_asked_again():
    with web(status=507) as (address, _), pytest.raises(StoreAway, match="does not take weights: PUT is answered 507"):
        open_target(address).put(KEY, io.BytesIO(b"1"))
    with pytest.raises(StoreAway, match=r"http://127.0.0.1:9 does not take weights: "):
        open_target("http://127.0.0.1:9").put(KEY, io.BytesIO(b"1"))


def test_without_the_setting_weights_stay_with_the_server():
    assert open_target("") is None


@pytest.mark.parametrize("name", ["ftp://a", "https://user:secret@a", "https://a?b=c", "s3:///nothing"])
def test_what_is_no_place_is_refused(name):
    with pytest.raises(ServerConfigError, match="SPRY_PUBLISH_WEIGHTS: must be a folder, s3://BUCKET/FOLDER or an"):
        read_settings(publish_weights=name)
