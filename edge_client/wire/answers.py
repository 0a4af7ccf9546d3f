"""A server's answers, taken for what they claim to be only after a look."""

from __future__ import annotations

import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TypeVar

import httpx
import msgspec

from edge_client.errors import BadAnswer, ServerError, Unauthorized

from .protocol import PROBLEM, VERSION_HEADER, Problem

T = TypeVar("T")


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


def body_of(response: httpx.Response, limit: int) -> bytes:
    """All of a streamed answer, unless it is larger than any that is meant."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > limit:
            raise BadAnswer(f"{response.url} answers with more than {limit:,} bytes; it is no server of this version")
        parts.append(part)
    return b"".join(parts)


def media_type(response: httpx.Response) -> str:
    return response.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def parsed(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadAnswer(
            f"{answer.response.url} gives no answer of this version of spry ({error}); check --server", status=200
        ) from None


def tensors_of(answer: Answer) -> Tensors:
    version = answer.response.headers.get(VERSION_HEADER, "")
    if not version.isdecimal():
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
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
    elif 300 <= status < 500:
        detail += "; check --server"
    kind = Unauthorized if status == HTTPStatus.UNAUTHORIZED else ServerError
    return kind(detail, code=code, status=status, retry_after=retry_after(response.headers.get("Retry-After")))


def retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header asks to wait, given as a number or a date."""
    if not value:
        return None
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError):
        return None
