"""Errors that stop an export; each says what was expected, what came, and what to do."""

from __future__ import annotations

from edge_client.errors import SpryError


class ExportError(SpryError):
    """The model, the options or the machine do not allow this export."""


class VerificationFailed(ExportError):
    """A runtime's results are too far from the model's.

    Args:
        message: what failed, by how much.
        runtimes: of which.
    """

    def __init__(self, message: str, runtimes: frozenset[str]) -> None:
        super().__init__(message)
        self.runtimes = runtimes


class MissingRuleError(ExportError):
    """An op of the model has no forward-AD rule."""
