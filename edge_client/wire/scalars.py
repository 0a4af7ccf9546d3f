"""Mode iteration on the wire: what a client reports after a step, and what the server publishes of it.

A report is a few bytes: the derivatives of the batch's losses along directions that everybody can draw again from the
client's seed, as half-precision numbers with one scale. The server publishes the reports of a step's participants as
one record, and a client that holds the weights before the step applies the record as the server did. Both take the
derivatives as they stand in the record, so rounding them costs accuracy of the estimate, never agreement.

All numbers are little-endian.

    report       loss f32, scale f32, examples u16, flags u8, count u8, count x f16 [units' jvps], count x f16 [head's]
                 and, with flag EXACT_HEAD, the head's gradient in the manifest's order, in two bits a number (below);
                 the upper six bits of flags are those of count
    record       magic "SPRY", bytes u32, version u32, round u32, iteration u32, K u16, batch u16, participants u16,
                 unit bytes u8, the number of this form u8 (0); then for each participant seed u64, units (a bit set),
                 its report without loss; then, with EXACT_HEAD, the weighted mean of the head's gradients as f32

A gradient goes in blocks of 128 numbers, each with a scale f32 and then two bits for each number, from a byte's lowest
on: the first is set for a negative number, the second for a large one, which stands for FAR times the scale and not for
once. Large is what lies beyond 0.9816 times the block's root mean square, and the scale is the one of least squares: so
an eighth of a normal block's square is lost, and a block of one or two numbers alike loses nothing.

`examples` of the batch's rows count, the first ones. The jvps are [K, rows], K outermost: of each example of the batch
one, or one alone, which is their mean, where they share directions.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.arrays import Floats
from edge_client.bundle.manifest import Manifest, Parameter
from edge_client.errors import SpryError

from .protocol import Training

EXACT_HEAD = 1
HEAD_JVPS = 2
_MAGIC = b"SPRY"
_FORMAT = 0
_LOSS = struct.Struct("<f")
_REPORT = struct.Struct("<fHBB")
_RECORD = struct.Struct("<4sIIIIHHHBB")
_SEED = struct.Struct("<Q")
_FLAG_BITS = 2
LARGEST_REPORT = (1 << 16 - _FLAG_BITS) - 1
"""Scalars of a kind in a report; more directions or rows need mode epoch."""
_SLACK = 1024
_BLOCK = 128
FAR, _BETWEEN = 3.3357, 0.9816
"""Lloyd and Max's levels of two bits for a normal distribution, 1.5104 and 0.4528, and what lies between them."""


class ScalarError(SpryError, ValueError):
    """A report or record is not what the task asked for."""


@dataclass(frozen=True)
class ScalarReport:
    """One client's step."""

    loss: float
    examples: int
    jvp: Floats
    """[K, rows]"""
    head_jvp: Floats | None = None
    """[K, rows], where the head is trained by scalars."""
    head_gradient: Floats | None = None
    """The head's gradient over all of its parameters, flat and one after the other, where it is exact."""


@dataclass(frozen=True)
class Participant:
    """A client of a step with its report: as it came to the server, or rounded as everybody reads it."""

    seed: int
    units: tuple[int, ...]
    report: ScalarReport


@dataclass(frozen=True)
class StepRecord:
    """A step of all participants: it leads from version - 1 to version."""

    version: int
    round: int
    iteration: int
    participants: tuple[Participant, ...]
    head_gradient: Floats | None = None


# --- reports ---------------------------------------------------------------------------------------------------------


def encode_report(report: ScalarReport) -> bytes:
    gradient = b"" if report.head_gradient is None else _in_two_bits(report.head_gradient)
    return _LOSS.pack(report.loss) + _encode_scalars(report) + gradient


def largest_report(manifest: Manifest, training: Training) -> int:
    """Bound the bytes of a report of such a job, with some slack for wrong ones that are worth a refusal."""
    scalars = min(training.directions * training.batch, LARGEST_REPORT)
    return _LOSS.size + _REPORT.size + 2 * 2 * scalars + 4 * manifest.head_size + _SLACK


