"""The ONNX lowering: every program gives in ONNX Runtime what its graph gives in torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from edge_client.bundle.manifest import DUAL, PLAIN, VJP, ProgramSpec, TensorSpec
from edge_client.runtimes.processors import PROCESSORS, this_processor
from edge_client.runtimes.runtime import open_runtime
from export.dual.builder import build
from export.dual.programs import Program, input_name
from export.errors import ExportError
from export.graph import ops, vocabulary
from export.graph.slots import Role, Slot, slot_of, value_of
from export.lower.onnx.encodings import (
    decode_blocks,
    decode_rows,
    encode_blocks,
    encode_rows,
    group_of,
    turn,
)
from export.lower.onnx.graph import Graph, WeightFile
from export.lower.onnx.lowering import LOWERING, OnnxLowering
from export.lower.onnx.processors import PRODUCTS
from export.lower.target import Precision, Shaped, lowering, processor_for
from tests.export.lower.shaped import BATCH, LENGTH, compared, programs_of, spec_of, write
from tests.export.models import Chain

# Relative to the root mean square of a result. Tiny models with random weights round worse than real ones.
TOLERANCE = {"none": 1e-5, "int8": 3e-2, "int4": 0.15}


def readers(programs: dict[str, list[Shaped]], *targets: object) -> set[str]:
    nodes = (n for group in programs.values() for s in group for n in s.program.graph.graph.nodes)
    return {slot_of(node.args[1]).name for node in nodes if node.target in targets}


def values_for(chain: Chain, program: Program) -> Iterator[tuple[Slot, Tensor]]:
    """Inputs of a program: real tokens and weights, random states, tangents and directions."""
    generator = torch.Generator().manual_seed(1)
    examples = chain.loaded.example_inputs(BATCH, LENGTH)
    for node in program.inputs:
        slot = slot_of(node)
        if slot.role is Role.INPUT:
            yield slot, examples[slot.name]
        elif slot in chain.parameters:
            yield slot, chain.parameters[slot]
        else:
            yield slot, torch.randn(value_of(node).shape, generator=generator)


def error(found: NDArray[np.float32], wanted: NDArray[np.float32], scale: float) -> float:
    return float(np.sqrt(np.mean((found - wanted) ** 2)) / scale)


def check(
    chain: Chain, precision: Precision, folder: Path, directions: int = 1, *, target: OnnxLowering = LOWERING
) -> None:
    programs = programs_of(chain, directions)
    multiplied = readers(programs, ops.linear, ops.linear_t)
    looked_up = readers(programs, ops.embedding)

    def seen(slot: Slot) -> Tensor:
        weight = chain.captured.stored[slot.name]
        if slot.role is Role.FROZEN and slot.name in multiplied | looked_up:
            weight = target.dequantized(slot.name, weight, precision, embedding=slot.name not in multiplied)
        return slot.of(weight)

    for segment, group in programs.items():
        stored = chain.captured.stored
        lowered = target.lower(segment, group, stored, precision, tied=multiplied & looked_up)
        write(lowered.files, folder)
        with open_runtime("onnx", folder, threads=1) as runtime:
            for shaped in group:
                program = shaped.program
                inputs = dict(values_for(chain, program))
                weights = [seen(slot_of(node)) for node in program.stored]
                with torch.no_grad():
                    wanted = program.graph(*inputs.values(), *weights)
                named = {input_name(slot): value.numpy() for slot, value in inputs.items()}
                found = runtime.run(spec_of(shaped, lowered.entries[shaped.name]), named)
                # Gradients that are zero by symmetry have no scale of their own.
                gradients = [w for name, w in zip(program.outputs, wanted, strict=True) if name.startswith("g:")]
                floor = 0.1 * max((float(g.square().mean().sqrt()) for g in gradients), default=0) + 1e-6
                for name, expected in zip(program.outputs, wanted, strict=True):
                    pair = torch.as_tensor(found[name]), expected
                    have, want = (compared(program, name, value) for value in pair)
                    scale = max(float(want.square().mean().sqrt()), floor)
                    off = error(have.numpy(), want.numpy(), scale)
                    assert off <= TOLERANCE[precision], f"{segment} {shaped.name} {name}: {off:.2e}"


ALL: tuple[Precision, ...] = ("none", "int8", "int4")
FLOATS: tuple[Precision, ...] = ("none",)


@pytest.mark.parametrize(
    ("architecture", "task", "method", "precisions"),
    [
        ("bert", "seq-cls", "lora", ALL),
        ("bert", "qa", "bitfit", FLOATS),
        ("distilbert", "seq-cls", "classifier", FLOATS),
        ("roberta", "causal-lm", "ia3", FLOATS),
        ("albert", "qa", "lora", FLOATS),
        ("electra", "seq-cls", "bottleneck", FLOATS),
        ("gpt2", "causal-lm", "lora", ALL),
        ("opt", "causal-lm", "lora", ALL),
        ("llama", "qa", "ia3", ALL),
        ("gemma3", "seq-cls", "lora", FLOATS),
    ],
)
def test_programs_agree_with_weights_as_stored(
    architecture: str, task: str, method: str, precisions: tuple[Precision, ...], tmp_path: Path
) -> None:
    chain = Chain.build(architecture, task, method, batch=BATCH, length=LENGTH, narrowed=True)
    for precision in precisions:
        check(chain, precision, tmp_path / precision, 2)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_vocabulary_in_parts(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LARGEST", 64 * 32)
    chain = Chain.build(architecture, "causal-lm", "lora", batch=BATCH, length=LENGTH)
    for precision in ALL:
        check(chain, precision, tmp_path / precision, 2)


def test_labels_of_a_vocabulary_in_parts_are_looked_up_once_on_the_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LARGEST", 64 * 32)
    chain = Chain.build("llama", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    (shaped,) = (one for one in programs_of(chain)["head"] if one.program.kind == VJP)
    lowered = LOWERING.lower("head", [shaped], chain.captured.stored, "int8")
    (content,) = (content for file, content in lowered.files.items() if file.endswith(".onnx"))
    kinds = [node.op_type for node in onnx.load_from_string(content).graph.node]
    assert "Equal" not in kinds, "no product with ones where labels stand"
    assert kinds.count("MatMulIntegerToFloat") == 4, "there and back, of two parts"


@pytest.fixture(scope="module")
def bert() -> Chain:
    return Chain.build("bert", "seq-cls", "lora", batch=BATCH, length=LENGTH)


@pytest.mark.parametrize("precision", ["none", "int8", "int4"])
def test_weights_are_stored_once_for_all_programs(bert: Chain, precision: Precision) -> None:
    group = programs_of(bert)["block.1"]
    alone = LOWERING.lower("block.1", group[:1], bert.captured.stored, precision)
    everything = LOWERING.lower("block.1", group, bert.captured.stored, precision)
    weights = "onnx/block.1/weights.bin"
    # What int4 adds for the exact gradient is its zero points.
    assert len(everything.files[weights]) <= 1.05 * len(alone.files[weights])
    assert set(everything.files) == {weights, *(f"onnx/block.1/{shaped.name}.onnx" for shaped in group)}
    assert max(len(content) for path, content in everything.files.items() if path != weights) < 40_000


def test_quantized_weights_are_smaller(bert: Chain) -> None:
    group = programs_of(bert)["block.0"]
    size = {}
    for precision in ("none", "int8", "int4"):
        size[precision] = len(LOWERING.lower("block.0", group, bert.captured.stored, precision).files[
            "onnx/block.0/weights.bin"
        ])  # fmt: skip
    assert size["int4"] < size["int8"] < size["none"] / 2


def test_files_are_the_same_every_time_and_for_every_block(bert: Chain) -> None:
    programs = programs_of(bert)
    stored = bert.captured.stored

    def hashes(segment: str) -> dict[str, str]:
        files = LOWERING.lower(segment, programs[segment], stored, "int8").files
        return {path.rpartition("/")[2]: hashlib.sha256(content).hexdigest() for path, content in files.items()}

    assert hashes("block.0") == hashes("block.0")
    first, second = hashes("block.0"), hashes("block.1")
    assert first.pop("weights.bin") != second.pop("weights.bin")
    assert {name: second[name] for name in first if name in second} == {
        name: value for name, value in first.items() if name in second
    }


def test_a_tied_table_is_one_file_for_both_of_its_segments() -> None:
    chain = Chain.build("gpt2", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    programs, ends = programs_of(chain), ("embed", "head")
    tied = readers(programs, ops.linear) & readers(programs, ops.embedding)
    (name,) = tied
    for precision in ALL:
        embed, head = (
            LOWERING.lower(segment, programs[segment], chain.captured.stored, precision, tied=tied).files
            for segment in ends
        )
        assert embed.keys() & head.keys() == {f"onnx/tied/{name}.bin"}
        assert embed[f"onnx/tied/{name}.bin"] == head[f"onnx/tied/{name}.bin"]


def test_int8_stacks_no_values_and_tangents_but_for_other_layers(bert: Chain) -> None:
    (dual,) = [shaped for shaped in programs_of(bert)["block.1"] if shaped.program.kind == DUAL]
    products = sum(node.target is ops.linear for node in dual.program.graph.graph.nodes)
    kinds_: dict[str, list[str]] = {}
    for precision in ("int8", "int4"):
        lowered = LOWERING.lower("block.1", [dual], bert.captured.stored, precision)
        model = onnx.load_from_string(lowered.files[lowered.entries[dual.name].file])
        kinds_[precision] = [node.op_type for node in model.graph.node]
    assert kinds_["int8"].count("MatMulIntegerToFloat") == 2 * products
    assert kinds_["int4"].count("MatMulNBits") == products
    assert kinds_["int8"].count("Concat") < kinds_["int4"].count("Concat")


def test_norms_are_one_operator_where_no_tangents_read_within() -> None:
    chain = Chain.build("llama", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    of_block = {shaped.program.kind: shaped for shaped in programs_of(chain)["block.1"]}
    counts: dict[str, list[int]] = {}
    for kind in (PLAIN, DUAL):
        lowered = LOWERING.lower("block.1", [of_block[kind]], chain.captured.stored, "int8")
        model = onnx.load_from_string(next(content for file, content in lowered.files.items() if file.endswith("onnx")))
        kinds_ = [node.op_type for node in model.graph.node]
        counts[kind] = [kinds_.count("SimplifiedLayerNormalization"), kinds_.count("Sqrt")]
    assert counts == {PLAIN: [2, 0], DUAL: [0, 2]}


@pytest.mark.parametrize(("middle", "carried"), [("mul", 1), ("gate", 1), ("add", 0), ("branch", 0)])
def test_rows_scales_are_carried_to_the_next_rounding(middle: str, carried: int, tmp_path: Path) -> None:
    """Through a slope by element, of one of two factors; not through a sum, nor where scaled rows are read too."""
    rows, columns, wide = 6, 64, 96
    up, gate, down = (torch.randn(out, into) for out, into in ((wide, columns), (wide, columns), (columns, wide)))
    x = torch.randn(2, 3, columns) * torch.logspace(-3, 3, rows).reshape(2, 3, 1)  # rows of very different scales
    slope = torch.randn(2, 3, wide)
    first = x @ up.T
    second = {"add": first + slope, "gate": first * (x @ gate.T)}.get(middle, first * slope)
    wanted = second @ down.T
    values = {"x": x, "slope": slope, "first": first, "gated": x @ gate.T, "second": second, "down": wanted}
    nodes = {name: fx.Graph().placeholder(name) for name in values}
    for name, node in nodes.items():
        node.meta["val"] = values[name]
    graph, file = Graph(), WeightFile("weights.bin")
    graph.values.update({nodes["x"]: "in0", nodes["slope"]: "in1"})

    def product(weight: Tensor, given: str, result: str) -> None:
        graph.enter(result)
        frozen = PRODUCTS["avx2"](result, weight, file, rows=False, own=file)
        graph.values[nodes[result]] = frozen.linear(graph, nodes[given])

    product(up, "x", "first")
    if middle == "gate":
        product(gate, "x", "gated")
    graph.enter("second")
    other = nodes["gated" if middle == "gate" else "slope"]
    graph.values[nodes["second"]] = graph.op("Add" if middle == "add" else "Mul", nodes["first"], other)
    product(down, "second", "down")
    given, results = (
        [nodes["x"], nodes["slope"]],
        [nodes[name] for name in ("down", "first")[: 1 + (middle == "branch")]],
    )
    (tmp_path / "product.onnx").write_bytes(graph.model(given, results))
    (tmp_path / "weights.bin").write_bytes(file.content())
    written = onnx.load(tmp_path / "product.onnx", load_external_data=False).graph.node
    assert sum(node.name.endswith(".carried") for node in written) == carried
    inputs, outputs = (
        tuple(TensorSpec(n.name, "float32", tuple(value_of(n).shape)) for n in g) for g in (given, results)
    )
    program = ProgramSpec("s", PLAIN, 2, 3, 0, "product.onnx", "", inputs, outputs, flops=0, load_bytes=0, peak_bytes=0)
    with open_runtime("onnx", tmp_path, threads=1) as runtime:
        found = runtime.run(program, {"x": x.numpy(), "slope": slope.numpy()})["down"]
    for row, expected in zip(found.reshape(rows, -1), wanted.reshape(rows, -1).numpy(), strict=True):
        assert error(row, expected, float(np.sqrt(np.mean(expected**2)))) < 0.04


def test_products_of_bytes_do_not_overflow_on_processors_without_dot_products() -> None:
    """Two products of an unsigned and a signed byte do, in the 16 bits in which x86 adds them before VNNI."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    for processor in PROCESSORS:
        kind = PRODUCTS[processor]
        numbers, _ = encode_rows(weight, turned=True, largest=kind.largest)
        assert np.abs(numbers.astype(int)).max() == kind.largest
        assert (2 * 255 * kind.largest < 2**15) == (processor == "avx2")


