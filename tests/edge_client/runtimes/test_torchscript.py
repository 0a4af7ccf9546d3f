import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from edge_client.errors import BundleError, ProgramInputError, SpryError
from edge_client.runtimes.runtime import open_runtime

FILE = "torchscript/block.0.pt"


class Block(nn.Module):
    """Two programs over one weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3), requires_grad=False)

    def plain(self, hidden, ids):
        return (hidden @ self.weight.T + ids,)

    def dual(self, hidden, ids):
        return hidden @ self.weight.T + ids, hidden


def program(method, file=FILE):
    inputs = (TensorSpec("hidden", "float32", (2, 3)), TensorSpec("ids", "int64", (2, 1)))
    outputs = (TensorSpec("hidden", "float32", (2, 2)), TensorSpec("tangent", "float32", (2, 3)))
    return ProgramSpec(
        "block.0", "plain", 2, 1, 0, file, method, inputs, outputs[: 1 + (method == "dual")],
        flops=0, load_bytes=0, peak_bytes=0,
    )  # fmt: skip


HIDDEN = np.arange(6, dtype=np.float32).reshape(2, 3)
IDS = np.array([[1], [2]])
EXPECTED = HIDDEN @ np.arange(6, dtype=np.float32).reshape(2, 3).T + IDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "torchscript").mkdir()
    inputs = torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64)
    torch.jit.trace_module(Block(), {"plain": inputs, "dual": inputs}).save(str(folder / FILE))
    return folder


@pytest.fixture
def runtime(folder):
    with open_runtime("torchscript", folder) as runtime:
        yield runtime


def test_programs_run_on_named_arrays(runtime):
    outputs = runtime.run(program("dual"), {"ids": IDS, "hidden": HIDDEN})
    assert list(outputs) == ["hidden", "tangent"]
    np.testing.assert_allclose(outputs["hidden"], EXPECTED)
    np.testing.assert_array_equal(outputs["tangent"], HIDDEN)


def test_arrays_that_may_not_be_written_are_read_all_the_same(runtime):
    frozen = HIDDEN.copy()
    frozen.flags.writeable = False
    np.testing.assert_allclose(runtime.run(program("plain"), {"hidden": frozen, "ids": IDS})["hidden"], EXPECTED)


def test_wrong_inputs_are_refused(runtime):
    with pytest.raises(ProgramInputError, match="missing: ids"):
        runtime.run(program("plain"), {"hidden": HIDDEN})
    with pytest.raises(ProgramInputError, match=r"float32 \[2, 3\], got float64"):
        runtime.run(program("plain"), {"hidden": HIDDEN.astype(np.float64), "ids": IDS})


def test_programs_of_a_file_share_its_weights_until_the_last_is_released(runtime):
    runtime.load(program("plain"))
    module = weakref.ref(runtime._module(FILE))
    runtime.load(program("dual"))
    assert runtime._module(FILE) is module()
    runtime.release(program("plain"))
    gc.collect()
    assert module() is not None
    runtime.release(program("dual"))
    gc.collect()
    assert module() is None
    np.testing.assert_allclose(runtime.run(program("plain"), {"hidden": HIDDEN, "ids": IDS})["hidden"], EXPECTED)


def test_close_frees_everything(runtime):
    runtime.load(program("plain"))
    module = weakref.ref(runtime._module(FILE))
    runtime.close()
    gc.collect()
    assert module() is None


def test_a_missing_file_or_method_is_named(runtime):
    with pytest.raises(BundleError, match=r"other\.pt is missing"):
        runtime.load(program("plain", "torchscript/other.pt"))
    with pytest.raises(BundleError, match="no method vjp"):
        runtime.load(program("vjp"))


@pytest.mark.parametrize("keep", [0, 100, -200])
def test_a_damaged_file_is_refused(folder, tmp_path, keep):
    (tmp_path / "torchscript").mkdir()
    (tmp_path / FILE).write_bytes((folder / FILE).read_bytes()[:keep])
    with open_runtime("torchscript", tmp_path) as runtime, pytest.raises(BundleError, match="damaged") as caught:
        runtime.load(program("plain"))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there_is_refused(folder):
    with pytest.raises(SpryError, match="finds no CUDA"):
        open_runtime("torchscript", folder, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_programs_run_on_cuda(folder):
    with open_runtime("torchscript", folder, device="cuda") as runtime:
        found = runtime.run(program("plain"), {"hidden": HIDDEN, "ids": IDS})
    np.testing.assert_allclose(found["hidden"], EXPECTED, rtol=1e-5)


_ALONE = """
import sys
from pathlib import Path
from edge_client.runtimes.runtime import open_runtime
with open_runtime("torchscript", Path(sys.argv[1]), threads=1) as runtime:
    runtime._module("torchscript/block.0.pt")
import torch
assert torch.get_num_threads() == 1
print(sorted({"torchao", "transformers", "export"} & sys.modules.keys()))
"""


def test_loading_needs_torch_alone(folder):
    command = [sys.executable, "-W", "ignore", "-c", _ALONE, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert found.stdout.strip() == "[]"
