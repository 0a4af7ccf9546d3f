"""Memory of programs, measured in processes of their own."""

import json
import mmap
import os
import shutil
import sys

import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.bundle.folder import Bundle
from edge_client.bundle.manifest import TensorSpec
from edge_client.memory import MeasureError, peak_above, peaks_above_now, reset_peak, resident
from edge_client.runtimes.measure import Memory, in_child, main, measure_programs, random_input

MB = 1_000_000


def touch(size: int) -> np.ndarray:
    """Pages of their own: an allocator may still have some that an earlier test gave back."""
    pages = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    pages.fill(1)
    return pages


def test_what_is_taken_is_seen():
    def work():
        before = resident()
        kept = touch(50 * MB)
        return resident() - before, kept.size

    grown, _ = in_child(work)
    assert 48 * MB < grown < 55 * MB


def test_the_highest_mark_is_that_since_the_reset():
    def work():
        touch(80 * MB)  # given back at once
        reset_peak()
        before = resident()
        touch(30 * MB)
        return resident("VmHWM") - before

    assert 28 * MB < in_child(work) < 40 * MB


def test_the_parts_make_up_the_whole():
    assert resident("RssAnon") + resident("RssFile") <= resident() + 16 * MB
    with pytest.raises(MeasureError, match="has no VmNonsense, so memory cannot be measured"):
        resident("VmNonsense")


def test_mapped_files_are_told_apart(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(60 * MB))

    def work():
        mapped = np.memmap(tmp_path / "weights", np.uint8, "r")
        kept = touch(30 * MB)
        return [*peaks_above_now(lambda: (touch(40 * MB).sum(), mapped.sum())), kept.size]

    own, mapped, _ = in_child(work)
    assert 36 * MB < own < 55 * MB
    assert 96 * MB < mapped < 120 * MB


def test_a_step_is_measured_above_what_it_finds_without_mapped_files(tmp_path):
    """Weights are mapped, so that their pages are not the step's."""
    (tmp_path / "weights").write_bytes(bytes(60 * MB))

    def work():
        mapped = np.memmap(tmp_path / "weights", np.uint8, "r")
        kept = touch(20 * MB)
        anonymous = resident("RssAnon")
        return peak_above(anonymous, lambda: (touch(40 * MB).sum(), mapped.sum())) + 0 * kept.size

    assert 35 * MB < in_child(work) < 50 * MB


# --- children --------------------------------------------------------------------------------------------------------


def test_a_child_gives_its_result():
    assert in_child(lambda: {"pid": os.getpid()})["pid"] != os.getpid()
    assert in_child(lambda: "x" * 500_000) == "x" * 500_000


def fail():
    raise ValueError("a reason")


def test_a_failing_child_gives_its_reason():
    with pytest.raises(MeasureError, match="ValueError: a reason"):
        in_child(fail)
    with pytest.raises(MeasureError, match="TypeError"):
        in_child(object)


@pytest.mark.parametrize("end", [lambda: os._exit(3), lambda: os.kill(os.getpid(), 9), lambda: sys.exit(4)])
def test_a_child_that_ends_early_is_told_of(end):
    with pytest.raises(MeasureError):
        in_child(end)


# --- programs --------------------------------------------------------------------------------------------------------


def test_inputs_fit_their_programs():
    ids = random_input(TensorSpec("input_ids", "int64", (2, 3)), 0)
    assert (ids == 1).all()
    assert ids.dtype == np.int64
    hidden = random_input(TensorSpec("hidden", "float32", (2, 3, 4)), 0)
    assert hidden.dtype == np.float32
    assert hidden.std() > 0.1


def test_every_program_is_measured(bundle):
    programs = Bundle.open(bundle).manifest.runtimes["onnx"].programs
    found = measure_programs(bundle, "onnx")
    assert found.keys() == {program.name for program in programs}
    for memory in found.values():
        assert 0 <= memory.load_bytes < 5 * MB, "what the library takes once is not a program's"
        assert 0 <= memory.peak_bytes < 20 * MB
    assert max(memory.load_bytes for memory in found.values()) > 0
    assert max(memory.peak_bytes for memory in found.values()) > 0


def test_the_process_prints_a_line_per_program(bundle, capsys):
    main(str(bundle), "onnx")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    programs = manifests.read(bundle / "manifest.json").runtimes["onnx"].programs
    assert [line["program"] for line in lines] == [program.name for program in programs]
    assert all(line.keys() == {"program", *Memory._fields} for line in lines)


def test_a_damaged_program_is_told_of(bundle, tmp_path):
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    spec = Bundle.open(folder).manifest.runtimes["onnx"].programs[0]
    (folder / spec.file).write_bytes(b"nonsense")
    with pytest.raises(MeasureError, match=r"measuring the programs of onnx failed: .*cannot load") as caught:
        measure_programs(folder, "onnx")
    assert "\n" not in str(caught.value)


def test_measuring_takes_only_so_long(bundle):
    with pytest.raises(MeasureError, match="measuring the programs of onnx took over 0 s"):
        measure_programs(bundle, "onnx", timeout=0.01)