def decode_report(data: bytes, manifest: Manifest, training: Training) -> ScalarReport:
    """Decode the report in `data`, checked against what the job's clients must send."""
    if len(data) < _LOSS.size + _REPORT.size:
        raise ScalarError(f"a report has at least {_LOSS.size + _REPORT.size} bytes, got {len(data)}")
    (loss,) = _LOSS.unpack_from(data)
    shape = training.directions, training.batch
    report, end = _decode_scalars(data, _LOSS.size, loss, shape)
    if report.jvp.shape[1] != training.rows:
        raise ScalarError(
            f"a report of this job holds {training.rows} derivatives of each direction, got {report.jvp.shape[1]}"
        )
    exact = training.head == "exact" and bool(manifest.head)
    expected = _size_in_two_bits(manifest.head_size) if exact else 0
    if len(data) != end + expected:
        raise ScalarError(f"a report of this job has {end + expected} bytes, got {len(data)}")
    if exact:
        report = replace(report, head_gradient=_of_two_bits(data[end:], manifest.head_size))
    if (report.head_jvp is not None) != (bool(manifest.head) and not exact):
        raise ScalarError("this job's reports " + ("lack" if report.head_jvp is None else "have no") + " head scalars")
    values = [np.array([loss]), report.jvp, report.head_jvp, report.head_gradient]
    if not all(np.isfinite(value).all() for value in values if value is not None):
        raise ScalarError("the report holds numbers that are not finite; skip the batch or lower the learning rate")
    return report


def _encode_scalars(report: ScalarReport) -> bytes:
    parts = [report.jvp] if report.head_jvp is None else [report.jvp, report.head_jvp]
    values = np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32)
    count = report.jvp.size
    if count > LARGEST_REPORT:
        raise ScalarError(f"a report holds at most {LARGEST_REPORT} derivatives (K x rows), got {count}")
    largest = float(np.abs(values).max(initial=0.0))
    scale = largest if np.isfinite(largest) and largest > 0 else 1.0
    flags = (HEAD_JVPS if report.head_jvp is not None else 0) | (EXACT_HEAD if report.head_gradient is not None else 0)
    with np.errstate(over="ignore"):
        halves = (values / np.float32(scale)).astype("<f2")
    return _REPORT.pack(scale, report.examples, flags | count >> 8 << _FLAG_BITS, count & 0xFF) + halves.tobytes()


def _decode_scalars(data: bytes, start: int, loss: float, shape: tuple[int, int]) -> tuple[ScalarReport, int]:
    try:
        scale, examples, flags, count = _REPORT.unpack_from(data, start)
    except struct.error:
        raise ScalarError(f"a report is cut off after {len(data) - start} bytes") from None
    count |= flags >> _FLAG_BITS << 8
    kinds = 2 if flags & HEAD_JVPS else 1
    end = start + _REPORT.size + 2 * count * kinds
    directions, batch = shape
    if count not in (directions, directions * batch) or not 1 <= examples <= batch:
        raise ScalarError(
            f"a report of this job holds derivatives along {directions} directions of 1 to {batch} examples, "
            f"got {count} of {examples}"
        )
    if len(data) < end:
        raise ScalarError(f"a report is cut off: expected {end - start} bytes, got {len(data) - start}")
    halves = np.frombuffer(data, "<f2", count * kinds, start + _REPORT.size).astype(np.float32)
    values = (halves * np.float32(scale)).reshape(kinds, directions, -1)
    return ScalarReport(loss, examples, values[0], values[1] if kinds > 1 else None), end


def _floats(values: Floats | None) -> bytes:
    return b"" if values is None else values.astype("<f4").tobytes()


