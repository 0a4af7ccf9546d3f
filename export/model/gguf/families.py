"""Map llama.cpp's architectures to transformers: configuration, and weights kept another way.

Names of tensors are the `gguf` package's to know. Another architecture is one more line of `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from edge_client.gguf.header import BadGguf, GgufHeader

Fields = dict[str, Any]
_SEEN = tuple(2**power for power in (13, *range(5, 18)))
"""The numbers of tokens that a model may have seen before its positions were slowed: 8192, most likely."""


class Family(NamedTuple):
    """One architecture."""

    model_type: str
    """transformers'."""
    fields: Callable[[GgufHeader], Fields]
    """Returns fields of the configuration, beside those that all share."""
    pairs: bool = False
    """Positions turn neighbouring features, where transformers turns those half a head apart."""
    from_one: bool = False
    """Norms are kept as they are, where transformers has how much they differ from one."""
    turned: tuple[str, ...] = ()
    """Layers whose weights transformers keeps with inputs first."""


def _plain(header: GgufHeader) -> Fields:
    """Describe decoders such as Llama's."""
    heads = header.own("attention.head_count", int)
    size = header.of("attention.key_length", header.own("embedding_length", int) // heads)
    if header.of("attention.value_length", size) != size:
        raise BadGguf(
            f"{header.path}: keys and values of different sizes are not known here; give a Hugging Face folder of it"
        )
    turned = header.of("rope.dimension_count", size)
    return {
        "hidden_size": header.own("embedding_length", int),
        "intermediate_size": header.own("feed_forward_length", int),
        "num_hidden_layers": header.own("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": header.of("attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": header.own("context_length", int),
        "rms_norm_eps": header.own("attention.layer_norm_rms_epsilon", float),
        "rope_parameters": _positions(header, size, turned),
    }


def _positions(header: GgufHeader, size: int, turned: int) -> Fields:
    """Return the rotation of positions."""
    rope: Fields = {"rope_type": "default", "rope_theta": header.of("rope.freq_base", 10_000.0)}
    if turned != size:
        rope["partial_rotary_factor"] = turned / size
    kind, factor = header.of("rope.scaling.type", "none"), header.of("rope.scaling.factor", 0.0)
    seen = header.of("rope.scaling.original_context_length", 0)
    if "rope_freqs.weight" in header.tensors:
        rope["rope_type"] = "llama3"  # its numbers come from the tensor
    elif kind == "linear" and factor:
        rope |= {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor and seen:
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": seen}
    elif kind not in ("none", "linear", "yarn", "longrope"):
        raise BadGguf(
            f"{header.path}: positions scaled by {kind!r} are not known here; give a Hugging Face folder of it"
        )
    return rope


def llama3_positions(header: GgufHeader, slower: np.ndarray, rope: Mapping[str, Any], size: int) -> Fields:
    """Return the rule by which each pair of features rotates so many times slower: all of Llama 3.1 and later share it.

    Args:
        header: the file's.
        slower: the file's numbers, one a pair.
        rope: the known fields of positions.
        size: a head's.
    """
    factor, low, high = float(slower.max()), 1.0, 4.0
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, size, 2) / size)
    for seen in _SEEN:
        smooth = np.clip((seen / waves - low) / (high - low), 0, 1)
        expected = 1 / ((1 - smooth) / factor + smooth)
        if slower.shape == expected.shape and np.allclose(slower, expected, rtol=1e-3):
            return {
                **rope, "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                "original_max_position_embeddings": seen,
            }  # fmt: skip
    raise BadGguf(
        f"{header.path}: its positions (rope_freqs.weight) turn by a rule that is not Llama 3's; "
        "give a Hugging Face folder of it"
    )


def _llama(header: GgufHeader) -> Fields:
    return _plain(header) | {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in header.tensors,
    }


def _qwen3(header: GgufHeader) -> Fields:
    return _plain(header) | {"attention_bias": "blk.0.attn_q.bias" in header.tensors}


def _gemma(header: GgufHeader) -> Fields:
    return _plain(header) | {"hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(header: GgufHeader) -> Fields:
    fields = _gemma(header)
    return fields | {
        "sliding_window": header.of("attention.sliding_window", 4096),
        "attn_logit_softcapping": header.of("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": header.of("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scale(fields, blocks_of_largest=46),
    }


def _gemma3(header: GgufHeader) -> Fields:
    fields = _gemma(header)
    near = {"rope_type": "default", "rope_theta": header.of("rope.freq_base_swa", 10_000.0)}
    window = header.of("attention.sliding_window", 0)
    everywhere = {"layer_types": ["full_attention"] * fields["num_hidden_layers"]}
    return (
        fields
        | ({"sliding_window": window} if window else everywhere)
        | {
            "query_pre_attn_scalar": _query_scale(fields, blocks_of_largest=62),
            "rope_parameters": {"full_attention": fields["rope_parameters"], "sliding_attention": near},
        }
    )


def _query_scale(fields: Fields, blocks_of_largest: int) -> int:
    """Return the square of the queries' divisor; the family's largest takes the embedding's share instead of a head."""
    largest = fields["num_hidden_layers"] == blocks_of_largest
    return fields["hidden_size"] // fields["num_attention_heads"] if largest else fields["head_dim"]


def _phi3(header: GgufHeader) -> Fields:
    fields = _plain(header)
    if "rope_factors_long.weight" in header.tensors:
        raise BadGguf(
            f"{header.path}: positions scaled by long and short factors are not known here; give the 4k model"
        )
    # A window as long as the context leaves nothing out.
    window = header.of("attention.sliding_window", 0)
    return fields | {
        "sliding_window": window if 0 < window < fields["max_position_embeddings"] else None,
        "original_max_position_embeddings": fields["max_position_embeddings"],
    }


def _gpt2(header: GgufHeader) -> Fields:
    return {
        "n_embd": header.own("embedding_length", int),
        "n_inner": header.own("feed_forward_length", int),
        "n_layer": header.own("block_count", int),
        "n_head": header.own("attention.head_count", int),
        "n_positions": header.own("context_length", int),
        "layer_norm_epsilon": header.own("attention.layer_norm_epsilon", float),
    }


FAMILIES: Mapping[str, Family] = {
    "gemma": Family("gemma", _gemma, from_one=True),
    "gemma2": Family("gemma2", _gemma2, from_one=True),
    "gemma3": Family("gemma3_text", _gemma3, from_one=True),
    "gpt2": Family("gpt2", _gpt2, turned=("c_attn", "c_proj", "c_fc")),
    "llama": Family("llama", _llama, pairs=True),
    "phi3": Family("phi3", _phi3),
    "qwen2": Family("qwen2", _plain),
    "qwen3": Family("qwen3", _qwen3),
}
"""The families, by llama.cpp's name, a file's `general.architecture`. Mistral's models are `llama` there."""
