"""The device SDK: what a client runs and what it writes on the wire.

Importing it is cheap. Inference runtimes, and torch with them, are imported only when one is chosen.
"""

from .distribution import __version__
from .errors import BundleError, DirectionError, ProgramInputError, RuntimeMissing, SpryError

__all__ = [
    "BundleError",
    "DirectionError",
    "ProgramInputError",
    "RuntimeMissing",
    "SpryError",
    "__version__",
]
