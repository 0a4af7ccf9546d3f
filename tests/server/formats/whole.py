"""A base model as llama.cpp loads it, in float32: what its own converter makes of one, for the tests' models alone."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from server.formats.gguf import ARCHITECTURES
from tests.server.formats.models import BLOCKS, turned


def whole(folder: Path, file: Path) -> Path:
    import gguf

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config, kind = model.config, model.config.model_type
    architecture = ARCHITECTURES[kind].name
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(BLOCKS)
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_head_count_kv(config.num_key_value_heads)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_key_length(size)
        writer.add_value_length(size)
        writer.add_rope_dimension_count(size)
        rope = config.rope_parameters
        if kind == "gemma2":
            writer.add_sliding_window(config.sliding_window)
            writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
            writer.add_final_logit_softcapping(config.final_logit_softcapping)
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    _add_words(writer, config.vocab_size, gguf)
    _add_tensors(writer, model, gguf)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_words(writer, count: int, gguf) -> None:
    """Tokens that nobody reads: the tests give their numbers."""
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *(f"w{number}" for number in range(count))][:count]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE if word.startswith("<0x") else gguf.TokenType.NORMAL for word in words[3:]]
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([int(kind) for kind in kinds[:count]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _add_tensors(writer, model, gguf) -> None:
    config, kind = model.config, model.config.model_type
    architecture = ARCHITECTURES[kind]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    known = gguf.get_tensor_name_map(number, BLOCKS)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        called = known.get_name(name, try_suffixes=(".weight", ".bias"))
        assert called, name
        writer.add_tensor(
            called, np.ascontiguousarray(_laid_out(name, value.numpy(), config, pairs=architecture.pairs))
        )


def _laid_out(name: str, value: np.ndarray, config, *, pairs: bool) -> np.ndarray:
    """What llama.cpp keeps in another way than transformers."""
    layer = name.split(".")[-2]
    if config.model_type == "gpt2" and layer in ("c_attn", "c_proj", "c_fc") and value.ndim == 2:
        return value.T
    if config.model_type.startswith("gemma") and "norm" in name:
        return value + 1
    if pairs and layer in ("q_proj", "k_proj"):
        return turned(value, config.num_attention_heads if layer == "q_proj" else config.num_key_value_heads)
    return value
