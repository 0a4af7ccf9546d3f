"""Lowering in processes and from the cache, on the segments of a tiny model."""

import dataclasses
import itertools
import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

from edge_client.commands.progress import Silent
from export.adapt.wrapping import adapt
from export.chain import Parts, differentiate
from export.errors import ExportError
from export.lower import lowering as jobs
from export.model.loading import load
from export.options import ExportOptions
from export.pipeline import _jobs
from export.tasks.registry import MODEL_TASKS


@pytest.fixture(scope="module")
def work(model_folder, tmp_path_factory):
    """The jobs of a small export: embed, block.0, block.1, head."""
    options = ExportOptions(str(model_folder), tmp_path_factory.mktemp("none") / "out", batches=(2,), lengths=(6,))
    loaded = load(options.source, MODEL_TASKS["seq-cls"], options.labels)
    adapted = adapt(loaded, options.adapter, options.seed)
    return _jobs(Parts(options, loaded, adapted, differentiate(loaded, adapted, options, Silent()), {"onnx": ""}))


def lower(work, cache, workers=1):
    told = []
    results = jobs.lower_all(work, cache, workers, lambda job, cached: told.append((job.segment, cached)))
    return results, told


@pytest.fixture
def cache(work, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    lower(work, cache)
    return cache


def entries(cache):
    return sorted(path.name for path in cache.iterdir())


def content(results):
    return {key: [(file.path, file.sha256) for file in result.files] for key, result in results.items()}


def test_every_segment_is_lowered_and_kept(work, tmp_path):
    results, told = lower(work, tmp_path)
    assert [segment for _, segment in results] == ["embed", "block.0", "block.1", "head"]
    assert told == [(segment, False) for segment in ("embed", "block.0", "block.1", "head")]
    for job in work:
        result = results["onnx", job.segment]
        assert result.entries.keys() == {shaped.name for shaped in job.programs}
        files = {file.path for file in result.files}
        assert {entry.file for entry in result.entries.values()} <= files
        for file in result.files:
            assert jobs.file_sha256(tmp_path / os.path.relpath(result.folder, tmp_path) / file.path) == file.sha256
    assert len(entries(tmp_path)) == 4


def test_a_second_time_comes_from_the_cache(work, tmp_path):
    first, _ = lower(work, tmp_path)
    second, told = lower(work, tmp_path)
    assert {cached for _, cached in told} == {True}
    assert content(first) == content(second)


def test_processes_write_the_same_bytes(work, tmp_path):
    alone, _ = lower(work, tmp_path / "alone", 1)
    together, told = lower(work, tmp_path / "together", 2)
    assert content(alone) == content(together)
    assert sorted(segment for segment, _ in told) == ["block.0", "block.1", "embed", "head"]
    assert entries(tmp_path / "alone") == entries(tmp_path / "together")
    assert jobs._JOBS == []


def first_file(cache, folder):
    return next(path for path in sorted((cache / folder).rglob("*")) if path.is_file() and path.name != "index.json")


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "index", "no index", "foreign index"])
def test_a_damaged_entry_is_lowered_again(work, cache, damage):
    folder = entries(cache)[0]
    file, index = first_file(cache, folder), cache / folder / "index.json"
    good = file.read_bytes()
    match damage:
        case "changed":
            file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        case "cut":
            file.write_bytes(good[:-1])
        case "missing":
            file.unlink()
        case "index":
            index.write_bytes(index.read_bytes()[:-10])
        case "no index":
            index.unlink()
        case "foreign index":
            index.write_text('{"files": 3}')
    _, told = lower(work, cache)
    assert sorted(cached for _, cached in told) == [False, True, True, True]
    assert file.read_bytes() == good
    assert {cached for _, cached in lower(work, cache)[1]} == {True}


def test_what_decides_the_result_decides_the_key(work):
    job = work[1]
    key = jobs._key(job)
    assert key == jobs._key(dataclasses.replace(job))
    name = next(iter(job.stored))
    moved = {**job.stored, name: job.stored[name] + 1e-6 * torch.ones_like(job.stored[name])}
    others = [
        dataclasses.replace(job, precision="int8"),
        dataclasses.replace(job, segment="block.9"),
        dataclasses.replace(job, programs=job.programs[:-1]),
        dataclasses.replace(job, stored=moved),
        dataclasses.replace(job, stored={**job.stored, "more": torch.zeros(1)}),
        work[2],
    ]
    assert len({key, *map(jobs._key, others)}) == len(others) + 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_job_ends_the_export_and_leaves_nothing(work, tmp_path, workers):
    name = next(iter(work[1].stored))
    incomplete = dataclasses.replace(work[1], stored={n: t for n, t in work[1].stored.items() if n != name})
    with pytest.raises(KeyError, match=name):
        lower([incomplete, work[0]], tmp_path, workers)
    assert not [entry for entry in entries(tmp_path) if entry.startswith(".")]
    assert jobs._JOBS == []


