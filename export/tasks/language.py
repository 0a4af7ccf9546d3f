"""Language modelling (`causal-lm`)."""

from __future__ import annotations

import torch
from torch import Tensor

from edge_client.bundle.manifest import IGNORED
from edge_client.tasks.language import Language
from export.tasks.task import ModelTask, picked


class LanguageModel(ModelTask):
    kind = Language()
    model_class = "AutoModelForCausalLM"
    peft_type = "CAUSAL_LM"
    has_head = False

    def losses(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Mean cross entropy per example of the next token: `labels` [B, T], `logits` [B, T, V]."""
        log_probability = picked(torch.log_softmax(logits[:, :-1], -1), labels[:, 1:])
        counted = (labels[:, 1:] >= 0).to(log_probability.dtype)
        return -(log_probability * counted).sum(-1) / counted.sum(-1).clamp(min=1.0)

    def sample_labels(self, ids: Tensor, mask: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        return ids.masked_fill(mask == 0, IGNORED)
