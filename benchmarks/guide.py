"""How much of a gradient's square do K directions hold that labelled examples at the desk give?

    python benchmarks/guide.py --data DATA/snli [--adapter lora:alpha=8,last_blocks=3] [--directions 4 16 32] [--json]

Backpropagation trains the adapter on batches of 96. On the way, the gradient of texts that neither trained nor lie at
the desk is held against three sets of K directions over all units together: gradients of groups of the desk's examples
at the weights as they are now (`spry simulate --guided N`), the same at the weights as they were at the start, and
random ones. Estimates without bias: each half of the texts measures along the directions, and the two results are
multiplied, so that a share may come out a little above 1 or below 0.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from adapters import MINILM, parsed
from fleet import machine

from edge_client.arrays import Weights
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.data.batches import Batches
from edge_client.data.encoder import TextEncoder
from edge_client.data.examples import Example, examples_for
from edge_client.data.sources import open_data
from edge_client.tasks.classification import Classification
from server.simulation.compute.guide import GuideMaker, orthonormal
from server.simulation.compute.learner import Learner, open_learner

TASK = Classification()
BATCH = 8
TOGETHER = 12
"""Batches of a training step."""
HEAD_RATE, RATE = 0.1, 0.003


@dataclass(frozen=True)
class Row:
    """What was found at one moment."""

    step: int
    directions: int
    numbers: int
    loss: float
    now: float
    start: float
    random: float


class Trial:
    """One adapter on one data set."""

    def __init__(self, data: Path, adapter: dict[str, Any], length: int, desk: int, texts: int, model: str) -> None:
        labels = tuple(json.loads((data / "labels.json").read_text()))
        rows = (data / "train.jsonl").read_text().splitlines(keepends=True)
        random.Random(0).shuffle(rows)
        with tempfile.TemporaryDirectory() as folder:
            parts = (rows[:desk], rows[desk : desk + texts], rows[desk + texts :])
            files = [Path(folder) / f"{number}.jsonl" for number in range(3)]
            for file, part in zip(files, parts, strict=True):
                file.write_text("".join(part))
            check = TASK.check(labels)
            self.desk, self.texts, self.train = (list(examples_for(open_data(file), check)) for file in files)
            self.learner: Learner = open_learner(
                model, task=TASK.name, labels=labels, device="cpu", length=length,
                adapter=AdapterOptions(**adapter, examples=str(files[0])),
            )  # fmt: skip
        manifest = self.learner.manifest
        self.length = length
        self.head = manifest.head_names
        self.units = [parameter.name for unit in manifest.units for parameter in unit.parameters]
        self._encoder = TextEncoder(self.learner.tokenizer, manifest, BATCH, length)

    def rows(self, steps: int, every: int, directions: Sequence[int]) -> Iterator[Row]:
        """On the way through so many steps."""
        guides = {
            count: GuideMaker(self.learner, self.desk, TASK.encode, directions=count, length=self.length, apart=False)
            for count in directions
        }
        weights = {name: value.copy() for name, value in self.learner.initial.items()}
        first = {count: self._flat(guide.at(0, weights)) for count, guide in guides.items()}
        moments = {name: (np.zeros_like(value), np.zeros_like(value)) for name, value in weights.items()}
        for step in range(steps + 1):
            if step % every == 0:
                gradients, loss = self._gradients(weights, self.texts, 0, len(self.texts) // BATCH)
                whole = self._flat(gradients)
                halves = whole[::2].mean(0), whole[1::2].mean(0)
                for count, guide in guides.items():
                    chance = np.random.default_rng(step).normal(size=first[count].shape)
                    spans = self._flat(guide.at(step, weights)), first[count], chance
                    held = [round(share(orthonormal(span), *halves), 4) for span in spans]
                    yield Row(step, count, whole.shape[1], round(loss, 3), *held)
            gradients, _ = self._gradients(weights, self.train, step, TOGETHER)
            self._move(weights, moments, gradients, step)

    def _gradients(self, weights: Weights, texts: Sequence[Example], step: int, count: int) -> tuple[Weights, float]:
        """[batches, *shape]: of so many batches, each one's."""
        drawn = Batches(texts, self._encoder, TASK.encode, 0)
        batches = [drawn.at(step * count + number) for number in range(count)]
        names = [*self.units, *self.head]
        found = self.learner.differentiate([weights] * count, batches, [names] * count, per_example=False)
        loss = float(np.mean([one.loss.mean() for one in found]))
        return {name: np.stack([one.gradients[name] for one in found]) for name in names}, loss

    def _flat(self, gradients: Weights) -> np.ndarray:
        return np.concatenate([gradients[name].reshape(len(gradients[name]), -1) for name in self.units], axis=1)

    def _move(self, weights: Weights, moments: dict[str, Any], gradients: Weights, step: int) -> None:
        """Adam for the units, the plain gradient for a head that reads standardized features."""
        for name, found in gradients.items():
            slope = found.mean(0)
            if name in self.head:
                weights[name] = weights[name] - HEAD_RATE * slope
                continue
            mean, square = moments[name]
            moments[name] = mean, square = 0.9 * mean + 0.1 * slope, 0.99 * square + 0.01 * slope**2
            mean, square = mean / (1 - 0.9 ** (step + 1)), square / (1 - 0.99 ** (step + 1))
            weights[name] = (weights[name] - RATE * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)


def share(span: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    """Of the square of the gradient that two samples have in common."""
    return float((span @ one) @ (span @ other) / (one @ other))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a folder with train.jsonl and labels.json")
    parser.add_argument("--adapter", default="lora:alpha=8,last_blocks=3", help="a method and its options")
    parser.add_argument("--directions", type=int, nargs="+", default=[16])
    parser.add_argument("--desk", type=int, default=256, help="labelled rows at the desk")
    parser.add_argument("--texts", type=int, default=960, help="whose gradient is looked at")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--every", type=int, default=30)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--model", default=MINILM)
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args()
    adapter, _ = parsed(options.adapter)
    trial = Trial(options.data, adapter, options.length, options.desk, options.texts, options.model)
    found = trial.rows(options.steps, options.every, options.directions)
    if options.json:
        print(json.dumps([asdict(row) for row in found]))
        return
    print(f"{machine()}, {options.data.name}, {options.adapter}, {options.desk} rows at the desk")
    names = list(Row.__dataclass_fields__)
    print("".join(f"{name:>12}" for name in names))
    for row in found:
        print("".join(f"{value!s:>12}" for value in asdict(row).values()), flush=True)


if __name__ == "__main__":
    main()
