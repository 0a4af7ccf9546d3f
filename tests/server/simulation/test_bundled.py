"""A bundle as a simulation's model: settled by its manifest, computed by its programs."""

import pytest
from safetensors.numpy import load_file

from edge_client.bundle.folder import Bundle
from edge_client.commands.options.adapter import AdapterOptions
from server.errors import SimulationError
from server.simulation.bundled import completed
from server.simulation.plan import plan_for
from tests.server.simulation.runs import bits, done, lines


def asked(bundle, **others):
    return {"model": str(bundle), "task": "seq-cls", **others}


def test_task_adapter_and_runtime_are_the_bundles(trainable, talker):
    found = completed(asked(trainable), None)
    assert (found["task"], found["runtime"], found["adapter"]["method"]) == ("seq-cls", "onnx", "lora")
    assert completed(asked(talker), "onnx")["task"] == "causal-lm"


def test_another_model_is_left_as_it_is(model_folder):
    assert completed(asked(model_folder), None) == asked(model_folder)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"adapter": vars(AdapterOptions("lora", rank=8))}, "an adapter"),
        ({"task": "causal-lm"}, "--task"),
        ({"random_weights": True}, "--random-weights"),
        ({"arithmetic": "bfloat16", "device": "cuda"}, "--arithmetic and --device"),
    ],
)
def test_what_the_bundle_has_settled_is_refused(changed, named, trainable):
    with pytest.raises(SimulationError, match=rf"a bundle, whose programs have their own: leave out {named}$"):
        completed(asked(trainable, **changed), None)


def test_a_runtime_without_programs_is_refused(trainable):
    with pytest.raises(SimulationError, match="has programs for onnx, and none of these is installed or asked for"):
        completed(asked(trainable), "executorch")


def test_a_run_ends_with_scores_and_an_adapter_the_same_for_any_number_of_processes(trainable, writing, tmp_path):
    settings = {"per_round": 4, "rounds": 2, "training": {"batch": 4, "length": 8, "iterations": 2}}
    wanted = {
        "method": "spry", "preset": "default", "data": str(writing()), "seed": 5, "clients": 6, "alpha": 1.0,
        "settings": settings,
    }  # fmt: skip
    plan = plan_for(**completed({**wanted, "model": str(trainable)}, None))
    one, two = done(plan, tmp_path / "one"), done(plan, tmp_path / "two", workers=2)
    assert bits(one) == bits(two)
    assert {"accuracy", "accuracy_personal"} <= lines(one)[-1].keys()
    bundle = Bundle.open(trainable)
    initial = bundle.initial_adapter()
    learned = load_file(one / "adapter" / "adapter_model.safetensors")
    assert {name: value.shape for name, value in learned.items()} == {n: v.shape for n, v in initial.items()}
    assert any((value != initial[name]).any() for name, value in learned.items())
