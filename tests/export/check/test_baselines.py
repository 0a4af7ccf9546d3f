"""Test what is measured beside a bundle, in this process; in tests/edge_client/commands a command runs some of it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_client.bundle.folder import Bundle
from edge_client.commands.bench.figures import EAGER, STOCK_EXECUTORCH, STOCK_FP32, STOCK_INT8, STOCK_ONNX
from export.check import baselines, eager, stock, stock_export
from export.check.baselines import BASELINES, measure
from export.check.eager import checkpoint_blocks, tokens_of
from export.check.stock import Sizes, executorch_loader, file_of, onnx_loader
from export.errors import ExportError
from tests.warm import python

LOADERS = {STOCK_ONNX: onnx_loader, STOCK_EXECUTORCH: executorch_loader}
SIZES = Sizes(inputs=3, batch=2, length=8, threads=1)


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """Export a model of one block, whose usual weights round well, as stock runtimes' users do."""
    folder = tmp_path_factory.mktemp("stock")
    source = shutil.copytree(tiny, folder / "bundle")
    config = source / "model_config.json"
    fewer = json.loads(config.read_text()) | {"num_hidden_layers": 1, "initializer_range": 0.02}
    config.write_text(json.dumps(fewer).ljust(config.stat().st_size))
    torch.manual_seed(0)
    for runtime in (STOCK_ONNX, STOCK_EXECUTORCH):
        stock_export.main(runtime, str(source), str(folder), "2", "8")
    return folder


@pytest.mark.parametrize(
    ("runtime", "loader"),
    [(STOCK_ONNX, onnx_loader), (STOCK_EXECUTORCH, executorch_loader)],
    ids=["onnx", "executorch"],
)
def test_both_precisions_give_the_logits_of_one_model(exported, runtime, loader):
    def logits(step):
        result = loader(file_of(exported, runtime, step), SIZES)()()
        return np.asarray(next(iter(result.values())) if isinstance(result, dict) else result[0])

    floats, integers = logits(STOCK_FP32), logits(STOCK_INT8)
    assert floats.shape == (2, 3)
    assert 0 < np.abs(floats - integers).max() < 0.2 * np.abs(floats).max()


@pytest.mark.parametrize("runtime", [STOCK_ONNX, STOCK_EXECUTORCH])
def test_a_stock_forward_is_measured(exported, capsys, runtime):
    stock.main(runtime, STOCK_FP32, str(exported), "3", "2", "8", "1", "1")
    row = json.loads(capsys.readouterr().out)
    assert (row["runtime"], row["step"]) == (runtime, STOCK_FP32)
    assert row["cpu_ms"] > 0
    assert row["rss_mb"] > row["peak_mb"] >= 0


@pytest.mark.parametrize("name", BASELINES)
def test_a_step_of_eager_pytorch_is_measured(tiny, capsys, name):
    eager.main(str(tiny), name, "2", "8", "1", "1")
    row = json.loads(capsys.readouterr().out)
    assert (row["runtime"], row["step"]) == (EAGER, name)
    assert row["cpu_ms"] > 0
    assert row["rss_mb"] > row["peak_mb"] >= 0


def test_a_missing_library_is_one_line(tiny, monkeypatch):
    for runtime in baselines.STOCK:
        monkeypatch.setitem(baselines.STOCK, runtime, ("torch", "no_such_library"))
    monkeypatch.setattr(baselines, "BASELINES", ())
    assert [*measure(tiny, 2, 8, 1, 1)] == [
        {"runtime": runtime, "step": "", "skipped": "needs no_such_library"}
        for runtime in (STOCK_ONNX, STOCK_EXECUTORCH)
    ]


def test_what_does_not_work_says_why_and_the_rest_goes_on(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", python())
    first = BASELINES[:1]  # each of them would open the same broken model in a process of its own
    monkeypatch.setattr(baselines, "BASELINES", first)
    folder = shutil.copytree(tiny, tmp_path / "bundle")
    config = folder / "model_config.json"
    config.write_text('{"model_type": "no-such-model"}'.ljust(config.stat().st_size))
    rows = [*measure(folder, 2, 8, 1, 1)]
    assert [(row["runtime"], row["step"]) for row in rows] == [
        *((EAGER, name) for name in first),
        *((runtime, step) for runtime in (STOCK_ONNX, STOCK_EXECUTORCH) for step in (STOCK_FP32, STOCK_INT8)),
    ]
    assert all("\n" not in row["skipped"] for row in rows)
    assert all(row["skipped"].startswith("does not export: ") for row in rows[1:])


def test_exports_end_when_nobody_waits_for_them(tiny, monkeypatch):
    monkeypatch.setattr("sys.executable", python())
    begun = measure(tiny, 2, 8, 1, 1)
    folder = Path(begun._exports.folder)
    begun.close()
    assert not folder.exists()
    assert begun._exports.wait(STOCK_EXECUTORCH) == "it was not waited for"


# --- checkpoints -----------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return torch.tanh(self.inner(x))


class Model(torch.nn.Module):
    def __init__(self, blocks: int, times: int = 1) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.times = times

    def forward(self, x):
        for block in [*self.blocks] * self.times:
            x = block(x)
        return x.sum()


@pytest.mark.parametrize(("blocks", "times"), [(3, 1), (1, 3)], ids=["blocks", "one block many times"])
def test_blocks_are_computed_again_on_the_way_back(blocks, times):
    model, x = Model(blocks, times), torch.randn(2, 4)
    plain = torch.autograd.grad(model(x), [*model.parameters()])
    checkpoint_blocks(model, (x,), layers=3)
    before = sum(block.runs for block in model.blocks)
    again = torch.autograd.grad(model(x), [*model.parameters()])
    assert sum(block.runs for block in model.blocks) - before == 6
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(ExportError, match="found no module that is called 5 times, to checkpoint"):
        checkpoint_blocks(Model(3), (torch.randn(2, 4),), layers=5)


def test_a_model_takes_what_its_manifest_names(tiny):
    manifest = Bundle.open(tiny).manifest
    assert [tuple(one.shape) for one in tokens_of(manifest, 2, 8)] == [(2, 8)] * len(manifest.inputs)
