"""Many clients in one pass, against the eager model with one client's weights at a time and `torch.func.jvp`."""

import numpy as np
import pytest
import torch
from torch.func import functional_call

from edge_client.data.batches import Batch
from edge_client.gradient.drawing import step_directions, without_padding
from edge_client.gradient.estimate import directions_for
from edge_client.wire.protocol import ServerOptimizers, Task, Training
from export.adapt.wrapping import adapt
from export.check.reference import Reference
from export.graph.capture import TaskForward
from export.rows import RowModel, open_model
from server.simulation.compute.together import SideBySide
from tests.adapters import everywhere
from tests.export.models import batch_of, projections, tiny

LENGTH, SIZE, CLIENTS = 9, 4, 3
REAL = slice(SIZE - 1)
"""A batch's last row only fills it, and weighs nothing."""
EXACT, KINKED = 1e-5, 1e-3
"""Bounds of an error; the second where a unit of OPT's ReLU may be within rounding of zero, on either side of it."""
CASES = [
    *[("bert", "seq-cls", method) for method in ("lora", "bottleneck", "ia3", "bitfit", "classifier")],
    *[("roberta", "seq-cls", method) for method in ("lora", "bitfit")],
    *[("opt", "seq-cls", "lora"), ("llama", "seq-cls", "ia3"), ("gpt2", "seq-cls", "lora")],
    *[("bert", "qa", "bottleneck"), ("roberta", "qa", "ia3"), ("distilbert", "qa", "lora")],
    *[("opt", "causal-lm", "bitfit"), ("llama", "causal-lm", "lora"), ("gpt_neox", "causal-lm", "lora")],
    *[("qwen3", "causal-lm", "bottleneck"), ("gemma3", "causal-lm", "lora"), ("modernbert", "seq-cls", "lora")],
]


