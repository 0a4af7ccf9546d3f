"""A GGUF file's blocks in a bundle: its integers and scales on ONNX Runtime, and what other runtimes make of them."""

from random import randrange

import gguf
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import fx, nn
from typer.testing import CliRunner

from edge_client.bundle.folder import Bundle
from export.cli import export
from export.lower.onnx.file_blocks import FileBlocks
from export.lower.onnx.graph import Graph, WeightFile
from export.lower.target import lowering
from export.model.gguf.blocks import GgufBlocks
from export.model.kept import keep
from tests.server.formats.models import base
from tests.server.formats.whole import whole


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_int4_holds_the_files_own_numbers(tmp_path, kind):
    import typer

    folder = base("llama", tmp_path / "llama", seed=randrange(1 << 24))
    file, out = whole(folder, tmp_path / "model.gguf", kind, tokenizer=True), tmp_path / "bundle"
    app = typer.Typer()
    app.command()(export)
    words = ["--task", "causal-lm", "--quantize", "int4", "--batch", "2", "--seq", "16",
             "--no-measure", "--no-cache", "--workers", "1"]  # fmt: skip
    words += ["--generate", "16"] if kind == "Q4_1" else []  # the kind of the most numbers
    result = CliRunner().invoke(app, [str(file), "--out", str(out), *words])
    assert result.exit_code == 0, result.output
    checks = {check.what: check.value for check in Bundle.open(out).manifest.verification}
    assert checks["loss, relative change by quantization"] < 1e-5, "of the file's weights in float32"
    assert checks["weights of the file, relative change by rounding"] == 0
    tensors = {t.name: t.data for t in gguf.GGUFReader(file).tensors}
    stored = b"".join(path.read_bytes() for path in sorted((out / "onnx").rglob("*.bin")))
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    for name in ("blk.0.ffn_up.weight", "blk.1.attn_output.weight", "token_embd.weight"):
        blocks = np.ascontiguousarray(tensors[name]).reshape(-1, size)
        scales = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype("<f4")
        assert scales.tobytes() in stored
        codes = blocks[:, size - (32 if kind == "Q8_0" else 16) :]
        if kind == "Q8_0":
            assert (codes ^ 128).tobytes() in stored
        else:
            apart = np.concatenate([codes & 15, codes >> 4], 1)
            assert (apart[:, 0::2] | apart[:, 1::2] << 4).tobytes() in stored


@pytest.mark.parametrize("runtime", ["executorch", "torchscript"])
def test_other_runtimes_round_a_files_8_bits_to_8_bits_at_least(runtime):
    weight = torch.randn(64, 64)
    noted = weight.clone()
    keep([noted], {nn.Parameter(noted): GgufBlocks(np.zeros((64, 2 * 34), np.uint8), "Q8_0")})
    rounded = [
        lowering(runtime).dequantized("w", one, precision, embedding=False)
        for one, precision in ((noted, "int4"), (weight, "int8"), (weight, "int4"))
    ]
    assert torch.equal(rounded[0], rounded[1])
    assert not torch.equal(rounded[0], rounded[2])


@pytest.mark.parametrize("tokens", [1, 3])
def test_shifts_of_blocks_are_added_as_the_file_has_them(tokens, tmp_path):
    weight, x = torch.randn(64, 96), torch.randn(2, tokens, 96)
    quantized = gguf.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q4_1)
    keep([weight], {nn.Parameter(weight): GgufBlocks(quantized, "Q4_1")})
    node = fx.Graph().placeholder("x")
    node.meta["val"] = x
    graph, own = Graph(), WeightFile("weights.bin")
    graph.values[node] = "in0"
    graph.enter("y")
    product = FileBlocks("w", weight, own, rows=False, own=own).linear(graph, node)
    result = fx.Graph().placeholder("y")
    result.meta["val"] = x.new_empty(2, tokens, 64)
    graph.values[result] = product
    (tmp_path / "weights.bin").write_bytes(own.content() or b"")
    model = graph.model([node], [result])
    assert "Gemm" in [one.op_type for one in onnx.load_from_string(model).graph.node]
    (tmp_path / "model.onnx").write_bytes(model)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    dequantized = gguf.dequantize(quantized, gguf.GGMLQuantizationType.Q4_1)
    np.testing.assert_allclose(session.run(None, {"in0": x.numpy()})[0], x.numpy() @ dequantized.T, atol=0.2)
