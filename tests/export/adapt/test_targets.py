"""Query, key, value and feed-forward layers, found in the graph of every architecture."""

import pytest

from edge_client.commands.options.adapter import AdapterOptions
from export.adapt.adapter import ADAPTERS, check_adapter
from export.adapt.targets import find_projections, shortest_patterns
from export.adapt.wrapping import adapt
from export.errors import ExportError
from export.graph.slots import Role
from tests.adapters import everywhere
from tests.export.graphs import toy
from tests.export.models import LAYERS, projections, tiny

EXPECTED = {
    "bert": ("self.query", "self.key", "self.value", "output.dense"),
    "distilbert": ("q_lin", "k_lin", "v_lin", "ffn.lin2"),
    "roberta": ("self.query", "self.key", "self.value", "output.dense"),
    "albert": ("attention.query", "attention.key", "attention.value", "ffn_output"),
    "electra": ("self.query", "self.key", "self.value", "output.dense"),
    "gpt2": ("attn.c_attn", "attn.c_attn", "attn.c_attn", "mlp.c_proj"),
    "mpnet": ("attn.q", "attn.k", "attn.v", "output.dense"),
    "modernbert": ("attn.Wqkv", "attn.Wqkv", "attn.Wqkv", "mlp.Wo"),
    "gpt_neox": ("query_key_value", "query_key_value", "query_key_value", "mlp.dense_4h_to_h"),
    "opt": ("q_proj", "k_proj", "v_proj", "fc2"),
    "llama": ("q_proj", "k_proj", "v_proj", "mlp.down_proj"),
    "qwen2": ("q_proj", "k_proj", "v_proj", "mlp.down_proj"),
    "qwen3": ("q_proj", "k_proj", "v_proj", "mlp.down_proj"),
    "gemma3": ("q_proj", "k_proj", "v_proj", "mlp.down_proj"),
}
LORA_TARGETS = {
    **dict.fromkeys(("bert", "roberta", "albert", "electra"), ("query", "value")),
    **dict.fromkeys(("opt", "llama", "qwen2", "qwen3", "gemma3"), ("q_proj", "v_proj")),
    "distilbert": ("q_lin", "v_lin"),
    "mpnet": ("q", "v"),
    "gpt2": ("c_attn",),
    "modernbert": ("Wqkv",),
    "gpt_neox": ("query_key_value",),
}


@pytest.mark.parametrize("architecture", EXPECTED)
def test_projections_of_every_block(architecture):
    found = projections(architecture, "seq-cls")
    blocks = 1 if architecture == "albert" else LAYERS  # its blocks share their weights
    modules = dict(tiny(architecture, "seq-cls").model.named_modules())
    for names, ending in zip(
        (found.query, found.key, found.value, found.feedforward), EXPECTED[architecture], strict=True
    ):
        assert len(names) == blocks
        assert all(name.endswith("." + ending) for name in names)
        assert all(name in modules for name in names)
        assert len(set(names)) == blocks
    assert not any("attention" in name for name in found.feedforward)


@pytest.mark.parametrize("architecture", EXPECTED)
def test_lora_adapts_queries_and_values_of_every_block(architecture):
    adapted = adapted_with(architecture, everywhere())
    assert tuple(sorted(adapted.config["target_modules"])) == LORA_TARGETS[architecture]
    names = [slot.name for slot in adapted.slots.values() if slot.role is Role.ADAPTER]
    blocks = 1 if architecture == "albert" else LAYERS
    assert len(names) == 2 * blocks * len(LORA_TARGETS[architecture])


def adapted_with(architecture, options, task="seq-cls"):
    return adapt(tiny(architecture, task), options, projections=projections(architecture, task))


