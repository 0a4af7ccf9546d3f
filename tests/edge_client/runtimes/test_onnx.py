"""The common interface of the runtimes, and ONNX Runtime behind it, on a hand-written program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from edge_client.distribution import install_command
from edge_client.errors import BundleError, ProgramInputError, RuntimeMissing, SpryError
from edge_client.runtimes.onnx import OnnxRuntime, _is_read_often
from edge_client.runtimes.onnx_weights import OutsideWeight, outside_weights, taking
from edge_client.runtimes.runtime import Runtime, available, open_runtime

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


def write_program(folder: Path) -> ProgramSpec:
    """y = x @ w, and how many of `ids` are positive; the weight lies in an external file."""
    (folder / "weights.bin").write_bytes(WEIGHT.tobytes())
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=WEIGHT.shape, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(WEIGHT.nbytes))):
        weight.external_data.add(key=key, value=value)
    zero = onnx.numpy_helper.from_array(np.zeros((), np.int64), "zero")
    nodes = [
        helper.make_node("MatMul", ["in0", "w"], ["out0"]),
        helper.make_node("Greater", ["in1", "zero"], ["positive"]),
        helper.make_node("Cast", ["positive"], ["counted"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["counted"], ["out1"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "program",
        [
            helper.make_tensor_value_info("in0", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("in1", TensorProto.INT64, [2]),
        ],
        [
            helper.make_tensor_value_info("out0", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("out1", TensorProto.FLOAT, []),
        ],
        [weight, zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "program.onnx").write_bytes(model.SerializeToString())
    return ProgramSpec(
        segment="block.0",
        kind="plain",
        batch=2,
        length=3,
        directions=0,
        file="program.onnx",
        method="",
        inputs=(TensorSpec("hidden", "float32", (2, 3)), TensorSpec("ids", "int64", (2,))),
        outputs=(TensorSpec("result", "float32", (2, 4)), TensorSpec("count", "float32", ())),
        flops=0,
        load_bytes=0,
        peak_bytes=0,
    )


@pytest.fixture
def program(tmp_path: Path) -> ProgramSpec:
    return write_program(tmp_path)


@pytest.fixture
def inputs() -> dict[str, Any]:
    return {"hidden": np.array([[1, 2, 3], [4, 5, 6]], np.float32), "ids": np.array([5, -5])}


def test_a_program_runs_on_named_arrays(tmp_path: Path, program: ProgramSpec, inputs: dict[str, Any]) -> None:
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        found = runtime.run(program, dict(reversed(inputs.items())))
    np.testing.assert_allclose(found["result"], inputs["hidden"] @ WEIGHT)
    assert found["count"] == 1


def test_arrays_need_not_be_contiguous(tmp_path: Path, program: ProgramSpec, inputs: dict[str, Any]) -> None:
    turned = {**inputs, "hidden": np.asfortranarray(inputs["hidden"])}
    with open_runtime("onnx", tmp_path) as runtime:
        np.testing.assert_allclose(runtime.run(program, turned)["result"], inputs["hidden"] @ WEIGHT)


def test_programs_of_equal_models_share_a_session_with_weights_of_their_own(
    tmp_path: Path, inputs: dict[str, Any]
) -> None:
    programs = []
    for number in range(2):
        folder = tmp_path / f"block.{number}"
        folder.mkdir()
        programs.append(msgspec.structs.replace(write_program(folder), file=f"{folder.name}/program.onnx"))
        (folder / "weights.bin").write_bytes((WEIGHT + number).tobytes())
    with OnnxRuntime(tmp_path, threads=1) as runtime:
        for number, program in [*enumerate(programs)] * 2:
            found = runtime.run(program, inputs)["result"]
            np.testing.assert_allclose(found, inputs["hidden"] @ (WEIGHT + number))
        assert len(runtime._sessions) == 1
        runtime.release(programs[0])
        np.testing.assert_allclose(runtime.run(programs[1], inputs)["result"], inputs["hidden"] @ (WEIGHT + 1))


def with_weight_in(location: str) -> bytes:
    """Return a model with one weight inside and one in a file."""
    outside = TensorProto(name="w", data_type=TensorProto.INT8, dims=(300, 2), data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "4096"), ("length", "600")):
        outside.external_data.add(key=key, value=value)
    inside = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "c")
    return helper.make_model(helper.make_graph([], "program", [], [], [inside, outside])).SerializeToString()


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname", "other/weights.bin"])
def test_weights_in_other_folders_are_not_read(location: str) -> None:
    assert outside_weights(with_weight_in(location)) is None


def test_weights_in_files_are_found_in_a_models_bytes() -> None:
    model = with_weight_in("weights.bin")
    weights = outside_weights(model)
    assert weights == [OutsideWeight("w", TensorProto.INT8, (300, 2), "weights.bin", 4096)]
    content = np.arange(5000, dtype=np.uint8)
    np.testing.assert_array_equal(weights[0].of(content).ravel(), content[4096:4696].view(np.int8))
    (declared,) = onnx.load_model_from_string(taking(model, weights)).graph.input
    assert declared == helper.make_tensor_value_info("w", TensorProto.INT8, [300, 2])


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x3a\xff"])
def test_bytes_that_are_no_model_have_no_weights_in_files(content: bytes) -> None:
    assert not outside_weights(content)


def test_programs_are_loaded_once_and_released(tmp_path: Path, program: ProgramSpec, inputs: dict[str, Any]) -> None:
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        runtime.load(program)
        (tmp_path / "program.onnx").unlink()
        assert runtime.run(program, inputs)["count"] == 1
        runtime.release(program)
        with pytest.raises(BundleError, match=r"program\.onnx is missing"):
            runtime.run(program, inputs)
        runtime.release(program)


def one_node(folder: Path, node: onnx.NodeProto, shape: tuple[int, ...]) -> ProgramSpec:
    """A program of `size`, an integer, to `result`."""
    size = helper.make_tensor_value_info("size", TensorProto.INT64, [1])
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "program", [size], [result]), opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )  # fmt: skip
    spec = write_program(folder)
    (folder / "program.onnx").write_bytes(model.SerializeToString())
    return msgspec.structs.replace(
        spec, inputs=(TensorSpec("size", "int64", (1,)),),
        outputs=(TensorSpec("result", "float32", shape),),
    )  # fmt: skip


def test_a_program_that_fails_is_a_bundle_that_cannot_be_used(tmp_path: Path) -> None:
    """Whatever its library raises: an error of ours in one line."""
    program = one_node(tmp_path, helper.make_node("ConstantOfShape", ["size"], ["result"]), (2,))
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        assert runtime.run(program, {"size": np.array([2])})["result"].tolist() == [0, 0]
        with pytest.raises(
            BundleError, match=r"^block\.0\.plain \[2x3\] cannot be run: .* take another runtime$"
        ) as caught:
            runtime.run(program, {"size": np.array([-2])})
        assert "\n" not in str(caught.value)
        with pytest.raises(SpryError, match=r"out of memory in block\.0.*--low-memory"):
            runtime.run(program, {"size": np.array([2**46])})
        with pytest.raises(BundleError, match=r"comes as float32 \[3\] where its manifest says float32 \[2\]"):
            runtime.run(program, {"size": np.array([3])})


def test_a_program_that_is_wanted_no_more_is_freed(tmp_path: Path, program: ProgramSpec) -> None:
    (tmp_path / "other.onnx").write_bytes((tmp_path / "program.onnx").read_bytes())
    other = msgspec.structs.replace(program, file="other.onnx")
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        runtime.load(program)
        runtime.load(other)
        runtime.keep([program])
        assert (runtime.holds(program), runtime.holds(other)) == (True, False)
        runtime.keep([program, other])
        assert runtime.holds(program)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": np.zeros((2, 3))}, r"hidden of block\.0\.plain .* must be float32 \[2, 3\], got float64 \[2, 3\]"),
        ({"hidden": np.zeros((2, 4), np.float32)}, r"must be float32 \[2, 3\], got float32 \[2, 4\]"),
        ({"ids": np.zeros(2, np.int32)}, r"ids of .* must be int64 \[2\], got int32 \[2\]"),
        ({"ids": None}, r"missing: ids$"),
        ({"tangent": np.zeros(1)}, r"not expected: tangent$"),
        ({"tangent": np.zeros(1), "ids": None}, r"missing: ids; not expected: tangent$"),
    ],
)
def test_inputs_that_do_not_fit_are_named(
    tmp_path: Path, program: ProgramSpec, inputs: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    given = {name: value for name, value in (inputs | change).items() if value is not None}
    with open_runtime("onnx", tmp_path) as runtime, pytest.raises(ProgramInputError, match=message):
        runtime.run(program, given)


@pytest.mark.parametrize("broken", ["program.onnx", "weights.bin"])
def test_a_damaged_file_is_named(tmp_path: Path, program: ProgramSpec, inputs: dict[str, Any], broken: str) -> None:
    (tmp_path / broken).write_bytes((tmp_path / broken).read_bytes()[:20])
    with open_runtime("onnx", tmp_path) as runtime, pytest.raises(BundleError, match=r"cannot load program\.onnx"):
        runtime.run(program, inputs)


def test_an_unknown_runtime_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpryError, match="unknown runtime 'tflite'; expected one of onnx, executorch, torchscript"):
        open_runtime("tflite", tmp_path)


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "edge_client.runtimes.onnx", raising=False)
    with pytest.raises(RuntimeMissing, match="the runtime onnx needs the extra 'onnx' ") as caught:
        open_runtime("onnx", tmp_path)
    assert str(caught.value).endswith(install_command("onnx"))


def test_installed_runtimes_are_listed() -> None:
    assert "onnx" in available()


def test_every_runtime_has_the_interface(tmp_path: Path) -> None:
    for name in available():
        with open_runtime(name, tmp_path, threads=1) as runtime:
            assert isinstance(runtime, Runtime)


def test_the_process_needs_no_torch(tmp_path: Path, program: ProgramSpec) -> None:
    script = (
        "import sys, pathlib; from edge_client.runtimes.runtime import open_runtime;"
        f"open_runtime('onnx', pathlib.Path({str(tmp_path)!r}));"
        "print(sorted({'torch', 'onnx', 'transformers'} & set(sys.modules)), 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "True"]


def test_the_interface_alone_imports_no_library() -> None:
    script = "import sys, edge_client.runtimes.runtime; print('onnxruntime' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_runtime_of_the_cpu_refuses_another_device(tmp_path: Path) -> None:
    with pytest.raises(SpryError, match="runs on the CPU alone"):
        open_runtime("onnx", tmp_path, device="cuda")


def write_sizes_in_turn(folder: Path, sizes: list[int]) -> ProgramSpec:
    """A chain that spreads a number over each of these sizes, in megabytes, and sums it again: one alive at a time."""
    nodes: list[Any] = []
    constants: list[Any] = []
    value = "in0"
    for i, size in enumerate(sizes):
        constants.append(onnx.numpy_helper.from_array(np.array([size << 18], np.int64), f"shape{i}"))
        nodes.append(helper.make_node("Expand", [value, f"shape{i}"], [f"wide{i}"]))
        value = "out0" if i == len(sizes) - 1 else f"sum{i}"
        nodes.append(helper.make_node("ReduceMax", [f"wide{i}"], [value], keepdims=1))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("in0", "out0")]
    graph = helper.make_graph(nodes, "program", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (folder / "program.onnx").write_bytes(model.SerializeToString())
    return ProgramSpec(
        segment="block.0", kind="plain", batch=1, length=1, directions=0, file="program.onnx", method="",
        inputs=(TensorSpec("hidden", "float32", (1,)),), outputs=(TensorSpec("result", "float32", (1,)),),
        flops=0, load_bytes=0, peak_bytes=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("directions", "operator", "size", "packed"),
    [
        (4, b"MatMulIntegerToFloat", 4_000_000, True),
        (1, b"MatMulIntegerToFloat", 4_000_000, False),  # read once or twice
        (4, b"MatMulIntegerToFloat", 4_000_001, False),  # a copy of much
        (4, b"MatMul", 4_000_000, False),  # in float32
    ],
)
def test_small_int8_weights_are_packed_for_several_directions(
    tmp_path: Path, program: ProgramSpec, directions: int, operator: bytes, size: int, packed: bool
) -> None:
    path = tmp_path / "program.onnx"
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(size)
    program = msgspec.structs.replace(program, directions=directions)
    assert _is_read_often(program, b"..." + operator + b"...", path) is packed


def test_a_buffer_is_not_kept_for_a_later_value_of_its_size(tmp_path: Path) -> None:
    sizes = [24, 20, 16, 12, 8]
    program = write_sizes_in_turn(tmp_path, [*sizes, *sizes])
    (tmp_path / "program.json").write_bytes(msgspec.json.encode(program))
    script = (
        "import msgspec, numpy as np; from pathlib import Path; from edge_client.bundle.manifest import ProgramSpec\n"
        "from edge_client.memory import peak_above, resident; from edge_client.runtimes.runtime import open_runtime\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "program = msgspec.json.decode((folder / 'program.json').read_bytes(), type=ProgramSpec)\n"
        "runtime = open_runtime('onnx', folder, threads=1)\n"
        "runtime.load(program)\n"
        "inputs = {'hidden': np.ones(1, np.float32)}\n"
        "print(peak_above(resident('RssAnon'), lambda: runtime.run(program, inputs)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 70e6  # the sum of the sizes is 84e6, and the arena holds two regions
