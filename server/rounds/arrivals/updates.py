"""Read an update as it arrives: tensors and a report in one safetensors file, trusted in nothing.

The library parses the file without executing anything in it; its content must be exactly what the task asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open

from edge_client.arrays import Weights
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.training.features import MEAN, NOTHING, PRODUCTS, Moments, moments_in, shapes_of
from edge_client.wire.protocol import Report
from edge_client.wire.tensors import REPORT_KEY, check_format
from server.errors import Refusal

HEADER_BYTES = 64 << 10
"""The bytes that names, shapes and the report may take beside the numbers; each parameter allows some more."""
_BYTES_PER_NAME = 512
_REPORT = TypeAdapter(Report)


@dataclass(frozen=True)
class ReceivedUpdate:
    """A client's new weights of its units and the head."""

    tensors: Weights
    report: Report
    moments: Moments = NOTHING
    """The moments of the inputs of the head's last layer on its device."""


def largest(manifest: Manifest, units: Sequence[int]) -> int:
    """Return the most bytes that an honest update of these units has."""
    parameters = [*manifest.trained_with(units), *_moments(manifest)]
    return sum(4 * parameter.size + _BYTES_PER_NAME for parameter in parameters) + HEADER_BYTES


def _moments(manifest: Manifest) -> list[Parameter]:
    if manifest.features is None:
        return []
    return [Parameter(name, shape) for name, shape in shapes_of(manifest, manifest.features).items()]


def read_update(path: Path, manifest: Manifest, units: Sequence[int]) -> ReceivedUpdate:
    """Read the update of these units from a file, or refuse it with a reason."""
    expected = manifest.trained_with(units)
    try:
        with safe_open(path, "np") as file:
            metadata: dict[str, str] = file.metadata() or {}
            names = set(file.keys())
            moments = _moments(manifest) if names & {MEAN, PRODUCTS} else []
            _check_names(names, [*expected, *moments])
            tensors = {parameter.name: _tensor(file, parameter) for parameter in [*expected, *moments]}
    except SafetensorError as error:
        raise _invalid(f"it is not a safetensors file: {error}") from None
    try:
        check_format(metadata)
    except ValueError as error:
        raise _invalid(str(error)) from None
    try:
        report = _REPORT.validate_json(metadata.get(REPORT_KEY, ""), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _invalid(f"its report is not valid: {where} {first['msg']}") from None
    own = {parameter.name: tensors[parameter.name] for parameter in expected}
    return ReceivedUpdate(own, report, moments_in(tensors, report.measured))


def _check_names(names: set[str], expected: Sequence[Parameter]) -> None:
    wanted = {parameter.name for parameter in expected}
    if missing := sorted(wanted - names):
        raise _invalid(f"it lacks {missing[0]} ({len(missing)} parameters missing)")
    if foreign := sorted(names - wanted):
        raise _invalid(f"it holds {foreign[0][:200]}, which this task does not train ({len(foreign)} such parameters)")


def _tensor(file: Any, parameter: Parameter) -> Any:
    view = file.get_slice(parameter.name)
    dtype, shape = view.get_dtype(), tuple(view.get_shape())
    if dtype != "F32":
        raise _invalid(f"{parameter.name} has dtype {dtype}, expected F32")
    if shape != parameter.shape:
        raise _invalid(f"{parameter.name} has shape {list(shape)}, expected {list(parameter.shape)}")
    value = file.get_tensor(parameter.name)
    if not np.isfinite(value).all():
        raise _invalid(f"{parameter.name} holds numbers that are not finite; lower the learning rate")
    return value


def _invalid(why: str) -> Refusal:
    return Refusal(422, "invalid", f"the update is refused: {why}")
