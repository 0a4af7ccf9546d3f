"""End commands: an error that the user can act on is one line on stderr, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

from edge_client.errors import MACHINE_ERRORS, SpryError
from edge_client.format import shown

BAD_INPUT = 2
INTERRUPTED = 130  # what a shell reports for a process ended by Ctrl-C


def outcome(work: Callable[[], object]) -> int:
    """Do a command's work and give its exit code: what the work returns, or what became of it."""
    try:
        result = work()
    except SpryError as error:
        return complain(str(error), error.exit_code)
    except MemoryError as error:
        return complain(str(error) or "out of memory: close other programs")
    except OSError as error:
        if error.errno not in MACHINE_ERRORS:
            raise
        where = f": {error.filename}" if error.filename else ""
        return complain(f"{error.strerror}{where}; {MACHINE_ERRORS[error.errno]}")
    except KeyboardInterrupt:
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def complain(message: str, code: int = BAD_INPUT) -> int:
    sys.stderr.write(f"error: {shown(' '.join(message.split()))}\n")
    return code
