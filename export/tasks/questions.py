"""Extractive questions (`qa`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edge_client.tasks.questions import Questions
from export.tasks.task import ModelTask, picked

_MASKED_LOGIT = -1e9


class QuestionsModel(ModelTask):
    kind = Questions()
    model_class = "AutoModelForQuestionAnswering"
    peft_type = "QUESTION_ANS"

    def logits(self, output: Any) -> Tensor:
        """[B, T, 2]: of the answer's start and of its end."""
        return torch.stack([output.start_logits, output.end_logits], -1)

    def losses(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Mean cross entropy of the span's start and end: `labels` [B, 2], `logits` [B, T, 2].

        Padding takes no probability. A span that was cut off carries IGNORED and costs nothing; an unanswerable
        question points at position 0.
        """
        padding = (attention_mask == 0).unsqueeze(-1)
        positions = logits.masked_fill(padding, _MASKED_LOGIT).transpose(1, 2)
        log_probability = picked(torch.log_softmax(positions, -1), labels)
        return -(log_probability * (labels >= 0).to(log_probability.dtype)).sum(-1) * 0.5

    def sample_labels(self, ids: Tensor, mask: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        lengths = mask.sum(1, keepdim=True)
        return (torch.rand(len(ids), 2, generator=generator) * lengths).to(torch.int64).sort(1).values
