"""Test what programs cost, read off their graphs: where tangents are, and how often a frozen weight is used."""

from collections import Counter

import pytest
import torch

from edge_client.bundle.manifest import DUAL, ENTER, PLAIN, SCALAR, VJP
from export.chain import rows_of_piece
from export.dual.builder import build
from export.dual.programs import kinds
from export.graph import ops
from export.graph.slots import Role, slot_of, value_of
from export.graph.vocabulary import is_walked
from tests.export.models import Chain

BATCH, LENGTH = 2, 6
MODELS = [("bert", "seq-cls"), ("gpt2", "causal-lm"), ("gemma3", "seq-cls")]
FROZEN = (ops.linear, ops.embedding)


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def chain(request):
    return Chain.build(*request.param, "lora", batch=BATCH, length=LENGTH)


@pytest.fixture(scope="module")
def single(chain):
    """The same model with one example in a batch."""
    return Chain.build(chain.loaded.name, chain.loaded.task.kind.name, "lora", batch=1, length=LENGTH)


def calls(graph):
    return [node for node in graph.graph.nodes if node.op == "call_function"]


def counted(graph, *targets):
    """Return how often each op is called, `targets` only if given."""
    return Counter(str(node.target) for node in calls(graph) if not targets or node.target in targets)


def program_kinds(chain, index):
    trained_before = index > chain.first
    return kinds(chain.segments[index], trained_before=trained_before)


def test_upstream_of_the_cut_nothing_is_added(chain):
    """A plain program is the captured forward, node for node; but for losses of tokens, which are written out."""
    for segment in chain.segments:
        plain = build(segment, PLAIN, 3)
        assert plain.directions == 0
        if is_walked(segment.graph):
            continue
        assert [node.target for node in calls(plain.graph)] == [node.target for node in calls(segment.graph)]
        assert {slot_of(node).role for node in plain.placeholders}.isdisjoint({Role.TANGENT, Role.DIRECTION})


@pytest.mark.parametrize("directions", [1, 3])
def test_a_frozen_weight_is_used_once_for_both_streams(chain, directions):
    for index, segment in enumerate(chain.segments):
        expected = counted(segment.graph, *FROZEN)
        if is_walked(segment.graph):
            expected = Counter({str(ops.linear): 1})  # of a vocabulary that is one part
        for kind in set(program_kinds(chain, index)) & {ENTER, DUAL, SCALAR}:
            program = build(segment, kind, directions)
            assert counted(program.graph, *FROZEN) == expected, f"{segment.name} {kind}"


@pytest.mark.parametrize("directions", [1, 3])
def test_tangents_start_at_the_first_adapter(chain, directions):
    """Rows of every frozen product: in `dual` all have tangents, in `enter` those behind an adapter."""
    for index in range(chain.first, len(chain.segments) - 1):
        segment = chain.segments[index]
        both = BATCH * (1 + directions)
        linears = sum(counted(segment.graph, ops.linear).values())
        rows = {
            kind: [
                value_of(node).shape[0]
                for node in calls(build(segment, kind, directions).graph)
                if node.target is ops.linear
            ]
            for kind in (ENTER, DUAL)
        }
        assert rows[DUAL] == [both] * linears
        projections = 1 if chain.loaded.name == "gpt2" else 3
        assert Counter(rows[ENTER]) == {BATCH: projections, both: linears - projections}


def test_attention_and_adapters_have_one_product_per_moving_operand(chain):
    """The tangent of a product of two moving operands is two products; one where they are laid side by side."""
    segment = chain.segments[chain.first]
    products = (torch.ops.aten.matmul.default, torch.ops.aten.bmm.default)
    attention = counted(segment.graph, *products).total()
    adapters = [value_of(n.args[1]).shape for n in calls(segment.graph) if n.target is torch.ops.aten.linear.default]
    wide = sum(entering < leaving for leaving, entering in adapters)
    assert wide == len(adapters) / 2
    dual = build(segment, DUAL, 1)
    found = counted(dual.graph, *products, torch.ops.aten.linear.default).total()
    assert found == 3 * (attention + len(adapters)) - wide


