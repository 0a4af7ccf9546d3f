"""What a model is trained for: which Hugging Face class, which labels, which per-example loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100
"""Label of a token that does not count, as in Hugging Face."""

_MASKED_LOGIT = -1e9


def _pick(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Log-probability of each label along the last axis; ignored labels give some finite value."""
    return log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)


def _classification_loss(logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
    """Cross entropy of `labels` [B] under `logits` [B, classes]."""
    return -_pick(torch.log_softmax(logits, -1), labels)


def _span_loss(logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean cross entropy of the span's start and end: `labels` [B, 2], `logits` [B, T, 2].

    Padding takes no probability. A span that was cut off carries IGNORED and costs nothing; an unanswerable question
    points at position 0.
    """
    padding = (attention_mask == 0).unsqueeze(-1)
    positions = logits.masked_fill(padding, _MASKED_LOGIT).transpose(1, 2)
    picked = _pick(torch.log_softmax(positions, -1), labels)
    return -(picked * (labels >= 0).to(picked.dtype)).sum(-1) * 0.5


def _next_token_loss(logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean cross entropy per example of the next token: `labels` [B, T], `logits` [B, T, V]."""
    picked = _pick(torch.log_softmax(logits[:, :-1], -1), labels[:, 1:])
    counted = (labels[:, 1:] >= 0).to(picked.dtype)
    return -(picked * counted).sum(-1) / counted.sum(-1).clamp(min=1.0)


@dataclass(frozen=True)
class Task:
    """One kind of training, from the model class to the loss."""

    name: str
    model_class: str
    has_head: bool
    """Whether the task layer is new and trained; a language model keeps its own, frozen."""
    label_shape: Callable[[int, int], tuple[int, ...]]
    """Shape of the labels for a batch of B examples of T tokens."""
    label_limit: Callable[[int, int, int], int]
    """Labels lie below this, given the number of classes, T and the vocabulary's size."""
    losses: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Loss of each example from logits, labels and attention mask."""
    peft_type: str
    """The task's name in PEFT's adapter configuration."""


TASKS = {
    task.name: task
    for task in (
        Task(
            name="seq-cls",
            model_class="AutoModelForSequenceClassification",
            has_head=True,
            label_shape=lambda batch, length: (batch,),
            label_limit=lambda classes, length, vocabulary: classes,
            losses=_classification_loss,
            peft_type="SEQ_CLS",
        ),
        Task(
            name="qa",
            model_class="AutoModelForQuestionAnswering",
            has_head=True,
            label_shape=lambda batch, length: (batch, 2),
            label_limit=lambda classes, length, vocabulary: length,
            losses=_span_loss,
            peft_type="QUESTION_ANS",
        ),
        Task(
            name="causal-lm",
            model_class="AutoModelForCausalLM",
            has_head=False,
            label_shape=lambda batch, length: (batch, length),
            label_limit=lambda classes, length, vocabulary: vocabulary,
            losses=_next_token_loss,
            peft_type="CAUSAL_LM",
        ),
    )
}
