"""The ExecuTorch lowering: every program gives on the runtime what its graph gives, with the weights as stored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import fx

from edge_client.bundle.manifest import DUAL, ENTER, PLAIN, VJP
from edge_client.errors import ProgramInputError
from edge_client.runtimes.runtime import open_runtime
from export.dual.programs import Program
from export.graph import ops, vocabulary
from export.graph.editing import trace
from export.graph.slots import Role, Slot, slot_of, value_of
from export.lower.executorch import partition
from export.lower.executorch.formulation import plain
from export.lower.executorch.formulations import FORMULATIONS
from export.lower.executorch.graph import EdgeGraph
from export.lower.executorch.lowering import LOWERING
from export.lower.executorch.partition import SegmentPartitioner, undelegated
from export.lower.executorch.rewrite import rewritten
from export.lower.executorch.translate import StoredWeights, translated
from export.lower.executorch.weights import effective, quantize, quantize_table
from export.lower.target import Shaped, lowering
from tests.export.lower.shaped import (
    BATCH,
    LENGTH,
    as_stored,
    compared,
    random_inputs,
    segment_programs,
    spec_of,
    write,
)
from tests.export.models import VOCABULARY, Chain

aten = torch.ops.aten
BOUND = {"none": 1e-5, "int8": 0.02, "int4": 0.02}


def check(programs, stored, precision, folder):
    """Lower one segment and compare all its programs with their graphs."""
    lowered = LOWERING.lower(programs[0].program.segment, programs, stored, precision)
    assert lowered.fallbacks == []
    assert list(lowered.files) == [f"executorch/{programs[0].program.segment}.pte"]
    write(lowered.files, folder)
    with open_runtime("executorch", folder) as runtime:
        for shaped in programs:
            inputs = list(random_inputs(shaped.program))
            expected = shaped.program.graph(*inputs, *as_stored(LOWERING, shaped.program, stored, precision))
            spec = spec_of(shaped, lowered.entries[shaped.name])
            names = [tensor.name for tensor in spec.inputs]
            found = runtime.run(spec, dict(zip(names, (tensor.numpy() for tensor in inputs), strict=True)))
            largest = max(float(tensor.norm()) for tensor in expected)  # some gradients are zero but for rounding
            for (name, one), other in zip(found.items(), expected, strict=True):
                assert one.shape == other.shape
                have, want = (compared(shaped.program, name, torch.as_tensor(value)) for value in (one, other))
                error = float((have - want).norm() / (want.norm() + 1e-2 * largest))
                assert error < BOUND[precision], f"{shaped.name}: {name} differs by {error:.1e}"


# Together they hold every kind of block, head, mask, norm and adapter; with 2 directions where it matters.
@pytest.mark.parametrize(
    ("architecture", "task", "method", "segments", "directions", "precision"),
    [
        ("bert", "seq-cls", "lora", (0, 2, 3), 1, "none"),
        ("roberta", "qa", "ia3", (0, 3), 2, "none"),
        ("albert", "seq-cls", "bitfit", (2,), 2, "none"),
        ("gpt2", "causal-lm", "bitfit", (3,), 1, "none"),
        ("opt", "seq-cls", "lora", (0, 2), 1, "none"),
        ("gemma3", "causal-lm", "bottleneck", (2,), 2, "none"),
        ("qwen3", "seq-cls", "ia3", (3,), 1, "none"),
        ("bert", "seq-cls", "bottleneck", (0, 2), 1, "int8"),
        ("opt", "causal-lm", "lora", (3,), 1, "int4"),
    ],
)
@torch.no_grad()
def test_every_program_computes_what_its_graph_does(
    architecture, task, method, segments, directions, precision, tmp_path
):
    chain = Chain.build(architecture, task, method, batch=BATCH, length=LENGTH, narrowed=True)
    for index in segments:
        programs = segment_programs(chain, index, directions)
        kinds = {shaped.program.kind for shaped in programs}
        if architecture != "bert" and {ENTER, DUAL} <= kinds:  # a block's dual program has the operators of these two
            programs = [shaped for shaped in programs if shaped.program.kind not in (PLAIN, ENTER)]
        check(programs, chain.captured.stored, precision, tmp_path)


@torch.no_grad()
def test_a_vocabulary_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGEST", 64 * 32)
    monkeypatch.setattr(partition, "_MANY_ELEMENTS", BATCH * LENGTH * 64)  # as in a large batch
    chain = Chain.build("llama", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    for precision in BOUND:
        check(segment_programs(chain, 3, 2), chain.captured.stored, precision, tmp_path / precision)


@torch.no_grad()
def test_along_many_directions_small_products_of_bytes_are_not_stacked(tmp_path):
    """Values and tangents would be copied to stand in one place, and again to part them."""
    chain = Chain.build("bert", "seq-cls", "lora", batch=BATCH, length=LENGTH)
    stored = chain.captured.stored
    programs = [shaped for shaped in segment_programs(chain, 2, 8) if shaped.program.kind == DUAL]
    check(programs, stored, "int8", tmp_path)

    def products(shaped, precision):
        graph, _ = rewritten(shaped.program, stored, precision)
        linears = graph.graph.find_nodes(op="call_function", target=ops.linear)
        return sum(min(value_of(node.args[1]).shape) >= 32 for node in linears)

    (many,), (few,) = programs, [s for s in segment_programs(chain, 2, 2) if s.program.kind == DUAL]
    assert products(many, "int8") == 2 * products(many, "int4") == 2 * products(few, "int8") > 0


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("rows", [33, 34, 65, 66])
def test_weights_of_any_number_of_rows_load(rows, precision, tmp_path):
    weight = torch.randn(rows, 64)
    programs = [product_program(kind, weight) for kind in (PLAIN, VJP)]
    check(programs, {"weight": weight, "bias": torch.randn(rows)}, precision, tmp_path)


# --- one product, whose arithmetic can be written down ---


def product_program(kind, weight):
    """A frozen product with a bias, or the same product turned around."""
    rows, columns = weight.shape
    state = torch.empty(BATCH, LENGTH, columns if kind == PLAIN else rows)
    inputs = [(Slot(Role.STATE if kind == PLAIN else Role.GRADIENT, "hidden" if kind == PLAIN else "gradient"), state)]
    inputs += [(Slot(Role.FROZEN, "weight"), weight), (Slot(Role.FROZEN, "bias"), torch.empty(rows))]
    if kind == PLAIN:
        graph = trace(lambda x, weight, bias: [ops.linear(x, weight) + bias], inputs)
    else:
        graph = trace(lambda g, weight, bias: [ops.linear_t(g + bias, weight)], inputs)
    return Shaped(Program("block.0", kind, 0, graph, ("hidden" if kind == PLAIN else "gradient",)), BATCH, LENGTH)


@pytest.fixture(scope="module")
def product():
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(256, 192, generator=generator), torch.randn(256, generator=generator)
    return [product_program(kind, weight) for kind in (PLAIN, VJP)], {"weight": weight, "bias": bias}


def in_8_bits(x):
    """One scale and one zero point per row, as XNNPACK chooses them."""
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round().clamp(-128, 127)
    return ((x / scale).round() + zero).clamp(-128, 127).sub(zero) * scale


@pytest.mark.parametrize("precision", ["none", "int8", "int4"])
def test_weights_act_as_dequantized_says_and_are_stored_once_for_each_kind_of_product(product, precision, tmp_path):
    programs, stored = product
    weight, bias = LOWERING.dequantized("weight", stored["weight"], precision, embedding=False), stored["bias"]
    lowered = LOWERING.lower("block.0", programs, stored, precision)
    write(lowered.files, tmp_path)
    x, gradient = (next(random_inputs(shaped.program)) for shaped in programs)
    rotation = quantize(stored["weight"], "int8").rotation
    turned = (x.reshape(BATCH, LENGTH, -1, 32) @ rotation).reshape(x.shape)
    rounded = (in_8_bits(turned).reshape(BATCH, LENGTH, -1, 32) @ rotation).reshape(x.shape)
    with open_runtime("executorch", tmp_path) as runtime:
        specs = [spec_of(shaped, lowered.entries[shaped.name]) for shaped in programs]
        hidden = runtime.run(specs[0], {"hidden": x.numpy()})["hidden"]
        back = runtime.run(specs[1], {"gradient": gradient.numpy()})["gradient"]
    expected = (x if precision == "none" else rounded) @ weight.T + bias
    np.testing.assert_allclose(hidden, expected, atol=1e-4 * float(expected.abs().max()))
    entering = gradient + bias
    if precision == "int8":  # the weight's scales are in what enters
        scales = quantize(stored["weight"], "int8").scales[:, 0]
        entering = in_8_bits(entering * scales) / scales
    expected = entering @ weight
    np.testing.assert_allclose(back, expected, atol=1e-4 * float(expected.abs().max()))
    (content,) = lowered.files.values()
    bits = {"none": 32, "int8": 8, "int4": 4 + 24 / 32}  # int4: 2 bytes a scale for one product, 1 for the other
    copies = 1 if precision == "none" else 2  # the codes of each kind of product
    assert len(content) <= copies * weight.numel() * bits[precision] / 8 + 25_000


def test_a_weight_that_is_multiplied_both_ways_is_told_apart_by_its_bias():
    """Android's library keeps packed weights by the names of the two; `test_android_native` runs on it."""
    weight = torch.empty(32, 32)
    inputs = [(Slot(Role.STATE, "hidden"), torch.empty(BATCH, LENGTH, 32)), (Slot(Role.FROZEN, "weight"), weight)]
    graph = trace(lambda x, weight: [ops.linear_t(ops.linear(x, weight), weight)], inputs)
    stored = {"weight": torch.randn(32, 32)}
    program = Program("block.0", VJP, 0, graph, ("gradient",))
    made = translated(*rewritten(program, stored), StoredWeights(stored, "none"))
    products = [node for node in made.graph.nodes if any(op in str(node.target) for op in ("aten.linear", "aten.mm"))]
    assert len(products) == 2
    biases = [made.state_dict[node.args[2].name] if len(node.args) > 2 else None for node in products]
    assert biases[1] is None
    assert not biases[0].any()


