"""Prove that a request is a device's own: by a key that never leaves it.

    Authorization: Spry DEVICE.TIME.SIGNATURE
    Content-Digest: sha-256=:BASE64:            (RFC 9530, where the request has a body)

The signature covers the method, the time in milliseconds since 1970, the digest, the query and the path. Who
listens learns nothing that another request could be made of, and cannot send the same one again: each that a device
signs is newer than all before, and the server takes none that is not (425). A device that repeats a request signs anew.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Generator
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import httpx

from edge_client import keys
from edge_client.wire.protocol import DeviceKey, Enrolment

SCHEME = "Spry"
DIGEST_HEADER = "Content-Digest"
SKEW = 300
"""Seconds by which the clocks of a device and its server may differ."""
_MS = 1000


def signed_text(method: str, moment: int, digest: str, query: str, path: str) -> bytes:
    """Build the text that a request's signature is of; only the path, as it is decoded, may hold a line break."""
    return f"spry request\n{method}\n{moment}\n{digest}\n{query}\n{path}".encode()


def enrolment_text(token: str, public_key: str) -> bytes:
    """Build the text that a key signs at enrolment, which proves that its secret half is there."""
    return f"spry enrolment\n{token}\n{public_key}".encode()


def key_text(device: str, public_key: str) -> bytes:
    """Build the text that a new key of a device signs."""
    return f"spry key\n{device}\n{public_key}".encode()


def enrolment(token: str, name: str, version: str, key: str) -> Enrolment:
    """Make a device's request to take part, with the proof that its secret key is there; of an empty key with none."""
    if not key:
        return Enrolment(token, name, version)
    public = keys.public_of(key)
    return Enrolment(token, name, version, public, keys.encoded(keys.sign(key, enrolment_text(token, public))))


def device_key(device: str, key: str) -> DeviceKey:
    """Make a device's new key, with the proof that its secret half is there."""
    public = keys.public_of(key)
    return DeviceKey(public, keys.encoded(keys.sign(key, key_text(device, public))))


def digest_header(sha256: bytes) -> str:
    return f"sha-256=:{base64.b64encode(sha256).decode()}:"


def digest_of(body: bytes) -> str:
    """Return the header of a body; empty where there is none."""
    return digest_header(hashlib.sha256(body).digest()) if body else ""


class Signing(httpx.Auth):
    """Signs what a device sends; learns the server's time where this device's clock is wrong."""

    requires_request_body = True

    def __init__(self, device: str, key: str, url: str) -> None:
        self._device = device
        self._key = key
        self._prefix = httpx.URL(url).path.rstrip("/")
        """The path prefix that a proxy in front of the server takes off."""
        self._ahead = 0.0
        self._newest = 0
        """The time of the last request, in milliseconds."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self._sign(request)
        response = yield request
        if self._is_worth_signing_anew(response):
            self._sign(request)
            yield request

    def _sign(self, request: httpx.Request) -> None:
        digest, moment = digest_of(request.content), max(int((time.time() + self._ahead) * _MS), self._newest + 1)
        self._newest = moment
        path = request.url.path.removeprefix(self._prefix)
        text = signed_text(request.method, moment, digest, request.url.query.decode("ascii"), path)
        signature = keys.encoded(keys.sign(self._key, text))
        request.headers["Authorization"] = f"{SCHEME} {self._device}.{moment}.{signature}"
        if digest:
            request.headers[DIGEST_HEADER] = digest

    def _is_worth_signing_anew(self, response: httpx.Response) -> bool:
        """Another process of this device may have signed something newer meanwhile."""
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            return self._corrected(response)
        return response.status_code == HTTPStatus.TOO_EARLY

    def _corrected(self, response: httpx.Response) -> bool:
        """Correct the clock by a refusal; False if the server's is near enough that the time is not the reason."""
        try:
            ahead = parsedate_to_datetime(response.headers["Date"]).timestamp() - time.time()
        except (KeyError, ValueError, TypeError):
            return False
        if abs(ahead - self._ahead) < SKEW / 2:
            return False
        self._ahead, self._newest = ahead, 0
        return True
