"""Whole models for llama.cpp: read back by the library of the format, and by llama.cpp itself where it is built."""

import json
import random
from random import randrange

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from edge_client.errors import SpryError
from edge_client.gguf.header import GgufHeader
from edge_client.gguf.tokens import PATTERNS, GgufWords
from server.formats.whole import MODELS, write_whole
from tests import chats
from tests.server.formats.models import base, turned
from tests.server.formats.test_gguf import NAMES

SLOWED = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
"""Positions as in Llama 3.1 and later."""
OTHERS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip


def model(kind, folder, *, slowed=False):
    base(kind, folder, seed=randrange(1 << 24))
    if slowed:
        change(folder / "config.json", rope_parameters=SLOWED)
    return folder


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def called(name):
    """By the table above and that of the adapters."""
    whole, _, kind = name.rpartition(".")
    if whole in OTHERS:
        return f"{OTHERS[whole]}.{kind}"
    _, _, block, layer = whole.split(".", 3)
    return f"blk.{block}.{OTHERS.get(layer) or NAMES[layer.rpartition('.')[2]]}.{kind}"


@pytest.fixture(scope="module", params=[*((kind, False) for kind in MODELS), ("llama", True)], ids=str)
def written(request, tmp_path_factory):
    import gguf

    kind, slowed = request.param
    folder = model(kind, tmp_path_factory.mktemp("models") / kind, slowed=slowed)
    return folder, gguf.GGUFReader(write_whole(folder, "news, version 3"))


def test_every_tensor_is_that_of_the_merged_model(written):
    folder, reader = written
    config = json.loads((folder / "config.json").read_text())
    found = {tensor.name: np.asarray(tensor.data) for tensor in reader.tensors}
    factors = found.pop("rope_freqs.weight", None)
    expected = {}
    for name, value in load_file(folder / "model.safetensors").items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        expected[called(name)] = turned(value, heads) if heads and config["model_type"] == "llama" else value
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert (factors is not None) == (config["rope_parameters"]["rope_type"] == "llama3")


def test_its_words_are_those_of_its_tokenizer(written):
    folder, reader = written
    told = {
        name: reader.get_field(f"tokenizer.ggml.{name}").contents()
        for name in ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id", "add_bos_token")
    }
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    assert told["tokens"] == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    kinds = {"control": 3, "usual": 1}
    assert told["token_type"] == [
        kinds["control" if number in tokenizer.all_special_ids or word in chats.SPECIAL else "usual"]
        for number, word in enumerate(told["tokens"])
    ]
    pairs = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    assert [tuple(one.split(" ")) for one in told["merges"]] == [tuple(pair) for pair in pairs]
    assert (told["model"], told["pre"], told["add_bos_token"]) == ("gpt2", "gpt-2", True)
    assert (told["bos_token_id"], told["eos_token_id"]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert reader.get_field("tokenizer.chat_template").contents() == chats.PLAIN["chatml"]
    assert reader.get_field("general.name").contents() == "news, version 3"


# --- what is refused ---

SPLIT = {"type": "Split", "pattern": {"Regex": PATTERNS["qwen2"].steps[0]}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": True}
DIGITS = {"type": "Digits", "individual_digits": True}
REFUSED = {
    "gpt2": ("config.json", {"model_type": "gpt2"}, "it is a gpt2, not one of llama, qwen2, qwen3"),
    "a window": ("config.json", {"use_sliding_window": True}, "its attention has a sliding window"),
    "yarn": ("config.json", {"rope_parameters": SLOWED | {"rope_type": "yarn"}}, "its positions are of the type yarn"),
    "few rows": ("config.json", {"vocab_size": 300}, r"its tokenizer has \d+ tokens, and the model 300"),
    "lowercase": ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, "changes texts before it splits them"),
    "words": ("tokenizer.json", {"pre_tokenizer": {"type": "Whitespace"}}, "splits texts in a way that is not known"),
    "a prefix": (
        "tokenizer.json", {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True,
                                             "trim_offsets": True}}, "splits texts in a way that is not known",
    ),
    "spaces kept": (
        "tokenizer.json", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{**SPLIT, "behavior": "Removed"},
                                                                                 BYTES]}},
        "splits texts in a way that is not known",
    ),
    "digits by threes": (
        "tokenizer.json", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {**DIGITS, "individual_digits": False}, {**BYTES, "use_regex": True}]}},
        "splits texts in a way that is not known",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_known_to_come_out_right_is_refused(kind, tmp_path):
    file, values, why = REFUSED[kind]
    folder = model("llama", tmp_path / "model")
    change(folder / file, **values)
    with pytest.raises(SpryError, match=f"this model cannot become one whole GGUF: .*{why}.*; take the format merged"):
        write_whole(folder, "x")


