"""Tensors on the wire: safetensors, whose header says more where they are an update.

report    what the device says of its training, as JSON (`protocol.Report`)
format    the number of this form; a header that names none is of the first
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edge_client.arrays import Weights

from .protocol import Report

REPORT_KEY, FORMAT_KEY = "report", "format"
_NEWEST = "1"


def encode_update(tensors: Weights, report: Report) -> bytes:
    """Write an update as it is kept and sent."""
    from safetensors.numpy import save

    return save(tensors, {REPORT_KEY: msgspec.json.encode(report).decode(), FORMAT_KEY: _NEWEST})


def decode_update(data: bytes) -> tuple[Weights, Report]:
    """Read an update that was written on this device; ValueError where it is none."""
    tensors, header = parse_tensors(data)
    check_format(header)
    if REPORT_KEY not in header:
        raise ValueError("it has no report")
    return tensors, msgspec.json.decode(header[REPORT_KEY], type=Report)


def check_format(header: Mapping[str, str]) -> None:
    """Refuse an update in a form that this version does not read."""
    if (found := header.get(FORMAT_KEY, _NEWEST)) != _NEWEST:
        raise ValueError(f"it is of format {found[:20]!r}, this version of spry reads {_NEWEST}: update spry here")


def parse_tensors(data: bytes) -> tuple[Weights, dict[str, str]]:
    """Read the tensors of a safetensors file and what its header says beside them; ValueError where it is none."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        header = msgspec.json.decode(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, msgspec.DecodeError, KeyError) as error:
        raise ValueError(str(error)) from None
    return tensors, header.get("__metadata__", {})
