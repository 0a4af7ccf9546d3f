"""Errors a user can act on.

    SpryError                 anything the user can put right; the command prints it as one line and exits with 2
    ├── BundleError           a bundle is missing, damaged, incomplete or written by a newer version
    ├── RuntimeMissing        an optional library is not installed; names the extra that brings it
    ├── ProgramInputError     a program was given an input with a wrong name, dtype or shape
    └── DirectionError        directions were asked for with arguments outside their range

Whoever extends the tree (``export.errors`` does) subclasses ``SpryError``. A message is one line that says what was
expected, what came instead, and what to do. Anything that is not a ``SpryError`` is a defect and keeps its traceback.
"""


class SpryError(Exception):
    """Base of all errors a user can act on."""

    exit_code = 2


class BundleError(SpryError):
    """A bundle cannot be used as it is."""


class RuntimeMissing(SpryError):
    """An optional library is not installed."""

    def __init__(self, what: str, extra: str, reason: str = "") -> None:
        self.what = what
        self.extra = extra
        self.reason = reason
        cause = f" ({reason})" if reason else ""
        super().__init__(f"{what} needs the extra '{extra}'{cause}: pip install 'spry[{extra}]'")

    def __reduce__(self) -> tuple[type["RuntimeMissing"], tuple[str, str, str]]:
        # Exception's own recipe passes the message alone, which a worker process could not unpickle.
        return type(self), (self.what, self.extra, self.reason)


class ProgramInputError(SpryError):
    """A program was given an input that does not fit its signature."""


class DirectionError(SpryError, ValueError):
    """Directions were asked for with arguments outside their range."""
