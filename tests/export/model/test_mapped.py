"""Weights that stay in files: those of float32 where they are, others in a copy, and let go between uses."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from edge_client.memory import resident
from export.errors import ExportError
from export.model import mapped
from export.model.gguf.blocks import GgufBlocks
from export.model.kept import keep, kept_blocks
from export.model.loading import copied_bytes, is_too_large, load
from export.tasks.registry import MODEL_TASKS

LANGUAGE = MODEL_TASKS["causal-lm"]
MB = 1_000_000


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """54 MB in float32, tied, in several files, and the same in bfloat16."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=4,
                         vocab_size=2048, tie_word_embeddings=True)  # fmt: skip
    model, folder = LlamaForCausalLM(config), tmp_path_factory.mktemp("large")
    model.save_pretrained(folder / "float", max_shard_size="10MB")
    model.bfloat16().save_pretrained(folder / "half", max_shard_size="10MB")
    return folder


def in_copy(source, tmp_path):
    with torch.no_grad():
        loaded = load(str(source), LANGUAGE, (), copy=tmp_path)
    shutil.rmtree(tmp_path)
    return loaded


@pytest.mark.parametrize("precision", ["float", "half"])
def test_weights_cost_no_memory_until_they_are_used(large, precision, tmp_path):
    before = resident("RssAnon")
    loaded = in_copy(large / precision, tmp_path)
    assert resident("RssAnon") - before < 15 * MB
    weights = [p for name, p in loaded.model.named_parameters() if p.ndim == 2]
    assert sum(p.nbytes for p in weights) > 40 * MB
    places = list(mapped._mapped_files())
    for weight in weights:
        assert weight.dtype == torch.float32
        assert any(start <= weight.data_ptr() < stop for start, stop in places)


def test_a_copy_holds_the_same_numbers(large, tmp_path):
    loaded = in_copy(large / "half", tmp_path)
    saved = {name: value for path in (large / "half").glob("*.safetensors") for name, value in load_file(path).items()}
    found = dict(loaded.model.named_parameters())
    assert found.keys() == saved.keys()
    for name, value in saved.items():
        torch.testing.assert_close(found[name], value.float(), rtol=0, atol=0)
    assert loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight
    assert loaded.name == "half"


def test_float_weights_are_not_copied(large, tmp_path):
    assert mapped.widened(large / "float", tmp_path) == large / "float"
    assert not list(tmp_path.iterdir())
    assert copied_bytes(str(large / "float")) == 0
    elements = sum(p.numel() for p in load(str(large / "float"), LANGUAGE, ()).model.parameters())
    assert copied_bytes(str(large / "half")) == 4 * elements


def test_blocks_let_their_weights_go_when_they_have_run(large, tmp_path):
    loaded = in_copy(large / "float", tmp_path)
    mapped.let_go_behind(loaded.pieces)
    tokens = torch.arange(8).reshape(1, 8)
    before = resident("RssFile")
    with torch.no_grad():
        first = loaded.model(input_ids=tokens).logits
        assert resident("RssFile") - before < 15 * MB
        torch.testing.assert_close(loaded.model(input_ids=tokens).logits, first, rtol=0, atol=0)
    own = LlamaForCausalLM.from_pretrained(large / "float", attn_implementation="eager")
    with torch.no_grad():
        torch.testing.assert_close(first, own.eval()(input_ids=tokens).logits, rtol=0, atol=0)


def test_blocks_let_their_weights_go_when_gradients_went_back(large, tmp_path):
    loaded = in_copy(large / "float", tmp_path)
    mapped.let_go_behind(loaded.pieces)
    embedded = loaded.model.get_input_embeddings()(torch.arange(8).reshape(1, 8)).detach().requires_grad_()
    loss = loaded.model(inputs_embeds=embedded).logits.sum()
    before = resident("RssFile")
    (gradient,) = torch.autograd.grad(loss, embedded)
    assert resident("RssFile") - before < 5 * MB
    own = LlamaForCausalLM.from_pretrained(large / "float", attn_implementation="eager").eval()
    (expected,) = torch.autograd.grad(own(inputs_embeds=embedded).logits.sum(), embedded)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)


def test_what_is_let_go_is_mapped_and_stays_what_it_is(tmp_path):
    whole = torch.randn(4, 2_000_000)
    save_file({"a": whole, "b": torch.arange(5)}, tmp_path / "some.safetensors")
    with safe_open(tmp_path / "some.safetensors", "pt") as opened:
        part, own = opened.get_tensor("a"), whole.clone()
    part.sum()
    read = resident("RssFile")
    mapped.let_go([part, own, torch.empty(3, device="meta")])
    assert read - resident("RssFile") > 25 * MB
    assert torch.equal(part, whole)
    assert torch.equal(own, whole), "memory of this process is nobody's file"


def test_blocks_are_kept_beside_weights_that_are_moved(tmp_path):
    layer = nn.Linear(512, 600, bias=False)
    before = layer.weight.data_ptr()
    kept = {layer.weight: GgufBlocks(np.zeros((600, 16 * 34), np.uint8), "Q8_0")}
    mapped.move_to_files(layer, mapped.Scratch(tmp_path))
    stored = layer.weight.detach()
    assert stored.data_ptr() != before
    keep([stored], kept)
    assert kept_blocks(stored) is kept[layer.weight]


def test_scratch_tensors_outlive_their_files(tmp_path):
    scratch, tensor = mapped.Scratch(tmp_path), torch.randn(64, 64).T
    moved = scratch.moved(tensor)
    assert not list(tmp_path.iterdir())
    assert torch.equal(moved, tensor)


def test_a_model_is_too_large_by_the_memory_that_is_free(large):
    assert mapped.fits_memory(mapped.float_bytes(large / "half"))
    assert not is_too_large(str(large / "half"))
    assert not is_too_large("a-name-on-the-hub")
    free = mapped.float_bytes(large / "half")
    assert free == mapped.float_bytes(large / "float")
    huge = large / "huge"
    huge.mkdir()
    shutil.copyfile(large / "half" / "config.json", huge / "config.json")
    header = json.dumps({"w": {"dtype": "BF16", "shape": [10**6, 10**7], "data_offsets": [0, 2 * 10**13]}}).encode()
    (huge / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert is_too_large(str(huge)), "by its header alone"


def test_what_cannot_be_mapped_is_refused(large, tmp_path):
    bare = shutil.copytree(large / "half", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    (bare / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ExportError, match=r"maps weights from safetensors, and .*bare has none: save the model again"):
        load(str(bare), LANGUAGE, (), copy=tmp_path)
    with pytest.raises(ExportError, match="an/online-model is no folder: download it"):
        mapped_from_hub("an/online-model", tmp_path)


def mapped_from_hub(name, tmp_path):
    from export.model.loading import _in_files

    return _in_files(name, None, tmp_path)
