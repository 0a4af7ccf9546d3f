"""Errors a user can act on.

    SpryError                 anything the user can put right; the command prints it as one line and exits with 2
    ├── BundleError           a bundle is missing, damaged, incomplete or written by a newer version
    ├── WrongResults          a runtime does not compute on this machine what it should
    ├── RuntimeMissing        an optional library is not installed; names what brings it
    ├── PluginError           a name stands for nothing here, or what another distribution adds cannot be used
    ├── ProgramInputError     a program was given an input with a wrong name, dtype or shape
    ├── DirectionError        directions were asked for with arguments outside their range
    ├── DataError             rows of training data cannot be used; names file and line
    ├── TrainingError         a step's numbers are of no use, or a task cannot be run as it is set
    ├── StoreError            what a device keeps is locked, or does not hold what was asked for
    └── ServerError           the server refused a request, with its code and status
        ├── Unauthorized      no such device, a wrong secret or a revoked one
        ├── Unreachable       no answer, for as long as was waited
        └── BadAnswer         an answer that no server of this version gives

Whoever extends the tree (``export.errors`` does) subclasses ``SpryError``. A message is one line that says what was
expected, what came instead, and what to do. Anything that is not a ``SpryError`` is a defect and keeps its traceback.
"""

import errno

from .distribution import NAME, install_command

_FULL, _CLOSED = "free some space, or choose another place", "choose another place, or get the right to this one"
MACHINE_ERRORS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: _CLOSED,
    errno.EPERM: _CLOSED,
    errno.ENOTDIR: "a file stands where a folder is expected: choose another place",
    errno.EISDIR: "a folder stands where a file is expected: give a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""Conditions of the machine that its user can change, and how; any other OSError is a defect."""


def is_panic(error: BaseException) -> bool:
    """Tell whether a library in Rust panicked, which in Python is no `Exception`, of a class that none can import."""
    return type(error).__name__ == "PanicException"


class SpryError(Exception):
    """Base of all errors a user can act on."""

    exit_code = 2


class BundleError(SpryError):
    """A bundle cannot be used as it is."""


class WrongResults(SpryError):
    """A runtime does not compute here what it should."""


class RuntimeMissing(SpryError):
    """An optional library is not installed."""

    def __init__(self, what: str, extra: str, reason: str = "", distribution: str = NAME) -> None:
        self.what = what
        self.extra = extra
        self.reason = reason
        self.distribution = distribution
        cause = f" ({reason})" if reason else ""
        needs = f"the extra '{extra}'" if extra else distribution
        super().__init__(f"{what} needs {needs}{cause}: {install_command(extra, distribution)}")

    def __reduce__(self) -> tuple[type["RuntimeMissing"], tuple[str, str, str, str]]:
        # Exception's own recipe passes the message alone, which a worker process could not unpickle.
        return type(self), (self.what, self.extra, self.reason, self.distribution)


class PluginError(SpryError):
    """A name stands for nothing here, or what another distribution adds cannot be used."""


class ProgramInputError(SpryError):
    """A program was given an input that does not fit its signature."""


class DirectionError(SpryError, ValueError):
    """Directions were asked for with arguments outside their range."""


class DataError(SpryError, ValueError):
    """Rows of training data cannot be used."""


class TrainingError(SpryError):
    """A task cannot be run as it is set, or its numbers left the finite range."""


class StoreError(SpryError):
    """Raised where something that a device keeps cannot be used."""


class ServerError(SpryError):
    """The server refused a request.

    Args:
        message: the server's message.
        code: a `protocol.RefusalCode`, or empty.
        status: of HTTP; 0 where there was no answer.
        retry_after: the seconds it asked to wait.
    """

    def __init__(self, message: str, *, code: str = "", status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after = retry_after


class Unauthorized(ServerError):
    """The server does not know this device, or no longer."""


class Unreachable(ServerError):
    """The server gave no answer."""


class BadAnswer(ServerError):
    """An answer that cannot be read."""
