"""Tiny language models, adapters of every method with random weights, and the model itself as llama.cpp loads it."""

from pathlib import Path

import msgspec
import numpy as np
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.numpy import load_file
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
)

from edge_client.bundle.adapters import folded
from edge_client.bundle.folder import Bundle
from export.adapt.wrapping import adapt
from export.graph.bottlenecks import mark_bottlenecks
from export.graph.capture import capture
from export.graph.segments import boundaries, split
from export.model.loading import load
from export.tasks.registry import MODEL_TASKS
from export.write import pack
from export.write.description import describe, structure_of
from server.formats.learned import Learned, Version
from tests import chats
from tests.adapters import everywhere

BLOCKS = 2
_SHAPE = {
    "hidden_size": 64, "num_hidden_layers": BLOCKS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
CONFIGS = {
    "gemma": lambda **words: GemmaConfig(**_SHAPE, head_dim=16, **words),
    "gemma2": lambda **words: Gemma2Config(**_SHAPE, head_dim=16, query_pre_attn_scalar=16, sliding_window=8, **words),
    "gemma3_text": lambda **words: Gemma3TextConfig(
        **_SHAPE, head_dim=16, query_pre_attn_scalar=16, layer_types=["full_attention"] * 2, **words
    ),
    "gpt2": lambda **words: GPT2Config(
        n_embd=64, n_layer=BLOCKS, n_head=4, n_positions=64, initializer_range=0.2, **words
    ),
    "llama": lambda **words: LlamaConfig(**_SHAPE, **words),
    "mistral": lambda **words: MistralConfig(**_SHAPE, sliding_window=None, **words),
    "phi3": lambda **words: Phi3Config(**_SHAPE, **words),
    "qwen2": lambda **words: Qwen2Config(**_SHAPE, **words),
    "qwen3": lambda **words: Qwen3Config(**_SHAPE, head_dim=16, **words),
}
METHODS = ("lora", "bottleneck")
"""That are products of thin factors."""


def base(kind: str, folder: Path, seed: int) -> Path:
    """A random model in a folder, as anybody would save one, and its tokenizer with a chat template."""
    import transformers

    words = chats.tokenizer(chats.PLAIN["chatml"])
    named = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    config = CONFIGS[kind](vocab_size=len(words), **named)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):  # else they are ones and zeros, which hide mistakes
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def turned(change: np.ndarray, heads: int) -> np.ndarray:
    """Row by row: feature i of a head and the one half a head further become neighbours."""
    of_head = len(change) // heads
    half = of_head // 2
    order = [head * of_head + pair + side * half for head in range(heads) for pair in range(half) for side in (0, 1)]
    return change[order]


class Taught:
    """A base with an adapter of random weights: as a job hands it out, and as PEFT runs it."""

    def __init__(self, folder: Path, scratch: Path, method: str = "lora", seed: int = 0, **options) -> None:
        self.loaded = load(str(folder), MODEL_TASKS["causal-lm"], ())
        self.adapted = adapt(self.loaded, everywhere(method, **options))
        self.model = self.adapted.model
        moved = self._move(np.random.default_rng(seed))
        bundle = self._bundle(scratch / "bundle", method)
        tensors = folded(load_file(bundle.folder / bundle.manifest.adapter.file) | moved)
        self.learned = Learned(Version("news", 3, "0" * 64), bundle, tensors)

    def _move(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        parameters, moved = dict(self.model.named_parameters()), {}
        for slot, name in self.adapted.names.items():
            shape = parameters[name].shape
            value = generator.choice([-0.3, 0.3], shape) * generator.uniform(0.5, 1.5, shape)
            parameters[name].data.copy_(torch.tensor(value))
            moved[slot] = value.astype(np.float32)
        return moved

    def _bundle(self, folder: Path, method: str) -> Bundle:
        """As much of one as there is before there are programs."""
        captured = capture(self.model, self.loaded.task, self.loaded.example_inputs(2, 8), self.adapted.slots)
        if self.adapted.at_bottlenecks:
            mark_bottlenecks(captured.graph)
        segments = split(captured, self.loaded.layers, boundaries(self.loaded.layers, None))
        pack.add_adapter(folder / pack.ADAPTER_FOLDER, self.adapted.config, self.adapted.initial)
        pack.add_config(folder, self.loaded)
        template = pack.add_template(folder, self.loaded)
        described = describe(self.loaded, self.adapted, structure_of(segments), method)
        return Bundle(folder, msgspec.structs.replace(described, chat_template=template))

    @torch.no_grad()
    def logits(self, ids: list[int]) -> np.ndarray:
        return self.model(input_ids=torch.tensor([ids])).logits[0].numpy()

    @torch.no_grad()
    def changes(self) -> dict[str, np.ndarray]:
        """By how much each adapted layer's weight differs, [features out, features in], as its own code computes it."""
        found = {}
        for name, layer in self.model.named_modules():
            if isinstance(layer, BaseTunerLayer):
                lines = torch.eye(layer.in_features)
                found[name.removeprefix("base_model.model.")] = (layer(lines) - layer.base_layer(lines)).T.numpy()
        return found
