"""benchmarks/gpu_memory.py on tiny shapes: every way of a step computes the same, and ours takes least for it."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.benchmarks import script

MODELS = ["roberta-large", "llama-2-7b", "opt-6.7b"]


models, _, steps, meter, gpu_memory = (
    script(name) for name in ("gpu_models", "gpu_chain", "gpu_steps", "gpu_meter", "gpu_memory")
)


def tiny(model: str, *, layers: int = 2, dtype: torch.dtype = torch.float32):
    shape = gpu_memory.small(gpu_memory.SHAPES[model])
    shape.config.num_hidden_layers = layers
    return dataclasses.replace(shape, dtype=dtype)


def run(method: str, shape) -> tuple[float, float]:
    """Mean loss and derivative along the direction."""
    step, _ = steps.STEPS[method](shape, "cpu")
    loss, slope = step()
    return float(loss), float(slope)


@pytest.mark.parametrize("model", MODELS)
def test_every_method_computes_the_same(model):
    found = {method: run(method, tiny(model)) for method in ("backprop", "central", "func.jvp", "dual")}
    loss, slope = found["func.jvp"]
    assert abs(slope) > 0.1, "a direction along which little moves would show nothing"
    for method, (its_loss, its_slope) in found.items():
        loose = method == "central"
        assert its_loss == pytest.approx(loss, rel=1e-4 if loose else 1e-5), method
        assert its_slope == pytest.approx(slope, rel=0.1 if loose else 1e-4), method


def test_a_share_is_the_derivative_along_its_own_units():
    shape = tiny("llama-2-7b")
    case = models.Case.make(shape, "eager", "cpu")
    own = {k: torch.zeros_like(v) if "layers.0." in k else v for k, v in case.direction.items()}
    with torch.no_grad():
        loss, slope = torch.func.jvp(case.losses, (models.trained(case.model),), (own,))
    for method in ("share", "suffix"):
        assert run(method, shape) == pytest.approx((float(loss), float(slope)), rel=1e-4), method


def test_ours_takes_less_than_eager_pytorch_and_the_same_at_every_depth():
    shape = tiny("llama-2-7b", layers=4)
    highest = {
        method: meter.counted(steps.STEPS[method](shape, "cpu")[0]) for method in ("backprop", "func.jvp", "dual")
    }
    assert highest["dual"] < highest["func.jvp"] < highest["backprop"]
    shallow = meter.counted(steps.STEPS["dual"](tiny("llama-2-7b"), "cpu")[0])
    assert highest["dual"] == pytest.approx(shallow, rel=0.02)


def test_a_released_prefix_takes_its_weights_with_it():
    shape = tiny("opt-6.7b")
    whole, rest = (steps.STEPS[method](shape, "cpu")[1] for method in ("share", "suffix"))
    assert rest < whole / 2, "the embeddings go too"


def test_counted_are_the_tensors_that_live_at_the_same_time():
    with meter.Counter() as counter:
        first = torch.zeros(1000)
        view = first[10:]
        del first
        second = torch.ones(500)
        del view
        third = torch.ones(700)
    assert counter.highest == 4 * 1500
    assert counter.now == 4 * (len(second) + len(third))


class OneDevice(TorchDispatchMode):
    """Fails where a tensor lies elsewhere; numbers may."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, torch.Tensor) or leaf.device.type == self.device or leaf.dim() == 0, func
        return result


@pytest.mark.parametrize("model", MODELS)
def test_programs_run_on_another_device_than_they_were_traced_on(model):
    step, _ = steps.STEPS["dual"](tiny(model, layers=1, dtype=torch.bfloat16), "meta")
    with OneDevice("meta"):
        loss, slope = step()
    assert {loss.device.type, slope.device.type} == {"meta"}


def test_forward_mode_of_norms_in_half_precision_runs_where_they_keep_float32_inside():
    """As a GPU does, and the meta device, but not the CPU."""
    step, _ = steps.STEPS["func.jvp"](tiny("opt-6.7b", dtype=torch.bfloat16), "meta")
    loss, slope = step()
    assert (loss.dtype, slope.dtype) == (torch.bfloat16, torch.bfloat16)


