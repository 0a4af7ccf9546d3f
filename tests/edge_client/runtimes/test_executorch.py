import gc

import numpy as np
import pytest
import torch

from edge_client.bundle.manifest import DUAL, PLAIN, ProgramSpec, TensorSpec
from edge_client.errors import BundleError, ProgramInputError
from edge_client.runtimes.executorch import _library
from edge_client.runtimes.runtime import open_runtime
from export.dual.programs import Program
from export.graph import ops
from export.graph.editing import trace
from export.graph.slots import Role, Slot
from export.lower.executorch.lowering import LOWERING
from export.lower.target import Shaped

FILE = "executorch/block.0.pte"
WEIGHTS = {
    "table": torch.arange(-16, 16).repeat(40, 1).to(torch.float32),
    "weight": torch.arange(96.0).reshape(3, 32) / 96,
}
IDS = np.array([[1], [2]])
HIDDEN = np.arange(64, dtype=np.float32).reshape(2, 1, 32)
EXPECTED = (HIDDEN + np.arange(-16, 16, dtype=np.float32)) @ WEIGHTS["weight"].numpy().T


def lowered():
    """Two programs over one product and one quantized table, whose kernel lives in a library of its own."""
    slots = [Slot(Role.STATE, "hidden"), Slot(Role.INPUT, "ids"), *(Slot(Role.FROZEN, name) for name in WEIGHTS)]
    values = [torch.from_numpy(HIDDEN), torch.from_numpy(IDS), *WEIGHTS.values()]

    def plain(hidden, ids, table, weight):
        return [ops.linear(hidden + ops.embedding(ids, table), weight)]

    def dual(hidden, ids, table, weight):
        return [*plain(hidden, ids, table, weight), hidden * 2]

    programs = [
        Program("block.0", kind, 0, trace(function, list(zip(slots, values, strict=True))), names)
        for kind, function, names in ((PLAIN, plain, ("hidden",)), (DUAL, dual, ("hidden", "tangent")))
    ]
    return LOWERING.lower("block.0", [Shaped(program, 2, 1) for program in programs], WEIGHTS, "int8")


def program(kind, file=FILE):
    inputs = (TensorSpec("hidden", "float32", (2, 1, 32)), TensorSpec("ids", "int64", (2, 1)))
    outputs = (TensorSpec("hidden", "float32", (2, 1, 3)), TensorSpec("tangent", "float32", (2, 1, 32)))
    return ProgramSpec(
        "block.0", kind, 2, 1, 0, file, f"{kind}_2x1", inputs, outputs[: 1 + (kind == DUAL)],
        flops=0, load_bytes=0, peak_bytes=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "executorch").mkdir()
    (content,) = lowered().files.values()
    (folder / FILE).write_bytes(content)
    return folder


@pytest.fixture
def runtime(folder):
    with open_runtime("executorch", folder, threads=1) as runtime:
        yield runtime


def test_programs_run_on_named_arrays(runtime):
    outputs = runtime.run(program(DUAL), {"ids": IDS, "hidden": HIDDEN})
    assert list(outputs) == ["hidden", "tangent"]
    np.testing.assert_allclose(outputs["hidden"], EXPECTED, rtol=1e-2)
    np.testing.assert_array_equal(outputs["tangent"], HIDDEN * 2)


def test_arrays_that_may_not_be_written_are_read_all_the_same(runtime):
    frozen = HIDDEN.copy()
    frozen.flags.writeable = False
    found = runtime.run(program(PLAIN), {"hidden": frozen, "ids": IDS})["hidden"]
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-2)


def test_results_outlive_the_next_run_and_the_program(runtime):
    first = runtime.run(program(DUAL), {"ids": IDS, "hidden": HIDDEN})["tangent"]
    runtime.run(program(DUAL), {"ids": IDS, "hidden": HIDDEN * 5})
    runtime.close()
    gc.collect()
    np.testing.assert_array_equal(first, HIDDEN * 2)


def test_wrong_inputs_are_refused(runtime):
    with pytest.raises(ProgramInputError, match="missing: ids"):
        runtime.run(program(PLAIN), {"hidden": HIDDEN})
    with pytest.raises(ProgramInputError, match=r"float32 \[2, 1, 32\], got float64"):
        runtime.run(program(PLAIN), {"hidden": HIDDEN.astype(np.float64), "ids": IDS})


def test_all_programs_are_freed_where_one_is_wanted_no_more(runtime):
    """What they share would grow beside what it was."""
    runtime.load(program(PLAIN))
    runtime.load(program(DUAL))
    runtime.keep([program(PLAIN), program(DUAL)])
    assert runtime.holds(program(PLAIN))
    runtime.keep([program(PLAIN)])
    assert not runtime.holds(program(PLAIN))
    assert not runtime._files


def test_a_file_is_open_as_long_as_one_of_its_programs_is_loaded(runtime):
    runtime.load(program(PLAIN))
    opened = runtime._file(FILE)
    runtime.load(program(DUAL))
    assert runtime._file(FILE) is opened
    runtime.release(program(PLAIN))
    assert list(runtime._files) == [FILE]
    runtime.release(program(DUAL))
    assert not runtime._files
    np.testing.assert_allclose(
        runtime.run(program(PLAIN), {"hidden": HIDDEN, "ids": IDS})["hidden"], EXPECTED, rtol=1e-2
    )
    runtime.close()
    assert not runtime._files


def test_the_number_of_threads_is_set(folder):
    for threads in (2, 1):
        with open_runtime("executorch", folder, threads=threads):
            assert _library()._threadpool_get_thread_count() == threads
            assert torch.get_num_threads() == threads


def test_a_missing_file_or_method_is_named(runtime):
    with pytest.raises(BundleError, match=r"other\.pte is missing"):
        runtime.load(program(PLAIN, "executorch/other.pte"))
    with pytest.raises(BundleError, match="cannot load vjp_2x1 of executorch/block"):
        runtime.load(program("vjp"))
    assert not runtime._files


@pytest.mark.parametrize("keep", [0, 100, -200])
def test_a_damaged_file_is_refused(folder, runtime, keep):
    (folder / "executorch/cut.pte").write_bytes((folder / FILE).read_bytes()[:keep])
    with pytest.raises(BundleError, match="damaged"):
        runtime.load(program(PLAIN, "executorch/cut.pte"))
