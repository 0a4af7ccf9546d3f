"""Bundles from static places, each of which does another thing wrong: what a device ends with is always the bundle."""

import hashlib
import http.server
import shutil
import threading
import time

import pytest

from edge_client.bundle import signature
from edge_client.bundle.manifest import FILE_NAME
from edge_client.keys import make
from edge_client.store import mirrors as module
from edge_client.store.download import PARTIAL, fetch


def honest(_path, data):
    return 200, {}, data


WRONG = {
    "gone": lambda _path, _data: (404, {}, b"not here"),
    "failing": lambda _path, _data: (500, {}, b""),
    "forbidding": lambda _path, _data: (403, {}, b""),
    "redirecting": lambda path, _data: (302, {"Location": f"/again{path}"}, b""),
    "lying": lambda _path, data: (200, {}, bytes(len(data))),
    "too long": lambda _path, data: (200, {}, data + b"more"),
    "too short": lambda _path, data: (200, {}, data[: len(data) // 2]),
    "empty": lambda _path, _data: (200, {}, b""),
    "compressing": lambda _path, data: (200, {"Content-Encoding": "gzip"}, data),
    "answering with a part": lambda _path, data: (206, {"Content-Range": f"bytes 7-{len(data)}/{len(data)}"}, data[7:]),
    "saying nothing of the part": lambda _path, data: (206, {}, data),
}


class Handler(http.server.BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # headers and body are two packets, and the second would wait 40 ms

    def do_GET(self):
        self.server.seen.append((self.path, dict(self.headers)))
        bundle, _, path = self.path.removeprefix("/below/").partition("/")
        assert bundle == self.server.bundle
        status, headers, body = self.server.answer(self.path, (self.server.folder / path).read_bytes())
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for start in range(0, len(body), self.server.piece):
            self.wfile.write(body[start : start + self.server.piece])
            self.server.pause(0.02)

    def log_message(self, *_):
        pass


class Mirror(http.server.ThreadingHTTPServer):
    """A static place."""

    daemon_threads = True
    piece = 1 << 20

    def __init__(self, folder, answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.answer, self.seen = folder, answer, []
        self.bundle = hashlib.sha256((folder / FILE_NAME).read_bytes()).hexdigest()
        self.pause = lambda _: None
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, *_):
        """A device that has enough goes."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/below"


@pytest.fixture
def mirror(trainable):
    started = []

    def start(answer=honest) -> Mirror:
        started.append(Mirror(trainable, answer))
        return started[-1]

    yield start
    for one in started:
        one.shutdown()
        one.server_close()


@pytest.fixture
def take(stage, trainable, tmp_path):
    """Fetches from mirrors and a server that has the bundle too; gives what the server was asked for."""
    stage.folder = trainable
    name = hashlib.sha256((trainable / FILE_NAME).read_bytes()).hexdigest()

    def taken(*mirrors: str, **options) -> set[str]:
        with stage.device() as server:
            bundle = fetch(server, name, "onnx", tmp_path / "b", mirrors=mirrors, tell=stage.told.append, **options)
        bundle.open(bundle.folder, verify="onnx")
        assert not list(bundle.folder.rglob("*" + PARTIAL))
        return {path.split("/", 4)[4] for _, path, _, _ in stage.seen}

    return taken


def warnings(stage) -> list[str]:
    return [event.message for event in stage.told if event.kind == "warning"]


def test_a_mirror_gives_all_and_is_told_no_secret(take, mirror, stage):
    place = mirror()
    assert take(place.address) == set()
    assert FILE_NAME in {path.rpartition("/")[2] for path, _ in place.seen}
    assert not any({"Authorization", "Cookie", "Content-Digest"} & headers.keys() for _, headers in place.seen)
    assert warnings(stage) == []


@pytest.mark.parametrize("fault", sorted(WRONG.keys() - {"saying nothing of the part"}))
def test_what_a_mirror_does_wrong_costs_a_line(take, mirror, stage, fault):
    place = mirror(WRONG[fault])
    assert FILE_NAME in take(place.address)
    assert len(place.seen) == 1, "nor is it asked again for this bundle"
    (line,) = warnings(stage)
    assert line.startswith(f"the mirror {place.address} is left out: ")


@pytest.mark.parametrize("fault", WRONG)
def test_one_with_a_true_manifest_alone(take, mirror, stage, fault):
    place = mirror(lambda path, data: (honest if path.endswith(FILE_NAME) else WRONG[fault])(path, data))
    assert FILE_NAME not in take(place.address)
    assert len(place.seen) == 2
    assert len(warnings(stage)) == 1


def test_one_that_is_down(take, stage):
    assert FILE_NAME in take("http://127.0.0.1:9")
    assert "the mirror http://127.0.0.1:9 is left out: " in warnings(stage)[0]


def test_a_slow_one(take, mirror, stage, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    place = mirror()
    place.piece, place.pause = 64, time.sleep
    assert FILE_NAME in take(place.address)
    assert "bytes a second" in warnings(stage)[0]


def test_one_that_says_nothing(take, mirror, stage, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    over = threading.Event()
    place = mirror(lambda *asked: over.wait(5) and honest(*asked))
    try:
        assert FILE_NAME in take(place.address)
    finally:
        over.set()
    assert len(warnings(stage)) == 1


def test_another_mirror_comes_before_the_server(take, mirror, stage):
    liar, honest = mirror(WRONG["lying"]), mirror()
    assert take(liar.address, honest.address) == set()
    assert len(liar.seen) <= 1
    assert len(warnings(stage)) == len(liar.seen)


def test_what_a_mirror_gave_before_it_was_cut_is_not_fetched_again(take, mirror, stage, trainable):
    """A part of the first file, whose rest comes from the server."""
    place = mirror(lambda path, data: (honest if path.endswith(FILE_NAME) else WRONG["too short"])(path, data))
    take(place.address)
    first = place.seen[1][0].rpartition(place.bundle + "/")[2]
    half = (trainable / first).stat().st_size // 2
    ranges = {path.split("/", 4)[4]: headers.get("Range") for _, path, headers, _ in stage.seen}
    assert ranges[first] == f"bytes={half}-"


@pytest.mark.parametrize(
    "address", ["ftp://a", "https://a?b=c", "https://user:secret@a", "https://a#b", "file:///etc/passwd", "", "/here"]
)
def test_what_is_no_address_of_a_mirror_is_left_out(take, stage, address):
    assert FILE_NAME in take(address)
    assert "is no address" in warnings(stage)[0]


def test_signatures_come_from_the_server(take, mirror, stage, trainable, tmp_path):
    """They may change, as a bundle may be signed after it was published."""
    stage.folder = shutil.copytree(trainable, tmp_path / "signed")
    publisher = signature.sign(stage.folder, make())
    assert take(mirror().address, publisher=publisher) == {signature.SIGNATURES}
