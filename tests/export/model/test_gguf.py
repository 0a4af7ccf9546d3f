"""GGUF files as models: what transformers and the format's own library say of them, and files that are no good."""

import json
import struct
from contextlib import suppress
from random import randrange

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from edge_client.checkpoints import PACKAGE_PREFIX, local_model
from edge_client.errors import SpryError
from export.model.gguf.families import FAMILIES
from export.model.loading import copied_bytes, load
from export.tasks.registry import MODEL_TASKS
from server.formats.gguf import ARCHITECTURES
from tests.server.formats.models import CONFIGS, base
from tests.server.formats.whole import whole

SPEAK = MODEL_TASKS["causal-lm"]
TEXTS = ["the tea is hot", "\n\n1. It's 42, isn't it?  ", "naïve ß 日本", "<pad> a"]


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


@pytest.fixture(scope="module", params=CONFIGS)
def kept(request, tmp_path_factory):
    """A model in its folder, and in a file of full precision."""
    folder = base(request.param, tmp_path_factory.mktemp("models") / request.param, seed=randrange(1 << 24))
    return folder, whole(folder, folder.with_suffix(".gguf"), tokenizer=True)


def test_a_file_computes_what_its_folder_does(kept):
    folder, file = kept
    loaded = load(str(file), SPEAK, ())
    ids = np.random.default_rng(0).integers(3, 60, 24).tolist()
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    np.testing.assert_allclose(logits(loaded.model, ids), logits(expected, ids), atol=1e-4)
    assert loaded.name == file.name
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    assert loaded.ends[0] == words.eos_token_id
    assert words.convert_tokens_to_ids("<|im_end|>") in loaded.ends, "a turn's end, whatever the file calls the text's"


def test_its_tokenizer_and_template_are_the_folders(kept):
    folder, file = kept
    ours, theirs = load(str(file), SPEAK, ()).tokenizer, PreTrainedTokenizerFast.from_pretrained(folder)
    assert ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    assert ours.chat_template == theirs.chat_template
    talk = [{"role": "user", "content": "Hot?"}, {"role": "assistant", "content": "No."}]
    assert ours.apply_chat_template(talk)["input_ids"] == theirs.apply_chat_template(talk)["input_ids"]
    for name in ("bos_token", "eos_token", "pad_token"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_adapters_are_made_for_every_architecture_that_is_read():
    known = {family.model_type for family in FAMILIES.values()}
    assert known <= ARCHITECTURES.keys()
    assert {ARCHITECTURES[kind].name for kind in known} == FAMILIES.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return base("llama", tmp_path_factory.mktemp("models") / "llama", seed=randrange(1 << 24))


@pytest.fixture(scope="module")
def file(folder):
    return whole(folder, folder.with_suffix(".gguf"), tokenizer=True)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_weights_are_what_the_formats_library_says(folder, tmp_path, kind):
    file = whole(folder, tmp_path / "model.gguf", kind, tokenizer=True)
    values = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(file).tensors}
    got = load(str(file), SPEAK, ()).model.state_dict()
    np.testing.assert_array_equal(got["model.layers.1.mlp.down_proj.weight"], values["blk.1.ffn_down.weight"])
    query = values["blk.0.attn_q.weight"].reshape(4, 8, 2, 64)  # four heads, whose neighbours come half a head apart
    np.testing.assert_array_equal(got["model.layers.0.self_attn.q_proj.weight"], query.swapaxes(1, 2).reshape(64, 64))