def test_bytes_depend_on_the_programs_alone(product):
    programs, stored = product
    for precision in ("none", "int4"):
        first = LOWERING.lower("block.0", programs, stored, precision)
        assert LOWERING.lower("block.0", programs[::-1], stored, precision) == first


def test_the_lowering_is_found_by_its_name():
    assert lowering("executorch") is LOWERING
    assert LOWERING.versions()["torch"] == str(torch.__version__)


# --- what is left to slow kernels ---


@pytest.fixture(scope="module")
def large():
    """A batch of a usual size."""
    return Chain.build("bert", "seq-cls", "lora", batch=8, length=64)


def test_large_programs_leave_nothing_to_slow_kernels(large):
    programs = {shaped.program.kind: shaped for shaped in segment_programs(large, 2)}
    chosen = [programs[DUAL], programs[VJP]]
    assert LOWERING.lower("block.1", chosen, large.captured.stored, "none").fallbacks == []


@pytest.mark.parametrize("precision", ["none", "int8", "int4"])
def test_a_program_is_one_delegate(large, precision):
    weights = StoredWeights(large.captured.stored, precision)
    for shaped in segment_programs(large, 2, directions=2):
        program = translated(*rewritten(shaped.program, large.captured.stored), weights)
        assert len(SegmentPartitioner().partition(program).partition_tags) == 1