def test_published_shapes_beat_the_papers_peaks_by_count():
    """Of all 32 blocks, by what a third one adds to two: they are alike."""
    whole = gpu_memory.SHAPES["llama-2-7b"]
    totals = []
    for layers in (2, 3):
        config = type(whole.config).from_dict({**whole.config.to_dict(), "num_hidden_layers": layers})
        totals.append(meter.measure(dataclasses.replace(whole, config=config), "dual", meter.FAKE)[1].total)
    two, three = totals
    total = two + (whole.config.num_hidden_layers - 2) * (three - two)
    assert 3.4e9 < total < gpu_memory.PAPER["llama-2-7b"].peak_gb * 1e9, "its weights alone are 3.4 GB"


def test_the_script_measures_in_a_process_of_its_own(tmp_path, monkeypatch, capsys):
    out = tmp_path / "rows.jsonl"
    what = ["--device", "cpu", "--small", "--models", "llama-2-7b", "--methods", "central", "--json", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["gpu_memory.py", *what])
    gpu_memory.main()
    shown, table = capsys.readouterr()
    row = json.loads(shown)
    assert json.loads(out.read_text()) == row
    assert row["total"] == row["weights_bytes"] + row["above"]
    assert row["loss"] == pytest.approx(run("central", gpu_memory.small(gpu_memory.SHAPES["llama-2-7b"]))[0], rel=1e-5)
    assert f"{row['total'] / 1e9:.2f}" in table


@pytest.mark.parametrize("names", ["bert", "llama-2-7b,bert"])
def test_an_unknown_model_is_named(names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu_memory.py", "--models", names])
    with pytest.raises(SystemExit):
        gpu_memory.main()
    assert "bert: expected some of roberta-large, llama-2-7b" in capsys.readouterr().err


def test_where_memory_runs_out_the_row_says_so(monkeypatch):
    endless = dataclasses.replace(tiny("llama-2-7b"), batch=10**13)
    monkeypatch.setitem(gpu_memory.SHAPES, "llama-2-7b", endless)
    row = gpu_memory.measured("llama-2-7b", "central", "cpu", tiny=False)
    assert row["error"] == "out of memory"
    assert gpu_memory.line(row, None).endswith("out of memory")


def test_ours_is_compared_with_the_paper():
    sizes = {"backprop": (30, 33), "central": (1, 4), "dual": (2, 5)}
    rows = {name: {"above": above * 1e9, "total": total * 1e9} for name, (above, total) in sizes.items()}
    shown = gpu_memory.verdict("llama-2-7b", rows)
    assert "84.85 % less than backprop (paper 81.73 %)" in shown
    assert "2.00 x central's activations (paper 1.95)" in shown
    assert "5.00 GB (paper 6.2 GB: ok)" in shown
    rows["backprop"] = {"error": "out of memory"}
    assert "backprop" not in gpu_memory.verdict("llama-2-7b", rows)


def test_a_bundles_steps_stand_beside_themselves_on_a_device(exported_once, monkeypatch, capsys):
    beside = script("gpu_bundle")
    bundle = exported_once("torchscript", runtimes=("torchscript",))
    monkeypatch.setattr(sys, "argv", ["gpu_bundle.py", str(bundle), "--device", "cpu", "--rounds", "1"])
    beside.main()
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["forward", "dual", "suffix", "exact"]
    assert all(float(line.split()[3]) == 0 for line in lines)


def test_numbers_that_are_apart_are_told():
    beside = script("gpu_bundle")
    ours, theirs = {"a": np.ones(3), "b": (np.zeros(2),)}, {"a": np.ones(3), "b": (np.array([0.0, 0.5]),)}
    assert beside.difference(theirs, ours) > 1e6, "beside nothing"
    assert beside.difference(ours, theirs) == 1