@pytest.mark.parametrize("kind", ["llama", "phi3", "qwen2"])
def test_weights_are_those_of_transformers_own_loader(kind, tmp_path):
    """Build a file of each architecture in a test's sizes."""
    pytest.importorskip("accelerate", reason="transformers reads no GGUF file without accelerate")
    file = whole(base(kind, tmp_path / kind, seed=randrange(1 << 24)), tmp_path / "model.gguf", "Q8_0", tokenizer=True)
    ours = load(str(file), SPEAK, ()).model.state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32).state_dict()
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_K", "Q2_K", "IQ4_XS"])
def test_blocks_of_256_are_read(tmp_path, kind):
    """Nobody writes these in Python, so their bytes are random."""
    from export.model.gguf.checkpoint import GgufCheckpoint

    folder = base("llama", tmp_path / "llama", seed=0)
    file, number = whole(folder, tmp_path / "model.gguf", tokenizer=True), gguf.GGMLQuantizationType[kind]
    checkpoint = GgufCheckpoint(file)
    block, size = gguf.GGML_QUANT_SIZES[number]
    raw = np.random.default_rng(0).integers(0, 256, (3, 2 * size), np.uint8)
    blocks = tmp_path / "blocks"
    blocks.write_bytes(raw.tobytes())
    checkpoint.path = blocks
    tensor = checkpoint.header.tensors["token_embd.weight"]._replace(shape=(3, 2 * block), kind=int(number), offset=0)
    np.testing.assert_array_equal(checkpoint.numbers(tensor), gguf.quants.dequantize(raw, number))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_kept_blocks_are_the_files(folder, tmp_path, kind):
    """Row by row in transformers' order: queries and keys too."""
    loaded = load(str(whole(folder, tmp_path / "model.gguf", kind, tokenizer=True)), SPEAK, ())
    assert len(loaded.kept) == sum(value.ndim == 2 for value in loaded.model.parameters())
    for parameter, blocks in loaded.kept.items():
        codes, scales, shifts = blocks.codes(), blocks.scales()[..., None], blocks.shifts()
        if blocks.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], 32)
        middle = 8 if blocks.bits == 4 else 128
        values = (codes.astype(np.float32) - middle) * scales + (0 if shifts is None else shifts[..., None])
        value = parameter.detach().numpy()
        np.testing.assert_allclose(values.reshape(value.shape), value, rtol=0, atol=1e-6 * np.abs(value).max())


def test_a_task_layer_is_new(file):
    loaded = load(str(file), MODEL_TASKS["seq-cls"], ("a", "b", "c"))
    assert loaded.model.score.weight.shape == (3, 64)


def test_weights_are_mapped_from_a_copy(file, tmp_path):
    plain, mapped = load(str(file), SPEAK, ()), load(str(file), SPEAK, (), copy=tmp_path)
    assert copied_bytes(str(file)) == 4 * plain.parameters
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(mapped.model.state_dict()[name], value, rtol=0, atol=0)


def test_positions_slowed_as_in_llama_3(folder, tmp_path):
    from server.formats.whole import write_whole

    slow = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
    slowed = base("llama", tmp_path / "slowed", seed=0)
    config = json.loads((slowed / "config.json").read_text())
    (slowed / "config.json").write_text(json.dumps(config | {"rope_parameters": slow}))
    loaded = load(str(write_whole(slowed, "slow")), SPEAK, ())
    assert loaded.model.config.rope_parameters == slow


# --- where files lie ---


def test_a_folder_with_one_file(file, tmp_path):
    (tmp_path / "mmproj-model.gguf").write_bytes(b"GGUF")
    link = tmp_path / "model.gguf"
    link.symlink_to(file)
    assert local_model(str(tmp_path)) == link
    (tmp_path / "other.gguf").symlink_to(file)
    with pytest.raises(SpryError, match=r"holds several models: model.gguf, other.gguf; give the path of one of them"):
        local_model(str(tmp_path))