def test_slow_kernels_are_found():
    edge = EdgeGraph()
    x, y = edge.input(torch.empty(1, 64, 1024)), edge.input(torch.empty(1024, 64))
    product = edge.call(aten.mm.default, edge.reshape(x, 64, 1024), y)
    found = list(undelegated(edge.program([product, edge.call(aten.erf.default, x)])))
    assert [what.split()[0] for what in found] == ["aten.mm.default", "aten.erf.default"]
    small = EdgeGraph()
    result = small.call(aten.erf.default, small.input(torch.empty(2, 3)))
    assert list(undelegated(small.program([result]))) == []


# --- formulations ---

_X = torch.tensor([[-3.0, -1e-20, 0.0, 1e-3, 2.0], [9.0, -9.0, 0.5, -0.5, 1.0]])


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (aten.gelu.default, (_X,)),
        (aten.silu.default, (_X,)),
        (aten.pow.Tensor_Scalar, (_X, 3)),
        (aten.pow.Tensor_Scalar, (_X.abs(), 0.5)),
        (aten.pow.Tensor_Scalar, (_X.abs(), 1.5)),
        (aten.rsub.Scalar, (_X, 2)),
        (aten.reciprocal.default, (_X.abs() + 1,)),
        (aten.mul.Tensor, (_X, 1.0)),
        (aten.div.Tensor, (_X, 4)),
        (aten.gt.Scalar, (_X, 0)),
        (aten.le.Scalar, (_X, 0.25)),
        (aten.logical_not.default, (_X > 0,)),
        (aten.logical_or.default, (_X > 0, _X < -1)),
        (aten.where.self, (_X > 0, _X, _X * 3)),
        (aten.where.ScalarOther, (_X > 0, _X, -torch.inf)),
        (aten.where.self, (_X > 0, _X > 1, _X < 0)),
        (aten.masked_fill.Scalar, (_X, _X > 0, -1e9)),
        (aten.matmul.default, (_X, _X[0])),
        (aten.matmul.default, (_X[0], _X.T)),
        (aten.matmul.default, (_X.expand(2, 3, 2, 5), _X.T.expand(2, 1, 5, 2))),
        (aten.addmm.default, (_X[0, :2], _X, _X.T)),
        (aten.linear.default, (_X.expand(2, 2, 5), _X, _X[0, :2])),
        (aten.linear.default, (_X, _X[:1])),
        (aten.sum.dim_IntList, (_X.expand(3, 2, 5), [0, 2], True)),
        (aten.sum.dim_IntList, (_X.expand(3, 2, 5), [1])),
        (aten.sum.dim_IntList, (_X > 0, [1])),
        (aten.mean.dim, (_X, [-1], True)),
        (aten.softmax.int, (_X, 0)),
        (aten.layer_norm.default, (_X, [5], _X[0], _X[1])),
        (aten.native_layer_norm.default, (_X, [5], None, None, 1e-5)),
        (aten.expand.default, (_X.unsqueeze(1), [4, 2, 3, 5])),
        (aten.unsqueeze.default, (_X, -2)),
        (aten.squeeze.default, (_X[:1],)),
        (aten.squeeze.dims, (_X[:1, None], [0, 2])),
        (aten.select.int, (_X, -1, -2)),
        (aten.select.int, (_X > 0, 0, 1)),
        (aten.index.Tensor, (_X, [None, torch.tensor([0, 2])])),
        (aten.split.Tensor, (_X, 2, 1)),
        (aten.split_with_sizes.default, (_X, [1, 4], -1)),
        (aten.cat.default, ([_X[:, i : i + 1] for i in (4, 3, 2, 1, 0, 1, 2)], 1)),
        (aten.cat.default, ([_X], 0)),
        (aten.cat.default, ([_X] * 3, 0)),
        (aten.cat.default, ([_X] * 6, -1)),
        (aten.cat.default, ([_X.to(torch.int64)] * 2, 0)),
        (aten.stack.default, ([_X, _X], -1)),
        (aten.slice_scatter.default, (_X, _X[:, :2], 1, 1, 3)),
        (aten.slice_scatter.default, (_X, _X[:, :2], 1, -2)),
        (aten.slice_scatter.default, (_X, _X[:1], 0, 1)),
    ],
)
def test_formulations_give_what_the_op_gives(target, arguments):
    found, expected = FORMULATIONS[target](*arguments), target(*arguments)
    many = isinstance(expected, (list, tuple))
    for one, other in zip(*((found, expected) if many else ([found], [expected])), strict=True):
        value = plain(one)
        assert value.dtype == other.dtype
        assert value.shape == other.shape
        finite = other.clamp(torch.finfo(torch.float32).min) if torch.isinf(other).any() else other
        torch.testing.assert_close(value, finite, atol=1e-6, rtol=1e-5)


