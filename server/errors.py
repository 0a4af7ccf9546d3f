"""Define the server's errors.

SpryError
├── ServerConfigError   settings that an administrator must change; the server does not start
├── SettingsError       settings of a job that are none
├── ProjectError        a project's folder that cannot be used as it is
├── SimulationError     a simulation that cannot run as it was asked for
├── FlowerError         what a Flower app is given, or a node sends, and cannot be used
├── NotWhole            a model that is not known to come out right as one GGUF file
└── Refusal             an answer to a request: a problem document with this status, code and advice
    └── Overtaken       one for what came when others had been enough
"""

from __future__ import annotations

from edge_client.errors import SpryError
from server.text import printable

TITLES = {
    400: "Bad request",
    401: "Not authorized",
    403: "Forbidden",
    404: "Not found",
    408: "Too slow",
    409: "Conflict",
    410: "Gone",
    411: "Length required",
    413: "Too large",
    416: "Range not satisfiable",
    422: "Invalid",
    425: "Too early",
    429: "Too many requests",
    500: "Internal error",
    503: "Unavailable",
    507: "Insufficient storage",
}


class ServerConfigError(SpryError):
    """The server cannot run with these settings."""


class SettingsError(SpryError):
    """A command was given what is no setting of a job."""


class ProjectError(SpryError):
    """A project cannot be read, made or started."""


class SimulationError(SpryError):
    """A simulation cannot run as it was asked for."""


class FlowerError(SpryError):
    """A Flower app cannot use what it is given, or what a node sends."""


class NotWhole(SpryError):
    """A model, or its tokenizer, has what nobody compared with llama.cpp."""

    def __init__(self, what: str) -> None:
        way = "take the format merged, and llama.cpp's converter"
        super().__init__(f"this model cannot become one whole GGUF: {what}; {way}")


class Refusal(SpryError):
    """A request is not granted, for a reason that its sender can act on."""

    def __init__(self, status: int, code: str, detail: str, *, retry_after: float | None = None) -> None:
        detail = printable(detail)  # it may repeat what came
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after


class Overtaken(Refusal):
    """Others were faster, or the job is over: nothing is wrong with what was sent, and it counts as no refusal."""


def not_found(what: str, name: str, known: str) -> Refusal:
    return Refusal(404, "unknown", f"there is no {what} {name!r}; {known} lists them")
