"""A server's answers, taken for what they claim to be only after a look."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import httpx
import msgspec

from edge_client.errors import BadAnswer, ServerError, Unauthorized
from edge_client.format import shown

from .bounds import bounded
from .protocol import PROBLEM, VERSION_HEADER, Problem

T = TypeVar("T")
Read = Callable[[httpx.Response], Iterator[bytes]]
"""Reads an answer as it arrives."""
_DIGITS = 15
"""The largest version number."""
_LONGEST = 1000
"""Characters of a refusal."""


@dataclass(frozen=True)
class Tensors:
    """Weights as they came, with their version."""

    version: int
    data: bytes


@dataclass(frozen=True)
class Answer:
    """A response, whole."""

    response: httpx.Response
    body: bytes


def body_of(response: httpx.Response, limit: int, read: Read | None = None) -> bytes:
    """Read a whole streamed answer, unless it is larger than its limit."""
    parts: list[bytes] = []
    size = 0
    for part in (read or pieces)(response):
        size += len(part)
        if size > limit:
            raise BadAnswer(f"{response.url} answers with more than {limit:,} bytes; it is no server of this version")
        parts.append(part)
    return b"".join(parts)


def pieces(response: httpx.Response) -> Iterator[bytes]:
    """Yield a streamed answer's pieces as they arrive. Compressed ones were not asked for: they may expand to much."""
    if response.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise BadAnswer(f"{response.url} answers in an encoding that was not asked for; check --server", status=200)
    return response.iter_bytes()


def media_type(response: httpx.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def parsed(answer: Answer, kind: type[T]) -> T:
    try:
        return bounded(msgspec.json.decode(answer.body, type=kind), kind)
    except (ValueError, RecursionError) as error:  # msgspec's own are such
        raise BadAnswer(
            f"{answer.response.url} gives no answer of this version of spry ({error}); check --server", status=200
        ) from None


def tensors_of(answer: Answer) -> Tensors:
    version = answer.response.headers.get(VERSION_HEADER, "")
    if not (version.isdecimal() and len(version) <= _DIGITS):
        raise BadAnswer(
            f"{answer.response.url} does not tell the version of its weights ({VERSION_HEADER})", status=200
        )
    return Tensors(int(version), answer.body)


def refusal(response: httpx.Response, body: bytes) -> ServerError:
    status = response.status_code
    detail, code = f"{response.url} answers {status} {response.reason_phrase}", ""
    if media_type(response) == PROBLEM:
        try:
            problem = msgspec.json.decode(body, type=Problem)
            detail, code = problem.detail or problem.title, problem.code
        except (ValueError, RecursionError):
            pass
    elif 300 <= status < 500:
        detail += "; check --server"
    kind = Unauthorized if status == HTTPStatus.UNAUTHORIZED else ServerError
    wait = retry_after(response.headers.get("Retry-After"))
    return kind(shown(detail[:_LONGEST]), code=shown(code[:_LONGEST]), status=status, retry_after=wait)


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks to wait, given as a number or a date."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return None if math.isnan(seconds) else max(seconds, 0.0)