def test_segments_of_one_structure_share_a_trace(chain):
    first, second = (build(chain.segments[i], DUAL, 1) for i in (1, 2))
    assert [node.target for node in calls(first.graph)] == [node.target for node in calls(second.graph)]
    for block, program in enumerate((first, second)):
        own = [slot_of(n).name for n in program.placeholders if slot_of(n).role in (Role.ADAPTER, Role.FROZEN)]
        assert own
        assert all(f".{block}." in name or "LayerNorm" in name for name in own)  # a norm may be that before


def test_which_programs_a_segment_needs(chain):
    embed, block, later, head = (program_kinds(chain, index) for index in range(4))
    assert embed == [PLAIN]
    assert block == [PLAIN, ENTER, VJP]
    assert later == [PLAIN, ENTER, DUAL, VJP]
    scalar = [SCALAR] if chain.used(Role.HEAD) else []
    assert head == [PLAIN, DUAL, *scalar, VJP]


def test_inputs_come_before_stored_tensors(chain):
    for index, segment in enumerate(chain.segments):
        for kind in program_kinds(chain, index):
            program = build(segment, kind, 3)
            assert program.placeholders == program.inputs + program.stored
            assert len(program.results) == len(program.outputs)


def inputs_of(program):
    """Random ones by name; tokens, masks and labels are ones."""
    for node in program.inputs:
        value = value_of(node)
        yield torch.randn(value.shape) if value.is_floating_point() else torch.ones(value.shape, dtype=value.dtype)


def results_of(program, inputs, stored):
    held = [slot_of(node).of(stored[slot_of(node).name]) for node in program.stored]
    return dict(zip(program.outputs, program.graph(*inputs, *held), strict=True))


@pytest.mark.parametrize(("kind", "directions"), [(ENTER, 3), (DUAL, 1), (DUAL, 3), (VJP, 0)])
@torch.no_grad()
def test_a_batch_in_pieces_comes_out_as_it_does_whole(chain, single, kind, directions):
    index = chain.first + 1
    whole = build(chain.segments[index], kind, directions)
    parts = build(single.segments[index], kind, directions, pieces=BATCH)
    assert parts.outputs == whole.outputs
    assert [slot_of(node) for node in parts.inputs] == [slot_of(node) for node in whole.inputs]
    inputs = list(inputs_of(whole))
    expected = results_of(whole, inputs, chain.captured.stored)
    found = results_of(parts, inputs, {**single.captured.stored, **chain.captured.stored})
    for name, value in expected.items():
        rounding = 1e-6 * float(value.abs().max())  # of the largest summands: those of a small result may be large
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=max(1e-5, rounding))


@torch.no_grad()
def test_the_lowest_block_gives_no_gradient_by_what_enters_it(chain):
    segment = chain.segments[chain.first]
    whole, lowest = (build(segment, VJP, 0, lowest=flag) for flag in (False, True))
    inputs = list(inputs_of(whole))
    expected, found = (results_of(program, inputs, chain.captured.stored) for program in (whole, lowest))
    assert expected.keys() - found.keys() == {"gradient"}
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name])
    turned = {program: counted(program.graph, ops.linear_t).total() for program in (whole, lowest)}
    assert turned[lowest] < turned[whole]


def test_the_way_back_through_a_block_computes_no_product_that_nothing_reads(chain):
    """What leaves a block is a sum, of which no derivative reads the value, unless a norm lies before the sum."""
    segment = chain.segments[chain.first + 1]
    frozen = counted(segment.graph, ops.linear).total()
    unread = 0 if chain.loaded.name == "gemma3" else 1
    assert counted(build(segment, VJP, 0).graph, ops.linear).total() == frozen - unread


def test_few_pieces_that_stay_in_a_cache():
    """Examples in a piece: all along one direction, and never less than a quarter of the batch."""
    assert [rows_of_piece(8, 64, count) for count in (0, 1, 4, 16)] == [4, 8, 2, 2]
    assert [rows_of_piece(8, 128, count) for count in (0, 1, 4)] == [2, 8, 2]
    assert rows_of_piece(1, 512, 4) == 1
    assert rows_of_piece(6, 64, 2) == 3
