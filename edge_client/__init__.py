"""The device SDK: what a client runs and what it writes on the wire.

    from edge_client import Client

    Client("https://spry.example.org", data="my.jsonl", token="T").run()

What stands here is its public surface; the modules behind it may change without notice. Importing it is cheap: a name
is looked up when it is first used, and inference runtimes, torch with them, are imported only when one is opened.
"""

from __future__ import annotations

TYPE_CHECKING = False  # instead of that of `typing`, which takes more memory than all that stands here
if TYPE_CHECKING:
    from .bundle.chain import cut_for
    from .bundle.folder import Bundle
    from .client.client import Client
    from .client.conditions import Conditions, parse_hours
    from .data.columns import Columns
    from .data.encoder import TextEncoder
    from .distribution import __version__
    from .errors import (
        BadAnswer,
        BundleError,
        DataError,
        DirectionError,
        PluginError,
        ProgramInputError,
        RuntimeMissing,
        ServerError,
        SpryError,
        StoreError,
        TrainingError,
        Unauthorized,
        Unreachable,
        WrongResults,
    )
    from .events import Event
    from .gradient.estimate import directions_for, estimate
    from .runtimes.runtime import open_runtime
    from .step.stepper import Stepper
    from .training.round import Update, client_round
    from .training.session import TrainingSession
    from .wire.protocol import Task, Training

__all__ = [
    "BadAnswer", "Bundle", "BundleError", "Client", "Columns", "Conditions", "DataError", "DirectionError", "Event",
    "PluginError", "ProgramInputError", "RuntimeMissing", "ServerError", "SpryError", "Stepper", "StoreError", "Task",
    "TextEncoder", "Training", "TrainingError", "TrainingSession", "Unauthorized", "Unreachable", "Update",
    "WrongResults", "__version__", "client_round", "cut_for", "directions_for", "estimate", "open_runtime",
    "parse_hours",
]  # fmt: skip

_HOMES = {
    "Bundle": "bundle.folder",
    "Client": "client.client",
    "Columns": "data.columns",
    "Conditions": "client.conditions",
    "Event": "events",
    "Stepper": "step.stepper",
    "Task": "wire.protocol",
    "TextEncoder": "data.encoder",
    "Training": "wire.protocol",
    "TrainingSession": "training.session",
    "Update": "training.round",
    "__version__": "distribution",
    "client_round": "training.round",
    "cut_for": "bundle.chain",
    "directions_for": "gradient.estimate",
    "estimate": "gradient.estimate",
    "open_runtime": "runtimes.runtime",
    "parse_hours": "client.conditions",
}
"""The modules of all names but the errors, which stand in one."""


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value  # the next look-up finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
