"""The process that takes this one's place, under the same id.

What reads a command line is a quarter of what an idle device needs, and much of a runtime and a tokenizer stays in the
process that loaded them: both end with the process. The lock on the store goes with the old program, as its file is
closed on exec, and the new one takes it again.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any

_PATH = "SPRY_PATH"
"""The variable of the predecessor's import path: a program given by `-c` would look into the current folder too."""
_CODE = (
    f"import json, os, sys; sys.path[:] = json.loads(os.environ[{_PATH!r}]); "
    f"from {__name__} import without_httpx_command; without_httpx_command(); from {{}} import main; main()"
)
_state = {"allowed": False}


def allow_successors() -> None:
    """Allow this process to be replaced, as it is the command's own."""
    _state["allowed"] = True


def replace_by(module: str, **variables: str) -> None:
    """Let a module's `main` go on; returns where this process is not the command's own, or none can be started."""
    if _state["allowed"]:
        again = ["-c", _CODE.format(module), *sys.argv[1:]]
        _execute(again, variables | {_PATH: json.dumps(sys.path)})


def replace_by_same(**variables: str) -> None:
    """Let the same program begin again; returns where none can be started, as in the middle of a system's update."""
    _execute(sys.orig_argv[1:], variables)


def _execute(arguments: list[str], variables: dict[str, str]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):
        os.execve(sys.executable, [sys.executable, *arguments], os.environ | variables)  # noqa: S606 -- ourselves


def without_httpx_command() -> None:
    """Let httpx leave out its own command, which imports five megabytes of what draws on terminals."""
    modules: dict[str, Any] = sys.modules
    modules.setdefault("httpx._main", None)