def test_other_layers_and_other_words_around_a_text_are_refused(tmp_path):
    folder = model("llama", tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"score.weight.of": np.zeros(3, np.float32)}, folder / "model.safetensors")
    with pytest.raises(SpryError, match=r"llama.cpp has no name for its score\.weight\.of"):
        write_whole(folder, "x")
    save_file(tensors, folder / "model.safetensors")
    told = json.loads((folder / "tokenizer.json").read_text())
    told["post_processor"]["single"].append({"SpecialToken": {"id": chats.BEGIN, "type_id": 0}})
    (folder / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(SpryError, match="more tokens to a text than the one that begins it"):
        write_whole(folder, "x")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SpryError, match=r"it has no tokenizer\.json"):
        write_whole(folder, "x")


# --- by llama.cpp itself ---


def written_by_hand(rng):
    """With what the ways to split a text treat differently."""
    odd = [
        "",
        "12345 67",
        "\r\n\n  x",
        "I'LL we're",
        "<|im_end|>\n",
        "a\u0301é",
        "\t!?\n",
        "x=10000;\n\n",
        "...\n(2024)",
    ]
    return "".join(chats.words(rng, 4) + rng.choice(odd) for _ in range(3))


def pairs_of(name, most):
    """A tokenizer whose pairs were learnt of texts that are split as llama.cpp calls it, as models' folders have it."""
    pattern = PATTERNS[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=pattern.whole_first))
    steps = [
        pre_tokenizers.Digits(individual_digits=True) if step == r"\p{N}" else
        pre_tokenizers.Split(Regex(step), "isolated")
        for step in pattern.steps
    ]  # fmt: skip
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern.plain)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, bytewise])
    trainer = trainers.BpeTrainer(
        vocab_size=most, special_tokens=list(chats.SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator([written_by_hand(random.Random(number)) for number in range(200)], trainer)
    return tokenizer


@pytest.mark.parametrize("splits", ["llama-bpe", "dbrx", "qwen2", "smollm", "gpt-2", "gpt-4o", "tekken", "deepseek-v3"])
def test_words_are_split_alike_when_the_file_is_read_again(splits, tmp_path):
    folder = model("llama", tmp_path / "model")
    most = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = pairs_of(splits, most)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = GgufWords(GgufHeader(write_whole(folder, "x")))
    again = words.tokenizer()
    assert words.pattern[0] == splits
    rng = random.Random()
    for _ in range(50):
        text = written_by_hand(rng)
        assert again.encode(text, add_special_tokens=False).ids == tokenizer.encode(text).ids, repr(text)


@pytest.mark.parametrize(
    ("kind", "splits", "slowed"),
    [
        ("llama", "llama-bpe", False),
        ("llama", "gpt-2", True),
        ("llama", "smollm", False),
        ("qwen2", "qwen2", False),
        ("qwen3", "dbrx", False),
    ],
)
def test_llama_cpp_reads_and_computes_what_transformers_does(kind, splits, slowed, tmp_path):
    llama_cpp = pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python is not built here: its compiler takes minutes"
    )
    folder = model(kind, tmp_path / "model", slowed=slowed)
    most = json.loads((folder / "config.json").read_text())["vocab_size"]
    pairs_of(splits, most).save(str(folder / "tokenizer.json"))
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    file = write_whole(folder, "x")
    told = llama_cpp.Llama(
        str(file), n_ctx=64, logits_all=True, verbose=False, n_threads=1, n_batch=64, type_k=0, type_v=0
    )
    rng = random.Random()
    try:
        for _ in range(50):
            text = written_by_hand(rng)
            assert told.tokenize(text.encode(), add_bos=False, special=True) == words(text).input_ids, repr(text)
        ids = np.random.default_rng(rng.randrange(1 << 24)).integers(12, len(words), 48).tolist()
        told.eval(ids)
        with torch.no_grad():
            expected = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0].numpy()
        np.testing.assert_allclose(np.array(told.scores[: len(ids)]), expected, atol=2e-2)
    finally:
        told.close()
