"""A language model of two blocks that writes by bytes, and its bundle."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '.' if m.role == 'user' else ';' }}{% endfor %}"


def exported(exporting: Callable[..., Path], folder: Path, texts: Sequence[str]) -> Path:
    """A bundle with room for 40 tokens, beside the model, whose tokenizer knows these texts best."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<end>"]
    )
    backend.train_from_iterator(texts, trainer)
    config = LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=backend.get_vocab_size(), max_position_embeddings=64, initializer_range=0.3, eos_token_id=0,
        bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(5)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder / "model")
    return exporting(folder / "bundle", source=str(folder / "model"), task="causal-lm", batches=(4,), generate=40)
