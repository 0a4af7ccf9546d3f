"""The device's side of the wire: requests that are repeated until they are answered, and answers that are checked.

A request is repeated on a lost connection, on 429 and on 5xx, after pauses that grow and vary, or as the server asks.
Every request of the wire can be repeated without harm. A refusal becomes a `ServerError` with the server's code.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from edge_client import __version__
from edge_client.errors import BadAnswer, ServerError, Unreachable
from edge_client.events import Event, Tell, silent

from .addresses import checked_address, travels_open, trusted
from .answers import Answer, Tensors, body_of, media_type, parsed, refusal, tensors_of
from .proofs import Signing
from .protocol import (
    SAFETENSORS,
    VERSION,
    CheckedIn,
    CheckIn,
    DeviceKey,
    Enrolled,
    Enrolment,
    EvaluationReport,
    Failure,
    OpenJob,
    Receipt,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
SECONDS = 30.0
"""The seconds for connecting and between two pieces of an answer."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 300.0
LONGEST_ASKED = 3600.0
"""Seconds of Retry-After that are waited: a server with many devices spreads them."""
SMALL, _JOBS = 1 << 20, 4 << 20
"""Bytes that an answer may have: a message; a list of jobs, each with its labels."""
_REPEATED = {408, 425, 429}
_DEVICE, _SECRET = re.compile("[A-Za-z0-9_-]{1,64}"), re.compile("[!-~]{0,200}")
_OTHER = "check --server, and that it runs a version of spry that this device knows"
_OCTETS = "application/octet-stream"