class Clients:
    """Some clients of a row model, each with fresh weights and a batch with padding and a row that only fills it."""

    def __init__(self, architecture: str, task: str, method: str, arithmetic: str = "float32") -> None:
        self.random = np.random.default_rng()
        loaded = tiny(architecture, task)
        options = everywhere(method)
        adapted = adapt(loaded, options, projections=projections(architecture, task))
        self.loaded, self.adapted = loaded, adapted
        self.model = RowModel(loaded, adapted, method, device="cpu", arithmetic=arithmetic)
        self.reference = Reference(adapted, loaded.task)
        self.bound = KINKED if architecture == "opt" else EXACT
        self.batches = [self._batch(number) for number in range(CLIENTS)]
        self.weights = [self._moved() for _ in range(CLIENTS)]

    def _batch(self, number: int) -> Batch:
        lengths = [int(count) for count in self.random.integers(3, LENGTH, SIZE - 1)] + [1]
        found = batch_of(self.loaded, lengths, LENGTH, seed=int(self.random.integers(1 << 20)))
        tokens = {name: found[name].numpy() for name in self.model.manifest.inputs}
        weight = np.array([1.0] * (SIZE - 1) + [0.0], np.float32)
        return Batch(number, tokens, found["labels"].numpy(), weight)

    def _moved(self) -> dict:
        def noise(shape):
            return 0.1 * self.random.standard_normal(shape).astype(np.float32)

        return {name: value + noise(value.shape) for name, value in self.model.initial.items()}

    def directions(self, count: int) -> dict:
        """[count, *shape] of every unit and the head."""
        units = range(len(self.model.manifest.units))
        seed = int(self.random.integers(1 << 40))
        return directions_for(self.model.manifest, units, seed, directions=count, head=True)

    # --- the eager model ---

    def inputs(self, client: int) -> dict:
        batch = self.batches[client]
        return {name: torch.from_numpy(value) for name, value in {**batch.tokens, "labels": batch.labels}.items()}

    def values(self, client: int) -> dict:
        return {name: torch.from_numpy(value) for name, value in self.weights[client].items()}

    def jvp(self, client: int, directions: dict) -> np.ndarray:
        """[K, batch] by `torch.func.jvp`, one direction after the other."""
        count = len(next(iter(directions.values())))
        along = [{name: torch.from_numpy(rows[k]) for name, rows in directions.items()} for k in range(count)]
        found = [self.reference.jvp(self.inputs(client), self.values(client), direction) for direction in along]
        return torch.stack(found).numpy()

    def jvps_of_rows(self, client: int, directions: dict) -> np.ndarray:
        """[K, batch], each example along a direction of its own."""
        rows = self.jvp(client, directions).reshape(-1, SIZE, SIZE)
        return np.einsum("kbb->kb", rows)

    def mean_gradient(self, client: int) -> dict:
        """Return the mean gradient of the examples that count, by `torch.autograd`."""
        inputs = {name: value[REAL] for name, value in self.inputs(client).items()}
        return {name: value.numpy() for name, value in self.reference.gradient(inputs, self.values(client)).items()}

    def outputs(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Losses and logits of the eager model."""
        forward = TaskForward(self.adapted.model, self.loaded.task, self.model.manifest.inputs)
        named = {"model." + self.adapted.names[key]: value for key, value in self.values(client).items()}
        with torch.no_grad():
            loss, logits = functional_call(forward, named, tuple(self.inputs(client).values()))
        return loss.numpy(), logits.numpy()


def close(found, expected, bound=EXACT):
    """Relative to the expected values together."""
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < bound, f"relative error {error:.2e}"


def task_of(number, units, training):
    """A part of a round, of which its units and settings matter here."""
    return Task(
        id=str(number), job="job", job_name="job", round=1, seed=number, units=units, cut=0, bundle="", runtime="",
        version=0, iteration=0, seconds=0.0, training=training, optimizers=ServerOptimizers(), batch=training.batch,
    )  # fmt: skip


def product(gradients, directions):
    """[K, batch]: each example's gradient along each direction."""
    pairs = [(gradients[name].reshape(SIZE, -1), v.reshape(len(v), -1)) for name, v in directions.items()]
    return sum(v.astype(np.float64) @ gradient.T.astype(np.float64) for gradient, v in pairs)


@pytest.mark.parametrize(("architecture", "task", "method"), CASES)
def test_rows_are_the_model_differentiated_in_forward_mode(architecture, task, method):
    clients = Clients(architecture, task, method)
    names = [sorted(clients.model.initial)] * CLIENTS
    found = clients.model.differentiate(clients.weights, clients.batches, names, per_example=True)
    plain = clients.model.forward(clients.weights, clients.batches)
    for client in range(CLIENTS):
        directions = clients.directions(5)
        expected = clients.jvp(client, directions)[:, REAL]
        assert np.abs(expected).max() > 1e-3
        close(product(found[client].gradients, directions)[:, REAL], expected, clients.bound)
        loss, logits = clients.outputs(client)
        mask = clients.batches[client].tokens["attention_mask"] == 1 if logits.ndim == 3 else np.arange(SIZE) < SIZE - 1
        for result in ((found[client].loss, found[client].logits), plain[client]):
            close(result[0][REAL], loss[REAL])
            assert result[1].shape == logits.shape
            close(result[1][mask], logits[mask])


@pytest.mark.parametrize("per_example", [True, False])
@pytest.mark.parametrize("head", ["exact", "apart"])
def test_a_simulated_clients_passes_are_forward_modes(head, per_example):
    clients = Clients("bert", "seq-cls", "lora")
    manifest, units = clients.model.manifest, [[0, 3], [1], [2, 1]]
    training = Training(batch=SIZE, length=LENGTH, directions=2, head=head, per_example=per_example)
    tasks = [task_of(number, units[number], training) for number in range(CLIENTS)]

    def work(number, passes):
        drawn = step_directions(manifest, units[number], number, training, 0)
        given = clients.batches[number], clients.weights[number], drawn
        return drawn, passes.along(*given, scalar_head=head != "exact")

    for client, (rows_of, found) in enumerate(SideBySide(clients.model).run(tasks, work)):
        of_head = {parameter.name for parameter in manifest.head}
        drawn = {name: np.repeat(rows, SIZE // training.rows, axis=0) for name, rows in rows_of.items()}
        of_units = {name: rows for name, rows in drawn.items() if name not in of_head}
        close(found.jvp[:, REAL], clients.jvps_of_rows(client, of_units)[:, REAL])
        assert not found.jvp[:, SIZE - 1].any()
        if head == "apart":
            along = {name: drawn[name] for name in of_head}
            close(found.head_jvp[:, REAL], clients.jvps_of_rows(client, along)[:, REAL])
        else:
            expected = clients.mean_gradient(client)
            assert found.gradients.keys() == of_head
            for name in of_head:
                close(found.gradients[name], expected[name])


@pytest.mark.parametrize(("architecture", "task"), [("bert", "seq-cls"), ("gpt2", "seq-cls"), ("llama", "causal-lm")])
def test_a_simulated_clients_directions_at_bottlenecks(architecture, task):
    """Against `torch.func.jvp` with tangents behind the factors, and what enters these."""
    clients = Clients(architecture, task, "bottleneck")
    manifest, units = clients.model.manifest, range(len(clients.model.manifest.units))
    training = Training(batch=SIZE, length=LENGTH, directions=2)
    tasks = [task_of(number, [*units], training) for number in range(CLIENTS)]

    def work(number, passes):
        batch = clients.batches[number]
        drawn = step_directions(manifest, units, number, training, 0)
        drawn = without_padding(drawn, manifest, batch.tokens["attention_mask"])
        return drawn, passes.along(batch, clients.weights[number], drawn)

    assert {unit.token for unit in manifest.units} == ({None, 0} if architecture == "bert" else {None})
    for client, (drawn, found) in enumerate(SideBySide(clients.model).run(tasks, work)):
        inputs, values = clients.inputs(client), clients.values(client)
        entering = clients.reference.entering(inputs, values, drawn)
        slopes = []
        for k in range(2):
            whole = {name: torch.zeros(SIZE, LENGTH, rows.shape[2]) for name, rows in drawn.items()}
            for name, rows in drawn.items():
                seen = torch.from_numpy(rows[k * SIZE : (k + 1) * SIZE])
                whole[name][:, : seen.shape[1]] = seen
                moved = (whole[name].transpose(1, 2) @ entering[name]).numpy()
                close(found.moved[name][k * SIZE : (k + 1) * SIZE][REAL], moved[REAL])
            slopes.append(clients.reference.jvp(inputs, values, {}, whole).numpy())
        close(found.jvp[:, REAL], np.stack(slopes)[:, REAL])
        assert not found.jvp[:, SIZE - 1].any()


@pytest.mark.parametrize("method", ["lora", "ia3", "bitfit"])
def test_the_mean_gradient_is_the_weighted_mean_of_the_examples(method):
    clients = Clients("bert", "seq-cls", method)
    names = [sorted(clients.model.initial)] * CLIENTS
    each = clients.model.differentiate(clients.weights, clients.batches, names, per_example=True)
    mean = clients.model.differentiate(clients.weights, clients.batches, names, per_example=False)
    for batch, one, other in zip(clients.batches, each, mean, strict=True):
        share = batch.weight / batch.weight.sum()
        close(other.loss, one.loss)
        expected = np.concatenate([np.tensordot(share, one.gradients[name], 1).reshape(-1) for name in names[0]])
        close(np.concatenate([other.gradients[name].reshape(-1) for name in names[0]]), expected)


@pytest.mark.parametrize("method", ["lora", "ia3", "bitfit"])
def test_bfloat16_is_close(method):
    exact = Clients("bert", "seq-cls", method)
    rounded = Clients("bert", "seq-cls", method, "bfloat16")
    names = [sorted(exact.model.initial)] * CLIENTS
    asked = exact.weights, exact.batches, names
    pairs = zip(
        rounded.model.differentiate(*asked, per_example=True),
        exact.model.differentiate(*asked, per_example=True),
        strict=True,
    )
    for found, expected in pairs:
        close(found.loss, expected.loss, 0.02)
        assert np.abs(found.loss - expected.loss).max() > 1e-5
        each = [np.concatenate([one.gradients[name].reshape(-1) for name in names[0]]) for one in (found, expected)]
        close(*each, 0.05)
    shared = [exact.weights[0]] * CLIENTS, exact.batches
    for (loss, *_), (expected, *_) in zip(rounded.model.forward(*shared), exact.model.forward(*shared), strict=True):
        close(loss, expected, 0.02)


def test_clients_may_share_their_weights():
    clients = Clients("bert", "seq-cls", "lora")
    weights = [clients.weights[0]] * CLIENTS
    for (loss, logits, _), number in zip(clients.model.forward(weights, clients.batches), range(CLIENTS), strict=True):
        alone = clients.model.forward(weights[:1], clients.batches[number : number + 1])[0]
        close(loss, alone[0])
        close(logits, alone[1])


def test_what_one_model_is_made_of_is_not_taken_for_anothers(model_folder):
    """Traced once for those that differ in their weights alone."""
    variants = [
        (labels, everywhere(method, **options))
        for labels in (("no", "yes"), ("no", "maybe", "yes"))
        for method, options in (("lora", {"rank": 1}), ("lora", {"rank": 2}), ("bitfit", {}), ("classifier", {}))
    ]
    for seed in (0, 1):
        for labels, adapter in variants:
            model = open_model(str(model_folder), task="seq-cls", labels=labels, adapter=adapter, seed=seed)
            told = {parameter.name: tuple(parameter.shape) for parameter in model.manifest.trained}
            assert told == {name: value.shape for name, value in model.initial.items()}
            assert model.manifest.model.labels == labels
            assert model.manifest.adapter.method == adapter.method
