"""A whole language model as one GGUF file, tokenizer and all, of the folder in which an adapter was merged with it.

llama.cpp's own converter knows more kinds of models. These are those whose layers and words are known to come out as
transformers has them; whatever else is in a model is named, not guessed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from edge_client.errors import RuntimeMissing
from server.errors import NotWhole
from server.formats.gguf import ARCHITECTURES, Architecture, neighbours, number_of
from server.formats.words import add_words

if TYPE_CHECKING:
    from gguf import GGUFWriter

MODEL = "model.gguf"
MODELS = ("llama", "qwen2", "qwen3")
"""The models that are written, by transformers' `model_type`."""


class _Tensor(NamedTuple):
    name: str
    """The parameter's name in transformers."""
    file: Path
    shape: tuple[int, ...]


def write_whole(folder: Path, name: str) -> Path:
    """Write the file into the folder; `name` is what it is called in there. One tensor at a time is in memory."""
    config = json.loads((folder / "config.json").read_text())
    _check(config)
    try:
        import gguf
    except ImportError as error:
        raise RuntimeMissing("the format merged-gguf", "gguf", str(error)) from None
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(folder / MODEL, architecture.name)
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_sizes(writer, config)
    tensors = list(_tensors(folder))
    add_words(writer, folder, config["vocab_size"])
    known = gguf.get_tensor_name_map(number_of(gguf, architecture.name), config["num_hidden_layers"])
    factors = _factors(config)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    for one in tensors:
        called = known.get_name(one.name, try_suffixes=(".weight", ".bias"))
        if called is None:
            raise NotWhole(f"llama.cpp has no name for its {one.name}")
        writer.add_tensor_info(called, one.shape, np.dtype(np.float32), 4 * math.prod(one.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if factors is not None:
        writer.write_tensor_data(factors)
    for one in tensors:
        writer.write_tensor_data(_laid_out(one, architecture, config))
    writer.close()
    return folder / MODEL


def _check(config: Mapping[str, Any]) -> None:
    kind = config["model_type"]
    if kind not in MODELS:
        raise NotWhole(f"it is a {kind}, not one of {', '.join(MODELS)}")
    if config.get("use_sliding_window"):
        raise NotWhole("its attention has a sliding window")
    if (turns := _rope(config).get("rope_type", "default")) not in ("default", "llama3"):
        raise NotWhole(f"its positions are of the type {turns}")


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rotation of positions, as newer and older versions of transformers write it."""
    older = {"rope_theta": config.get("rope_theta", 10_000.0), **(config.get("rope_scaling") or {})}
    return config.get("rope_parameters") or older


def _head_size(config: Mapping[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def _key_heads(config: Mapping[str, Any]) -> int:
    return config.get("num_key_value_heads") or config["num_attention_heads"]


def _add_sizes(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(_key_heads(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(_head_size(config))
    writer.add_value_length(_head_size(config))
    writer.add_rope_dimension_count(_head_size(config))
    writer.add_rope_freq_base(_rope(config)["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def _factors(config: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Return by how much slower each pair of features rotates in Llama 3.1 and later; None where none does."""
    rope = _rope(config)
    if rope.get("rope_type") != "llama3":
        return None
    size, factor, seen = _head_size(config), rope["factor"], rope["original_max_position_embeddings"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((seen / waves - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)


def _tensors(folder: Path) -> Iterator[_Tensor]:
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "np") as opened:
            for name in opened.keys():  # noqa: SIM118 -- no mapping
                yield _Tensor(name, file, tuple(opened.get_slice(name).get_shape()))


def _laid_out(one: _Tensor, architecture: Architecture, config: Mapping[str, Any]) -> NDArray[np.float32]:
    """Queries and keys in the order in which llama.cpp has this architecture's."""
    with safe_open(one.file, "np") as opened:
        value = opened.get_tensor(one.name).astype(np.float32)
    layer = one.name.split(".")[-2]
    heads = {"q_proj": config["num_attention_heads"], "k_proj": _key_heads(config)}.get(layer)
    if not architecture.pairs or heads is None:
        return value
    return np.ascontiguousarray(neighbours(value.reshape(len(value), -1), heads).reshape(value.shape))