def test_an_interruption_ends_the_processes_at_once(work, tmp_path):
    """What they have begun is not waited for, and leaves nothing."""

    def advance(job, cached):
        raise KeyboardInterrupt

    many = [dataclasses.replace(job, segment=f"{job.segment}.{i}") for i in range(20) for job in work]
    with pytest.raises(KeyboardInterrupt):
        jobs.lower_all(many, tmp_path, 2, advance)
    assert multiprocessing.active_children() == []
    assert len(entries(tmp_path)) < len(many)
    assert not [entry for entry in entries(tmp_path) if entry.startswith(".")]
    assert jobs._JOBS == []


def test_ctrl_c_is_left_to_the_parent(work, tmp_path):
    """A terminal sends it to the workers too."""

    def advance(job, cached):
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGINT)

    results = jobs.lower_all(work, tmp_path, 2, advance)
    assert len(results) == len(work)


def test_a_killed_process_is_told_of(work, tmp_path):
    """As the kernel does when memory is short."""

    def kill(*_):
        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)

    def advance(job, cached):
        kill()
        time.sleep(0.1)

    many = [dataclasses.replace(job, segment=f"{job.segment}.{i}") for i in range(6) for job in work]
    with pytest.raises(ExportError, match=r"one of 2 lowering processes was killed, .*; pass --workers 1"):
        jobs.lower_all(many, tmp_path, 2, advance)


def test_workers_are_bounded_by_cores_jobs_and_memory(work):
    assert jobs._worker_count(work, 7) == 7
    assert 1 <= jobs._worker_count(work, 0) <= min(len(work), os.cpu_count())
    assert jobs._worker_count([], 0) == 1
    huge = dataclasses.replace(work[0], stored={"w": torch.empty(1 << 44, device="meta")})
    assert jobs._worker_count([huge, huge], 0) == 1


# --- pruning ---------------------------------------------------------------------------------------------------------


def kept(cache, name, size, age):
    folder = cache / name
    folder.mkdir()
    (folder / "file").write_bytes(bytes(size))
    used = time.time() - age
    os.utime(folder, (used, used))
    return folder


def test_what_was_used_longest_ago_goes_first(tmp_path):
    for name, age in (("old", 300), ("new", 100), ("middle", 200)):
        kept(tmp_path, name, 1000, age)
    jobs.prune(tmp_path, 3000)
    assert entries(tmp_path) == ["middle", "new", "old"]
    jobs.prune(tmp_path, 2999)
    assert entries(tmp_path) == ["middle", "new"]
    jobs.prune(tmp_path, 0)
    assert entries(tmp_path) == []


def test_use_makes_an_entry_young(work, cache):
    for folder in cache.iterdir():
        os.utime(folder, (1, 1))
    lower(work[:1], cache)
    jobs.prune(cache, max(sum(f.stat().st_size for f in c.rglob("*") if f.is_file()) for c in cache.iterdir()))
    _, told = lower(work[:1], cache)
    assert told == [("embed", True)]


def test_what_killed_exports_left_goes_after_a_day(tmp_path):
    kept(tmp_path, ".lowering-old", 10, 100_000)
    kept(tmp_path, ".lowering-new", 10, 100)
    jobs.prune(tmp_path, 1000)
    assert entries(tmp_path) == [".lowering-new"]


def test_exports_of_the_same_moment_take_results_from_each_other(tmp_path):
    def another():
        for number in itertools.count():
            kept(tmp_path, f".lowering-{number}", 10, 0).rename(tmp_path / str(number))
            jobs.prune(tmp_path, 100)
            if ended.is_set():
                return

    ended = threading.Event()
    thread = threading.Thread(target=another)
    thread.start()
    try:
        for _ in range(300):
            jobs.prune(tmp_path, 100)
    finally:
        ended.set()
        thread.join()
    jobs.prune(tmp_path, 0)
    assert entries(tmp_path) == []
