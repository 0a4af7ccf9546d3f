"""Data sets to simulate with, and folders of runs as `spry simulate` leaves them."""

import json
import math
import random
from functools import partial
from pathlib import Path

import pytest

from tests.server.simulation.runs import write_data

ESTIMATORS = {"fedavg": "exact", "fedyogi": "exact", "spry": "forward", "fedmezo": "central", "classifier": "exact"}


def config(method: str = "spry", seed: int = 0, **changed) -> dict:
    head_alone = method == "classifier"
    training = {"mode": "epoch", "estimator": ESTIMATORS[method], "directions": 1, "learning_rate": 0.01}
    made = {
        "version": 1, "method": method, "preset": "default", "model": "a-model",
        "adapter": {"method": "lora", "rank": 1, "alpha": 8.0, "targets": ["query", "value"]},
        "data": {"name": "news", "classes": 4, "examples": 4800, "test": 600}, "clients": 100, "per_round": 10,
        "rounds": 20, "alpha": 0.1, "seed": seed, "arithmetic": "bfloat16", "device": "cpu",
        "settings": {"training": training | changed.pop("training", {}), "per_round": 10, "rounds": 20, "seed": seed},
        "numbers": {"units": 0 if head_alone else 12, "unit_weights": 0 if head_alone else 9216, "head_weights": 1540},
    }  # fmt: skip
    return made | changed


def rounds(count: int = 20, top: float = 0.9, every: int = 1, clients: int = 10) -> list[dict]:
    """A curve that rises from chance, with noise, and costs that vary from round to round."""
    rng = random.Random()
    made = []
    for number in range(1, count + 1):
        row = {
            "round": number, "seconds": rng.uniform(1, 3), "loss": 1.4 * math.exp(-number / 8) + rng.uniform(0.2, 0.3),
            "clients": clients, "examples": 48 * clients, "bytes_up": clients * rng.randrange(40_000, 50_000),
            "bytes_down": clients * 91_000, "numbers_up": clients * 2308, "numbers_down": clients * 10_756,
            "passes": 1.5, "step_seconds": rng.uniform(0.04, 0.06),
        }  # fmt: skip
        if number % every == 0:
            accuracy = 0.25 + (top - 0.25) * (1 - math.exp(-number / 5)) + rng.uniform(-0.02, 0.02)
            row |= {"accuracy": accuracy, "accuracy_personal": accuracy + 0.03}
        made.append(row)
    return made


def write_run(folder: Path, settings: dict, lines: list[dict], peak: int | None = 500_000_000) -> Path:
    """A run; one that has not ended has no peak."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if peak is not None:
        (folder / "summary.json").write_text(json.dumps({"accuracy": lines[-1].get("accuracy"), "peak_bytes": peak}))
    return folder


@pytest.fixture
def sweep(tmp_path) -> Path:
    """Two splits, five methods, three seeds."""
    tops = {"fedavg": 0.9, "fedyogi": 0.92, "spry": 0.88, "fedmezo": 0.6, "classifier": 0.8}
    for alpha in (0.1, 1.0):
        for method, top in tops.items():
            for seed in range(3):
                folder = tmp_path / "runs" / f"{alpha}" / f"{method}-{seed}"
                write_run(folder, config(method, seed, alpha=alpha), rounds(top=top))
    return tmp_path / "runs"


@pytest.fixture
def writing(tmp_path):
    """Writes a small data set with three classes, in words that the tiny model knows."""
    return partial(write_data, tmp_path)


@pytest.fixture
def write(tmp_path):
    """Writes rows as a data set's folder, and names it."""

    def written(train, test, labels=None):
        for name, rows in (("train", train), ("test", test)):
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if labels is not None:
            (tmp_path / "labels.json").write_text(json.dumps(labels))
        return str(tmp_path)

    return written


@pytest.fixture
def numbered():
    """Rows of some classes and authors, each with a text of its own."""

    def rows(count, classes=3, authors=4, prefix="text"):
        return [
            {"text": f"{prefix} {i}", "label": i % classes, "author": f"author {i % authors}"} for i in range(count)
        ]

    return rows
