import gc
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge_client.bundle import manifest as manifests
from edge_client.distribution import install_command
from edge_client.errors import BundleError
from edge_client.runtimes.measure import random_input
from edge_client.runtimes.runtime import Listing, open_runtime

needs_package = pytest.mark.skipif(
    find_spec("executorch_numpy_runtime") is None,
    reason="executorch-numpy-runtime (extra executorch-light) is not installed; it needs Python 3.12",
)


@pytest.fixture(scope="module", params=["none", "int8"])
def folder(request, exported_once) -> Path:
    return exported_once(f"executorch-{request.param}", runtimes=("executorch",), precision=request.param)


@pytest.fixture
def runtime(folder):
    from edge_client.runtimes.executorch_light import LightExecutorchRuntime

    with LightExecutorchRuntime(folder, threads=1) as runtime:
        yield runtime


def programs(folder):
    return manifests.read(folder / manifests.FILE_NAME).runtimes["executorch"].programs


def inputs(program):
    return {spec.name: random_input(spec, seed) for seed, spec in enumerate(program.inputs)}


# A process of its own: the two libraries have functions of the same names, and one of them brings torch.
RUN_ALL = """
import sys
from pathlib import Path
import numpy as np
from edge_client.bundle import manifest as manifests
from edge_client.runtimes.measure import random_input
from edge_client.runtimes.executorch_light import LightExecutorchRuntime
folder = Path(sys.argv[1])
results = {}
with LightExecutorchRuntime(folder, threads=1) as runtime:
    for program in manifests.read(folder / manifests.FILE_NAME).runtimes["executorch"].programs:
        values = {spec.name: random_input(spec, seed) for seed, spec in enumerate(program.inputs)}
        for name, value in runtime.run(program, values).items():
            results[f"{program.name} {name}"] = value
np.savez(sys.argv[2], **results)
print("torch" in sys.modules)
"""


@needs_package
def test_every_program_gives_what_executorch_gives_and_no_torch_is_imported(folder, tmp_path):
    command = [sys.executable, "-c", RUN_ALL, str(folder), str(tmp_path / "light.npz")]
    overwritten = os.environ | {"MALLOC_PERTURB_": "173"}  # as soon as it is freed, so that nobody can go on reading it
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=overwritten)
    assert done.stdout.split() == ["False"]
    light = np.load(tmp_path / "light.npz")
    with open_runtime("executorch", folder, threads=1) as runtime:
        for program in programs(folder):
            for name, expected in runtime.run(program, inputs(program)).items():
                found = light[f"{program.name} {name}"]
                assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), (program.name, name)


@needs_package
def test_results_outlive_the_next_run_and_the_program(runtime, folder):
    program = programs(folder)[0]
    (first,) = runtime.run(program, inputs(program)).values()
    kept = first.copy()
    runtime.run(program, {name: value * 0 for name, value in inputs(program).items()})
    runtime.close()
    gc.collect()
    np.testing.assert_array_equal(first, kept)


@needs_package
def test_arrays_that_may_not_be_written_are_read_all_the_same(runtime, folder):
    program = programs(folder)[0]
    frozen = inputs(program)
    for value in frozen.values():
        value.flags.writeable = False
    for found, expected in zip(
        runtime.run(program, frozen).values(), runtime.run(program, inputs(program)).values(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@needs_package
def test_a_released_program_gives_its_file_back_and_the_others_open_it_again(runtime, folder):
    first, second = [program for program in programs(folder) if program.segment == "block.1"][:2]
    expected = runtime.run(first, inputs(first))
    runtime.run(second, inputs(second))
    runtime.release(programs(folder)[0])  # not loaded: nothing to give back
    assert list(runtime._files) == [first.file]
    runtime.release(second)
    assert not runtime._files
    for found, before in zip(runtime.run(first, inputs(first)).values(), expected.values(), strict=True):
        np.testing.assert_array_equal(found, before)


@needs_package
def test_a_missing_file_or_method_is_named(runtime, folder):
    program = programs(folder)[0]
    with pytest.raises(BundleError, match=r"other\.pte is missing"):
        runtime.load(msgspec.structs.replace(program, file="executorch/other.pte"))
    with pytest.raises(BundleError, match=f"cannot load other of {program.file}"):
        runtime.load(msgspec.structs.replace(program, method="other"))
    assert not runtime._files


@needs_package
@pytest.mark.parametrize("keep", [0, 100, -200])
def test_a_damaged_file_is_refused(folder, tmp_path, keep):
    from edge_client.runtimes.executorch_light import LightExecutorchRuntime

    program = programs(folder)[0]
    (tmp_path / program.file).parent.mkdir()
    (tmp_path / program.file).write_bytes((folder / program.file).read_bytes()[:keep])
    with LightExecutorchRuntime(tmp_path) as runtime, pytest.raises(BundleError, match="damaged"):
        runtime.load(program)


@needs_package
def test_the_number_of_threads_is_set(folder):
    script = (
        "import os, sys, pathlib; from edge_client.runtimes.executorch_light import LightExecutorchRuntime\n"
        "for threads in (3, 1):\n"
        "    LightExecutorchRuntime(pathlib.Path(sys.argv[1]), threads=threads)\n"
        "    print(len(os.listdir('/proc/self/task')))"
    )
    command = [sys.executable, "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "1"]


@pytest.mark.parametrize(
    ("installed", "library"),
    [
        (["heavy_one", "light_one"], "heavy_one"),
        (["heavy_one"], "heavy_one"),
        (["light_one"], "light_one"),
        ([], "light_one"),
    ],
)
def test_the_light_library_is_used_where_it_is_the_only_one(tmp_path, monkeypatch, installed, library):
    for name in installed:
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    listing = Listing("heavy:Heavy", "heavy_one", "heavy", light=Listing("light:Light", "light_one", "light"))
    assert listing.installed == bool(installed)
    assert listing.used.library == library
    assert listing.command() == install_command(library.removesuffix("_one"))


def test_an_older_python_is_not_told_to_install_what_it_cannot():
    light = Listing("light:Light", "light_one", "light", python=(99, 0))
    assert Listing("heavy:Heavy", "heavy_one", "heavy", light=light).command() == install_command("heavy")