def rewritten_ops(function, *inputs):
    """The operators of a function's graph after rewriting, and the graph."""
    slots = [Slot(Role.STATE if x.is_floating_point() else Role.INPUT, f"x{i}") for i, x in enumerate(inputs)]
    program = Program("block.0", PLAIN, 0, trace(function, list(zip(slots, inputs, strict=True))), ("y",))
    graph, _ = rewritten(program, {})
    return [node.target for node in graph.graph.nodes if node.op == "call_function"], graph


def test_error_functions_become_gelu():
    def function(x):
        return [aten.gelu.default(x), torch.erf(x * 0.5**0.5) * 0.5 + 0.5, torch.erf(x + 1)]

    found, graph = rewritten_ops(function, _X)
    assert aten.erf.default not in found
    assert found.count(aten.gelu.default) == 2
    for one, other in zip(graph(_X), function(_X), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_a_tensor_joined_with_itself_stays_in_the_delegate():
    found, _ = rewritten_ops(lambda x: [torch.cat([x, x, x])], torch.empty(2, 5))
    assert aten.mul.Tensor in found
    assert aten.cat.default not in found


def test_expansions_that_broadcasting_does_are_left_out():
    def function(scores, mask):
        big = (mask == 1)[:, None, None, :].expand(2, 1, 5, 5)
        return [scores + torch.where(big, 0.0, -100.0)]

    scores, mask = torch.randn(2, 4, 5, 5), torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    found, graph = rewritten_ops(function, scores, mask)
    assert aten.expand.default not in found
    assert not any(isinstance(node.target, fx.Graph) for node in graph.graph.nodes)
    torch.testing.assert_close(graph(scores, mask)[0], function(scores, mask)[0])


# --- weights ---


@pytest.mark.parametrize(
    ("shape", "precision", "expected"),
    [
        ((8, 64), "int8", "none"),
        ((64, 16), "int4", "none"),
        ((64, 48), "int4", "int8"),
        ((64, 96), "int4", "int4"),
        ((64, 64), "none", "none"),
    ],
)
def test_small_layers_keep_their_numbers(shape, precision, expected):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert effective(weight, precision) == expected
    found = LOWERING.dequantized("weight", weight, precision, embedding=False)
    error = float((found - weight).norm() / weight.norm())
    assert {"none": error == 0, "int8": 0 < error < 0.01, "int4": 0.01 < error < 0.1}[expected]


@pytest.mark.parametrize("shape", [(64, 96), (64, 256), (5000, 32)])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_codes_and_scales_are_what_the_kernels_take(shape, precision):
    quantized = quantize(torch.randn(shape, generator=torch.Generator().manual_seed(0)), precision)
    assert quantized.codes.dtype == torch.int8
    assert (quantized.rotation is None) == (shape[1] > 2 * shape[0])
    low, high = (-127, 127) if precision == "int8" else (-8, 7)
    assert low <= int(quantized.codes.min()) < 0 < int(quantized.codes.max()) <= high
    if precision == "int4":
        assert torch.equal(quantized.scales, quantized.scales.to(torch.bfloat16).to(torch.float32))
        packed = quantized.nibbles.view(torch.uint8)
        unpacked = torch.stack([packed % 16, packed // 16], -1).reshape(shape).to(torch.int16) - 8
        assert torch.equal(unpacked, quantized.codes.to(torch.int16))


def test_rows_of_zeros_stay_zero():
    for precision in ("int8", "int4"):
        assert not quantize(torch.zeros(32, 64), precision).float32.any()
        assert not quantize_table(torch.zeros(32, 64), precision).float32.any()


def test_embeddings_hold_a_byte_per_number():
    table = torch.randn(100, 64, generator=torch.Generator().manual_seed(0))
    seen = LOWERING.dequantized("table", table, "int4", embedding=True)
    assert 0 < float((seen - table).abs().max()) < 0.02
    assert torch.equal(LOWERING.dequantized("table", table[:2], "int8", embedding=True), table[:2])


def test_a_tied_table_is_rounded_as_the_weight_of_the_product_is(tmp_path):
    chain = Chain.build("gpt2", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    programs, stored = segment_programs(chain, 0), chain.captured.stored
    names = [slot_of(node).name for node in programs[0].program.stored]
    (name,) = (name for name in names if stored[name].shape[0] == VOCABULARY)
    lowered = LOWERING.lower("embed", programs, stored, "int4", tied=(name,))
    write(lowered.files, tmp_path)
    rounded = dict(stored) | {name: LOWERING.dequantized(name, stored[name], "int4", embedding=False)}
    spec = spec_of(programs[0], lowered.entries[programs[0].name])
    inputs = list(random_inputs(programs[0].program))
    with open_runtime("executorch", tmp_path) as runtime:
        found = runtime.run(spec, {spec.inputs[0].name: inputs[0].numpy()})["hidden"]
    expected = programs[0].program.graph(*inputs, *(rounded[name] for name in names))
    np.testing.assert_allclose(found, expected[0], atol=5e-3 * float(expected[0].abs().max()))


def test_wrong_inputs_are_refused_before_they_reach_the_library(product, tmp_path):
    programs, stored = product
    lowered = LOWERING.lower("block.0", programs[:1], stored, "none")
    write(lowered.files, tmp_path)
    spec = spec_of(programs[0], lowered.entries[programs[0].name])
    with open_runtime("executorch", tmp_path) as runtime, pytest.raises(ProgramInputError, match="float32"):
        runtime.run(spec, {"hidden": np.zeros((1, 2), np.float32)})


@torch.no_grad()
def test_labels_of_a_vocabulary_in_parts_are_looked_up_once_on_the_way_back(monkeypatch):
    monkeypatch.setattr(vocabulary, "LARGEST", 64 * 32)
    chain = Chain.build("llama", "causal-lm", "lora", batch=BATCH, length=LENGTH)
    (shaped,) = (one for one in segment_programs(chain, 3) if one.program.kind == VJP)
    graph, _ = rewritten(shaped.program, chain.captured.stored)
    called = [node.target for node in graph.graph.nodes]
    assert called.count(aten.embedding.default) == 1
    assert aten.eq.Tensor not in called
