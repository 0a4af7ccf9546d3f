"""Inputs for verification: real sentences where there is a tokenizer, random tokens otherwise, always with padding."""

from __future__ import annotations

import torch
from torch import Tensor

from export.model.loading import Loaded

SENTENCES = (
    "Turn the lights in the kitchen down to thirty percent, please.",
    "The committee met on Tuesday to decide how the harbour should be rebuilt.",
    "What time does the last train leave for the airport?",
    "A thin layer of ice had formed on the lake overnight.",
    "She sold the bakery, bought a van, and drove south until the road ended.",
    "Shares fell four percent after the company lowered its forecast for the year.",
    "I would not recommend this film to anyone who values two hours of their life.",
    "Play something quiet while I cook.",
    "The enzyme breaks down long sugars into pieces that the cell can absorb.",
    "Two dogs are running along the beach behind a child with a red kite.",
    "Wake me up at six, but only if it is not raining.",
    "The referee stopped the match in the second half because of the storm.",
    "Nobody had expected the old bridge to carry that much weight.",
    "It is the best soup I have eaten this winter, and the cheapest.",
    "Researchers have measured the drift of the glacier for thirty years.",
    "Add oat milk, rice and two lemons to the shopping list.",
)


def sample_inputs(loaded: Loaded, batch: int, length: int, seed: int) -> dict[str, Tensor]:
    """A batch for one shape: token inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = [_tokens(loaded, length, i, generator) for i in range(batch)]
    ids = torch.full((batch, length), loaded.pad_token_id)
    mask = torch.zeros(batch, length, dtype=torch.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if "token_type_ids" in loaded.inputs:
        second = torch.arange(length) >= mask.sum(1, keepdim=True) // 2
        inputs["token_type_ids"] = (second & (mask == 1)).to(torch.int64)
    inputs["labels"] = loaded.task.sample_labels(ids, mask, len(loaded.labels), generator)
    return inputs


def _tokens(loaded: Loaded, length: int, row: int, generator: torch.Generator) -> Tensor:
    if loaded.tokenizer is not None:
        text = SENTENCES[row % len(SENTENCES)]
        if row % 2 == 0:
            text = f"{text} {SENTENCES[(row * 7 + 3) % len(SENTENCES)]}"
        most = length if row % 2 else max(2, 3 * length // 4)  # long sentences would leave no padding
        return torch.tensor(loaded.tokenizer(text, truncation=True, max_length=most)["input_ids"])
    count = int(torch.randint(max(2, length // 2), length + 1, (1,), generator=generator))
    tokens = torch.randint(loaded.vocabulary, (count,), generator=generator)
    tokens[tokens == loaded.pad_token_id] = (loaded.pad_token_id + 1) % loaded.vocabulary
    return tokens