@pytest.mark.skipif(this_processor() == "avx2", reason="this processor has no dot products of bytes")
@pytest.mark.parametrize(("architecture", "task"), [("bert", "seq-cls"), ("gpt2", "causal-lm")])
def test_signed_products_agree_with_dequantized_weights(architecture: str, task: str, tmp_path: Path) -> None:
    chain = Chain.build(architecture, task, "lora", batch=BATCH, length=LENGTH)
    check(chain, "int8", tmp_path, 2, target=LOWERING.on("vnni"))


def test_channels_that_come_in_no_groups_of_32_are_turned_in_smaller_ones() -> None:
    random = np.random.default_rng()
    for columns, group in ((64, 32), (48, 16), (70, 2), (33, 1)):
        rows = random.standard_normal((40, columns)).astype(np.float32)
        assert group_of(columns) == group
        np.testing.assert_allclose(turn(turn(rows)), rows, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(turn(rows), axis=1), np.linalg.norm(rows, axis=1), rtol=1e-5)


def test_large_transposed_products_dequantize_slice_by_slice(
    bert: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.lower.onnx.frozen._AT_ONCE", 500)
    check(bert, "int4", tmp_path)


def test_an_op_without_translation_is_named(bert: Chain) -> None:
    program = build(bert.segments[1], PLAIN, 0)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    (result,) = graph.graph_copy(program.graph.graph, copies)  # type: ignore[misc]
    strange = graph.call_function(torch.ops.aten.digamma.default, (result,))
    strange.meta = dict(result.meta)
    graph.output((strange,))
    broken = Program("block.0", PLAIN, 0, fx.GraphModule({}, graph), program.outputs)
    with pytest.raises(ExportError, match=r"aten\.digamma\.default of program plain of segment block\.0 .*onnx/rules"):
        LOWERING.lower("block.0", [Shaped(broken, BATCH, LENGTH)], bert.captured.stored, "none")


def test_rows_are_rounded_to_half_a_step() -> None:
    weight = np.random.default_rng(0).standard_normal((70, 48)).astype(np.float32)
    weight[3] = 0
    numbers, scales = encode_rows(weight)
    assert numbers.dtype == np.int8
    assert np.all(np.abs(decode_rows(numbers, scales) - weight) <= scales[:, None] * 0.5001)
    numbers, scales = encode_rows(weight, turned=True)
    off = decode_rows(numbers, scales, turned=True) - weight
    assert np.all(np.linalg.norm(off, axis=1) <= scales * 0.5001 * np.sqrt(48))


def test_blocks_keep_their_largest_weight() -> None:
    weight = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    packed, scales = encode_blocks(weight)
    decoded = decode_blocks(packed, scales, 50)
    assert packed.shape == (40, 2, 16)
    largest = np.abs(weight[:, :32]).argmax(1)
    rows = np.arange(40)
    np.testing.assert_allclose(decoded[rows, largest], weight[rows, largest], rtol=1e-6)
    assert np.abs(decoded - weight).max() <= np.abs(scales).max() * 1.001


def test_small_weights_stay_as_they_are() -> None:
    weight = torch.randn(31, 64)
    assert torch.equal(LOWERING.dequantized("w", weight, "int4", embedding=False), weight)
    assert not torch.equal(LOWERING.dequantized("w", torch.randn(32, 64), "int8", embedding=True), weight)


def test_each_processor_has_its_products() -> None:
    assert set(PRODUCTS) == set(PROCESSORS)


def test_the_lowering_is_found_by_its_runtime_and_processor() -> None:
    assert lowering("onnx") is LOWERING
    assert lowering("executorch", "vnni") is lowering("executorch")
    assert lowering("onnx", "vnni").on("avx2").products is LOWERING.products  # type: ignore[attr-defined]
    assert lowering("onnx", "vnni").products is PRODUCTS["vnni"]  # type: ignore[attr-defined]
    assert [processor_for("onnx", "amx", precision) for precision in ("int8", "none", "int4")] == ["amx", "", ""]
    assert processor_for("executorch", "auto", "int8") == ""
    assert LOWERING.versions()["onnx"] == onnx.__version__
