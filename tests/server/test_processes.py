"""Servers that are started here: which one answers at an address."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from server.processes import ProcessFailed, free_port, wait_for_server


@contextmanager
def answering(token):
    """A server of the token's owner."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.headers["Authorization"] == f"Bearer {token}"
            self.send_response(200 if self.path == "/healthz" or (self.path == "/v1/me" and known) else 401)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def lasting(looks):
    """A process that has ended when it was looked at so many times."""
    left = iter(range(looks))

    def check():
        if next(left, None) is None:
            raise ProcessFailed("it has ended")

    return check


def test_another_server_that_took_the_port_is_not_taken_for_ours(tmp_path):
    """Ours has written its token, and ends when it cannot listen."""
    token = tmp_path / "token"
    token.write_text("ours\n")
    with answering("theirs") as url, pytest.raises(ProcessFailed, match="it has ended"):
        wait_for_server(url, lasting(3), tmp_path / "log", token)
    with answering("ours") as url:
        wait_for_server(url, lasting(3), tmp_path / "log", token)


def test_an_answer_before_the_token_is_written_is_anothers(tmp_path):
    with answering("ours") as url, pytest.raises(ProcessFailed, match="it has ended"):
        wait_for_server(url, lasting(3), tmp_path / "log", tmp_path / "token")


def test_a_server_without_a_token_is_waited_for_until_it_answers(tmp_path):
    with answering("ours") as url:
        wait_for_server(url, lasting(3), tmp_path / "log")
    with pytest.raises(ProcessFailed, match="it has ended"):
        wait_for_server(f"http://127.0.0.1:{free_port()}", lasting(3), tmp_path / "log")
