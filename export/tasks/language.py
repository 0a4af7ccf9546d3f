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

    def judged(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Give each token's likeliest follower and the loss of the true one, [B, T, 2], in place of whole logits."""
        following = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], 1)
        losses, likeliest = _of_tokens(logits, following)
        counted = (following >= 0).to(losses.dtype)
        losses = losses * counted
        mean = losses.sum(-1) / counted.sum(-1).clamp(min=1.0)
        return mean, torch.stack([likeliest.to(losses.dtype), losses], -1)

    def losses(self, logits: Tensor, labels: Tensor, attention_mask: Tensor) -> Tensor:
        """Mean cross entropy per example of the next token: `labels` [B, T], `logits` [B, T, V]."""
        return self.judged(logits, labels, attention_mask)[0]

    def sample_labels(self, ids: Tensor, mask: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        """Label each text's tokens from somewhere in its first half on: earlier ones are read, not learnt."""
        lengths = mask.sum(1, keepdim=True)
        start = (torch.rand(len(ids), 1, generator=generator) * lengths / 2).to(torch.int64)
        return ids.masked_fill((mask == 0) | (torch.arange(ids.shape[1]) < start), IGNORED)


def _of_tokens(logits: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Compute each token's loss and the likeliest entry; in a capture by the operator that needs no whole logits.

    It is `export.graph.vocabulary`'s, which has captures load it; graphs know tasks, and tasks no graphs.
    """
    if torch.compiler.is_exporting():
        losses, likeliest = torch.ops.spry.token_losses(logits, following, [])
        return losses, likeliest
    whole = torch.promote_types(logits.dtype, torch.float32)  # half of it holds no token's number
    return -picked(torch.log_softmax(logits, -1, dtype=whole), following), logits.argmax(-1)
