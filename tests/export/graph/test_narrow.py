"""Rows that nothing reads are not computed, and nothing else changes."""

import pytest
import torch

from export.graph import ops
from export.graph.flops import count_flops
from export.graph.narrow import narrow
from export.graph.segments import block_calls, split
from export.graph.slots import value_of
from tests.export.graphs import captured, captured_tiny, evaluate, text_of, toy
from tests.export.models import LAYERS, batch_of, tiny

BATCH, LENGTH = 2, 7
READ_ONE_TOKEN = ["bert", "distilbert", "roberta", "albert", "electra"]
READ_THE_LAST_TOKEN = ["gpt2", "opt", "llama", "qwen2", "qwen3", "gemma3"]


def linears_of_last_block(found):
    calls = block_calls(found.graph, LAYERS)
    return [node for node, block in calls.items() if block == LAYERS - 1 and node.target is ops.linear]


@pytest.mark.parametrize("architecture", READ_ONE_TOKEN)
def test_only_the_read_row_remains_in_the_last_block(architecture):
    loaded = tiny(architecture, "seq-cls")
    inputs = batch_of(loaded, [LENGTH, 4], LENGTH)
    found = captured_tiny(architecture, "seq-cls", BATCH, LENGTH)
    before, flops = evaluate(found, inputs), count_flops(found.graph)
    narrow(found)
    after = evaluate(found, inputs)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(after[1], loaded.model(**without_labels(inputs)).logits, rtol=1e-5, atol=1e-6)
    rows = [value_of(node).shape[1] for node in linears_of_last_block(found)]
    assert sorted(rows) == [1] * (len(rows) - 2) + [LENGTH] * 2, "all tokens are only keys and values"
    assert len(rows) == 6
    assert count_flops(found.graph) < 0.75 * flops


@pytest.mark.parametrize(
    ("architecture", "expected"), [("bert", [False, True]), ("distilbert", [False, True]), ("llama", [False, False])]
)
def test_segments_say_which_of_them_hands_on_one_token(architecture, expected):
    found = captured_tiny(architecture, "seq-cls", BATCH, LENGTH)
    whole = [segment.one_token for segment in split(found, LAYERS, range(LAYERS))]
    narrow(found)
    narrowed = [segment.one_token for segment in split(found, LAYERS, range(LAYERS))]
    assert not any(whole)
    assert narrowed == [False, *expected, False]


def without_labels(inputs):
    return {name: value for name, value in inputs.items() if name != "labels"}


@pytest.mark.parametrize("architecture", READ_ONE_TOKEN)
def test_earlier_blocks_are_whole(architecture):
    found = captured_tiny(architecture, "seq-cls", BATCH, LENGTH)
    narrow(found)
    calls = block_calls(found.graph, LAYERS)
    rows = {value_of(n).shape[1] for n, block in calls.items() if block < LAYERS - 1 and n.target is ops.linear}
    assert rows == {LENGTH}


@pytest.mark.parametrize("architecture", READ_THE_LAST_TOKEN)
def test_a_token_that_depends_on_the_data_leaves_the_model_as_it_is(architecture):
    """The last token that is not padding is another one in each example."""
    found = captured_tiny(architecture, "seq-cls", BATCH, LENGTH)
    before = text_of(found)
    narrow(found)
    assert text_of(found) == before


@pytest.mark.parametrize(
    ("architecture", "task"), [("bert", "qa"), ("gpt2", "causal-lm"), ("llama", "causal-lm"), ("bert", "causal-lm")]
)
def test_a_head_that_reads_all_tokens_leaves_the_model_as_it_is(architecture, task):
    found = captured_tiny(architecture, task, BATCH, LENGTH)
    before = text_of(found)
    narrow(found)
    assert text_of(found) == before


def test_a_causal_mask_is_cut_to_its_row():
    """Here the mask is a square: the row of the token that is read is another than that of those it reads."""
    loaded = tiny("bert", "seq-cls")
    for module in loaded.model.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = True
    loaded.model.config.is_decoder = True
    inputs = batch_of(loaded, [LENGTH, 4], LENGTH)
    found = captured(loaded, BATCH, LENGTH)
    before = evaluate(found, inputs)
    narrow(found)
    torch.testing.assert_close(evaluate(found, inputs), before, rtol=1e-5, atol=1e-6)


# --- heads of one's own ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [0, 3])
def test_any_fixed_token(token):
    found, inputs = toy(lambda hidden: hidden[:, token])
    before = evaluate(found, inputs)
    narrow(found)
    torch.testing.assert_close(evaluate(found, inputs), before)
    linears = [node for node in found.graph.graph.nodes if node.target is ops.linear]
    assert [tuple(value_of(node).shape[:-1]) for node in linears] == [(2, 1), (2, 1), (2,)]


@pytest.mark.parametrize(
    "pool",
    [
        lambda hidden: hidden.mean(1),
        lambda hidden: hidden[:, 0] + hidden[:, 1],
        lambda hidden: hidden[:, -1] + hidden[:, 0],
        lambda hidden: hidden[:, 0] + hidden.sum(1),
        lambda hidden: hidden[0] if hidden.shape[0] == 1 else hidden.amax(1),
    ],
    ids=["mean", "two tokens", "first and last", "one and all", "largest"],
)
def test_heads_that_read_more_keep_every_row(pool):
    found, inputs = toy(pool)
    before = evaluate(found, inputs)
    narrow(found)
    torch.testing.assert_close(evaluate(found, inputs), before)
    linears = [node for node in found.graph.graph.nodes if node.target is ops.linear]
    assert [value_of(node).shape[1] for node in linears[:2]] == [5, 5]


@pytest.mark.parametrize(
    "pool",
    [
        lambda hidden: hidden.softmax(1)[:, 0],
        lambda hidden: hidden.softmax(-1)[:, 1],
        lambda hidden: hidden.transpose(1, 2).softmax(-1).transpose(1, 2)[:, 2],
        lambda hidden: (hidden - hidden.mean(1, keepdim=True))[:, 0],
        lambda hidden: (hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt())[:, 1],
        lambda hidden: hidden.view(2, 5, 2, 4).transpose(1, 2).transpose(1, 2).reshape(2, 5, 8)[:, 4],
        lambda hidden: hidden.reshape(2, 4, 10).reshape(2, 5, 8)[:, 2],
        lambda hidden: torch.matmul(hidden @ hidden.transpose(1, 2), hidden)[:, 1],
        lambda hidden: (hidden * hidden[:, :1])[:, 2],
        lambda hidden: (hidden[:, 1] + 0 * hidden[:, 1]) * 2,
        lambda hidden: torch.nn.functional.layer_norm(hidden, (8,))[:, 3],
        lambda hidden: torch.nn.functional.layer_norm(hidden, (5, 8))[:, 3],
    ],
)
def test_what_is_computed_stays_the_same(pool):
    """Over ops that mix tokens, ops that do not, and views of both kinds."""
    found, inputs = toy(pool)
    before = evaluate(found, inputs)
    narrow(found)
    torch.testing.assert_close(evaluate(found, inputs), before)
