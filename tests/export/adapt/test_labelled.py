"""Directions by labelled examples: their own gradient's singular vectors, under a task layer fitted for a while."""

import copy
import json
import random

import pytest
import torch
import typer
from typer.testing import CliRunner

from edge_client.bundle.adapters import CENTRE, SCALE
from edge_client.commands.options.adapter import AdapterOptions
from edge_client.errors import DataError
from export.adapt.heads import standardize_head
from export.adapt.labelled import MOST, fitted_head, read_batches
from export.adapt.output_directions import by_examples
from export.adapt.wrapping import adapt
from export.cli import export
from export.errors import ExportError
from export.graph.capture import TaskForward
from export.model.loading import load
from export.tasks.registry import MODEL_TASKS
from tests.adapters import everywhere

WORDS = ("the", "ice", "on", "lake", "is", "it", "train")
LABELS = ("no", "yes")
ANSWERS = {"text": ["ice"], "answer_start": [4]}
LAYERS = [f"encoder.layer.{block}.attention.self.{name}" for block in range(2) for name in ("query", "value")]


@pytest.fixture
def loaded(model_folder):
    return load(str(model_folder), MODEL_TASKS["seq-cls"], LABELS)


@pytest.fixture
def desk(tmp_path):
    """A file of examples; whether the lake comes first makes the class."""
    rng = random.Random()

    def written(count=40, name="desk.jsonl"):
        rows = []
        for number in range(count):
            words = rng.choices(WORDS, k=rng.randrange(2, 6))
            text = " ".join(("lake", *words) if number % 2 else words)
            rows.append({"text": text, "label": LABELS[number % 2]})
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return written


def mean_loss(loaded, batches):
    forward = TaskForward(loaded.model, loaded.task, loaded.inputs)
    return torch.cat([forward(*batch.values())[0] for batch in batches]).mean()


def test_they_are_the_singular_vectors_of_the_gradient(loaded, desk):
    batches = read_batches(loaded, desk())
    standardize_head(loaded, ["classifier"], batches)
    names = ["bert." + name for name in LAYERS]
    found = by_examples(loaded, names, 2, batches)
    with fitted_head(loaded, batches):
        weights = [loaded.model.get_submodule(name).weight.requires_grad_() for name in names]
        gradients = torch.autograd.grad(mean_loss(loaded, batches), weights)
    for name, gradient in zip(names, gradients, strict=True):
        out, values, _ = torch.linalg.svd(gradient)
        assert values[1] > 1.01 * values[2], "the first two are not told apart from the others"
        ours, expected = found[name], out[:, :2]
        torch.testing.assert_close(ours @ ours.T, expected @ expected.T, atol=1e-3, rtol=0)


def test_the_head_is_fitted_and_then_as_before(loaded, desk):
    batches = read_batches(loaded, desk())
    standardize_head(loaded, ["classifier"], batches)
    before = {name: parameter.clone() for name, parameter in loaded.model.named_parameters()}
    start = mean_loss(loaded, batches)
    with fitted_head(loaded, batches):
        assert mean_loss(loaded, batches) < start - 0.01
        for name, parameter in loaded.model.named_parameters():
            assert torch.equal(before[name], parameter) != name.startswith("classifier"), name
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(before[name], parameter), name
        assert not parameter.requires_grad
    assert torch.equal(mean_loss(loaded, batches), start)
    assert "forward" not in vars(loaded.model.base_model)


def test_a_bottlenecks_second_factor_is_frozen_in_them(loaded, desk):
    path = desk()
    adapted = adapt(copy.deepcopy(loaded), AdapterOptions("bottleneck", rank=2, examples=str(path), last_blocks=1))
    factors = {name: value for name, value in adapted.initial.items() if ".lora_B." in name}
    assert len(factors) == 2  # of query and value
    assert not {slot.name for slot in adapted.slots.values()} & factors.keys()
    batches = read_batches(loaded, path)
    standardize_head(loaded, ["classifier"], batches)
    (directions,) = by_examples(loaded, ["bert." + LAYERS[-1]], 2, batches).values()
    factor = next(value for name, value in factors.items() if "value" in name)
    torch.testing.assert_close(factor, directions)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("qa", {"question": "is it ice", "context": "the ice on the lake", "answers": ANSWERS}),
        ("causal-lm", {"text": "the train is on the lake"}),
    ],
)  # fmt: skip
def test_other_tasks_read_their_rows(model_folder, tmp_path, task, row):
    path = tmp_path / "desk.jsonl"
    path.write_text(json.dumps(row) + "\n")
    loaded = load(str(model_folder), MODEL_TASKS["qa"], ())
    loaded.task = MODEL_TASKS[task]
    (batch,) = read_batches(loaded, path)
    rows, length = batch["input_ids"].shape
    assert rows == 1
    assert batch["labels"].shape == loaded.task.kind.label_shape(rows, length)
    assert batch["attention_mask"].all()


def test_of_many_examples_some_are_taken_from_everywhere(loaded, desk):
    batches = read_batches(loaded, desk(count=2 * MOST + 1))
    labels = torch.cat([batch["labels"] for batch in batches])
    assert len(labels) == MOST
    assert 0.4 < labels.float().mean() < 0.6


def test_what_cannot_be_read(loaded, tmp_path, desk):
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        read_batches(loaded, tmp_path / "missing.jsonl")
    loaded.tokenizer = None
    with pytest.raises(ExportError, match=r"has no tokenizer, so the examples of .* cannot be read"):
        read_batches(loaded, desk())


def test_every_adapter_gets_a_standardized_head(loaded, desk):
    adapted = adapt(loaded, everywhere(examples=str(desk())))
    assert {name.rpartition(".")[2] for name in adapted.initial if ".classifier." in name} == {
        "weight", "bias", CENTRE, SCALE,
    }  # fmt: skip


def test_the_command_finds_directions_by_examples(model_folder, desk, tmp_path):
    app = typer.Typer()
    app.command()(export)
    common = "--labels no,yes --peft bottleneck --rank 2 --batch 2 --seq 8 --cuts 1 --verify none --no-measure"
    bundles = []
    for name, examples in (("with", ["--examples", str(desk())]), ("without", [])):
        out = tmp_path / name
        words = [str(model_folder), *common.split(), "--no-cache", "--workers", "1", *examples, "--out", str(out)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        bundles.append((out / "adapter" / "adapter_model.safetensors").read_bytes())
    assert bundles[0] != bundles[1]
