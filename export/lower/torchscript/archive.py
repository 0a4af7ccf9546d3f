"""A TorchScript module as bytes that depend on nothing but the module."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import torch

native: Any = torch._C  # pyright: ignore[reportPrivateUsage] - its readers and writers have no public name

_WRITTEN_ANEW = ("version", "byteorder", ".data/serialization_id")
_SOURCES = ".debug_pkl"
"""The suffix of the records of where each operation was written, with the paths of the exporting machine."""


def archive(module: Any) -> bytes:
    """Return the file that `torch.jit.save` writes, without source locations."""
    reader = native.PyTorchFileReader(BytesIO(module.save_to_buffer({})))
    result = BytesIO()
    writer = native.PyTorchFileWriter(result)
    for name in reader.get_all_records():
        if name not in _WRITTEN_ANEW and not name.endswith(_SOURCES):
            record = reader.get_record(name)
            writer.write_record(name, record, len(record))
    writer.write_end_of_file()
    return result.getvalue()
