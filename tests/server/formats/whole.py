"""A base model as llama.cpp loads it, in float32: what its own converter makes of one, for the tests' models alone."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from server.formats.gguf import ARCHITECTURES
from tests.server.formats.models import BLOCKS, turned


def whole(folder: Path, file: Path, kind_of_weights: str = "F32", *, tokenizer: bool = False) -> Path:
    """`tokenizer`: the folder's own, else words that nobody reads."""
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
    if tokenizer:
        _add_tokenizer(writer, folder, config.vocab_size, gguf)
    else:
        _add_words(writer, config.vocab_size, gguf)
    _add_tensors(writer, model, gguf.GGMLQuantizationType[kind_of_weights], gguf)
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


def _add_tokenizer(writer, folder: Path, count: int, gguf) -> None:
    """One of byte pairs that splits texts as GPT-2's does."""
    told = PreTrainedTokenizerFast.from_pretrained(folder)
    model = json.loads(told.backend_tokenizer.to_str())["model"]
    words = told.convert_ids_to_tokens(range(count))
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    special = {f"{token}" for token in told.added_tokens_decoder.values()}
    kinds = [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words]
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(told.bos_token_id)
    writer.add_eos_token_id(told.eos_token_id)
    writer.add_pad_token_id(told.pad_token_id)
    writer.add_add_bos_token(True)
    if told.chat_template:
        writer.add_chat_template(told.chat_template)


def _add_tensors(writer, model, kind_of_weights, gguf) -> None:
    config, kind = model.config, model.config.model_type
    architecture = ARCHITECTURES[kind]
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture.name)
    known = gguf.get_tensor_name_map(number, BLOCKS)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        called = known.get_name(name, try_suffixes=(".weight", ".bias"))
        assert called, name
        laid_out = np.ascontiguousarray(_laid_out(name, value.numpy(), config, pairs=architecture.pairs))
        if laid_out.ndim == 1 or "position_embd" in called:
            writer.add_tensor(called, laid_out)
        else:
            writer.add_tensor(called, gguf.quants.quantize(laid_out, kind_of_weights), raw_dtype=kind_of_weights)


def _laid_out(name: str, value: np.ndarray, config, *, pairs: bool) -> np.ndarray:
    """Lay out what llama.cpp keeps in another way than transformers."""
    layer = name.split(".")[-2]
    if config.model_type == "gpt2" and layer in ("c_attn", "c_proj", "c_fc") and value.ndim == 2:
        return value.T
    if config.model_type.startswith("gemma") and "norm" in name:
        return value + 1
    if pairs and layer in ("q_proj", "k_proj"):
        return turned(value, config.num_attention_heads if layer == "q_proj" else config.num_key_value_heads)
    return value
