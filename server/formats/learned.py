"""Define what a job has learned, the source of every format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from edge_client.arrays import Array
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import AdapterSpec, ModelSpec
from server.errors import Refusal

_MODEL_CONFIG = "model_config.json"


class Version(NamedTuple):
    """Which weights, of which job."""

    job: str
    number: int
    bundle: str
    """The bundle's name on the server."""

    @property
    def trained(self) -> bool:
        """Version 0 is what the bundle starts from."""
        return self.number > 0


def config_of(bundle: Bundle) -> Mapping[str, Any]:
    """Read the base model's own configuration, in transformers' words."""
    file = bundle.folder / _MODEL_CONFIG
    if not file.is_file():
        raise Refusal(409, "incomplete", f"this bundle has no {_MODEL_CONFIG}: export it again for this format")
    return json.loads(file.read_text())


class Learned:
    """A version of a job's weights, with its bundle.

    Args:
        version: which one.
        bundle: that of the job.
        tensors: of the adapter and the head, under PEFT's names, as PEFT loads them.
    """

    def __init__(self, version: Version, bundle: Bundle, tensors: Mapping[str, Array]) -> None:
        self.version = version
        self.bundle = bundle
        self.tensors = tensors

    @property
    def model(self) -> ModelSpec:
        return self.bundle.manifest.model

    @property
    def adapter(self) -> AdapterSpec:
        return self.bundle.manifest.adapter

    @cached_property
    def model_config(self) -> Mapping[str, Any]:
        """The base model's own configuration, in transformers' words."""
        return config_of(self.bundle)

    def described(self) -> bytes:
        """Describe the adapter's origin, for a file beside it."""
        told = {
            "bundle": self.version.bundle,
            "job": self.version.job,
            "trained": self.version.trained,
            "version": self.version.number,
        }
        return json.dumps(told, indent=2).encode() + b"\n"
