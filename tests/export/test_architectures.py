"""Architectures with their tasks, against the eager model, torch.func.jvp and torch.autograd; PEFT methods in turn.

`--every-combination` tries all three together.
"""

from functools import cache
from itertools import cycle

import pytest
import torch
from torch.func import functional_call, jvp

from export.adapt.adapter import ADAPTERS
from export.adapt.bottlenecks import at_bottlenecks
from export.errors import ExportError
from export.graph.slots import Role
from tests.export.models import CONFIGS, Chain, batch_of, combinations

BATCH, LENGTH = 2, 7
EXAMPLE_WEIGHT = torch.tensor([0.25, 0.75])
TOLERANCE = 3e-5
WITHOUT_BIASES = {"llama", "qwen3", "gemma3", "modernbert"}
SHARED_WEIGHTS = {"albert"}
"""Whose blocks share their adapters' factors, which have no bottleneck of their own."""
METHODS = list(ADAPTERS)
SPANS = {"distilbert", "modernbert", "llama", "qwen2"}
"""The architectures that find spans here."""


def nothing_to_train(architecture, task, method):
    return (method == "classifier" and task == "causal-lm") or (method == "bitfit" and architecture in WITHOUT_BIASES)


def programs(every: bool) -> list[tuple[str, str, str]]:
    """Each architecture with each of its tasks, adapters in turn, so that neighbours, which are alike, meet all.

    What finds spans is the same layer behind all architectures, and two encoders and two decoders have it. What the
    classifier alone trains, a head, every other method trains too: it meets each task.
    """
    if every:
        return [(a, t, m) for a, t in combinations() for m in METHODS if not nothing_to_train(a, t, m)]
    adapters = cycle(method for method in METHODS if method != "classifier")
    found = [
        (architecture, task, next(method for method in adapters if not nothing_to_train(architecture, task, method)))
        for architecture, task in combinations()
        if task != "qa" or architecture in SPANS
    ]
    return [*found, ("bert", "seq-cls", "classifier"), ("distilbert", "qa", "classifier")]


@cache
def padded(every: bool) -> list[tuple[str, str, str]]:
    """The models whose masks or positions differ; or all. Each is compared with the eager one in padded rows above."""
    if every:
        return [(architecture, task, "lora") for architecture, task in combinations()]
    different = ("bert", "gpt2", "mpnet", "modernbert", "opt", "gemma3")
    simple = [case for case in programs(every) if case[2] != "bottleneck"]  # whose directions grow with the text
    return [next(case for case in simple if case[0] == name) for name in different]


CASES = {"test_programs": programs, "test_padding_changes_nothing": padded}


def pytest_generate_tests(metafunc):
    if cases := CASES.get(metafunc.function.__name__):
        chosen = cases(metafunc.config.getoption("every_combination"))
        metafunc.parametrize(("architecture", "task", "method"), chosen)


def test_pairs_are_tried():
    usual, every = set(programs(False)), set(programs(True))
    assert usual < every
    assert {(a, t) for a, t, _ in every} == set(combinations())
    assert {(a, t) for a, t, _ in usual} == {(a, t) for a, t in combinations() if t != "qa" or a in SPANS}
    assert {(t, m) for _, t, m in usual} == {(t, m) for _, t, m in every}
    assert {(a, t) for a, t, _ in padded(True)} == set(combinations())


def test_architectures_have_the_tasks_they_can_have():
    absent = {(a, t) for a in CONFIGS for t in ("seq-cls", "qa", "causal-lm")} - set(combinations())
    encoders = {(name, "causal-lm") for name in ("distilbert", "albert", "mpnet", "modernbert")}
    assert absent == encoders | {("gemma3", "qa")}


def build(architecture, task, method):
    return Chain.build(architecture, task, method, batch=BATCH, length=LENGTH, narrowed=True)


kept = cache(build)
"""For what two tests read: programs that one of them traces."""


def directions_of(task, method):
    """Several where there is a head to move too."""
    return 2 if task == "seq-cls" and method in ("lora", "bottleneck") else 1


def close(found, expected, scale=None):
    """Relative to the expected values, or to the largest of several tensors."""
    error = (found - expected).norm() / (expected.norm() if scale is None else scale)
    assert error < TOLERANCE, f"relative error {error:.2e}"


def oracle(chain, inputs, along, directions):
    """The directional derivative of each example's loss along its own direction, by torch.func.jvp."""
    parameters = {name: value.detach() for name, value in chain.adapted.model.named_parameters()}
    name_of = {value.data_ptr(): name for name, value in parameters.items()}
    moving = {slot: name_of[address] for address, slot in chain.adapted.slots.items() if slot in along}
    behind = {slot.name: value for slot, value in along.items() if slot.name in chain.bottlenecks}
    forward = chain.forward_module(inputs)

    def losses(moved, added):
        everything = {"model." + name: value for name, value in {**parameters, **moved}.items()}
        with at_bottlenecks(chain.adapted, behind, added):
            return functional_call(forward, everything, tuple(inputs.values()))[0]

    start = {name: parameters[name] for slot, name in moving.items() if slot.name not in behind}
    still = {name: torch.zeros(value.shape[1:]) for name, value in behind.items()}  # the same for all examples
    slopes = []
    for row in range(directions * BATCH):
        of_weights = {name: along[slot][row] for slot, name in moving.items() if slot.name not in behind}
        _, slope = jvp(losses, (start, still), (of_weights, {name: value[row] for name, value in behind.items()}))
        slopes.append(slope[row % BATCH])
    return torch.stack(slopes)