class Server:
    """One server, as a device sees it.

    Args:
        url: its address.
        identity: who this device is, once it is enrolled.
        ca: a file with the certificates to trust instead of the system's.
        transport: how requests travel; tests put the server's app here.
        patience: the seconds after which a server that does not answer is given up; None never does.
        pause: waits some seconds.
        tell: takes the events that the server cannot be reached, and that it can again.
    """

    def __init__(
        self,
        url: str,
        *,
        identity: Enrolled | None = None,
        ca: Path | None = None,
        transport: httpx.BaseTransport | None = None,
        patience: float | None = None,
        pause: Callable[[float], object] = time.sleep,
        tell: Tell = silent,
    ) -> None:
        self.url = checked_address(url)
        self.ca = ca
        self.identity = identity
        self.signing: Signing | None = None
        """The signing of requests, where the identity has no secret."""
        self.patience = patience
        self._pause = pause
        self._tell = tell
        self._client = httpx.Client(
            base_url=f"{self.url}/{VERSION}",
            verify=trusted(self.url, ca),
            timeout=SECONDS,
            transport=transport,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none is kept
            headers={"User-Agent": f"spry/{__version__}", "Accept-Encoding": "identity"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def warn_if_open(self) -> None:
        if travels_open(self.url):
            why = "is not encrypted: the device's secret travels in the open; use https"
            self._tell(Event("warning", f"{self.url} {why}"))

    # --- the wire ---

    def enrol(self, enrolment: Enrolment) -> Enrolled:
        return _identity(self._message("POST", "/devices", Enrolled, enrolment))

    def send_key(self, key: DeviceKey) -> Enrolled:
        return _identity(self._message("PUT", "/device-key", Enrolled, key))

    def check_in(self, message: CheckIn) -> CheckedIn:
        return self._message("POST", "/check-in", CheckedIn, message)

    def open_jobs(self) -> list[OpenJob]:
        """Return the jobs that run; none where the server is of an earlier version."""
        try:
            return parsed(self._request("GET", "/open-jobs", limit=_JOBS), list[OpenJob])
        except ServerError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return []

    def weights(self, job: str, since: int, most: int, published: float = 0.0) -> Tensors | None:
        """Fetch what changed after a version that was published then, bounded in bytes; None when nothing did."""
        asked = {"since": since} | ({"published": published} if published and since > 0 else {})
        answer = self._request("GET", f"/jobs/{quote(job, safe='')}/weights", params=asked, limit=most)
        return None if answer.response.status_code == HTTPStatus.NO_CONTENT else tensors_of(answer)

    def steps(self, job: str, since: int, most: int, wait: float = 0.0) -> bytes | Tensors:
        """Records of the steps after a version, none after `wait` seconds without one; or weights, if they are less."""
        path, asked = f"/jobs/{quote(job, safe='')}/steps", {"since": since, "wait": round(wait, 1)}
        answer = self._request("GET", path, params=asked, limit=most, seconds=SECONDS + wait)
        return tensors_of(answer) if media_type(answer.response) == SAFETENSORS else answer.body

    def send_update(self, task: str, data: bytes) -> Receipt:
        return self._send(f"/tasks/{quote(task, safe='')}/update", data, SAFETENSORS)

    def send_jvps(self, task: str, iteration: int, data: bytes) -> Receipt:
        return self._send(f"/tasks/{quote(task, safe='')}/jvps/{iteration}", data, _OCTETS)

    def sum(self, task: str) -> bytes:
        """Fetch the state of the sum that a task's update is added to (`edge_client.secagg.messages.View`)."""
        return self._request("GET", f"/tasks/{quote(task, safe='')}/sum").body

    def send_message(self, task: str, message: str, data: bytes) -> Receipt:
        """Send a message of a secure sum."""
        return self._send(f"/tasks/{quote(task, safe='')}/sum/{quote(message)}", data, _OCTETS)

    def send_masked(self, task: str, data: bytes) -> Receipt:
        return self._send(f"/tasks/{quote(task, safe='')}/update", data, _OCTETS)

    def send_evaluation(self, task: str, evaluation: EvaluationReport) -> Receipt:
        return self._message("PUT", f"/tasks/{quote(task, safe='')}/judgement", Receipt, evaluation)

    def send_failure(self, task: str, reason: str) -> Receipt:
        return self._message("POST", f"/tasks/{quote(task, safe='')}/failure", Receipt, Failure(reason[:500]))

    @contextmanager
    def file(self, bundle: str, path: str, start: int = 0) -> Generator[httpx.Response]:
        """Yield a bundle's file from some byte on, to be read in pieces; 206 if it does start there. Not repeated."""
        headers = self._headers({"Range": f"bytes={start}-"} if start else {})
        url = f"/bundles/{quote(bundle, safe='')}/{quote(path)}"
        with self._client.stream("GET", url, headers=headers, auth=self.signing) as response:
            if response.status_code >= 300 and response.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise refusal(response, body_of(response, SMALL))
            yield response

    def _message(self, method: str, path: str, kind: type[T], message: object) -> T:
        content = msgspec.json.encode(message)
        return parsed(self._request(method, path, content=content, type_="application/json"), kind)

    def _send(self, path: str, data: bytes, type_: str) -> Receipt:
        return parsed(self._request("PUT", path, content=data, type_=type_), Receipt)

    # --- one request, until it is answered ---

    def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        type_: str = "",
        params: Mapping[str, float] | None = None,
        limit: int = SMALL,
        seconds: float = SECONDS,
    ) -> Answer:
        headers = self._headers({"Content-Type": type_} if type_ else {})

        def once() -> Answer:
            timeout = httpx.Timeout(SECONDS, read=seconds)
            asked: Any = {
                "content": content, "params": params, "headers": headers, "timeout": timeout, "auth": self.signing,
            }  # fmt: skip
            with self._client.stream(method, path, **asked) as response:
                body = body_of(response, limit)
            if not response.is_success:
                raise refusal(response, body)
            return Answer(response, body)

        return self.repeat(once)

    def repeat(self, work: Callable[[], T]) -> T:
        """Do something with the server until it succeeds or is refused for good."""
        attempt, started, told = 0, time.monotonic(), False
        while True:
            outcome = self._attempt(work)
            if not isinstance(outcome, ServerError):
                if told:
                    self._tell(Event("reachable", f"{self.url} answers again"))
                return outcome
            delay = _delay(attempt, outcome.retry_after)
            late = self.patience is not None and time.monotonic() - started + delay > self.patience
            if late or not _worth_repeating(outcome):
                raise outcome
            if not told and (attempt or outcome.status == 0):
                self._tell(Event("unreachable", f"{outcome}; trying again until it answers"))
                told = True
            attempt += 1
            self._pause(delay)

    def _attempt(self, work: Callable[[], T]) -> T | ServerError:
        try:
            return work()
        except (httpx.TransportError, ServerError) as error:
            return self._problem(error)

    def _problem(self, error: httpx.TransportError | ServerError) -> ServerError:
        if isinstance(error, ServerError):
            return error
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            return ServerError(
                f"{self.url} shows a certificate that this device does not trust ({reason}); give the file of the "
                "authority that signed it with --ca"
            )
        return Unreachable(f"{self.url} gives no answer ({reason})")

    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        if self.identity is not None and self.identity.secret:
            headers["Authorization"] = f"Bearer {self.identity.device}.{self.identity.secret}"
        return headers


def _identity(enrolled: Enrolled) -> Enrolled:
    """Refuse an identity with other characters: it is sent with each request, and kept for ever."""
    if not (_DEVICE.fullmatch(enrolled.device) and _SECRET.fullmatch(enrolled.secret)):
        raise BadAnswer(f"the server gives this device an invalid name or secret; {_OTHER}", status=200)
    return enrolled


# --- pauses ----------------------------------------------------------------------------------------------------------


def _worth_repeating(problem: ServerError) -> bool:
    return isinstance(problem, Unreachable) or problem.status >= 500 or problem.status in _REPEATED


def _delay(attempt: int, asked: float | None) -> float:
    """Full jitter: many devices that lost the same server must not come back at once."""
    grown = min(FIRST_PAUSE * 2 ** min(attempt, 20), LONGEST_PAUSE)
    if asked is not None:
        return min(asked, LONGEST_ASKED) * random.uniform(1.0, 1.25)  # noqa: S311 -- spreads requests, no secret
    return random.uniform(grown / 4, grown)  # noqa: S311
