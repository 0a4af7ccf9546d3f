"""TensorBoard: event files in a folder of the job's own, `tensorboard --logdir WHERE` shows them beside each other."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edge_client.errors import RuntimeMissing
from server.sinks.sink import Curves, Point, Sink, SinkError

_HEADER, _CHECKSUM = struct.Struct("<Q4x"), 4
"""A record's length with its checksum; then the record, and a checksum of that."""


class TensorBoard(Sink):
    """A sink that adds a file with each call: TensorBoard reads all of a folder as one run."""

    def __init__(self, where: str, curves: Curves) -> None:
        super().__init__(where, curves)
        try:
            import tensorboardX  # noqa: F401 # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise RuntimeMissing("the sink tensorboard", "tensorboard", str(error)) from None
        self.folder = Path(where) / curves.name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise SinkError(f"{self.folder} cannot be a folder, as a file stands there; choose another place") from None

    def known(self) -> set[tuple[int, str]]:
        files = sorted(self.folder.glob("*tfevents*"))
        return {(event.step, value.tag) for file in files for event in _events(file) for value in event.summary.value}

    def add(self, points: Sequence[Point]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]
        from tensorboardX.proto.summary_pb2 import Summary  # type: ignore[attr-defined]

        writer = EventsWriter(str(self.folder / "events"), f".{time.time_ns()}")  # two files a second have two names
        try:
            for point in points:
                value = Summary.Value(tag=point.name, simple_value=point.value)
                writer.write_event(Event(wall_time=point.time, step=point.round, summary=Summary(value=[value])))
        finally:
            writer.close()


def _events(file: Path) -> Iterator[Any]:
    """Yield events up to where a writer was cut off."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

    content, at = file.read_bytes(), 0
    while at + _HEADER.size <= len(content):
        (length,) = _HEADER.unpack_from(content, at)
        start, at = at + _HEADER.size, at + _HEADER.size + length + _CHECKSUM
        if at > len(content):
            return
        try:
            yield Event.FromString(content[start : start + length])
        except DecodeError:
            return