def directions_of_weights(chain, inputs, along, directions):
    """Return what directions at bottlenecks are, by products with what enters the eager model's factors."""
    behind = {slot.name: value for slot, value in along.items() if slot.name in chain.bottlenecks}
    with at_bottlenecks(chain.adapted, behind, {}) as entering:
        chain.losses(inputs)
    return {name: v.transpose(1, 2) @ entering[name].repeat(directions, 1, 1) for name, v in behind.items()}


def gradients(chain, inputs):
    """By torch.autograd; None for what PEFT has but the forward does not use."""
    slots = chain.adapted.slots
    parameters = [p for p in chain.adapted.model.parameters() if p.data_ptr() in slots]
    with torch.enable_grad():
        for parameter in parameters:
            parameter.requires_grad_(True)
        loss, _ = chain.losses(inputs)
        found = torch.autograd.grad(loss @ EXAMPLE_WEIGHT, parameters, allow_unused=True)
        for parameter in parameters:
            parameter.requires_grad_(False)
    return {slots[p.data_ptr()]: gradient for p, gradient in zip(parameters, found, strict=True)}


@torch.no_grad()
def test_programs(architecture, task, method):
    case = architecture, task, method
    chain = (kept if case in padded(False) else build)(*case)
    inputs = batch_of(chain.loaded, [LENGTH, LENGTH - 3], LENGTH)
    weighted = {**inputs, "example_weight": EXAMPLE_WEIGHT}

    loss, logits = chain.losses(inputs)
    forward = chain.forward(inputs)
    torch.testing.assert_close(forward["loss"], loss)
    torch.testing.assert_close(forward["logits"], logits)

    expected = gradients(chain, inputs)
    largest = max(gradient.norm() for gradient in expected.values() if gradient is not None)
    exact = chain.exact(weighted)
    for slot, gradient in expected.items():
        if gradient is not None:
            close(exact["g:" + slot.name], gradient, largest)
    torch.testing.assert_close(exact["loss"], loss)

    adapters, head = chain.used(Role.ADAPTER), chain.used(Role.HEAD)
    assert bool(chain.units) == bool(adapters) == (method != "classifier")
    if not adapters:
        return
    directions = directions_of(task, method)
    along = chain.drawn(adapters, directions * BATCH)
    slopes = oracle(chain, inputs, along, directions)
    dual = chain.dual(weighted, along, directions)
    close(dual["jvp"], slopes)
    torch.testing.assert_close(dual["loss"], loss)
    for slot in head:
        close(dual["g:" + slot.name], expected[slot], largest)
    assert bool(chain.bottlenecks) == (method == "bottleneck" and architecture not in SHARED_WEIGHTS)
    for name, value in directions_of_weights(chain, inputs, along, directions).items():
        close(dual["x:" + name], value)
    if not head or method != "lora":  # the head's own scalars do not depend on the method
        return
    along_head = {slot: torch.randn(directions * BATCH, *chain.parameters[slot].shape) for slot in head}
    scalar = chain.dual(inputs, along | along_head, directions)
    close(scalar["jvp"], slopes)
    close(scalar["head_jvp"], oracle(chain, inputs, along_head, directions))


@torch.no_grad()
def test_padding_changes_nothing(architecture, task, method):
    short = kept(architecture, task, method)
    long = short.at(BATCH, LENGTH + 4)
    directions = directions_of(task, method)
    along = {slot: torch.randn(directions * BATCH, *short.parameters[slot].shape) for slot in short.used(Role.ADAPTER)}
    results = []
    for chain in (short, long):
        inputs = batch_of(chain.loaded, [LENGTH, LENGTH - 2], chain.length)
        results.append(chain.dual({**inputs, "example_weight": EXAMPLE_WEIGHT}, along, directions))
    close(results[1]["loss"], results[0]["loss"])
    close(results[1]["jvp"], results[0]["jvp"])


@pytest.mark.parametrize("architecture", sorted(WITHOUT_BIASES))
def test_a_model_without_biases_has_nothing_for_bitfit(architecture):
    with pytest.raises(ExportError, match="'bitfit' finds nothing to train"):
        Chain.build(architecture, "seq-cls", "bitfit", batch=BATCH, length=LENGTH)


def test_a_language_model_has_no_classifier():
    with pytest.raises(ExportError, match="'classifier' finds nothing to train"):
        Chain.build("llama", "causal-lm", "classifier", batch=BATCH, length=LENGTH)
