"""Which processors int8 products are made for: names, what overflows where, and who is told."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_client.bundle.manifest import ProgramSpec, TensorSpec
from edge_client.errors import WrongResults
from edge_client.runtimes import processors
from edge_client.runtimes.processors import PROCESSORS, cpu_features, exact, named, remark, this_processor
from edge_client.runtimes.runtime import open_runtime


def test_machines_are_named_by_what_they_have() -> None:
    assert named("x86_64", cpu_features("flags\t: fpu sse avx2 avx512f")) == "avx2"
    assert named("x86_64", cpu_features("flags\t: avx2 avx_vnni")) == "vnni"
    assert named("AMD64", cpu_features("flags\t: avx2 avx512_vnni amx_int8")) == "amx"
    assert named("x86_64", ()) == "avx2"
    assert named("aarch64", cpu_features("Features\t: fp asimd asimddp")) == named("arm64", ()) == "arm-dotprod"
    assert this_processor() in PROCESSORS


def test_only_signed_products_on_x86_before_vnni_are_wrong() -> None:
    wrong = {pair for pair in product(("", *PROCESSORS), PROCESSORS) if not exact(*pair)}
    assert wrong == {(name, "avx2") for name in PROCESSORS if name != "avx2"}


def test_who_has_another_processor_is_told_in_one_line() -> None:
    assert "would overflow on this one: export again with --processor avx2" in remark("vnni", "avx2")
    for made_for, here in (("", "avx2"), ("avx2", "avx2"), ("vnni", "amx"), ("avx2", "amx"), ("amx", "vnni")):
        assert remark(made_for, here) == ""  # type: ignore[arg-type]


def write_product(folder: Path, name: str, weight: np.ndarray) -> ProgramSpec:
    """x, rounded around 128, by a weight in bytes."""
    constants = [
        numpy_helper.from_array(np.float32(1), "one"),
        numpy_helper.from_array(np.uint8(128), "zero"),
        numpy_helper.from_array(weight.dtype.type(0), "middle"),
        numpy_helper.from_array(weight, name),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["q"]),
        helper.make_node("MatMulIntegerToFloat", ["q", name, "one", "one", "zero", "middle"], ["y"],
                         domain="com.microsoft"),
    ]  # fmt: skip
    shapes = {"x": (2, weight.shape[0]), "y": (2, weight.shape[1])}
    values = [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in shapes.items()]
    graph = helper.make_graph(nodes, "product", values[:1], values[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    (folder / "product.onnx").write_bytes(model.SerializeToString())
    specs = [(TensorSpec(key, "float32", shape),) for key, shape in shapes.items()]
    return ProgramSpec("product", "plain", 2, 1, 0, "product.onnx", "", *specs, flops=0, load_bytes=0, peak_bytes=0)


@pytest.mark.skipif(this_processor() == "avx2", reason="this processor has no dot products of bytes")
def test_signed_products_are_exact_here_and_refused_on_a_processor_before_vnni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = np.full((64, 32), 127, np.int8)
    program = write_product(tmp_path, "w0.s8", weight)
    x = np.full((2, 64), 127, np.float32)
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        assert np.array_equal(runtime.run(program, {"x": x})["y"], np.full((2, 32), 64 * 127 * 127, np.float32))
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t\t: fpu sse2 avx avx2 fma\n")
    monkeypatch.setattr(processors, "CPUINFO", cpuinfo)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with open_runtime("onnx", tmp_path, threads=1) as runtime, pytest.raises(WrongResults) as caught:
        runtime.run(program, {"x": x})
    assert "is for another processor" in str(caught.value)
    assert "--processor avx2" in str(caught.value)
    narrow = write_product(tmp_path, "w0.s7", weight // 2)
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        assert np.array_equal(runtime.run(narrow, {"x": x})["y"], np.full((2, 32), 64 * 127 * 63, np.float32))
