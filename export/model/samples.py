"""Inputs for verification: real sentences where there is a tokenizer, random tokens otherwise, always with padding."""

from __future__ import annotations

from collections.abc import Sequence

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

_TOGETHER = 32
"""Random texts that go through a model at a time."""


def sample_inputs(loaded: Loaded, batch: int, length: int, seed: int) -> dict[str, Tensor]:
    """Return a batch for one shape: token inputs and labels."""
    generator = torch.Generator().manual_seed(seed)
    return _padded(loaded, [_tokens(loaded, length, i, generator) for i in range(batch)], length, generator)


def random_texts(loaded: Loaded, count: int, most: int, seed: int) -> list[dict[str, Tensor]]:
    """Batches of texts of a few tokens, drawn from all that the tokenizer knows: what a model does to any words."""
    assert loaded.tokenizer is not None
    generator = torch.Generator().manual_seed(seed)
    special = set(loaded.tokenizer.all_special_ids)
    known = [number for number in range(min(len(loaded.tokenizer), loaded.vocabulary)) if number not in special]
    rows: list[Tensor] = []
    for length in torch.randint(3, max(4, most - 3), (count,), generator=generator).tolist():
        chosen = torch.randint(len(known), (length,), generator=generator).tolist()
        text = loaded.tokenizer.decode([known[number] for number in chosen])
        rows.append(torch.tensor(loaded.tokenizer(text, truncation=True, max_length=most)["input_ids"]))
    rows.sort(key=len)  # those of about a length pad each other little
    parts = [rows[start : start + _TOGETHER] for start in range(0, count, _TOGETHER)]
    return [_padded(loaded, part, len(part[-1]), generator) for part in parts]


def _padded(loaded: Loaded, rows: Sequence[Tensor], length: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.full((len(rows), length), loaded.pad_token_id)
    mask = torch.zeros(len(rows), length, dtype=torch.int64)
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
