"""Lowering segments in parallel processes, each result kept in a cache under the hash of what went into it.

Workers are forked, so that they see the model's weights without a copy. A result is written to a folder of its own and
moved into place whole; a folder in the cache is checked against its hashes before it is used.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec
import numpy as np
import psutil
import torch
from torch import Tensor

from edge_client.bundle.manifest import FileSpec
from export.errors import ExportError
from export.graph.slots import slot_of, value_of
from export.lower.target import Precision, ProgramEntry, Shaped, lowering
from export.model.kept import kept_blocks
from export.model.mapped import let_go

_INDEX = "index.json"
_PARTIAL = ".lowering-"
_DAY = 86_400
_WORKER_BYTES = 1_500_000_000
"""The bytes that a worker needs beside several copies of its segment's weights."""


@dataclass(frozen=True)
class SegmentLowering:
    """One segment for one runtime."""

    runtime: str
    precision: Precision
    segment: str
    programs: Sequence[Shaped]
    stored: Mapping[str, Tensor]
    tied: tuple[str, ...] = ()
    processor: str = ""
    fine: bool = False
    """True if int8 products are as exact as they can be, at twice their price."""
    in_files: bool = False
    """True if its weights, which are mapped, are released after each use."""

    def done(self) -> None:
        """Told when the weights are not needed for a while."""
        if self.in_files:
            let_go(self.stored.values())

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.stored.values())


class LoweredSegment(msgspec.Struct, frozen=True):
    """A lowered segment in its folder."""

    files: list[FileSpec]
    entries: dict[str, ProgramEntry]
    fallbacks: list[str]
    folder: str = ""


Results = dict[tuple[str, str], LoweredSegment]
"""Lowered segments by runtime and name."""


def lower_all(
    jobs: Sequence[SegmentLowering], cache: Path, workers: int, advance: Callable[[SegmentLowering, bool], None]
) -> Results:
    """Lower every job; `advance` gets each that is done and whether it came from the cache."""
    results: Results = {}
    keys = {id(job): cache / _key(job) for job in jobs}
    pending: list[SegmentLowering] = []
    for job in jobs:
        cached = _cached(keys[id(job)])
        if cached is None:
            pending.append(job)
        else:
            results[job.runtime, job.segment] = cached
            advance(job, True)
    with closing(_lower_pending(pending, keys, _worker_count(pending, workers))) as lowered:
        for job, result in lowered:
            results[job.runtime, job.segment] = result
            advance(job, False)
    return results


