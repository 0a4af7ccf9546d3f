"""A few blocks as a model of their own, against a model that has no other blocks."""

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
)

from edge_client.bundle import manifest as manifests
from edge_client.bundle.chain import Chain
from edge_client.bundle.manifest import Segment
from export.check.excerpt import excerpt, few_segments, only
from export.model.loading import Loaded
from export.tasks.registry import MODEL_TASKS

COMMON = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100, "pad_token_id": 0}
CONFIGS = {
    "bert": lambda layers: BertConfig(**COMMON, num_hidden_layers=layers),
    "llama": lambda layers: LlamaConfig(**COMMON, num_hidden_layers=layers),
    "gpt_neox": lambda layers: GPTNeoXConfig(**COMMON, num_hidden_layers=layers),
    "opt": lambda layers: OPTConfig(**COMMON, ffn_dim=64, word_embed_proj_dim=32, num_hidden_layers=layers),
    "gpt2": lambda layers: GPT2Config(n_embd=32, n_head=4, vocab_size=100, pad_token_id=0, n_layer=layers),
}
BLOCKS = 7


def model_of(config):
    return AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()


def loaded(model) -> Loaded:
    return Loaded("random", model, MODEL_TASKS["seq-cls"], ("0", "1"), None, 0)


def test_first_middle_and_last():
    def chain(groups, blocks):
        size = blocks // groups
        own = [Segment(f"block.{i}", i * size, (i + 1) * size) for i in range(groups)]
        return [Segment("embed", 0, 0), *own, Segment("head", blocks, blocks)]

    def names(groups, blocks):
        return [segment.name for segment in few_segments(chain(groups, blocks))]

    assert names(7, 7) == ["embed", "block.0", "block.3", "block.6", "head"]
    assert names(4, 16) == ["embed", "block.0", "block.2", "block.3", "head"]
    assert names(2, 2) == ["embed", "block.0", "block.1", "head"]
    assert names(1, 4) == ["embed", "block.0", "head"]
    every_sixth = few_segments(chain(12, 12), ["full" if number % 6 == 4 else "sliding" for number in range(12)])
    assert [segment.name for segment in every_sixth[1:-1]] == ["block.0", "block.4", "block.6", "block.11"]


@pytest.mark.parametrize("name", CONFIGS)
def test_an_excerpt_computes_what_a_model_of_these_blocks_does(name):
    torch.manual_seed(0)
    whole, short = model_of(CONFIGS[name](BLOCKS)), model_of(CONFIGS[name](3))
    blocks, few = loaded(whole).blocks, loaded(short).blocks
    assert (len(blocks), len(few)) == (BLOCKS, 3)
    others = {key: value for key, value in whole.state_dict().items() if not any(p.isdecimal() for p in key.split("."))}
    short.load_state_dict(others, strict=False)
    for number, block in zip((0, 3, 6), few, strict=True):
        block.load_state_dict(blocks[number].state_dict())
    inputs = {"input_ids": torch.randint(1, 100, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    segments = [Segment("embed", 0, 0), *(Segment(f"b{i}", i, i + 1) for i in (0, 3, 6)), Segment("head", 7, 7)]
    with torch.no_grad():
        before = whole(**inputs).logits
        with only(blocks, segments):
            found = whole(**inputs).logits
        torch.testing.assert_close(found, short(**inputs).logits)
        assert (found - before).abs().max() > 1e-4
        torch.testing.assert_close(whole(**inputs).logits, before, rtol=0, atol=0)


def test_of_a_bundle_a_shorter_chain(bundle):
    manifest = manifests.read(bundle / "manifest.json")
    embed, _, second, head = manifest.segments
    short = excerpt(manifest, [embed, second, head])
    chain = Chain(short, "onnx", 2, 8)
    assert chain.segments == ("embed", "block.1", "head")
    assert {program.segment for program in short.runtimes["onnx"].programs} == set(chain.segments)
    assert [unit.segments for unit in short.units] == [("block.1",)] * 2
    assert [program.kind for program in chain.suffix(1)] == ["enter", "dual"]
