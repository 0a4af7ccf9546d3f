"""Tiny models of every supported architecture, with random weights, and a chain of segments to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AlbertConfig,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    ModernBertConfig,
    MPNetConfig,
    OPTConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)

from edge_client.bundle.manifest import DUAL, ENTER, IGNORED, PLAIN, SCALAR, VJP, Unit
from export.adapt.adapted import Adapted
from export.adapt.targets import Projections, find_projections
from export.adapt.wrapping import adapt
from export.dual.builder import build
from export.dual.programs import input_name
from export.graph.attending import attend_by_heads
from export.graph.bottlenecks import bottlenecks, mark_bottlenecks
from export.graph.capture import TaskForward, capture
from export.graph.captured import Captured
from export.graph.narrow import narrow
from export.graph.segments import SegmentGraph, split
from export.graph.slots import Role, Slot, slot_of, value_of
from export.graph.units import find_units
from export.model.loading import Loaded
from export.tasks.registry import MODEL_TASKS
from tests.adapters import everywhere

VOCABULARY = 100
LAYERS = 2

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}

CONFIGS: dict[str, tuple[type[PretrainedConfig], dict[str, Any]]] = {
    "bert": (BertConfig, _COMMON),
    "distilbert": (
        DistilBertConfig,
        {"dim": 32, "n_layers": LAYERS, "n_heads": 4, "hidden_dim": 64, "vocab_size": VOCABULARY},
    ),
    "roberta": (RobertaConfig, {**_COMMON, "type_vocab_size": 1}),
    "albert": (AlbertConfig, {**_COMMON, "embedding_size": 16}),
    "electra": (ElectraConfig, {**_COMMON, "embedding_size": 16}),
    "gpt2": (GPT2Config, {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}),
    "mpnet": (MPNetConfig, _COMMON),
    "modernbert": (ModernBertConfig, {**_COMMON, "local_attention": 4, "global_attn_every_n_layers": 2}),
    "gpt_neox": (GPTNeoXConfig, _COMMON),
    "opt": (OPTConfig, {**_COMMON, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "llama": (LlamaConfig, _GROUPED),
    "qwen2": (Qwen2Config, _GROUPED),
    "qwen3": (Qwen3Config, {**_GROUPED, "head_dim": 8}),
    "gemma3": (Gemma3TextConfig, {**_GROUPED, "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2}),
}

PAD = 1
"""The padding token; RoBERTa counts positions from its index."""


def tiny(architecture: str, task: str, *, labels: int = 3) -> Loaded:
    """A model in eager attention with random weights, the same ones at every call."""
    config_class, options = CONFIGS[architecture]
    tokens = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": 2}
    config = config_class(**options, **tokens, use_cache=False, is_decoder=task == "causal-lm")
    found = MODEL_TASKS[task]
    if found.kind.has_classes:
        config.num_labels = labels
    torch.manual_seed(0)
    model = getattr(transformers, found.model_class).from_config(config, attn_implementation="eager").eval()
    model.requires_grad_(False)
    return Loaded(architecture, model, found, tuple(map(str, range(labels))), None, PAD)


_projections: dict[tuple[str, str], Projections] = {}


@cache
def projections(architecture: str, task: str) -> Projections:
    """Return where adapters go: the same for every method, and for tasks that have the blocks under one name."""
    loaded = tiny(architecture, task)
    key = architecture, loaded.model.base_model_prefix
    if key not in _projections:
        seen = capture(loaded.model, loaded.task, loaded.example_inputs(2, 3), {})
        _projections[key] = find_projections(seen, LAYERS)
    return _projections[key]


def batch_of(loaded: Loaded, lengths: list[int], length: int, seed: int = 0) -> dict[str, Tensor]:
    """Random tokens, one row per entry of `lengths`, padded to `length`; rows depend on their own length only."""
    rows = len(lengths)
    ids = torch.full((rows, length), PAD)
    mask = torch.zeros(rows, length, dtype=torch.int64)
    labels = torch.full(loaded.task.kind.label_shape(rows, length), IGNORED)
    for row, count in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed * 100 + row)
        ids[row, :count] = torch.randint(3, VOCABULARY, (count,), generator=generator)
        mask[row, :count] = 1
        alone = ids[row : row + 1, :count], mask[row : row + 1, :count]
        found = loaded.task.sample_labels(*alone, len(loaded.labels), generator)
        labels[(row, *map(slice, found.shape[1:]))] = found[0]  # of each token, or of all
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in loaded.inputs:
        inputs["token_type_ids"] = (torch.arange(length) >= 3).to(torch.int64) * mask
    return {**inputs, "labels": labels}


@dataclass
class Chain:
    """An adapted model cut into one segment per block, its trainable tensors moved away from their start."""

    loaded: Loaded
    adapted: Adapted
    captured: Captured
    segments: list[SegmentGraph]
    length: int
    narrowed: bool
    """Whether rows that nothing reads are left out, as exports do; with directions at bottlenecks they never are."""

    @classmethod
    def build(
        cls, architecture: str, task: str, method: str, *, batch: int, length: int, narrowed: bool = False
    ) -> Chain:
        loaded = tiny(architecture, task)
        inputs = loaded.example_inputs(batch, length)
        adapted = adapt(loaded, everywhere(method), projections=projections(architecture, task))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in adapted.model.parameters():
                if parameter.data_ptr() in adapted.slots:
                    parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        return cls(loaded, adapted, *cls._cut(loaded, adapted, inputs, narrowed), length, narrowed)

    def at(self, batch: int, length: int) -> Chain:
        """The same model captured at another shape."""
        inputs = self.loaded.example_inputs(batch, length)
        cut = self._cut(self.loaded, self.adapted, inputs, self.narrowed)
        return Chain(self.loaded, self.adapted, *cut, length, self.narrowed)

    @staticmethod
    def _cut(
        loaded: Loaded, adapted: Adapted, inputs: dict[str, Tensor], narrowed: bool
    ) -> tuple[Captured, list[SegmentGraph]]:
        captured = capture(adapted.model, loaded.task, inputs, adapted.slots)
        if adapted.at_bottlenecks:
            mark_bottlenecks(captured.graph)
        elif narrowed:
            narrow(captured)
            attend_by_heads(captured)
        return captured, split(captured, LAYERS, range(LAYERS))

    @cached_property
    def units(self) -> list[Unit]:
        return find_units(self.segments)

    @cached_property
    def parameters(self) -> dict[Slot, Tensor]:
        own = {p.data_ptr(): p.detach() for p in self.adapted.model.parameters()}
        return {slot: own[address] for address, slot in self.adapted.slots.items()}

    def used(self, role: Role) -> list[Slot]:
        """Trainable tensors that the captured forward reads; PEFT may have more."""
        nodes = (node for node in self.captured.graph.graph.nodes if node.op == "placeholder")
        return [slot_of(node) for node in nodes if slot_of(node).role is role]

    @cached_property
    def bottlenecks(self) -> set[str]:
        """The factors whose tangents enter behind them."""
        return set(bottlenecks(self.captured.graph))

    def drawn(self, slots: Iterable[Slot], rows: int) -> dict[Slot, Tensor]:
        """Random directions, of weights or at bottlenecks."""
        behind = {name: value_of(node).shape[1:] for name, node in bottlenecks(self.captured.graph).items()}
        return {slot: torch.randn(rows, *behind.get(slot.name, self.parameters[slot].shape)) for slot in slots}

    @property
    def first(self) -> int:
        """The segment where tangents start if every unit moves."""
        names = [segment.name for segment in self.segments]
        return min(names.index(unit.segments[0]) for unit in self.units)

    def losses(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return what the eager model computes: per-example losses and logits."""
        return self.forward_module(inputs)(*inputs.values())

    def forward_module(self, inputs: dict[str, Tensor]) -> TaskForward:
        return TaskForward(self.adapted.model, self.loaded.task, tuple(list(inputs)[:-1]))

    # --- running programs ---

    def run(self, index: int, kind: str, values: dict[str, Tensor], directions: int = 1) -> dict[str, Tensor]:
        program = build(self.segments[index], kind, directions)
        weights = {"w:" + slot.name: value for slot, value in self.parameters.items()}
        known = {**weights, **values}
        arguments = [known[input_name(slot_of(node))] for node in program.inputs]
        stored = [self.captured.stored[slot_of(node).name] for node in program.stored]
        return dict(zip(program.outputs, program.graph(*arguments, *stored), strict=True))

    def states(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        """The hidden states behind every segment but the head."""
        states: list[Tensor] = []
        for index in range(len(self.segments) - 1):
            states.append(self.run(index, PLAIN, inputs | _state(states))["hidden"])
        return states

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.run(len(self.segments) - 1, PLAIN, inputs | _state(self.states(inputs)))

    def dual(self, inputs: dict[str, Tensor], along: dict[Slot, Tensor], directions: int) -> dict[str, Tensor]:
        """A dual step along all adapters; with directions of the head too, the head's scalar program."""
        values = inputs | {"v:" + slot.name: direction for slot, direction in along.items()}
        last = len(self.segments) - 1
        moved: dict[str, Tensor] = {}
        for index in range(last):
            kind = PLAIN if index < self.first else ENTER if index == self.first else DUAL
            values |= (found := self.run(index, kind, values, directions))
            moved |= {name: value for name, value in found.items() if name.startswith("x:")}
        moving_head = any(slot.role is Role.HEAD for slot in along)
        kind = SCALAR if moving_head else ENTER if last == self.first else DUAL
        return moved | self.run(last, kind, values, directions)

    def exact(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients by a plain pass and the `vjp` programs from the head back."""
        states = self.states(inputs)
        result = self.run(len(self.segments) - 1, VJP, inputs | _state(states))
        total = {name: value for name, value in result.items() if name != "gradient"}
        start = self.first if self.units else len(self.segments)
        for index in range(len(self.segments) - 2, start - 1, -1):
            incoming = {"gradient": result["gradient"]}
            result = self.run(index, VJP, inputs | _state(states[:index]) | incoming)
            for name, value in result.items():
                if name != "gradient":
                    total[name] = total[name] + value if name in total else value
        return total


def _state(states: list[Tensor]) -> dict[str, Tensor]:
    return {"hidden": states[-1]} if states else {}


def combinations() -> Iterator[tuple[str, str]]:
    """Every architecture and task that transformers has a class for."""
    for architecture, (config_class, _) in CONFIGS.items():
        for task in MODEL_TASKS.values():
            if config_class in getattr(transformers, task.model_class)._model_mapping:
                yield architecture, task.name
