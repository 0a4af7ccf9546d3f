"""A model cut into a chain, at blocks that are found and not named."""

import pytest
import torch

from edge_client.bundle.manifest import EMBED, HEAD
from export.errors import ExportError
from export.graph.segments import block_calls, boundaries, split
from export.graph.slots import STORED, Role, Slot, slot_of
from tests.export.graphs import captured_tiny, evaluate, toy
from tests.export.models import CONFIGS, LAYERS, batch_of, tiny

BATCH, LENGTH = 2, 7


@pytest.mark.parametrize(
    ("layers", "cuts", "starts"),
    [
        (6, None, [0, 1, 2, 3, 4, 5]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
        (6, 9, [0, 1, 2, 3, 4, 5]),
        (6, 3, [0, 2, 4]),
        (6, 1, [0]),
        (24, 6, [0, 4, 8, 12, 16, 20]),
        (7, 3, [0, 2, 5]),
        (1, 6, [0]),
    ],
)
def test_boundaries_are_spread_evenly(layers, cuts, starts):
    assert boundaries(layers, cuts) == starts


def chained(segments, stored, inputs):
    """Each segment on the state of the one before, and nothing else of it."""
    state: list[torch.Tensor] = []
    for segment in segments:
        values = []
        for node in segment.graph.graph.nodes:
            if node.op == "placeholder":
                slot = slot_of(node)
                known = stored if slot.role in STORED else {**inputs, "hidden": state[-1] if state else None}
                values.append(known[slot.name])
        state = list(segment.graph(*values))
    return state


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_chain_computes_what_the_model_does(architecture):
    inputs = batch_of(tiny(architecture, "seq-cls"), [LENGTH, 4], LENGTH)
    found = captured_tiny(architecture, "seq-cls", BATCH, LENGTH)
    segments = split(found, LAYERS, range(LAYERS))
    assert [segment.name for segment in segments] == [EMBED, "block.0", "block.1", HEAD]
    assert [segment.blocks for segment in segments[1:-1]] == [range(1), range(1, 2)]
    assert all(not segment.slots(Role.STATE) for segment in segments[:1])
    assert all(len(segment.slots(Role.STATE)) == 1 for segment in segments[1:])
    result = chained(segments, found.stored, inputs)
    torch.testing.assert_close(result, evaluate(found, inputs), rtol=1e-5, atol=1e-6)


def test_groups_of_blocks():
    inputs = batch_of(tiny("bert", "seq-cls"), [LENGTH, 4], LENGTH)
    found = captured_tiny("bert", "seq-cls", BATCH, LENGTH)
    segments = split(found, LAYERS, [0])
    assert [(segment.name, segment.blocks) for segment in segments[1:-1]] == [("block.0", range(LAYERS))]
    torch.testing.assert_close(chained(segments, found.stored, inputs), evaluate(found, inputs), rtol=1e-5, atol=1e-6)


def test_weights_lie_in_the_segment_that_reads_them():
    """A norm that ends a block lies in the segment behind it, so that a sum crosses."""
    found = captured_tiny("bert", "seq-cls", BATCH, LENGTH)
    embed, first, second, head = (
        {slot.name.removeprefix("bert.") for slot in segment.slots(Role.FROZEN)}
        for segment in split(found, LAYERS, range(LAYERS))
    )
    norms = ["embeddings.LayerNorm", *(f"encoder.layer.{i}.output.LayerNorm" for i in range(LAYERS))]
    own = [{f"{norm}.weight", f"{norm}.bias"} for norm in norms]
    assert all(name.startswith("embeddings.") for name in embed)
    assert own[0] <= first
    assert all(name.startswith("encoder.layer.0.") for name in first - own[0])
    assert own[1] <= second
    assert all(name.startswith("encoder.layer.1.") for name in second - own[1])
    assert own[2] <= head
    assert all(name.startswith(("pooler", "classifier")) for name in head - own[2])
    assert not own[0] & embed
    assert not own[1] & first
    assert not own[2] & second


def test_a_norm_that_is_trained_stays_in_its_block():
    """Its unit is found where it was asked for."""
    found = captured_tiny("bert", "seq-cls", BATCH, LENGTH)
    for node in found.graph.graph.nodes:
        if node.op == "placeholder" and slot_of(node).name.endswith("layer.0.output.LayerNorm.weight"):
            node.meta["slot"] = Slot(Role.ADAPTER, slot_of(node).name)
    _, first, second, _ = split(found, LAYERS, range(LAYERS))
    assert [slot.name for slot in first.slots(Role.ADAPTER)] == ["bert.encoder.layer.0.output.LayerNorm.weight"]
    assert not second.slots(Role.ADAPTER)


def test_segments_to_be_taken_apart_end_in_their_own_norms():
    found = captured_tiny("bert", "seq-cls", BATCH, LENGTH)
    inputs = batch_of(tiny("bert", "seq-cls"), [LENGTH, 4], LENGTH)
    segments = split(found, LAYERS, range(LAYERS), apart=True)
    for block, segment in enumerate(segments[1:-1]):
        assert all(f".layer.{block}." in slot.name for slot in segment.slots(Role.FROZEN))
    torch.testing.assert_close(chained(segments, found.stored, inputs), evaluate(found, inputs), rtol=1e-5, atol=1e-6)


def test_the_head_reads_labels():
    found = captured_tiny("bert", "seq-cls", BATCH, LENGTH)
    head = split(found, LAYERS, range(LAYERS))[-1]
    assert [slot.name for slot in head.slots(Role.INPUT)] == ["labels"]


def test_shared_blocks_read_the_same_weights():
    found = captured_tiny("albert", "seq-cls", BATCH, LENGTH)
    _, *blocks, _ = split(found, LAYERS, range(LAYERS))
    first, second = ({slot.name for slot in block.slots(Role.FROZEN)} for block in blocks)
    norm = "albert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"
    assert first == second - {f"{norm}.weight", f"{norm}.bias"}  # it is read behind each block


@pytest.mark.parametrize("architecture", CONFIGS)
def test_blocks_are_found_by_how_often_they_are_called(architecture):
    found = captured_tiny(architecture, "seq-cls", BATCH, LENGTH)
    calls = block_calls(found.graph, LAYERS)
    assert set(calls.values()) == set(range(LAYERS))
    order = [calls[node] for node in found.graph.graph.nodes if node in calls]
    assert order == sorted(order)
    sizes = [list(calls.values()).count(block) for block in range(LAYERS)]
    assert min(sizes) > 0.8 * max(sizes)


def test_a_model_of_another_depth_than_its_configuration_says():
    found, _ = toy(lambda hidden: hidden[:, 0])
    assert len(split(found, 2, [0, 1])) == 4
    with pytest.raises(ExportError, match=r"found no module that is called 5 times .*Layer': 2"):
        block_calls(found.graph, 5)


def test_more_than_one_state_between_blocks():
    """A head that reads an inner state too cannot be cut off behind the last block."""

    class Pool(torch.nn.Module):
        def forward(self, hidden):
            return hidden.mean(1)

    found, _ = toy(Pool())
    graph = found.graph.graph
    first = next(node for node in graph.nodes if block_calls(found.graph, 2).get(node) == 0)
    mean = next(node for node in graph.nodes if "mean" in str(node.target))
    with graph.inserting_before(mean):
        both = graph.call_function(torch.ops.aten.add.Tensor, (mean.args[0], first))
        both.meta = {"val": mean.args[0].meta["val"]}
    mean.replace_input_with(mean.args[0], both)
    with pytest.raises(ExportError, match=r"expected one hidden state between two blocks of the model, found 2: "):
        split(found, 2, [0, 1])
