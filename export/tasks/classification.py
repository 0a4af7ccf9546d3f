"""Classification of texts or pairs (`seq-cls`)."""

from __future__ import annotations

import torch
from torch import Tensor

from edge_client.tasks.classification import Classification
from export.tasks.task import ModelTask, picked


class ClassificationModel(ModelTask):
    kind = Classification()
    model_class = "AutoModelForSequenceClassification"
    peft_type = "SEQ_CLS"

    def losses(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Cross entropy of `labels` [B] under `logits` [B, classes]."""
        return -picked(torch.log_softmax(logits, -1), labels)

    def sample_labels(self, ids: Tensor, mask: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        return torch.randint(classes, (len(ids),), generator=generator)
