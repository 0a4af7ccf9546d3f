"""Name this project among Python packages: its version, and how to install more of it.

A command that is printed for a user to run names the place that this installation came from, a checkout or a wheel, so
that it brings this project and no other. ``pip`` records that place (PEP 610).
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in the package itself
if TYPE_CHECKING:
    from typing import Any

    __version__: str

NAME = "spry-edge"
UNKNOWN = "0.0"
"""The version of sources that were never installed, or were built far from their history."""


def __getattr__(name: str) -> str:
    """Look up the version when somebody asks: it takes five megabytes, which an error does not need."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, _version())


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return distribution(NAME).version
    except PackageNotFoundError:
        return UNKNOWN


def _origin(name: str) -> dict[str, Any]:
    """Read where pip took an installation from; empty where that was an index, or nobody wrote it down."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return json.loads(distribution(name).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return {}


def install_command(extra: str = "", name: str = NAME, *, again: bool = False) -> str:
    """Return the command that installs this project where it runs, with an extra: ``pip install 'spry-edge[onnx]'``.

    The same of another distribution that adds something to it.
    """
    import shlex

    options = ["--force-reinstall"] if again else []
    return shlex.join(["pip", "install", *options, *_requirement(name, f"[{extra}]" if extra else "", _origin(name))])


def _requirement(name: str, extras: str, origin: dict[str, Any]) -> list[str]:
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    url = str(origin.get("url", ""))
    place = Path(unquote(urlsplit(url).path))
    if not url or (url.startswith("file:") and not place.exists()):
        return [f"{name}{extras}"]  # pip takes what is installed, and looks nowhere else for it
    if "dir_info" in origin:
        return [*(["-e"] if origin["dir_info"].get("editable") else []), f"{place}{extras}"]
    revision = origin.get("vcs_info")
    if revision is None:
        return [f"{name}{extras} @ {url}"]
    return [f"{name}{extras} @ {revision['vcs']}+{url}@{revision['commit_id']}"]