def _lower_pending(
    pending: Sequence[SegmentLowering], keys: Mapping[int, Path], workers: int
) -> Generator[tuple[SegmentLowering, LoweredSegment], None, None]:
    if workers < 2 or len(pending) < 2:
        for job in pending:
            yield job, _lower(job, keys[id(job)])
        return
    _JOBS[:] = [(job, keys[id(job)]) for job in sorted(pending, key=lambda job: -job.weight_bytes)]
    context = multiprocessing.get_context("fork")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        try:
            with _interrupts_held():
                futures = {pool.submit(_lower_number, number): job for number, (job, _) in enumerate(_JOBS)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise ExportError(
                f"one of {workers} lowering processes was killed, most likely for lack of memory; pass --workers 1"
            ) from error
        except BaseException:
            _end(set(multiprocessing.active_children()) - others, {key.parent for _, key in _JOBS})
            raise
        finally:
            _JOBS.clear()


_JOBS: list[tuple[SegmentLowering, Path]] = []
"""The jobs that forked workers inherit: graphs and weights are not sent to them."""


def _end(workers: Collection[BaseProcess], caches: Collection[Path]) -> None:
    """Kill the workers, whose results nobody wants; waiting for them could take minutes."""
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()
        for cache in caches:
            for folder in cache.glob(f"{_PARTIAL}{worker.pid}-*"):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _interrupts_held() -> Generator[None, None, None]:
    """Hold interrupts while workers are forked: Ctrl-C reaches the parent, which ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    torch.set_num_threads(1)  # the parent's thread pool does not survive a fork


def _lower_number(number: int) -> LoweredSegment:
    return _lower(*_JOBS[number])


def _worker_count(jobs: Sequence[SegmentLowering], asked: int) -> int:
    if asked:
        return asked
    largest = max((job.weight_bytes for job in jobs), default=0)
    by_memory = psutil.virtual_memory().available // (_WORKER_BYTES + 4 * largest)
    return max(1, min(os.cpu_count() or 1, int(by_memory), len(jobs)))


def _lower(job: SegmentLowering, key: Path) -> LoweredSegment:
    target = lowering(job.runtime, job.processor, fine=job.fine)
    lowered = target.lower(job.segment, job.programs, job.stored, job.precision, tied=job.tied)
    job.done()
    key.parent.mkdir(parents=True, exist_ok=True)
    folder = _folder(key.parent)
    try:
        files = [_write(folder, path, content) for path, content in sorted(lowered.files.items())]
        result = LoweredSegment(files, lowered.entries, lowered.fallbacks)
        (folder / _INDEX).write_bytes(msgspec.json.encode(result))
        shutil.rmtree(key, ignore_errors=True)
        folder.replace(key)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return msgspec.structs.replace(result, folder=str(key))


def _folder(cache: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{_PARTIAL}{os.getpid()}-", dir=cache))


@contextmanager
def partial(cache: Path) -> Generator[Path, None, None]:
    """Make a folder beside the cache for files that go with the block; leftovers of a killed export are pruned."""
    folder = _folder(cache)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, path: str, content: bytes) -> FileSpec:
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    return FileSpec(path, hashlib.sha256(content).hexdigest(), len(content))


def _cached(key: Path) -> LoweredSegment | None:
    """Load a whole and unchanged result, or nothing."""
    try:
        result = msgspec.json.decode((key / _INDEX).read_bytes(), type=LoweredSegment)
        sound = all(file_sha256(key / file.path) == file.sha256 for file in result.files)
    except (OSError, msgspec.MsgspecError):
        return None
    if not sound:
        return None
    os.utime(key)
    return msgspec.structs.replace(result, folder=str(key))


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _key(job: SegmentLowering) -> str:
    """Hash all that decides the result: graphs, weights, options, libraries, and this project's own code."""
    digest = hashlib.sha256(_code_version().encode())
    options = (
        job.runtime,
        job.precision,
        job.segment,
        job.tied,
        job.processor,
        job.fine,
        lowering(job.runtime).versions(),
    )
    digest.update(repr(options).encode())
    for shaped in job.programs:
        digest.update(f"{shaped.name}{shaped.program.outputs}{shaped.program.graph.graph}".encode())
        for node in shaped.program.placeholders:
            value = value_of(node)
            digest.update(repr((slot_of(node), tuple(value.shape), value.dtype)).encode())
    for name, tensor in sorted(job.stored.items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        if (kept := kept_blocks(tensor)) is not None:
            digest.update(kept.digest().encode())
        digest.update(tensor.detach().contiguous().reshape(-1).numpy().view(np.uint8).data)
    job.done()
    return digest.hexdigest()


def _code_version() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def prune(cache: Path, limit: int) -> None:
    """Forget what killed exports left, and the results used longest ago until the cache is below `limit` bytes."""
    for path in cache.glob(f"{_PARTIAL}*"):
        if _last_used(path) < time.time() - _DAY:
            shutil.rmtree(path, ignore_errors=True)
    folders = [path for path in cache.iterdir() if path.is_dir() and not path.name.startswith(_PARTIAL)]
    sizes = {folder: _bytes(folder) for folder in sorted(folders, key=_last_used)}
    total = sum(sizes.values())
    for folder, size in sizes.items():
        if total <= limit:
            return
        shutil.rmtree(folder, ignore_errors=True)
        total -= size


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another export of the same moment has renamed or pruned it
        return time.time()


def _bytes(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):  # passes over folders that are gone
        for name in files:
            with suppress(FileNotFoundError):
                total += Path(place, name).stat().st_size
    return total