@pytest.mark.parametrize("architecture", ["bert", "gpt2", "llama"])
def test_ia3_scales_the_input_of_the_feed_forward_and_the_output_of_keys_and_values(architecture):
    adapted = adapted_with(architecture, AdapterOptions("ia3"))
    last = EXPECTED[architecture][3]
    assert all(name.endswith(last.rpartition(".")[2]) or last in name for name in adapted.config["feedforward_modules"])
    shapes = {
        slot.name: tuple(parameter.shape)
        for parameter in adapted.model.parameters()
        if (slot := adapted.slots.get(parameter.data_ptr())) and slot.role is Role.ADAPTER
    }
    wide = [shape for name, shape in shapes.items() if f"{last}.ia3_l" in name]
    expected = (1, 128) if architecture == "gpt2" else (1, 64)  # gpt2's feed-forward is four times the hidden size
    assert wide == [expected] * LAYERS


# --- targets of the user's choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "count"),
    [
        (("key",), 2 * LAYERS),
        (("self.key",), 2 * LAYERS),
        (("intermediate.dense", "query"), 4 * LAYERS),
        (("bert.encoder.layer.1.attention.self.key",), 2),
    ],
)
def test_named_targets(targets, count):
    adapted = adapted_with("bert", AdapterOptions(targets=targets))
    assert len([slot for slot in adapted.slots.values() if slot.role is Role.ADAPTER]) == count


@pytest.mark.parametrize("targets", [("nonsense",), ("uery",), ("query", "q_proj"), ("classifier",), ("LayerNorm",)])
@pytest.mark.parametrize("method", sorted(ADAPTERS))
def test_a_target_that_matches_nothing(method, targets):
    unmatched = targets[-1]
    with pytest.raises(ExportError) as caught:
        adapted_with("bert", AdapterOptions(method, targets=targets))
    text = str(caught.value)
    assert text == f"target module {unmatched} matches no linear layer of the model; it has dense, key, query, value"


@pytest.mark.parametrize("architecture", ["bert", "gpt2"])
@pytest.mark.parametrize("method", ["lora", "bottleneck", "ia3", "bitfit"])
def test_the_last_blocks_alone(architecture, method):
    def trained(last_blocks):
        adapted = adapted_with(architecture, AdapterOptions(method, last_blocks=last_blocks))
        names = {slot.name for slot in adapted.slots.values() if slot.role is Role.ADAPTER}
        return {name.replace(".base_layer.", ".") for name in names}  # of what PEFT has wrapped

    alone = {name for name in trained(0) if f".{LAYERS - 1}." in name}
    assert trained(1) == alone
    assert alone
    assert trained(LAYERS) == {name for name in trained(0) if any(f".{block}." in name for block in range(LAYERS))}


@pytest.mark.parametrize(
    ("architecture", "count", "said"),
    [
        ("bert", LAYERS + 1, f"--last-blocks {LAYERS + 1} is more than the model's {LAYERS} blocks"),
        ("albert", 1, f"--last-blocks 1: the {LAYERS} blocks have no weights of their own"),
        ("bert", -1, "--last-blocks takes 0 (all) or more, got -1"),
    ],
)
def test_last_blocks_that_are_not_there(architecture, count, said):
    def ask():
        options = AdapterOptions(last_blocks=count)
        check_adapter(options)
        adapted_with(architecture, options)

    with pytest.raises(ExportError) as caught:
        ask()
    assert str(caught.value) == said


def test_a_model_without_attention():
    found, _ = toy(lambda hidden: hidden[:, 0])
    with pytest.raises(ExportError, match=r"found no attention .*; name --target-modules yourself"):
        find_projections(found, 2)


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_are_cut_where_they_stay_clear():
    linears = ["a.0.query", "a.1.query", "a.0.dense", "a.1.dense", "pooler.dense"]
    assert shortest_patterns(["a.0.query", "a.1.query"], linears) == ["query"]
    assert shortest_patterns(["a.0.dense", "a.1.dense"], linears) == ["a.0.dense", "a.1.dense"]
    assert shortest_patterns(["a.0.query", "a.1.query", "a.0.query"], linears) == ["query"]
    assert shortest_patterns(["a.1.query", "a.0.dense"], linears) == ["a.0.dense", "a.1.query"]