def _in_two_bits(gradient: Floats) -> bytes:
    parts: list[bytes] = []
    for start in range(0, len(gradient), _BLOCK):
        block = gradient[start : start + _BLOCK].astype(np.float64)
        sizes = np.abs(block)
        far = sizes > _BETWEEN * np.sqrt(np.mean(np.square(sizes)))
        lengths = np.where(far, FAR, 1.0)
        codes = np.zeros(-(-len(block) // 4) * 4, np.uint8)
        codes[: len(block)] = (block < 0) + 2 * far
        scale = sizes @ lengths / (lengths @ lengths)
        parts += [_LOSS.pack(scale), (codes.reshape(-1, 4) << np.arange(0, 8, 2)).sum(1).astype(np.uint8).tobytes()]
    return b"".join(parts)


def _of_two_bits(data: bytes, count: int) -> Floats:
    blocks: list[Floats] = []
    at = 0
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        (scale,) = _LOSS.unpack_from(data, at)
        coded = np.frombuffer(data, np.uint8, -(-size // 4), at + _LOSS.size)
        codes = (coded[:, None] >> np.arange(0, 8, 2) & 3).reshape(-1)[:size]
        blocks.append((scale * np.where(codes & 2, FAR, 1.0) * np.where(codes & 1, -1.0, 1.0)).astype(np.float32))
        at += _LOSS.size + len(coded)
    return np.concatenate(blocks)


def _size_in_two_bits(count: int) -> int:
    whole, rest = divmod(count, _BLOCK)
    return whole * (_LOSS.size + _BLOCK // 4) + (_LOSS.size + -(-rest // 4) if rest else 0)


def as_published(report: ScalarReport) -> ScalarReport:
    """Return the report as everybody reads it in a record: rounded."""
    data = _encode_scalars(report)
    return _decode_scalars(data, 0, report.loss, (len(report.jvp), max(report.jvp.shape[1], report.examples)))[0]


# --- records ---------------------------------------------------------------------------------------------------------


def encode_record(record: StepRecord, manifest: Manifest, training: Training) -> bytes:
    width = -(-len(manifest.units) // 8)
    parts: list[bytes] = []
    for participant in record.participants:
        bits = sum(1 << unit for unit in participant.units)
        parts += [_SEED.pack(participant.seed), bits.to_bytes(width, "little"), _encode_scalars(participant.report)]
    parts.append(_floats(record.head_gradient))
    body = b"".join(parts)
    shape = training.directions, training.batch
    head = (record.version, record.round, record.iteration, *shape, len(record.participants), width, _FORMAT)
    return _RECORD.pack(_MAGIC, _RECORD.size + len(body), *head) + body


def decode_records(data: bytes) -> Iterator[StepRecord]:
    """Records one after the other."""
    start = 0
    while start < len(data):
        if len(data) - start < _RECORD.size:
            raise ScalarError(f"a record is cut off after {len(data) - start} bytes")
        magic, size, version, round_, iteration, k, batch, count, width, form = _RECORD.unpack_from(data, start)
        if magic != _MAGIC or size < _RECORD.size or start + size > len(data):
            raise ScalarError(f"no record at byte {start}: the answer is damaged or not from this version of spry")
        if form != _FORMAT:
            raise ScalarError(f"a record is of format {form}, this version of spry reads {_FORMAT}: update spry here")
        yield _decode_record(data[start : start + size], version, round_, iteration, (k, batch), count, width)
        start += size


def _decode_record(
    data: bytes, version: int, round_: int, iteration: int, shape: tuple[int, int], count: int, width: int
) -> StepRecord:
    at = _RECORD.size
    participants: list[Participant] = []
    for _ in range(count):
        if len(data) < at + _SEED.size + width:
            raise ScalarError("a record is cut off among its participants")
        (seed,) = _SEED.unpack_from(data, at)
        bits = int.from_bytes(data[at + _SEED.size : at + _SEED.size + width], "little")
        report, at = _decode_scalars(data, at + _SEED.size + width, 0.0, shape)
        units = tuple(unit for unit in range(8 * width) if bits >> unit & 1)
        participants.append(Participant(seed, units, report))
    if (len(data) - at) % 4:
        raise ScalarError("a record ends in the middle of a number")
    rest = np.frombuffer(data, "<f4", offset=at).astype(np.float32) if len(data) > at else None
    return StepRecord(version, round_, iteration, tuple(participants), rest)


# --- the head -------------------------------------------------------------------------------------------------------


def split_head(flat: NDArray[Any], manifest: Manifest) -> dict[str, NDArray[Any]]:
    """Split a vector that holds the head's parameters in the manifest's order."""
    return shaped(flat, manifest.head)


def shaped(flat: NDArray[Any], parameters: Sequence[Parameter]) -> dict[str, NDArray[Any]]:
    """Parameters out of one vector that holds them in this order."""
    tensors: dict[str, NDArray[Any]] = {}
    start = 0
    for parameter in parameters:
        tensors[parameter.name] = flat[start : start + parameter.size].reshape(parameter.shape)
        start += parameter.size
    return tensors


def join_head(gradients: Mapping[str, Floats], manifest: Manifest) -> Floats:
    """Join the head's parameters into one vector: the inverse of `split_head`."""
    return np.concatenate([gradients[parameter.name].reshape(-1) for parameter in manifest.head])
