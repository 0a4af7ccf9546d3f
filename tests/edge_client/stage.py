"""A real HTTP server that answers, stumbles and cuts connections as told."""

import http.server
import json
import re
import sys
from pathlib import Path

from edge_client.bundle.manifest import FILE_NAME
from edge_client.wire.server import Server


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers from the server's script, and files of its bundle with Range."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets, and the second would wait 40 ms

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        self.server.seen.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))
        if self.path.startswith("/v1/bundles/") and self.server.folder is not None:
            self.file()
            return
        status, headers, body = self.server.script.pop(0) if self.server.script else (204, {}, b"")
        if status == 0:
            self.close_connection = True
            return
        self.send(status, {"Content-Type": "application/json"} | headers, body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 -- the base class calls them so

    def file(self):
        data = (self.server.folder / self.path.split("/", 4)[4]).read_bytes()
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])
        if start >= len(data) > 0:
            self.send(416, {}, b"")
            return
        headers = {}
        if "Range" in self.headers and self.server.ranges:
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
            data = data[start:]
        cut = self.server.cuts.pop(0) if self.server.cuts and FILE_NAME not in self.path else None
        self.send(206 if headers else 200, headers, data, cut)

    def send(self, status, headers, body, cut=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    def log_message(self, *_):
        pass


class Stage(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path | None = None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.script, self.seen, self.cuts, self.ranges = [], [], [], True
        self.pauses, self.told = [], []

    def handle_error(self, *request) -> None:
        """A client that cuts its connection is what some tests are about, and nothing to print after their summary."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*request)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def problem(self, status: int, code: str = "", detail: str = "no", **headers) -> None:
        body = json.dumps({"title": "t", "status": status, "detail": detail, "code": code}).encode()
        self.script.append((status, {"Content-Type": "application/problem+json", **headers}, body))

    def answer(self, value, status: int = 200, **headers) -> None:
        self.script.append((status, headers, value if isinstance(value, bytes) else json.dumps(value).encode()))

    def device(self, **options) -> Server:
        options = {"pause": self.pauses.append, "tell": self.told.append, "patience": 10_000} | options
        return Server(options.pop("url", self.address), **options)