@pytest.fixture
def store(file, tmp_path):
    """Ollama's folder of models."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "sha256-0123").symlink_to(file)
    return ollama(tmp_path, "smol/135m")


def ollama(store, name, **more):
    kinds = {"model": "sha256:0123", "template": "sha256:4567", **more}
    layers = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": of} for kind, of in kinds.items()]
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"layers": layers}))
    return store


def test_ollamas_models(store):
    blob, library = store / "blobs" / "sha256-0123", "manifests/registry.ollama.ai/library"
    for given in (store, store / library / "smol", store / library / "smol" / "135m", blob):
        assert local_model(str(given)) == blob
    ollama(store, "other/7b")
    with pytest.raises(SpryError, match=f"several models: {library}/other/7b, {library}/smol/135m; give the path"):
        local_model(str(store))
    assert load(str(store / library / "smol" / "135m"), SPEAK, ()).name == "sha256-0123"


def test_ollamas_models_that_cannot_be_taken(store):
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "smol" / "135m"
    for more, why in (({"adapter": "sha256:1"}, "an adapter of its own"), ({"model": "sha256:9"}, "`ollama pull` it")):
        ollama(store, "smol/135m", **more)
        with pytest.raises(SpryError, match=why):
            local_model(str(manifest))
    manifest.write_text("{}")
    with pytest.raises(SpryError, match="no manifest of an Ollama model"):
        local_model(str(manifest))


def test_a_package_with_one_file_is_not_imported(file, tmp_path, monkeypatch):
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("import nothing_that_is_installed")
    (package / "model.gguf").symlink_to(file)
    monkeypatch.syspath_prepend(tmp_path)
    assert local_model(f"{PACKAGE_PREFIX}carries_a_model") == package / "model.gguf"


# --- files that are no good ---


def refused(file, task=SPEAK):
    with pytest.raises(SpryError) as caught:
        load(str(file), task, ())
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_that_is_cut_anywhere(file, tmp_path):
    content = file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for end in (4, 7, 8, 20, 30, 100, 1000, 10_000, len(content) // 2, len(content) - 1):
        cut.write_bytes(content[:end])
        assert "is cut off" in refused(cut)
    for end in (0, 3):
        cut.write_bytes(content[:end])
        assert "is no GGUF" in refused(cut)


@pytest.mark.parametrize("place", [8, 16])
def test_counts_are_not_believed(file, tmp_path, place):
    content = bytearray(file.read_bytes())
    content[place : place + 8] = struct.pack("<Q", 1 << 60)
    hostile = tmp_path / "hostile.gguf"
    hostile.write_bytes(content)
    assert "is cut off" in refused(hostile) or "is damaged" in refused(hostile)


def test_nothing_is_believed_of_a_header(file, tmp_path):
    """Random bytes in its header: what comes of it is an error that people can read, or a model."""
    content, generator = file.read_bytes(), np.random.default_rng(randrange(1 << 24))
    broken = tmp_path / "broken.gguf"
    for _ in range(60):
        bytes_ = bytearray(content)
        for place in generator.integers(4, 3000, 3):
            bytes_[place] = generator.integers(256)
        broken.write_bytes(bytes_)
        with suppress(SpryError):
            load(str(broken), SPEAK, ())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda content: b"GGML" + content[4:], "is no folder and no GGUF file|is no GGUF"),
        (lambda content: content[:4] + struct.pack("<I", 1) + content[8:], "a GGUF of version 1; versions 2 and 3"),
        (lambda content: content[:4] + struct.pack(">I", 3) + content[8:], "written for big-endian machines"),
        (lambda content: content.replace(b"llama", b"lla00"), "of the architecture lla00; known are gemma, .*llama"),
        (lambda content: content.replace(b"gpt2", b"bert"), "its tokenizer is a bert, and gpt2 and llama are known"),
        (lambda content: content.replace(b"gpt-2", b"gpt-x"), "by the pattern 'gpt-x', which is not known here"),
        (lambda content: content.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.mode_"), "it holds no tokenizer"),
        (
            lambda content: content.replace(b"llama.block_count", b"llama.block_numb_"),
            "has no llama.block_count",
        ),
        (
            lambda content: content.replace(b"blk.1.ffn_up", b"blk.1.ffn_u_"),
            r"lacks tensors \(blk.1.ffn_up",
        ),
    ],
)
def test_what_is_not_known(file, tmp_path, change, why):
    other = tmp_path / "other.gguf"
    other.write_bytes(change(file.read_bytes()))
    with pytest.raises(SpryError, match=why):
        load(str(other), SPEAK, ())


def test_a_way_of_quantization_that_is_not_known(file, tmp_path):
    content = bytearray(file.read_bytes())
    place = content.index(b"blk.0.ffn_up.weight") + len("blk.0.ffn_up.weight") + 4 + 16
    content[place : place + 4] = struct.pack("<I", 99)
    other = tmp_path / "other.gguf"
    other.write_bytes(content)
    assert "blk.0.ffn_up.weight is quantized in the way 99, which is not known; known are BF16" in refused(other)


def test_a_part_of_a_model(file, tmp_path):
    part = tmp_path / "model-00001-of-00002.gguf"
    part.symlink_to(file)
    for given in (part, tmp_path):
        assert "a part of a model in several files; join them" in refused(given)
